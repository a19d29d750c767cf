"""A speed that is predicted with an interval is measured where what its jobs may save by that repays the restart."""

from dataclasses import replace
from math import exp
from random import Random
from statistics import fmean

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.profiling_leases import hoped_saving
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import Guess, PredictedSpeed, SpeedsPredicted, ThroughputMeasured
from scheduler.core.state.throughput import BelievedSpeed, SpeedSource
from scheduler.live.store.event_journal import decode_event, encode_event
from walras.job_request import JobId, Kind

RULES = RoundRules(
    round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0.25, profiling_s=20, min_runtime_s=10
)
NARROW, WIDE = (1.9, 2.1), (0.5, 8.0)


def moved_to_learn(interval: tuple[float, float] | None, rules: RoundRules = RULES) -> bool:
    """Whether a job that runs for 200 s on type a at 4 steps/s is moved to try type b, believed to be half as fast."""
    fleet: FakeFleet = cluster("walras", rules=rules, machines="ab")
    fleet.tell(ThroughputMeasured(0.0, Kind("k"), "a", 1, 4.0))
    if interval is not None:
        guess = Guess("fused", 2.0, *interval)
        fleet.tell(SpeedsPredicted(0.0, (PredictedSpeed(Kind("k"), "b", 1, guess),)))
    fleet.tell(ev.JobSubmitted(0.0, job(1, steps=800.0)))
    carried_out(fleet)
    fleet.prepare_all(JobId(1))
    fleet.tell(ev.AttemptProgressed(0.0, JobId(1), 1, 1.0, saves=True))
    fleet.wake()
    return any(isinstance(each, cmd.Revoke) for each in carried_out(fleet))


def test_a_narrow_interval_is_not_worth_a_restart_and_a_wide_one_is() -> None:
    assert not moved_to_learn(NARROW)
    assert moved_to_learn(WIDE)


def test_without_an_interval_or_without_the_rule_all_the_work_counts() -> None:
    """As it does where nothing predicts, and as it did before there was the rule."""
    assert moved_to_learn(None)
    assert moved_to_learn(NARROW, replace(RULES, weigh_intervals=False))


@pytest.mark.parametrize("deviation", [0.05, 0.3, 1.0])
def test_the_hoped_saving_is_the_mean_over_draws_of_the_true_speed(deviation: float) -> None:
    reach, random = exp(1.2816 * deviation), Random(1)
    believed = BelievedSpeed(3.0, SpeedSource.PREDICTED, 3.0 / reach, 3.0 * reach)
    drawn = [max(1.0 - exp(-random.gauss(0.0, deviation)), 0.0) for _ in range(100_000)]
    assert hoped_saving(believed) == pytest.approx(fmean(drawn), rel=0.02)


@pytest.mark.parametrize("bounds", [(None, None), (3.0, 3.0), (0.0, 5.0), (4.0, 2.0)])
def test_what_is_no_interval_says_nothing_about_the_saving(bounds: tuple[float | None, float | None]) -> None:
    assert hoped_saving(BelievedSpeed(3.0, SpeedSource.PREDICTED, *bounds)) == 1.0
    assert hoped_saving(BelievedSpeed(3.0, SpeedSource.PREDICTED, 1e-300, 1e300)) <= 0.5


def test_journals_from_before_the_rule_decide_as_they_did() -> None:
    row = encode_event(cluster().log[0][0])
    assert decode_event(row).rules.weigh_intervals  # type: ignore[union-attr]
    before = replace(row, payload=row.payload.replace(',"weigh_intervals":true', ""))
    assert before.payload != row.payload
    assert not decode_event(before).rules.weigh_intervals  # type: ignore[union-attr]
