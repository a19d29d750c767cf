"""The demo's workload on three machines that share nothing with each other or with the server, through an object store.

Each host has a mount and a network namespace of its own (`tests.support.hosts_apart`). While the twelve jobs run one
machine is drained and comes back, one is killed and joins again without its disk, and the spot machine is revoked.
Three of the demo's promises hold where its machines stay and nothing else runs:

* the length of the run is not judged: what is drained and lost is trained again;
* of rank starts there may be more: each rank that the drain or the loss has ended starts again, and may then take the
  place of another, which starts again;
* that simulated jobs end when they did in the run is not judged: the simulation hears of no drain and of no loss.

Those three, the report and the picture are proved by `test_demo`, whose machines stay; that checkpoints travel through
the server itself, to the bits of a quiet run after a drain and a loss, by `test_checkpoints_travel`.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.support.attempts import ROOT
from tests.support.demo_apart import DRAINED, GIVE_UP_S, HOSTS, LOST, SPOT
from tests.support.hosts_apart import HostsApart, HostsRefused
from tests.support.object_stores import s3_at
from tests.support.quiet_run import run_quietly
from tests.support.real_server import processes_of
from walras.demo.local_cluster import configs_folder
from walras.demo.run_report import LONGEST_S, MOST_RANK_STARTS, check_limit, check_simulated_ends
from walras.object_store import ObjectFolder
from walras.spec.file_model import load_yaml
from walras.spec.workload_file import WorkloadFile
from walras.training.checkpoint import verify_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.alone]

#: The jobs of the workload file, in whose order they are numbered.
JOBS = [arrival.job for arrival in load_yaml(configs_folder() / "workloads" / "demo.yaml", WorkloadFile).jobs]
ROLE = "arn:aws:iam::123456789012:role/checkpoints"
STORE = {"checkpoints": "s3://bucket/run", "checkpoint_access": {"role": ROLE}}
#: The names of the promises that are judged otherwise here: see above.
LENGTH = check_limit("seconds from start to end", 0, LONGEST_S).promise
RANK_STARTS = check_limit("rank starts", 0, MOST_RANK_STARTS).promise
SIMULATED_ENDS = check_simulated_ends([]).promise


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostsApart]:
    """Skips where the system does not allow namespaces (WALRAS_REQUIRE=namespaces: fails)."""
    made = HostsApart(HOSTS, os.getpid(), tmp_path_factory.getbasetemp())
    try:
        made.make()
        yield made
    except HostsRefused as refusal:
        if "namespaces" in os.environ.get("WALRAS_REQUIRE", "").split(","):
            pytest.fail(f"WALRAS_REQUIRE asks for namespaces: {refusal}")
        pytest.skip(f"no hosts that share nothing can be made here: {refusal}")
    finally:
        made.remove()


@pytest.fixture(scope="module")
def quiet(hosts: HostsApart, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The last checkpoint of each job that trains, run by hand from beginning to end, by its number; if hosts are had.

    The job that fails has none, and the script that knows nothing of Walras keeps its own, which does not travel.
    """
    folder = tmp_path_factory.mktemp("quiet")
    checkpoints = {}
    for number, job in enumerate(JOBS, start=1):
        if job.steps and "failing.py" not in job.run:
            place = folder / str(number)
            settings = {"WALRAS_CHECKPOINT_DIR": str(place), "WALRAS_STEPS": f"{job.steps:g}"}
            ranks = job.resources.accelerators[0].count
            run_quietly(list(job.run), ROOT / str(job.workdir), ranks, timeout_s=180.0, **settings)
            (checkpoints[number],) = place.glob("attempt-*/step-*")
    assert len(checkpoints) == len(JOBS) - 2
    return checkpoints


