"""The network between the machines of a gang, measured by its own ranks."""

import sys
from pathlib import Path

import pytest

from tests.support.real_server import FIFO, A, Serve, wait_for

pytestmark = pytest.mark.slow

LOOP = """
import time, torch, torch.distributed as dist
from walras.training import Loop
dist.init_process_group("gloo")
loop = Loop()
for _ in loop.steps(range(300)):
    time.sleep(0.01)
    loop.report(loss=1.0)
"""


def test_the_server_keeps_what_a_gang_over_two_agents_measured(serve: Serve, tmp_path: Path) -> None:
    """The bandwidth comes beside the script's own values while the job runs, and stands with it when that has ended."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    server = serve([A], FIFO)
    for name in ("n1", "n2"):
        server.start_agent(name)
    job = server.submit(name="gang", run=[sys.executable, str(script)], resources={"accelerators": "a:2"}, num_nodes=2)
    told = wait_for(lambda: server.job(job)["last_values"], 90.0, "values", lambda: server.job(job))
    assert told["loss"] == 1.0
    assert 1e5 < told["network_bytes_per_s"] < 1e12
    server.until_state(job, "SUCCEEDED", 90.0)
    assert server.job(job)["last_values"]["network_bytes_per_s"] == told["network_bytes_per_s"]
