"""Budgets of projects, users and groups, in money and hours, by period: what counts, who waits, and what is said."""

from dataclasses import replace
from math import inf

import pytest
from fake_fleet import FakeFleet, fleet_of, job, pool

from optimizer.policy import PolicySpec
from scheduler.core import events as ev
from scheduler.core.budget_limits import Budget, BudgetOwner, BudgetState, BudgetUnit, UserGroup
from scheduler.core.commands import BudgetWarned
from scheduler.core.events import JobProjectChanged
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.explain.share_standing import budget_standings
from scheduler.core.rules import RoundRules, dump_policy, parse_policy, parse_rules
from scheduler.forecast.core_copy import CoreCopy, snapshot_at_once
from walras.cluster import NodeId, PoolId
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.states import JobState, Reason

HOUR = 3600.0
J1, J2, J3 = JobId(1), JobId(2), JobId(3)
STUDENTS = UserGroup("students", ("ada", "bob"))
OF_STUDENTS = BudgetOwner(group="students")
HOURS, SHARE = BudgetUnit.ACCELERATOR_H, BudgetUnit.FAIR_SHARE_H


def rules_with(*budgets: Budget) -> RoundRules:
    return RoundRules(round_s=60.0, budgets=budgets, groups=(STUDENTS,))


def fleet_with(*budgets: Budget, usd_per_h: float = 0.0, policy: str = "fifo") -> FakeFleet:
    """Four machines of one accelerator that cost nothing unless said."""
    declared = replace(pool("a"), usd_per_h=usd_per_h)
    fleet = fleet_of(declared, policy=policy, round_s=60.0, budgets=budgets, groups=(STUDENTS,))
    for number in range(4):
        fleet.tell(ev.NodeJoined(0.0, NodeId(f"n{number}"), PoolId("a")))
    return fleet


def submit(fleet: FakeFleet, number: int, user: str, project: str = "vision") -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, job(number, "a", project=project, user=user)))
    if JobId(number) in fleet.attempts:
        fleet.tell(ev.AttemptStarted(fleet.at, JobId(number), 1))


def told(fleet: FakeFleet, *states: BudgetState) -> None:
    fleet.tell(ev.MoneyRestated(fleet.at, (), (), inf, states))


def test_a_group_shares_one_budget_and_others_run_on() -> None:
    """Ada and Bob pay into it from all projects; who waits reads the group, the numbers, and when it is filled."""
    fleet = fleet_with(Budget(group="students", accelerator_h=10.0, every="week"))
    told(fleet, BudgetState(OF_STUDENTS, HOURS, "week", 10.0, 0.0, 100 * HOUR))
    submit(fleet, 1, "ada")
    submit(fleet, 2, "bob", "speech")
    submit(fleet, 3, "cleo")
    assert set(fleet.attempts) == {J3}
    line = pending_reasons(fleet.core, J2)[0]
    assert line.reason is Reason.WAIT_BUDGET
    assert line.detail.startswith("group students: 10.00 of 10.00 accelerator-hours used this week")
    assert line.fix.endswith("or credited, or when it is filled again, in 4d04h")
    told(fleet, BudgetState(OF_STUDENTS, HOURS, "week", 0.0, 0.0, 268 * HOUR))
    assert set(fleet.attempts) == {J1, J2, J3}


def test_hours_run_out_on_machines_that_cost_nothing() -> None:
    """Two jobs of the group use 2 hours of accelerators an hour: 3 hours last one and a half; then both are held."""
    fleet = fleet_with(Budget(group="students", accelerator_h=3.0))
    for number, user in ((1, "ada"), (2, "bob"), (3, "cleo")):
        submit(fleet, number, user)
    while fleet.at < 4 * HOUR and not fleet.attempts[J1].stopping:
        fleet.wake()
    assert fleet.at == pytest.approx(1.5 * HOUR, abs=1.0)
    assert fleet.attempts[J2].stopping
    assert not fleet.attempts[J3].stopping
    warned = [command for _, commands in fleet.log for command in commands if isinstance(command, BudgetWarned)]
    assert [(each.account, each.unit) for each in warned] == [("group students", HOURS)]
    fleet.end(J1, exit_code=85)
    record = fleet.core.ledger.jobs[J1]
    assert (record.state, record.hold_reason) == (JobState.HELD, Reason.HOLD_BUDGET)


