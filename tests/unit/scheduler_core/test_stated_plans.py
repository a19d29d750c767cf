"""Jobs with a menu of plans in the core: placed, kept, moved and restored as the plan that they carry out."""

import json
from dataclasses import replace

from fake_fleet import FakeFleet, cluster
from planned_fleet import carried_out, measured

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.dominant_reason import dominant_reason
from scheduler.core.explain.feasibility import PoolLimit, infeasibility, possible_remedies
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.restore_events import JobRestored
from scheduler.core.rules import RoundRules
from scheduler.live.store.event_journal import dump_request, parse_request
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import Demand, GangPlan, JobId, JobRequest, Kind
from walras.states import Reason

QUICK = RoundRules(round_s=100, resolve_min_s=0, restart_default_s=2, profiling_share=0)
J1, J2 = JobId(1), JobId(2)


def plan(steps_per_s: float, **counts: int) -> GangPlan:
    return GangPlan(tuple(Demand(name, counts[name]) for name in sorted(counts)), steps_per_s)


MENU = (plan(9.0, a=4), plan(14.0, a=4, b=2), plan(5.0, a=2), plan(8.0, a=2, b=2))


def menu_job(job_id: int = 1, plans: tuple[GangPlan, ...] = MENU, **more: object) -> JobRequest:
    alone = next(each.uses for each in plans if len(each.uses) == 1)
    return JobRequest(JobId(job_id), Kind("model"), demands=alone, plans=plans, **{"steps": 1e5, **more})  # type: ignore[arg-type]


def planning(machines: str = "ab") -> FakeFleet:
    return measured(cluster("walras", rules=QUICK, machines=machines))


def started(fleet: FakeFleet, request: JobRequest) -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, request))
    carried_out(fleet)
    if len(fleet.attempts[request.job_id].placement.parts) > 1:
        fleet.prepare_all(request.job_id)
    fleet.tell(ev.AttemptStarted(fleet.at, request.job_id, fleet.attempts[request.job_id].number))


def held(fleet: FakeFleet, job_id: JobId) -> dict[str, int]:
    return dict(fleet.attempts[job_id].placement.by_pool)


def test_a_plan_holds_its_accelerators_in_every_pool_at_its_rate() -> None:
    """The whole menu is a column each; the job runs at what its plan states, and says which plan that is."""
    fleet = planning()
    started(fleet, menu_job())
    assert held(fleet, J1) == {"a": 4, "b": 2}
    ledger = fleet.core.ledger
    assert ledger.rate_of(ledger.jobs[J1]) == 14.0
    assert dominant_reason(fleet.core, J1) == "has 4 x a + 2 x b: plans[1] of 4, which states 14 steps/s"


def test_the_menu_is_in_the_problem_with_what_each_plan_takes() -> None:
    """Four columns, those of two types with a use of each; the smallest gang counts as the job's."""
    fleet = planning()
    fleet.tell(ev.JobSubmitted(0.0, menu_job()))
    problem = fleet.solves[-1].problem
    columns = problem.columns
    uses = [
        dict(zip(columns.use_pool[here].tolist(), columns.use_count[here].tolist(), strict=True))
        for here in (columns.use_column == row for row in range(len(columns)))
    ]
    found = sorted(zip(columns.steps_per_s.tolist(), map(str, uses), strict=True))
    assert found == [(5.0, "{0: 2.0}"), (8.0, "{0: 2.0, 1: 2.0}"), (9.0, "{0: 4.0}"), (14.0, "{0: 4.0, 1: 2.0}")]
    assert problem.jobs.gang.tolist() == [2.0]


def test_what_it_holds_is_one_column_and_nothing_moves_without_a_reason() -> None:
    """The next plan knows it as running in its plan, once, and leaves it there."""
    fleet = planning()
    started(fleet, menu_job())
    fleet.tell(ev.Woke(500.0))
    fleet.wake()
    columns = fleet.solves[-1].problem.columns
    assert len(columns) == len(MENU)
    running = columns.running.nonzero()[0].tolist()
    assert columns.steps_per_s[running].tolist() == [14.0]
    assert not any(isinstance(command, cmd.Revoke) for command in carried_out(fleet))


def test_a_plan_that_no_machine_is_left_for_is_no_column() -> None:
    """Without pool b the menu is what a alone can do."""
    fleet = planning("a")
    started(fleet, menu_job())
    assert held(fleet, J1) == {"a": 4}
    assert sorted(fleet.core.ledger.classes.plan_ways(fleet.core.ledger.jobs[J1].class_row)) == [
        (((0, 2),), 5.0),
        (((0, 2), (1, 2)), 8.0),
        (((0, 4), (1, 2)), 14.0),
    ]
    fleet.tell(ev.Woke(300.0))
    fleet.wake()
    assert sorted(fleet.solves[-1].problem.columns.steps_per_s.tolist()) == [5.0, 9.0]


