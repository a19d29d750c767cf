"""Two real PyTorch jobs on one emulated accelerator, under a real server and agent.

The accelerator is one core: its jobs pin themselves to it, so that what they do to each other is real.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_server import FIFO, A, RealServer, wait_for
from tests.support.shared_job import SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PRICED = A | {"accelerator_memory": "16GB", "usd_per_h": 3.6}
BUSY, WAITING = {"SIZE": "512", "WAIT_S": "0"}, {"SIZE": "256", "WAIT_S": "0.02"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    policy = FIFO | {"policy": {"name": "fifo", "parameters": {"strict": False}}, "rules": {"round_s": 5, "backoff_s": 1}}
    server = RealServer(tmp_path, [PRICED], policy).start()
    yield server
    server.close()


def _submit(server: RealServer, name: str, envs: dict[str, str], steps: int | None = None, **more: object) -> int:
    device = str(max(os.sched_getaffinity(0)))
    return server.submit(
        name=name, profile=name, run=[sys.executable, "-c", SCRIPT], envs=envs | {"DEVICE": device}, steps=steps,
        grace_period="20s", checkpoint={"interval": "1h"}, resources={"accelerators": "a:1", **more},
    )  # fmt: skip


def _speed(server: RealServer, kind: str) -> float | None:
    """What its successor would be told of the kind."""
    found = [float(speed) for name, speed in server.rows("SELECT kind, steps_per_s FROM speeds") if name == kind]
    return found[0] if found else None


def _pair(server: RealServer, envs: dict[str, str]) -> tuple[int, int]:
    """A job of the kind `one`, beside it one of the kind `two`; both kinds were measured alone before."""
    shared = {"memory": "8GB", "busy": 0.5}
    for kind in ("two", "one"):
        job = _submit(server, kind, envs, shared=shared)
        wait_for(lambda kind=kind: _speed(server, kind), 90, f"{kind} is measured alone", lambda: server.job(job))
        if kind == "two":
            assert server.call("POST", f"/jobs/{job}/cancel")[0] == 200
            server.until_state(job, "CANCELLED", 60)
    guest = _submit(server, "two", envs, shared=shared)
    server.until_running(guest, timeout_s=60)
    assert server.state(job) == "RUNNING"
    return job, guest


def test_two_jobs_share_an_accelerator_and_its_price(server: RealServer) -> None:
    """Each waits for most of its time: together they do more than one would, and each pays half."""
    server.start_agent(pool=PRICED)
    host, guest = _pair(server, WAITING)
    assert server.attempt(host)["placement"] == server.attempt(guest)["placement"]
    wait_for(lambda: _speed(server, "two beside one"), 120, "the guest is measured", lambda: server.job(guest))
    wait_for(lambda: _speed(server, "one beside two"), 120, "the host is measured", lambda: server.job(host))
    kept = [(_speed(server, f"{a} beside {b}") or 0.0) / (_speed(server, a) or 1.0) for a, b in ("one two".split(),)]
    kept += [(_speed(server, f"{b} beside {a}") or 0.0) / (_speed(server, b) or 1.0) for a, b in ("one two".split(),)]
    assert sum(kept) > 1.1, kept
    assert (server.state(host), server.state(guest)) == ("RUNNING", "RUNNING")
    for job in (host, guest):
        server.call("POST", f"/jobs/{job}/cancel")
    for job in (host, guest):
        server.until_state(job, "CANCELLED", 60)
    rows = server.rows("SELECT job_id, usd_per_h, accelerators FROM charges WHERE kind = 'use' AND usd > 0")
    paid = {job: {(usd_per_h, held) for number, usd_per_h, held in rows if number == job} for job in (host, guest)}
    assert (1.8, 0.5) in paid[guest]
    assert {(3.6, 1.0), (1.8, 0.5)} <= paid[host]


def test_a_pair_that_gains_nothing_is_separated_for_good(server: RealServer) -> None:
    """Both keep the core busy all the time, though they state half of it."""
    server.start_agent(pool=PRICED)
    host, guest = _pair(server, BUSY)
    server.until_state(guest, "PENDING", 150)
    assert "shared an accelerator" in str(server.job(guest)), server.job(guest)
    again = _submit(server, "two", BUSY, shared={"memory": "8GB", "busy": 0.5})
    with pytest.raises(AssertionError):
        wait_for(lambda: "RUNNING" in (server.state(guest), server.state(again)), 15, "one of them starts beside it")
    assert server.state(host) == "RUNNING"
