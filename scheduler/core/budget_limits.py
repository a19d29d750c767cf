"""Budgets: limits in money or hours for projects, users, groups or the whole cluster, in total or per period.

A policy states them in `rules.budgets`; `metered_limits` splits them into single limits, each of one owner, one unit
and one period. Only the shell knows when a calendar period begins, because it has the calendar and the accounts of past
use.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from walras.errors import ConfigError

#: Periods that follow the calendar (UTC; a week begins on Monday), as budgets name them.
CALENDAR_PERIODS = ("day", "week", "month", "quarter")
_MOST_DAYS = 3660
_DAYS = {"d": 1, "w": 7}


class BudgetUnit(StrEnum):
    """Unit in which a budget is counted."""

    USD = "usd"
    ACCELERATOR_H = "accelerator_h"
    #: Hours of an accelerator that has the fleet's average speed for the job.
    FAIR_SHARE_H = "fair_share_h"

    @property
    def words(self) -> str:
        """Returns the unit as it is written after a number."""
        return {"usd": "USD", "accelerator_h": "accelerator-hours", "fair_share_h": "fair-share hours"}[self]


@dataclass(frozen=True, slots=True)
class BudgetOwner:
    """Whose jobs a budget counts: a project's, a user's (in one or all projects), a group's; all empty: every job."""

    project: str = ""
    user: str = ""
    group: str = ""

    @property
    def words(self) -> str:
        """Returns the owner's name: `vision`, `user ada in project vision`, `group students`; empty for the cluster."""
        inside = f" in project {self.project}" if self.project else ""
        if self.group:
            return f"group {self.group}{inside}"
        return f"user {self.user}{inside}" if self.user else self.project


@dataclass(frozen=True, slots=True)
class BudgetState:
    """State of one limit by the accounts: used since its period began, credited, and when the period ends."""

    owner: BudgetOwner
    unit: BudgetUnit
    #: Period of the limit, as in `Budget.every`; empty: the limit holds in total.
    every: str
    used: float
    credit: float = 0.0
    refills_at: float = inf


@dataclass(frozen=True, slots=True)
class MeteredLimit:
    """One limit: an amount of one unit per period (`every` empty: in total)."""

    owner: BudgetOwner
    unit: BudgetUnit
    every: str
    amount: float
    warn_at: float
    #: Date from which periods of a fixed length are counted.
    starts: str = ""

    @property
    def key(self) -> tuple[BudgetOwner, BudgetUnit, str]:
        """Returns what identifies the limit: owner, unit and period."""
        return self.owner, self.unit, self.every


