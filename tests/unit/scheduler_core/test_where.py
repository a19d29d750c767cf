"""Whatever keeps a job off a machine keeps it off for every policy and every way to a place, and is named as the cause.

A new condition is a row of `CONDITIONS`, a new way to a place one of `WAYS`; each row is tried with each.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out, measured, submit

from scheduler.core import events as ev
from scheduler.core.budget_limits import Budget
from scheduler.core.events import FLEET, NOBODY, Booking, BookingsDeclared, EntityShare, ShareLimit, SharesDeclared
from scheduler.core.explain.pending_reasons import first_pending_reason
from scheduler.core.rules import RoundRules
from scheduler.live.services.job_submission import dry_run
from walras.cluster import NodeId
from walras.job_request import JobId, JobRequest

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2)
J1, J9, A1, A2 = JobId(1), JobId(9), NodeId("a1"), NodeId("a2")
_OWNER = EntityShare("p", owned=(ShareLimit("a", 2),))
_FULL_MEMORY = (4 << 33) - 1


@dataclass(frozen=True)
class Condition:
    """What keeps the job off the machine: told before it comes, undone afterwards, and the words that name it."""

    told: Callable[[FakeFleet, tuple[EntityShare, ...]], object]
    undone: Callable[[FakeFleet, tuple[EntityShare, ...]], object]
    words: str
    wants: Callable[[JobRequest], JobRequest] = lambda request: request


def _drain(fleet: FakeFleet, _: object) -> None:
    fleet.tell(ev.NodeLeaving(fleet.at, A1, inf))


def _without_tools(fleet: FakeFleet, _: object) -> None:
    fleet.tell(ev.NodeJoined(fleet.at, A2, fleet.core.ledger.fleet.pools[0].pool.pool_id))
    fleet.tell(ev.NodeTools(fleet.at, A1, ()))
    fleet.tell(ev.NodeTools(fleet.at, A2, ("container",)))
    submit(fleet, fleet.at, job(1, "a", 4, project="q", tools=(("container",),), preemptible=False), runs=True)


def _book(from_s: float) -> Callable[[FakeFleet, object], None]:
    def told(fleet: FakeFleet, _: object) -> None:
        booking = Booking(1, NOBODY, (A1,), fleet.at + from_s, fleet.at + 500)
        fleet.tell(BookingsDeclared(fleet.at, (booking,)))

    return told


def _limit(fleet: FakeFleet, shares: tuple[EntityShare, ...]) -> None:
    own = next((share for share in shares if share.name == "p"), EntityShare("p"))
    fleet.tell(SharesDeclared(fleet.at, (replace(own, limits=(ShareLimit(FLEET, 0),)),)))


def _fill_memory(fleet: FakeFleet, _: object) -> None:
    hungry = job(1, "a", 1, project="q", memory_bytes_per_accelerator=_FULL_MEMORY, preemptible=False)
    submit(fleet, fleet.at, hungry, runs=True)


def _spend(limit_h: float) -> Callable[[FakeFleet, object], None]:
    def told(fleet: FakeFleet, _: object) -> None:
        policy = fleet.core.ledger.policy
        rules = replace(policy.rules, budgets=(Budget("p", accelerator_h=limit_h),))
        fleet.tell(ev.PolicyChanged(fleet.at, policy.spec, rules))

    return told


CONDITIONS = {
    "drained": Condition(
        _drain, lambda fleet, _: fleet.tell(ev.NodeUncordoned(fleet.at, A1)), "a1 is about to be taken away"
    ),
    "tools": Condition(
        _without_tools, lambda fleet, _: fleet.tell(ev.NodeTools(fleet.at, A1, ("container",))),
        "a1 lacks tools that it needs", lambda request: replace(request, tools=(("container",),)),
    ),
    "booked": Condition(_book(0), lambda fleet, _: fleet.tell(BookingsDeclared(fleet.at, ())), "reservation 1"),
    "booked soon": Condition(
        _book(100), lambda fleet, _: fleet.tell(BookingsDeclared(fleet.at, ())), "reservation 1",
        lambda request: replace(request, preemptible=False, steps=None),
    ),
    "limit": Condition(
        _limit, lambda fleet, shares: fleet.tell(SharesDeclared(fleet.at, shares)), "its limit allows 0"
    ),
    "memory": Condition(
        _fill_memory, lambda fleet, _: fleet.end(J1), "a1 has too few processors or too little memory free",
        lambda request: replace(request, memory_bytes_per_accelerator=1 << 33),
    ),
    "budget": Condition(_spend(0.0), _spend(100.0), "p"),
}  # fmt: skip
#: Ways to a place: the policy, what the job states, and what its project owns.
WAYS: dict[str, tuple[str, dict[str, object], tuple[EntityShare, ...]]] = {
    "order": ("fifo", {}, ()), "order by length": ("srtf", {}, ()), "shares": ("max_min_fairness", {}, ()),
    "plan": ("walras", {}, ()), "rounds of plans": ("hadar", {}, ()),
    "high class": ("max_min_fairness", {"priority": 80}, ()), "deadline": ("walras", {"deadline_at": 60.0}, ()),
    "elastic": ("walras", {"sizes": (1,)}, ()), "owned": ("max_min_fairness", {}, (_OWNER,)),
    "owned under a plan": ("walras", {}, (_OWNER,)),
}  # fmt: skip


def settle(fleet: FakeFleet) -> None:
    """What is asked is answered, and the core wakes as it asks for some rounds."""
    for _ in range(6):
        carried_out(fleet)
        if fleet.wake_at < fleet.at + 30:
            fleet.wake()
    carried_out(fleet)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_no_way_leads_to_a_place_that_a_condition_closes(name: str, way: str) -> None:
    """A dry run says no, the job waits, both name the condition; and the job starts once it is undone."""
    condition, (policy, more, shares) = CONDITIONS[name], WAYS[way]
    fleet = measured(cluster(policy, rules=QUICK))
    fleet.tell(SharesDeclared(fleet.at, shares))
    condition.told(fleet, shares)
    settle(fleet)
    request = condition.wants(job(9, "a", 1, project="p", **{"steps": 100.0, **more}))
    tried = dry_run(fleet.core, request)
    assert tried.chosen is None
    assert condition.words in tried.detail
    submit(fleet, fleet.at, request)
    settle(fleet)
    assert J9 not in fleet.attempts
    reason = first_pending_reason(fleet.core, J9)
    assert reason is not None
    assert condition.words in reason.detail
    condition.undone(fleet, shares)
    settle(fleet)
    assert fleet.attempts[J9].placement.parts[0].node_id == A1


def test_a_dry_run_leaves_no_trace() -> None:
    """Its kind, project and class are as unknown afterwards as before, and no row of a job is used up."""
    ledger = cluster(rules=QUICK).core.ledger
    before = len(ledger.classes.classes), len(ledger.classes.shapes), dict(ledger.entities), ledger.columns.new_slot()
    ledger.columns.free_slot(before[3])
    with ledger.trying(job(9, "a", 1, project="p", user="ada", sizes=(1, 2))) as tried:
        assert ledger.jobs[J9] is tried
        assert ledger.count_on(tried, 0) == 1
    after = len(ledger.classes.classes), len(ledger.classes.shapes), dict(ledger.entities), ledger.columns.new_slot()
    assert (before, ledger.jobs) == (after, {})
