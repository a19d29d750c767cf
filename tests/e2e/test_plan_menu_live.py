"""A job with a menu of plans on a real server and real agents: its ranks get the place of one plan, and learn which."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_server import A, RealServer, wait_for

pytestmark = pytest.mark.slow

PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}
B = A | {"shape": "bx1", "accelerator": "b"}
WALRAS = {"policy": {"name": "walras"}, "rules": {"round_s": 2, "resolve_min_s": 1, "backoff_s": 1, "profiling_s": 1}}
MENU = [
    {"accelerators": {"a": 2}, "steps_per_s": 9.0},
    {"accelerators": {"a": 2, "b": 1}, "steps_per_s": 14.0},
    {"accelerators": {"a": 1, "b": 1}, "steps_per_s": 8.0},
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    server = RealServer(tmp_path, [PAIR, B], WALRAS).start()
    yield server
    server.close()


def test_ranks_over_two_types_are_told_the_plan_and_people_too(server: RealServer) -> None:
    """All of both machines: three ranks of one attempt that know what they are over; `explain` names the plan. Where
    the machine of one type is taken, the plan without it is what starts."""
    server.start_agent("a1", PAIR)
    server.start_agent("b1", B)
    wait_for(lambda: all(server.node_state(name) == "up" for name in ("a1", "b1")), 30.0, "both machines join")
    says = 'echo "rank $RANK of $WORLD_SIZE over $WALRAS_ACCELERATORS"; sleep 600'
    job = server.submit(name="model", run=says, steps=100_000, plans=MENU, profile="model")
    server.until_running(job)
    told = "over a:2,b:1"
    for rank in range(3):
        line = f"rank {rank} of 3 {told}"
        wait_for(lambda rank=rank, line=line: line in server.log(job, 1, rank), 60.0, line)
    status, answer = server.call("GET", f"/jobs/{job}/explain")
    assert status == 200
    assert answer["why"] == "has 2 x a + 1 x b: plans[1] of 3, which states 14 steps/s"
    assert server.call("POST", f"/jobs/{job}/cancel")[0] == 200
    server.until_state(job, "CANCELLED")

    sits = server.submit(
        name="sits-on-b", run="sleep 600", preemptible=False, resources={"accelerators": "b:1"}, priority=90
    )
    server.until_running(sits)
    job = server.submit(name="model", run=says, steps=100_000, plans=MENU, profile="model")
    server.until_running(job)
    wait_for(lambda: "rank 1 of 2 over a:2" in server.log(job, 1, 1), 60.0, "the plan of one type")
