"""Two real PyTorch jobs on one emulated accelerator, under a real server and agent.

The accelerator does one thing at a time (`shared_job`), so that what its jobs do to each other is real.
"""

import sys
from functools import partial

import pytest

from tests.support.real_server import FIFO, A, RealServer, Serve, wait_for
from tests.support.shared_job import SCRIPT, THRASHING, WAITING
from tests.support.waiting import stays

pytestmark = pytest.mark.slow

PRICED = A | {"accelerator_memory": "16GB", "usd_per_h": 3.6}


@pytest.fixture
def server(serve: Serve) -> RealServer:
    policy = FIFO | {
        "policy": {"name": "fifo", "parameters": {"strict": False}},
        "rules": {"round_s": 5, "backoff_s": 1},
    }
    return serve([PRICED], policy)


def _submit(server: RealServer, name: str, envs: dict[str, str], steps: int | None = None, **more: object) -> int:
    device = str(server.folder / "device")
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
        wait_for(partial(_speed, server, kind), 90, f"{kind} is measured alone")
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
    both = (("one", "two"), ("two", "one"))
    kept = [(_speed(server, f"{own} beside {other}") or 0.0) / (_speed(server, own) or 1.0) for own, other in both]
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
    """Both throw the other's state out with every step, though they state to need the device half of the time."""
    server.start_agent(pool=PRICED)
    host, guest = _pair(server, THRASHING)
    server.until_state(guest, "PENDING", 150)
    assert server.attempt(guest)["reason"] == "POLICY:MOVED", server.job(guest)
    again = _submit(server, "two", THRASHING, shared={"memory": "8GB", "busy": 0.5})
    stays(lambda: "RUNNING" not in (server.state(guest), server.state(again)), 15, "neither starts beside it")
    assert server.state(host) == "RUNNING"
