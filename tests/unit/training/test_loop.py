"""The loop without processes: resume, stops, what is said to the supervisor, and checkpoints."""

import errno
import fcntl
import json
import os
import random
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from walras.training import Checkpoint, Loop, checkpoint
from walras.training.checkpoint import MANIFEST
from walras.training.measurements import ReportedValues
from walras.training.supervisor_link import SupervisorLink


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script that has not imported it; and no variables of a scheduler."""
    for name in ("torch", "torch.distributed", "torch.utils.data", "numpy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("WALRAS_SOCKET", "WALRAS_RESUME", "WALRAS_CHECKPOINT_DIR", "WALRAS_STEPS", "WALRAS_PACE", "RANK"):
        monkeypatch.delenv(name, raising=False)


class Trace:
    """Remembers the batches it saw, with a random number each."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def train(folder: Path | None, *, data: Any = range(5), epochs: int = 3, stop_at: int | None = None) -> list[Any]:
    random.seed(5)
    trace = Trace()
    loop = Loop(Checkpoint(folder, trace=trace, every_s=None))
    for epoch in loop.epochs(epochs):
        for batch in loop.steps(data):
            trace.seen.append([epoch, batch, random.random()])
            if loop.step + 1 == stop_at:
                loop._link.stop_requested = True
    return trace.seen


def test_without_checkpoint_or_scheduler_a_loop_passes_everything_through() -> None:
    """On a laptop the script runs as if the loop were not there."""
    loop = Loop()
    assert [(epoch, list(loop.steps("abc"))) for epoch in loop.epochs(2)] == [
        (0, ["a", "b", "c"]),
        (1, ["a", "b", "c"]),
    ]
    assert loop.step == 6


@pytest.mark.parametrize("stop_at", [1, 4, 5, 6, 10, 14])
def test_a_run_stopped_anywhere_resumes_as_if_nothing_had_happened(tmp_path: Path, stop_at: int) -> None:
    """Mid-epoch and at its end: the same batches in the same epochs with the same random numbers, none twice."""
    with pytest.raises(SystemExit) as stopped:
        train(tmp_path, stop_at=stop_at)
    assert stopped.value.code == 85
    assert train(tmp_path) == train(None)


def test_a_stop_during_the_last_step_of_all_ends_the_job_as_if_nobody_had_asked(tmp_path: Path) -> None:
    """All work is done: an 85 would have it started again, to find nothing to do. What was done is saved."""
    assert train(tmp_path, stop_at=15) == train(None)
    assert list(tmp_path.glob("*/step-0000000015/manifest.json"))


def test_a_stop_at_the_limit_of_steps_and_at_the_end_of_a_script_s_own_loop_ends_the_job(tmp_path: Path) -> None:
    """Also where only the script knows that there is no more, and where the data has no length."""
    for name, limit, data in (("limit", 5, range(9)), ("own", None, range(5)), ("stream", None, None)):
        loop = Loop(Checkpoint(tmp_path / name, trace=Trace()), steps=limit)
        for _ in loop.steps((n for n in range(5)) if data is None else data):
            loop._link.stop_requested = loop.step == 4
        assert loop.step == 5
        assert list((tmp_path / name).glob("*/step-0000000005/manifest.json"))


def test_a_stop_at_the_end_of_one_loop_holds_before_the_next(tmp_path: Path) -> None:
    """A script that goes on after all is stopped before its next step, and resumes there."""

    def train_twice() -> list[Any]:
        trace = Trace()
        loop = Loop(Checkpoint(tmp_path, trace=trace, every_s=None))
        for part in (1, 2):
            for batch in loop.steps(range(3)):
                trace.seen.append([part, batch])
                loop._link.stop_requested = loop.step == 2
        return trace.seen

    with pytest.raises(SystemExit) as stopped:
        train_twice()
    assert stopped.value.code == 85
    assert train_twice() == [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_speaks_of_steps_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Losses of ranks differ: whose came first, or last, would be chance."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s")
        server.listen()
        monkeypatch.setenv("WALRAS_SOCKET", f"{folder}/s")
        monkeypatch.setenv("RANK", str(rank))
        loop = Loop()
        for _ in loop.steps(range(3)):
            loop.report(loss=rank)
        accepted, _ = server.accept()
        loop._link.close()
        with accepted, accepted.makefile() as lines:
            said = [json.loads(line) for line in lines]
    assert said[0]["type"] == "hello"
    values = [message["first_values"] for message in said if message["type"] == "progress"]
    assert values == ([{"loss": 0.0}] * 2 if rank == 0 else [])


