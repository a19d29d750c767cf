"""Real jobs on rented machines save as often as is planned from what writing takes and how long machines live."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_spot_money import JOB, POOL, RENTING, SPOT, steps_of
from tests.support.real_server import WALRAS, RealServer, wait_for

pytestmark = pytest.mark.slow

#: Machines of the pool are said to live half a minute in the mean.
SHORT_LIVED = {**SPOT, "lifetime": "exponential 30s"}


def test_the_plan_reaches_the_ranks_and_a_revocation_costs_no_more_than_it(tmp_path: Path) -> None:
    """The first checkpoint comes by an assumed time of writing, later ones by the measured; a new attempt starts so."""
    server = RealServer(tmp_path, [SHORT_LIVED], RENTING)
    try:
        server.start()
        job_id = server.submit(run=[sys.executable, str(JOB), "500", "0.05", "planned"], steps=500, grace_period="2s")
        server.until_running(job_id, timeout_s=90.0)
        first_s = server.job(job_id)["checkpoint_every_s"]
        assert 8.0 < first_s < 20.0, "writing is taken to last five seconds"
        wait_for(
            lambda: (server.job(job_id)["checkpoint_every_s"] or 99.0) < 4.0,
            60.0,
            "planned again once writing was measured",
        )
        told = server.job(job_id)
        assert "writing one takes 0.0" in told["checkpoint_detail"]
        assert "the pool states exponential 30s" in told["checkpoint_detail"]
        token = (server.data / "admin.token").read_text().strip()
        access = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN": token}
        shown = subprocess.run(
            [WALRAS, "explain", str(job_id)], env=access, capture_output=True, timeout=60, text=True, check=True
        )
        assert "checkpoints: every" in shown.stdout
        known = len(server.recorded(job_id))
        wait_for(lambda: len(server.recorded(job_id)) >= known + 3, 40.0, "the ranks keep to it")
        assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 0})[0] == 200
        server.until_running(job_id, attempt=2, timeout_s=90.0)
        planned_s = server.job(job_id)["checkpoint_every_s"]
        assert planned_s < 4.0, "what was measured is known to the next attempt"
        server.until_state(job_id, "SUCCEEDED", 120.0)
        first, second = steps_of(server.log(job_id, 1)), steps_of(server.log(job_id, 2))
        lost = [at for step, at in first if step >= second[0][0]]
        assert not lost or lost[-1] - lost[0] <= planned_s + 2.5, "an interval, and the time to save and tell"
        marks = [step for attempt, step, _ in server.recorded(job_id) if attempt == 2]
        assert len(marks) >= 3, "the attempt was started with its interval"
    finally:
        server.close()


def test_a_script_and_a_job_file_keep_what_they_state(tmp_path: Path) -> None:
    server = RealServer(tmp_path, [SHORT_LIVED], RENTING)
    try:
        server.start()
        own = server.submit(run=[sys.executable, str(JOB), "200", "0.05"], steps=200)
        server.until_step(own, 60, 90.0)
        assert server.job(own)["checkpoint_detail"] == "as its script states"
        assert len(server.recorded(own)) >= 2, "every half second, whatever is planned"
        server.until_state(own, "SUCCEEDED", 60.0)
        filed = server.submit(
            run=[sys.executable, str(JOB), "200", "0.05", "planned"], steps=200, checkpoint={"interval": "2s"}
        )
        server.until_step(filed, 100, 90.0)
        assert server.job(filed)["checkpoint_detail"] == "every 2s, as its job file states"
        assert server.recorded(filed)
    finally:
        server.close()
