"""A PostgreSQL server for tests: Debian's programs on a folder and a port of their own, gone with the test session."""

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.newcomer import unused_port
from tests.support.not_here import not_here

_numbers = itertools.count(1)


class PostgresServer:
    """Runs while the context is open; PostgreSQL refuses to be root, so root runs it as `nobody`."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self.port = unused_port()
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(folder, self._user)
        self._run("initdb", "-D", str(folder / "db"), "-U", "walras", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")

    def start(self) -> None:
        """Start it, or start it again, and wait until it answers."""
        options = (
            "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "max_connections=60",
            "shared_buffers=32MB", "fsync=off", "full_page_writes=off",  # a test outlives no power cut
        )  # fmt: skip
        line = [str(self._programs / "postgres"), "-D", str(self.folder / "db"), "-p", str(self.port)]
        line += [word for option in options for word in ("-c", option)]
        log = open(self.folder.parent / f"postgres-{self.port}.log", "ab")  # noqa: SIM115 - the server's own
        self._process = subprocess.Popen(line, stdout=log, stderr=log, user=self._user, cwd=self.folder)
        log.close()
        deadline = time.monotonic() + 300.0
        while subprocess.run(self._line("pg_isready"), check=False, stdout=subprocess.DEVNULL).returncode != 0:
            assert self._process.poll() is None, "PostgreSQL ended"
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.1)

    def stop(self) -> None:
        """At once, as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def new_database(self, tablespace: str = "") -> str:
        """The address of a fresh one, its tables in this tablespace."""
        name = f"walras_{next(_numbers)}"
        where = ["--tablespace", tablespace] if tablespace else []
        subprocess.run([*self._line("createdb"), *where, name], check=True, capture_output=True)
        return f"postgresql://walras@127.0.0.1:{self.port}/{name}"

    def add_tablespace(self, name: str, folder: Path) -> None:
        """Have databases able to lie in this folder, which the server's user can reach."""
        if self._user is not None:
            shutil.chown(folder, self._user)
        sql = f"CREATE TABLESPACE {name} LOCATION '{folder}'"
        subprocess.run([*self._line("psql"), "-c", sql, "postgres"], check=True, capture_output=True)

    def _line(self, program: str) -> list[str]:
        user = [] if program == "pg_isready" else ["-U", "walras"]
        return [str(self._programs / program), "-h", "127.0.0.1", "-p", str(self.port), *user]

    def _run(self, program: str, *arguments: str) -> None:
        line = [str(self._programs / program), *arguments]
        subprocess.run(line, check=True, capture_output=True, user=self._user, cwd=self.folder)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Skips the test where there are no programs (WALRAS_REQUIRE=postgresql: fails)."""
    programs = _programs()
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    os.chmod(folder, 0o711)
    data = folder / "own"
    data.mkdir(mode=0o755)
    server = PostgresServer(data, programs)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if importlib.util.find_spec("psycopg") is None or not installed:
        why = "no PostgreSQL here: `make postgresql` installs Debian's, and the extra `postgresql` its driver"
        not_here("postgresql", why)
    return installed[-1].parent