def test_a_tensor_is_read_when_it_is_sent_and_not_at_every_step() -> None:
    """Reading waits for the accelerator: once at first, then with each message; never one with a gradient."""
    read = []

    class Value:
        def __init__(self, number: int) -> None:
            self._number = number

        def detach(self) -> "Detached":
            return Detached(self._number)

        def __float__(self) -> float:
            raise AssertionError("not detached")

    class Detached(int):
        def __float__(self) -> float:
            read.append(int(self))
            return float(int(self))

    loop = Loop()
    for number in loop.steps(range(1000)):
        loop.report(loss=Value(number), accuracy=Value(number))
    assert read[:2] == [0, 0]
    assert read[-2:] == [999, 999]
    assert len(read) <= 10


def test_a_stop_with_nothing_to_save_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """No checkpoint, no 85: the scheduler must not believe that something was saved."""
    with pytest.raises(SystemExit) as stopped:
        train(None, stop_at=3)
    assert stopped.value.code == 143
    assert "nothing could be saved" in capsys.readouterr().err


def test_a_torn_checkpoint_is_skipped_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest whole one is resumed from; the damaged one is named."""
    for stop_at in (4, 8):
        with pytest.raises(SystemExit):
            train(tmp_path, stop_at=stop_at)
        if stop_at == 4:
            kept = next(tmp_path.glob("*/step-*"))
            saved = {path.name: path.read_bytes() for path in kept.iterdir()}
    kept.mkdir(parents=True)
    for name, content in saved.items():
        (kept / name).write_bytes(content)
    newest = next(tmp_path.glob("*/step-0000000008"))
    (newest / "trace.json").write_text("{}")
    assert train(tmp_path) == train(None)
    assert f"torn checkpoint skipped: {newest / 'trace.json'}" in capsys.readouterr().err


@pytest.mark.parametrize(("stated", "job_file", "kept"), [(None, "", 2), (None, "1", 1), (3, "1", 3)])
def test_the_script_says_how_many_checkpoints_are_kept_else_the_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: int | None, job_file: str, kept: int
) -> None:
    monkeypatch.setenv("WALRAS_CHECKPOINT_KEEP", job_file)
    loop = Loop(Checkpoint(tmp_path, every_s=None, keep=stated, trace=Trace()))
    for _ in loop.steps(range(6)):
        loop.save()
    assert len(list(tmp_path.glob("*/step-*"))) == kept


def test_under_a_scheduler_the_named_checkpoint_counts_and_no_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a former attempt wrote after the recorded checkpoint, or never had recorded, is not resumed from."""
    loop = Loop(Checkpoint(tmp_path, every_s=None, keep=5, trace=Trace()))
    for _ in loop.steps(range(6)):
        if loop.step in (2, 4):
            loop.save()
    named, newer = sorted(tmp_path.glob("*/step-*"))
    digest = json.loads((named / MANIFEST).read_text())["digest"]
    monkeypatch.setenv("WALRAS_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("WALRAS_ATTEMPT", "2")
    monkeypatch.setenv("WALRAS_RESUME", json.dumps({"path": str(named), "digest": digest, "step": 2}))
    resumed = Loop(Checkpoint(trace=Trace()))
    assert resumed.resume()
    assert resumed.step == 2
    (named / "trace.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        Loop(Checkpoint(trace=Trace())).resume()
    assert ended.value.code == 86
    assert newer.exists()
    monkeypatch.delenv("WALRAS_RESUME")
    assert not Loop(Checkpoint(trace=Trace())).resume()


def test_what_cannot_be_skipped_begins_its_epoch_again_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stream without state is read from the start of the epoch: repeated, never silently lost."""

    class Stream:
        def __iter__(self) -> Iterator[int]:
            return iter(range(5))

    with pytest.raises(SystemExit):
        train(tmp_path, data=Stream(), stop_at=7)
    seen = train(tmp_path, data=Stream())
    assert [batch for epoch, batch, _ in seen if epoch == 1] == [0, 1, 0, 1, 2, 3, 4]
    assert "epoch 1 begins again" in capsys.readouterr().err


def test_a_loader_with_a_state_of_its_own_resumes_by_it(tmp_path: Path) -> None:
    """state_dict and load_state_dict of the data are used where there are any."""

    class Counting:
        position = 0

        def __iter__(self) -> Iterator[int]:
            while self.position < 5:
                self.position += 1
                yield self.position
            self.position = 0

        def state_dict(self) -> dict[str, int]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.position = state["position"]

    with pytest.raises(SystemExit):
        train(tmp_path, data=Counting(), stop_at=7)
    assert [batch for _, batch, _ in train(tmp_path, data=Counting())] == [1, 2, 3, 4, 5] * 3


def test_old_checkpoints_go(tmp_path: Path) -> None:
    """Two are kept by default."""
    loop = Loop(Checkpoint(tmp_path, every_steps=2, trace=Trace()))
    assert len(list(loop.steps(range(9)))) == 9
    assert [path.name for path in sorted(tmp_path.glob("*/step-*"))] == ["step-0000000006", "step-0000000008"]


@pytest.mark.parametrize("refused", ["write", "sync", "manifest"])
def test_a_failed_checkpoint_neither_ends_training_nor_keeps_the_disk_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """What a full disk took of it goes, or every later one would find the disk as full."""
    loop, left = Loop(Checkpoint(tmp_path, every_steps=2, every_s=None, trace=Trace())), []
    place, name = {
        "write": (checkpoint, "write_state"),
        "sync": (checkpoint, "sync_path"),
        "manifest": (checkpoint, "write_synced"),
    }[refused]
    works = getattr(place, name)

    def write(*given: Any) -> Any:
        if loop.step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return works(*given)

    monkeypatch.setattr(place, name, write)
    for _ in loop.steps(range(8)):
        left.append([path.name for path in sorted(tmp_path.glob("*/step-*"))])
    assert left[4:6] == [["step-0000000002"]] * 2
    assert [path.name for path in sorted(tmp_path.glob("*/step-*"))] == ["step-0000000006", "step-0000000008"]


def test_the_limit_of_steps_ends_all_loops(tmp_path: Path) -> None:
    """A limit ends epochs and steps alike, and what came last is saved."""
    loop = Loop(Checkpoint(tmp_path, trace=Trace()), steps=7)
    counts = [len(list(loop.steps(range(3)))) for _ in loop.epochs()]
    assert counts == [3, 3, 1]
    assert list(tmp_path.glob("*/step-0000000007/manifest.json"))


def test_state_that_json_would_change_is_refused_by_name(tmp_path: Path) -> None:
    """Better an error at the first save than another state at the first resume; a number belongs into `values`."""

    class Bad(Trace):
        def state_dict(self) -> dict[Any, Any]:
            return {1: "one"}

    loop = Loop(Checkpoint(tmp_path, counters=Bad()))
    with pytest.raises(TypeError, match="counters"):
        loop.save()
    with pytest.raises(TypeError, match="best=float"):
        Checkpoint(best=0.5)


def test_plain_values_come_back(tmp_path: Path) -> None:
    """`values` is saved with the objects and is there once `resume` was called."""
    loop = Loop(Checkpoint(tmp_path, trace=Trace()))
    loop._checkpoint.values["best"] = 0.25
    assert loop.save()
    checkpoint = Checkpoint(tmp_path, trace=Trace())
    assert Loop(checkpoint).resume()
    assert checkpoint.values == {"best": 0.25}


def test_a_loss_that_is_no_number_is_left_out_and_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In the job's own log; once it is a number again it is shown again."""
    values = ReportedValues()
    values.take({"loss": 2.0, "accuracy": 0.5})
    values.take({"loss": float("nan")})
    assert values.message_fields() == {"values": {"accuracy": 0.5}, "first_values": {"loss": 2.0, "accuracy": 0.5}}
    values.message_fields()
    assert capsys.readouterr().err.count("walras: loss is nan: it is not shown") == 1
    values.take({"loss": 1.0})
    assert values.message_fields()["values"] == {"loss": 1.0, "accuracy": 0.5}


@pytest.fixture
def ends() -> Iterator[tuple[SupervisorLink, socket.socket]]:
    """Rank 3's link, and the supervisor's end of it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(str(Path(folder, "s")))
        server.listen()
        link = SupervisorLink(server.getsockname(), 3, os.getpid())
        accepted, _ = server.accept()
        with accepted:
            yield link, accepted
        link.close()


def test_losing_the_supervisor_never_breaks_training(ends: tuple[SupervisorLink, socket.socket]) -> None:
    """Every call is harmless before, while and after the other end goes away, or where there never was one."""
    link, accepted = ends
    accepted.close()
    for _ in range(3):
        link.send({"type": "progress"})
        link.poll()
    link.wait(0.001)
    link.drain(0.001)
    assert not link.stop_requested
    link = SupervisorLink("/no/such/socket", 0, os.getpid())
    link.send({"type": "progress"})
    link.poll()


def test_messages_are_understood_however_they_are_cut(ends: tuple[SupervisorLink, socket.socket]) -> None:
    """Lines arrive in pieces; unknown and broken ones are left alone."""
    link, accepted = ends
    hello = json.loads(accepted.recv(4096))
    assert (hello["type"], hello["rank"]) == ("hello", 3)
    text = b'not json\n{"type": "future"}\n{"type": "lease", "until": 1.5}\n{"type": "stop", "grace_s": 3}\n'
    for piece in (text[:13], text[13:40], text[40:]):
        accepted.sendall(piece)
        link.poll()
    assert link.stop_requested
    assert link.lease_until == 1.5
    assert link.lease_has_ended


def test_a_stop_ends_a_wait(ends: tuple[SupervisorLink, socket.socket]) -> None:
    """A paced loop does not sleep through the request to end."""
    link, accepted = ends
    accepted.sendall(b'{"type": "stop"}\n')
    began_at = time.monotonic()
    link.wait(120.0)
    assert time.monotonic() - began_at < 60.0


def test_a_script_with_thousands_of_open_files_hears_its_supervisor(
    ends: tuple[SupervisorLink, socket.socket],
) -> None:
    """Data in many shards takes the low numbers, and `select` knows none above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    link, accepted = ends
    assert link._socket is not None
    low = link._socket.detach()
    link._socket = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD, 2000))
    link._socket.setblocking(False)
    os.close(low)
    link._backlog = b'{"type": "finished"}\n'
    link.drain(60.0)
    assert b"finished" in accepted.recv(4096)
    accepted.sendall(b'{"type": "save"}\n')
    assert link.wait_beside(accepted.fileno())
    accepted.sendall(b'{"type": "stop"}\n')
    link.wait(60.0)
    assert (link.save_requested, link.stop_requested) == (True, True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_supervisor_that_does_not_read_costs_progress_not_commits(ends: tuple[SupervisorLink, socket.socket]) -> None:
    """What waits is bounded, and a commit is never what is dropped."""
    link, accepted = ends
    for _ in range(3000):
        link.send({"type": "progress", "padding": "x" * 1000}, may_drop=True)
    link.send({"type": "commit", "step": 7})
    received = b""
    accepted.settimeout(1.0)
    while b'"commit"' not in received:
        received += accepted.recv(1 << 20)
        link.poll()
