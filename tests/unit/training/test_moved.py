"""A loop that is moved while it trains: another batch, and waiting for a checkpoint, by what a supervisor says."""

import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from walras.training import Checkpoint, Loop
from walras.training.batch_source import BatchSource
from walras.training.supervisor_link import TakeOver


class Batches(BatchSource):
    """The numbers from 0 to 23 in batches, of a size that may change."""

    def __init__(self) -> None:
        super().__init__(self)
        self.batch_size = 4

    def __iter__(self) -> Iterator[list[int]]:
        return self.begin(0, 0)

    def begin(self, epoch: int, skip: int) -> Iterator[list[int]]:
        size = self.batch_size
        assert size is not None
        return iter([list(range(at, min(24, at + size))) for at in range(skip * size, 24, size)])

    def resize(self, batch_size: int) -> bool:
        self.batch_size = batch_size
        return True


class Seen:
    """The state of a job: the numbers it saw."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": self.numbers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.numbers = list(state["numbers"])


class Supervisor:
    """One end of the line of a single rank."""

    def __init__(self, path: str) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        self._server.settimeout(20.0)
        self._connection: socket.socket | None = None
        self._text = b""
        self.heard: list[dict[str, Any]] = []

    def until(self, kind: str) -> dict[str, Any]:
        """The next message of a kind; those before it are kept."""
        if self._connection is None:
            self._connection = self._server.accept()[0]
            self._connection.settimeout(20.0)
        while True:
            while b"\n" not in self._text:
                self._text += self._connection.recv(65536)
            line, _, self._text = self._text.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            self.heard.append(message)
            if message["type"] == kind:
                return message

    def log(self, **message: Any) -> None:
        assert self._connection is not None
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        for each in (self._server, self._connection):
            if each is not None:
                each.close()


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Supervisor]:
    for name in ("torch", "torch.distributed", "torch.utils.data", "numpy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = str(Path(folder, "s"))
        monkeypatch.setenv("WALRAS_SOCKET", path)
        monkeypatch.setenv("WALRAS_CHECKPOINT_DIR", str(tmp_path))
        monkeypatch.setenv("WALRAS_ATTEMPT", "1")
        monkeypatch.setattr("walras.training.loop.POLL_EVERY_S", 0.0)
        monkeypatch.setattr("walras.training.batch_source.resumable_source", lambda batches, seed: batches)
        server = Supervisor(path)
        yield server
        server.close()


class Job:
    """A script: one epoch over the numbers, told what to do between steps."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.changes: list[int] = []
        self.taken: list[list[int]] = []
        self.checkpoint = Checkpoint(seen=self.seen, every_s=None)
        self.loop = Loop(self.checkpoint, on_change=self.changes.append, seed=1)

    def run(self, between: Any = None) -> None:
        try:
            for _epoch in self.loop.epochs(1):
                for batch in self.loop.steps(Batches()):
                    self.seen.numbers.extend(batch)
                    self.taken.append(batch)
                    if between is not None:
                        between(self.loop)
        finally:
            self.loop._link.close()


def test_another_batch_begins_at_a_steps_end_and_no_sample_is_lost(supervisor: Supervisor) -> None:
    """The script is told the samples of a step before the first one and at the change, and so is the supervisor."""
    job = Job()

    def between(loop: Loop) -> None:
        if loop.step == 1:
            loop._link.batch_requested = (8, 0)

    job.run(between)
    supervisor.until("finished")
    assert job.changes == [4, 8]
    assert [len(batch) for batch in job.taken] == [4, 4, 8, 8]
    assert job.seen.numbers == list(range(24))
    told = [(m["samples"], m["step"]) for m in supervisor.heard if m["type"] == "batch"]
    assert told == [(4, 0), (8, 2)]


def test_a_change_of_batch_may_move_the_end(supervisor: Supervisor) -> None:
    """Another batch needs another number of steps for the same job."""
    job = Job()

    def between(loop: Loop) -> None:
        if loop.step == 0:
            loop._link.batch_requested = (2, 4)

    job.run(between)
    assert [len(batch) for batch in job.taken] == [4, 2, 2, 2]


def test_a_script_that_did_not_say_so_keeps_its_batch(supervisor: Supervisor) -> None:
    """Without `on_change` nothing changes under a script's feet, and to park is to stop."""
    seen: list[list[int]] = []
    loop = Loop(Checkpoint(seen=Seen(), every_s=None), seed=1)

    def script() -> None:
        for _epoch in loop.epochs(1):
            for batch in loop.steps(Batches()):
                seen.append(batch)
                loop._link.batch_requested = (8, 0)
                loop._link.park_requested = len(seen) == 3

    with pytest.raises(SystemExit) as ended:
        script()
    loop._link.close()
    assert ended.value.code == 85
    assert [len(batch) for batch in seen] == [4, 4, 4]


def test_a_parked_process_goes_on_from_where_another_one_saved(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It saves, waits, takes over state, position, batch and the number of its attempt, and misses nothing."""
    first = Job()
    said: list[dict[str, Any]] = []

    def lead() -> None:
        said.append(supervisor.until("commit"))
        supervisor.until("standby")
        # Meanwhile another process trains two steps on, and saves.
        between = Checkpoint(seen=Seen(), every_s=None)
        monkeypatch.delenv("WALRAS_SOCKET")
        monkeypatch.setenv("WALRAS_ATTEMPT", "2")
        reference = {key: said[0][key] for key in ("path", "digest", "step")}
        monkeypatch.setenv("WALRAS_RESUME", json.dumps(reference))
        other = Loop(between, seed=1)
        for _epoch in other.epochs(1):
            for batch in other.steps(Batches()):
                between.objects[0].numbers.extend(batch)
                if other.step == 3:
                    break
            other.save()
            break
        folder = next(tmp_path.glob("attempt-0002/step-*4"))
        from walras.training import checkpoint

        saved = checkpoint.verify_checkpoint(folder)
        resume = {"path": saved.path, "digest": saved.digest, "step": saved.step}
        supervisor.log(type="go", attempt=3, resume=resume, steps=None, samples=2)

    leading = threading.Thread(target=lead)

    def between(loop: Loop) -> None:
        if loop.step == 1:
            loop._link.park_requested = True

    leading.start()
    first.run(between)
    leading.join(20.0)
    supervisor.until("finished")
    assert first.seen.numbers == list(range(24))
    assert [len(batch) for batch in first.taken] == [4, 4, 2, 2, 2, 2]
    assert first.changes == [4, 2]
    assert first.loop.step == 4 + 4
    assert list(tmp_path.glob("attempt-0003/step-*8"))


def test_a_process_may_wait_before_its_first_step(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything made it says that it waits; told to stop instead of going on, it ends."""
    monkeypatch.setenv("WALRAS_STANDBY", "1")
    for answer, ends in ((TakeOver(1, None, 3, None), False), (None, True)):
        with monkeypatch.context() as patch:
            patch.setattr("walras.training.supervisor_link.SupervisorLink.stand_by", lambda link, answer=answer: answer)
            job = Job()
            if ends:
                with pytest.raises(SystemExit) as ended:
                    job.run()
                assert ended.value.code == 143
            else:
                job.run()
                assert len(job.taken) == 3
