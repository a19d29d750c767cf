"""What others notice of a crowd: a real `walras server`, its API timed quiet and in the crowd.

strangers: 1,024 connections from one address without a token, half of them silent, half with a byte every five seconds.
The server may open 1,024 files, as is usual: fewer than the crowd wants.

holder: one user with a token who takes all that it can get: 8,192 silent connections, 256 bodies of a byte every two
seconds, 10,000 waiting jobs, content until it is refused, 500 sessions with its job. Another's job trains and saves
beside it.

The crowd is a process of its own, of the least priority: it stands for other machines, which take none of the server's
processor. A connection that the server closes is opened again when its owner next looks. Calls are paced, over a kept
connection and over a new one in turn: both have to get through. Quiet spells and crowded ones take turns, so that
whatever else the machine does falls on both.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.bench_server import started_server
from benchmarks.tables import Measured
from tests.support.fault_jobs import COUNTING
from tests.support.real_server import FIFO, RealServer
from tests.support.waiting import wait_for

ROWS = ("strangers", "holder")

#: What the holder wants; a piece of content has 1 MiB.
_HOLDS = {"connections": 8192, "bodies": 256, "jobs": 10_000, "pieces": 4096, "sessions": 500}
_SLOW_BODY = "POST /api/v1/jobs\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n"
_MACHINE = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 2, "memory": "2GB", "emulated": True}
_CROWD = 1024
_BYTE_EVERY_S = 5.0
_FILES = 1024
_SPELLS = 4
_SPELL_S = 8.0
_CALL_EVERY_S = 0.02
_SETTLING_S = 6.0


async def _stranger(port: int, number: int) -> None:
    """Comes back whenever it is shown the door."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(_BYTE_EVERY_S * (number % 50) / 50)
    while True:
        with contextlib.suppress(OSError):
            door = socket.socket()
            door.setblocking(False)
            with door:
                await loop.sock_connect(door, ("127.0.0.1", port))
                while True:
                    await asyncio.sleep(_BYTE_EVERY_S)
                    if number % 2:
                        await loop.sock_sendall(door, b"G")
                    with contextlib.suppress(BlockingIOError):
                        if not door.recv(1):
                            break
        await asyncio.sleep(0.01)


async def _crowd(port: int, count: int) -> None:
    await asyncio.gather(*(_stranger(port, number) for number in range(count)))


