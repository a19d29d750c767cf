"""How an agent gets its credential, handles its refusal, proves access to the checkpoint store, and reports cached
inputs.
"""

import asyncio
import logging
import re
from math import inf
from pathlib import Path
from random import Random

from walras.clocks import Clocks
from walras.errors import ClusterError, ConfigError, Forbidden, ServerUnreachable
from walras.machine_tools import DATA_KEY_PATTERN, FetchedInput
from walras.protocol import PROTOCOL
from walras.store_proof import PROBLEM_MOST, StoreChallenge, StoreProof, answer_challenge
from workers.agent.handed_access import access_to
from workers.agent.server_client import Enrolment, ServerClient, ServerRefusal, call_backoff_s
from workers.preparation.folder_cache import FolderCache
from workers.preparation.inputs import INPUT_BOUNDS

log = logging.getLogger(__name__)

#: Seconds between a failed proof of the store and the next try.
PROVE_AGAIN_S = 60.0


class Joining:
    """The registration of the agent with its server."""

    def __init__(self, client: ServerClient, enrolment: Enrolment, chance: Random | None) -> None:
        self._client = client
        self._enrolment = enrolment
        self._chance = chance

    async def join(self) -> None:
        """Registers, with as many tries as it takes. Raises Forbidden or ConfigError where that cannot succeed."""
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
        """Tries to register again and only logs a failure: attempts may run, and the cause may disappear."""
        try:
            await self._enrolment.ensure(self._client)
        except (ServerUnreachable, Forbidden, ConfigError) as error:
            if isinstance(error, ServerRefusal) and error.is_final:
                raise
            log.error("cannot register: %s", error)

    def take_refusal(self, error: ServerRefusal) -> None:
        """Handles a refused heartbeat. Raises the refusal where only a person can help."""
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
    """Answers the server's challenges about the checkpoint store, beside the heartbeats."""

    def __init__(self, client: ServerClient, node_id: str, clocks: Clocks) -> None:
        self._client = client
        self._node_id = node_id
        self._clocks = clocks
        self._task: asyncio.Task[None] | None = None
        self._tried_at = -inf
        #: The answer that the next heartbeat carries.
        self.proof: StoreProof | None = None

    def take(self, challenge: StoreChallenge | None) -> None:
        """Starts to answer a challenge. A failure is tried again, because the disk may be mounted meanwhile."""
        if challenge is None or (self._task is not None and not self._task.done()):
            return
        is_new = self.proof is None or self.proof.nonce != challenge.nonce
        if is_new or self._clocks.monotonic() - self._tried_at > PROVE_AGAIN_S:
            self._tried_at = self._clocks.monotonic()
            self._task = asyncio.create_task(self._prove(challenge))

    async def _prove(self, challenge: StoreChallenge) -> None:
        try:
            access = await access_to(self._client, challenge.place)
        except ServerUnreachable as error:
            log.warning("not yet shown that this machine reaches its store: %s", error)
            return
        except (ClusterError, Forbidden) as error:
            self.proof = StoreProof(nonce=challenge.nonce, problem=str(error)[:PROBLEM_MOST])
        else:
            self.proof = await asyncio.to_thread(answer_challenge, challenge, self._node_id, access)
        if self.proof.problem:
            log.warning("this machine is private: %s", self.proof.problem)


class CachedInputs:
    """The inputs cached on the machine, as reported to the server. Other processes fill the cache."""

    def __init__(self, prepared: Path) -> None:
        """`prepared`: the folder of fetched and prepared inputs."""
        self._folder = prepared / "inputs"
        self._looked_at = -1
        self._keys: list[str] = []
        #: Bytes, and seconds of the fetch, of the inputs that the last report named.
        self.fetched: list[FetchedInput] = []
        self._told: list[str] | None = None

    def news(self, *, everything: bool) -> list[str] | None:
        """Returns the cached keys; None if the server already has just these, unless `everything`."""
        try:
            # Every entry that is made or removed changes the folder. Looked at before it is read: what comes meanwhile
            # is found by the next call.
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at != self._looked_at:
                named = FolderCache(self._folder, INPUT_BOUNDS).named()
                # Jobs can write into the cache, so names that are no keys are ignored.
                keys = [name for name in named if re.fullmatch(DATA_KEY_PATTERN, name)]
                self._keys, self._looked_at = sorted(keys[: INPUT_BOUNDS.entries]), changed_at
                told = ((key, *named[key]) for key in self._keys if named[key] != (0, 0.0))
                self.fetched = [FetchedInput(key=key, size_bytes=size, seconds=took) for key, size, took in told]
        except OSError:  # nothing was fetched here yet
            self._keys, self._looked_at, self.fetched = [], -1, []
        return self._keys if everything or self._keys != (self._told or []) else None

    def confirm(self, told: list[str] | None) -> None:
        """Records that the server has received this report."""
        self._told = self._told if told is None else told
