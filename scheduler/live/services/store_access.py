"""Credentials for one place in an object store, which the server gets from AWS STS (or a compatible store) for
machines.

The server's own environment has the long-lived credentials. With a role it assumes that role, else it asks for a
federation token; either way a session policy (`walras.storage.checkpoint_store`) limits the result to one job's place
and to a time. A machine gets them only for the attempts that it runs. They are kept in memory for half of
their lifetime, so that a machine that asks often causes no call; they are never written to disk.

Whether a machine reads and writes the store of checkpoints is proved: answers to its heartbeats ask it to write a
proof, until the proof lies in the store, and again after each reboot. Where it reports that it cannot, or its proof
does not arrive, it is private: no job is moved away for the benefit of others, because what its jobs save is on that
machine only. A machine of an older release is not asked and is taken to share the store.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

from scheduler.core.events import NodePrivate
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.store_interface import StoreUnavailable
from walras.clocks import SYSTEM_CLOCKS, Clocks, random_hex, random_token
from walras.cluster import NodeId
from walras.errors import ConfigError, Forbidden, WalrasError
from walras.job_request import JobId
from walras.spec.cluster_file import CheckpointAccess
from walras.storage.checkpoint_store import StoreAccess, StoreAccessRequest, is_handed_out, job_policy, proof_policy
from walras.storage.store_proof import StoreChallenge, StoreProof, check_answer, place_challenge

log = logging.getLogger(__name__)

#: The most calls to STS at once, and how long one may take, seconds.
_CALLS_AT_ONCE, _CALL_S = 4, 40.0
_PROBLEM_MOST, _SESSION_MOST = 300, 32


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
        #: The boot in which each machine has shown it: its disks are mounted anew in every one.
        self._proved: dict[NodeId, str] = {}
        self._checked: dict[NodeId, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def challenge_for(self, node: LiveNode) -> StoreChallenge | None:
        """Returns the challenge for the machine; None if there is none for it now."""
        now = self._loop.clock.now()
        if not self._is_placed and now - self._placed_at > _RETRY_S:
            self._placed_at = now
            self._begin(self._place())
        return self.challenge if self._is_placed and not self._has_shown(node) else None

    def _has_shown(self, node: LiveNode) -> bool:
        return self._proved.get(node.row.node_id) == node.row.boot_id

    def take(self, node: LiveNode, proof: StoreProof | None) -> None:
        """Take what a machine answers in its heartbeat; a background task then checks the proof in the store."""
        node_id, boot_id, now = node.row.node_id, node.row.boot_id, self._loop.clock.now()
        if proof is None or proof.nonce != self.challenge.nonce or self._has_shown(node):
            return
        if proof.problem:
            node.private_why = proof.problem
            if not node.row.private:
                self._begin(self._note(node_id, boot_id, proof.problem))
        elif now - self._checked.get(node_id, float("-inf")) > _RETRY_S:
            self._checked[node_id] = now
            self._begin(self._check(node_id, boot_id))

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

    async def _check(self, node_id: NodeId, boot_id: str) -> None:
        try:
            problem = await asyncio.to_thread(check_answer, self.challenge, self._secret, node_id)
        except (OSError, WalrasError) as error:
            log.warning("whether %s reaches the store of checkpoints is unknown: %s", node_id, error)
            return
        await self._note(node_id, boot_id, problem)

    async def _note(self, node_id: NodeId, boot_id: str, problem: str) -> None:
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
            self._proved[node_id] = boot_id


class StsCalls:
    """The calls to STS, with the credentials of this process. They block."""

    def __init__(self, settings: CheckpointAccess) -> None:
        """Raises ConfigError where botocore is not installed."""
        self._settings = settings
        try:
            import botocore.config
            import botocore.session
        except ImportError:
            fix = "pip install 'walras[stores]' where the server runs"
            raise ConfigError("credentials for machines need botocore", field="checkpoint_access", fix=fix) from None
        told = botocore.config.Config(connect_timeout=5, read_timeout=10, retries={"max_attempts": 2})
        # One client for all calls: it takes long to make, is thread-safe, and renews its own credentials.
        self._client = cache(lambda: botocore.session.get_session().create_client("sts", config=told))

    def __call__(self, session: str, policy: str) -> StoreAccess:
        """Returns credentials limited by this policy. `session` names their holder in the store's own log."""
        client, lasts_s = self._client(), round(self._settings.lasts)
        if self._settings.role:
            told = {"RoleArn": self._settings.role, "RoleSessionName": session}
            answer = client.assume_role(**told, Policy=policy, DurationSeconds=lasts_s)
        else:
            answer = client.get_federation_token(Name=session, Policy=policy, DurationSeconds=lasts_s)
        got = answer["Credentials"]
        return StoreAccess(
            key=got["AccessKeyId"], secret=got["SecretAccessKey"], token=got["SessionToken"], lasts_s=float(lasts_s)
        )


