"""Checks which machines read and write the store of checkpoints; the others are marked as private.

Answers to its heartbeats ask a machine to write a proof, until the proof lies in the store. Where a machine reports
that it cannot, or its proof does not arrive, no job is moved away for the benefit of others, because what its jobs save
is on that machine only. A machine of an older release is not asked and is taken to share the store.
"""

import asyncio
import logging
from collections.abc import Coroutine
from random import Random

from scheduler.core.events import NodePrivate
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.store_interface import StoreUnavailable
from walras.clocks import random_hex, random_token
from walras.cluster import NodeId
from walras.errors import WalrasError
from walras.store_proof import StoreChallenge, StoreProof, check_answer, place_challenge

log = logging.getLogger(__name__)

#: Seconds until a store that could not be written or read is tried again.
_RETRY_S = 60.0


class StoreProofs:
    """The proofs of one run of the server."""

    def __init__(self, loop: ServerLoop, place: str, chance: Random | None = None) -> None:
        """`place`: the URL of a folder in the store that belongs to this cluster."""
        self._loop = loop
        #: The challenge for every machine.
        self.challenge = StoreChallenge(place=place, nonce=random_hex(chance, 32))
        self._secret = random_token(chance).encode()
        self._is_placed = False
        self._placed_at = float("-inf")
        self._proved: set[NodeId] = set()
        self._checked: dict[NodeId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def challenge_for(self, node_id: NodeId) -> StoreChallenge | None:
        """Returns the challenge for the machine; None if there is none for it now."""
        now = self._loop.clock.now()
        if not self._is_placed and now - self._placed_at > _RETRY_S:
            self._placed_at = now
            self._begin(self._place())
        return self.challenge if self._is_placed and node_id not in self._proved else None

    def take(self, node: LiveNode, proof: StoreProof | None) -> None:
        """Take what a machine answers in its heartbeat; a background task then checks the proof in the store."""
        node_id, now = node.row.node_id, self._loop.clock.now()
        if proof is None or proof.nonce != self.challenge.nonce or node_id in self._proved:
            return
        if proof.problem:
            node.private_why = proof.problem
            if not node.row.private:
                self._begin(self._note(node_id, proof.problem))
        elif now - self._checked.get(node_id, float("-inf")) > _RETRY_S:
            self._checked[node_id] = now
            self._begin(self._check(node_id))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _place(self) -> None:
        try:
            await asyncio.to_thread(place_challenge, self.challenge, self._secret)
            self._is_placed = True
        except (OSError, WalrasError) as error:
            log.error("the store of checkpoints cannot be written: %s", error)

    async def _check(self, node_id: NodeId) -> None:
        try:
            problem = await asyncio.to_thread(check_answer, self.challenge, self._secret, node_id)
        except (OSError, WalrasError) as error:
            log.warning("whether %s reaches the store of checkpoints is unknown: %s", node_id, error)
            return
        await self._note(node_id, problem)

    async def _note(self, node_id: NodeId, problem: str) -> None:
        """Record whether the machine is private, if that has changed."""

        def step(transaction: Transaction) -> None:
            node = transaction.state.nodes.get(node_id)
            if node is None or not node.is_member:
                return
            node.private_why = problem
            if node.row.private != bool(problem):
                node.row.private = bool(problem)
                transaction.node_changed(node)
                emit(transaction, NodePrivate(transaction.at, node_id, bool(problem)))

        try:
            await self._loop.perform(step)
        except StoreUnavailable:
            return  # the machine is asked again
        if problem:
            log.warning("%s is private: %s", node_id, problem)
        else:
            self._proved.add(node_id)
