"""What real processes come through: `kills` (processes killed and frozen at random) and `connections` (broken calls).

A real server, real agents and their supervisors run jobs that note each start and each end on the disk, beside the
server's tables: a script that was started twice, or that was alive twice, shows there whatever the tables say. Each of
three machines has two emulated accelerators, and four times as many jobs as accelerators wait or run at any time.

`kills`, 20 minutes: every few seconds a server, an agent, a supervisor or a rank is killed or frozen for up to ten
seconds; servers and agents are back within seconds, well within the lease of 60 s. `connections`, 30 minutes: every
agent calls through a proxy that cuts half of all connections after a random number of bytes.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.tables import Measured
from tests.support.real_server import RealServer
from workers import processes

ROWS = ("kills", "connections")
_MINUTES = {"kills": 20.0, "connections": 30.0}
_MACHINES, _EACH = 3, 2
_JOBS_AT_A_TIME = 4 * _MACHINES * _EACH
_LEASE = "60s"
_POOL = {"shape": "ax2", "accelerator": "a", "accelerators": _EACH, "cpus": 2, "memory": "1GB", "emulated": True}
_POLICY = {"policy": {"name": "fifo"}, "rules": {"round_s": 5, "backoff_s": 1, "quarantine_jobs": 1000}}
#: After the faults: what is left must end within this time.
_HEAL_S = 300.0

#: Notes its start and its end; a second living one of the same job notes that too.
_SCRIPT = """
import fcntl, os, sys, time
folder, job, attempt = sys.argv[1], os.environ["WALRAS_JOB_ID"], os.environ["WALRAS_ATTEMPT"]
def note(what):
    with open(f"{folder}/{what}", "a") as file:
        file.write(f"{job}-{attempt}\\n")
