"""The ledger of money: what attempts and rented machines cost, at the price of the time of use, and its sums.

An attempt pays for the part of the machine that it holds; two attempts on the same accelerators pay half each. A rented
machine is paid for as a whole from its request until it is gone, in whole billing steps and for at least its minimum;
what attempts do not use of it is charged to no project. A boot is paid for at the price in force when it ends, also
where the launch failed. Before a price changes, the open charges are written, so every row covers a time at one price;
rows are also cut where a month ends. A row is added in the transaction of the change and never changed again.

A spending report adds the charges that are written and those that are open, both as of one instant, so nothing is
counted twice or left out. The bill is the cost of the use of owned machines plus the rental of machines. Of a rented
machine, what attempts held is theirs; the rest was idle.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from math import inf

from scheduler.core.events import MoneyRestated
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.store_interface import MONEY_KEYS, MoneyQuery, MoneySum
from scheduler.live.store.table_rows import AttemptRow, ChargeKind, ChargeRow, RentRow
from walras.cluster import Market, NodeId, Placement, Pool, PoolId, billed_until, gang_usd_per_h, usd_of
from walras.contract import SECONDS_PER_HOUR
from walras.job_request import JobId
from walras.resources.money import MoneyReport, MoneyRow


def usd_per_h(
    pools: Mapping[PoolId, Pool], placement: Placement, sharers: int = 1, most_usd_per_h: float = inf
) -> float:
    """Returns USD per hour of a placement: the machines' prices, by accelerators held, divided among `sharers`
    attempts.

    `most_usd_per_h`: the most per accelerator-hour of a rented machine (`Ledger.most_usd_per_h`).
    """
    held = ((pools[pool_id], count) for pool_id, count in placement.by_pool.items() if pool_id in pools)
    return sum(gang_usd_per_h(pool, count, sharers, most_usd_per_h) for pool, count in held)


def attempt_usd(row: AttemptRow, at: float) -> float:
    """Returns USD that the attempt has cost until `at`, or in all once it has ended."""
    if row.ended_at is not None:
        return row.usd
    return row.usd + usd_of(row.usd_per_h, max(0.0, at - row.usd_since_at))


def accelerator_s(row: AttemptRow, at: float) -> float:
    """Returns accelerator-seconds that the attempt has held until `at`, or in all once it has ended."""
    return row.accelerators * max(0.0, (at if row.ended_at is None else row.ended_at) - row.leased_at)


# ------------------------------------------------------------------------------------------ attempts


def begin_charging(transaction: Transaction, job: LiveJob) -> None:
    """Begins to charge for the job's attempt; attempts that share its accelerators are charged less from now on."""
    assert job.attempt is not None
    for other in [job, *_colocated_jobs(transaction.state, job.attempt)]:
        _charge_attempt(transaction, other)
        _set_rate(transaction, other)


def end_charging(transaction: Transaction, job: LiveJob) -> None:
    """Charge the last stretch of the job's attempt; attempts that shared its accelerators pay more from now on."""
    assert job.attempt is not None
    _charge_attempt(transaction, job)
    job.attempt.row.usd_per_h = 0.0
    for other in _colocated_jobs(transaction.state, job.attempt):
        _charge_attempt(transaction, other)
        assert other.attempt is not None
        _set_rate(transaction, other, gone=job.attempt)


def _set_rate(transaction: Transaction, job: LiveJob, gone: LiveAttempt | None = None) -> None:
    attempt = job.attempt
    assert attempt is not None
    sharers = 1 + sum(other.attempt is not gone for other in _colocated_jobs(transaction.state, attempt))
    attempt.sharers = sharers
    ledger = transaction.core.ledger
    known = ledger.jobs.get(job.row.job_id)
    attempt.units = 0.0 if known is None else transaction.core.cycle.spending.share_units(known, sharers)
    most = inf if known is None else ledger.most_usd_per_h(known)
    attempt.row.usd_per_h = usd_per_h(transaction.state.pools, attempt.placement, sharers, most)
    transaction.attempt_changed(attempt)


