"""A real PyTorch job that chooses its batch while it trains, and keeps what it found when its gang becomes another."""

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.test_data_wait import said
from tests.e2e.test_elastic_live import FAIR, PAIR
from tests.support.real_server import RealServer, wait_for

pytestmark = pytest.mark.slow

JOB = Path(__file__).resolve().parents[1] / "support" / "adaptive_job.py"
#: Of 8 samples: with 16 times as many, still a quarter of a minute. In that time the urgent job has to come.
STEPS = 12000


def _updates(out: Path, attempt: int) -> list[tuple[int, int]]:
    """The step at which each update of an attempt began, and its samples over all ranks."""
    ranks = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(out.glob(f"updates-*-{attempt}"))
    ]
    assert len({tuple(step for step, _ in rows) for rows in ranks}) == 1, "all ranks count alike"
    return [(rows[0][0], sum(samples for _, samples in rows)) for rows in zip(*ranks, strict=True)]


def test_a_job_finds_a_larger_batch_from_nothing_and_goes_on_with_it_on_another_gang(tmp_path: Path) -> None:
    """8 samples to begin with: an update costs about as much with 128, and the gradient is nearly all noise."""
    out = tmp_path / "out"
    out.mkdir()
    server = RealServer(tmp_path, [PAIR], FAIR).start()
    try:
        server.start_agent(pool=PAIR)
        job = server.submit(
            name="adaptive", run=[sys.executable, str(JOB), str(out)], resources={"accelerators": "a:2"},
            elastic={"min": 1, "max": 2}, batch={"global": 8, "adaptive": True, "max": 128, "max_per_rank": 100},
            steps=STEPS, grace_period="20s",
        )  # fmt: skip
        wait_for(lambda: server.job(job)["last_values"].get("chosen_batch", 0) >= 64, 90, "it chose a batch")
        told = said(server, "show", job)
        assert "now: an update is worth" in told
        urgent = server.submit(name="urgent", run="sleep 5", priority="high")
        server.until_state(urgent, "SUCCEEDED", 90.0)
        server.until_state(job, "SUCCEEDED", 150.0)
        done = server.job(job)
        assert done["steps"] == STEPS
        attempts = len(list(out.glob("updates-0-*")))
        assert attempts >= 2
        found = [_updates(out, attempt) for attempt in range(1, attempts + 1)]
        assert found[0][0] == (0, 8)
        assert all(samples <= 128 for updates in found for _, samples in updates)
        before, after = found[0][-1], found[1][0]
        assert after[1] >= 64
        assert after[0] >= before[0]
        assert sum(map(len, found)) < STEPS / 2
    finally:
        server.close()
