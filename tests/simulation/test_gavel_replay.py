"""Gavel's traces through the unchanged core. Exact compatibility is another matter; here the figures must be sane."""

from pathlib import Path

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from simulator.engine import RunOutcome
from simulator.experiment import load_experiment
from simulator.reports.run_summary import RunSummary, summarise_run
from simulator.simulation import Scenario, simulate

CLUSTER = Path(__file__).parents[2] / "configs" / "clusters" / "gavel-12-12-12.yaml"
#: Average JCT that Gavel's own simulator recorded on this trace and cluster, seconds (see docs/simulator.md).
RECORDED_MAX_MIN_AWARE_S = 59362.72
RECORDED_ISOLATED_S = 75247.86
#: Gavel's rounds and its wait between solves. Its restarts cost nothing, as here (the table has no costs).
GAVEL_ROUNDS = RoundRules(round_s=360.0, resolve_min_s=1920.0)


def _run(data: Path, policy: PolicySpec, rules: RoundRules = GAVEL_ROUNDS) -> RunSummary:
    experiment = load_experiment(data / "gavel" / "traces" / "static_single_seed0_n60.tsv", CLUSTER)
    result = simulate(experiment.jobs, Scenario(experiment.pools, experiment.truth, policy, rules))
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    return summarise_run(result)


def test_first_come_first_served_finishes_every_job(reference_data: Path) -> None:
    """A started job never moves to a faster accelerator, so it is slower than an equal split with rounds."""
    summary = _run(reference_data, PolicySpec("fifo"))
    assert summary.by_state == {"SUCCEEDED": 60}
    assert summary.preemptions == 0
    assert 0.8 * RECORDED_ISOLATED_S < summary.avg_jct_s < 1.4 * RECORDED_ISOLATED_S


@pytest.mark.slow
def test_aware_max_min_fairness_is_about_as_good_as_recorded(reference_data: Path) -> None:
    """Same policy, same rounds: the average JCT is within 15 % of what Gavel's simulator recorded."""
    summary = _run(reference_data, PolicySpec("max_min_fairness", {"aware": True}))
    assert summary.by_state == {"SUCCEEDED": 60}
    assert summary.avg_jct_s == pytest.approx(RECORDED_MAX_MIN_AWARE_S, rel=0.15)