@dataclass(frozen=True, slots=True)
class UserGroup:
    """Users who share a budget, such as a team. A user is in one group at most."""

    name: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as a policy file states it: its owner, its amounts, and the period after which it is refilled."""

    #: Project whose jobs count. If project, user and group are all empty, everything counts, idle rented machines
    #: included.
    project: str = ""
    #: User whose jobs count: those in the project, or in all projects if `project` is empty.
    user: str = ""
    #: Limits in USD: in total (or per period if `every` is set), and per calendar month (UTC). None: no limit.
    usd: float | None = None
    month_usd: float | None = None
    #: Fraction of a limit at which people are warned.
    warn_at: float = 0.8
    #: Group whose users' jobs count.
    group: str = ""
    #: Limits in accelerator-hours, and in hours of accelerators of the fleet's average speed for each job. None: no
    #: limit.
    accelerator_h: float | None = None
    fair_share_h: float | None = None
    #: Period after which the budget is refilled: day, week, month, quarter, or whole days or weeks such as 14d; empty:
    #: never.
    every: str = ""
    #: Date (2026-12-01) from which periods of a fixed length are counted, forwards and backwards.
    starts: str = ""

    @property
    def owner(self) -> BudgetOwner:
        """Returns the owner of the budget."""
        return BudgetOwner(self.project, self.user, self.group)


def metered_limits(budgets: Iterable[Budget]) -> Iterator[MeteredLimit]:
    """Yields the single limits of all budgets."""
    for budget in budgets:
        amounts = (
            (BudgetUnit.USD, budget.every, budget.usd),
            (BudgetUnit.USD, "month", budget.month_usd),
            (BudgetUnit.ACCELERATOR_H, budget.every, budget.accelerator_h),
            (BudgetUnit.FAIR_SHARE_H, budget.every, budget.fair_share_h),
        )
        for unit, every, amount in amounts:
            if amount is not None:
                starts = budget.starts if every == budget.every else ""
                yield MeteredLimit(budget.owner, unit, every, amount, budget.warn_at, starts)


def is_plain(limit: MeteredLimit) -> bool:
    """Returns whether the accounts count it anyway: USD of project, user or cluster, in total or by month."""
    return limit.unit is BudgetUnit.USD and not limit.owner.group and limit.every in ("", "month")


def period_days(every: str) -> int | None:
    """Returns the days of a period of fixed length (`14d`, `2w`); None for a calendar period.

    Raises ValueError for any other text.
    """
    if every in CALENDAR_PERIODS:
        return None
    number, unit = every[:-1], every[-1:]
    if unit in _DAYS and number.isascii() and number.isdecimal() and len(number) <= 4:
        days = int(number) * _DAYS[unit]
        if 1 <= days <= _MOST_DAYS:
            return days
    raise ValueError(
        f"{every[:40]!r} is no period; choose {', '.join(CALENDAR_PERIODS)}, or a length such as 14d or 2w"
    )


def users_with_budgets(budgets: Iterable[Budget]) -> tuple[tuple[str, str], ...]:
    """Returns (project, user) of each budget of a user in USD that is never refilled; project "" means all."""
    limits = (limit for limit in metered_limits(budgets) if is_plain(limit) and limit.owner.user)
    return tuple(dict.fromkeys((limit.owner.project, limit.owner.user) for limit in limits))


def check_budgets(budgets: Sequence[Budget], groups: Sequence[UserGroup]) -> None:
    """Raises ConfigError if a budget has no limit, a wrong period or an unknown group, or if one is stated twice."""
    _check_groups(groups)
    seen: set[tuple[BudgetOwner, BudgetUnit, str]] = set()
    for place, budget in enumerate(budgets):
        name = f"rules.budgets.{place}"
        limits = list(metered_limits([budget]))
        if not limits:
            raise ConfigError(f"{name}: needs `usd`, `month_usd`, `accelerator_h` or `fair_share_h`", field=name)
        if any(not 0 <= limit.amount < inf for limit in limits):
            raise ConfigError(f"{name}: a limit must be a finite number >= 0, in USD or hours", field=name)
        if not 0 < budget.warn_at <= 1:
            raise ConfigError(f"{name}.warn_at: must be above 0 and at most 1", field=f"{name}.warn_at")
        _check_owner(name, budget, {group.name for group in groups})
        _check_period(name, budget)
        for limit in limits:
            if limit.key in seen:
                whose = f"project {budget.project!r}" if budget.project else "the whole cluster"
                whose = f"user {budget.user!r} in {whose}" if budget.user else whose
                whose = f"group {budget.group!r} in {whose}" if budget.group else whose
                raise ConfigError(f"{name}: a second budget of {whose}", field=name, fix="write both limits in one")
            seen.add(limit.key)


def _check_groups(groups: Sequence[UserGroup]) -> None:
    group_of: dict[str, str] = {}
    for place, group in enumerate(groups):
        name = f"rules.groups.{place}"
        if not group.name or not group.users or not all(group.users):
            raise ConfigError(f"{name}: needs a `name`, and `users` by name", field=name)
        if any(group.name == other.name for other in groups[:place]):
            raise ConfigError(f"{name}.name: a second group {group.name!r}", field=f"{name}.name", fix="keep one")
        for user in group.users:
            if user in group_of:
                told = f"{name}.users: {user!r} is in group {group_of[user]!r} already"
                raise ConfigError(told, field=f"{name}.users", fix="name each user once: money is summed by group")
            group_of[user] = group.name


def _check_owner(name: str, budget: Budget, groups: set[str]) -> None:
    if budget.group and budget.user:
        raise ConfigError(f"{name}: of a user, or of a group", field=f"{name}.group", fix="leave one of both out")
    if budget.group and budget.group not in groups:
        known = ", ".join(sorted(groups)) or "there is none"
        fix = f"name it in rules.groups, with its users; known: {known}"
        raise ConfigError(f"{name}.group: no group {budget.group[:40]!r}", field=f"{name}.group", fix=fix)


def _check_period(name: str, budget: Budget) -> None:
    if budget.every:
        try:
            length = period_days(budget.every)
        except ValueError as error:
            raise ConfigError(f"{name}.every: {error}", field=f"{name}.every") from None
        if budget.usd is not None and budget.owner == BudgetOwner():
            fix = "use month_usd, or count it in accelerator_h"
            raise ConfigError(f"{name}.every: the cluster's USD are counted by month", field=f"{name}.every", fix=fix)
    if budget.starts:
        if not budget.every or length is None:
            fix = "give `every` a length such as 14d, or leave `starts` out"
            raise ConfigError(f"{name}.starts: is of periods of a length", field=f"{name}.starts", fix=fix)
        if not _is_date(budget.starts):
            told, fix = f"{name}.starts: {budget.starts[:40]!r} is no date", "write it as 2026-12-01"
            raise ConfigError(told, field=f"{name}.starts", fix=fix)


def _is_date(text: str) -> bool:
    """Returns whether the text is a date such as 2026-12-01. The core imports no calendar, so digits are checked."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    year, month, day = (int(part) for part in text.split("-"))
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 29 if is_leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return year >= 1 and 1 <= month <= 12 and 1 <= day <= days[month - 1]
