"""What a waiting job is told: who it waits for and until what, in lengths that people read; once, and never nothing."""

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import events as ev
from scheduler.core.budget_limits import Budget
from scheduler.core.explain.job_conditions import job_conditions
from scheduler.core.explain.pending_reasons import dominant_reason, pending_reasons
from scheduler.core.rules import RoundRules
from walras.job_request import JobId
from walras.states import Reason

J1, J2 = JobId(1), JobId(2)
QUICK = RoundRules(round_s=10, restart_default_s=2)


def full(**fields: object) -> FakeFleet:
    """One job holds the only accelerators; another waits, with these fields."""
    fleet = cluster("fifo", rules=QUICK, machines="c")
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
