"""What a loop does while nothing trains: in an evaluation, and wherever else a script is between its steps."""

import json
import random
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from walras.training import Checkpoint, Loop
from walras.training.checkpoint import MANIFEST, seed_of
from walras.training.saving import freeze_state, is_failed_exchange, is_replicated


class PlayedSupervisor:
    """The other end of a job's socket."""

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(30.0)
        self._listener.bind(path)
        self._listener.listen()
        self._peer: socket.socket | None = None
        self._received = b""

    def tell(self, message: dict[str, Any]) -> None:
        if self._peer is None:
            self._peer, _ = self._listener.accept()
            self._peer.settimeout(30.0)
        self._peer.sendall(json.dumps(message).encode() + b"\n")

    def stop(self) -> None:
        self.tell({"type": "stop", "grace_s": 30.0, "reason": "moved"})

    def until(self, kind: str) -> list[dict[str, Any]]:
        """Everything that the job said up to a message of this type."""
        said: list[dict[str, Any]] = []
        while not said or said[-1]["type"] != kind:
            while b"\n" not in self._received:
                chunk = self._peer.recv(65536)
                assert chunk, f"the job hung up after {said}"
                self._received += chunk
            line, _, self._received = self._received.partition(b"\n")
            said.append(json.loads(line))
        return said

    def close(self) -> None:
        self._listener.close()
        if self._peer is not None:
            self._peer.close()


Play = Callable[[], PlayedSupervisor]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Play]:
    """Starts a supervisor for the next attempt of a job, which resumes from the checkpoint of the one before."""
    monkeypatch.setenv("WALRAS_COUNT_FACTS", "0")
    for name in ("WALRAS_SOCKET", "WALRAS_RESUME", "WALRAS_CHECKPOINT_DIR", "WALRAS_STEPS", "WALRAS_PACE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    started: list[PlayedSupervisor] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:

        def start() -> PlayedSupervisor:
            path = f"{folder}/{len(started)}"
            monkeypatch.setenv("WALRAS_SOCKET", path)
            monkeypatch.setenv("WALRAS_CHECKPOINT_DIR", str(tmp_path / "saved"))
            monkeypatch.setenv("WALRAS_ATTEMPT", str(len(started) + 1))
            newest = max(saved(tmp_path), default=None)
            if newest is not None:
                digest = json.loads((newest / MANIFEST).read_text())["digest"]
                reference = {"path": str(newest), "digest": digest, "step": int(newest.name.partition("-")[2])}
                monkeypatch.setenv("WALRAS_RESUME", json.dumps(reference))
            started.append(PlayedSupervisor(path))
            return started[-1]

        yield start
        for each in started:
            each.close()


def saved(folder: Path) -> list[Path]:
    return [path.parent for path in folder.glob(f"saved/*/*/{MANIFEST}")]


class Trace:
    """Remembers what it saw; cannot be copied by reference."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.rate = 1.0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen, self.rate = state["seen"], state["rate"]


def train(evaluate: Callable[[Loop, int], None], *, within: bool = False) -> list[Any]:
    """Three epochs of four steps. After each, or in the second step of each, the script evaluates."""
    random.seed(5)
    trace = Trace()
    loop = Loop(Checkpoint(trace=trace, every_s=None))
    try:
        for epoch in loop.epochs(3):
            for batch in loop.steps(range(4)):
                trace.seen.append([epoch, batch, random.random(), trace.rate])
                if within and batch == 1:
                    evaluate(loop, epoch)
            if not within:
                trace.rate /= 2  # as a scheduler of the learning rate
                evaluate(loop, epoch)
    finally:
        loop._link.close()
    return trace.seen


def by_itself(loop: Loop, epoch: int) -> None:
    random.random()


def through_the_loop(loop: Loop, epoch: int) -> None:
    assert list(loop.evaluating(range(3))) == [0, 1, 2]
    random.random()


def stopped_in_epoch_1(
    supervisor: PlayedSupervisor, evaluation: Callable[[Loop, int], None]
) -> Callable[[Loop, int], None]:
    """The evaluation, of which a stop in epoch 1 is answered before it is over."""

    def evaluate(loop: Loop, epoch: int) -> None:
        evaluation(loop, epoch)
        if epoch == 1:
            supervisor.stop()
            assert supervisor.until("commit")[-1]["step"] == 8

    return evaluate


@pytest.mark.parametrize("evaluation", [by_itself, through_the_loop])
def test_a_stop_between_steps_saves_at_once_and_resumes_as_if_nothing_had_happened(
    play: Play, evaluation: Callable[[Loop, int], None]
) -> None:
    """The checkpoint is that of the last step, whatever the script did since: no step, number or rate differs."""
    expected = train(evaluation)
    with pytest.raises(SystemExit) as stopped:
        train(stopped_in_epoch_1(play(), evaluation))
    assert stopped.value.code == 85
    play()
    assert train(evaluation) == expected


def test_an_evaluation_is_left_at_its_next_batch(play: Play) -> None:
    """Once all is saved it has no more to wait for."""
    supervisor = play()
    seen = []

    def evaluate(loop: Loop, epoch: int) -> None:
        for batch in loop.evaluating(range(100)):
            seen.append(batch)
            if batch == 3:
                supervisor.stop()
                supervisor.until("commit")
                loop._pause._thread.join()  # type: ignore[union-attr]

    with pytest.raises(SystemExit) as stopped:
        train(evaluate)
    assert (stopped.value.code, seen) == (85, [0, 1, 2, 3])


@pytest.mark.parametrize("evaluation", [by_itself, through_the_loop])
def test_an_evaluation_within_an_epoch_ends_the_step_before_it(
    play: Play, evaluation: Callable[[Loop, int], None]
) -> None:
    """Only `evaluating` says that the weights of a step are updated; the job goes on at the next step."""
    expected = train(evaluation, within=True)
    supervisor = play()

    def evaluate(loop: Loop, epoch: int) -> None:
        if epoch != 1 or evaluation is by_itself:
            evaluation(loop, epoch)
            loop._link.stop_requested = epoch == 1
            return
        for batch in loop.evaluating(range(3)):
            if batch == 1:
                supervisor.stop()
                supervisor.until("commit")
                loop._pause._thread.join()  # type: ignore[union-attr]

    with pytest.raises(SystemExit) as stopped:
        train(evaluate, within=True)
    assert stopped.value.code == 85
    play()
    resumed = train(evaluation, within=True)
    assert [seen[:2] for seen in resumed] == [seen[:2] for seen in expected]
    assert [seen[2] for seen in resumed[:5]] == [seen[2] for seen in expected[:5]]


def test_a_request_to_save_is_met_and_the_evaluation_goes_on(play: Play) -> None:
    """A hint that the machine may go asks for no more than that."""
    supervisor = play()

    def evaluate(loop: Loop, epoch: int) -> None:
        if epoch == 0:
            supervisor.tell({"type": "save"})
            assert [each["type"] for each in supervisor.until("commit")][-2:] == ["saving", "commit"]

    assert len(train(evaluate)) == 12


def test_no_thread_is_left_once_steps_are_made_again_or_the_loop_is_over(play: Play) -> None:
    """Whoever listens between steps is gone by the next one."""
    play()
    before = threading.active_count()
    counts = []

    def evaluate(loop: Loop, epoch: int) -> None:
        counts.append(threading.active_count() - before)

    loop = Loop(Checkpoint(trace=Trace(), every_s=None))
    for epoch in loop.epochs(2):
        for _ in loop.steps(range(2)):
            assert threading.active_count() == before
        evaluate(loop, epoch)
    loop._link.close()
    assert (counts, threading.active_count()) == ([1, 1], before)


OPTIMIZERS = {
    "sgd": {"foreach": False}, "sgd, foreach": {"foreach": True}, "adamw": {"foreach": False},
    "adamw, foreach": {"foreach": True}, "adamw, fused": {"fused": True},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_that_changed_since_the_last_step_are_not_saved_as_its_own(name: str) -> None:
    """Whatever changed them: large tensors are not copied, so each must be seen to be what it was."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200))
    kind = torch.optim.SGD if name.startswith("sgd") else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.1, **OPTIMIZERS[name])

    def train_a_step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 200)).sum().backward()
        optimizer.step()

    train_a_step()
    checkpoint = Checkpoint(model=model, optimizer=optimizer)
    frozen = freeze_state(1, {}, None, checkpoint.states(), {})
    assert len(frozen.watched) > 0
    mean = frozen.objects["model"]["1.running_mean"].clone()
    with torch.no_grad():
        model(torch.randn(8, 200))  # of what is small there is a copy
    assert frozen.is_unchanged
    assert torch.equal(frozen.objects["model"]["1.running_mean"], mean)
    train_a_step()
    assert not frozen.is_unchanged


