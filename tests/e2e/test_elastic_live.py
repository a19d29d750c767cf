"""Real PyTorch jobs whose gang changes: samples stay in order, and a batch that was chosen is kept."""

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.real_server import A, Serve, wait_for

pytestmark = pytest.mark.slow

JOB = Path(__file__).resolve().parents[1] / "support" / "elastic_job.py"
PAIR = A | {"shape": "ax2", "accelerators": 2, "cpus": 4, "memory": "2GB"}
FAIR = {
    "policy": {"name": "max_min_fairness"},
    "rules": {
        "round_s": 1, "resolve_min_s": 1, "min_runtime_s": 1, "backoff_s": 1, "profiling_s": 1, "hysteresis": 0.1,
    },
}  # fmt: skip


def _samples(folder: Path) -> tuple[dict[int, list[int]], dict[int, set[int]]]:
    """The samples of every step over all ranks, in no order; and the ranks of every attempt."""
    steps: dict[int, list[int]] = defaultdict(list)
    ranks: dict[int, set[int]] = defaultdict(set)
    for path in folder.glob("samples-*"):
        _, rank, attempt = path.name.split("-")
        ranks[int(attempt)].add(int(rank))
        for line in path.read_text().splitlines():
            step, indices = json.loads(line)
            steps[step].extend(indices)
    return steps, ranks


def _trained_alone(folder: Path) -> bool:
    """Whether an attempt of one rank has made a step."""
    ranks = _samples(folder)[1]
    return any(len(found) == 1 and (folder / f"samples-0-{attempt}").stat().st_size for attempt, found in ranks.items())


def test_a_job_resumes_with_another_number_of_ranks_at_the_same_sample(serve: Serve, tmp_path: Path) -> None:
    """Every step has the samples that it would have had alone, each once, whatever the gang was that made it."""
    server = serve([PAIR], FAIR)
    out = tmp_path / "out"
    out.mkdir()
    server.start_agent(pool=PAIR)
    job = server.submit(
        name="elastic", run=[sys.executable, str(JOB), str(out)], resources={"accelerators": "a:2"},
        elastic={"min": 1, "max": 2}, batch={"global": 16}, steps=39, grace_period="20s", envs={"STEP_S": "0.5"},
    )  # fmt: skip
    server.until_step(job, 5, 60.0)
    urgent = server.submit(name="urgent", run=f"while [ ! -e {out}/over ]; do sleep 0.1; done", priority="high")
    wait_for(lambda: _trained_alone(out), 60.0, "one rank trains beside the urgent job", lambda: server.job(job))
    (out / "over").touch()
    server.until_state(urgent, "SUCCEEDED", 60.0)
    server.until_state(job, "SUCCEEDED", 120.0)
    steps, ranks = _samples(out)
    assert {len(found) for found in ranks.values()} == {1, 2}, ranks
    assert sorted(steps) == list(range(39))
    import torch
    from torch.utils.data import DistributedSampler

    for epoch in range(3):
        alone: DistributedSampler[int] = DistributedSampler(range(208), 1, 0, seed=5)  # type: ignore[arg-type]
        alone.set_epoch(epoch)
        order = list(alone)
        for step in range(13):
            assert sorted(steps[13 * epoch + step]) == sorted(order[16 * step : 16 * step + 16])
    assert torch.load(out / "weights", weights_only=True)


ADAPTIVE_JOB = Path(__file__).resolve().parents[1] / "support" / "adaptive_job.py"
#: Of 8 samples: with 16 times as many, still a quarter of a minute. In that time the urgent job has to come.
SMALL_STEPS = 12000


def _updates(out: Path, attempt: int) -> list[tuple[int, int]]:
    """The step at which each update of an attempt began, and its samples over all ranks."""
    ranks = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(out.glob(f"updates-*-{attempt}"))
    ]
    assert len({tuple(step for step, _ in rows) for rows in ranks}) == 1, "all ranks count alike"
    return [(rows[0][0], sum(samples for _, samples in rows)) for rows in zip(*ranks, strict=True)]


def test_a_job_finds_a_larger_batch_from_nothing_and_goes_on_with_it_on_another_gang(
    serve: Serve, tmp_path: Path
) -> None:
    """8 samples to begin with: an update costs about as much with 128, and the gradient is nearly all noise."""
    out = tmp_path / "out"
    out.mkdir()
    server = serve([PAIR], FAIR)
    server.start_agent(pool=PAIR)
    job = server.submit(
        name="adaptive", run=[sys.executable, str(ADAPTIVE_JOB), str(out)], resources={"accelerators": "a:2"},
        elastic={"min": 1, "max": 2}, batch={"global": 8, "adaptive": True, "max": 128, "max_per_rank": 100},
        steps=SMALL_STEPS, grace_period="20s",
    )  # fmt: skip
    wait_for(lambda: server.job(job)["last_values"].get("chosen_batch", 0) >= 64, 90, "it chose a batch")
    told = server.command("show", str(job)).stdout
    assert "now: an update is worth" in told
    urgent = server.submit(name="urgent", run="sleep 5", priority="high")
    server.until_state(urgent, "SUCCEEDED", 90.0)
    server.until_state(job, "SUCCEEDED", 150.0)
    done = server.job(job)
    assert done["steps"] == SMALL_STEPS
    attempts = len(list(out.glob("updates-0-*")))
    assert attempts >= 2
    found = [_updates(out, attempt) for attempt in range(1, attempts + 1)]
    assert found[0][0] == (0, 8)
    assert all(samples <= 128 for updates in found for _, samples in updates)
    before, after = found[0][-1], found[1][0]
    assert after[1] >= 64
    assert after[0] >= before[0]
    assert sum(map(len, found)) < SMALL_STEPS / 2