note("starts")
lock = open(f"{folder}/lock-{job}", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    note("doubles")
time.sleep(float(sys.argv[2]))
note("ends")
"""


class _Cluster:
    """The processes under test, and the folder in which the scripts write what they did."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.notes = folder / "notes"
        self.notes.mkdir()
        self._script = folder / "script.py"
        self._script.write_text(_SCRIPT)
        self.server = RealServer(folder, [_POOL], _POLICY, lease=_LEASE).start()
        self.jobs: list[int] = []
        #: Attempts whose own processes were killed: their job may start again.
        self.killed: set[str] = set()

    def fill_queue(self) -> None:
        """Submit what is missing. A submit without an answer is made again under its key, as a client does."""
        active = len(self.active())
        for _ in range(max(0, _JOBS_AT_A_TIME - active)):
            length_s = self.chance.choice((0.5, 1.0, 2.0, 5.0, 15.0))
            spec = {
                "run": [sys.executable, "-S", str(self._script), str(self.notes), str(length_s)],
                "resources": {"accelerators": "a:1"},
                "retry": {"max_restarts": 100},
                "workdir": str(self.server.folder),
            }
            key = f"{self.chance.getrandbits(64):016x}"
            self.jobs.append(int(_patiently(partial(self.server.call, "POST", "/jobs", spec, key))["id"]))

    def active(self) -> list[dict[str, Any]]:
        """The jobs that are not over."""
        found = _patiently(lambda: self.server.call("GET", "/jobs?limit=500&active=true"))
        return list(found["items"])

    def attempts_of(self, job_id: int) -> list[dict[str, Any]]:
        return list(_patiently(lambda: self.server.call("GET", f"/jobs/{job_id}"))["attempt_list"])

    def state_of(self, job_id: int) -> str:
        return str(_patiently(lambda: self.server.call("GET", f"/jobs/{job_id}"))["state"])

    def noted(self, what: str) -> list[str]:
        """The attempts that wrote this, one entry each time."""
        path = self.notes / what
        return path.read_text().split() if path.exists() else []

    def supervisors(self) -> Iterator[tuple[str, int]]:
        """(attempt, process) of every supervisor that lives."""
        for agent in self.server.agents.values():
            for folder in agent.state.glob("attempts/*-*"):
                with contextlib.suppress(OSError, ValueError):
                    facts = json.loads((folder / "supervisor.json").read_bytes())
                    if processes.ProcessName(facts["pid"], facts["start_ticks"]).is_alive:
                        # What follows job and attempt names the incarnation that granted it.
                        yield "-".join(folder.name.split("-")[:2]), int(facts["pid"])


def _patiently(call: Callable[[], tuple[int, Any]]) -> Any:
    """Repeat a call until the server answers it."""
    until = time.monotonic() + 120.0
    while True:
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            status, answer = call()
            if status < 300:
                return answer
        assert time.monotonic() < until, "the server does not answer"
        time.sleep(0.2)


# ------------------------------------------------------------------------------------------------ faults


class _Faults:
    """One fault at a time; what was killed is started again within seconds."""

    def __init__(self, cluster: _Cluster) -> None:
        self._cluster = cluster
        self.done: Counter[str] = Counter()

    def commit(self) -> None:
        """Draw a fault and carry it out."""
        kinds = (self._kill_server, self._kill_agent, self._freeze_one, self._kill_supervisor, self._kill_rank)
        fault = self._cluster.chance.choices(kinds, (3, 5, 5, 1, 1))[0]
        self.done[fault.__name__.strip("_")] += 1
        fault()

    def _kill_server(self) -> None:
        self._cluster.server.kill()
        time.sleep(self._cluster.chance.uniform(0.0, 4.0))
        self._cluster.server.start()

    def _kill_agent(self) -> None:
        agent = self._cluster.chance.choice(sorted(self._cluster.server.agents.items()))[1]
        agent.kill()
        if self._cluster.chance.random() < 0.2:  # both at once
            self._kill_server()
        time.sleep(self._cluster.chance.uniform(0.0, 6.0))
        agent.start()

    def _freeze_one(self) -> None:
        """A server, an agent, a supervisor or a rank stands still for up to ten seconds."""
        cluster = self._cluster
        assert cluster.server.process is not None
        pids = [cluster.server.process.pid, *(agent.pid for agent in cluster.server.agents.values())]
        pids += [pid for _, pid in cluster.supervisors()]
        pids += [pid for agent in cluster.server.agents.values() for pid in agent.alive()]
        pid = cluster.chance.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(cluster.chance.uniform(0.5, 10.0))
            os.kill(pid, signal.SIGCONT)

    def _kill_supervisor(self) -> None:
        alive = list(self._cluster.supervisors())
        if alive:
            name, pid = self._cluster.chance.choice(alive)
            self._cluster.killed.add(name)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_rank(self) -> None:
        alive = list(self._cluster.supervisors())
        if alive:
            name, pid = self._cluster.chance.choice(alive)
            with contextlib.suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                    self._cluster.killed.add(name)
                    os.kill(int(child), signal.SIGKILL)


class _BrokenConnections:
    """A proxy in a thread of its own that cuts half of all connections after a random number of bytes."""

    def __init__(self, target: str, chance: random.Random) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._chance = chance
        self.cut = self.passed = 0
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self._ready.wait(10)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room = self._chance.randrange(4000) if self._chance.random() < 0.5 else None
        self.cut, self.passed = self.cut + (room is not None), self.passed + (room is None)
        try:
            back_reader, back_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        left = [room]

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if left[0] is not None:
                        data, left[0] = data[: left[0]], left[0] - len(data)
                    sink.write(data)
                    await sink.drain()
                    if left[0] is not None and left[0] <= 0:
                        break
            for each in (writer, back_writer):
                with contextlib.suppress(OSError):
                    each.transport.abort() if left[0] is not None else each.close()

        await asyncio.gather(pump(reader, back_writer), pump(back_reader, writer))


# ------------------------------------------------------------------------------------------------ the two runs


def _finish(cluster: _Cluster, measured: Measured, quiet: bool) -> Measured:
    """Let everything end, then compare what the scripts wrote with what the server says."""
    until = time.monotonic() + _HEAL_S
    while cluster.active() and time.monotonic() < until:
        time.sleep(1.0)
    starts, ends = Counter(cluster.noted("starts")), set(cluster.noted("ends"))
    attempts = {job_id: cluster.attempts_of(job_id) for job_id in cluster.jobs}
    false_losses = sum(
        each.get("reason") == "INFRA:NODE_LOST" and f"{job_id}-{each['attempt']}" not in cluster.killed
        for job_id, each_job in attempts.items()
        for each in each_job
    )
    again = 0
    for job_id, each_job in attempts.items():
        ran = [f"{job_id}-{each['attempt']}" for each in each_job if starts[f"{job_id}-{each['attempt']}"]]
        # Every start but the last must be one whose processes we killed.
        again += sum(1 for name in ran[:-1] if name not in cluster.killed)
        if any(name not in cluster.killed for name in ran[:-1]):
            told = [(each["attempt"], each["state"], each.get("reason"), each["leased_at"]) for each in each_job]
            print(
                f"job {job_id} started again: {told}; killed by us: {sorted(cluster.killed & set(ran))}",
                file=sys.stderr,
            )
    finished = {name.split("-")[0] for name in ends}
    measured.add("jobs submitted and acknowledged", len(cluster.jobs), "")
    measured.add("jobs lost", sum(not each_job for each_job in attempts.values()), "", at_most=0)
    measured.add("jobs that did not succeed", sum(cluster.state_of(job) != "SUCCEEDED" for job in cluster.jobs), "", 0)
    measured.add("jobs whose script never ended", sum(str(job) not in finished for job in cluster.jobs), "", 0)
    measured.add("attempts started twice", sum(count > 1 for count in starts.values()), "", at_most=0)
    measured.add("jobs alive twice", len(cluster.noted("doubles")), "", at_most=0)
    measured.add("scripts started again though nothing of theirs was killed", again, "", at_most=0)
    measured.add("false NODE_LOST", false_losses, "", at_most=0)
    if quiet:
        more = sum(len(each_job) > 1 for each_job in attempts.values())
        measured.add("jobs with more than one attempt", more, "", at_most=0)
    return measured


def _kills(folder: Path, seconds: float, chance: random.Random) -> Measured:
    cluster = _Cluster(folder, chance)
    faults = _Faults(cluster)
    try:
        for number in range(_MACHINES):
            cluster.server.start_agent(f"n{number}", _POOL)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            cluster.fill_queue()
            time.sleep(chance.uniform(0.5, 4.0))
            faults.commit()
        told = ", ".join(f"{count} {name}" for name, count in sorted(faults.done.items()))
        return _finish(cluster, Measured("processes killed and frozen", f"{seconds:.0f} s: {told}"), quiet=False)
    finally:
        cluster.server.close()


def _connections(folder: Path, seconds: float, chance: random.Random) -> Measured:
    cluster = _Cluster(folder, chance)
    proxy = _BrokenConnections(cluster.server.url, random.Random(chance.getrandbits(32)))
    try:
        for number in range(_MACHINES):
            cluster.server.start_agent(f"n{number}", _POOL, servers=[proxy.url])
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            cluster.fill_queue()
            time.sleep(1.0)
        measured = Measured("broken connections", f"{seconds:.0f} s, {proxy.cut} of {proxy.cut + proxy.passed} cut")
        return _finish(cluster, measured, quiet=True)
    finally:
        cluster.server.close()


def measure(scale: float = 1.0, row: str = "kills") -> list[Measured]:
    """`scale` shrinks the time that the faults last."""
    run = {"kills": _kills, "connections": _connections}[row]
    seed = random.SystemRandom().getrandbits(32)
    with tempfile.TemporaryDirectory(prefix="walras-faults-") as name:
        measured = run(Path(name), 60.0 * _MINUTES[row] * scale, random.Random(seed))
    measured.setting += f", seed {seed}"
    return [measured]
