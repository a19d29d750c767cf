"""Endpoints about pools: list, add, change, drain, remove.

Changes made here are in the tables and outlive a restart. At a start a cluster file that declares the same pool is
applied after the tables, so its shape, price and quota win; a drain stays, because no cluster file states one.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from scheduler.core.events import NodeUncordoned, PoolDeclared, PoolRemoved
from scheduler.live.http.request_bodies import read_file_model
from scheduler.live.http.requests import RequestContext, serves
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.departures import end_pool_drain
from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.server import Server
from scheduler.live.services.views import view_of
from scheduler.live.store.table_rows import DrainedBy
from walras.cluster import Market, Pool, PoolId
from walras.errors import Conflict, NotFound, UserError
from walras.job_request import JobId
from walras.resources.fleet import FleetCalls, PoolChange, PoolRemoval, PoolView
from walras.spec.cluster_file import PoolEntry
from walras.spec.file_model import nearest_word

#: As many pools as a cluster file may declare.
_MOST_POOLS = 10_000
#: How many of the jobs that only the removed pool could run are named.
_NAMED_MAX = 100


@serves(FleetCalls.pools)
async def list_pools(call: RequestContext) -> list[PoolView]:
    return [_pool_view(call.server, pool) for _, pool in sorted(call.server.state.pools.items())]


@serves(FleetCalls.add_pool)
async def add_pool(call: RequestContext) -> PoolView:
    """Adds a pool stated as in a cluster file. Raises Conflict where it exists, or its shape's name means another."""
    entry = await call.read(partial(read_file_model, PoolEntry, "pool"))
    pool = replace(entry.pool(), provider=entry.provider)
    if pool.provider:
        call.server.providers.check_provider(pool)

    def step(transaction: Transaction) -> PoolView:
        state = transaction.state
        if pool.pool_id in state.pools:
            fix = f"walras admin set pool {pool.pool_id}"
            raise Conflict(f"there is a pool {pool.pool_id} already", field="shape", fix=fix)
        other = next((each for each in state.pools.values() if each.shape.name == pool.shape.name), None)
        if other is not None and other.shape != pool.shape:
            raise Conflict(
                f"{pool.shape.name!r} is another machine in {other.pool_id}", field="shape", fix="give it another name"
            )
        if len(state.pools) >= _MOST_POOLS:
            raise Conflict(f"there are {len(state.pools)} pools already", fix="remove some first")
        emit(transaction, PoolDeclared(transaction.at, pool))
        state.expect(pool.pool_id, entry.machines)
        call.server.providers.take_up(pool)
        call.note_write(transaction, f"pool {pool.pool_id}", after=_standing(pool))
        return _pool_view(call.server, pool)

    return await call.server.loop.perform(step)


@serves(FleetCalls.change_pool)
async def change_pool(call: RequestContext) -> PoolView:
    """Changes quota, price or drain of a pool. Raises NotFound, UserError."""
    asked = await call.model(PoolChange)
    changes = asked.model_dump(exclude_none=True)
    if not changes:
        raise UserError("nothing is to be changed", field="quota", fix="give quota, least, usd_per_h or drained")

    def step(transaction: Transaction) -> PoolView:
        before = _known_pool(call, transaction.state)
        if before.market is Market.OWNED and asked.quota:
            raise UserError(f"{before.pool_id} is owned: none of its machines is rented", field="quota")
        pool = replace(before, **changes)
        if pool.least > pool.quota:
            raise UserError(f"at least {pool.least} machines, and at most {pool.quota}", field="least")
        if pool != before:
            emit(transaction, PoolDeclared(transaction.at, pool))
            call.server.providers.take_up(pool)
        if before.drained and not pool.drained:
            _take_jobs_again(transaction, pool.pool_id)
        call.note_write(transaction, f"pool {pool.pool_id}", before=_standing(before), after=_standing(pool))
        return _pool_view(call.server, pool)

    return await call.server.loop.perform(step)


def _take_jobs_again(transaction: Transaction, pool_id: PoolId) -> None:
    """Let machines that were drained with their pool take jobs again.

    Those that were drained singly, have failed, or will be taken away stay out.
    """
    for node_id, node in sorted(transaction.state.nodes.items()):
        if node.row.pool_id != pool_id or not node.is_member or node.row.drained_by is not DrainedBy.POOL:
            continue
        if node.row.notice_s is None:
            emit(transaction, NodeUncordoned(transaction.at, node_id))
        else:
            end_pool_drain(node)
            transaction.node_changed(node)


