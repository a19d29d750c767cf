"""The ledger of money: what attempts and rented machines cost, at the price of the time of use.

An attempt pays the part of the machine that it holds; two attempts on the same accelerators pay half each. A rented
machine is paid for as a whole from its request until it is gone, in whole billing steps and at least its minimum; what
attempts do not use of it is nobody's. A boot is paid at the price when it ended, by launches that came to nothing too.
Whatever changes a price closes the charges that are open first, so every row is a stretch at one price; it is also cut
where a month ends. Rows are added in the transaction of the change and never touched again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from scheduler.core.books import MoneyRestated
from scheduler.live.records.rows import AttemptRow, ChargeKind, ChargeRow, RentRow
from scheduler.live.turns.board import Board, LiveAttempt, LiveJob, LiveNode
from scheduler.live.turns.turn import Turn
from walras.cluster import Market, Placement, Pool, billed_until
from walras.ids import JobId, NodeId, PoolId

_HOUR_S = 3600.0


def usd_per_h(pools: Mapping[PoolId, Pool], placement: Placement, sharers: int = 1) -> float:
    """An hour of this placement, USD: machines' prices, shared by accelerators, and by those on the same ones."""
    held = ((pools[pool_id], count) for pool_id, count in placement.by_pool.items() if pool_id in pools)
    return sum(pool.usd_per_h * count / pool.shape.accelerators / sharers for pool, count in held)


def usd_until(row: AttemptRow, at: float) -> float:
    """The cost of an attempt so far (all of it, once it has ended)."""
    if row.ended_at is not None:
        return row.usd
    return row.usd + row.usd_per_h * max(0.0, at - row.usd_since_at) / _HOUR_S


def accelerator_s(row: AttemptRow, at: float) -> float:
    """Accelerator-seconds held so far."""
    return row.accelerators * max(0.0, (at if row.ended_at is None else row.ended_at) - row.leased_at)


# ------------------------------------------------------------------------------------------ attempts


def begin(turn: Turn, job: LiveJob) -> None:
    """An attempt begins to pay; who shares its accelerators pays less from now on."""
    assert job.attempt is not None
    for other in [job, *_beside(turn.board, job.attempt)]:
        _charge_attempt(turn, other)
        _set_rate(turn, other)


def end(turn: Turn, job: LiveJob) -> None:
    """An attempt is over: its last stretch is charged, and who shared its accelerators has them alone."""
    assert job.attempt is not None
    _charge_attempt(turn, job)
    job.attempt.row.usd_per_h = 0.0
    for other in _beside(turn.board, job.attempt):
        _charge_attempt(turn, other)
        assert other.attempt is not None
        _set_rate(turn, other, gone=job.attempt)


def _set_rate(turn: Turn, job: LiveJob, gone: LiveAttempt | None = None) -> None:
    attempt = job.attempt
    assert attempt is not None
    sharers = 1 + sum(other.attempt is not gone for other in _beside(turn.board, attempt))
    attempt.row.usd_per_h = usd_per_h(turn.board.pools, attempt.placement, sharers)
    turn.attempt_changed(attempt)


def _beside(board: Board, attempt: LiveAttempt) -> list[LiveJob]:
    """Jobs whose attempts hold the same accelerators of the one machine."""
    if len(attempt.placement.parts) != 1:
        return []
    part = attempt.placement.parts[0]
    found = []
    for job_id, _ in sorted(board.nodes[part.node_id].expected):
        job = board.jobs.get(job_id)
        if (
            job is not None
            and job.attempt is not None
            and job.attempt is not attempt
            and part in job.attempt.placement.parts
        ):
            found.append(job)
    return found


def _charge_attempt(turn: Turn, job: LiveJob) -> None:
    attempt = job.attempt
    assert attempt is not None
    for charge in _use(turn.board, job, turn.at):
        _write(turn, charge)
        attempt.row.usd += charge.usd
    attempt.row.usd_since_at = max(attempt.row.usd_since_at, turn.at)
    turn.attempt_changed(attempt)


# ------------------------------------------------------------------------------------------ machines and prices