def test_a_credit_lets_held_jobs_go_on() -> None:
    fleet = fleet_with(Budget(user="ada", fair_share_h=2.0, every="month"))
    owner = BudgetOwner(user="ada")
    told(fleet, BudgetState(owner, SHARE, "month", 2.0, 0.0, 700 * HOUR))
    submit(fleet, 1, "ada")
    assert not fleet.attempts
    told(fleet, BudgetState(owner, SHARE, "month", 2.0, 5.0, 700 * HOUR))
    assert set(fleet.attempts) == {J1}
    (standing,) = budget_standings(fleet.core, fleet.at)
    assert (standing.used, standing.limit, standing.credit, standing.per_h) == pytest.approx((2.0, 7.0, 5.0, 1.0))


def test_money_that_is_prepaid_is_what_was_credited() -> None:
    """A budget of 0 USD and a credit of 3: nobody starts before it, and the state of a copy has it too."""
    fleet = fleet_with(Budget(project="vision", usd=0.0), usd_per_h=1.0)
    submit(fleet, 1, "ada")
    assert not fleet.attempts
    told(fleet, BudgetState(BudgetOwner("vision"), BudgetUnit.USD, "", 0.0, 3.0))
    assert set(fleet.attempts) == {J1}
    copy = CoreCopy(snapshot_at_once(fleet.core, fleet.at))
    before, after = (next(budget_standings(core, fleet.at)) for core in (fleet.core, copy.core))
    assert (after.limit, after.credit, after.used) == (before.limit, before.credit, before.used) == (3.0, 3.0, 0.0)


def test_a_budget_in_hours_counts_what_runs_when_it_comes_and_lets_go_when_it_leaves() -> None:
    """Users who leave the group stop paying; a budget that is taken back opens what it had closed."""
    fleet = fleet_with()
    submit(fleet, 1, "ada")
    submit(fleet, 2, "bob")
    rules = rules_with(Budget(group="students", accelerator_h=5.0))
    fleet.tell(ev.PolicyChanged(HOUR, PolicySpec("fifo"), rules))
    told(fleet, BudgetState(OF_STUDENTS, HOURS, "", 2.0))
    assert next(budget_standings(fleet.core, fleet.at)).per_h == 2.0
    alone = replace(rules, groups=(UserGroup("students", ("ada",)),))
    fleet.tell(ev.PolicyChanged(HOUR, PolicySpec("fifo"), alone))
    assert next(budget_standings(fleet.core, fleet.at)).per_h == 1.0
    told(fleet, BudgetState(OF_STUDENTS, HOURS, "", 5.0))
    assert fleet.attempts[J1].stopping
    fleet.end(J1, exit_code=85)
    assert fleet.core.ledger.jobs[J1].state is JobState.HELD
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("fifo"), rules_with()))
    assert J1 in fleet.attempts
    assert not list(budget_standings(fleet.core, fleet.at))


WRONG = (
    ({"budgets": [{"group": "students", "usd": 1}]}, "no group 'students'"),
    ({"budgets": [{"user": "ada", "accelerator_h": 1, "every": "fortnight"}]}, "'fortnight' is no period"),
    ({"budgets": [{"user": "ada", "accelerator_h": -1}]}, "finite number >= 0"),
    ({"budgets": [{"usd": 5, "every": "week"}]}, "counted by month"),
    ({"budgets": [{"user": "ada", "usd": 5, "every": "week", "starts": "2026-12-01"}]}, "of periods of a length"),
    ({"budgets": [{"user": "ada", "usd": 5, "every": "14d", "starts": "soon"}]}, "'soon' is no date"),
    ({"budgets": [{"user": "ada", "usd": 5, "every": "14d", "starts": "2026-02-29"}]}, "'2026-02-29' is no date"),
    ({"budgets": [{"project": "vision"}]}, "needs `usd`"),
    ({"budgets": [{"user": "ada", "hours": 4}]}, "hours: unknown field"),
    ({"groups": [{"name": "a", "users": ["ada"]}, {"name": "b", "users": ["ada"]}]}, "'ada' is in group 'a' already"),
    ({"groups": [{"name": "a", "users": []}]}, "needs a `name`"),
    ({"budgets": [{"user": "ada", "usd": 5}, {"user": "ada", "usd": 6}]}, "a second budget of user 'ada' in the whole"),
)


