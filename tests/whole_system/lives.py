"""One start of the server or of an agent, and the disk under the server's records.

A life has its process, so that a fault ends it at any await, and what of it invariants look at.
"""

import contextlib
import errno
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from scheduler.live.store.database_file import open_database
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import StoreUnavailable, WriteBatch
from tests.whole_system.virtual_loop import ProcessKilled, SimProcess
from walras.clocks import Clocks
from walras.wire import AnyReport
from workers.agent.agent import Agent
from workers.agent.report_store import AgentStore, AttemptPhase

if TYPE_CHECKING:
    from tests.whole_system.world import World


@cache
def new_database(clocks: Clocks) -> bytes:
    """A database as a first start makes it: made once, and copied by every seed."""
    with tempfile.TemporaryDirectory(prefix="walras-fuzz-") as folder:
        path = Path(folder) / "walras.db"
        open_database(path, clocks, Random("new database")).close()
        return path.read_bytes()


#: Of the writes to a disk that is full so many fail whatever they need; the others where they need a new page.
REFUSED = 0.7


class SimStore(SqliteStore):
    """The real store on a disk that may be full."""

    world: "World"
    _is_full = False

    def commit(self, batch: WriteBatch) -> None:
        if self.world.is_disk_full and self.world.chance.random() < REFUSED:
            raise StoreUnavailable("no space is left")
        if self._is_full is not self.world.is_disk_full:
            self._is_full = self.world.is_disk_full
            self._db.conn.execute(f"PRAGMA max_page_count={1 if self._is_full else 1 << 30}")
        self.world.commits_to_crash -= 1
        crashes = self.world.commits_to_crash == 0
        if crashes and not self.world.crashes_after_commit:
            self._crash()
        super().commit(batch)
        self.world.observer.committed(batch)
        if crashes:
            self._crash()

    def _crash(self) -> None:
        """The server dies here, with this batch written or not."""
        assert self.world.life is not None
        self.world.life.process.kill()
        raise ProcessKilled


class SimAgentStore(AgentStore):
    """An agent's real records on a disk that may be full."""

    world: "World"
    name = ""

    def _try(self, act: Callable[[], object]) -> bool:
        is_full = self.name in self.world.full_agents and self.world.chance.random() < REFUSED
        return super()._try(_refuse if is_full else act)

    def _perform(self, write: Any) -> None:
        """The agent dies right before or right after the write that a fault chose."""
        left, after = self.world.writes_to_crash.pop(self.name, (-1, False))
        if left > 0:
            self.world.writes_to_crash[self.name] = left - 1, after
        if left != 0 or after:
            super()._perform(write)
        if left == 0:
            self.world.agents[self.name].process.kill()
            raise ProcessKilled

    def move_attempt(
        self, job_id: int, attempt: int, phase: AttemptPhase, reports: list[AnyReport], incarnation: str = ""
    ) -> None:
        super().move_attempt(job_id, attempt, phase, reports, incarnation)
        for report in reports:
            self.world.observer.reported(self.name, report, is_written=not self.problem)


def _refuse() -> None:
    raise OSError(errno.ENOSPC, "no space is left")


def close_store(store: SqliteStore | AgentStore | None) -> None:
    """Close it, whatever its process was about to do with it."""
    if store is not None:
        with contextlib.suppress(Exception):
            store.close()


@dataclass
class ServerLife:
    """One start of the server."""

    process: SimProcess
    began_at: float
    store: SimStore | None = None
    #: Once it listens.
    server: Any = None


@dataclass
class AgentLife:
    """One start of an agent."""

    process: SimProcess
    began_at: float
    agent: Agent | None = None
    store: AgentStore | None = None
    is_frozen: bool = False
