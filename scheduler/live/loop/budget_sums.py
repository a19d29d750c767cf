"""What counts against budgets in hours, of groups, or with periods: sums of use by day, and the calendar of periods.

Every charge of use is also added up by project, user and day (UTC), a charge over several days in proportion. Periods
begin at midnight, so the use since a period began is a sum of days, also for a budget that is new today. A server that
starts reads the sums from the ledger of money, which has all charges.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from math import floor, inf

from scheduler.core.budget_limits import (
    BudgetOwner,
    BudgetState,
    BudgetUnit,
    MeteredLimit,
    UserGroup,
    is_plain,
    metered_limits,
    period_days,
)
from scheduler.core.rules import RoundRules
from scheduler.live.store.table_rows import ChargeRow, CreditRow
from walras.contract import SECONDS_PER_HOUR

_DAY_S = 86_400.0
#: A Monday, from which periods of days are counted where no date is given.
_FIRST_MONDAY = date(1970, 1, 5)


@dataclass(slots=True)
class DayUse:
    """What a user used in a project on one day; `unit_s` counts accelerators of average speed."""

    usd: float = 0.0
    accelerator_s: float = 0.0
    unit_s: float = 0.0

    def amount(self, unit: BudgetUnit) -> float:
        """Returns the use in a unit of budgets."""
        if unit is BudgetUnit.USD:
            return self.usd
        return (self.accelerator_s if unit is BudgetUnit.ACCELERATOR_H else self.unit_s) / SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class UseRow:
    """A stretch of use, or a sum of stretches within one day, in Unix seconds."""

    project: str
    user: str
    since_unix_s: float
    until_unix_s: float
    usd: float
    accelerator_s: float
    unit_s: float


@dataclass(slots=True)
class BudgetBooks:
    """The sums of use by (project, user, day), the credits, and the limits in force."""

    days: dict[tuple[str, str, int], DayUse] = field(default_factory=dict)
    credits: list[CreditRow] = field(default_factory=list)
    limits: tuple[MeteredLimit, ...] = ()
    groups: tuple[UserGroup, ...] = ()
    #: Unix seconds of the next instant at which a budget is filled again.
    refill_unix_s: float = inf

    def put_in_force(self, rules: RoundRules) -> bool:
        """Take the limits and groups of these rules; returns whether they differ from those before."""
        before = self.limits, self.groups
        self.limits, self.groups = tuple(metered_limits(rules.budgets)), rules.groups
        return before != (self.limits, self.groups)

    def add_charge(self, charge: ChargeRow, epoch_unix_s: float) -> None:
        """Add a charge of use that is written."""
        held_s = charge.until_at - charge.since_at
        since, until = charge.since_at + epoch_unix_s, charge.until_at + epoch_unix_s
        held = charge.usd, charge.accelerators * held_s, charge.units * held_s
        self.add(UseRow(charge.project, charge.user, since, until, *held))

    def add(self, row: UseRow) -> None:
        """Add a stretch of use to the days that it touches, in proportion."""
        for day, part in _days_of(row.since_unix_s, row.until_unix_s):
            sums = self.days.setdefault((row.project, row.user, day), DayUse())
            sums.usd += row.usd * part
            sums.accelerator_s += row.accelerator_s * part
            sums.unit_s += row.unit_s * part

    def stated(self, at: float, epoch_unix_s: float) -> tuple[BudgetState, ...]:
        """Returns the budgets' states at this instant; sets `refill_unix_s`. Open charges must be written before."""
        unix_s, found, refills = at + epoch_unix_s, [], [inf]
        for limit in self.limits:
            begins, ends = period_of(limit, unix_s)
            credit = sum(self._credits_of(limit, begins, epoch_unix_s))
            if is_plain(limit):
                if credit:
                    found.append(BudgetState(*limit.key, 0.0, credit))
                continue
            refills.append(ends)
            used = self._used(limit, begins)
            found.append(BudgetState(*limit.key, used, credit, ends - epoch_unix_s))
        self.refill_unix_s = min(refills)
        return tuple(found)

    def _used(self, limit: MeteredLimit, since_unix_s: float) -> float:
        first_day = -inf if since_unix_s == -inf else floor(since_unix_s / _DAY_S)
        owner, members = limit.owner, self._members(limit.owner)
        return sum(
            sums.amount(limit.unit)
            for (project, user, day), sums in self.days.items()
            if day >= first_day
            and owner.project in ("", project)
            and owner.user in ("", user)
            and (members is None or user in members)
        )

    def _members(self, owner: BudgetOwner) -> tuple[str, ...] | None:
        if not owner.group:
            return None
        return next((group.users for group in self.groups if group.name == owner.group), ())

    def _credits_of(self, limit: MeteredLimit, since_unix_s: float, epoch_unix_s: float) -> Iterator[float]:
        for row in self.credits:
            owner = BudgetOwner(row.project, row.user, row.team)
            if owner == limit.owner and row.unit == limit.unit and row.at + epoch_unix_s >= since_unix_s:
                yield row.amount


def _days_of(since_unix_s: float, until_unix_s: float) -> Iterator[tuple[int, float]]:
    """Yields (day, fraction) for each day that a stretch touches; a stretch of length 0 lies in its day as a whole."""
    length_s, at = until_unix_s - since_unix_s, since_unix_s
    if length_s <= 0:
        yield floor(at / _DAY_S), 1.0
        return
    while at < until_unix_s:
        day = floor(at / _DAY_S)
        ends = min((day + 1) * _DAY_S, until_unix_s)
        yield day, (ends - at) / length_s
        at = ends


def period_of(limit: MeteredLimit, unix_s: float) -> tuple[float, float]:
    """Returns the Unix times at which the limit's present period begins and ends; -inf and inf without periods."""
    if not limit.every:
        return -inf, inf
    today = datetime.fromtimestamp(unix_s, UTC).date()
    days = period_days(limit.every)
    if days is None:
        begins, ends = _calendar_period(limit.every, today)
    else:
        first = date.fromisoformat(limit.starts) if limit.starts else _FIRST_MONDAY
        begins = today - timedelta(days=(today - first).days % days)
        ends = begins + timedelta(days=days)
    return _midnight(begins), _midnight(ends)


def _calendar_period(every: str, today: date) -> tuple[date, date]:
    if every == "day":
        return today, today + timedelta(days=1)
    if every == "week":
        monday = today - timedelta(days=today.weekday())
        return monday, monday + timedelta(days=7)
    months = 1 if every == "month" else 3
    first = (today.month - 1) // months * months + 1
    begins = date(today.year, first, 1)
    after = first + months
    return begins, date(today.year + 1, 1, 1) if after > 12 else date(today.year, after, 1)


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def team_keys(groups: Iterable[UserGroup]) -> Mapping[str, str]:
    """Returns the group of each user who is in one."""
    return {user: group.name for group in groups for user in group.users}
