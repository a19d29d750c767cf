"""How an agent gets its credential, and what it does when the server refuses it."""

import asyncio
import logging
from random import Random

from walras.errors import ConfigError, Forbidden, ServerUnreachable
from walras.protocol import PROTOCOL
from workers.agent.server_client import Enrolment, ServerClient, ServerRefusal, call_backoff_s

log = logging.getLogger(__name__)


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