def recall_units(transaction: Transaction) -> None:
    """After a start: set what each attempt holds, in accelerators of average speed, as the fresh core counts it."""
    core = transaction.core
    for job in transaction.state.jobs.values():
        known = core.ledger.jobs.get(job.row.job_id)
        if job.attempt is not None and known is not None and known.holds:
            sharers = 1 + len(_colocated_jobs(transaction.state, job.attempt))
            job.attempt.units = core.cycle.spending.share_units(known, sharers)


def _colocated_jobs(state: LiveState, attempt: LiveAttempt) -> list[LiveJob]:
    """Returns the other jobs whose attempts hold the same accelerators; attempts on several machines share none."""
    if len(attempt.placement.parts) != 1:
        return []
    part = attempt.placement.parts[0]
    found = []
    for job_id, _ in sorted(state.nodes[part.node_id].expected):
        job = state.jobs.get(job_id)
        if (
            job is not None
            and job.attempt is not None
            and job.attempt is not attempt
            and part in job.attempt.placement.parts
        ):
            found.append(job)
    return found


def _charge_attempt(transaction: Transaction, job: LiveJob) -> None:
    attempt = job.attempt
    assert attempt is not None
    for charge in _use_charges(transaction.state, job, transaction.at):
        _append_charge(transaction, charge)
        attempt.row.usd += charge.usd
    attempt.row.usd_since_at = max(attempt.row.usd_since_at, transaction.at)
    transaction.attempt_changed(attempt)


# ------------------------------------------------------------------------------------------ machines and prices


def machine_joined(transaction: Transaction, node: LiveNode) -> None:
    """Begin to charge a rented machine, its boot included; one that is charged already (after a restart) goes on."""
    if node.row.rent_token and node.row.billed_until_at is None:
        node.row.billed_until_at = paid_since(transaction.state, node)
        _charge_machine(transaction, node, transaction.at)
        transaction.node_changed(node)


def paid_since(state: LiveState, node: LiveNode) -> float:
    """Returns since when a rented machine is paid for: its request, which no provider's own count begins before."""
    rent = state.rents.get(node.row.rent_token) or state.past_rents.get(node.row.rent_token)
    return node.row.joined_at if rent is None else min(rent.asked_at, node.row.joined_at)


def boot_usd(state: LiveState, node: LiveNode) -> float:
    """Returns USD that a machine which joins now has cost since its request, at the present price; 0 if it is owned."""
    if not node.row.rent_token:
        return 0.0
    return usd_of(state.pools[node.row.pool_id].usd_per_h, node.row.joined_at - paid_since(state, node))


def launch_ended(transaction: Transaction, rent: RentRow, node_id: NodeId) -> None:
    """Charge a machine that ran and never joined, from its request until now, when it was given back."""
    pool = transaction.state.pool_of(rent.pool_id)
    template = _machine_charge(pool, node_id, rent.asked_at, billed_until(pool, rent.asked_at, transaction.at))
    for charge in _priced_by_month(transaction.state, template, pool):
        _append_charge(transaction, charge)


def machine_gone(transaction: Transaction, node: LiveNode) -> None:
    """Charge the last stretch of a rented machine that is gone, to the end of the billing step that has begun."""
    pool = transaction.state.pool_of(node.row.pool_id)
    _charge_machine(transaction, node, billed_until(pool, paid_since(transaction.state, node), transaction.at))


def pool_repriced(transaction: Transaction, pool: Pool) -> None:
    """Declare a pool, perhaps with another price: what is open is charged at the old price first."""
    state, before = transaction.state, transaction.state.pools.get(pool.pool_id)
    if before is not None and before.usd_per_h != pool.usd_per_h:
        # Pools of this shape in all markets: each row also states the on-demand price of its time.
        charge_open(transaction, {pool_id for pool_id, other in state.pools.items() if other.shape == pool.shape})
    state.pools[pool.pool_id] = pool
    for job in state.jobs.values():
        if job.attempt is not None and pool.pool_id in job.attempt.placement.by_pool:
            _set_rate(transaction, job)


