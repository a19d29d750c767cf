"""Budgets of users, beside those of projects: what counts, who waits, and what is said of it."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.budget_limits import Budget
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.job_change_events import JobProjectChanged
from scheduler.core.rules import RoundRules, parse_rules
from walras.cluster import NodeId, PoolId
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.states import JobState, Reason

HOUR = 3600.0
J1, J2, J3 = JobId(1), JobId(2), JobId(3)


def fleet_with(*budgets: Budget, policy: str = "fifo") -> FakeFleet:
    """Four machines of one accelerator, each 1 USD an hour."""
    fleet = FakeFleet()
    fleet.tell(ev.PolicyChanged(0.0, PolicySpec(policy), RoundRules(round_s=60.0, budgets=budgets)))
    fleet.tell(ev.PoolDeclared(0.0, replace(pool("a"), usd_per_h=1.0)))
    for number in range(4):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"n{number}"), PoolId("a")))
    return fleet


def submit(fleet: FakeFleet, number: int, project: str, user: str) -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a", project=project, user=user)))
    if JobId(number) in fleet.attempts:
        fleet.tell(ev.AttemptStarted(fleet.at, JobId(number), 1))


def spent(usd: float, month_usd: float, project: str = "") -> ev.MoneyRestated:
    return ev.MoneyRestated(0.0, (), ((project, "ada", usd, month_usd),), next_month_at=100 * HOUR)


def test_a_user_whose_budget_is_spent_waits_and_others_do_not() -> None:
    """In all of the user's projects; the reason names the budget, what is spent of it, and when it is filled again."""
    fleet = fleet_with(Budget(user="ada", month_usd=2.0))
    fleet.tell(spent(50.0, 2.0))
    submit(fleet, 1, "vision", "ada")
    submit(fleet, 2, "speech", "ada")
    submit(fleet, 3, "vision", "bob")
    assert set(fleet.attempts) == {J3}
    first = pending_reasons(fleet.core, J1)[0]
    assert first.reason is Reason.WAIT_BUDGET
    assert first.detail.startswith("user ada: 2.00 of 2.00 USD spent this month")
    assert first.fix.endswith("or with the next month, in 4d04h")
    fleet.tell(ev.MoneyRestated(fleet.at, (), (("", "ada", 50.0, 0.0),), 900 * HOUR))
    assert set(fleet.attempts) == {J1, J2, J3}


def test_a_budget_inside_a_project_counts_and_stops_only_there() -> None:
    fleet = fleet_with(Budget(project="vision", user="ada", usd=1.0))
    fleet.tell(spent(1.0, 0.0, "vision"))
    submit(fleet, 1, "vision", "ada")
    submit(fleet, 2, "speech", "ada")
    assert set(fleet.attempts) == {J2}
    assert pending_reasons(fleet.core, J1)[0].detail.startswith("user ada in project vision: 1.00 of 1.00 USD spent")


def test_a_job_that_waits_for_the_budget_of_its_project_starts_in_another() -> None:
    """Held for that budget or waiting for it; what it cost stays where it was spent, the rest counts in the new."""
    fleet = fleet_with(Budget(project="vision", usd=2.0), Budget(project="speech", usd=9.0))
    submit(fleet, 1, "vision", "ada")
    while fleet.at < 3 * HOUR and not fleet.attempts[J1].stopping:
        fleet.wake()
    fleet.tell(JobProjectChanged(fleet.at, J1, "speech", 50))
    assert fleet.core.ledger.jobs[J1].request.project == "vision", "it still holds its machine"
    fleet.end(J1, exit_code=85)
    submit(fleet, 2, "vision", "bob")
    assert (fleet.core.ledger.jobs[J1].state, set(fleet.attempts)) == (JobState.HELD, set())
    for number in (J1, J2):
        fleet.tell(JobProjectChanged(fleet.at, number, "speech", 50))
    assert set(fleet.attempts) == {J1, J2}
    fleet.tell(ev.Woke(fleet.at + HOUR))
    spent_usd = {name: round(usd) for name, usd, _ in fleet.core.cycle.spending.stated(fleet.at)}
    assert (spent_usd["vision"], spent_usd["speech"]) == (2, 2)


def test_what_runs_when_a_budget_comes_into_force_counts_from_then_on() -> None:
    """At the limit the user's job is held, and goes on by itself once the budget is raised; another's runs on."""
    fleet = fleet_with()
    submit(fleet, 1, "vision", "ada")
    submit(fleet, 2, "vision", "bob")
    rules = RoundRules(round_s=60.0, budgets=(Budget(user="ada", usd=2.0),))
    fleet.tell(ev.PolicyChanged(HOUR, PolicySpec("fifo"), rules))
    fleet.tell(ev.MoneyRestated(HOUR, (("vision", 2.0, 2.0),), (("", "ada", 1.0, 1.0),)))
    while fleet.at < 3 * HOUR and not fleet.attempts[J1].stopping:
        fleet.wake()
    assert fleet.at == pytest.approx(2 * HOUR, abs=1.0)
    assert not fleet.attempts[J2].stopping
    fleet.end(J1, exit_code=85)
    record = fleet.core.ledger.jobs[J1]
    assert (record.state, record.hold_reason) == (JobState.HELD, Reason.HOLD_BUDGET)
    more = replace(rules, budgets=(Budget(user="ada", usd=20.0),))
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("fifo"), more))
    assert J1 in fleet.attempts


@pytest.mark.parametrize("policy", ["fifo", "las"])
def test_no_more_is_started_than_the_rest_of_the_budget_can_stop(policy: str) -> None:
    """Stopping a job costs its grace and a minute: once that is more than what is left, no other starts."""
    stop_usd = (30.0 + 60.0) / HOUR
    fleet = fleet_with(Budget(user="ada", usd=1.0), policy=policy)
    fleet.tell(spent(1.0 - 1.5 * stop_usd, 0.0))
    for number in (1, 2, 3):
        submit(fleet, number, "vision", "ada")
    assert len(fleet.attempts) == 2


def test_a_budget_is_written_once_for_each_user_and_project() -> None:
    both = [{"user": "ada", "usd": 1}, {"user": "ada", "project": "vision", "usd": 1}, {"project": "vision", "usd": 1}]
    assert [each.user for each in parse_rules({"budgets": both}).budgets] == ["ada", "ada", ""]
    with pytest.raises(ConfigError, match="a second budget of user 'ada' in the whole cluster"):
        parse_rules({"budgets": [both[0], both[0]]})
