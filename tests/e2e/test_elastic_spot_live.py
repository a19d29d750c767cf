"""The workers of a real elastic job follow the price of spot machines, and a revocation costs it no step."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.real_server import A, RealServer, wait_for

pytestmark = pytest.mark.slow

JOB = Path(__file__).resolve().parents[1] / "support" / "elastic_spot_job.py"
SPOT = {
    **A, "shape": "sx1", "accelerator": "s", "market": "spot", "provider": "local", "usd_per_h": 1.0, "quota": 1,
    "notice": "5s",
}  # fmt: skip
POOL = "sx1/spot/default"
MARKET = {
    "policy": {"name": "walras"},
    "rules": {
        "round_s": 4,
        "resolve_min_s": 1,
        "min_runtime_s": 1,
        "backoff_s": 1,
        "profiling_s": 1,
        "rent_backoff_s": 1,
        "rent_keep_s": 2,
    },
}
#: More than it makes: how long each change takes differs.
STEPS = 6000


def test_an_elastic_job_grows_while_spot_is_cheap_shrinks_while_it_is_dear_and_survives_its_loss(
    tmp_path: Path,
) -> None:
    """Worth 12 USD an hour at its best: the first worker 6 of them, the second 3.6, the third 2.4."""
    out = tmp_path / "out"
    out.mkdir()
    server = RealServer(tmp_path, [SPOT], MARKET)
    try:
        server.start()
        job = server.submit(
            name="elastic", run=[sys.executable, str(JOB), str(out)], resources={"accelerators": "s:1"},
            elastic={"min": 1, "max": 3}, batch={"global": 6}, steps=STEPS, grace_period="20s", value_usd_per_h=12.0,
        )  # fmt: skip

        def made() -> list[list[int]]:
            text = (out / "steps").read_text() if (out / "steps").exists() else ""
            return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

        def trained_by(ranks: int, since: int) -> bool:
            return sum(1 for _, each in made()[since:] if each == ranks) >= 5

        def change(**pool: float) -> int:
            assert server.call("PATCH", f"/pools/{POOL.replace('/', '%2F')}", pool)[0] == 200
            return len(made())

        wait_for(lambda: trained_by(1, 0), 150, "one worker, for there is one machine", lambda: str(server.job(job)))
        since = change(quota=3)
        wait_for(lambda: trained_by(3, since), 150, "three, at 1 USD an hour each", lambda: str(server.job(job)))
        since = change(usd_per_h=4.5)
        wait_for(lambda: trained_by(1, since), 150, "one, at 4.5 USD", lambda: str(server.job(job)))
        since = change(usd_per_h=0.5)
        wait_for(lambda: trained_by(3, since), 150, "three again")
        assert server.call("POST", "/pools:revoke", {"pool_id": POOL, "notice_s": 5})[0] == 200
        since = len(made())
        wait_for(lambda: len(made()) > since + 5, 150, "it goes on", lambda: str(server.job(job)))
        (out / "enough").touch()
        server.until_state(job, "SUCCEEDED", 60.0)
        steps = [step for step, _ in made()]
        assert steps == list(range(len(steps)))  # each once, in order: nothing was lost
        assert len(server.job(job)["attempt_list"]) >= 4
    finally:
        server.close()
