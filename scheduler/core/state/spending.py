"""Money and hours being spent, by account: the cluster, each project, and each user and job with its own budget.

An account is a sum until an instant, and a rate since then: starts, ends and prices change the rate, so accounting
costs only what changed. Budgets in hours, of groups, or with other periods have accounts too.

A job pays for its part of the machines that it holds, and uses hours of them. The cluster's account pays rented
machines whole, used or not, and owned machines for their use. This module meters and decides which jobs may start;
`handlers/budgets.py` acts on the accounts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from scheduler.core.budget_limits import (
    Budget,
    BudgetOwner,
    BudgetState,
    BudgetUnit,
    MeteredLimit,
    UserGroup,
    is_plain,
    metered_limits,
)
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord, Ledger
from walras.cluster import Market, Pool, billed_until, gang_usd_per_h, usd_of
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId, JobRequest
from walras.states import JobState
from walras.units import format_amount

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
        limits = "; ".join(
            f"{whose}: {format_amount(used)} of {format_amount(limit)} {unit} {verb}{of}" for used, limit, of in spent
        )
        if not self.payees:
            return limits
        stopping = f"stopping it may {'cost' if is_money else 'take'} {format_amount(committed)} {unit}"
        return f"{limits}; {format_amount(self.per_h)} {rate}, {stopping}"

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


#: Stopping a job takes at most its grace, the notice of its machines and these seconds; their cost is reserved.
STOP_MARGIN_S = 60.0
#: Name of the cluster's account.
EVERYTHING = ""


class SpendingMeter:
    """The accounts, and which jobs may not start because of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.everything = SpendingAccount(EVERYTHING)
        self._projects: dict[str, SpendingAccount] = {}
        #: Accounts of users with a budget, by (project, user); project "" is their account over all projects.
        self._users: dict[tuple[str, str], SpendingAccount] = {}
        #: When monthly budgets are refilled; inf: unknown.
        self.next_month_at = inf
        self._jobs: dict[JobId, SpendingAccount] = {}
        self._pays: dict[JobId, JobPayment] = {}
        #: Accounts of limits in hours, of groups, or with other periods.
        self.metered = MeteredAccounts()
        self._rented: dict[int, MachineBill] = {}
        #: Jobs held because of a budget.
        self.held: set[JobId] = set()
        self._touched: dict[int, SpendingAccount] = {}
        self._due: list[tuple[float, int, SpendingAccount]] = []
        self._pushed = 0
        self._is_limited = False

    # ---------------------------------------------------------------- limits

    def set_budgets(self, budgets: Iterable[Budget], groups: Iterable[UserGroup] = ()) -> None:
        """Replaces the budgets, except those of jobs."""
        for _, account in self._owned_money():
            account.limit = account.month_limit = inf
            self._touch(account)
        limits = list(metered_limits(budgets)) if (budgets := tuple(budgets)) else []
        for limit in limits:
            if not is_plain(limit):
                continue
            account = self._account(limit.owner)
            if limit.every:
                account.month_limit = limit.amount
            else:
                account.limit = limit.amount
            account.warn_at, account.warned = limit.warn_at, False
            self._touch(account)
        self.metered.set_limits(limits, groups, self._ledger.now)
        self._is_limited |= bool(limits)
        if self.metered.accounts:
            self._pay_metered()

    def _account(self, owner: BudgetOwner) -> SpendingAccount:
        if owner.user:
            return self._user(owner.project, owner.user)
        return self._project(owner.project) if owner.project else self.everything

    def _pay_metered(self) -> None:
        """Lets running jobs pay into new accounts; some of them have cost nothing so far."""
        for account in self.metered.accounts.values():
            self._touch(account)
        for job in self._ledger:
            if not job.holds:
                continue
            pays = self._pays.get(job.job_id)
            if pays is None:
                self.started(job)
                continue
            for account in self.metered.of(job.request):
                account.pay(self._ledger.now, *pays.of(account.unit), 1)

    def restate(
        self,
        spent: Iterable[tuple[str, float, float]],
        users: Iterable[tuple[str, str, float, float]] = (),
        budgets: Iterable[BudgetState] = (),
    ) -> None:
        """Sets the sums from the shell's accounts: (project, USD in total, this month); 0 for projects not named.

        `users` are (project, user, USD in total, USD this month). `budgets` are limits with other units or periods, and
        credits.
        """
        by_user = {(project, user): (usd, month_usd) for project, user, usd, month_usd in users}
        for key, account in self._users.items():
            self._restate(account, by_user.get(key, (0.0, 0.0)))
        books = {project: (usd, month_usd) for project, usd, month_usd in spent}
        for project in books:
            self._project(project)
        for account in (self.everything, *self._projects.values()):
            self._restate(account, books.get(account.name, (0.0, 0.0)))
        told = list(budgets)
        for state in told:
            if state.unit is BudgetUnit.USD and not state.owner.group and state.every == "":
                self._account(state.owner).credit = state.credit
            elif state.unit is BudgetUnit.USD and not state.owner.group and state.every == "month":
                self._account(state.owner).month_credit = state.credit
        self.metered.restate(told, self._ledger.now)
        for account in self.metered.accounts.values():
            self._touch(account)

    def _restate(self, account: SpendingAccount, spent: tuple[float, float]) -> None:
        account.settle(self._ledger.now)
        usd, month_usd = spent
        account.used, account.used_before_month, account.warned = usd, usd - month_usd, False
        account.credit = account.month_credit = 0.0
        self._touch(account)

    def stated(self, at: float) -> tuple[tuple[str, float, float], ...]:
        """Returns the sums that `restate` would need at this instant; changes nothing."""
        accounts = (self.everything, *self._projects.values())
        return tuple((each.name, used := each.used_by(at), used - each.used_before_month) for each in accounts)

    def stated_of_users(self, at: float) -> tuple[tuple[str, str, float, float], ...]:
        """Returns the users' sums in the form that `restate` takes: (project, user, USD in total, USD this month)."""
        return tuple(
            (project, user, used := each.used_by(at), used - each.used_before_month)
            for (project, user), each in self._users.items()
        )

    def stated_budgets(self, at: float) -> tuple[BudgetState, ...]:
        """Returns limits with other units or periods, and credits, that `restate` would need."""
        plain = [
            BudgetState(owner, BudgetUnit.USD, every, 0.0, credit)
            for owner, account in self._owned_money()
            for every, credit in (("", account.credit), ("month", account.month_credit))
            if credit
        ]
        return (*plain, *self.metered.stated(at))

    def _owned_money(self) -> Iterator[tuple[BudgetOwner, SpendingAccount]]:
        yield BudgetOwner(), self.everything
        yield from ((BudgetOwner(name), account) for name, account in self._projects.items())
        yield from ((BudgetOwner(*key), account) for key, account in self._users.items())

    def owned_accounts(self) -> Iterator[tuple[BudgetOwner, SpendingAccount]]:
        """Yields every account except those of jobs, with its owner."""
        yield from self._owned_money()
        yield from ((owner, account) for (owner, _, _), account in self.metered.accounts.items())

    def take_job(self, job: JobRecord, spent_usd: float = 0.0) -> None:
        """Adds a job: its own budget, if it has one, and whether it may start."""
        if job.request.budget_usd < inf:
            self.limit_job(job, spent_usd)
        job.over_budget = self.closed_to(job) is not None

    def limit_job(self, job: JobRecord, spent_usd: float) -> None:
        """Sets the job's budget as its request states it. `spent_usd` is its cost so far, if it had none before."""
        account = self._jobs.get(job.job_id)
        if account is None:
            account = SpendingAccount(f"job {job.job_id}", used=spent_usd, settled_at=self._ledger.now, is_of_job=True)
            self._jobs[job.job_id] = account
            pays = self._pays.get(job.job_id)
            if pays is not None:
                account.pay(self._ledger.now, pays.usd_per_h, pays.committed_usd, 1)
        account.settle(self._ledger.now)
        account.limit, account.warned = job.request.budget_usd, False
        self._is_limited = True
        self._touch(account)

    def forget_job(self, job: JobRecord) -> None:
        self.held.discard(job.job_id)
        account = self._jobs.pop(job.job_id, None)
        if account is not None:
            self._touched.pop(id(account), None)
            account.due_at = inf

    # ---------------------------------------------------------------- what is paid for

    def started(self, job: JobRecord) -> None:
        """Begins to charge a job that holds a place; jobs that share the place pay less."""
        if self._is_free(job):
            return
        self._pay(job)
        for other in self._sharing(job):
            self._pay(other)

    def ended(self, job: JobRecord) -> None:
        """Ends charging a job that has returned its place."""
        if job.job_id not in self._pays:
            return
        self._stop_paying(job)
        for other in self._sharing(job):
            self._pay(other)

    def repriced(self, pool: int) -> None:
        """Applies a new market price to the machines of a pool."""
        free = [job.job_id for job in self._ledger if job.holds and job.job_id not in self._pays]
        for job_id in (*self._pays, *free):
            job = self._ledger.jobs[job_id]
            if any(row == pool for row, _ in self._ledger.parts_of(job)):
                self._pay(job)
                for other in self._sharing(job):
                    self._pay(other)
        price = self._ledger.fleet.pools[pool].pool.usd_per_h
        for machine in self._rented.values():
            if machine.pool == pool:
                self.everything.pay(self._ledger.now, price - machine.usd_per_h, 0.0, 0)
                machine.usd_per_h = price
        self._touch(self.everything)

    def machine_joined(self, machine: FleetMachine, paid_usd: float = 0.0) -> None:
        """Begins to charge a rented machine. `paid_usd` is what was paid for it until now."""
        pool = self._ledger.fleet.pools[machine.pool].pool
        if not machine.token:
            return
        self._rented[machine.row] = MachineBill(machine.pool, pool.usd_per_h, machine.paid_since)
        self.everything.used += paid_usd
        self.everything.pay(self._ledger.now, pool.usd_per_h, 0.0, 1)
        self._touch(self.everything)

    def machine_gone(self, machine: FleetMachine) -> None:
        """Ends charging a machine; its minimum and the billing step that has begun are paid all the same."""
        rented = self._rented.pop(machine.row, None)
        if rented is None:
            return
        self.everything.pay(self._ledger.now, -rented.usd_per_h, 0.0, -1)
        self.everything.used += self._begun_usd(rented)
        self._touch(self.everything)

    def _is_free(self, job: JobRecord) -> bool:
        """Returns whether its place costs nothing, so that no account is affected."""
        fleet = self._ledger.fleet
        if self.metered.counts_hours:
            return False
        parts = self._ledger.parts_of(job) if fleet.has_prices else ()
        return not any(fleet.pools[row].pool.usd_per_h for row, _ in parts)

    def _sharing(self, job: JobRecord) -> list[JobRecord]:
        """Returns other jobs that hold the same accelerators of the one machine."""
        if job.placement is None or len(job.placement.parts) != 1:
            return []
        machine = self._ledger.fleet.machine(job.placement.parts[0].node_id)
        if machine is None:
            return []
        devices = job.placement.parts[0].devices
        others = (self._ledger.jobs.get(job_id) for job_id, held in machine.holders.items() if held == devices)
        return [other for other in others if other is not None and other is not job and other.job_id in self._pays]

    def _pay(self, job: JobRecord) -> None:
        """Charges the job per hour as it is placed now."""
        self._stop_paying(job)
        assert job.placement is not None
        usd_per_h = committed_usd = owned_usd_per_h = 0.0
        ledger = self._ledger
        most, parts = ledger.most_usd_per_h(job), ledger.parts_of(job)
        sharers, held, longest_s = 1 + len(self._sharing(job)), 0.0, 0.0
        for row, count in parts:
            pool = ledger.fleet.pools[row].pool
            price = gang_usd_per_h(pool, count, sharers, most)
            stop_s = job.request.grace_s + pool.notice_s + STOP_MARGIN_S
            held, longest_s = held + count / sharers, max(longest_s, stop_s)
            usd_per_h += price
            committed_usd += usd_of(price, stop_s)
            owned_usd_per_h += price if pool.market is Market.OWNED else 0.0
        units, stop_h = self.share_units(job, sharers), longest_s / SECONDS_PER_HOUR
        pays = JobPayment(usd_per_h, committed_usd, owned_usd_per_h, held, units, stop_h)
        self._pays[job.job_id] = pays
        self._add(job, pays, 1)

    def share_units(self, job: JobRecord, sharers: int) -> float:
        """Returns what the job holds in accelerators of the fleet's average speed for it; spot counts by its factor."""
        ledger, parts = self._ledger, self._ledger.parts_of(job)
        plain = sum(count for _, count in parts)
        counted = sum(count * ledger.usage.factor(ledger.fleet.pools[row]) for row, count in parts)
        return ledger.units_of(job, parts) * counted / plain / sharers if plain else 0.0

    def _stop_paying(self, job: JobRecord) -> None:
        pays = self._pays.pop(job.job_id, None)
        if pays is not None:
            self._add(job, pays, -1)

    def _add(self, job: JobRecord, pays: JobPayment, sign: int) -> None:
        for account in self.accounts_of(job):
            per_h, committed = pays.of(account.unit)
            per_h = pays.owned_usd_per_h if account is self.everything else per_h
            account.pay(self._ledger.now, sign * per_h, sign * committed, sign)
            self._touch(account)

    # ---------------------------------------------------------------- who may start

    def accounts_of(self, job: JobRecord) -> Iterator[SpendingAccount]:
        yield self.everything
        yield self._project(job.request.project)
        if self._users:
            found = (self._users.get((project, job.request.user)) for project in ("", job.request.project))
            yield from (account for account in found if account is not None)
        if self.metered.accounts:
            yield from self.metered.of(job.request)
        own = self._jobs.get(job.job_id)
        if own is not None:
            yield own

    def closed_to(self, job: JobRecord) -> SpendingAccount | None:
        """Returns the account because of which the job may not start; None if there is none."""
        if not self._is_limited:
            return None
        return next((account for account in self.accounts_of(job) if account.closed), None)

    def members(self, account: SpendingAccount) -> list[JobRecord]:
        """Returns the active jobs that pay into an account."""
        jobs = self._ledger.jobs
        if account is self.everything:
            return list(jobs.values())
        if any(each is account for each in self.metered.accounts.values()):
            return self.metered.payers(account, jobs.values())
        if (of_user := next((key for key, each in self._users.items() if each is account), None)) is not None:
            return [job for job in jobs.values() if _is_of_user(job, of_user)]
        own = next((job_id for job_id, each in self._jobs.items() if each is account), None)
        if own is not None:
            return [jobs[own]]
        return [job for job in jobs.values() if job.request.project == account.name]

    def committed(self, account: SpendingAccount) -> float:
        """Returns what stopping all jobs of an account would still use; for the cluster with its rented machines."""
        if account is not self.everything:
            return account.committed
        begun = sum(self._begun_usd(each) for each in self._rented.values())
        coming = sum(
            sum(state.awaited.values()) * _least_usd(state.pool) for state in self._ledger.fleet.pools if state.awaited
        )
        return account.committed + begun + coming

    def _begun_usd(self, rented: MachineBill) -> float:
        """Returns what is still paid for a machine if it is returned now, USD."""
        pool, now = self._ledger.fleet.pools[rented.pool].pool, self._ledger.now
        return usd_of(rented.usd_per_h, max(0.0, billed_until(pool, rented.since_at, now) - now))

    def spent_now(self, account: SpendingAccount) -> list[tuple[float, float, str]]:
        """Returns (used, limit, of what) as of now. It settles nothing: a question must not change later figures."""
        since = usd_of(account.per_h, max(0.0, self._ledger.now - account.settled_at))
        return [(used + since, limit, of) for used, limit, of in account.limits()]

    def check(self, account: SpendingAccount) -> bool:
        """Closes or opens an account by what is spent and committed. Returns whether that changed."""
        account.settle(self._ledger.now)
        room = account.room
        closed = account.is_limited and (room <= NOTHING_USED or room < self.committed(account))
        if closed is account.closed:
            return False
        account.closed = closed
        for job in self.members(account):
            if job.state is JobState.PENDING and not job.holds:
                job.over_budget = self.closed_to(job) is not None
                self._ledger.set_eligible(job)
        return True

    def close_full(self) -> None:
        """Closes accounts that a start has just filled, before the next start."""
        if self._is_limited:
            for account in list(self._touched.values()):
                if account.is_limited and not account.closed:
                    self.check(account)

    # ---------------------------------------------------------------- what changed

    @property
    def has_news(self) -> bool:
        """Returns whether something must be checked: an account changed, its time has come, or it is closed."""
        return bool(self._touched or self.everything.closed or (self._due and self._due[0][0] <= self._ledger.now))

    def take_changed(self) -> list[SpendingAccount]:
        """Returns the accounts that changed, by an event or by time, and forgets the changes."""
        now = self._ledger.now
        while self._due and self._due[0][0] <= now:
            at, _, account = heappop(self._due)
            if account.due_at == at:
                account.due_at = inf
                self._touch(account)
        changed, self._touched = list(self._touched.values()), {}
        return changed

    def set_due(self, account: SpendingAccount) -> float:
        """Returns when a settled account reaches its next warning or limit at the present rate; inf if never."""
        due_at = inf
        if account.per_h > 0:
            for spent, limit, _ in account.limits():
                marks = (limit,) if account.warned else (account.warn_at * limit, limit)
                ahead = [mark - spent for mark in marks if mark - spent > NOTHING_USED]
                if ahead:
                    due_at = min(due_at, self._ledger.now + min(ahead) / account.per_h * SECONDS_PER_HOUR)
        if due_at != account.due_at:
            account.due_at = due_at
            if due_at < inf:
                self._pushed += 1
                heappush(self._due, (due_at, self._pushed, account))
        return due_at

    def _touch(self, account: SpendingAccount) -> None:
        self._touched[id(account)] = account

    def _project(self, name: str) -> SpendingAccount:
        account = self._projects.get(name)
        if account is None:
            account = self._projects[name] = SpendingAccount(name, settled_at=self._ledger.now)
        return account

    def _user(self, project: str, user: str) -> SpendingAccount:
        """Returns the account of a user with a budget; makes it if new, and lets running jobs pay into it."""
        account = self._users.get((project, user))
        if account is None:
            name = f"user {user} in project {project}" if project else f"user {user}"
            account = self._users[project, user] = SpendingAccount(name, settled_at=self._ledger.now)
            for job_id, pays in self._pays.items():
                if _is_of_user(self._ledger.jobs[job_id], (project, user)):
                    account.pay(self._ledger.now, pays.usd_per_h, pays.committed_usd, 1)
        return account


def _is_of_user(job: JobRecord, key: tuple[str, str]) -> bool:
    project, user = key
    return job.request.user == user and project in ("", job.request.project)


def _least_usd(pool: Pool) -> float:
    """Returns what a requested machine costs at least, USD."""
    return usd_of(pool.usd_per_h, billed_until(pool, 0.0, max(pool.boot_s, pool.minimum_billing_s) + STOP_MARGIN_S))
