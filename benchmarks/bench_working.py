"""What the live server carries when its machines work: starts, reports, checkpoints and ends all the time.

A real `walras server` with a million jobs stored that have ended, ten thousand active ones, and a thousand machines of
one accelerator each, played by clients of this process that call as agents do. Every job lasts 40 s, so 25 start a
second and 25 end; a job reports its progress with every heartbeat and commits one checkpoint. New jobs arrive as fast
as others end. After a warm-up of five minutes, in which the whole queue has been forecast twice, ten minutes are
measured: how long answers take, the longest piece of work in the server's event loop (processor time), and how the
server's memory grows.

A process that plays a thousand machines is busy itself and would time its own delays. So how long heartbeats take is
what twenty of the machines see, which a process of their own plays.
"""

import asyncio
import contextlib
import json
import multiprocessing
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_server import BenchServer, is_ready, quantile_ms, started_server, talking
from benchmarks.tables import Measured
from walras.clocks import random_pause

_JOB = {"run": "true", "resources": {"accelerators": "a100:1"}, "steps": 1000}
_FACTS = {"shape": "a100x1", "accelerator": "a100", "accelerators": 1, "cpus": 8, "memory_bytes": 2**36}
_MACHINES, _ACTIVE, _STORED = 1000, 10_000, 1_000_000
#: Machines whose heartbeats are timed.
_TIMED = 20
_LENGTH_S = 40.0
_WARM_UP_S, _MEASURED_S = 300.0, 600.0
_POLICY = "policy: {name: fifo}\nrules: {round_s: 60}\n"
#: Grows with the first jobs and forecasts: caches, pools of the allocator, the forecasts of ten thousand jobs, of which
#: an old set goes as a new one comes. What is left after the warm-up must not.
_RSS_NOISE = 0.02


@dataclass(slots=True)
class _Played:
    """What the clients saw."""

    beats_s: list[float] = field(default_factory=list)
    looks_s: list[float] = field(default_factory=list)
    started: int = 0
    ended: int = 0


class _Machine:
    """A machine of one accelerator as the server sees it."""

    def __init__(self, server: BenchServer, number: int, registered: dict[str, Any], played: _Played) -> None:
        node_id, self._chance = f"n{number}", random.Random(number)
        self._server, self._node_id, self._registered, self._played = server, node_id, registered, played
        self._report_id = 0
        self._acks: list[int] = []
        self._reports: list[dict[str, Any]] = []
        self._job: tuple[int, int] | None = None
        self._began = 0.0
        self._has_committed = False

    async def live(self, first_s: float) -> None:
        await asyncio.sleep(first_s)
        while True:
            await self._beat()

    async def _beat(self) -> None:
        self._work()
        reports, acks = self._reports, self._acks
        here = [] if self._job is None else [{"job_id": self._job[0], "attempt": self._job[1]}]
        wait_s = 0.0 if reports or acks else 5.0
        message = {"node_id": self._node_id, "here": here, "reports": reports, "acks": acks, "wait_s": wait_s}
        identity = {name: self._registered[name] for name in ("cluster",) if name in self._registered}
        began = time.monotonic()
        answer = await self._server.call(
            "POST", "/agent/v1/heartbeat", message | identity, self._registered["credential"]
        )
        took_s = time.monotonic() - began
        if wait_s == 0.0:
            self._played.beats_s.append(took_s)
        self._reports, self._acks = [], []
        for command in answer["commands"]:
            self._acks.append(command["command_id"])
            if command["type"] == "start":
                self._start(command)
        if not self._acks:
            # A second on average, and drawn as agents draw it: machines do not call in step.
            await asyncio.sleep(0.05 if wait_s else random_pause(self._chance, 4 / 3))

    def _start(self, command: dict[str, Any]) -> None:
        self._job, self._began, self._has_committed = (command["job_id"], command["attempt"]), time.monotonic(), False
        self._checkpoints = command["checkpoint_dir"]
        self._report("started")
        self._played.started += 1

    def _work(self) -> None:
        """Report progress each time, a checkpoint half-way, and the end."""
        if self._job is None or time.monotonic() == self._began:
            return
        passed = (time.monotonic() - self._began) / _LENGTH_S
        if passed >= 1.0:
            self._report("ended", cause="exited", exit_code=0, steps=1000.0, cpu_s=1.0)
            self._job = None
            self._played.ended += 1
            return
        self._report("progress", steps=1000.0 * passed, steps_per_s=25.0, samples=10, values={"loss": 1.0 - passed})
        if passed > 0.5 and not self._has_committed:
            self._has_committed = True
            manifest = {"step": 500.0, "path": f"{self._checkpoints}/500", "digest": "0" * 64}
            self._report("committed", manifest=manifest, took_s=0.1)

    def _report(self, kind: str, **fields: Any) -> None:
        assert self._job is not None
        self._report_id += 1
        job_id, attempt = self._job
        self._reports.append(
            {"type": kind, "report_id": self._report_id, "job_id": job_id, "attempt": attempt, **fields}
        )


