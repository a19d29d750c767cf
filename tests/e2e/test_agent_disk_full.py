"""An agent on a full disk: it lives, keeps the leases of healthy jobs, says so, refuses starts, and forgets nothing.

The agent runs in the test's event loop on a database that is really full (SQLite's own limit of pages); supervisors and
ranks are real.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.agent_commands import LOOP, AgentStand, a_stop
from walras.wire import Register, ShapeFacts
from workers import processes
from workers.agent.agent import Agent
from workers.agent.launch import AgentMachine
from workers.agent.report_store import AgentStore
from workers.agent.server_client import Enrolment, ServerClient
from workers.devices import Accelerators, AttemptKey, Host
from workers.supervisor_protocol import PLAN_FILE, read_plan

pytestmark = pytest.mark.slow

FACTS = ShapeFacts(shape="a100x2", accelerator="a100", accelerators=2, cpus=2, memory_bytes=1 << 32, emulated=True)


class AgentHere:
    """An agent of this process, and its database."""

    def __init__(self, folder: Path, server: AgentStand) -> None:
        self.state = folder / "agent"
        (folder / "join.token").write_text(server.join_token)
        self._server, self._folder = server, folder
        self.store = AgentStore(self.state)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        host, accelerators = Host(2.0, 1 << 32), Accelerators("a100", 2)
        machine = AgentMachine(self.state, accelerators, host, is_emulated=True, speeds={}, environ={})
        async with aiohttp.ClientSession() as session:
            register = Register(node_id="n1", facts=FACTS)
            enrolment = Enrolment(self.state, register, self._folder / "join.token", "127.0.0.1")
            agent = Agent(machine, self.store, ServerClient(session, self._server.url), enrolment)
            task = asyncio.create_task(agent.run())
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def fill(self) -> None:
        """From now on no row fits into the database."""
        database = self.store._db
        database.execute("PRAGMA max_page_count = 1")
        with contextlib.suppress(sqlite3.OperationalError):
            for number in range(10_000):
                database.execute("INSERT INTO notices VALUES (?)", (f"{number}" * 100,))
        with contextlib.suppress(sqlite3.OperationalError):
            for number in range(10_000):
                database.execute("INSERT INTO granted VALUES (NULL, 'x', ?, 1, 'over', 0, NULL, NULL)", (number,))
        with contextlib.suppress(sqlite3.OperationalError):
            for number in range(10_000):
                database.execute("INSERT INTO reports VALUES (?, '')", (-1 - number,))

    def make_room(self) -> None:
        self.store._db.execute("PRAGMA max_page_count = 1000000")

    def close(self) -> None:
        self.store.close()
        for path in self.state.glob(f"attempts/*/{PLAN_FILE}"):
            processes.kill_carriers(read_plan(path.parent).cookie, 60.0)


@pytest.fixture
async def here(tmp_path: Path, server: AgentStand) -> AsyncIterator[AgentHere]:
    made = AgentHere(tmp_path, server)
    yield made
    made.close()


async def test_a_full_disk_costs_no_healthy_job_and_no_report(server: AgentStand, here: AgentHere) -> None:
    """Longer than a lease: what runs goes on, what ends is reported, what is to start is refused with the reason."""
    server.lease_s = 20.0
    async with here.running() as agent:
        await server.start(LOOP, lease_s=20.0)
        await server.start(LOOP, job_id=2, devices=[1], lease_s=20.0)
        await server.until(lambda: len(server.of_type("started")) == 2, 40, "both run")
        here.fill()
        await server.start(LOOP, job_id=3, lease_s=20.0)
        refused = await server.report("refused")
        assert "cannot write its records" in here_problem(server)
        await server.send(a_stop(grace_s=60.0))
        ended = await server.report("ended")
        assert (ended.job_id, ended.exit_code) == (1, 85)
        await server.start(LOOP, job_id=4, lease_s=20.0)
        await server.until(lambda: len(server.of_type("refused")) == 2, 40, "the device is free, the disk still full")
        assert refused.job_id == 3
        assert server.of_type("refused")[1].detail.startswith("disk full: the agent cannot write its records")
        steps = steps_of(server, 2)
        await asyncio.sleep(server.lease_s)
        await server.until(lambda: steps_of(server, 2) > steps, 40, "the healthy job goes on")
        assert not agent.done()
        here.make_room()
        await server.until(lambda: here_problem(server) == "", 40, "the agent says that there is room")
        await server.start(LOOP, job_id=5, lease_s=20.0)
        await server.until(lambda: len(server.of_type("started")) == 3, 40, "it takes work again")
        assert not agent.done()
    known = {job_id: here.store.attempt(AttemptKey(job_id, 1)) for job_id in (1, 2, 3, 4, 5)}
    assert [each and each.phase.value for each in known.values()] == ["over", "running", "over", "over", "running"]
    ids = [report.report_id for report in server.reports]
    assert ids == sorted(set(ids))


async def test_an_end_that_was_not_written_is_found_again(server: AgentStand, here: AgentHere) -> None:
    """The agent is ended while its disk is full: the next one reads the supervisor's journal."""
    async with here.running():
        await server.start(LOOP)
        await server.report("progress")
        here.store._db.execute("PRAGMA query_only = ON")  # no write succeeds, as on a full disk
        server.acknowledges = False
        await server.send(a_stop())
        await server.report("ended")
    here.store.close()
    here.store = AgentStore(here.state)
    assert [known.key.job_id for known in here.store.open_attempts()] == [1]
    server.acknowledges = True
    async with here.running():
        await server.until(lambda: len(server.of_type("ended")) == 2, 40, "the end is told again, under a new id")
    assert {ended.exit_code for ended in server.of_type("ended")} == {85}


def here_problem(server: AgentStand) -> str:
    """What the agent last said is wrong."""
    return server.heartbeats[-1].problem


def steps_of(server: AgentStand, job_id: int) -> float:
    """The most that the job has told of."""
    return max((report.steps for report in server.of_type("progress") if report.job_id == job_id), default=0.0)