def machine_joined(turn: Turn, node: LiveNode) -> None:
    """A rented machine is paid for, its boot too (one that a restarted server knows already goes on)."""
    if node.row.rent_token and node.row.billed_until_at is None:
        node.row.billed_until_at = paid_since(turn.board, node)
        _charge_machine(turn, node, turn.at)
        turn.node_changed(node)


def paid_since(board: Board, node: LiveNode) -> float:
    """Since when a rented machine is paid for: its request, which no provider's own beginning is before."""
    rent = board.rents.get(node.row.rent_token) or board.past_rents.get(node.row.rent_token)
    return node.row.joined_at if rent is None else min(rent.asked_at, node.row.joined_at)


def boot_usd(board: Board, node: LiveNode) -> float:
    """What a rented machine has cost that joins now, at its price of now."""
    if not node.row.rent_token:
        return 0.0
    return board.pools[node.row.pool_id].usd_per_h * (node.row.joined_at - paid_since(board, node)) / _HOUR_S


def launch_ended(turn: Turn, rent: RentRow, node_id: NodeId) -> None:
    """A machine ran and never joined: it is paid for from its request until now, when it was given back."""
    pool = turn.board.pools[rent.pool_id]
    template = _machine_row(pool, node_id, rent.asked_at, billed_until(pool, rent.asked_at, turn.at))
    for charge in _stretches(turn.board, template, pool):
        _write(turn, charge)


def machine_gone(turn: Turn, node: LiveNode) -> None:
    """A rented machine is gone, or given back (at last): the last stretch, to the end of what was begun to be paid."""
    pool = turn.board.pools[node.row.pool_id]
    _charge_machine(turn, node, billed_until(pool, paid_since(turn.board, node), turn.at))


def pool_repriced(turn: Turn, pool: Pool) -> None:
    """The market asks another price: what is open is charged at the old one, then `pool` is the board's."""
    board, before = turn.board, turn.board.pools.get(pool.pool_id)
    if before is not None and before.usd_per_h != pool.usd_per_h:
        # Of its shape in all markets: each row also says what the same would have cost on demand then.
        charge_open(turn, {pool_id for pool_id, other in board.pools.items() if other.shape == pool.shape})
    board.pools[pool.pool_id] = pool
    for job in board.jobs.values():
        if job.attempt is not None and pool.pool_id in job.attempt.placement.by_pool:
            _set_rate(turn, job)


def charge_open(turn: Turn, pools: Collection[PoolId]) -> None:
    """Write what is open until now in these pools."""
    for job in turn.board.jobs.values():
        if job.attempt is not None and not job.attempt.placement.by_pool.keys().isdisjoint(pools):
            _charge_attempt(turn, job)
    for node in turn.board.nodes.values():
        if node.is_member and node.row.pool_id in pools:
            _charge_machine(turn, node, turn.at)


def _charge_machine(turn: Turn, node: LiveNode, until_at: float) -> None:
    if node.row.billed_until_at is None or not node.row.rent_token:
        return
    for charge in _machine(turn.board, node, until_at):
        _write(turn, charge)
    node.row.billed_until_at = max(node.row.billed_until_at, until_at)
    turn.node_changed(node)


def restate(turn: Turn) -> MoneyRestated:
    """Write what is open, and say what was spent by project in all and in the month of now."""
    charge_open(turn, set(turn.board.pools))
    board = turn.board
    board.month = month_of(turn.at + board.epoch_unix_s)
    spent = ((project, usd, board.spent_month_usd.get((project, board.month), 0.0))
             for project, usd in sorted(board.spent_usd.items()))  # fmt: skip
    board.spent_month_usd = {key: usd for key, usd in board.spent_month_usd.items() if key[1] == board.month}
    return MoneyRestated(turn.at, tuple(spent))


def _write(turn: Turn, charge: ChargeRow) -> None:
    board = turn.board
    for account in accounts_of(charge):
        board.spent_usd[account] = board.spent_usd.get(account, 0.0) + charge.usd
        key = account, charge.month
        board.spent_month_usd[key] = board.spent_month_usd.get(key, 0.0) + charge.usd
    turn.batch.charges.append(replace(charge, charge_id=turn.board.next_charge_id))
    turn.board.next_charge_id += 1


