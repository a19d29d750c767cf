"""Checkpoints to the server and back: how fast, how much of a second one is sent, and what training pays for it.

    python -m benchmarks checkpoints

A real server on the loopback and a client with a machine's credential, in processes of their own. The checkpoint is of
random numbers, which do not compress. Training is steps of 5 ms of arithmetic; blocks with uploads beside them and
blocks without alternate, so that what else the machine does is in both, and each is compared with its neighbours.
Eight minutes.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tables import Measured
from walras.connection.transport import Patience, Transport
from walras.storage.content import CHUNK_BYTES, hash_folder
from walras.storage.content_transfer import ContentTransfer

WHOLE_BYTES, CHANGED_PART, PIECE_BYTES = 1 << 30, 0.05, 100_000_000
STEP_S, BLOCK_S, BLOCKS = 0.005, 12.0, 12
_PATIENCE = Patience(tries=2, call_timeout_s=120.0)
_SEND = "import sys; from benchmarks.bench_checkpoints import send_as_told; send_as_told(*sys.argv[1:])"


@contextmanager
def a_server(folder: Path) -> Iterator[tuple[str, str, int]]:
    """Its address, the credential of a machine, and the number of its process."""
    walras = str(Path(sys.executable).parent / "walras")
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([walras, "server", "--data", str(folder / "data")], stdout=log, stderr=log)
    try:
        until = time.monotonic() + 300.0
        while not (folder / "data/server.json").exists():
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.1)
        url = json.loads((folder / "data/server.json").read_text())["url"]
        yield url, _credential(url, (folder / "data/join.token").read_text().strip()), process.pid
    finally:
        process.kill()
        process.wait()


def _credential(url: str, join_token: str) -> str:
    facts = {"shape": "m", "accelerator": "a", "accelerators": 1, "cpus": 2, "memory_bytes": 2**30}
    body = json.dumps({"node_id": "bench", "facts": facts}).encode()
    headers = {"Authorization": f"Bearer {join_token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/agent/v1/register", body, headers)) as answer:
        return str(json.load(answer)["credential"])


def write_checkpoint(folder: Path, size: int, seed: int, changed: float = 1.0) -> None:
    """A file of random numbers, or another state of the one that is there, of which a part in one piece differs."""
    folder.mkdir(exist_ok=True)
    with open(folder / "model.pt", "r+b" if changed < 1.0 else "wb") as file:
        file.seek(round(size * (1.0 - changed) / 2))
        file.write(np.random.default_rng(seed).bytes(round(size * changed)))


async def _timed(url: str, credential: str, folder: Path, target: Path | None) -> tuple[float, ContentTransfer]:
    """Seconds to describe and send a folder, or to fetch it into another one; and who did it."""
    async with Transport(url, credential, _PATIENCE) as transport:
        transfer = ContentTransfer(transport)
        began = time.perf_counter()
        tree = await asyncio.to_thread(hash_folder, folder, ["model.pt"])
        if target is None:
            await transfer.send(folder, tree)
        else:
            began = time.perf_counter()
            await transfer.fetch(tree.name, target)
        return time.perf_counter() - began, transfer


def send_as_told(url: str, credential: str, folder: str) -> None:
    """Send a folder for every line that comes in, in a process that is there all the time, as an agent is."""
    for _ in sys.stdin:
        asyncio.run(_timed(url, credential, Path(folder), None))
        sys.stdout.write("sent\n")
        sys.stdout.flush()


def processor_s(process: int) -> float:
    """Processor time that this process and another one have used so far, user and system."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    own = os.times()
    return own.user + own.system + (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def write_alone(folder: Path, size: int) -> float:
    """Seconds in which the disk takes as many bytes as durable files of one chunk each, one after another."""
    content = np.random.default_rng(3).bytes(CHUNK_BYTES)
    folder.mkdir()
    began = time.perf_counter()
    for number in range(size // CHUNK_BYTES):
        with open(folder / str(number), "xb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
    return time.perf_counter() - began


def _transfers(url: str, credential: str, server: int, folder: Path, size: int) -> Measured:
    measured = Measured(f"{size / 2**30:.3g} GiB to the server and back", "one client, loopback")
    write_checkpoint(folder / "state", size, 1)
    used = [processor_s(server)]
    up_s, first = asyncio.run(_timed(url, credential, folder / "state", None))
    used.append(processor_s(server))
    down_s, _ = asyncio.run(_timed(url, credential, folder / "state", folder / "back"))
    used.append(processor_s(server))
    alone_s = write_alone(folder / "alone", size)
    assert (folder / "back/model.pt").stat().st_size == size
    write_checkpoint(folder / "state", size, 2, CHANGED_PART)
    again_s, second = asyncio.run(_timed(url, credential, folder / "state", None))
    measured.add("up", size / up_s / 1e6, "MB/s", at_least=150.0)
    measured.add("down", size / down_s / 1e6, "MB/s", at_least=150.0)
    measured.add("the disk alone, in chunks", size / alone_s / 1e6, "MB/s")
    measured.add("up, both processes", size / (used[1] - used[0]) / 1e6, "MB a processor second")
    measured.add(
        "down, both processes and a look at the source", size / (used[2] - used[1]) / 1e6, "MB a processor second"
    )
    measured.add("sent of the first", 100 * first.sent_bytes / size, "%")
    measured.add("sent of the second, 5 % of it new", 100 * second.sent_bytes / size, "%", at_most=10.0)
    measured.add("the second took", again_s, "s")
    return measured


def _step(matrix: Any, products: int) -> None:
    for _ in range(products):
        np.dot(matrix, matrix)


def _products_of_a_step(matrix: Any) -> int:
    """How many products take 5 ms here, undisturbed."""
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        _step(matrix, 20)
        seconds.append(time.perf_counter() - began)
    return max(1, round(20 * STEP_S / min(seconds)))


def _steps(matrix: Any, products: int, until: float) -> int:
    """How many steps are taken until an instant."""
    taken = 0
    while time.perf_counter() < until:
        _step(matrix, products)
        taken += 1
    return taken


def _send(sender: subprocess.Popen[str]) -> None:
    assert sender.stdin is not None
    sender.stdin.write("\n")
    sender.stdin.flush()


def _slow_down(url: str, credential: str, folder: Path, scale: float) -> Measured:
    """Blocks with one upload each, at a rate of 100 MB a minute, and blocks without."""
    matrix, size = np.random.default_rng(0).random((64, 64)), round(PIECE_BYTES * BLOCK_S / 60.0)
    products = _products_of_a_step(matrix)
    rates: list[float] = []
    write_checkpoint(folder / "piece", size, 9)
    with subprocess.Popen(
        [sys.executable, "-c", _SEND, url, credential, str(folder / "piece")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as sender:  # fmt: skip
        assert sender.stdin is not None
        assert sender.stdout is not None
        _send(sender)
        assert sender.stdout.readline() == "sent\n"  # it has imported what it needs
        for block in range(2 * max(2, round(BLOCKS * scale)) + 1):
            write_checkpoint(folder / "piece", size, 10 + block)
            if with_upload := block % 2 == 1:
                _send(sender)
            rates.append(_steps(matrix, products, time.perf_counter() + BLOCK_S) / BLOCK_S)
            if with_upload:
                assert sender.stdout.readline() == "sent\n"
        sender.stdin.close()
    # A block with an upload lies between two without: what the machine does besides changes little within three blocks.
    quiet = [(before + after) / 2 for before, after in zip(rates[::2], rates[2::2], strict=False)]
    slower = [100 * (1 - rate / alone) for rate, alone in zip(rates[1::2], quiet, strict=True)]
    measured = Measured("training of 5 ms a step beside uploads of 100 MB a minute", f"{BLOCK_S:.0f} s a block")
    measured.add("steps/s without", statistics.mean(quiet), "")
    measured.add("steps/s with", statistics.mean(rates[1::2]), "")
    measured.add("slower by", statistics.mean(slower), "%", at_most=2.0)
    measured.add("standard error", statistics.stdev(slower) / len(slower) ** 0.5, "%")
    measured.add("worst block slower by", max(slower), "%")
    return measured


def measure(scale: float) -> list[Measured]:
    """Both tables."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name, a_server(Path(name)) as (url, credential, server):
        folder = Path(name)
        return [
            _transfers(url, credential, server, folder, round(WHOLE_BYTES * scale)),
            _slow_down(url, credential, folder, scale),
        ]
