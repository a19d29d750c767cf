"""What the live server carries: a real `walras server` process on a fresh folder, and clients in this one.

Submits are counted when their 201 is here: each is durable. One machine of the wanted type exists and is taken by the
first job, so every other job waits in line. The machines that are counted are played by clients that heartbeat as
agents do, a call held open that is followed by the next; they are of a type that no job wants.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.tables import Measured

_POLICY = "policy: {name: fifo}\nrules: {round_s: 60}\n"
_JOB = {"run": "true", "resources": {"accelerators": "a100:1"}}
_FACTS = {"shape": "v100x8", "accelerator": "v100", "accelerators": 8, "cpus": 8, "memory_bytes": 2**36}
_TAKEN = {**_FACTS, "shape": "a100x1", "accelerator": "a100", "accelerators": 1}
_START_S = 180.0
_AGENTS_S = 20.0
#: Submitters at the same time.
_SUBMITTERS = 32


class BenchServer:
    """A server process, and an open session to it."""

    def __init__(self, data: Path, session: aiohttp.ClientSession, pid: int) -> None:
        self.process = psutil.Process(pid)
        self._data = data
        self._session = session
        self._url = json.loads((data / "server.json").read_text())["url"]
        self._token = (data / "admin.token").read_text().strip()

    async def call(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token or self._token}"}
        async with self._session.request(method, self._url + path, json=body, headers=headers) as answer:
            assert answer.status < 300, f"{method} {path}: {answer.status} {await answer.text()}"
            return await answer.json()

    async def register(self, node_id: str, facts: dict[str, Any]) -> str:
        """Have a machine admitted; returns its credential."""
        return str((await self.registration(node_id, facts))["credential"])

    async def registration(self, node_id: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Have a machine admitted; returns the server's whole answer."""
        join_token = (self._data / "join.token").read_text().strip()
        message = {"node_id": node_id, "facts": facts}
        answer: dict[str, Any] = await self.call("POST", "/agent/v1/register", message, join_token)
        return answer

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def started_server(folder: Path, files: int | None = None) -> "Iterator[tuple[subprocess.Popen[bytes], float]]":
    """A server on the folder, and how long it took to be ready, seconds. `files`: so many may be open, and no more."""
    policy = folder / "policy.yaml"
    policy.write_text(_POLICY)
    command = [str(Path(sys.executable).parent / "walras"), "server", "--data", str(folder / "data")]
    if files is not None:
        command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "-", *command]
    began = time.monotonic()
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen([*command, "--policy", str(policy)], stdout=log, stderr=log)
    try:
        while not is_ready(folder / "data" / "server.json", process.pid):
            assert process.poll() is None, (folder / "server.log").read_text()
            assert time.monotonic() - began < _START_S, "the server is not ready in time"
            time.sleep(0.02)
        yield process, time.monotonic() - began
    finally:
        process.terminate()
        process.wait(60)


def is_ready(announced: Path, pid: int) -> bool:
    """The file of the server before does not count."""
    return announced.is_file() and bool(json.loads(announced.read_text())["pid"] == pid)


@asynccontextmanager
async def talking(folder: Path, pid: int) -> AsyncIterator[BenchServer]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield BenchServer(folder / "data", session, pid)


