"""Real jobs on rented machines save as often as is planned from what writing takes and how long machines live."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_spot_money import JOB, POOL, RENTING, SPOT, steps_of
from tests.support.real_server import WALRAS, RealServer, wait_for

pytestmark = pytest.mark.slow

#: What a step of the job takes at least.
STEP_S = 0.05
#: Machines of the pool are said to live half a minute in the mean.
SHORT_LIVED = {**SPOT, "lifetime": "exponential 30s"}


def test_the_plan_reaches_the_ranks_and_a_revocation_costs_no_more_than_it(tmp_path: Path) -> None:
    """The first checkpoint comes by an assumed time of writing, later ones by the measured; a new attempt starts so."""
    server = RealServer(tmp_path, [SHORT_LIVED], RENTING)
    try:
        server.start()
        job_id = server.submit(run=[sys.executable, str(JOB), "5000", "0.05", "planned"], steps=5000, grace_period="2s")
        server.until_running(job_id, timeout_s=90.0)
        first_s = server.job(job_id)["checkpoint_every_s"]
        assert 8.0 < first_s < 20.0, "writing is taken to last five seconds"
        wait_for(
            lambda: (server.job(job_id)["checkpoint_every_s"] or first_s) < first_s / 2,
            60.0,
            "planned again once writing was measured",
        )
        told = server.job(job_id)
        measured = re.search(r"writing one takes (\S+) s", told["checkpoint_detail"])
        assert measured, told["checkpoint_detail"]
        assert float(measured[1]) < 2.5, "and not five seconds"
        assert "the pool states exponential 30s" in told["checkpoint_detail"]
        token = (server.data / "admin.token").read_text().strip()
        access = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN": token}
        shown = subprocess.run(
            [WALRAS, "explain", str(job_id)], env=access, capture_output=True, timeout=300, text=True, check=True
        )
        assert "checkpoints: every" in shown.stdout
        known = len(server.recorded(job_id))
        wait_for(lambda: len(server.recorded(job_id)) >= known + 3, 40.0, "the ranks keep to it")
        kept_s = server.job(job_id)["checkpoint_every_s"]
        assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 0})[0] == 200
        server.until_running(job_id, attempt=2, timeout_s=90.0)
        planned_s = server.job(job_id)["checkpoint_every_s"]
        assert planned_s < first_s / 2, "what was measured is known to the next attempt"

        def marks() -> list[int]:
            return [step for attempt, step, _ in server.recorded(job_id) if attempt == 2]

        wait_for(lambda: len(marks()) >= 3, 60.0, "the attempt was started with its interval")
        (tmp_path / "enough").touch()
        server.until_state(job_id, "SUCCEEDED", 60.0)
        first, second = steps_of(server.log(job_id, 1)), steps_of(server.log(job_id, 2))
        lost = sum(step >= second[0][0] for step, _ in first)
        assert lost * STEP_S <= kept_s + 3.5, "an interval, and the time to save and tell"
    finally:
        server.close()


def test_a_script_and_a_job_file_keep_what_they_state(tmp_path: Path) -> None:
    server = RealServer(tmp_path, [SHORT_LIVED], RENTING)
    try:
        server.start()
        own = server.submit(run=[sys.executable, str(JOB), "5000", "0.05"], steps=5000)
        server.until_step(own, 60, 90.0)
        assert server.job(own)["checkpoint_detail"] == "as its script states"
        wait_for(lambda: len(server.recorded(own)) >= 2, 20.0, "it has saved twice")
        (_, first, _), (_, second, _), *_ = server.recorded(own)
        assert (second - first) * STEP_S < 4.0, "every half second, whatever is planned"
        enough = tmp_path / "enough"
        enough.touch()
        server.until_state(own, "SUCCEEDED", 60.0)
        enough.unlink()
        filed = server.submit(
            run=[sys.executable, str(JOB), "5000", "0.05", "planned"], steps=5000, checkpoint={"interval": "2s"}
        )
        server.until_step(filed, 100, 90.0)
        assert server.job(filed)["checkpoint_detail"] == "every 2s, as its job file states"
        wait_for(lambda: server.recorded(filed), 20.0, "it has saved")
        assert server.recorded(filed)[0][1] * STEP_S < 8.0, "before what would be planned"
    finally:
        server.close()