def charge_open(transaction: Transaction, pools: Collection[PoolId]) -> None:
    """Write what is open until now in these pools."""
    for job in transaction.state.jobs.values():
        if job.attempt is not None and not job.attempt.placement.by_pool.keys().isdisjoint(pools):
            _charge_attempt(transaction, job)
    for node in transaction.state.nodes.values():
        if node.is_member and node.row.pool_id in pools:
            _charge_machine(transaction, node, transaction.at)


def _charge_machine(transaction: Transaction, node: LiveNode, until_at: float) -> None:
    if node.row.billed_until_at is None or not node.row.rent_token:
        return
    for charge in _machine_charges(transaction.state, node, until_at):
        _append_charge(transaction, charge)
    node.row.billed_until_at = max(node.row.billed_until_at, until_at)
    transaction.node_changed(node)


def restate_spending(transaction: Transaction) -> MoneyRestated:
    """Write what is open; returns the event that tells the core what each project spent, in all and this month."""
    charge_open(transaction, set(transaction.state.pools))
    state = transaction.state
    state.month = month_of(transaction.at + state.epoch_unix_s)
    spent = ((project, usd, state.spent_month_usd.get((project, state.month), 0.0))
             for project, usd in sorted(state.spent_usd.items()))  # fmt: skip
    state.spent_month_usd = {key: usd for key, usd in state.spent_month_usd.items() if key[1] == state.month}
    next_at = next_month_unix_s(transaction.at + state.epoch_unix_s) - state.epoch_unix_s
    budgets = state.budgets.stated(transaction.at, state.epoch_unix_s)
    return MoneyRestated(transaction.at, tuple(spent), _spent_by_users(state), next_at, budgets)


def _spent_by_users(state: LiveState) -> tuple[tuple[str, str, float, float], ...]:
    """Returns (project, user, USD in all, USD this month) of users with a budget."""
    found = []
    for project, user in state.users_with_budgets:
        theirs = {key: usd for key, usd in state.spent_user_usd.items() if key[1] == user and project in ("", key[0])}
        month_usd = sum(usd for (_, _, month), usd in theirs.items() if month == state.month)
        found.append((project, user, sum(theirs.values()), month_usd))
    return tuple(found)


def _append_charge(transaction: Transaction, charge: ChargeRow) -> None:
    state = transaction.state
    for account in accounts_charged(charge):
        state.spent_usd[account] = state.spent_usd.get(account, 0.0) + charge.usd
        key = account, charge.month
        state.spent_month_usd[key] = state.spent_month_usd.get(key, 0.0) + charge.usd
    if charge.kind is ChargeKind.USE:
        whose = charge.project, charge.user, charge.month
        state.spent_user_usd[whose] = state.spent_user_usd.get(whose, 0.0) + charge.usd
        state.budgets.add_charge(charge, state.epoch_unix_s)
    transaction.batch.put(replace(charge, charge_id=transaction.state.next_charge_id))
    transaction.state.next_charge_id += 1


def accounts_charged(charge: ChargeRow) -> tuple[str, ...]:
    """Returns the projects whose budgets the charge counts for.

    "" stands for the whole cluster, which counts the use of owned machines and the bills of rented ones.
    """
    if charge.kind is ChargeKind.MACHINE:
        return ("",)
    return (charge.project, "") if charge.market == Market.OWNED else (charge.project,)


# ------------------------------------------------------------------------------------------ what is open


def open_charges(state: LiveState, at: float) -> list[ChargeRow]:
    """Returns the charges for use that is not in the ledger yet; their numbers are 0."""
    found = [charge for job in state.jobs.values() for charge in _use_charges(state, job, at)]
    for node in state.nodes.values():
        if node.is_member:
            found.extend(_machine_charges(state, node, at))
    return found