@pytest.mark.parametrize(("rules", "fault"), WRONG)
def test_a_budget_that_means_nothing_is_refused_by_its_field(rules: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_rules(rules)


def test_budgets_of_all_kinds_are_read_as_they_were_written() -> None:
    """One owner may have several, of other units or periods."""
    budgets = [
        {"group": "students", "accelerator_h": 200, "every": "week"},
        {"group": "students", "accelerator_h": 500, "every": "month"},
        {"user": "ada", "fair_share_h": 10, "every": "14d", "starts": "2026-12-01", "project": "vision"},
        {"accelerator_h": 1000, "every": "quarter"},
    ]
    written = {
        "policy": {"name": "fifo"},
        "rules": {"budgets": budgets, "groups": [{"name": "students", "users": ["ada"]}]},
    }
    spec, rules = parse_policy(written)
    assert len(rules.budgets) == 4
    assert parse_policy(dump_policy(spec, rules))[1] == rules


def spent(usd: float, month_usd: float, project: str = "") -> ev.MoneyRestated:
    return ev.MoneyRestated(0.0, (), ((project, "ada", usd, month_usd),), next_month_at=100 * HOUR)


def test_a_user_whose_budget_is_spent_waits_and_others_do_not() -> None:
    """In all of the user's projects; the reason names the budget, what is spent of it, and when it is filled again."""
    fleet = fleet_with(Budget(user="ada", month_usd=2.0), usd_per_h=1.0)
    fleet.tell(spent(50.0, 2.0))
    submit(fleet, 1, "ada", "vision")
    submit(fleet, 2, "ada", "speech")
    submit(fleet, 3, "bob", "vision")
    assert set(fleet.attempts) == {J3}
    first = pending_reasons(fleet.core, J1)[0]
    assert first.reason is Reason.WAIT_BUDGET
    assert first.detail.startswith("user ada: 2.00 of 2.00 USD spent this month")
    assert first.fix.endswith("or with the next month, in 4d04h")
    fleet.tell(ev.MoneyRestated(fleet.at, (), (("", "ada", 50.0, 0.0),), 900 * HOUR))
    assert set(fleet.attempts) == {J1, J2, J3}
    fleet = fleet_with(Budget(project="vision", user="ada", usd=1.0), usd_per_h=1.0)
    fleet.tell(spent(1.0, 0.0, "vision"))
    submit(fleet, 1, "ada", "vision")
    submit(fleet, 2, "ada", "speech")
    assert set(fleet.attempts) == {J2}
    assert pending_reasons(fleet.core, J1)[0].detail.startswith("user ada in project vision: 1.00 of 1.00 USD spent")


def test_a_job_that_waits_for_the_budget_of_its_project_starts_in_another() -> None:
    """Held for that budget or waiting for it; what it cost stays where it was spent, the rest counts in the new."""
    fleet = fleet_with(Budget(project="vision", usd=2.0), Budget(project="speech", usd=9.0), usd_per_h=1.0)
    submit(fleet, 1, "ada", "vision")
    while fleet.at < 3 * HOUR and not fleet.attempts[J1].stopping:
        fleet.wake()
    fleet.tell(JobProjectChanged(fleet.at, J1, "speech", 50))
    assert fleet.core.ledger.jobs[J1].request.project == "vision", "it still holds its machine"
    fleet.end(J1, exit_code=85)
    submit(fleet, 2, "bob", "vision")
    assert (fleet.core.ledger.jobs[J1].state, set(fleet.attempts)) == (JobState.HELD, set())
    for number in (J1, J2):
        fleet.tell(JobProjectChanged(fleet.at, number, "speech", 50))
    assert set(fleet.attempts) == {J1, J2}
    fleet.tell(ev.Woke(fleet.at + HOUR))
    spent_usd = {name: round(usd) for name, usd, _ in fleet.core.cycle.spending.stated(fleet.at)}
    assert (spent_usd["vision"], spent_usd["speech"]) == (2, 2)


def test_what_runs_when_a_budget_comes_into_force_counts_from_then_on() -> None:
    """At the limit the user's job is held, and goes on by itself once the budget is raised; another's runs on."""
    fleet = fleet_with(usd_per_h=1.0)
    submit(fleet, 1, "ada", "vision")
    submit(fleet, 2, "bob", "vision")
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
    fleet = fleet_with(Budget(user="ada", usd=1.0), policy=policy, usd_per_h=1.0)
    fleet.tell(spent(1.0 - 1.5 * stop_usd, 0.0))
    for number in (1, 2, 3):
        submit(fleet, number, "ada", "vision")
    assert len(fleet.attempts) == 2


def test_a_budget_is_written_once_for_each_user_and_project() -> None:
    both = [{"user": "ada", "usd": 1}, {"user": "ada", "project": "vision", "usd": 1}, {"project": "vision", "usd": 1}]
    assert [each.user for each in parse_rules({"budgets": both}).budgets] == ["ada", "ada", ""]
