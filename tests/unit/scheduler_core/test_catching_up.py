"""Who had less than its share catches up; leases weighed"""

from dataclasses import replace
from math import exp
from random import Random
from statistics import fmean

import numpy as np
import pytest
from fake_fleet import FakeFleet, cluster, fleet_of, job, pool
from planned_fleet import carried_out, submit

from optimizer.problem import Entities
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.cycle.profiling_leases import hoped_saving
from scheduler.core.events import EntityShare, SharesDeclared
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import Guess, PredictedSpeed, SpeedsPredicted, ThroughputMeasured
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.share_usage import ShareUsage
from scheduler.core.state.throughput import BelievedSpeed, SpeedSource
from walras.cluster import NodeId, Pool, PoolId, Shape
from walras.job_request import Demand, JobId, JobRequest, Kind

HOUR = 3600.0
TWO = Entities(("vision", "speech"), np.array([1.0, 1.0]), np.array([-1, -1]))
BOTH_ASK = np.array([8.0, 8.0])


def usage_with(held_by_vision: int) -> ShareUsage:
    """Two projects of one weight on eight accelerators; vision holds some, speech the rest."""
    usage = ShareUsage({"vision": EntityShare("vision")}, half_life_s=1e9, makes_up=True)
    usage.made_up(TWO, BOTH_ASK, 8.0, 0.0)
    pools = [PoolState(Pool(PoolId("a"), Shape("a", "a", 8, 8.0, 2**30)), 0)]
    for number, (project, held) in enumerate((("vision", held_by_vision), ("speech", 8 - held_by_vision)), 1):
        request = JobRequest(JobId(number), Kind("cnn"), demands=(Demand("*", held),), project=project, user="ada")
        usage.started(request, ((0, held),), float(held), pools, 0.0)
    return usage


def test_who_had_less_than_its_share_has_a_larger_weight_until_it_has_caught_up() -> None:
    """By half an hour of its share at first, at most doubled or halved; told, recalled, forgotten with the policy."""
    usage = usage_with(2)
    weight = usage.made_up(TWO, BOTH_ASK, 8.0, HOUR).weight
    assert weight == pytest.approx([1.0 + 0.5 / 4.0, 1.0 - 0.5 / 4.0])
    even = usage_with(4)
    assert even.made_up(TWO, BOTH_ASK, 8.0, HOUR).weight == pytest.approx([1.0, 1.0])
    usage = usage_with(0)
    assert usage.made_up(TWO, BOTH_ASK, 8.0, 100 * HOUR).weight == pytest.approx([2.0, 0.5])
    alone = usage_with(0)
    alone.made_up(TWO, np.array([0.0, 8.0]), 8.0, 0.0)
    assert alone.made_up(TWO, BOTH_ASK, 8.0, 100 * HOUR).weight == pytest.approx([1.0, 1.0])
    usage = usage_with(2)
    usage.made_up(TWO, BOTH_ASK, 8.0, HOUR)
    told = {each.name: each for each in usage.remembered()}
    assert (told["vision"].behind_s, told["vision"].behind_rate) == pytest.approx((2 * HOUR, 2.0), rel=1e-4)
    fresh = ShareUsage(dict(usage.shares), half_life_s=1e9, makes_up=True)
    fresh.recall(told.values(), 2 * HOUR)
    assert fresh.made_up(TWO, BOTH_ASK, 8.0, 2 * HOUR).weight == pytest.approx([1.25, 0.75])
    usage.make_up_from(False, 2 * HOUR)
    assert all(each.behind_s == 0.0 for each in usage.remembered())


@pytest.mark.parametrize(("policy", "catches_up"), [("hierarchical", True), ("max_min_fairness", False)])
def test_the_problem_of_a_policy_that_follows_weights_has_them(policy: str, catches_up: bool) -> None:
    """Speech has held all four accelerators for an hour when vision's jobs, who waited, are in a problem again."""
    fleet = fleet_of(pool("a"), policy=policy, round_s=60.0, resolve_min_s=1.0)
    fleet.tell(SharesDeclared(0.0, (EntityShare("vision", 1.0), EntityShare("speech", 1.0))))
    for number in range(4):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"n{number}"), PoolId("a")))
    for number in range(1, 9):
        project = "speech" if number < 5 else "vision"
        fleet.tell(ev.JobSubmitted(0.0, job(number, "a", project=project, user="ada")))
    ledger = fleet.core.ledger
    assert {ledger.jobs[job_id].request.project for job_id in fleet.attempts} == {"speech"}
    build_problem(ledger)
    ledger.now = HOUR
    entities = build_problem(ledger).entities
    weight = dict(zip(entities.name, entities.weight, strict=True))
    assert (weight["vision"] > 1.05 and weight["speech"] < 0.95) == catches_up


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
    submit(fleet, 0.0, job(1, steps=800.0))
    fleet.prepare_all(JobId(1))
    fleet.tell(ev.AttemptProgressed(0.0, JobId(1), 1, 1.0, saves=True))
    fleet.wake()
    return any(isinstance(each, cmd.Revoke) for each in carried_out(fleet))


def test_a_narrow_interval_is_not_worth_a_restart_and_a_wide_one_is() -> None:
    """Without an interval, or without the rule, all the work counts."""
    assert not moved_to_learn(NARROW)
    assert moved_to_learn(WIDE)
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