def accounts_of(charge: ChargeRow) -> tuple[str, ...]:
    """Budgets that a charge counts for: its project's, and everything's ("") unless a machine's bill has it already."""
    if charge.kind is ChargeKind.MACHINE:
        return ("",)
    return (charge.project, "") if charge.market == Market.OWNED else (charge.project,)


# ------------------------------------------------------------------------------------------ what is open


def open_charges(board: Board, at: float) -> list[ChargeRow]:
    """What has been used and is not in the ledger yet; the numbers of these rows are 0."""
    found = [charge for job in board.jobs.values() for charge in _use(board, job, at)]
    for node in board.nodes.values():
        if node.is_member:
            found.extend(_machine(board, node, at))
    return found


def _use(board: Board, job: LiveJob, until_at: float) -> Iterator[ChargeRow]:
    if job.attempt is None:
        return
    row, by_pool = job.attempt.row, job.attempt.placement.by_pool
    for pool_id, held in by_pool.items():
        pool = board.pools[pool_id]
        # Who holds accelerators in several pools shares them with nobody.
        rate = row.usd_per_h if len(by_pool) == 1 else pool.usd_per_h * held / pool.shape.accelerators
        template = ChargeRow(
            0, ChargeKind.USE, row.usd_since_at, until_at, rate, 0.0, 0.0, "",
            pool_id, pool.market.value, pool.shape.accelerator, float(held),
            NodeId(""), row.job_id, row.attempt, job.row.project, job.row.user,
        )  # fmt: skip
        yield from _stretches(board, template, pool)


def _machine(board: Board, node: LiveNode, until_at: float) -> Iterator[ChargeRow]:
    if node.row.billed_until_at is None or not node.row.rent_token:
        return
    pool = board.pools[node.row.pool_id]
    yield from _stretches(board, _machine_row(pool, node.row.node_id, node.row.billed_until_at, until_at), pool)


def _machine_row(pool: Pool, node_id: NodeId, since_at: float, until_at: float) -> ChargeRow:
    return ChargeRow(
        0, ChargeKind.MACHINE, since_at, until_at, pool.usd_per_h, 0.0, 0.0, "",
        pool.pool_id, pool.market.value, pool.shape.accelerator, float(pool.shape.accelerators),
        node_id, JobId(0), 0, "", "",
    )  # fmt: skip


def _stretches(board: Board, template: ChargeRow, pool: Pool) -> Iterator[ChargeRow]:
    """The same, cut where months end."""
    listed = on_demand_usd_per_h(board, pool)
    for month, since_at, until_at in months(template.since_at, template.until_at, board.epoch_unix_s):
        hours = (until_at - since_at) / _HOUR_S
        usd = template.usd_per_h * hours
        beside = usd if listed is None or pool.usd_per_h <= 0 else usd * listed / pool.usd_per_h
        if listed is not None and pool.usd_per_h <= 0 and pool.market is not Market.OWNED:
            beside = listed * template.accelerators / pool.shape.accelerators * hours
        yield replace(template, since_at=since_at, until_at=until_at, usd=usd, on_demand_usd=beside, month=month)


def on_demand_usd_per_h(board: Board, pool: Pool) -> float | None:
    """An hour of such a machine on demand, the cheapest there is; None where nobody rents it out so, or it is owned."""
    if pool.market is Market.OWNED:
        return None
    same = (p.usd_per_h for p in board.pools.values() if p.market is Market.ON_DEMAND and p.shape == pool.shape)
    return min(same, default=None)


def month_of(unix_s: float) -> str:
    """The month of an instant, UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m")


def next_month_unix_s(unix_s: float) -> float:
    """When the month after this instant's begins."""
    now = datetime.fromtimestamp(unix_s, UTC)
    year, month = (now.year, now.month + 1) if now.month < 12 else (now.year + 1, 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp()


def months(since_at: float, until_at: float, epoch_unix_s: float) -> Iterator[tuple[str, float, float]]:
    """(month, since, until) of each month that a stretch touches; nothing of an empty one."""
    while since_at < until_at:
        unix_s = since_at + epoch_unix_s
        ends_at = max(next_month_unix_s(unix_s) - epoch_unix_s, since_at + 1e-6)
        yield month_of(unix_s), since_at, min(until_at, ends_at)
        since_at = ends_at
