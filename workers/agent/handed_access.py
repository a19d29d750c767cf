"""A folder of an object store for which the server repeatedly gives this machine short-lived credentials.

The server gives credentials for one job's folder (`walras.store_access`) where the cluster file says so; otherwise it
has none, and the machine's own environment counts. They are kept only in memory. A transfer may take longer than they
are valid: new ones are requested at half of their validity, and while the old ones are valid, a server that does not
answer stops nothing.
"""

import asyncio
import logging
from math import inf

from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ClusterError, Forbidden, ServerUnreachable
from walras.object_store import ObjectFolder
from walras.store_access import StoreAccess, is_handed_out
from workers.agent.server_client import ServerClient
from workers.devices import AttemptKey

log = logging.getLogger(__name__)

#: Parts of the validity of credentials: new ones are requested from the first on, and old ones used until the second.
_RENEW_PART, _USED_PART = 0.5, 0.9


class HandedPlace:
    """One attempt's folder, for one transfer."""

    def __init__(self, client: ServerClient, key: AttemptKey, place: str, clocks: Clocks = SYSTEM_CLOCKS) -> None:
        self._client = client
        self._key = key
        self._place = place
        self._clocks = clocks
        self._folder: ObjectFolder | None = None
        self._renew_at = self._used_until = -inf
        self._lock = asyncio.Lock()

    async def folder(self) -> ObjectFolder:
        """Returns the folder, opened with credentials that are valid for a while.

        Raises StoreFailure where the server gets no credentials, ServerUnreachable, ServerRefusal, and ConfigError
        where this machine lacks the library.
        """
        async with self._lock:
            now = self._clocks.boottime()
            if self._folder is None or now >= self._renew_at:
                try:
                    await self._open(now)
                except (ClusterError, Forbidden, ServerUnreachable) as error:
                    if self._folder is None or now >= self._used_until:
                        raise
                    log.warning("job %d: its access to %s is not renewed yet: %s", self._key[0], self._place, error)
            assert self._folder is not None
            return self._folder

    async def _open(self, asked_at: float) -> None:
        access = await access_to(self._client, self._place, self._key)
        self._folder = await asyncio.to_thread(ObjectFolder, self._place, access)
        lasts_s = inf if access is None else access.lasts_s
        self._renew_at, self._used_until = asked_at + _RENEW_PART * lasts_s, asked_at + _USED_PART * lasts_s


async def access_to(client: ServerClient, place: str, key: AttemptKey | None = None) -> StoreAccess | None:
    """Returns the credentials of a folder; None: the machine's own. Raises as `ServerClient.store_access`."""
    return await client.store_access(place, key) if is_handed_out(place) else None
