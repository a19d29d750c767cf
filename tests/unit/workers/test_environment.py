"""What a rank inherits, and what it does not."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from walras.wire import Manifest, StartCommand
from workers.rank_environment import RankSettings, narrowed_devices, rank_environment

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
    assert (env["HOME"], env["LC_ALL"]) == ("/home/ada", "C")
    assert env["WALRAS_TOKEN"] == "job"
    assert env["PYTHONPATH"] == "/client"
    assert "AWS_SECRET_ACCESS_KEY" not in env
    assert "LD_PRELOAD" not in env


MACHINE = {
    "https_proxy": "http://proxy:3128", "HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "*.corp",
    "no_proxy": "localhost",
    "HF_HOME": "/hf", "TORCH_HOME": "/torch", "XDG_CACHE_HOME": "/cache", "FI_PROVIDER": "efa", "UCX_TLS": "rc",
    "NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "eth0", "PIP_INDEX_URL": "https://mirror/", "UV_NO_INDEX": "1",
    "PIP_TRUSTED_HOST": "mirror", "UV_DEFAULT_INDEX": "https://mirror/", "UV_INDEX_URL": "https://mirror/",
}  # fmt: skip
SECRETS = {
    "HF_TOKEN": "hf_x", "WALRAS_TOKEN": "t", "WALRAS_JOIN_TOKEN_FILE": "/t", "AWS_SESSION_TOKEN": "s", "OTHER": "1",
    "UV_INDEX_MIRROR_PASSWORD": "p", "NCCL_SECRET": "x", "PIP_EXTRA_INDEX_URL": "https://ada:pw@mirror/simple",
    "all_proxy": "socks5://ada:pw@proxy:1080", "PYTHONPATH": "/checkout",
}  # fmt: skip


def test_what_jobs_need_of_the_machine_reaches_them_and_no_secret_does() -> None:
    """Proxies in both cases, caches, networks and package indices; not tokens, nor URLs with a password."""
    env = rank_environment(MACHINE | SECRETS, a_command(), SETTINGS)
    assert MACHINE.items() <= env.items()
    assert not {name for name, value in SECRETS.items() if env.get(name) == value}


def test_the_operator_passes_further_variables_by_name() -> None:
    """Also one that the rules withhold; never one of the agent's own, whatever is asked."""
    settings = replace(SETTINGS, pass_env=frozenset({"OTHER", "HF_TOKEN", "WALRAS_JOIN_TOKEN_FILE", "MISSING"}))
    env = rank_environment(SECRETS, a_command(), settings)
    assert (env["OTHER"], env["HF_TOKEN"]) == ("1", "hf_x")
    assert not {"WALRAS_JOIN_TOKEN_FILE", "MISSING", "AWS_SESSION_TOKEN"} & env.keys()


def test_python_is_the_one_of_the_agent_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    """Whatever the PATH holds; a PATH of the job stays as it is, and no other environment is said to be active."""
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python").write_text("#!/bin/sh\n")
    (other / "python").chmod(0o755)
    agent = {"PATH": f"{other}:/usr/bin:/bin", "VIRTUAL_ENV": str(tmp_path)}
    env = rank_environment(agent, a_command(), SETTINGS)
    own = os.path.dirname(sys.executable)
    assert env["PATH"] == f"{own}:{agent['PATH']}"
    assert env.get("VIRTUAL_ENV") == (sys.prefix if sys.prefix != sys.base_prefix else None)
    assert rank_environment({"PATH": f"{own}:{other}"}, a_command(), SETTINGS)["PATH"] == f"{own}:{other}"
    assert rank_environment(agent, a_command(env={"PATH": "/mine"}), SETTINGS)["PATH"] == "/mine"


@pytest.mark.parametrize(
    ("asked", "shown", "told"),
    [
        (None, "4,5,7", ""),
        ("0", "4", ""),
        ("2, 0", "7,4", ""),
        ("GPU-bbbb", "GPU-bbbbbb", ""),
        ("0,GPU-cccccc", "GPU-aaaaaa,GPU-cccccc", ""),
        ("uuid", "GPU-aaaaaa,GPU-bbbbbb,GPU-cccccc", ""),
        ("", "", ""),
        ("-1", "-1", ""),
        ("1,3", "5", "names 3, which the job does not hold: it has 0 to 2"),
        ("GPU-dddddd", "4,5,7", "names GPU-dddddd, which"),
        ("GPU-", "4,5,7", "names GPU-, which"),
    ],
)
def test_a_job_narrows_its_devices_within_what_it_holds(asked: str | None, shown: str, told: str) -> None:
    """By place among its own, or by UUID; what it does not hold never reaches it, and it is told so."""
    names = ("GPU-aaaaaa", "GPU-bbbbbb", "GPU-cccccc")
    settings = replace(SETTINGS, visible_devices="4,5,7", device_names=names)
    command = a_command(env={} if asked is None else {"CUDA_VISIBLE_DEVICES": asked})
    assert rank_environment({}, command, settings)["CUDA_VISIBLE_DEVICES"] == shown
    note = narrowed_devices(settings, asked)[1]
    assert told in note
    assert bool(told) == bool(note)
    # Emulated accelerators show no GPU of the machine, whatever the job asks for.
    assert rank_environment({}, command, SETTINGS)["CUDA_VISIBLE_DEVICES"] == ""


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