def _use_charges(state: LiveState, job: LiveJob, until_at: float) -> Iterator[ChargeRow]:
    if job.attempt is None:
        return
    row, by_pool = job.attempt.row, job.attempt.placement.by_pool
    sharers = job.attempt.sharers or 1 + len(_colocated_jobs(state, job.attempt))
    for pool_id, held in by_pool.items():
        pool = state.pools[pool_id]
        # An attempt in several pools shares its accelerators with no other.
        rate = row.usd_per_h
        if len(by_pool) > 1:
            whole = usd_per_h(state.pools, job.attempt.placement)
            part = 1.0 if whole <= row.usd_per_h else row.usd_per_h / whole  # spare capacity: below the market price
            rate = pool.usd_per_h * held / pool.shape.accelerators * part
        template = ChargeRow(
            0, ChargeKind.USE, row.usd_since_at, until_at, rate, 0.0, 0.0, "",
            pool_id, pool.market.value, pool.shape.accelerator, held / sharers,
            NodeId(""), row.job_id, row.attempt, job.row.project, job.row.user,
            job.attempt.units * held / sum(by_pool.values()),
        )  # fmt: skip
        yield from _priced_by_month(state, template, pool)


def _machine_charges(state: LiveState, node: LiveNode, until_at: float) -> Iterator[ChargeRow]:
    if node.row.billed_until_at is None or not node.row.rent_token:
        return
    pool = state.pool_of(node.row.pool_id)
    yield from _priced_by_month(
        state, _machine_charge(pool, node.row.node_id, node.row.billed_until_at, until_at), pool
    )


def _machine_charge(pool: Pool, node_id: NodeId, since_at: float, until_at: float) -> ChargeRow:
    return ChargeRow(
        0, ChargeKind.MACHINE, since_at, until_at, pool.usd_per_h, 0.0, 0.0, "",
        pool.pool_id, pool.market.value, pool.shape.accelerator, float(pool.shape.accelerators),
        node_id, JobId(0), 0, "", "",
    )  # fmt: skip


def _priced_by_month(state: LiveState, template: ChargeRow, pool: Pool) -> Iterator[ChargeRow]:
    """Yields the charge cut where months end, with its cost and what the same would have cost on demand, USD."""
    listed = on_demand_usd_per_h(state, pool)
    for month, since_at, until_at in split_by_month(template.since_at, template.until_at, state.epoch_unix_s):
        hours = (until_at - since_at) / SECONDS_PER_HOUR
        usd = usd_of(template.usd_per_h, until_at - since_at)
        beside = usd if listed is None or pool.usd_per_h <= 0 else usd * listed / pool.usd_per_h
        if listed is not None and pool.usd_per_h <= 0 and pool.market is not Market.OWNED:
            beside = listed * template.accelerators / pool.shape.accelerators * hours
        yield replace(template, since_at=since_at, until_at=until_at, usd=usd, on_demand_usd=beside, month=month)


def on_demand_usd_per_h(state: LiveState, pool: Pool) -> float | None:
    """Returns USD per hour of the cheapest such machine on demand; None for owned pools, or where none rents it so."""
    if pool.market is Market.OWNED:
        return None
    same = (p.usd_per_h for p in state.pools.values() if p.market is Market.ON_DEMAND and p.shape == pool.shape)
    return min(same, default=None)


