"""Two `walras server` processes over one PostgreSQL database and one data folder: one leads, one stands by."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.newcomer import unused_port
from tests.support.real_server import FIFO, WALRAS, RealServer, wait_for


class StandbyPair(RealServer):
    """`start` starts both; calls go to whoever leads. Agents are given both addresses."""

    def __init__(self, folder: Path, store: str, pools: list[dict[str, Any]], **more: Any) -> None:
        super().__init__(folder, pools, FIFO, **more)
        self._store = store
        self._ports = unused_port(), unused_port()
        self._servers: list[subprocess.Popen[bytes] | None] = [None, None]

    def start(self) -> "StandbyPair":
        self._start_one(0)
        self.until_one_leads()
        self._start_one(1)
        self._until_standing_by(1, 1)
        return self

    def _until_standing_by(self, which: int, times: int) -> None:
        def says_so() -> bool:
            return self.log_of(which).count("standing by") >= times

        wait_for(says_so, 60, f"server {which} stands by", lambda: self.log_of(which)[-2000:])

    def _start_one(self, which: int) -> None:
        line = [WALRAS, "server", "--data", str(self.data), "--cluster", str(self.folder / "cluster.yaml")]
        line += ["--policy", str(self.folder / "policy.yaml"), "--port", str(self._ports[which])]
        with open(self._log(which), "ab") as output:
            self._servers[which] = subprocess.Popen(
                line, stdout=output, stderr=output, env={**os.environ, "WALRAS_STORE": self._store}
            )

    def _log(self, which: int) -> Path:
        return self.folder / f"server-{which}.log"

    def log_of(self, which: int) -> str:
        """What a server wrote."""
        return self._log(which).read_text() if self._log(which).exists() else ""

    @property
    def urls(self) -> list[str]:
        """Of both."""
        return [f"http://127.0.0.1:{port}" for port in self._ports]

    @property
    def leader(self) -> int | None:
        """Which one says that it is ready; None: neither."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            pid = json.loads((self.data / "server.json").read_text())["pid"]
            for which, process in enumerate(self._servers):
                if process is not None and process.pid == pid and process.poll() is None:
                    return which
        return None

    def until_one_leads(self, other_than: int | None = None, timeout_s: float = 60.0) -> float:
        """Wait until a server leads and answers, `other_than` this one. Returns the seconds that it took."""
        began = time.monotonic()

        def look() -> bool:
            if self.leader in (None, other_than):
                return False
            with contextlib.suppress(OSError):
                return bool(self.call("GET", "/nodes")[0] == 200)
            return False

        wait_for(look, timeout_s, "a server leads", lambda: self.log_of(0)[-2000:] + self.log_of(1)[-2000:])
        return time.monotonic() - began

    def kill_leader(self) -> int:
        """`kill -9`; returns which one it was."""
        which = self.leader
        assert which is not None
        process = self.process_of(which)
        process.kill()
        process.wait(300)
        return which

    def restart(self, which: int) -> None:
        """Start a server that has ended; returns when it stands by: without a standby nobody can take over soon."""
        before = self.log_of(which).count("standing by")
        self._start_one(which)
        self._until_standing_by(which, before + 1)

    def process_of(self, which: int) -> subprocess.Popen[bytes]:
        """The newest process of a server."""
        process = self._servers[which]
        assert process is not None
        return process

    def close(self) -> None:
        for process in self._servers:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(300)
        super().close()