# ------------------------------------------------------------------------------------------------ the server


@contextmanager
def _watched_server(folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A server whose event loop is timed; its report is there once it has ended."""
    command = [sys.executable, "-m", "benchmarks.watched_server", str(folder / "watch.json"), "server"]
    command += ["--data", str(folder / "data"), "--policy", str(folder / "policy.yaml")]
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 300.0
        while not is_ready(folder / "data" / "server.json", process.pid):
            assert process.poll() is None, (folder / "server.log").read_text()[-2000:]
            assert time.monotonic() < until, "the server is not ready in time"
            time.sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(120)


def _store_ended_jobs(folder: Path, count: int) -> None:
    """Write jobs that ended long ago into the tables of a server that is not running."""
    with contextlib.closing(sqlite3.connect(folder / "data" / "walras.db")) as database:
        jobs = {
            "name": "old", "project": "default", "user": "somebody", "kind": "true", "state": "SUCCEEDED",
            "priority": 0, "accelerators": 1, "submitted_at": 0.0, "detail": "", "attempts": 1, "restarts": 0,
            "steps": 1000.0, "ended_at": 1.0, "first_values": "{}", "last_values": "{}", "labels": "{}",
        }  # fmt: skip
        names, marks = ", ".join(jobs), ", ".join("?" * len(jobs))
        with database:
            database.executemany(
                f"INSERT INTO jobs (job_id, {names}) VALUES (?, {marks})",
                ((job_id, *jobs.values()) for job_id in range(1, count + 1)),
            )


async def _keep_active(server: BenchServer, active: int, played: _Played, all_of_them: float) -> None:
    """Submit until enough jobs are active, then one for each that ends; `all_of_them` for each that is seen to end."""
    submitted = 0
    while True:
        missing = active + round(played.ended * all_of_them) - submitted
        if missing > 0:
            number = min(missing, 100)
            await server.call("POST", "/api/v1/jobs:batch", {"jobs": [_JOB] * number})
            submitted += number
        if missing <= 100:
            await asyncio.sleep(1.0)


async def _look(server: BenchServer, played: _Played) -> None:
    """Somebody lists jobs now and then."""
    while True:
        began = time.monotonic()
        await server.call("GET", "/api/v1/jobs?limit=50")
        played.looks_s.append(time.monotonic() - began)
        await asyncio.sleep(0.5)


async def _begun_machines(server: BenchServer, numbers: range, played: _Played) -> list[asyncio.Task[None]]:
    tasks, chance = [], random.Random(numbers.start)
    for number in numbers:
        registered = await server.registration(f"n{number}", _FACTS)
        machine = _Machine(server, number, registered, played)
        tasks.append(asyncio.create_task(machine.live(chance.uniform(0.0, _LENGTH_S))))
    return tasks


def _time_machines(folder: Path, pid: int, numbers: range, pipe: Connection) -> None:
    """Play machines in this process; told to `forget`, begin anew, and told anything else, send their times and end."""
    asyncio.run(_timed_machines(folder, pid, numbers, pipe))


async def _timed_machines(folder: Path, pid: int, numbers: range, pipe: Connection) -> None:
    played = _Played()
    async with talking(folder, pid) as server:
        tasks = await _begun_machines(server, numbers, played)
        while True:
            await _alive(tasks, 0.2)
            if pipe.poll():
                if pipe.recv() != "forget":
                    break
                played.beats_s.clear()
        for task in tasks:
            task.cancel()
    pipe.send(played.beats_s)


@contextmanager
def _timing(folder: Path, pid: int, numbers: range) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_time_machines, args=(folder, pid, numbers, theirs), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


async def _run(folder: Path, process: "subprocess.Popen[bytes]", scale: float) -> Measured:
    machines, active = max(20, int(_MACHINES * scale)), max(200, int(_ACTIVE * scale))
    warm_up_s, measured_s = _WARM_UP_S * max(scale, 0.25), _MEASURED_S * scale
    stored, timed = max(1000, int(_STORED * scale)), max(2, int(_TIMED * scale))
    setting = f"{machines} machines, {active} active jobs, {stored} stored, {measured_s:.0f} s"
    measured, played = Measured("machines that work", setting), _Played()
    all_of_them = machines / (machines - timed)
    async with talking(folder, process.pid) as server, contextlib.AsyncExitStack() as stack:
        keep = asyncio.create_task(_keep_active(server, active, played, all_of_them))
        tasks = [keep, asyncio.create_task(_look(server, played))]
        stack.callback(lambda: [task.cancel() for task in tasks])
        tasks += await _begun_machines(server, range(timed, machines), played)
        pipe = stack.enter_context(_timing(folder, process.pid, range(timed)))
        await _alive(tasks, warm_up_s)
        process.send_signal(signal.SIGUSR1)
        pipe.send("forget")
        played.looks_s.clear()
        started, rss, before_s = played.started, [], server.cpu_s()
        for _ in range(20):
            rss.append(server.process.memory_info().rss)
            await _alive(tasks, measured_s / 20)
        used_s = server.cpu_s() - before_s
        pipe.send("stop")
        beats_s = await asyncio.to_thread(pipe.recv)
    starts = (played.started - started) * all_of_them / measured_s
    measured.add("starts", starts, "1/s", at_least=0.9 * machines / _LENGTH_S)
    measured.add("heartbeat with reports: p99", quantile_ms(beats_s, 0.99), "ms", at_most=250)
    measured.add("GET /jobs, 50 jobs: p99", quantile_ms(played.looks_s, 0.99), "ms")
    measured.add("share of one processor", 100.0 * used_s / measured_s, "%")
    first, last = np.median(rss[:5]), np.median(rss[-5:])
    measured.add("memory of the server", float(last) / 2**20, "MiB")
    measured.add(
        "its growth from the first quarter to the last", 100.0 * float(last / first - 1.0), "%", 100 * _RSS_NOISE
    )
    return measured


async def _alive(tasks: list[asyncio.Task[None]], seconds: float) -> None:
    """Wait; raises what a client raised."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks machines, jobs and time."""
    with tempfile.TemporaryDirectory(prefix="walras-bench-") as name:
        folder = Path(name)
        with started_server(folder):
            pass
        (folder / "policy.yaml").write_text(_POLICY)
        _store_ended_jobs(folder, max(1000, int(_STORED * scale)))
        with _watched_server(folder) as process:
            measured = asyncio.run(_run(folder, process, scale))
        watch = json.loads((folder / "watch.json").read_text())
        what = watch["longest"][0][1]
        measured.add(f"longest piece in the event loop ({what})", 1000.0 * watch["longest_processor_s"], "ms", 20)
    return [measured]