@dataclass(slots=True)
class _Handed:
    """A machine's credentials for a place, since when (boot time), and a lock for the one call that gets them."""

    access: StoreAccess | None = None
    since: float = 0.0
    asked: asyncio.Lock = field(default_factory=asyncio.Lock)


class StoreAccessDesk:
    """Answers machines that ask for credentials of a place."""

    def __init__(
        self,
        state: LiveState,
        settings: CheckpointAccess | None,
        proofs: StoreProofs | None,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        """`settings` None: machines have their own credentials. Raises ConfigError where botocore is missing."""
        self._state = state
        self._proofs = proofs
        self._clocks = clocks
        self._settings = settings
        self._calls = None if settings is None else StsCalls(settings)
        self._handed: dict[tuple[NodeId, str], _Handed] = {}
        self._slots = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def open_for(self, node_id: NodeId, request: StoreAccessRequest) -> StoreAccess:
        """Returns credentials of the place for a machine.

        They are empty where the machine has its own, and state a problem where there are none now. Raises Forbidden for
        a place that belongs neither to an attempt that the machine runs nor to its proof.
        """
        session, policy = self._allowed(node_id, request)
        if self._calls is None or not is_handed_out(request.place):
            return StoreAccess()
        self._forget_old()
        handed = self._handed.setdefault((node_id, request.place), _Handed())
        async with handed.asked:
            age_s = self._clocks.boottime() - handed.since
            if handed.access is None or age_s > handed.access.lasts_s / 2:
                handed.since, age_s = self._clocks.boottime(), 0.0
                handed.access = await self._asked(session, policy())
            answer = handed.access
            if answer.problem:
                handed.access = None
                return answer
            return answer.model_copy(update={"lasts_s": answer.lasts_s - age_s})

    def _allowed(self, node_id: NodeId, request: StoreAccessRequest) -> tuple[str, Callable[[], dict[str, Any]]]:
        """Returns the session's name, and a function that makes its policy. Raises Forbidden as `open_for` does."""
        place, partition = request.place, "aws" if self._settings is None else self._settings.partition
        if not request.job_id:
            challenge = None if self._proofs is None else self._proofs.challenge
            if challenge is None or challenge.place != place:
                raise Forbidden(f"{place[:100]!r} is not where machines show that they reach the store", field="place")
            return f"walras-{node_id}"[:_SESSION_MOST], lambda: proof_policy(place, challenge.nonce, node_id, partition)
        job_id, number = JobId(request.job_id), request.attempt
        attempt, job = self._state.attempt(job_id, number), self._state.jobs.get(job_id)
        if attempt is None or job is None or node_id not in attempt.parts:
            raise Forbidden(f"attempt {number} of job {job_id} is not on {node_id}", field="attempt")
        kept = (each.store for each in (job.checkpoint, job.earlier_checkpoint) if each is not None)
        if place not in {job.launch.store, *kept}:
            raise Forbidden(f"job {job_id} keeps nothing at {place[:100]!r}", field="place")
        return f"walras-job-{job_id}-attempt-{number}"[:_SESSION_MOST], lambda: job_policy(place, partition)

    async def _asked(self, session: str, policy: dict[str, Any]) -> StoreAccess:
        assert self._calls is not None
        encoded = json.dumps(policy, separators=(",", ":"))
        try:
            async with self._slots, asyncio.timeout(_CALL_S):
                access = await asyncio.to_thread(self._calls, session, encoded)
        except Exception as error:  # botocore raises errors of many classes
            told = f"{type(error).__name__}: {error}"
            log.error("no credentials of the store for %s: %s", session, told[:_PROBLEM_MOST])
            return StoreAccess(problem=f"the server gets no credentials for it: {told}"[:_PROBLEM_MOST])
        log.info("credentials of the store for %s, for %.0f s", session, access.lasts_s)
        return access

    def _forget_old(self) -> None:
        now = self._clocks.boottime()
        over = [
            key
            for key, each in self._handed.items()
            if not each.asked.locked() and (each.access is None or now - each.since > each.access.lasts_s)
        ]
        for key in over:
            del self._handed[key]
