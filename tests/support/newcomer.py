"""A newcomer's machines: each a home of its own with the installed program, where the lines of a page are typed."""

import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.installed import clean_environment
from tests.support.waiting import PATIENCE


@dataclass
class NewcomersMachines:
    """Machines by name, what was started on them, and what each printed."""

    folder: Path
    #: The `bin` folder of the environment with Walras.
    bin: Path
    #: A line of a page with our names: addresses, ports, numbers of jobs.
    rename: Callable[[str], str]
    #: Prefix of a command on a machine that has a network of its own.
    enter: Mapping[str, list[str]] = field(default_factory=dict)
    #: Whose files `ssh` finds: the server's machine.
    server: str = "S"
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The files of the server are here: what ssh would fetch from there lies in its home.
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "ssh").write_text(f'#!/bin/sh\nshift\ncd "{self.home(self.server)}" && exec "$@"\n')
        (tools / "ssh").chmod(0o755)

    def home(self, machine: str) -> Path:
        path = self.folder / machine
        path.mkdir(exist_ok=True)
        return path

    def environment(self, machine: str) -> dict[str, str]:
        return clean_environment(self.home(machine), self.folder / "tools", self.bin)

    def start(self, machine: str, line: str) -> Path:
        """Start what runs until it is stopped; returns the file of its output."""
        output = self.folder / f"{machine}-{len(self.running)}.log"
        with output.open("wb") as file:
            command = [*self.enter.get(machine, []), "bash", "-c", f"exec {self.rename(line)}"]
            self.running.append(
                subprocess.Popen(
                    command, cwd=self.home(machine), env=self.environment(machine), stdout=file, stderr=file
                )
            )
        return output

    def run(self, machine: str, *lines: str, timeout_s: float = 200.0) -> str:
        """What the lines print, typed one after the other into one shell; each has to succeed."""
        command = [*self.enter.get(machine, []), "bash", "-ec", "\n".join(map(self.rename, lines))]
        done = subprocess.run(
            command, cwd=self.home(machine), env=self.environment(machine), capture_output=True, text=True,
            timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, (lines, done.stdout, done.stderr)
        return done.stdout

    def close(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(300)
            process.kill()
        self.running.clear()


#: Ports that the system gives to nobody by itself, neither to listeners nor to callers.
PORTS = range(15_000, 32_000)


def unused_port() -> int:
    """A port that nothing listens on, and that nothing else will have got by chance when it is used."""
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for_text(file: Path, text: str, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + PATIENCE * timeout_s
    while text not in file.read_text():
        assert time.monotonic() < until, f"{text!r} does not show in {file.read_text()}"
        time.sleep(0.1)