def month_of(unix_s: float) -> str:
    """Returns the month of a Unix time, UTC, such as 2026-11."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m")


def next_month_unix_s(unix_s: float) -> float:
    """Returns the Unix time at which the next month begins."""
    now = datetime.fromtimestamp(unix_s, UTC)
    year, month = (now.year, now.month + 1) if now.month < 12 else (now.year + 1, 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp()


def split_by_month(since_at: float, until_at: float, epoch_unix_s: float) -> Iterator[tuple[str, float, float]]:
    """Yields (month, since, until) for each month that a stretch of time touches; nothing for an empty stretch."""
    while since_at < until_at:
        unix_s = since_at + epoch_unix_s
        ends_at = max(next_month_unix_s(unix_s) - epoch_unix_s, since_at + 1e-6)
        yield month_of(unix_s), since_at, min(until_at, ends_at)
        since_at = ends_at


@dataclass(slots=True)
class _Sums:
    #: Use by attempts, USD: in all, on rented machines, and what both would have cost on demand.
    use_usd: float = 0.0
    rented_use_usd: float = 0.0
    use_on_demand_usd: float = 0.0
    rented_use_on_demand_usd: float = 0.0
    machines_usd: float = 0.0
    machines_on_demand_usd: float = 0.0
    accelerator_s: float = 0.0

    def include(self, other: "_Sums") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def add(self, part: MoneySum) -> None:
        if part.kind is ChargeKind.MACHINE:
            self.machines_usd += part.usd
            self.machines_on_demand_usd += part.on_demand_usd
            return
        self.use_usd += part.usd
        self.use_on_demand_usd += part.on_demand_usd
        self.accelerator_s += part.accelerator_s
        if not part.is_owned:
            self.rented_use_usd += part.usd
            self.rented_use_on_demand_usd += part.on_demand_usd


def sum_charges(charges: list[ChargeRow], query: MoneyQuery) -> list[MoneySum]:
    """Returns the sums of charges that the query asks for, as the store would return them."""
    found = []
    for charge in charges:
        if (query.month and charge.month != query.month) or (query.project and charge.project != query.project):
            continue
        if query.projects is not None and (charge.kind is ChargeKind.MACHINE or charge.project not in query.projects):
            continue
        held_s = charge.accelerators * (charge.until_at - charge.since_at)
        key = str(getattr(charge, MONEY_KEYS[query.by]))
        is_owned = charge.market == Market.OWNED
        found.append(MoneySum(key, charge.kind, is_owned, charge.usd, charge.on_demand_usd, held_s))
    return found


def spending_report(query: MoneyQuery, sums: list[MoneySum]) -> MoneyReport:
    """Returns the totals and a row by key: the `query.limit` most expensive in order, the others as one sum.

    Idle time of rented machines is in the rows by pool and by month; other keys do not say whose it is.
    """
    whole, rest, by_key, others = _Sums(), _Sums(), {}, 0  # type: ignore[var-annotated]
    for part in sums:
        whole.add(part)
        if part.kind is ChargeKind.USE or query.by in ("pool", "month"):
            (rest if part.others else by_key.setdefault(part.key, _Sums())).add(part)
            others = max(others, part.others)
    rows = [_money_row(key, each) for key, each in by_key.items()]
    rows.sort(key=lambda row: (-row.usd - row.idle_usd, row.key))
    for row in rows[query.limit :]:
        rest.include(by_key[row.key])
        others += 1
    sees_machines = query.projects is None and not query.project
    total = _money_row("", whole)
    return MoneyReport(
        by=query.by,
        items=rows[: query.limit],
        rest=_money_row("", rest) if others else None,
        rest_of=others,
        used_usd=whole.use_usd,
        idle_usd=total.idle_usd if sees_machines else 0.0,
        total_usd=whole.use_usd + (total.idle_usd if sees_machines else 0.0),
        on_demand_usd=total.on_demand_usd,
    )


def _money_row(key: str, sums: _Sums) -> MoneyRow:
    idle_usd, idle_on_demand_usd = 0.0, 0.0
    if sums.machines_usd or sums.machines_on_demand_usd:
        idle_usd = sums.machines_usd - sums.rented_use_usd
        idle_on_demand_usd = sums.machines_on_demand_usd - sums.rented_use_on_demand_usd
    return MoneyRow(
        key=key,
        accelerator_s=sums.accelerator_s,
        usd=sums.use_usd,
        idle_usd=0.0 if abs(idle_usd) < 1e-9 else idle_usd,
        on_demand_usd=sums.use_on_demand_usd + idle_on_demand_usd,
    )