@serves(FleetCalls.remove_pool)
async def remove_pool(call: RequestContext) -> PoolRemoval:
    """Removes a pool. Raises NotFound, and Conflict while it has machines, requests for machines, or attempts."""

    def step(transaction: Transaction) -> PoolRemoval:
        state = transaction.state
        pool = _known_pool(call, state)
        view = _pool_view(call.server, pool)
        named = ", ".join(map(str, view.jobs[:_NAMED_MAX]))
        here = f"{view.machines} machines" if view.machines else ""
        coming = f"{view.coming} machines on their way" if view.coming else ""
        left = [each for each in (here, coming, f"job {named} running there" if named else "") if each]
        if left:
            fix = f"walras admin drain --pool {pool.pool_id}"
            if pool.drained and pool.market is Market.OWNED:
                fix = "stop their agents: a machine that is not heard of is given up when its lease has run out"
            elif pool.drained:
                fix = "it is being emptied: try again later"
            raise Conflict(f"{pool.pool_id} still has {' and '.join(left)}", field="pool_id", fix=fix)
        stranded = _stranded_jobs(call, pool)
        emit(transaction, PoolRemoved(transaction.at, pool.pool_id))
        after = {"stranded_jobs": stranded} if stranded else None
        call.note_write(transaction, f"pool {pool.pool_id}", before=_standing(pool), after=after)
        return PoolRemoval(pool_id=pool.pool_id, stranded_jobs=stranded)

    return await call.server.loop.perform(step)


def _stranded_jobs(call: RequestContext, pool: Pool) -> list[int]:
    """Returns jobs that have not ended and that no other pool could run: the `_NAMED_MAX` lowest numbers at most."""
    others = [each for each in call.server.state.pools.values() if each.pool_id != pool.pool_id]
    found = []
    for job in call.server.loop.core.ledger:
        if job.request.size_on(pool) and not any(map(job.request.size_on, others)):
            found.append(int(job.job_id))
    return sorted(found)[:_NAMED_MAX]


def _known_pool(call: RequestContext, state: LiveState) -> Pool:
    pool_id = call.request.match_info["pool_id"]
    found = state.pools.get(PoolId(pool_id))
    if found is None:
        near = nearest_word(pool_id[:300], state.pools)
        fix = f"did you mean {near}?" if near else "check `walras admin list pools`"
        raise NotFound(f"no pool {pool_id[:100]}", field="pool_id", fix=fix)
    return found


def _standing(pool: Pool) -> dict[str, Any]:
    """Returns what people can change of a pool, as audit rows show it before and after."""
    return {"quota": pool.quota, "least": pool.least, "usd_per_h": pool.usd_per_h, "drained": pool.drained}


def _pool_view(server: Server, pool: Pool) -> PoolView:
    state, fleet = server.state, server.core.ledger.fleet
    row = fleet.pool_row(pool.pool_id)
    known = None if row is None else fleet.pools[row]
    is_refused = known is not None and known.rent_not_before > server.loop.clock.now()
    machines = [node for node in state.nodes.values() if node.row.pool_id == pool.pool_id and node.is_member]
    rents = (rent for rent in state.rents.values() if rent.pool_id == pool.pool_id)
    return view_of(
        PoolView,
        pool,
        shape=pool.shape.name,
        accelerator=pool.shape.accelerator,
        accelerators=pool.shape.accelerators,
        machines=len(machines),
        coming=sum(max(0, rent.machines - state.here_of(rent.token)) for rent in rents),
        jobs=sorted(_jobs_in(state, pool.pool_id)),
        tools=_tools_in(machines),
        provider=server.providers.provider_name(pool.pool_id),
        refused=known.rent_problem if known is not None and is_refused else "",
    )


def _tools_in(machines: Sequence[LiveNode]) -> list[str] | None:
    """Returns the tools that all these machines have; None while one has not reported, or without any machine."""
    told = [node.tools for node in machines if node.tools is not None]
    return sorted(frozenset.intersection(*told)) if told and len(told) == len(machines) else None


def _jobs_in(state: LiveState, pool_id: PoolId) -> list[JobId]:
    """Returns the jobs whose attempt has a part in the pool."""
    jobs = state.jobs.values()
    return [each.row.job_id for each in jobs if each.attempt is not None and pool_id in each.attempt.placement.by_pool]
