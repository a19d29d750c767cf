"""Budgets: what projects, users, groups and all may use, of money or of hours, in all or within a period.

A policy's `rules.budgets` say it; `metered_limits` takes them apart into single limits, each of one owner, one unit and
one period. When a period begins, only the shell knows: it has the calendar, and the books of what was used.
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
    """In what a budget is counted."""

    USD = "usd"
    ACCELERATOR_H = "accelerator_h"
    #: Hours of an accelerator of the fleet's average speed for the job.
    FAIR_SHARE_H = "fair_share_h"

    @property
    def words(self) -> str:
        """After a number."""
        return {"usd": "USD", "accelerator_h": "accelerator-hours", "fair_share_h": "fair-share hours"}[self]


@dataclass(frozen=True, slots=True)
class BudgetOwner:
    """Whose jobs pay: a project's, a user's (of a project or of all), a group's; all empty: everybody's."""

    project: str = ""
    user: str = ""
    group: str = ""

    @property
    def words(self) -> str:
        """Such as `vision`, `user ada in project vision`, `group students`; empty: the cluster."""
        inside = f" in project {self.project}" if self.project else ""
        if self.group:
            return f"group {self.group}{inside}"
        return f"user {self.user}{inside}" if self.user else self.project


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What the books say of one limit: used since its period began, what was credited, when it is filled again."""

    owner: BudgetOwner
    unit: BudgetUnit
    #: Its period; empty: in all.
    every: str
    used: float
    credit: float = 0.0
    refills_at: float = inf


@dataclass(frozen=True, slots=True)
class MeteredLimit:
    """So much of a unit within a period (`every` empty: in all)."""

    owner: BudgetOwner
    unit: BudgetUnit
    every: str
    amount: float
    warn_at: float
    #: A date from which periods of a length are counted.
    starts: str = ""

    @property
    def key(self) -> tuple[BudgetOwner, BudgetUnit, str]:
        """What makes it another limit than the others."""
        return self.owner, self.unit, self.every


@dataclass(frozen=True, slots=True)
class UserGroup:
    """Users who have a budget together, such as a team; nobody is in two."""

    name: str
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be used: of whom, of what, and how often it is filled again."""

    #: Whose jobs' use; empty, and neither user nor group: everybody's, rented machines that idle included.
    project: str = ""
    #: Only this user's jobs, of the project or (`project` empty) of all.
    user: str = ""
    #: In all (or within `every`), and in a month of the calendar (UTC), USD; None: no limit.
    usd: float | None = None
    month_usd: float | None = None
    #: The part of a limit at which people are warned.
    warn_at: float = 0.8
    #: Only jobs of this group's users.
    group: str = ""
    #: The same in hours of accelerators, and in hours of accelerators of the fleet's average speed for each job.
    accelerator_h: float | None = None
    fair_share_h: float | None = None
    #: Filled again with each: day, week, month, quarter, or a length of whole days such as 14d; empty: never.
    every: str = ""
    #: A date (2026-12-01) from which periods of a length are counted, forwards and back.
    starts: str = ""

    @property
    def owner(self) -> BudgetOwner:
        """Whose it is."""
        return BudgetOwner(self.project, self.user, self.group)


def metered_limits(budgets: Iterable[Budget]) -> Iterator[MeteredLimit]:
    """The single limits of all budgets."""
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
    """Whether the accounts of money have it anyway: USD of a project, a user or the cluster, in all or by month."""
    return limit.unit is BudgetUnit.USD and not limit.owner.group and limit.every in ("", "month")


def period_days(every: str) -> int | None:
    """Days of a period that is a length (`14d`, `2w`); None: it follows the calendar. Raises ValueError."""
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
    """(project, user) of each budget of a user in USD that is not filled again; project "" is all of them."""
    limits = (limit for limit in metered_limits(budgets) if is_plain(limit) and limit.owner.user)
    return tuple(dict.fromkeys((limit.owner.project, limit.owner.user) for limit in limits))


def check_budgets(budgets: Sequence[Budget], groups: Sequence[UserGroup]) -> None:
    """Each says what it is about, once, and has a limit. Raises ConfigError."""
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
    """Whether it is a day of the calendar, written as 2026-12-01 (the core has no calendar to ask)."""
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    year, month, day = (int(part) for part in text.split("-"))
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    days = (31, 29 if is_leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return year >= 1 and 1 <= month <= 12 and 1 <= day <= days[month - 1]