def test_other_weights_in_an_evaluation_are_noticed() -> None:
    """Averaged weights, swapped in to evaluate them, are not those to go on from."""
    torch = pytest.importorskip("torch")
    model, average = torch.nn.Linear(200, 200), torch.nn.Linear(200, 200)
    frozen = freeze_state(1, {}, None, {"model": model.state_dict()}, {})
    model.load_state_dict(average.state_dict())
    assert not frozen.is_unchanged


def test_only_a_replicated_layout_is_saved_by_one_rank() -> None:
    """By what is known of torch's classes, or what the script says; never what is sharded, whatever it says."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    parallel = type("DistributedDataParallel", (torch.nn.Module,), {"__module__": "torch.nn.parallel.distributed"})()
    parallel.module = model
    optimizer = torch.optim.SGD(model.parameters())
    known = [parallel, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)]
    assert is_replicated(known, None)
    assert not is_replicated(known, "sharded")
    for unknown in (model, Trace(), type("Own", (torch.optim.SGD,), {})(model.parameters())):
        assert not is_replicated([*known, unknown], None)
        assert is_replicated([*known, unknown], "replicated")
    part = type("FullyShardedDataParallel", (torch.nn.Linear,), {})(2, 2)
    for sharded in (torch.nn.Sequential(part), type("ZeroRedundancyOptimizer", (), {})()):
        assert not is_replicated([sharded], "replicated")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1234", True),
        ("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_a_failed_exchange_is_told_from_an_error_of_the_script(text: str, is_one: bool) -> None:
    """A survivor that saves and is queued again must not hide a fault of the script."""
    assert is_failed_exchange(RuntimeError(text)) == is_one
    assert not is_failed_exchange(ValueError(text))
    assert is_failed_exchange(type("DistBackendError", (RuntimeError,), {})("NCCL error"))


def test_a_resume_takes_the_seed_of_the_survivor_that_saved(tmp_path: Path) -> None:
    """Rank 0 was lost, so its order of data is that of the rank that saved; ranks that are new have none."""
    (tmp_path / "rank-2.json").write_text('{"seed": 7}')
    assert [seed_of(tmp_path, rank) for rank in (0, 2)] == [7, 7]
    (tmp_path / "rank-0.json").write_text('{"seed": 3}')
    assert [seed_of(tmp_path, rank) for rank in (0, 1, 2)] == [3, None, 7]


def test_what_cannot_be_copied_is_not_frozen() -> None:
    """The loop then saves at the end of the next step, as it does without an evaluation."""
    assert freeze_state(1, {}, None, {"lock": threading.Lock()}, {}) is None
