"""What a waiting job is told, what `explain` names as a way out, and why a job that is over has ended."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import measured

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.budget_limits import Budget
from scheduler.core.events import JobReprioritised
from scheduler.core.explain.feasibility import pool_text
from scheduler.core.explain.job_conditions import believed_speeds, job_conditions
from scheduler.core.explain.pending_reasons import dominant_reason, first_pending_reason, pending_reasons
from scheduler.core.rules import RoundRules, StatedValue
from scheduler.core.state.remaining_work import expected_end_at, remaining_here_s
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.job_request import Demand, JobId
from walras.states import JobState, Reason
from walras.units import format_length

J1, J2, J9 = JobId(1), JobId(2), JobId(9)
QUICK = RoundRules(round_s=10, resolve_min_s=0, restart_default_s=0, profiling_share=0)


def held_up(machines: str = "a", **fields: object) -> FakeFleet:
    """Job 1 has two of the four accelerators of a; job 9 wants all four, under max-min fairness."""
    fleet = measured(cluster("max_min_fairness", rules=QUICK, machines=machines))
    fleet.begin(job(1, "a", 2, **fields))
    fleet.tell(ev.JobSubmitted(0.0, job(9, "a", 4)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.5}, 9: {"a": 0.5}})
    return fleet


def test_a_gang_that_waits_is_told_what_would_fit_now() -> None:
    """With the first reason; a type only where the whole gang would fit, and nothing while others leave for it."""
    fleet = held_up("ab")
    first, *others = pending_reasons(fleet.core, J9)
    assert first.reason is Reason.WAIT_RESERVATION
    assert first.fix == (
        "submit it with a:2, which would fit now; or let it stop others: walras update 9 --priority high"
    )
    assert not any(line.fix for line in others)
    assert "held by job 1;" in others[0].detail  # and by itself, what it has reserved already
    listed = first_pending_reason(fleet.core, J9)
    assert not listed.fix
    fleet = held_up("ab")
    fleet.tell(ev.JobSubmitted(1.0, job(2, "a", 2, priority=90)))
    fleet.tell(ev.JobSubmitted(2.0, job(3, "a", 2)))
    (first, *_) = pending_reasons(fleet.core, JobId(3))
    assert "accept b:2 too, which would fit now" in first.fix
    fleet = held_up("ab")
    fleet.tell(JobReprioritised(1.0, J9, 90))
    fleet.wake()
    lines = pending_reasons(fleet.core, J9)
    assert lines[0].reason is Reason.WAIT_PREEMPTING
    assert not any(line.fix for line in lines)


def test_a_higher_class_helps_only_where_somebody_can_be_stopped() -> None:
    """Not those of its class, nor who may not be stopped; when its place is free follows from stated lengths."""
    assert "--priority high" not in pending_reasons(held_up(preemptible=False).core, J9)[0].fix
    assert "--priority high" not in pending_reasons(held_up(priority=90).core, J9)[0].fix
    assert (
        "when jobs on a1 end is not known: they state no `steps`, duration or limit"
        in pending_reasons(held_up().core, J9)[0].detail
    )
    fleet = held_up(steps=800.0)  # 8 steps/s
    assert "free in 1m40s if those there take as long as foreseen" in pending_reasons(fleet.core, J9)[0].detail


def test_a_quarantined_machine_is_named_with_the_command_that_brings_it_back() -> None:
    """A person at night should not have to look the command up."""
    fleet = cluster("fifo", rules=replace(QUICK, quarantine_jobs=1), machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4)))
    fleet.end(J1, exit_code=1)
    fleet.submit(job(2, "a", 4), job(9, "a", 4))
    (line,) = pending_reasons(fleet.core, J9)
    assert "a1 is quarantined (1 distinct jobs failed here within 3600 s)" in line.detail
    assert line.fix == "see why jobs fail there, then: walras admin drain --off a1"


def test_asking_changes_nothing() -> None:
    """What is decided later does not depend on whether somebody asked."""
    asked, silent = held_up(steps=800.0), held_up(steps=800.0)
    pending_reasons(asked.core, J9)
    for fleet in (asked, silent):
        fleet.end(J1)
        fleet.lose(NodeId("a1"))
    assert asked.states == silent.states
    assert asked.attempts == silent.attempts


def renting(rules: RoundRules, **fields: object) -> FakeFleet:
    """Job 1 may only run on machines that cost 3 USD/h each, and none is here."""
    fleet = cluster("walras", rules=rules, machines="")
    box = Shape("box", "gpu", 1, 8.0, 2**33)
    fleet.tell(ev.PoolDeclared(0.0, Pool(PoolId("box/spot/z"), box, Market.SPOT, "z", 3.0, 4)))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "gpu", 2, **fields)))
    return fleet


def test_who_waits_because_nobody_stated_a_value_is_told_so() -> None:
    """And what would help; who stated too little is told that and the price."""
    (line, *_) = pending_reasons(renting(QUICK).core, J1)
    assert line.reason is Reason.WAIT_PRICE
    assert "no value of an hour is stated for this job" in line.detail
    assert "2 accelerators here cost 6 USD/h" in line.detail
    for remedy in ("submit it again with `value_usd_per_h`", "`rules.values`", "`rules.delay_usd_per_h`"):
        assert remedy in line.fix
    by_job = pending_reasons(renting(QUICK, value_usd_per_h=5.0).core, J1)[0]
    assert "an hour of it is worth 5 USD by the job" in by_job.detail
    stated = replace(QUICK, values=(StatedValue("default", 4.0),))
    by_project = pending_reasons(renting(stated, project="default").core, J1)[0]
    assert "its project says 4 USD/h" in by_project.detail
    enough = pending_reasons(renting(QUICK, value_usd_per_h=7.0).core, J1)[0]
    assert "worth 7" not in enough.detail


JOB, DEPENDENT = JobId(1), JobId(2)

Stop = Callable[[FakeFleet], object]
#: By what an attempt is stopped; what becomes of its job, and for which reason.
STOPS: dict[str, tuple[Stop, JobState, Reason]] = {
    "cancel": (lambda f: f.tell(ev.JobCancelled(1.0, JOB, "ada")), JobState.CANCELLED, Reason.USER_CANCELLED),
    "time limit": (lambda f: f.tell(ev.Woke(100.0)), JobState.TIMEOUT, Reason.POLICY_MAX_RUNTIME),
    "hold": (lambda f: f.tell(ev.JobHeld(1.0, JOB)), JobState.HELD, Reason.HOLD_USER),
    "spot notice": (
        lambda f: f.tell(ev.NodeLeaving(1.0, NodeId("a1"), 60.0)),
        JobState.PENDING,
        Reason.INFRA_SPOT_RECLAIM,
    ),
    "drain": (
        lambda f: f.tell(ev.NodeLeaving(1.0, NodeId("a1"), 60.0, Reason.HOLD_ADMIN)),
        JobState.PENDING,
        Reason.POLICY_DRAINED,
    ),
    "policy": (
        lambda f: f.tell(ev.JobSubmitted(1.0, job(9, "a", 4, priority=100))),
        JobState.PENDING,
        Reason.POLICY_PREEMPTED,
    ),
}
CODES = [0, 1, 85, 143, None]


def running() -> FakeFleet:
    """A job on the one machine, and another that waits for its success."""
    fleet = cluster(machines="a")
    fleet.submit(job(1, "a", 4, max_runtime_s=100.0, steps=50.0), job(2, "a", 1, depends_on=(JOB,)))
    fleet.tell(ev.AttemptStarted(0.0, JOB, 1))
    fleet.tell(ev.CheckpointRecorded(0.5, JOB, 1, 10.0, 0.1))
    return fleet


def last_state(fleet: FakeFleet, commands: list[cmd.Command]) -> tuple[JobState, Reason | None]:
    told = [c for c in commands if isinstance(c, cmd.JobTransitioned) and c.job_id == JOB]
    return told[0].state, told[0].reason


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", STOPS)
def test_what_the_scheduler_asked_for_comes_before_the_exit_code(kind: str, code: int | None) -> None:
    """A stopped job that saves and ends with 0 has not done its work, and its dependent does not run."""
    stop, state, reason = STOPS[kind]
    fleet = running()
    stop(fleet)
    assert fleet.attempts[JOB].stopping
    commands = fleet.end(JOB, exit_code=code, steps=20.0, unfinished=True)
    assert last_state(fleet, commands) == (state, reason)
    assert fleet.states.get(DEPENDENT, []) == (["CANCELLED"] if state.is_final else [])


@pytest.mark.parametrize(("steps", "unfinished"), [(50.0, True), (20.0, False)])
@pytest.mark.parametrize("kind", STOPS)
def test_work_that_is_known_to_be_done_is_a_success(kind: str, steps: float, unfinished: bool) -> None:
    """All steps were made, or the ranks had ended before they were told to stop."""
    fleet = running()
    STOPS[kind][0](fleet)
    commands = fleet.end(JOB, exit_code=0, steps=steps, unfinished=unfinished)
    assert last_state(fleet, commands) == (JobState.SUCCEEDED, None)


@pytest.mark.parametrize("kind", ["cancel", "time limit"])
def test_a_job_that_is_to_end_does_so_whatever_happens_to_its_machine(kind: str) -> None:
    """A notice, a hold or the loss of the machine between the stop and the end queues it no more."""
    stop, state, reason = STOPS[kind]
    fleet = running()
    stop(fleet)
    fleet.tell(ev.NodeLeaving(101.0, NodeId("a1"), 160.0))
    fleet.tell(ev.JobHeld(102.0, JOB))
    assert last_state(fleet, fleet.lose(NodeId("a1"))) == (state, reason)


@pytest.mark.parametrize("cause", [ev.EndCause.LEASE_EXPIRED, ev.EndCause.SUPERVISOR_LOST])
@pytest.mark.parametrize("kind", STOPS)
def test_an_end_that_was_asked_for_outlasts_the_loss_of_the_attempt(kind: str, cause: ev.EndCause) -> None:
    """A lease that runs out, or a supervisor that is killed, before the ranks have ended; other jobs are queued."""
    stop, state, reason = STOPS[kind]
    fleet = running()
    stop(fleet)
    commands = fleet.tell(ev.AttemptEnded(fleet.at, JOB, 1, cause, None, None, NodeId("a1"), unfinished=True))
    found = last_state(fleet, commands)
    assert found == (state, reason) if state.is_final else found[0] in (state, JobState.PENDING)


@pytest.mark.parametrize("kind", STOPS)
def test_memory_that_runs_out_during_a_stop_is_the_jobs_fault(kind: str) -> None:
    """It would run out again at the next save; a job that was to end anyway ends as it was asked."""
    stop, state, reason = STOPS[kind]
    fleet = running()
    stop(fleet)
    own = (state, reason) if state.is_final else (JobState.FAILED, Reason.USER_OOM)
    assert last_state(fleet, fleet.end(JOB, None, exceeded="memory", unfinished=True)) == own


def test_a_cancelled_job_whose_start_is_refused_is_cancelled() -> None:
    """The refusal was under way when it was cancelled; it is not queued for another try."""
    fleet = cluster(machines="a")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4)))
    fleet.tell(ev.JobCancelled(1.0, JOB, "ada"))
    del fleet.attempts[JOB]
    commands = fleet.tell(ev.StartRefused(2.0, JOB, 1, NodeId("a1"), "no such folder"))
    assert last_state(fleet, commands) == (JobState.CANCELLED, Reason.USER_CANCELLED)


def test_who_was_stopped_by_its_machine_and_ends_with_0_is_queued_again() -> None:
    """No part of the scheduler asked, but its ranks were told to stop: their work was not done."""
    fleet = running()
    commands = fleet.end(JOB, exit_code=0, steps=20.0, unfinished=True)
    assert last_state(fleet, commands)[0] is JobState.PENDING


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ({}, "when it ends is not stated"),
        ({"max_runtime_s": 600.0}, "its limit of run time ends in 10m00s"),
        ({"max_runtime_s": 600.0, "duration_s": 180.0}, "it ends in about 3m00s by its user's estimate"),
    ],
)
def test_who_waits_is_told_when_a_job_without_steps_ends(states: dict[str, float], told: str) -> None:
    """By its estimate, else by its limit; and nothing is said of speeds of which nothing is known."""
    fleet = cluster("fifo", rules=QUICK)
    fleet.submit(job(1, "a", 4, **states), job(9, "a", 4))
    assert dominant_reason(fleet.core, J9).endswith(told)
    assert believed_speeds(fleet.core, J9) == ()


def test_an_estimate_that_past_ones_correct_is_called_corrected() -> None:
    fleet = cluster("fifo", rules=QUICK)
    fleet.submit(job(1, "a", 4, duration_s=180.0), job(9, "a", 4))
    fleet.core.ledger.lengths.ended(fleet.core.ledger.jobs[J1].request.owners[-1], 600.0, 3.0, 0.0)
    left_s = remaining_here_s(fleet.core.ledger, fleet.core.ledger.jobs[J1])
    assert left_s > 2 * 180.0
    told = f"it ends in about {format_length(left_s)} by its user's corrected estimate"
    assert dominant_reason(fleet.core, J9).endswith(told)


def test_the_first_of_them_is_named_only_where_all_state_when_they_end() -> None:
    """Job 2 tells nothing: it may be gone in a minute, and job 1 is not the first then."""
    fleet = cluster("fifo", rules=QUICK)
    fleet.submit(job(1, "a", 1, duration_s=180.0), job(2, "a", 3), job(9, "a", 4))
    assert dominant_reason(fleet.core, J9).endswith(
        "; job 1 ends in about 3m00s by its user's estimate; when job 2 ends is not stated"
    )
    all_known = cluster("fifo", rules=QUICK)
    for number, gang, seconds in ((1, 1, 180.0), (2, 3, 60.0), (9, 4, None)):
        all_known.tell(ev.JobSubmitted(0.0, job(number, "a", gang, duration_s=seconds)))
    assert dominant_reason(all_known.core, J9).endswith(
        "; job 2, the first of them, ends in about 1m00s by its user's estimate"
    )


def test_pools_are_called_by_their_type_and_drained_machines_by_what_they_do() -> None:
    """No id of a pool where the type says it, and no code of a reason; the ids where two pools have one type."""
    fleet = cluster("fifo", rules=QUICK, machines="ab")
    fleet.tell(ev.NodeLeaving(0.0, NodeId("a1"), inf, Reason.HOLD_ADMIN, gentle=True))
    fleet.tell(ev.JobSubmitted(0.0, job(9, "a", 4)))
    (first,) = pending_reasons(fleet.core, J9)
    assert first.detail == (
        "a: needs 4, 0 of 0 free; more of its machines must join, or take jobs again: a1 is drained: it takes no new "
        "jobs; 0 ahead"
    )
    state = fleet.core.ledger.fleet.pools[0]
    twin = replace(state.pool, pool_id=PoolId("a/spot/eu"), market=Market.SPOT)
    assert pool_text(state.pool, (state.pool,)) == "a"
    assert [pool_text(each, (state.pool, twin)) for each in (state.pool, twin)] == ["a (a)", "a (a/spot/eu)"]
    assert pool_text(state.pool, (state.pool, replace(twin, removed=True))) == "a"


def test_a_guess_is_of_the_fastest_pool_and_who_asks_changes_nothing() -> None:
    """On half the speed 1,000 s take 2,000; what is believed of its end is the same whether `explain` asked or not."""
    fleet = measured(cluster("fifo", rules=QUICK, machines="ab"))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4, steps=1e9)))
    either = (Demand("a", 1), Demand("b", 1))
    fleet.tell(ev.JobSubmitted(0.0, replace(job(2, duration_s=1000.0), demands=either)))
    ledger = fleet.core.ledger
    for at in (500.0, 1000.0, 1500.0):
        fleet.tell(ev.Woke(at))
        record = ledger.jobs[J2]
        record.ends_version = -1
        assert remaining_here_s(ledger, record) == pytest.approx(2000.0 - at)
        assert expected_end_at(ledger, record, ledger.policy.rules) == pytest.approx(2000.0)


def full(**fields: object) -> FakeFleet:
    """One job holds the only accelerators; another waits, with these fields."""
    fleet = cluster("fifo", rules=RoundRules(round_s=10, restart_default_s=2), machines="c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c", steps=1e6)))
    fleet.run(J1)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "c", **fields)))
    return fleet


@pytest.mark.parametrize(("any_end", "until"), [(False, "succeed"), (True, "end")])
def test_a_dependency_says_what_of_it_is_awaited_and_that_it_is_held(any_end: bool, until: str) -> None:
    """A parent that is held holds up the whole pipeline: this stands with each of its children."""
    fleet = full(depends_on=(J1,), depends_on_any_end=any_end)
    line, *_ = pending_reasons(fleet.core, J2)
    assert (line.reason, line.detail) == (Reason.WAIT_DEPENDENCY, f"job 1 to {until}")
    fleet.tell(ev.JobHeld(1.0, J1, "ada"))
    fleet.end(J1, 85)
    assert pending_reasons(fleet.core, J2)[0].detail == f"job 1 to {until}; job 1 is held"
    assert dominant_reason(fleet.core, J2).startswith(f"it waits for job 1 to {until}; job 1 is held")


def test_a_start_that_is_far_is_told_as_a_length() -> None:
    line, *_ = pending_reasons(full(not_before_at=7200.0).core, J2)
    assert (line.reason, line.detail) == (Reason.WAIT_NOT_BEFORE, "not before 2h00m from now")


def test_a_held_job_is_not_told_twice_that_it_is() -> None:
    """The words of the reason say it."""
    fleet = full(held=True)
    (line,) = pending_reasons(fleet.core, J2)
    assert (line.reason, line.detail, line.fix) == (Reason.HOLD_USER, "", "walras hold --off 2")
    assert dominant_reason(fleet.core, J2)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"steps": 1e6}, "its deadline cannot be met: it needs 11d13h more; has 10m00s left"),
        ({"duration_s": 7200.0}, "its deadline cannot be met: it needs 2h00m more; has 10m00s left"),
        ({"duration_s": 60.0}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_deadline_that_cannot_be_met_is_part_of_the_reason(fields: dict[str, object], told: str) -> None:
    """By what it states itself, in steps or as a length; the condition says the same."""
    fleet = full(deadline_at=600.0, **fields)
    said = dominant_reason(fleet.core, J2)
    assert said.startswith("job 1 ")
    assert said.partition("; its deadline")[2] == told.removeprefix("its deadline")
    assert [each.detail for each in job_conditions(fleet.core, J2) if each.type == "at_risk"] == [told] * bool(told)


def test_a_small_budget_is_not_said_to_be_nothing() -> None:
    """Nor are rates told where nothing runs."""
    rules = RoundRules(round_s=10, budgets=(Budget(project="default", accelerator_h=0.001),))
    fleet = cluster("fifo", rules=rules, machines="c")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "c", steps=1e6, project="default", user="ada")))
    fleet.run(J1)
    fleet.tell(ev.Woke(10.0))
    fleet.end(J1, 85)
    (line,) = pending_reasons(fleet.core, J1)
    assert line.reason in (Reason.HOLD_BUDGET, Reason.WAIT_BUDGET)
    assert "of 0.001 accelerator-hours used" in line.detail
    assert " 0.00 " not in line.detail
