"""Futures with and without a change, under the same luck: what differs is the change alone."""

from math import inf

import pytest

from optimizer.policy import PolicySpec
from scheduler.core.events import JobSubmitted, NodeJoined, PolicyChanged, PoolDeclared
from scheduler.core.rules import RoundRules
from scheduler.core.share_events import EntityShare, ShareLimit, SharesDeclared
from scheduler.forecast.core_copy import CoreCopy, CoreSnapshot, known_lengths, snapshot_at_once
from scheduler.forecast.past_jobs import PastJobs
from scheduler.forecast.rollout import Rollout, RolloutLimits, guess_late_ends
from scheduler.forecast.state_changes import AddedMachines, StateChanges, events_of_changes
from scheduler.forecast.what_if import AlternativeOutcome, WhatIfQuestion, what_if
from tests.support.fake_fleet import FakeFleet, job, pool
from walras.cluster import Market, NodeId, PoolId
from walras.errors import NotFound
from walras.job_request import JobId

#: Who sees everything.
ALL = None


def a_state(*shares: EntityShare) -> CoreSnapshot:
    """One machine of type `a` that job 1 of `red` has; 2 of `red` and 3 and 4 of `blue` wait in that order; an empty
    pool of `b` on spot. Steps take a second where nothing else is known, and 4 are 1,000 steps each.
    """
    fleet = FakeFleet()
    fleet.tell(PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(round_s=60.0)))
    fleet.tell(SharesDeclared(0.0, shares))
    fleet.tell(PoolDeclared(0.0, pool("a")))
    fleet.tell(PoolDeclared(0.0, pool("b", 4, market=Market.SPOT, quota=2)))
    fleet.tell(NodeJoined(0.0, NodeId("n1"), PoolId("a")))
    for number, project in enumerate(("red", "red", "blue", "blue"), 1):
        fleet.tell(JobSubmitted(float(number), job(number, "a", steps=1000.0, project=project, user="u")))
    return snapshot_at_once(fleet.core, 10.0)


def outcome(snapshot: CoreSnapshot, changes: StateChanges, visible: frozenset[str] | None = ALL) -> AlternativeOutcome:
    """Of these changes; futures without newcomers."""
    events, _ = events_of_changes(snapshot, changes)
    (found,) = what_if(WhatIfQuestion(snapshot, PastJobs(), (events,), visible, draws=6, cpu_s=60.0)).outcomes
    return found


def test_with_another_machine_jobs_start_and_end_sooner_and_each_project_is_told() -> None:
    found = outcome(a_state(), StateChanges(added=(AddedMachines("A", 1),)))
    assert found.total.jobs == 4
    assert found.total.completion_s.p90 < 0
    assert found.total.waiting_s is not None
    assert found.total.waiting_s.p90 < 0
    assert set(found.projects) == {"red", "blue"}
    assert found.projects["blue"].completion_s.p50 < found.projects["red"].completion_s.p50 < 0
    assert JobId(1) not in found.jobs, "it runs already"
    assert {2, 3, 4} <= set(found.jobs)
    start_s = found.jobs[JobId(2)].start_s
    assert start_s is not None
    assert start_s.p50 < 0


def test_what_changes_nothing_differs_by_nothing_in_any_future() -> None:
    """Lengths, arrivals and lives are drawn alike: no difference is left of luck."""
    snapshot = a_state()
    past = PastJobs()
    for number in range(20):
        past.arrived(-600.0 * (20 - number), job(100 + number, "a", project="red", user="u"))
    events, words = events_of_changes(snapshot, StateChanges(added=(AddedMachines("b", 1),)))
    assert words == ("1 x bx4 more in b",)
    (found,) = what_if(WhatIfQuestion(snapshot, past, (events,), draws=6, cpu_s=60.0)).outcomes
    assert found.jobs == {}
    assert found.total.completion_s.p10 == found.total.completion_s.p90 == 0.0


def test_without_its_machine_no_job_ends_and_that_is_said() -> None:
    found = outcome(a_state(), StateChanges(removed=("n1",)))
    assert found.unfinished[0] == 0.0
    assert found.unfinished[1] == 4.0
    assert found.total.completion_s.p10 > 0


