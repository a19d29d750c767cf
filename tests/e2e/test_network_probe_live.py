"""The network between the machines of a gang, measured by its own ranks (here: two ranks told to be two machines)."""

import sys
import time
from pathlib import Path

import pytest

from tests.support.attempts import SupervisedAttempt, ask_status, wait_for
from tests.support.real_server import FIFO, A, Serve

pytestmark = pytest.mark.slow

LOOP = """
import time, torch, torch.distributed as dist
from walras.training import Loop
dist.init_process_group("gloo")
loop = Loop()
for _ in loop.steps(range(100_000)):
    time.sleep(0.01)
    loop.report(loss=1.0)
"""


def test_a_gang_over_machines_reports_the_bandwidth_it_got(tmp_path: Path) -> None:
    """The figure comes with the first progress, beside the script's own values, after ten seconds at most."""
    env = {"WALRAS_NUM_NODES": "2", "LOCAL_WORLD_SIZE": "1"}
    attempt = SupervisedAttempt(tmp_path / "attempt", [sys.executable, "-c", LOOP], devices=[0, 1], env=env)
    attempt.start()
    try:

        def values() -> dict[str, float]:
            told = ask_status(attempt.plan.control_socket)
            found = [line["values"] for line in told if line["type"] == "progress" and "loss" in line["values"]]
            return dict(found[-1]) if found else {}

        found = wait_for(values, 60.0, "progress of both ranks")
        assert found["loss"] == 1.0
        assert 1e5 < found["network_bytes_per_s"] < 1e12
        time.sleep(0.1)
        assert len(attempt.alive()) >= 2
    finally:
        attempt.close()


def test_the_server_keeps_what_a_gang_over_two_agents_measured(serve: Serve, tmp_path: Path) -> None:
    """It stands with the job, for `walras show` and `walras explain`, while the job runs and afterwards."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP.replace("100_000", "100"))
    server = serve([A], FIFO)
    for name in ("n1", "n2"):
        server.start_agent(name)
    job = server.submit(name="gang", run=[sys.executable, str(script)], resources={"accelerators": "a:2"}, num_nodes=2)
    server.until_state(job, "SUCCEEDED", 90.0)
    assert 1e5 < server.job(job)["last_values"]["network_bytes_per_s"] < 1e12
