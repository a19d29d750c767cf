"""A real PyTorch job on rented machines under a script of prices and revocations: what is lost, and what it costs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_server import WALRAS, A, RealServer, wait_for

pytestmark = pytest.mark.slow

JOB = Path(__file__).resolve().parents[1] / "support" / "spot_job.py"
SPOT = {**A, "shape": "sx1", "accelerator": "s", "market": "spot", "provider": "local", "usd_per_h": 1.0, "quota": 1}
SURE = {**SPOT, "market": "on_demand", "usd_per_h": 3.0, "quota": 0}
POOL = "sx1/spot/default"
RENTING = {
    "policy": {"name": "max_min_fairness"},
    "rules": {"round_s": 5, "resolve_min_s": 1, "delay_usd_per_h": 100, "profiling_s": 1, "rent_backoff_s": 1},
}


def steps_of(log: str) -> list[tuple[int, float]]:
    """(step, when) of each step an attempt made."""
    lines = (line.split() for line in log.splitlines() if line.startswith("step "))
    return [(int(line[1]), float(line[2])) for line in lines if len(line) == 3]


@pytest.mark.parametrize("notice_s", [6, 0])
def test_a_revocation_costs_at_most_one_checkpoint_interval(tmp_path: Path, notice_s: int) -> None:
    """With notice the job saves and goes on elsewhere; without it loses no more than since its last checkpoint."""
    script = [
        {"at": "4s", "pool": POOL, "usd_per_h": 0.5},
        {"at": "8s", "pool": POOL, "usd_per_h": 1.5},
    ]
    server = RealServer(tmp_path, [SPOT, SURE], RENTING, market=script)
    try:
        server.start()
        # It still runs when the machine goes, however late that is seen to, and until it is told that it has enough.
        job_id = server.submit(run=[sys.executable, str(JOB), "5000", "0.05"], steps=5000, grace_period="5s")
        server.until_step(job_id, 80, 90.0)
        assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": notice_s})[0] == 200
        server.until_running(job_id, attempt=2, timeout_s=90.0)
        wait_for(lambda: steps_of(server.log(job_id, 2)), 90.0, "it takes steps elsewhere", lambda: server.job(job_id))
        (tmp_path / "enough").touch()
        server.until_state(job_id, "SUCCEEDED", 90.0)
        first, second = steps_of(server.log(job_id, 1)), steps_of(server.log(job_id, 2))
        resumed_from = second[0][0]  # steps made before this one
        saved = max(step for attempt, step, _ in server.recorded(job_id) if attempt == 1)
        assert resumed_from == saved > 0
        lost = sum(step >= resumed_from for step, _ in first)
        assert lost * 0.05 <= 0.5 + 2.5, "more than an interval, and the time to save and tell"
        if notice_s:
            assert lost <= 1
        state = server.job(job_id)["attempt_list"][0]["state"]
        assert state in ("NODE_LOST", "PREEMPTED")

        def adds_up() -> bool:
            money = server.call("GET", "/money?by=job")[1]
            return bool(money["items"]) and money["items"][0]["key"] == str(job_id)

        wait_for(adds_up, 10, "the ledger knows the job")
        money = server.call("GET", "/money?by=job")[1]
        attempts = sum(attempt["usd"] for attempt in server.job(job_id)["attempt_list"])
        assert money["items"][0]["usd"] == pytest.approx(attempts, rel=1e-6)
        assert money["total_usd"] == pytest.approx(money["used_usd"] + money["idle_usd"])
        token = (server.data / "admin.token").read_text().strip()
        access = {**os.environ, "WALRAS_SERVER": server.url, "WALRAS_TOKEN": token}
        told = subprocess.run(
            [WALRAS, "money", "--by", "pool"], env=access, capture_output=True, timeout=300, text=True, check=True
        )
        assert POOL in told.stdout
        assert "saved" in told.stdout
        assert money["on_demand_usd"] > 1.5 * money["total_usd"] > 0
    finally:
        server.close()
