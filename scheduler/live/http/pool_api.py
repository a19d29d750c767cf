"""Endpoints about pools: list, add, change, drain, remove.

Changes made here are in the tables and outlive a restart. At a start a cluster file that declares the same pool is
applied after the tables, so its shape, price and quota win; a drain stays, because no cluster file states one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from scheduler.core.events import NodeUncordoned, PoolDeclared, PoolRemoved
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import RequestContext, Route, json_list, parse_json_body
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.departures import end_pool_drain
from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import DrainedBy
from walras.api import PoolRemoval, PoolView
from walras.cluster import Market, Pool, PoolId
from walras.errors import Conflict, NotFound, UserError
from walras.job_request import JobId
from walras.spec.cluster_file import LARGEST_POOL, PoolEntry
from walras.spec.file_model import check_model, nearest_word

#: As many pools as a cluster file may declare.
_MOST_POOLS = 10_000
#: How many of the jobs that only the removed pool could run are named.
_NAMED_MAX = 100


class PoolChange(BaseModel):
    """`PATCH /pools/{pool_id}`: what is to be different."""

    model_config = ConfigDict(extra="forbid")

    quota: int | None = Field(default=None, ge=0, le=LARGEST_POOL)
    least: int | None = Field(default=None, ge=0, le=LARGEST_POOL)
    usd_per_h: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    #: True empties the pool: no new jobs, no new machines; jobs that cannot save run to their ends. False: use it
    #: again.
    drained: bool | None = None


async def list_pools(call: RequestContext) -> web.StreamResponse:
    state, provider_name = call.server.state, call.server.providers.provider_name
    return json_list([_pool_view(state, pool, provider_name(pool_id)) for pool_id, pool in sorted(state.pools.items())])


async def add_pool(call: RequestContext) -> PoolView:
    """Adds a pool stated as in a cluster file. Raises Conflict where it exists, or its shape's name means another."""
    entry = check_model(PoolEntry, parse_json_body(await call.body()), source="pool")
    if entry.provider:
        call.server.providers.check_provider(entry.provider)
    pool = replace(entry.pool(), provider=entry.provider)

    def step(transaction: Transaction) -> PoolView:
        state = transaction.state
        if pool.pool_id in state.pools:
            fix = f"walras admin pool set {pool.pool_id}"
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
        note_write(call, transaction, f"pool {pool.pool_id}", after=_standing(pool))
        return _pool_view(state, pool, call.server.providers.provider_name(pool.pool_id))

    return await call.server.loop.perform(step)


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
        note_write(call, transaction, f"pool {pool.pool_id}", before=_standing(before), after=_standing(pool))
        return _pool_view(transaction.state, pool, call.server.providers.provider_name(pool.pool_id))

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


async def remove_pool(call: RequestContext) -> PoolRemoval:
    """Removes a pool. Raises NotFound, and Conflict while it has machines, requests for machines, or attempts."""

    def step(transaction: Transaction) -> PoolRemoval:
        state = transaction.state
        pool = _known_pool(call, state)
        view = _pool_view(state, pool, call.server.providers.provider_name(pool.pool_id))
        named = ", ".join(map(str, view.jobs[:_NAMED_MAX]))
        here = f"{view.machines} machines" if view.machines else ""
        coming = f"{view.coming} machines on their way" if view.coming else ""
        left = [each for each in (here, coming, f"job {named} running there" if named else "") if each]
        if left:
            fix = f"walras admin pool drain {pool.pool_id}"
            if pool.drained and pool.market is Market.OWNED:
                fix = "stop their agents: a machine that is not heard of is given up when its lease has run out"
            elif pool.drained:
                fix = "it is being emptied: try again later"
            raise Conflict(f"{pool.pool_id} still has {' and '.join(left)}", field="pool_id", fix=fix)
        stranded = _stranded_jobs(call, pool)
        emit(transaction, PoolRemoved(transaction.at, pool.pool_id))
        after = {"stranded_jobs": stranded} if stranded else None
        note_write(call, transaction, f"pool {pool.pool_id}", before=_standing(pool), after=after)
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
        fix = f"did you mean {near}?" if near else "check `walras admin pool list`"
        raise NotFound(f"no pool {pool_id[:100]}", field="pool_id", fix=fix)
    return found


def _standing(pool: Pool) -> dict[str, Any]:
    """Returns what people can change of a pool, as audit rows show it before and after."""
    return {"quota": pool.quota, "least": pool.least, "usd_per_h": pool.usd_per_h, "drained": pool.drained}


def _pool_view(state: LiveState, pool: Pool, provider: str) -> PoolView:
    machines = [node for node in state.nodes.values() if node.row.pool_id == pool.pool_id and node.is_member]
    here = {node.row.node_id for node in machines}
    coming = 0
    for rent in state.rents.values():
        if rent.pool_id == pool.pool_id:
            coming += max(0, rent.machines - sum(node.row.rent_token == rent.token for node in machines))
    return PoolView(
        pool_id=pool.pool_id,
        shape=pool.shape.name,
        accelerator=pool.shape.accelerator,
        accelerators=pool.shape.accelerators,
        market=pool.market,
        zone=pool.zone,
        usd_per_h=pool.usd_per_h,
        quota=pool.quota,
        least=pool.least,
        drained=pool.drained,
        machines=len(here),
        coming=coming,
        jobs=sorted(_jobs_in(state, pool.pool_id)),
        tools=_tools_in(machines),
        provider=provider,
        boot_s=pool.boot_s,
        minimum_billing_s=pool.minimum_billing_s,
    )


def _tools_in(machines: Sequence[LiveNode]) -> list[str] | None:
    """Returns the tools that all these machines have; None while one has not reported, or without any machine."""
    told = [node.tools for node in machines if node.tools is not None]
    return sorted(frozenset.intersection(*told)) if told and len(told) == len(machines) else None


def _jobs_in(state: LiveState, pool_id: PoolId) -> list[JobId]:
    """Returns the jobs whose attempt has a part in the pool."""
    jobs = state.jobs.values()
    return [each.row.job_id for each in jobs if each.attempt is not None and pool_id in each.attempt.placement.by_pool]


def pool_routes() -> list[Route]:
    """Returns the routes about pools. All users may read them; administrators change them."""
    base, admin = "/api/v1/pools", UserRole.ADMIN
    return [
        Route("GET", base, list_pools, "Pools of machines", response=list[PoolView]),
        Route("POST", base, add_pool, "Add a pool", role=admin, request=PoolEntry, response=PoolView, status=201),
        Route("PATCH", f"{base}/{{pool_id}}", change_pool, "Its quota, price or drain", role=admin,
              request=PoolChange, response=PoolView),
        Route("DELETE", f"{base}/{{pool_id}}", remove_pool, "Take a pool without machines out", role=admin,
              response=PoolRemoval),
    ]  # fmt: skip
