"""A real elastic job with a deadline, worth nothing by the hour: how many machines of which pool it holds follows the
price, the deadline and what the market takes."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.test_deadline_slack_live import NOBODY_PAYS, says
from tests.e2e.test_spot_money import POOL, SPOT, SURE
from tests.support.real_server import RealServer, wait_for

pytestmark = pytest.mark.slow

JOB = Path(__file__).resolve().parents[1] / "support" / "elastic_spot_job.py"
STEPS = 2000


def test_its_set_of_machines_is_planned_again_when_price_deadline_and_market_change(tmp_path: Path) -> None:
    """Twenty minutes of work on one machine, half an hour to do it: two on spot while they cost next to nothing, one
    when they cost something, two when the deadline comes nearer, some on demand when the market takes those."""
    out = tmp_path / "out"
    out.mkdir()
    server = RealServer(tmp_path, [{**SPOT, "quota": 2, "usd_per_h": 0.05}, {**SURE, "quota": 2}], NOBODY_PAYS)
    try:
        server.start()
        job = server.submit(
            name="planned", run=[sys.executable, str(JOB), str(out)], resources={"accelerators": "s:1"},
            elastic={"min": 1, "max": 2}, batch={"global": 6}, steps=STEPS, grace_period="2s", deadline="+30m",
            throughput={"s": 5 / 3},
        )  # fmt: skip

        def made() -> list[list[int]]:
            text = (out / "steps").read_text() if (out / "steps").exists() else ""
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

        def trained_by(ranks: tuple[int, ...], pool: str) -> None:
            since = len(made())

            def is_so() -> bool:
                steps = made()[since:]
                return sum(1 for _, each in steps if each in ranks) >= 5 and pool in server.attempt(job)["pool"]

            wait_for(is_so, 90, f"{ranks} on {pool}", lambda: f"{says(server, job)} {server.job(job)['attempt_list']}")

        trained_by((2,), "spot")
        told = "a gang of 2 is the cheapest in time"
        wait_for(lambda: told in says(server, job), 30, "it says why", lambda: says(server, job))
        assert server.call("PATCH", f"/pools/{POOL.replace('/', '%2F')}", {"usd_per_h": 1.0})[0] == 200
        trained_by((1,), "spot")
        assert server.call("PATCH", f"/jobs/{job}", {"deadline": "+23m"})[0] == 200
        trained_by((2,), "spot")
        assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 5})[0] == 200
        trained_by((1, 2), "on_demand")
        (out / "enough").touch()
        server.until_state(job, "SUCCEEDED", 60.0)
        steps = [step for step, _ in made()]
        assert steps == list(range(len(steps))), "each once, in order: nothing was lost"
    finally:
        server.close()
