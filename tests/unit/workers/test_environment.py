"""What a rank inherits, and what it does not."""

from pathlib import Path

from walras.wire import Manifest, StartCommand
from workers.rank_environment import RankSettings, rank_environment

SETTINGS = RankSettings(Path("/client"), "/s/1.r", "c00kie", "", 12.5, 1)


def a_command(**changes: object) -> StartCommand:
    fields: dict[str, object] = {
        "command_id": 1,
        "job_id": 4,
        "attempt": 2,
        "name": "digits",
        "kind": "cnn",
        "argv": ["python", "train.py"],
        "env": {},
        "workdir": "/work",
        "devices": [0, 1],
        "accelerator": "a100",
        "node_rank": 0,
        "num_nodes": 1,
        "world_size": 2,
        "first_rank": 0,
        "master_address": "",
        "master_port": 0,
        "checkpoint_dir": "/ck",
        "resume": None,
        "steps": None,
        "lease_s": 30.0,
        "grace_s": 5.0,
        "job_token": "job",
    }
    return StartCommand.model_validate(fields | changes)


def test_only_what_is_on_the_list_is_inherited() -> None:
    """Tokens, credentials of a cloud and the agent's own PYTHONPATH stay with the agent."""
    agent = {
        "PATH": "/bin",
        "HOME": "/home/ada",
        "LC_ALL": "C",
        "WALRAS_TOKEN": "agent",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PYTHONPATH": "/checkout",
        "LD_PRELOAD": "x.so",
    }
    env = rank_environment(agent, a_command(), SETTINGS)
    assert (env["PATH"], env["HOME"], env["LC_ALL"]) == ("/bin", "/home/ada", "C")
    assert env["WALRAS_TOKEN"] == "job"
    assert env["PYTHONPATH"] == "/client"
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert "LD_PRELOAD" not in env


def test_a_job_sets_what_is_its_own_and_not_what_is_ours() -> None:
    """The job's variables win over inherited ones and defaults, never over who it is and where it resumes."""
    job = {"PYTHONPATH": "/mine", "OMP_NUM_THREADS": "4", "WALRAS_ATTEMPT": "99", "WORLD_SIZE": "7"}
    env = rank_environment({}, a_command(env=job), SETTINGS)
    assert (env["PYTHONPATH"], env["OMP_NUM_THREADS"]) == ("/mine:/client", "4")
    assert (env["WALRAS_ATTEMPT"], env["WORLD_SIZE"]) == ("2", "2")


def test_what_is_unknown_is_absent() -> None:
    """No variable rather than an empty one, for resume, steps and pace."""
    free = RankSettings(Path("/client"), "/s/1.r", "c00kie", "GPU-1,GPU-2", None, 4)
    env = rank_environment({}, a_command(), free)
    assert not {"WALRAS_RESUME", "WALRAS_STEPS", "WALRAS_PACE"} & env.keys()
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_the_in_job_client_reads_what_was_written() -> None:
    """Both ends of the environment agree."""
    from walras.training.supervisor_link import read_job_environment

    resume = Manifest(step=120.0, path="/ck/attempt-0001/step-0000000120", digest="a" * 64)
    env = rank_environment({}, a_command(resume=resume, steps=500.0), SETTINGS) | {"RANK": "1"}
    settings = read_job_environment(env)
    assert settings.resume is not None
    assert (settings.resume.path, settings.resume.step) == (resume.path, 120)
    assert (settings.attempt, settings.steps, settings.pace) == (2, 500, 12.5)
    assert (settings.rank, settings.world_size, settings.checkpoint_dir) == (1, 2, "/ck")
