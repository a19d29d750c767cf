"""What would help a waiting job: said once, and only what is true at this moment."""

from dataclasses import replace

from fake_fleet import FakeFleet, cluster, job

from scheduler.core import events as ev
from scheduler.core.explain.pending_reasons import first_pending_reason, pending_reasons
from scheduler.core.job_change_events import JobReprioritised
from scheduler.core.rules import RoundRules, StatedValue
from scheduler.core.speed_events import ThroughputMeasured
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.job_request import JobId, Kind
from walras.states import Reason

J1, J2, J9 = JobId(1), JobId(2), JobId(9)
QUICK = RoundRules(round_s=10, resolve_min_s=0, restart_default_s=0, profiling_share=0)


def held_up(machines: str = "a", **fields: object) -> FakeFleet:
    """Job 1 has two of the four accelerators of a; job 9 wants all four, under max-min fairness."""
    fleet = cluster("max_min_fairness", rules=QUICK, machines=machines)
    for name, steps_per_s in (("a", 4.0), ("b", 2.0), ("c", 1.0)):
        for count in (1, 2, 4):
            fleet.tell(ThroughputMeasured(0.0, Kind("k"), name, count, steps_per_s * count))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 2, **fields)))
    fleet.tell(ev.AttemptStarted(0.0, J1, 1))
    fleet.tell(ev.JobSubmitted(0.0, job(9, "a", 4)))
    while fleet.solves:
        fleet.answer({1: {"a": 0.5}, 9: {"a": 0.5}})
    return fleet


def test_a_gang_that_waits_is_told_what_would_fit_now() -> None:
    """Fewer accelerators, a type that it does not accept and that is free, a higher class: with the first reason."""
    fleet = held_up("ab")
    first, *others = pending_reasons(fleet.core, J9)
    assert first.reason is Reason.WAIT_RESERVATION
    assert first.fix == (
        "submit it with a:2, which would fit now; or let it stop others: walras update 9 --priority high"
    )
    assert not any(line.fix for line in others)
    assert "held by job 1;" in others[0].detail  # and by itself, what it has reserved already
    listed = first_pending_reason(fleet.core, J9)
    assert listed is not None
    assert not listed.fix


def test_types_that_are_free_are_named_where_the_whole_gang_would_fit() -> None:
    """Two of b are free: enough for a gang of two, not for one of four."""
    fleet = held_up("ab")
    fleet.tell(ev.JobSubmitted(1.0, job(2, "a", 2, priority=90)))
    fleet.tell(ev.JobSubmitted(2.0, job(3, "a", 2)))
    (first, *_) = pending_reasons(fleet.core, JobId(3))
    assert "accept b:2 too, which would fit now" in first.fix


def test_a_higher_class_helps_only_where_somebody_can_be_stopped() -> None:
    """Not those of its class already, nor those that may not be stopped."""
    assert "--priority high" not in pending_reasons(held_up(preemptible=False).core, J9)[0].fix
    assert "--priority high" not in pending_reasons(held_up(priority=90).core, J9)[0].fix


def test_when_a_reserved_place_is_free_is_told_where_it_is_known() -> None:
    """By the length that those there stated; who stated none is the reason why nobody knows."""
    assert "when jobs on a1 end is not known: they state no `steps`" in pending_reasons(held_up().core, J9)[0].detail
    fleet = held_up(steps=800.0)  # 8 steps/s
    assert "free in 1m40s if those there take as long as foreseen" in pending_reasons(fleet.core, J9)[0].detail


def test_a_quarantined_machine_is_named_with_the_command_that_brings_it_back() -> None:
    """A person at night should not have to look the command up."""
    fleet = cluster("fifo", rules=replace(QUICK, quarantine_jobs=1), machines="aa")
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a", 4)))
    fleet.end(J1, exit_code=1)
    fleet.tell(ev.JobSubmitted(0.0, job(2, "a", 4)))
    fleet.tell(ev.JobSubmitted(0.0, job(9, "a", 4)))
    (line,) = pending_reasons(fleet.core, J9)
    assert "a1 is quarantined (1 distinct jobs failed here within 3600 s)" in line.detail
    assert line.fix == "see why jobs fail there, then: walras admin resume a1"


def test_asking_changes_nothing() -> None:
    """What is decided later does not depend on whether somebody asked."""
    asked, silent = held_up(steps=800.0), held_up(steps=800.0)
    pending_reasons(asked.core, J9)
    for fleet in (asked, silent):
        fleet.end(J1)
        fleet.lose(NodeId("a1"))
    assert asked.states == silent.states
    assert asked.attempts == silent.attempts


def test_while_others_leave_for_it_nothing_else_is_advised() -> None:
    """They save their work and go: whoever asked for less now would only begin to wait anew."""
    fleet = held_up("ab")
    fleet.tell(JobReprioritised(1.0, J9, 90))
    fleet.wake()
    lines = pending_reasons(fleet.core, J9)
    assert lines[0].reason is Reason.WAIT_PREEMPTING
    assert not any(line.fix for line in lines)


def renting(rules: RoundRules, **fields: object) -> FakeFleet:
    """Job 1 may only run on machines that cost 3 USD/h each, and none is here."""
    fleet = cluster("walras", rules=rules, machines="")
    box = Shape("box", "gpu", 1, 8.0, 2**33)
    fleet.tell(ev.PoolDeclared(0.0, Pool(PoolId("box/spot/z"), box, Market.SPOT, "z", 3.0, 4)))
    fleet.tell(ev.JobSubmitted(0.0, job(1, "gpu", 2, **fields)))
    return fleet


def test_who_waits_because_nobody_stated_a_value_is_told_so() -> None:
    """And what would help: before, such a job was told that the policy rents no more machines at this price."""
    (line, *_) = pending_reasons(renting(QUICK).core, J1)
    assert line.reason is Reason.WAIT_PRICE
    assert "no value of an hour is stated for this job" in line.detail
    assert "2 accelerators here cost 6 USD/h" in line.detail
    for remedy in ("`value_usd_per_h` of the job", "`rules.values`", "`rules.delay_usd_per_h`"):
        assert remedy in line.fix


def test_who_waits_because_its_value_is_below_the_price_is_told_both() -> None:
    by_job = pending_reasons(renting(QUICK, value_usd_per_h=5.0).core, J1)[0]
    assert "an hour of it is worth 5 USD by the job" in by_job.detail
    stated = replace(QUICK, values=(StatedValue("default", 4.0),))
    by_project = pending_reasons(renting(stated, project="default").core, J1)[0]
    assert "its project says 4 USD/h" in by_project.detail
    enough = pending_reasons(renting(QUICK, value_usd_per_h=7.0).core, J1)[0]
    assert "worth 7" not in enough.detail