def test_rented_pools_are_for_the_plan_of_one_type() -> None:
    """Machines that cost money are decided pool by pool: a plan over several takes owned ones."""
    fleet = planning()
    state = next(each for each in fleet.core.ledger.fleet.pools if each.pool.pool_id == "b")
    fleet.tell(ev.PoolDeclared(0.0, replace(state.pool, market=Market.ON_DEMAND, quota=1, usd_per_h=1.0)))
    fleet.tell(ev.JobSubmitted(0.0, menu_job()))
    row = fleet.core.ledger.jobs[J1].class_row
    assert [parts for parts, _ in fleet.core.ledger.classes.plan_ways(row)] == [((0, 2),)]


def test_a_restored_plan_is_what_it_was() -> None:
    """A core that takes over counts the same parts at the same rate; the request survives its JSON."""
    fleet = planning()
    started(fleet, menu_job())
    record = fleet.core.ledger.jobs[J1]
    request = parse_request(dump_request(record.request))
    assert request == record.request
    fresh = planning()
    told = JobRestored(10.0, request, 0.0, record.state, 1, placement=record.placement, leased_at=0.0, running_at=1.0)
    fresh.tell(told)
    again = fresh.core.ledger.jobs[J1]
    assert fresh.core.ledger.parts_of(again) == fleet.core.ledger.parts_of(record)
    assert fresh.core.ledger.rate_of(again) == 14.0


def test_a_stored_request_without_a_menu_reads_as_it_did() -> None:
    """Journals from before there were menus replay."""
    stored = json.loads(dump_request(menu_job()))
    stored.pop("plans")
    assert parse_request(json.dumps(stored)).plans == ()


def test_a_lost_machine_of_one_type_ends_the_plan_and_the_rest_goes_on_with_another() -> None:
    """Without pool b it starts again on what a alone can do."""
    fleet = planning()
    started(fleet, menu_job())
    fleet.lose(NodeId("b2"))
    fleet.end(J1, 1, 100.0)
    fleet.at = 200.0
    fleet.tell(ev.Woke(200.0))
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 4}


def test_a_menu_is_feasible_if_any_plan_is() -> None:
    """Its single type may be larger than any pool, and a mixture fits; where nothing does, the menu is named."""
    fleet = planning()
    pools = [
        PoolLimit(state.pool, {"a": 4.0, "b": 2.0}.get(state.pool.pool_id, 0.0))
        for state in fleet.core.ledger.fleet.pools
    ]
    mixed = menu_job(plans=(plan(9.0, a=64), plan(8.0, a=4, b=2)))
    assert infeasibility(mixed, pools) is None
    fleet.tell(ev.JobSubmitted(0.0, mixed))
    carried_out(fleet)
    assert held(fleet, J1) == {"a": 4, "b": 2}
    never = infeasibility(menu_job(plans=(plan(9.0, a=64), plan(8.0, a=4, b=64))), pools)
    assert never is not None
    assert never.reason is Reason.CONFIG_EXCEEDS_FLEET
    assert "64 x a or 4 x a + 64 x b" in never.detail


def test_a_waiting_menu_is_told_why_and_nobody_offers_it_other_accelerators() -> None:
    """Who waits behind a job that cannot be stopped is told so; a gang without a stated speed is no remedy."""
    fleet = planning("a")
    started(fleet, JobRequest(J2, Kind("k"), demands=(Demand("a", 4),), steps=1e5, preemptible=False))
    fleet.tell(ev.JobSubmitted(1.0, menu_job()))
    carried_out(fleet)
    assert pending_reasons(fleet.core, J1)
    assert dominant_reason(fleet.core, J1)
    assert not [each for each in possible_remedies(fleet.core, fleet.core.ledger.jobs[J1]) if each.demands]


def test_who_waits_is_told_its_menu_and_what_is_free_of_it() -> None:
    """Before any machine has joined too, and of a job without a menu."""
    empty = FakeFleet()
    empty.tell(ev.PolicyChanged(0.0, PolicySpec("walras", {}), QUICK))
    empty.tell(ev.JobSubmitted(0.0, menu_job()))
    empty.tell(ev.JobSubmitted(0.0, JobRequest(J2, Kind("k"), demands=(Demand("a", 2),), steps=1e6)))
    assert dominant_reason(empty.core, J1) == (
        "it needs 4 x a or 4 x a + 2 x b or 2 x a or 2 x a + 2 x b; no machine has joined this cluster yet"
    )
    assert dominant_reason(empty.core, J2) == "it needs 2 x a; no machine has joined this cluster yet"


def test_a_type_in_several_pools_gives_a_plan_several_places() -> None:
    """Two pools of type b: the plan over a and b may have either, and takes the one that is free."""
    fleet = planning("ab")
    b = next(state.pool for state in fleet.core.ledger.fleet.pools if state.pool.pool_id == "b")
    fleet.tell(ev.PoolDeclared(0.0, replace(b, pool_id=PoolId("b-east"))))
    fleet.tell(ev.NodeJoined(0.0, NodeId("e1"), PoolId("b-east")))
    started(fleet, JobRequest(J2, Kind("k"), demands=(Demand("b", 2),), pools=("b",), steps=1e6, preemptible=False))
    started(fleet, menu_job())
    assert held(fleet, J1) == {"a": 4, "b-east": 2}
