"""Two servers over one PostgreSQL: 30 kills of the leader under submits and running jobs, and what a commit costs.

    python -m benchmarks standby

Kills: two agents of four accelerators, jobs of half a second to fifteen; each time the leader is killed with SIGKILL
while jobs are submitted, the other leads, and the killed one is started again. Commits: one job each through the stores
alone, SQLite's and PostgreSQL's, one after the other in the same run, each durable. Submits: through a whole server in
this process over each store, blocks of the two in turn: acknowledged submits a second, the loop's processor time
in the core's `handle`, and how long one submit alone takes, its commit waited for.
"""

import asyncio
import contextlib
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.tables import Measured
from scheduler.core.commands import Command
from scheduler.core.events import Event
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import JobRow, JournalRow, SpecRow
from tests.support.live_world import World, world
from tests.support.real_server import A
from tests.support.standby_pair import StandbyPair
from tests.support.stores import open_test_store, shared_postgres
from walras.job_request import JobId
from walras.states import JobState

KILLS, READY_S = 30, 10.0
ROWS = ("kills", "commits", "submits")
KINDS = ("sqlite", "postgresql")
_AT_ONCE, _BLOCKS = 32, 6
_SCRIPT = "echo $WALRAS_JOB_ID >> {starts}; sleep {seconds}"


def measure(scale: float, row: str) -> list[Measured]:
    """The tables of one row."""
    if row == "kills":
        return [_kills(max(2, round(KILLS * scale)))]
    if row == "commits":
        return [_commits(max(20, round(400 * scale)))]
    return [asyncio.run(_submits(max(_AT_ONCE, round(320 * scale))))]


class _Submitter(threading.Thread):
    """Submits jobs until it is told to stop; a submit without an answer is made again under its key."""

    def __init__(self, pair: StandbyPair) -> None:
        super().__init__(daemon=True)
        self.pair, self.over = pair, threading.Event()
        self.taken: list[int] = []

    def run(self) -> None:
        chance = random.Random(7)
        while not self.over.wait(0.4):
            seconds = chance.choice((0.5, 1.0, 2.0, 15.0))
            spec = {"run": _SCRIPT.format(starts=self.pair.folder / "starts", seconds=seconds),
                    "workdir": str(self.pair.folder), "resources": {"accelerators": "a:1"}}  # fmt: skip
            self.taken.append(self._submit(spec, f"{chance.getrandbits(64):016x}"))

    def _submit(self, spec: dict[str, Any], key: str) -> int:
        while True:
            with contextlib.suppress(OSError, ValueError):
                status, answer = self.pair.call("POST", "/jobs", spec, key)
                if status in (200, 201):
                    return int(answer["id"])
            time.sleep(0.1)


def _kills(kills: int) -> Measured:
    pool = A | {"accelerators": 4, "shape": "ax4", "cpus": 4}
    with tempfile.TemporaryDirectory() as folder:
        pair = StandbyPair(Path(folder), shared_postgres().new_database(), [pool], lease="60s")
        ready = list[float]()
        try:
            pair.start()
            for name in ("n1", "n2"):
                pair.start_agent(name, pool, servers=pair.urls)
            submitter = _Submitter(pair)
            submitter.start()
            for _ in range(kills):
                time.sleep(2.0)
                killed = pair.kill_leader()
                began = time.monotonic()
                pair.until_one_leads(other_than=killed)
                ready.append(time.monotonic() - began)
                pair.restart(killed)
            submitter.over.set()
            submitter.join()
            for job in submitter.taken:
                pair.until_state(job, "SUCCEEDED", 300)
            started = [int(word) for word in (Path(folder) / "starts").read_text().split()]
            attempts = sum(len(pair.job(job)["attempt_list"]) for job in submitter.taken)
        finally:
            pair.close()
    jobs = set(submitter.taken)
    ready.sort()
    found = Measured("leaders killed under submits and running jobs", f"{kills} kills, {len(jobs)} jobs")
    found.add("acknowledged jobs lost", len(jobs - set(started)), "jobs", at_most=0)
    found.add("scripts started twice", len(started) - len(set(started)), "scripts", at_most=0)
    found.add("attempts beyond the first", attempts - len(jobs), "attempts", at_most=0)
    found.add("another leads and answers, median", ready[len(ready) // 2], "s")
    found.add("another leads and answers, p95", ready[min(len(ready) - 1, round(0.95 * len(ready)))], "s", READY_S)
    found.add("another leads and answers, worst", ready[-1], "s")
    return found


def _commits(commits: int) -> Measured:
    rates = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder, open_test_store(kind, Path(folder)) as store:
            began = time.perf_counter()
            for number in range(1, commits + 1):
                job = JobRow(JobId(number), "j", "p", "ada", "k", JobState.PENDING, 50, 1, 1.0)
                journal = [JournalRow(1.0, "event", "JobSubmitted", "{}" * 400)]
                store.commit(WriteBatch(*journal, job, SpecRow(JobId(number), "{}", "{}")))
            rates[kind] = commits / (time.perf_counter() - began)
    found = Measured("durable commits of one submit each", f"{commits} commits")
    found.add("SQLite", rates["sqlite"], "commits/s")
    found.add("PostgreSQL", rates["postgresql"], "commits/s")
    found.add("PostgreSQL beside SQLite", rates["postgresql"] / rates["sqlite"], "x")
    return found


class _TimedServer:
    """A server over one kind of store, and what its submits took."""

    def __init__(self, running: World) -> None:
        self._running, self._core = running, running.loop.core
        self._handle = self._core.handle
        self._core.handle = self._timed  # type: ignore[method-assign]
        self.handled_s: list[float] = []
        self.alone_s: list[float] = []
        self.rates: list[float] = []

    def _timed(self, event: Event) -> list[Command]:
        began = time.thread_time()
        commands = self._handle(event)
        self.handled_s.append(time.thread_time() - began)
        return commands

    async def submit(self, count: int) -> None:
        """A block of single submits one after the other, and one of many at once."""
        for _ in range(count // 4):
            began = time.perf_counter()
            await self._running.submit({})
            self.alone_s.append(time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(self._some(count // _AT_ONCE) for _ in range(_AT_ONCE)))
        self.rates.append(count // _AT_ONCE * _AT_ONCE / (time.perf_counter() - began))

    async def _some(self, count: int) -> None:
        for _ in range(count):
            await self._running.submit({})


async def _submits(count: int) -> Measured:
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for kind in KINDS:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            servers[kind] = _TimedServer(await stack.enter_async_context(world(folder, kind=kind)))
        for _ in range(_BLOCKS):
            for server in servers.values():
                await server.submit(count)
    found = Measured("submits through a server over each store", f"{_BLOCKS} blocks of {count // 4} and {count} each")
    named = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
    for kind, server in servers.items():
        found.add(f"{named[kind]}: submits, {_AT_ONCE} at once", statistics.median(server.rates), "1/s")
        found.add(f"{named[kind]}: one submit, median", 1e3 * statistics.median(server.alone_s), "ms")
        found.add(f"{named[kind]}: `handle`, median", 1e6 * statistics.median(server.handled_s), "µs")
    lite, postgres = servers.values()
    rate = statistics.median(postgres.rates) / statistics.median(lite.rates)
    found.add("PostgreSQL beside SQLite: submits", rate, "x")
    handle = statistics.median(postgres.handled_s) / statistics.median(lite.handled_s)
    found.add("PostgreSQL beside SQLite: `handle`", handle, "x", at_most=1.1)
    return found
