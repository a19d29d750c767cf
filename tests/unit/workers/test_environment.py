"""What a rank inherits, and what it does not."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_commands import a_start
from walras.wire import Manifest, StartCommand
from workers.rank_environment import RankSettings, narrowed_devices, rank_environment

SETTINGS = RankSettings(Path("/client"), "/s/1.r", "c00kie", "", 12.5, 1)


def a_command(**changes: Any) -> StartCommand:
    known = {"job_id": 4, "attempt": 2, "argv": ["python", "train.py"], "devices": [0, 1], "world_size": 2}
    return a_start(Path("/work"), "", **known | {"checkpoint_dir": "/ck", "job_token": "job"} | changes)


def test_only_what_is_on_the_list_is_inherited() -> None:
    """Tokens, credentials of a cloud and the agent's own PYTHONPATH stay with the agent."""
    agent = {
        "PATH": "/bin", "HOME": "/home/ada", "LC_ALL": "C", "WALRAS_TOKEN": "agent", "AWS_SECRET_ACCESS_KEY": "secret",
        "PYTHONPATH": "/checkout", "LD_PRELOAD": "x.so",
    }  # fmt: skip
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
    "NVIDIA_TF32_OVERRIDE": "0", "HF_ENDPOINT": "https://mirror/", "SSL_CERT_FILE": "/certs", "CUDA_HOME": "/cuda",
    "NCCL_IB_PKEY": "0",
}  # fmt: skip
SECRETS = {
    "HF_TOKEN": "hf_x", "WALRAS_TOKEN": "t", "WALRAS_JOIN_TOKEN_FILE": "/t", "AWS_SESSION_TOKEN": "s", "OTHER": "1",
    "UV_INDEX_MIRROR_PASSWORD": "p", "NCCL_SECRET": "x", "PIP_EXTRA_INDEX_URL": "https://ada:pw@mirror/simple",
    "all_proxy": "socks5://ada:pw@proxy:1080", "UV_INDEX": "https://a-token@mirror/simple",
    "HTTPS_PROXY": "ada:pw@proxy:3128", "PIP_FIND_LINKS": "https://bucket/wheels?X-Amz-Signature=abc",
    "PYTHONPATH": "/checkout", "FI_AUTH_KEY": "k", "NVIDIA_LICENSE_KEY": "k",
}  # fmt: skip


def test_what_jobs_need_of_the_machine_reaches_them_and_no_secret_does() -> None:
    """Not tokens, nor URLs with a password, but for those that the operator names; never one of the agent's own."""
    env = rank_environment(MACHINE | SECRETS, a_command(), SETTINGS)
    assert MACHINE.items() <= env.items()
    assert not {name for name, value in SECRETS.items() if env.get(name) == value}
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
    """Its variables win over inherited ones, never over who it is; what is unknown is no variable at all."""
    job = {"PYTHONPATH": "/mine", "OMP_NUM_THREADS": "4", "WALRAS_ATTEMPT": "99", "WORLD_SIZE": "7"}
    env = rank_environment({}, a_command(env=job), SETTINGS)
    assert (env["PYTHONPATH"], env["OMP_NUM_THREADS"]) == ("/mine:/client", "4")
    assert (env["WALRAS_ATTEMPT"], env["WORLD_SIZE"]) == ("2", "2")
    free = RankSettings(Path("/client"), "/s/1.r", "c00kie", "GPU-1,GPU-2", None, 4)
    env = rank_environment({}, a_command(), free)
    assert not {"WALRAS_RESUME", "WALRAS_STEPS", "WALRAS_PACE"} & env.keys()
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_a_rank_knows_its_gang_and_its_store_and_nothing_that_is_not_so() -> None:
    """Its machine's part of the gang beside the whole; devices count as `nvidia-smi` counts them."""
    changes = {"world_size": 4, "num_nodes": 2, "node_rank": 1, "master_address": "10.0.0.1"}
    optional = {"WALRAS_CHECKPOINT_STORE": "s3://b", "WALRAS_CHECKPOINT_EVERY": "60.0", "WALRAS_STEPS": "9.0"}
    command = a_command(**changes, store="s3://b", checkpoint_every_s=60.0, steps=9.0)
    env = rank_environment({}, command, replace(SETTINGS, mps_folder="/mps"))
    assert env.items() >= (optional | {"CUDA_MPS_PIPE_DIRECTORY": "/mps"}).items()
    plain = rank_environment({}, a_command(**changes), SETTINGS)
    assert not {"CUDA_MPS_PIPE_DIRECTORY", "WALRAS_INCARNATION", *optional} & plain.keys()
    assert plain.items() >= {
        "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "WALRAS_GPUS_PER_NODE": "2", "WALRAS_NODE_RANK": "1",
        "WALRAS_NUM_NODES": "2", "MASTER_ADDR": "10.0.0.1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }.items()  # fmt: skip
    launched = rank_environment({}, a_command(**changes, is_launcher=True), SETTINGS)
    assert not {"WORLD_SIZE", "LOCAL_WORLD_SIZE"} & launched.keys()


def test_the_in_job_client_reads_what_was_written() -> None:
    """Both ends of the environment agree."""
    from walras.training.supervisor_link import read_job_environment

    resume = Manifest(step=120.0, path="/ck/attempt-0001/step-0000000120", digest="a" * 64)
    env = rank_environment({}, a_command(resume=resume, steps=500.0), SETTINGS) | {"RANK": "1"}
    settings = read_job_environment(env)
    assert (settings.resume.path, settings.resume.step) == (resume.path, 120)
    assert (settings.attempt, settings.steps, settings.pace) == (2, 500, 12.5)
    assert (settings.rank, settings.world_size, settings.checkpoint_dir) == (1, 2, "/ck")