class _Holder:
    """One user who takes all that it can get."""

    def __init__(self, port: int, token: str, job_id: int, scale: float) -> None:
        self._port, self._job_id = port, job_id
        self._headers = {"Authorization": f"Bearer {token}"}
        self._sizes = {name: max(8, int(size * scale)) for name, size in _HOLDS.items()}

    async def take_all(self) -> None:
        """Goes on until the process is ended."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        base = f"http://127.0.0.1:{self._port}"
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(base, headers=self._headers, connector=connector) as session:
            await asyncio.gather(
                *(self._open(number, "GET /readyz", 60.0) for number in range(self._sizes["connections"])),
                *(self._open(number, _SLOW_BODY, 2.0) for number in range(self._sizes["bodies"])),
                *(self._session(session) for _ in range(self._sizes["sessions"])),
                self._submit(session),
                self._fill(session),
            )

    async def _open(self, number: int, request: str, byte_every_s: float) -> None:
        loop = asyncio.get_running_loop()
        first, _, more = request.partition("\r\n")
        head = f"{first} HTTP/1.1\r\nHost: x\r\nAuthorization: {self._headers['Authorization']}\r\n{more}\r\n"
        await asyncio.sleep(number / 2000)
        while True:
            with contextlib.suppress(OSError):
                door = socket.socket()
                door.setblocking(False)
                with door:
                    await loop.sock_connect(door, ("127.0.0.1", self._port))
                    await loop.sock_sendall(door, head.encode())
                    while more or await loop.sock_recv(door, 1 << 14):  # a body has no answer before its end
                        await asyncio.sleep(byte_every_s)
                        if more:
                            await loop.sock_sendall(door, b" ")
            await asyncio.sleep(1.0)

    async def _submit(self, session: aiohttp.ClientSession) -> None:
        waiting = {"run": "true", "resources": {"accelerators": {_MACHINE["accelerator"]: 1}}}
        for _ in range(max(1, self._sizes["jobs"] // 500)):
            await self._ask(session, "POST", "/api/v1/jobs:batch", json={"jobs": [waiting] * 500})

    async def _fill(self, session: aiohttp.ClientSession) -> None:
        for _ in range(self._sizes["pieces"]):
            content = os.urandom(1 << 20)
            name = hashlib.sha256(content).hexdigest()
            if await self._ask(session, "PUT", f"/content/v1/chunks/{name}", data=content) == 413:
                return

    @staticmethod
    async def _ask(session: aiohttp.ClientSession, method: str, path: str, **body: Any) -> int:
        """The status of the answer; asks again where it has to make way for its own others, or is told to wait."""
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.request(method, path, **body) as answer:
                    if answer.status != 429:
                        return answer.status
            await asyncio.sleep(0.5)

    async def _session(self, session: aiohttp.ClientSession) -> None:
        path = f"/api/v1/jobs/{self._job_id}/session"
        asked = {"kind": "exec", "argv": json.dumps(["sleep", "600"])}
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.ws_connect(path, params=asked) as socket_:
                    async for _ in socket_:
                        pass
            await asyncio.sleep(2.0)


@contextmanager
def _crowd_process(*arguments: object) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.bench_crowd", *map(str, arguments)]
    process = subprocess.Popen(command)
    try:
        yield
        assert process.poll() is None, "the crowd has gone"
    finally:
        process.kill()
        process.wait()


async def _calls(url: str, token: str, length_s: float, write: str = "jobs:dryrun") -> list[float]:
    """Seconds of each call of `GET /jobs` and of a submission (on hold) or dry run, made at a steady pace."""
    took_s: list[float] = []
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as kept:

        async def call(session: aiohttp.ClientSession, number: int) -> None:
            body: dict[str, Any] | None = None if number % 3 else {"run": "true", "hold": True}
            method, path = ("GET", "/api/v1/jobs") if body is None else ("POST", f"/api/v1/{write}")
            async with session.request(method, url + path, json=body) as answer:
                assert answer.status in (200, 201), await answer.text()
                await answer.read()

        until = time.monotonic() + length_s
        number = 0
        while time.monotonic() < until:
            number += 1
            began = time.monotonic()
            if number % 2:
                await call(kept, number)
            else:
                async with aiohttp.ClientSession(headers=headers, timeout=timeout) as fresh:
                    await call(fresh, number)
            took_s.append(time.monotonic() - began)
            await asyncio.sleep(max(0.0, _CALL_EVERY_S - took_s[-1]))
    return took_s


def _p99_ms(took_s: list[float]) -> float:
    return 1000.0 * float(np.quantile(took_s, 0.99))


def measure(scale: float = 1.0, row: str = "strangers") -> list[Measured]:
    """`scale` shrinks the crowd and the time."""
    return [_strangers(scale) if row == "strangers" else _holder(scale)]


def _holder(scale: float) -> Measured:
    length_s = max(4.0, _SPELL_S * scale)
    quiet_s: list[float] = []
    crowded_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="walras-bench-") as name:
        server = RealServer(Path(name), [_MACHINE], FIFO).start()
        try:
            server.start_agent("n1", _MACHINE)
            job = server.submit(run=[sys.executable, "-c", COUNTING, str(Path(name) / "never")])
            _wait_until_it_saves(server, job)
            eve, bob = (_user_token(server, user) for user in ("eve", "bob"))
            hers = _submit_as(server.url, eve, {"run": "sleep 3600"})
            wait_for(lambda: server.state(hers) == "RUNNING", 60, "the holder's job runs")
            port = int(server.url.rsplit(":", 1)[1])
            for _ in range(_SPELLS):
                quiet_s += asyncio.run(_calls(server.url, bob, length_s, "jobs"))
                with _crowd_process("--port", port, "--token", eve, "--job", hers, "--scale", scale):
                    time.sleep(_SETTLING_S)
                    crowded_s += asyncio.run(_calls(server.url, bob, length_s, "jobs"))
                    _wait_until_it_saves(server, job)
            attempts = len(server.job(job)["attempt_list"])
        finally:
            server.close()
    sizes = ", ".join(f"{max(8, int(size * scale)):,} {what}" for what, size in _HOLDS.items())
    measured = Measured("one user takes all it can get", f"{sizes}; {_SPELLS} x {length_s:.0f} s each way")
    quiet_ms, crowded_ms = _p99_ms(quiet_s), _p99_ms(crowded_s)
    measured.add("calls of others, quiet and beside it", len(quiet_s) + len(crowded_s), "")
    measured.add("API p99 of others, quiet", quiet_ms, "ms")
    measured.add("API p99 of others beside it", crowded_ms, "ms")
    measured.add("times the quiet p99 of others", crowded_ms / quiet_ms, "", at_most=2.0)
    measured.add("leases of others lost", attempts - 1, "", at_most=0.0)
    return measured


def _wait_until_it_saves(server: RealServer, job: int) -> None:
    """Until one more checkpoint is recorded."""
    before = server.job(job)["checkpoint"] or {"step": 0.0}
    wait_for(lambda: (server.job(job)["checkpoint"] or before)["step"] > before["step"], 60, "a checkpoint is recorded")


def _user_token(server: RealServer, name: str) -> str:
    status, made = server.call("POST", "/tokens", {"user": name, "role": "user", "projects": ["default"]})
    assert status == 201, made
    return str(made["token"])


def _submit_as(url: str, token: str, spec: dict[str, Any]) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/api/v1/jobs", json.dumps(spec).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(json.load(answer)["id"])


def _strangers(scale: float) -> Measured:
    count, length_s = max(64, int(_CROWD * scale)), max(2.0, _SPELL_S * scale)
    quiet_s: list[float] = []
    crowded_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="walras-bench-") as name:
        folder = Path(name)
        log = folder / "server.log"
        with started_server(folder, _FILES):
            known = json.loads((folder / "data" / "server.json").read_text())
            token = (folder / "data" / "admin.token").read_text().strip()
            before_bytes = log.stat().st_size
            for _ in range(_SPELLS):
                quiet_s += asyncio.run(_calls(known["url"], token, length_s))
                with _crowd_process("--port", known["port"], "--count", count):
                    time.sleep(_SETTLING_S)
                    crowded_s += asyncio.run(_calls(known["url"], token, length_s))
            log_mb = (log.stat().st_size - before_bytes) / 1e6
    measured = Measured(
        "a crowd without tokens", f"{count} idle and slow connections, {_SPELLS} x {length_s:.0f} s each way"
    )
    quiet_ms, crowded_ms = _p99_ms(quiet_s), _p99_ms(crowded_s)
    measured.add("calls, quiet and in the crowd", len(quiet_s) + len(crowded_s), "")
    measured.add("API p99, quiet", quiet_ms, "ms")
    measured.add("API p99 in the crowd", crowded_ms, "ms")
    measured.add("times the quiet p99", crowded_ms / quiet_ms, "", at_most=2.0)
    measured.add("log written meanwhile", log_mb, "MB", at_most=1.0)
    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--token", default="")
    parser.add_argument("--job", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    os.nice(19)
    if given.token:
        asyncio.run(_Holder(given.port, given.token, given.job, given.scale).take_all())
    asyncio.run(_crowd(given.port, given.count))
