"""Accounts of money or hours: a sum until an instant, and a rate since then.

Starts, ends and prices change the rate, so accounting costs only what changed. `spending.py` decides what is paid into
which account; this module has the accounts, and those of budgets in hours, of groups, or with other periods.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from scheduler.core.budget_limits import BudgetOwner, BudgetState, BudgetUnit, MeteredLimit, UserGroup, is_plain
from scheduler.core.state.ledger import JobRecord
from walras.cluster import usd_of
from walras.job_request import JobRequest

#: Amounts below this count as zero, USD or hours.
NOTHING_USED = 1e-6


@dataclass(slots=True)
class SpendingAccount:
    """Use by the cluster, a project, a user, a group or a job, in one unit."""

    name: str
    limit: float = inf
    month_limit: float = inf
    #: Credits added to these limits.
    credit: float = 0.0
    month_credit: float = 0.0
    #: Fraction of a limit at which people are warned.
    warn_at: float = 0.8
    #: Amount used until `settled_at`, the part of it used before this month, and the rate per hour since then.
    used: float = 0.0
    used_before_month: float = 0.0
    per_h: float = 0.0
    settled_at: float = 0.0
    #: What stopping all running jobs would still use.
    committed: float = 0.0
    #: Number of things paid for; if it is 0, the rate is set to 0 exactly, despite rounding of sums.
    payees: int = 0
    #: Whether no job of it may start.
    closed: bool = False
    warned: bool = False
    #: Whether it is the budget of one job.
    is_of_job: bool = False
    unit: BudgetUnit = BudgetUnit.USD
    #: Period after which `used` begins at 0 again (empty: never), next at `refills_at`.
    every: str = ""
    refills_at: float = inf
    #: Next instant at which the account changes by itself.
    due_at: float = inf

    @property
    def is_limited(self) -> bool:
        return self.limit < inf or self.month_limit < inf

    def settle(self, at: float) -> None:
        if at > self.settled_at:
            self.used += usd_of(self.per_h, at - self.settled_at)
            self.settled_at = at

    def used_by(self, at: float) -> float:
        """Returns what will have been used at `at` at the present rate; changes nothing."""
        return self.used + usd_of(self.per_h, max(at - self.settled_at, 0.0))

    def pay(self, at: float, per_h: float, committed: float, payees: int) -> None:
        """Raises the rate per hour from now on (lowers it, if negative)."""
        self.settle(at)
        self.payees += payees
        self.per_h += per_h
        self.committed += committed
        if not self.payees:
            self.per_h = self.committed = 0.0

    def limits(self) -> Iterator[tuple[float, float, str]]:
        """Yields (used, limit, of what) of each limit. Settle first."""
        if self.limit < inf:
            named = self.every.isalpha()
            yield self.used, self.limit + self.credit, f" this {self.every}" if named else self._of_length()
        if self.month_limit < inf:
            yield self.used - self.used_before_month, self.month_limit + self.month_credit, " this month"

    def _of_length(self) -> str:
        return f" in these {self.every}" if self.every else ""

    def text(self, spent: Iterable[tuple[float, float, str]], committed: float) -> str:
        """Returns the account's limits as a sentence.

        Args:
            spent: the result of `limits` now.
            committed: largest cost of stopping what runs now, in the account's unit.
        """
        whose, unit, is_money = self.name or "the cluster", self.unit.words, self.unit is BudgetUnit.USD
        verb, rate = ("spent", "USD/h is running") if is_money else ("used", f"{unit} are used an hour")
        limits = (f"{whose}: {used:.2f} of {limit:.2f} {unit} {verb}{of}" for used, limit, of in spent)
        stopping = f"stopping it may {'cost' if is_money else 'take'} {committed:.2f} {unit}"
        return f"{'; '.join(limits)}; {self.per_h:.2f} {rate}, {stopping}"

    @property
    def room(self) -> float:
        """Returns what may still be used. Settle first."""
        return min((limit - used for used, limit, _ in self.limits()), default=inf)

    @property
    def is_exhausted(self) -> bool:
        return self.room <= NOTHING_USED


@dataclass(frozen=True, slots=True)
class JobPayment:
    """What one job uses per hour, and what of it the cluster's account sees (which pays rented machines whole)."""

    usd_per_h: float
    committed_usd: float
    owned_usd_per_h: float
    #: Accelerators held; the same in accelerators of the fleet's average speed for the job; hours that stopping takes.
    accelerators: float
    units: float
    stop_h: float

    def of(self, unit: BudgetUnit) -> tuple[float, float]:
        """Returns the rate per hour and what stopping uses, in a unit."""
        if unit is BudgetUnit.USD:
            return self.usd_per_h, self.committed_usd
        held = self.accelerators if unit is BudgetUnit.ACCELERATOR_H else self.units
        return held, held * self.stop_h


