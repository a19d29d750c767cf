"""One start of the server or of an agent, and the disk under the server's records.

A life has its process, so that a fault ends it at any await, and what of it invariants look at.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import LeadershipLost, StoreUnavailable, WriteBatch
from tests.whole_system.virtual_loop import ProcessKilled, SimProcess
from walras.wire import AnyReport, CommittedReport, EndedReport, RefusedReport
from workers.agent.agent import Agent
from workers.agent.report_store import TOLD_AGAIN, AgentStore, AttemptPhase
from workers.devices import AttemptKey

if TYPE_CHECKING:
    from tests.whole_system.world import World


#: Of the writes to a disk that is full so many fail whatever they need; the others where they need a new page.
REFUSED = 0.7


class SimStore(SqliteStore):
    """The real store on a disk that may be full."""

    world: "World"
    _is_full = False
    #: Another server leads: it has ended the connection over which this one writes.
    is_replaced = False

    def commit(self, batch: WriteBatch) -> None:
        if self.is_replaced:
            raise LeadershipLost("another server leads")
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

    async def wait_until_lost(self) -> None:
        """As the leadership in PostgreSQL does."""
        while not self.is_replaced:  # noqa: ASYNC110 - it looks every two seconds
            await asyncio.sleep(2.0)
        raise LeadershipLost("another server leads")

    def replace(self) -> None:
        """A server that stood by leads from now on."""
        self.is_replaced = True
        self._lock.release()

    def _crash(self) -> None:
        """The server dies here, with this batch written or not."""
        assert self.world.life is not None
        self.world.life.process.kill()
        raise ProcessKilled


class SimAgentStore(AgentStore):
    """An agent's real records on a disk that may be full."""

    world: "World"
    name = ""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: The newest checkpoint of each attempt, where this machine tells of more after the end.
        self._saved: dict[tuple[int, int], CommittedReport] = {}
        #: Attempts that are over here, as this agent has told.
        self._over = set[AttemptKey]()

    def _try(self, act: Callable[[], object]) -> bool:
        is_full = self.name in self.world.full_agents and self.world.chance.random() < REFUSED
        return super()._try(_refuse if is_full else act)

    def _write_all(self) -> None:
        """The agent dies right before or right after the write that a fault chose."""
        left, after = self.world.writes_to_crash.pop(self.name, (-1, False))
        if left > 0:
            self.world.writes_to_crash[self.name] = left - 1, after
        if left != 0 or after:
            super()._write_all()
        if left == 0:
            self.world.agents[self.name].process.kill()
            raise ProcessKilled

    def move_attempt(self, key: AttemptKey, phase: AttemptPhase, reports: Sequence[AnyReport] = ()) -> None:
        super().move_attempt(key, phase, reports)
        for report in reports:
            self._over |= {key} if phase is AttemptPhase.OVER else set()
            self.world.observer.reported(self.name, report, is_written=not self.problem)
            if isinstance(report, EndedReport) and (saved := self._saved.get((report.job_id, report.attempt))):
                self.world.loop.call_later(0.0, self._tell_late, saved)

    def advance_journal(self, key: AttemptKey, offset: int, reports: Sequence[AnyReport]) -> None:
        super().advance_journal(key, offset, reports)
        if self.world.plan.tells_late:
            committed = (each for each in reports if isinstance(each, CommittedReport))
            self._saved |= {(each.job_id, each.attempt): each for each in committed}

    def tell_again(self, bringing: Collection[AttemptKey]) -> int:
        count = super().tell_again(bringing)
        ends = (each for each in self.reports(TOLD_AGAIN) if isinstance(each, EndedReport | RefusedReport))
        left = self._over - {AttemptKey.of(each) for each in ends}
        if left:
            self.world.observer.violate("told", f"{self.name} tells a restored server nothing of {sorted(left)}")
        return count

    def _tell_late(self, saved: CommittedReport) -> None:
        """Of an attempt that has ended here, a checkpoint newer than all others."""
        life = self.world.agents.get(self.name)
        if life is None or life.store is not self or life.process.is_dead:
            return
        manifest = saved.manifest
        late = manifest.model_copy(update={"step": manifest.step + 0.25, "path": f"{manifest.path}-late"})
        os.makedirs(late.path, exist_ok=True)
        self.world.observer.told_late.add((saved.job_id, late.step))
        self.add_reports([saved.model_copy(update={"report_id": self.next_report_id(), "manifest": late})])


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
