"""Projects that are behind what they were entitled to catch up under a policy that follows weights."""

import numpy as np
import pytest
from fake_fleet import FakeFleet, job, pool

from optimizer.policy import PolicySpec
from optimizer.problem import Entities
from scheduler.core import events as ev
from scheduler.core.cycle.problem_snapshot import build_problem
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import EntityShare, SharesDeclared
from scheduler.core.state.fleet import PoolState
from scheduler.core.state.share_usage import ShareUsage
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
    """Two of eight accelerators for an hour where four were due: behind by half an hour of its share."""
    usage = usage_with(2)
    weight = usage.made_up(TWO, BOTH_ASK, 8.0, HOUR).weight
    assert weight == pytest.approx([1.0 + 0.5 / 4.0, 1.0 - 0.5 / 4.0])
    even = usage_with(4)
    assert even.made_up(TWO, BOTH_ASK, 8.0, HOUR).weight == pytest.approx([1.0, 1.0])


def test_a_weight_is_at_most_doubled_or_halved_and_the_absent_are_owed_nothing() -> None:
    usage = usage_with(0)
    assert usage.made_up(TWO, BOTH_ASK, 8.0, 100 * HOUR).weight == pytest.approx([2.0, 0.5])
    alone = usage_with(0)
    alone.made_up(TWO, np.array([0.0, 8.0]), 8.0, 0.0)
    assert alone.made_up(TWO, BOTH_ASK, 8.0, 100 * HOUR).weight == pytest.approx([1.0, 1.0])


def test_what_is_behind_is_told_and_recalled_and_another_policy_forgets_it() -> None:
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
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec(policy), RoundRules(round_s=60.0, resolve_min_s=1.0)))
    fleet.tell(SharesDeclared(0.0, (EntityShare("vision", 1.0), EntityShare("speech", 1.0))))
    fleet.tell(ev.PoolDeclared(0.0, pool("a")))
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
