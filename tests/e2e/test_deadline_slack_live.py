"""Real PyTorch jobs with deadlines, worth nothing by the hour: on spot while their slack allows it, else on demand."""

import sys
from pathlib import Path

import pytest

from tests.e2e.test_spot_money import JOB, POOL, RENTING, SPOT, SURE
from tests.support.real_server import RealServer, wait_for

pytestmark = pytest.mark.slow

NOBODY_PAYS = {**RENTING, "policy": {"name": "walras"}}
NOBODY_PAYS["rules"] = {**RENTING["rules"], "delay_usd_per_h": 0, "restart_default_s": 2}


def says(server: RealServer, job_id: int) -> str:
    conditions = server.call("GET", f"/jobs/{job_id}/explain")[1]["conditions"]
    return next((str(each["detail"]) for each in conditions if each["type"] == "spends_slack"), "nothing")


def test_one_with_slack_is_on_spot_through_a_revocation_and_one_without_on_demand(tmp_path: Path) -> None:
    """The first says that its slack outlasts a loss, the second what its slack is for."""
    server = RealServer(tmp_path, [SPOT, {**SURE, "quota": 1}], NOBODY_PAYS)
    how = {"grace_period": "2s", "checkpoint": {"interval": "1s"}, "throughput": {"s": 18}}
    try:
        server.start()
        patient = server.submit(run=[sys.executable, str(JOB), "1500", "0.05"], steps=1500, deadline="+30m", **how)
        hasty = server.submit(run=[sys.executable, str(JOB), "900", "0.05"], steps=900, deadline="+3m", **how)
        server.until_step(patient, 20, 60.0)
        assert server.attempt(patient)["pool"] == POOL
        wait_for(lambda: says(server, patient).startswith("holds spot"), 30, "the first says what it holds")
        needed = "is what a boot and a restart need"
        wait_for(lambda: says(server, hasty).endswith(needed), 30, "so does the second", lambda: says(server, hasty))
        assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 2})[0] == 200
        server.until_running(patient, 2, 90.0)
        (tmp_path / "enough").touch()
        server.until_state(patient, "SUCCEEDED", 60.0)
        assert [each["pool"] for each in server.job(patient)["attempt_list"]] == [POOL, POOL]
        assert "on_demand" in server.attempt(hasty)["pool"]
        assert len(server.job(hasty)["attempt_list"]) == 1
    finally:
        server.close()