@pytest.mark.parametrize("name", ["a", "A", "n1"])
def test_a_type_a_pool_or_a_machine_is_taken_away_by_its_name(name: str) -> None:
    snapshot = a_state()
    copy = CoreCopy(snapshot)
    for event in events_of_changes(snapshot, StateChanges(removed=(name,)))[0]:
        copy.tell(event)
    assert copy.core.ledger.fleet.pools[0].capacity == 0


def test_a_limit_holds_in_the_futures_until_it_is_lifted() -> None:
    """With one accelerator for `red` at most a second machine does nothing for it, unless nobody limits it."""
    snapshot = a_state(EntityShare("red", limits=(ShareLimit("fleet", 1),)))
    more = StateChanges(added=(AddedMachines("a", 1),))
    limited, free = outcome(snapshot, more), outcome(snapshot, StateChanges(added=more.added, unlimited=("red",)))
    assert limited.projects["red"].completion_s.p50 == 0.0
    assert free.projects["red"].completion_s.p90 < 0


def rolled(limits: RolloutLimits) -> tuple[Rollout, CoreCopy]:
    """The same future of `a_state`, until these limits."""
    snapshot = a_state()
    copy = CoreCopy(snapshot)
    rollout = Rollout(snapshot, copy, PastJobs(), known_lengths(snapshot, ()), "0/0")
    rollout.run(limits)
    return rollout, copy


def test_a_future_that_is_given_up_tells_late_ends_of_jobs() -> None:
    """A job that runs then is taken to run on. Nothing is told of one that waits or was stopped, nor of far ends."""
    whole, _ = rolled(RolloutLimits())
    assert all(each.late_end_at == each.ends_at < inf for each in whole.jobs.values())
    cut, copy = rolled(RolloutLimits(events=3))
    second = cut.jobs[JobId(2)]
    assert second.ends_at == inf
    assert second.late_end_at == pytest.approx(whole.jobs[JobId(2)].ends_at)
    assert cut.jobs[JobId(4)].late_end_at == inf
    guess_late_ends(cut.jobs, cut._truths, copy.core.ledger, latest_at=second.late_end_at - 1.0)
    assert second.late_end_at == inf
    cut._truths[JobId(2)].stopped = True
    guess_late_ends(cut.jobs, cut._truths, copy.core.ledger, latest_at=inf)
    assert second.late_end_at == inf


def test_projects_that_are_not_seen_are_told_of_together() -> None:
    found = outcome(a_state(), StateChanges(added=(AddedMachines("a", 1),)), frozenset({"blue"}))
    assert {name: group.jobs for name, group in found.projects.items()} == {"": 2, "blue": 2}


def test_a_job_that_is_tried_is_told_of_and_whom_it_delays() -> None:
    """First of all by its priority: the others start later by as long as it takes."""
    urgent = job(9, "a", steps=1000.0, project="blue", user="u", priority=100)
    found = outcome(a_state(), StateChanges(submitted=(urgent,)))
    added = found.added[JobId(9)]
    assert 10.0 < added.start.p50 < added.end.p50
    assert {job_id for job_id, each in found.jobs.items() if each.end_s.p50 > 0} == {2, 3, 4}


def test_with_another_policy_the_order_is_its_own() -> None:
    snapshot = a_state()
    changes = StateChanges(policy=(PolicySpec("lifo"), RoundRules(round_s=60.0)))
    with pytest.raises(Exception, match="lifo"):
        outcome(snapshot, changes)
    same = StateChanges(policy=(PolicySpec("fifo"), RoundRules(round_s=60.0)))
    assert outcome(snapshot, same).jobs == {}


@pytest.mark.parametrize(
    ("changes", "field", "names"),
    [
        (StateChanges(added=(AddedMachines("h100", 4),)), "add", "a (owned), b (spot)"),
        (StateChanges(added=(AddedMachines("a", 4, Market.SPOT),)), "add", "b (spot)"),
        (StateChanges(removed=("n9",)), "remove", "a, b"),
        (StateChanges(unlimited=("blue",)), "no_limit", "walras share"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_with_what_it_has(
    changes: StateChanges, field: str, names: str
) -> None:
    with pytest.raises(NotFound) as refused:
        events_of_changes(a_state(EntityShare("red", limits=(ShareLimit("fleet", 1),))), changes)
    assert refused.value.field == field
    assert names in str(refused.value.fix)
