"""A whole cluster for a test: `walras server` and agents, each a process of its own, on one folder and SQLite."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.agent_process import AgentProcess
from tests.support.waiting import wait_for
from walras.units import parse_size

WALRAS = str(Path(sys.executable).parent / "walras")
#: First in line, first served; nothing is preempted unless a test does it.
FIFO = {"policy": {"name": "fifo"}, "rules": {"round_s": 5, "backoff_s": 1}}
#: Two places for jobs that compute on the processor.
CPU_POOL = {"shape": "cpux2", "accelerator": "cpu", "accelerators": 2, "cpus": 2, "memory": "4GB", "emulated": False}
A = {"shape": "ax1", "accelerator": "a", "accelerators": 1, "cpus": 2, "memory": "1GB", "emulated": True}


class RealServer:
    """`walras server` on a folder, and the agents that were started for it. `close` leaves no process."""

    def __init__(
        self,
        folder: Path,
        pools: list[dict[str, Any]],
        policy: dict[str, Any],
        *,
        lease: str = "30s",
        listen: Sequence[str] = (),
        **cluster: Any,
    ) -> None:
        """`listen`: options of the server's command."""
        self.data = folder / "data"
        self.folder = folder
        self._listen = listen
        self.agents: dict[str, AgentProcess] = {}
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "cluster.yaml").write_text(yaml.safe_dump({"lease": lease, "pools": pools, **cluster}))
        (folder / "policy.yaml").write_text(yaml.safe_dump(policy))

    # ------------------------------------------------------------------------------------------- processes

    def start(self) -> "RealServer":
        command = [WALRAS, "server", "--data", str(self.data), "--cluster", str(self.folder / "cluster.yaml")]
        with open(self.folder / "server.log", "ab") as output:
            self.process = subprocess.Popen(
                [*command, "--policy", str(self.folder / "policy.yaml"), *self._listen], stdout=output, stderr=output
            )
        try:
            wait_for(self._is_ready, 120, f"server is ready; see {self.folder}/server.log")
        except AssertionError:
            self.kill()  # a fixture that has not begun ends nothing
            raise
        return self

    def _is_ready(self) -> bool:
        """The file of a former server is not ours."""
        assert self.process is not None
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads((self.data / "server.json").read_text())["pid"] == self.process.pid)
        return False

    def start_agent(self, name: str = "n1", pool: dict[str, Any] = A, **changes: Any) -> AgentProcess:
        """Start a machine of the pool and wait until it has joined."""
        facts = {field: pool[field] for field in ("shape", "accelerator", "accelerators", "emulated")}
        own = self.folder / name
        own.mkdir(exist_ok=True)
        token = (self.data / "join.token").read_text().strip()
        sizes: dict[str, Any] = {"cpus": float(pool["cpus"]), "memory_bytes": parse_size(pool["memory"])}
        agent = AgentProcess(own, self.url, token, node_id=name, **facts, **sizes, **changes)
        self.agents[name] = agent.start()
        wait_for(lambda: self.node(name), 60, f"{name} joins; {agent.log}")
        return agent

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(300)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for agent in self.agents.values():
            agent.close()
        for process in processes_of(self.folder):
            with contextlib.suppress(psutil.Error):
                process.kill()

    # ------------------------------------------------------------------------------------------- the API

    @property
    def url(self) -> str:
        return str(json.loads((self.data / "server.json").read_text())["url"])

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        token = (self.data / "admin.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", **({"Idempotency-Key": key} if key else {})}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    @property
    def access(self) -> dict[str, str]:
        """The environment of an administrator's commands."""
        return os.environ | {"WALRAS_SERVER": self.url, "WALRAS_TOKEN_FILE": str(self.data / "admin.token")}

    def command(self, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        """What `walras WORDS` answers to the administrator; `env`: more variables."""
        env = self.access | options.pop("env", {})
        return subprocess.run([WALRAS, *words], env=env, capture_output=True, text=True, timeout=300, **options)

    def told(self, *words: str, **options: Any) -> str:
        """What a command prints that has to succeed."""
        done = self.command(*words, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, **spec: Any) -> int:
        """A job in a folder of its own, unless the spec says otherwise."""
        status, answer = self.call("POST", "/jobs", {"workdir": str(self.folder), **spec})
        assert status == 201, answer
        return int(answer["id"])

    def job(self, job_id: int) -> dict[str, Any]:
        found: dict[str, Any] = self.call("GET", f"/jobs/{job_id}")[1]
        return found

    def state(self, job_id: int) -> str:
        return str(self.job(job_id)["state"])

    def attempt(self, job_id: int) -> dict[str, Any]:
        """The newest one."""
        found: dict[str, Any] = self.job(job_id)["attempt_list"][-1]
        return found

    def until_state(self, job_id: int, state: str, timeout_s: float = 60.0) -> None:
        wait_for(lambda: self.state(job_id) == state, timeout_s, f"job {job_id} is {state}", lambda: self.job(job_id))

    def until_running(self, job_id: int, attempt: int = 1, timeout_s: float = 60.0) -> dict[str, Any]:
        """The attempt, once it runs."""

        def look() -> dict[str, Any] | None:
            newest = self.job(job_id)["attempt_list"][-1:]
            return newest[0] if newest and (newest[0]["attempt"], newest[0]["state"]) == (attempt, "RUNNING") else None

        found: dict[str, Any] = wait_for(look, timeout_s, f"attempt {attempt} runs", lambda: self.job(job_id))
        return found

    def until_step(self, job_id: int, step: float, timeout_s: float = 60.0) -> None:
        wait_for(lambda: self.job(job_id)["steps"] >= step, timeout_s, f"step {step}", lambda: self.job(job_id))

    def node(self, name: str) -> dict[str, Any] | None:
        return next((node for node in self.call("GET", "/nodes")[1] if node["node_id"] == name), None)

    def node_state(self, name: str) -> str:
        found = self.node(name)
        return "" if found is None else str(found["state"])

    # ------------------------------------------------------------------------------------------- what it has kept

    def recorded(self, job_id: int) -> list[tuple[int, int, str]]:
        """(attempt, step, path) of every checkpoint that counts, oldest first."""
        rows = self.rows(f"SELECT attempt, step, path FROM checkpoints WHERE job_id = {job_id} ORDER BY attempt, step")
        return [(int(attempt), int(step), str(path)) for attempt, step, path in rows]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query of the database answers."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.data}/walras.db?mode=ro", uri=True, timeout=300)
        ) as database:
            return database.execute(query).fetchall()

    def log(self, job_id: int, attempt: int, rank: int = 0) -> str:
        found = [*(self.data / "logs").glob(f"*/{job_id}/{attempt}/{rank}.log")]
        return found[0].read_text(errors="replace") if found else ""


#: Starts a server of pools under a policy, which ends with the test; fields of the cluster as keywords.
Serve = Callable[..., RealServer]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes with the folder in their command line, this one left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline()):
                found.append(process)
    return found
