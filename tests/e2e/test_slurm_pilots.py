"""Agents in allocations of a real Slurm: what Slurm takes away, gives back, and refuses."""

import contextlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.support.attempts import ROOT
from tests.support.quiet_run import RESUME_JOB, run_alone
from tests.support.real_server import RealServer, processes_of, wait_for
from tests.support.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = pytest.mark.slow

T4 = {
    "shape": "t4x1", "accelerator": "t4", "accelerators": 1, "cpus": 2, "memory": "1GB", "emulated": True,
    "market": "spot", "provider": "slurm", "usd_per_h": 0.1, "quota": 2, "notice": "5s", "boot": "5s",
}  # fmt: skip
A100 = {**T4, "shape": "a100x1", "accelerator": "a100", "quota": 1, "usd_per_h": 0.3}
RENT_KEEP_S = 5.0
#: What docs/engines.md says of idle allocations, and what Slurm takes to end one.
GIVEN_BACK_S = RENT_KEEP_S + 15.0 + 10.0
RENTING = {
    "policy": {"name": "max_min_fairness"},
    "rules": {
        "round_s": 5, "resolve_min_s": 1, "delay_usd_per_h": 100, "profiling_s": 1, "backoff_s": 1,
        "rent_backoff_s": 1, "rent_keep_s": RENT_KEEP_S,
    },
}  # fmt: skip
SLEEP = [sys.executable, "-c", "import time; time.sleep(1)"]


@pytest.fixture
def slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster


def settings_of(slurm: SlurmCluster, folder: Path, **changes: Any) -> dict[str, Any]:
    """The section of the cluster file: nodes run this checkout."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nunset LD_LIBRARY_PATH\nexport PYTHONPATH={ROOT}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (folder / "speeds.yaml").write_text(yaml.safe_dump({"resume": {"t4": 10.0, "a100": 10.0}}))
    return {
        "commands": str(slurm.bin), "python": str(python), "state": str(folder / "nodes"), "poll": "1s",
        "output": f"{folder}/pilot-%j.log", "speeds": str(folder / "speeds.yaml"), **changes,
    }  # fmt: skip


@contextlib.contextmanager
def server_over(slurm: SlurmCluster, folder: Path, pools: list[dict[str, Any]], **changes: Any) -> Iterator[RealServer]:
    server = RealServer(folder, pools, RENTING, slurm=settings_of(slurm, folder, **changes))
    try:
        yield server.start()
    finally:
        server.close()


def nodes(server: RealServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.call("GET", "/nodes")[1]
    return [node for node in found if node["state"] in ("up", "leaving")]


def pilots_of(slurm: SlurmCluster) -> list[str]:
    return slurm.jobs("PENDING", "CONFIGURING", "RUNNING")


def left_on_nodes(folder: Path) -> list[psutil.Process]:
    return [each for each in processes_of(folder) if str(folder / "nodes") in " ".join(each.cmdline())]


def allocation_of(attempt: dict[str, Any]) -> str:
    """The number of the Slurm job in which an attempt runs."""
    return str(attempt["placement"][0]).partition(":")[0].split("-")[2]


def test_jobs_end_though_slurm_takes_its_machines_back(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Twenty jobs and a training run on two unlike nodes: requeue, preemption, scancel, a dead node, a dead server. All
    end, the training run with the bits of a quiet one, and nothing is left: no allocation, machine or process."""
    with ThreadPoolExecutor(1) as beside, server_over(slurm, tmp_path, [T4, A100]) as server:
        quiet = beside.submit(run_alone, tmp_path, 1)
        training = server.submit(
            run=[sys.executable, str(RESUME_JOB), str(tmp_path / "trained")], profile="resume", grace_period="4s",
            resources={"accelerators": "t4:1"}, priority=90,
        )  # fmt: skip
        short = [server.submit(run=SLEEP) for _ in range(20)]
        server.until_step(training, 8, 90.0)
        slurm.output("scontrol", "requeue", allocation_of(server.attempt(training)))
        slurm.output("scancel", wait_for(lambda: slurm.jobs("RUNNING"), 60.0, "an allocation is held")[0])
        server.kill()
        slurm.kill("two")
        slurm.start_node("two")
        urgent = slurm.output(
            "sbatch", "--parsable", "--partition=urgent", "--gres=gpu:a100:1", "--output=/dev/null", "--wrap=sleep 3"
        ).strip()
        server.start()
        for job_id in [*short, training]:
            server.until_state(job_id, "SUCCEEDED", 150.0)
        wait_for(lambda: not slurm.jobs(), GIVEN_BACK_S, f"allocations are given back, {urgent} is over")
        wait_for(lambda: not nodes(server), 10.0, "no machine is believed in")
        wait_for(lambda: not left_on_nodes(tmp_path), 10.0, "nothing runs on the nodes")
        assert len(server.job(training)["attempt_list"]) >= 2
        assert (tmp_path / "trained").read_text() == quiet.result()


def test_a_time_limit_is_a_notice_and_pools_are_launched_by_command(slurm: SlurmCluster, tmp_path: Path) -> None:
    """`least` is held with nothing to do. A job is told before its allocation's limit, and goes on in another one; the
    allocation ends before its limit. Stopping gives everything back."""
    pools = [{name: value for name, value in T4.items() if name not in ("provider", "market")} | {"least": 1}]
    (tmp_path / "pools.yaml").write_text(yaml.safe_dump({"pools": pools}))
    idle = {**A100, "quota": 0}
    with server_over(slurm, tmp_path, [idle], time="1m") as server:
        file = ("--on", "slurm", "-f", str(tmp_path / "pools.yaml"))
        for _ in range(2):
            assert "1 to 2 allocations" in server.told("admin", "agents", "launch", *file)
        wait_for(lambda: len(nodes(server)) == 1, 60.0, "the least is there, and no job")
        assert "t4x1/spot/default" in server.told("admin", "agents", "status", *file)
        time.sleep(RENT_KEEP_S)
        assert len(pilots_of(slurm)) == 1, "none below the least, none above it"
        job_id = server.submit(run=[sys.executable, "-c", "import time; time.sleep(600)"], grace_period="2s")
        server.until_running(job_id)
        first = server.attempt(job_id)["placement"][0].partition(":")[0]
        wait_for(lambda: server.node_state(first) != "up", 70.0, "the notice")
        was_seen = server.node_state(first) == "leaving"
        server.until_running(job_id, attempt=2, timeout_s=60.0)
        # Who looks too late to see it leave still finds its job stopped, and not lost.
        assert was_seen or server.job(job_id)["attempt_list"][0]["state"] == "PREEMPTED"
        assert server.job(job_id)["restarts"] == 0
        server.told("admin", "agents", "stop", *file)
        server.call("POST", f"/jobs/{job_id}/cancel")
        wait_for(lambda: not pilots_of(slurm), GIVEN_BACK_S + 10.0, "a drained pool holds nothing")


def test_a_slurm_that_refuses_is_named_where_people_look(slurm: SlurmCluster, tmp_path: Path) -> None:
    """In Slurm's words, in `explain`, and asked again; once it is mended the job runs."""
    with server_over(slurm, tmp_path, [T4], partitions={"default": "later"}) as server:
        job_id = server.submit(run=SLEEP)
        words = "invalid partition specified: later"
        wait_for(lambda: words in " ".join(server.told("explain", str(job_id)).split()), 30.0, "Slurm's words")
        slurm.output("scontrol", "create", "PartitionName=later", "Nodes=ALL")
        server.until_state(job_id, "SUCCEEDED", 90.0)
