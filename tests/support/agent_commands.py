"""Commands for an agent in a test, and the job that they start."""

import itertools
import sys
from pathlib import Path
from typing import Any

from tests.support.agent_process import AgentProcess
from tests.support.fake_agent_server import FakeAgentServer
from walras.wire import StartCommand, StopCommand

_command_ids = itertools.count(1)

LOOP = """
import time
from walras.training import Checkpoint, Loop

class Counter:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

counter = Counter()
loop = Loop(Checkpoint(counter=counter, every_s=None))
print("resumed" if loop.resume() else "fresh", "at", loop.step, counter.n, flush=True)
for step in loop.steps(range(100_000)):
    counter.n += 1
    time.sleep(0.005)
    loop.report(loss=1.0)
"""


def next_command_id() -> int:
    return next(_command_ids)


def a_start(tmp_path: Path, script: str, **changes: Any) -> StartCommand:
    defaults: dict[str, Any] = {
        "command_id": next_command_id(), "job_id": 1, "attempt": 1, "name": "digits", "kind": "cnn",
        "argv": [sys.executable, "-c", script], "env": {}, "workdir": str(tmp_path), "devices": [0],
        "accelerator": "a100", "node_rank": 0, "num_nodes": 1, "world_size": len(changes.get("devices", [0])),
        "first_rank": 0, "master_address": "", "master_port": 0, "checkpoint_dir": str(tmp_path / "checkpoints"),
        "resume": None, "steps": None, "lease_s": 30.0, "grace_s": 5.0, "job_token": "job-token-secret",
    }  # fmt: skip
    return StartCommand(**defaults | changes)


def a_stop(attempt: int = 1, grace_s: float = 5.0) -> StopCommand:
    return StopCommand(command_id=next_command_id(), job_id=1, attempt=attempt, grace_s=grace_s, reason="preempted")


class AgentStand(FakeAgentServer):
    """A stand-in for the server, and agents on the folder of the test that talk to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._agents: list[AgentProcess] = []

    def begin(self, **options: Any) -> AgentProcess:
        """Starts an agent."""
        self._agents.append(AgentProcess(self._folder, self.url, self.join_token, **options))
        return self._agents[-1].start()

    async def start(self, script: str, **changes: Any) -> StartCommand:
        """Sends the start of a script."""
        command = a_start(self._folder, script, **changes)
        await self.send(command)
        return command

    async def __aexit__(self, *_: object) -> None:
        for agent in self._agents:
            agent.close()
        await super().__aexit__()