async def _each(count: int, at_once: int, work: Callable[[], Awaitable[Any]]) -> tuple[float, list[float]]:
    """Do it `count` times, `at_once` at a time: seconds in all, and of each."""
    took_s: list[float] = []

    async def some(times: int) -> None:
        for _ in range(times):
            began = time.monotonic()
            await work()
            took_s.append(time.monotonic() - began)

    began = time.monotonic()
    await asyncio.gather(*(some(count // at_once) for _ in range(at_once)))
    return time.monotonic() - began, took_s


def quantile_ms(took_s: list[float], share: float) -> float:
    return 1000.0 * float(np.quantile(took_s, share))


async def _submits(server: BenchServer, scale: float) -> Measured:
    """Single submits one after another and from many clients, then batches up to the wanted number of stored jobs."""
    singles, batches = max(64, int(1000 * scale)), max(2, int(80 * scale))
    single = Measured("submits, acknowledged when durable", f"{singles} single ones, {batches} batches of 100")
    passed_s, took_s = await _each(singles, 1, lambda: server.call("POST", "/api/v1/jobs", _JOB))
    single.add("one client: submits", singles / passed_s, "1/s")
    single.add("one client: p99", quantile_ms(took_s, 0.99), "ms")
    passed_s, took_s = await _each(singles, _SUBMITTERS, lambda: server.call("POST", "/api/v1/jobs", _JOB))
    single.add(f"{_SUBMITTERS} clients: submits", len(took_s) / passed_s, "1/s")
    single.add(f"{_SUBMITTERS} clients: p99", quantile_ms(took_s, 0.99), "ms")
    batch = {"jobs": [_JOB] * 100}
    passed_s, took_s = await _each(batches, 1, lambda: server.call("POST", "/api/v1/jobs:batch", batch))
    single.add("one client, batches: submits", 100 * batches / passed_s, "1/s")
    single.add("one client, batches: p99 of a batch", quantile_ms(took_s, 0.99), "ms")
    return single


async def _pages(server: BenchServer, scale: float) -> Measured:
    looks = max(50, int(500 * scale))
    stored = (await server.call("GET", "/api/v1/jobs?limit=1"))["items"][0]["id"]
    measured = Measured("lists", f"{stored} jobs stored, all of them waiting, {looks} looks")
    for path, what in (("/api/v1/jobs", "GET /jobs, 50 jobs"), ("/api/v1/jobs?limit=1000", "GET /jobs, 1000 jobs")):
        _, took_s = await _each(
            looks if what.endswith(" 50 jobs") else looks // 10, 1, partial(server.call, "GET", path)
        )
        measured.add(f"{what}: p50", quantile_ms(took_s, 0.5), "ms")
        measured.add(f"{what}: p99", quantile_ms(took_s, 0.99), "ms")
    _, took_s = await _each(looks // 5, 1, lambda: server.call("GET", f"/api/v1/jobs/{stored}/explain"))
    measured.add("GET /jobs/ID/explain: p99", quantile_ms(took_s, 0.99), "ms")
    return measured


async def _agents(server: BenchServer, scale: float) -> Measured:
    """Machines that have nothing to say, at the pace of a real agent."""
    count = max(20, int(1000 * scale))
    measured = Measured("machines", f"{count} agents with nothing to say, heartbeats held open")
    credentials: list[str] = []
    pace_s = 5.0

    async def register() -> None:
        number = len(credentials)
        credentials.append("")
        credentials[number] = await server.register(f"n{number}", _FACTS)

    passed_s, _ = await _each(count, min(_SUBMITTERS, count), register)
    measured.add("registrations", len(credentials) / passed_s, "1/s")
    beats: list[float] = []

    async def live(number: int) -> None:
        await asyncio.sleep(pace_s * number / len(credentials))
        message = {"node_id": f"n{number}", "wait_s": pace_s}
        while True:
            began = time.monotonic()
            await server.call("POST", "/agent/v1/heartbeat", message, credentials[number])
            beats.append(time.monotonic() - began - pace_s)

    tasks = [asyncio.create_task(live(number)) for number in range(len(credentials))]
    try:
        await asyncio.sleep(2 * pace_s)  # everybody is in step
        beats.clear()
        began, before_s = time.monotonic(), server.cpu_s()
        await asyncio.sleep(_AGENTS_S)
        passed_s, used_s = time.monotonic() - began, server.cpu_s() - before_s
        measured.add("heartbeats", len(beats) / passed_s, "1/s")
        measured.add("share of one processor", 100.0 * used_s / passed_s, "%")
        measured.add("answer later than asked: p99", quantile_ms(beats, 0.99), "ms")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return measured


async def _first_run(folder: Path, process: "subprocess.Popen[bytes]", scale: float) -> list[Measured]:
    async with talking(folder, process.pid) as server:
        taken = asyncio.create_task(_stay(server, await server.register("taken", _TAKEN)))
        try:
            return [await _submits(server, scale), await _pages(server, scale), await _agents(server, scale)]
        finally:
            taken.cancel()
            await asyncio.gather(taken, return_exceptions=True)


async def _stay(server: BenchServer, credential: str) -> None:
    """The machine that is taken is never silent."""
    while True:
        await server.call("POST", "/agent/v1/heartbeat", {"node_id": "taken"}, credential)
        await asyncio.sleep(2.0)


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks the number of requests, stored jobs and agents."""
    with tempfile.TemporaryDirectory(prefix="walras-bench-") as name:
        folder = Path(name)
        with started_server(folder) as (process, empty_s):
            results = asyncio.run(_first_run(folder, process, scale))
        with started_server(folder) as (_, full_s):
            pass
    restart = Measured("start of the server", "until it is ready; with the jobs above, all active")
    restart.add("first start, nothing stored", empty_s, "s")
    restart.add("restart with all jobs active", full_s, "s")
    return [*results, restart]
