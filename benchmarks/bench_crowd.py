"""What those with a token notice of a crowd without one: a real `walras server`, its API timed quiet and in the crowd.

The crowd is a process of its own: 1,024 connections from one address, half of them silent, half with a byte every five
seconds; a connection that the server closes is opened again when its owner next looks. Calls are paced, over a kept
connection and over a new one in turn: both have to get through. Quiet spells and crowded ones take turns, so that
whatever else the machine does falls on both. The server may open 1,024 files, as is usual: fewer than the crowd wants.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.bench_server import started_server
from benchmarks.tables import Measured

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


@contextmanager
def _crowd_process(port: int, count: int) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.bench_crowd", "--port", str(port), "--count", str(count)]
    process = subprocess.Popen(command)
    try:
        yield
        assert process.poll() is None, "the crowd has gone"
    finally:
        process.kill()
        process.wait()


async def _calls(url: str, token: str, length_s: float) -> list[float]:
    """Seconds of each call of `GET /jobs` and of a dry run, made at a steady pace."""
    took_s: list[float] = []
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as kept:

        async def call(session: aiohttp.ClientSession, number: int) -> None:
            body: dict[str, Any] | None = None if number % 3 else {"run": "true"}
            method, path = ("GET", "/api/v1/jobs") if body is None else ("POST", "/api/v1/jobs:dryrun")
            async with session.request(method, url + path, json=body) as answer:
                assert answer.status == 200, await answer.text()
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


def measure(scale: float = 1.0) -> list[Measured]:
    """`scale` shrinks the crowd and the time."""
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
                with _crowd_process(known["port"], count):
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
    return [measured]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(_crowd(given.port, given.count))
