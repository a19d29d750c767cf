"""Rented machines: the core's Rent and ReleaseNode carried out, and what is paid for kept equal to what is known.

The request is in the store before the provider is called; the provider does nothing twice for one token. A janitor
compares what runs with what is known (`janitor.py`).
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Protocol, runtime_checkable

from scheduler.cloud.provider import CloudProvider, ProviderProblem
from scheduler.core.events import RentFailed
from scheduler.live.desks.agents import lose_node
from scheduler.live.providers.janitor import CALL_S, Janitor, answer, boot_limit_s
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.turn import Effects, Turn
from walras.errors import ClusterError, Conflict, NotFound
from walras.ids import NodeId, PoolId
from walras.reasons import Reason

log = logging.getLogger(__name__)


@runtime_checkable
class RevocableProvider(CloudProvider, Protocol):
    """A provider whose machines can be taken away on request, for drills."""

    async def revoke(self, node_id: NodeId, notice_s: float) -> None:
        """Give notice, then take the machine away for good. Returns when it is gone."""
        ...


class ProviderDesk:
    """Between the core's wishes and the providers."""

    def __init__(
        self,
        daemon: Daemon,
        providers: Mapping[PoolId, CloudProvider],
        call_s: float = CALL_S,
        request_s: float | None = None,
    ) -> None:
        self._daemon = daemon
        self._providers = dict(providers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._call_s = call_s
        #: None: as long as machines of the pool may take to come up, and an answer.
        self._request_s = request_s
        self.janitor = Janitor(daemon, self._providers, self.gone, call_s)

    def deliver(self, effects: Effects) -> None:
        for rent in effects.rents:
            self._spawn(self._rent(rent.token, rent.pool_id, rent.machines))
        for release in effects.releases:
            self._spawn(self._release(release.node_id))

    def revoke(self, pool_id: PoolId, notice_s: float) -> list[NodeId]:
        """Take every rented machine of a pool away, with notice. Answers which. Raises NotFound, Conflict."""
        if pool_id not in self._providers:
            raise NotFound(f"no rented pool {pool_id}", field="pool_id", fix=f"known: {', '.join(self._providers)}")
        provider = self._providers[pool_id]
        if not isinstance(provider, RevocableProvider):
            raise Conflict(
                f"the provider of {pool_id} holds no drills", field="pool_id", fix="let the cloud itself do it"
            )
        nodes = [
            node_id
            for node_id, node in sorted(self._daemon.board.nodes.items())
            if node.row.pool_id == pool_id and node.row.rent_token and node.is_member
        ]
        for node_id in nodes:
            self._spawn(self._revoke(provider, node_id, notice_s))
        return nodes

    async def reconcile(self) -> None:
        """At the start: what is missing is lost, and requests that were never answered are repeated."""
        await self.janitor.sweep(patient=False)
        for rent in list(self._daemon.board.rents.values()):
            self._spawn(self._rent(rent.token, rent.pool_id, rent.machines))

    async def gone(self, node_id: NodeId, reason: Reason, token: str = "") -> None:
        """A rented machine is proved to be no more, or (with its request's token) never came to be."""

        def step(turn: Turn) -> None:
            node = turn.board.nodes.get(node_id)
            if node is not None and node.is_member:
                lose_node(turn, node_id, reason)
            elif token in turn.board.rents:
                emit(turn, RentFailed(turn.at, token, f"{node_id} did not come up"))

        await self._daemon.perform(step)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------- the calls

    async def _rent(self, token: str, pool_id: PoolId, machines: int) -> None:
        pool, provider = self._daemon.board.pools[pool_id], self._providers.get(pool_id)
        try:
            if provider is None:
                raise ClusterError(f"nobody rents out {pool_id}")
            # A provider may answer when its machines are up.
            await answer(provider.request(token, pool, machines), self._request_s or boot_limit_s(pool) + CALL_S)
        except ClusterError as error:
            reason, missing = str(error), error.missing if isinstance(error, ProviderProblem) else None
            log.warning("rent %s of %s failed: %s", token, pool_id, reason)
            await self._daemon.perform(lambda turn: emit(turn, RentFailed(turn.at, token, reason, missing)))

    async def _release(self, node_id: NodeId) -> None:
        provider = self._provider_of(node_id)
        if provider is not None:
            await self._end(provider, node_id)
        await self.gone(node_id, Reason.POLICY_RELEASED)

    async def _end(self, provider: CloudProvider, node_id: NodeId) -> None:
        """Give back; a machine that could not be answers no request from now on, and the janitor finds it."""
        try:
            await answer(provider.terminate(node_id), self._call_s)
        except ProviderProblem as problem:
            log.warning("machine %s is not given back yet: %s", node_id, problem)

    async def _revoke(self, provider: RevocableProvider, node_id: NodeId, notice_s: float) -> None:
        await provider.revoke(node_id, notice_s)
        await self.gone(node_id, Reason.INFRA_SPOT_RECLAIM)

    def _provider_of(self, node_id: NodeId) -> CloudProvider | None:
        node = self._daemon.board.nodes.get(node_id)
        return None if node is None else self._providers.get(node.row.pool_id)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a call to a provider failed", exc_info=task.exception())
