"""Connects the two websockets of a session: the caller's, and the one that the job's machine opens for it.

Sessions are not stored: a server that restarts ends them. The audit has who asked for what.
"""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any

from scheduler.live.holder_shares import HolderShares
from scheduler.live.store.table_rows import AttemptRow
from walras.clocks import random_hex
from walras.cluster import NodeId
from walras.connection.remote_session import SessionAsked, SessionRequest
from walras.errors import Conflict, NotFound
from walras.job_request import JobId

#: The most sessions of one job, and of all jobs.
SESSIONS_OF_JOB, SESSIONS_MOST = 32, 500


@dataclass
class OpenSession:
    """A session whose caller waits for the machine, or is connected to it."""

    node_id: NodeId
    request: SessionRequest
    #: The machine's websocket, once it is connected.
    machine: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    #: Set when the caller's side has ended.
    over: asyncio.Event = field(default_factory=asyncio.Event)


class SessionBroker:
    """The sessions of a server."""

    def __init__(self, chance: Random | None = None) -> None:
        self._chance = chance
        self.shares = HolderShares("sessions", SESSIONS_MOST, fix="end one of them")
        self._open: dict[str, OpenSession] = {}
        #: Machines that have not been told of all their sessions.
        self._asked: set[NodeId] = set()

    def check(self, job_id: JobId, user: str) -> None:
        """Raise Conflict, ShareTaken where one more session would be too many."""
        if sum(each.request.job_id == job_id for each in self._open.values()) >= SESSIONS_OF_JOB:
            raise Conflict(f"job {job_id} has {SESSIONS_OF_JOB} sessions", fix="end one of them")
        self.shares.check(user)

    def ask(self, node_id: NodeId, attempt: AttemptRow, asked: SessionAsked, user: str) -> OpenSession:
        """Ask a machine for a session with an attempt; returns it. Raises as `check`."""
        job_id = attempt.job_id
        self.check(job_id, user)
        self.shares.take(user)
        session_id = random_hex(self._chance, 32)
        life = attempt.incarnation
        request = SessionRequest(
            session_id=session_id, job_id=job_id, attempt=attempt.attempt, incarnation=life, asked=asked, user=user
        )
        session = self._open[session_id] = OpenSession(node_id, request)
        self._asked.add(node_id)
        return session

    def is_asked(self, node_id: NodeId) -> bool:
        """Returns whether there is a session that the machine has not been told of."""
        return node_id in self._asked

    def take(self, node_id: NodeId) -> list[SessionRequest]:
        """Returns the sessions that the machine is to open, each until it has: an answer may be lost."""
        self._asked.discard(node_id)
        mine = (each for each in self._open.values() if each.node_id == node_id)
        return [each.request for each in mine if not each.machine.done()]

    def open_on(self, node_id: NodeId) -> list[str]:
        """Returns the sessions of a machine that are open, or that it is to open."""
        return [session_id for session_id, each in self._open.items() if each.node_id == node_id]

    def waiting(self, node_id: NodeId, session_id: str) -> OpenSession:
        """Returns a requested remote session (attach, exec, forward) of this machine. Raises NotFound for any other."""
        session = self._open.get(session_id)
        if session is None or session.node_id != node_id or session.machine.done():
            raise NotFound("no such session waits for this machine")
        return session

    def end(self, session: OpenSession) -> None:
        """End a session: its caller has disconnected or given up."""
        if self._open.pop(session.request.session_id, None) is not None:
            self.shares.give_back(session.request.user)
        session.machine.cancel()
        session.over.set()