@dataclass(slots=True)
class MachineBill:
    """What the cluster's account pays for a machine."""

    pool: int
    usd_per_h: float
    since_at: float


@dataclass(slots=True)
class MeteredAccounts:
    """Accounts of limits that plain accounts of money do not cover, and which jobs pay into which."""

    accounts: dict[tuple[BudgetOwner, BudgetUnit, str], SpendingAccount] = field(default_factory=dict)
    _members: dict[str, frozenset[str]] = field(default_factory=dict)
    #: Cache of `of` by (project, user).
    _known: dict[tuple[str, str], tuple[SpendingAccount, ...]] = field(default_factory=dict)

    def set_limits(self, limits: Iterable[MeteredLimit], groups: Iterable[UserGroup], at: float) -> None:
        """Replaces the limits. Amounts used stay; rates are reset, so the caller must charge running jobs again."""
        self._members = {each.name: frozenset(each.users) for each in groups}
        self._known = {}
        for account in self.accounts.values():
            account.settle(at)
            account.limit, account.per_h, account.committed, account.payees = inf, 0.0, 0.0, 0
        for limit in limits:
            if is_plain(limit):
                continue
            account = self.accounts.get(limit.key) or SpendingAccount(limit.owner.words, settled_at=at)
            account.unit, account.every, account.warned = limit.unit, limit.every, False
            account.limit, account.warn_at = limit.amount, limit.warn_at
            self.accounts[limit.key] = account

    def of(self, request: JobRequest) -> tuple[SpendingAccount, ...]:
        """Returns the accounts that a job's spending counts towards."""
        who = request.project, request.user
        if who not in self._known:
            self._known[who] = tuple(
                account for (owner, _, _), account in self.accounts.items() if self._is_of(request, owner)
            )
        return self._known[who]

    def payers(self, account: SpendingAccount, jobs: Iterable[JobRecord]) -> list[JobRecord]:
        """Returns the jobs that pay into one of them."""
        return [job for job in jobs if any(each is account for each in self.of(job.request))]

    def restate(self, states: Iterable[BudgetState], at: float) -> None:
        """Sets the sums by the shell's accounts; 0 for limits that are not named."""
        by_key = {(each.owner, each.unit, each.every): each for each in states}
        for key, account in self.accounts.items():
            account.settle(at)
            told = by_key.get(key)
            account.used = account.credit = 0.0
            account.refills_at = inf
            if told is not None:
                account.used, account.credit, account.refills_at = told.used, told.credit, told.refills_at
            account.warned = account.warned and account.used >= account.warn_at * (account.limit + account.credit)

    def stated(self, at: float) -> Iterator[BudgetState]:
        """Yields the states that `restate` would need at this instant; changes nothing."""
        for (owner, unit, every), account in self.accounts.items():
            if not account.is_limited:
                continue
            yield BudgetState(owner, unit, every, account.used_by(at), account.credit, account.refills_at)

    @property
    def counts_hours(self) -> bool:
        """Returns whether a limit is in hours, so that accelerators without a price count too."""
        return any(unit is not BudgetUnit.USD for _, unit, _ in self.accounts)

    def _is_of(self, request: JobRequest, owner: BudgetOwner) -> bool:
        if owner.project not in ("", request.project) or owner.user not in ("", request.user):
            return False
        return not owner.group or request.user in self._members.get(owner.group, ())
