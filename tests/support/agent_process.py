"""A real agent as a process of its own, to be killed and started again."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.attempts import ROOT, ask_status, wait_for
from workers import processes
from workers.supervisor_protocol import PLAN_FILE, read_plan

_RUN = """
import json, logging, sys
from pathlib import Path
from walras.cluster import TypeCount
from workers.agent.startup import AgentOptions
from workers.agent.startup import run_agent
logging.basicConfig(level="INFO")
fields = json.loads(sys.argv[1])
paths = {name: Path(fields[name]) for name in ("state", "join_token_file", "speeds", "runs_as") if name in fields}
types = tuple(TypeCount(*each) for each in fields.get("types", ()))
sys.exit(run_agent(AgentOptions(**fields | paths | {"types": types})))
"""


class AgentProcess:
    """Give the server's URL and token; `close` kills the agent and everything of its attempts."""

    def __init__(
        self,
        folder: Path,
        url: str,
        join_token: str,
        *,
        unseen: Sequence[Path] = (),
        within: Sequence[str] = (),
        path: str = "",
        modules: Path | None = None,
        **changes: Any,
    ) -> None:
        """`unseen`: folders that are empty for the agent and its jobs, in a mount namespace of their own. `path`: where
        it looks for programs; empty: as this process. `modules`: where it looks first for modules of Python. `within`:
        words before its command.
        """
        self.state = folder / "agent"
        token_file = folder / "join.token"
        token_file.write_text(join_token + "\n")
        defaults = {
            "servers": [url], "state": str(self.state), "node_id": "node-1", "shape": "a100x2",
            "join_token_file": str(token_file), "accelerator": "a100", "accelerators": 2, "cpus": 2.0,
            "memory_bytes": 4 * 1024**3, "emulated": True,
        }  # fmt: skip
        self._fields = defaults | changes
        self._log = folder / "agent.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._unseen, self._within = unseen, within
        self._modules = modules
        self._path = path or os.environ["PATH"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "AgentProcess":
        modules = ":".join(str(each) for each in (self._modules, ROOT) if each is not None)
        env = {**os.environ, "PYTHONPATH": modules, "WALRAS_AGENT_SECRET_FOR_TESTS": "not-for-jobs"}
        env["PATH"] = self._path
        with open(self._log, "ab") as log:
            command = [sys.executable, "-c", _RUN, json.dumps(self._fields)]
            if self._unseen:
                hiding = " && ".join(f"mount -t tmpfs none {shlex.quote(str(path))}" for path in self._unseen)
                command = ["unshare", "--mount", "sh", "-c", f'{hiding} && exec "$@"', "sh", *command]
            self._process = subprocess.Popen([*self._within, *command], env=env, stdout=log, stderr=log, cwd="/")
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(300)

    def terminate(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(300)

    def wait(self, timeout_s: float) -> int:
        """The exit code of an agent that ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    @property
    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def alive(self) -> list[int]:
        """Processes of all its attempts."""
        plans = [read_plan(path.parent) for path in self._files_of_attempts(PLAN_FILE)]
        return [pid for plan in plans for pid in processes.carriers(plan.cookie)]

    def _files_of_attempts(self, name: str) -> list[Path]:
        """The attempts' files of this name; checkpoints beside them come and go and are not walked."""
        return [*self.state.glob(f"attempts/*/{name}")]

    def supervisors(self) -> list[int]:
        facts = [
            json.loads(path.read_bytes())
            for path in self._files_of_attempts("supervisor.json")
            if path.is_file()  # a rank may have put a pipe there
        ]
        names = [processes.ProcessName(fact["pid"], fact["start_ticks"]) for fact in facts]
        return [name.pid for name in names if name.is_alive]

    def guardians(self) -> list[int]:
        return [processes.parent_of(pid) for pid in self.supervisors()]

    def _tidying(self) -> list[processes.ProcessName]:
        """Guardians that will act when their supervisors end: those that a test has killed or stopped left out."""
        pairs = [(pid, processes.name_process(processes.parent_of(pid))) for pid in self.supervisors()]
        return [
            parent
            for pid, parent in pairs
            if parent is not None and pid in processes.session_members(parent) and not processes.is_stopped(parent.pid)
        ]

    def attempt_folder(self, job_id: int, attempt: int) -> Path:
        """Of the newest incarnation that granted an attempt of this number."""
        attempts = self.state / "attempts"
        found = [*attempts.glob(f"{job_id}-{attempt}"), *attempts.glob(f"{job_id}-{attempt}-*")]
        return max(found, key=lambda path: path.stat().st_mtime)

    def lease_until(self, job_id: int, attempt: int) -> float:
        """The boot-time instant at which an attempt that runs here ends unless it is renewed."""
        plan = read_plan(self.attempt_folder(job_id, attempt))
        (status,) = [answer for answer in ask_status(plan.control_socket) if answer["type"] == "status"]
        return float(status["lease_until"])

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(300)
        guardians = self._tidying()
        processes.send_signal(self.supervisors(), 9)
        for path in self._files_of_attempts(PLAN_FILE):
            assert processes.kill_carriers(read_plan(path.parent).cookie, 60.0)
        wait_for(lambda: not self.supervisors(), 5.0, "supervisors gone")
        # They tidy after their supervisors: what a test does to the folder of this agent would meet them.
        wait_for(lambda: not any(each.is_alive for each in guardians), 60.0, "guardians gone")
