"""Shipping the ranks' output while they run. Which byte the server wants next is all the state there is."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from walras.errors import Forbidden, ServerUnreachable
from workers.agent.server_client import ServerClient

CHUNK_BYTES = 256 * 1024
SHIP_EVERY_S = 0.5
RETRY_S = 2.0
#: How long the report of an end waits for the rest of the logs.
LAST_CHANCE_S = 10.0


@dataclass
class _LogFile:
    rank: int
    path: Path
    #: None until the server has said what it has.
    offset: int | None = None


class LogShipper:
    """The logs of one attempt on this machine. The files only ever grow."""

    def __init__(self, client: ServerClient, job_id: int, attempt: int, logs: dict[int, Path]) -> None:
        self._client = client
        self._job_id = job_id
        self._attempt = attempt
        self._files = [_LogFile(rank, path) for rank, path in logs.items()]

    async def run(self) -> None:
        """Ship what comes until cancelled."""
        while True:
            is_taken = await self._ship_once()
            await asyncio.sleep(SHIP_EVERY_S if is_taken else RETRY_S)

    async def ship_rest(self) -> bool:
        """Ship all there is, within bounds. False if the server did not take it in time."""
        try:
            async with asyncio.timeout(LAST_CHANCE_S):
                while True:
                    if await self._ship_once():
                        return True
                    await asyncio.sleep(SHIP_EVERY_S)
        except TimeoutError:
            return False

    async def _ship_once(self) -> bool:
        """True when every file is shipped up to its present end."""
        try:
            for file in self._files:
                await self._ship(file)
        except (ServerUnreachable, Forbidden):
            return False
        return True

    async def _ship(self, file: _LogFile) -> None:
        if file.offset is None:
            file.offset = await self._client.send_log(self._job_id, self._attempt, file.rank, 0, b"")
        while chunk := _read(file.path, file.offset):
            wanted = await self._client.send_log(self._job_id, self._attempt, file.rank, file.offset, chunk)
            if wanted == file.offset:
                return  # the server takes no more of it (a quota): so be it
            file.offset = wanted


def _read(path: Path, offset: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""