def test_the_demo_keeps_its_promises_on_machines_that_share_nothing(
    tmp_path: Path, quiet: dict[int, Path], hosts: HostsApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job that trains ends with the bits of a quiet run, which its last checkpoint in the store has."""
    folder = tmp_path / "run"
    with s3_at(hosts.outside, monkeypatch):
        told = run_apart(hosts.number, folder, STORE)
        check_hosts_share_nothing(told["drill"]["hosts"])
        check_promises(told)
        for number, expected in quiet.items():
            found = last_checkpoint(folder, number, tmp_path / f"last-{number}")
            for name in ("model", "optimizer"):
                states = [torch.load(each / f"{name}.pt", weights_only=True) for each in (expected, found)]
                assert is_same(*states), f"job {number} {JOBS[number - 1].name}: {name} differs"


def run_apart(number: int, folder: Path, fields: Mapping[str, Any]) -> Any:
    """What `tests.support.demo_apart` tells of its run. Leaves no process."""
    output = folder.parent / "output.txt"
    arguments = [str(folder), str(number), json.dumps(fields)]
    with output.open("wb") as file:
        command = [sys.executable, "-m", "tests.support.demo_apart", *arguments]
        driver = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)
    try:
        assert driver.wait(GIVE_UP_S + 180) == 0, output.read_text()[-8000:]
    finally:
        with suppress(subprocess.TimeoutExpired):
            driver.send_signal(signal.SIGTERM)
            driver.wait(300)
        for process in processes_of(folder):
            with suppress(psutil.Error):
                process.kill()
        driver.wait(300)
    print(output.read_text())
    return json.loads((folder / "told.json").read_text())


def check_hosts_share_nothing(seen: Mapping[str, Mapping[str, Any]]) -> None:
    """Each host has namespaces of its own, the folder of no other, and of the server's what it was given to join.

    Keys of a store that this process may have are the server's alone, which hands out what lasts a short time.
    """
    assert set(seen) == set(HOSTS)
    for kind in ("net", "mnt"):
        here = os.readlink(f"/proc/self/ns/{kind}")
        assert len({here, *(each[kind] for each in seen.values())}) == len(HOSTS) + 1
    for name, each in seen.items():
        assert each["machines"] == ([name] if name in (DRAINED, LOST) else [])
        assert each["code"] == []
        if name != "server":
            assert not each["has_keys"]
            assert set(each["server"]) <= {"join.token"} | ({"speeds.yaml", "machines"} if name == SPOT else set())
    assert seen[SPOT]["rented"] == seen["server"]["rented"]
    assert len(seen[SPOT]["rented"]) == 1


def check_promises(told: Mapping[str, Any]) -> None:
    drill, jobs = told["drill"], told["jobs"]
    assert {"drained", "resumed_s", "lost", "joined_s"} <= set(drill), drill
    promised = {check["promise"]: check for check in told["checks"]}
    judged_otherwise = {LENGTH, RANK_STARTS, SIMULATED_ENDS}
    assert judged_otherwise <= set(promised)
    assert [check for name, check in promised.items() if not check["kept"] and name not in judged_otherwise] == []
    assert told["rank_starts"] <= MOST_RANK_STARTS + 2 * drill["ended_ranks"]
    by_id = {job["id"]: job for job in jobs}
    # Of the jobs that were chosen another may have ended by itself a moment before.
    for chosen, reason in ((drill["drained"], "HOLD:ADMIN"), (drill["lost"]["jobs"], "INFRA:NODE_LOST")):
        assert any(each["reason"] == reason for job in chosen for each in by_id[job]["attempt_list"]), reason
    for job, stated in zip(jobs, JOBS, strict=True):
        if job["state"] == "SUCCEEDED" and stated.steps:
            assert job["steps"] == stated.steps
        # One attempt at a time: none was granted anything before the one before had ended.
        for each, later in pairwise(job["attempt_list"]):
            assert datetime.fromisoformat(later["leased_at"]) >= datetime.fromisoformat(each["ended_at"])


def recorded(folder: Path, job_id: int) -> list[tuple[int, float, str, str]]:
    """Attempt, step, place and content of every checkpoint that counts, in the order of the attempts."""
    with closing(sqlite3.connect(f"file:{folder}/server/walras.db?mode=ro", uri=True)) as database:
        query = "SELECT attempt, step, store, content FROM checkpoints WHERE job_id = ? ORDER BY attempt, step"
        return database.execute(query, [job_id]).fetchall()


def last_checkpoint(folder: Path, job_id: int, place: Path) -> Path:
    """Fetches a job's last checkpoint from the store; no step has been saved twice."""
    rows = recorded(folder, job_id)
    steps = [step for _, step, *_ in rows]
    assert steps == sorted(set(steps))
    assert steps[-1] == JOBS[job_id - 1].steps
    *_, location, content = rows[-1]
    assert location.startswith("s3://bucket/run/jobs/")
    objects = ObjectFolder(location)
    tree = objects.tree(content)
    place.mkdir()
    for file in tree.files:
        (place / file.path).write_bytes(b"".join(map(objects.chunk, file.chunks)))
    verify_checkpoint(place)
    return place


def is_same(one: Any, other: Any) -> bool:
    """Whether two states have the same bits."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
