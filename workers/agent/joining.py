"""How an agent gets its credential, what it does when the server refuses it, and how it shows that it reaches the store
of checkpoints.
"""

import asyncio
import logging
from math import inf
from random import Random

from walras.clocks import Clocks
from walras.errors import ConfigError, Forbidden, ServerUnreachable
from walras.protocol import PROTOCOL
from walras.store_proof import StoreChallenge, StoreProof, answer_challenge
from workers.agent.server_client import Enrolment, ServerClient, ServerRefusal, call_backoff_s

log = logging.getLogger(__name__)

#: How long after a failed proof of the store the next one is tried.
PROVE_AGAIN_S = 60.0


class Joining:
    """The agent's standing with its server."""

    def __init__(self, client: ServerClient, enrolment: Enrolment, chance: Random | None) -> None:
        self._client = client
        self._enrolment = enrolment
        self._chance = chance

    async def join(self) -> None:
        """Register, as often as it takes. Raises Forbidden or ConfigError where that never helps."""
        failures = 0
        while True:
            try:
                await self._enrolment.ensure(self._client)
                return
            except ServerUnreachable as error:
                failures += 1
                log.warning("not registered yet: %s", error)
                await asyncio.sleep(call_backoff_s(failures, self._chance))
            except ServerRefusal as error:
                if not error.is_to_wait_for:
                    raise
                failures += 1
                log.warning("the name is not free yet: %s; %s", error, error.fix)
                await asyncio.sleep(call_backoff_s(failures, self._chance))

    async def join_again(self) -> None:
        """Try to register again and only log a failure: attempts may run, and the cause may be mended meanwhile."""
        try:
            await self._enrolment.ensure(self._client)
        except (ServerUnreachable, Forbidden, ConfigError) as error:
            if isinstance(error, ServerRefusal) and error.is_final:
                raise
            log.error("cannot register: %s", error)

    def take_refusal(self, error: ServerRefusal) -> None:
        """Do what follows from a refused heartbeat. Raises the refusal where only a person can help."""
        if error.is_final:
            raise error
        if error.code == "other_incarnation" and error.cluster is not None:
            self._enrolment.take_identity(error.cluster, PROTOCOL)
            self._client.cluster = self._enrolment.cluster
        elif not error.is_to_wait_for:
            log.warning("heartbeat refused, registering anew: %s", error)
            self._enrolment.forget()
        else:
            log.warning("heartbeat refused: %s; %s", error, error.fix)


class StoreProving:
    """Answers what the server asks about the store of checkpoints, beside the heartbeats."""

    def __init__(self, node_id: str, clocks: Clocks) -> None:
        self._node_id = node_id
        self._clocks = clocks
        self._task: asyncio.Task[None] | None = None
        self._tried_at = -inf
        #: What the next heartbeat is to say.
        self.proof: StoreProof | None = None

    def take(self, challenge: StoreChallenge | None) -> None:
        """What an answer of the server asks. A failure is tried again: the disk may be mounted meanwhile."""
        if challenge is None or (self._task is not None and not self._task.done()):
            return
        is_new = self.proof is None or self.proof.nonce != challenge.nonce
        if is_new or self._clocks.monotonic() - self._tried_at > PROVE_AGAIN_S:
            self._tried_at = self._clocks.monotonic()
            self._task = asyncio.create_task(self._prove(challenge))

    async def _prove(self, challenge: StoreChallenge) -> None:
        self.proof = await asyncio.to_thread(answer_challenge, challenge, self._node_id)
        if self.proof.problem:
            log.warning("this machine is private: %s", self.proof.problem)
