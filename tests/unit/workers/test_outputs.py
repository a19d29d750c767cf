"""What an agent keeps of a job's folder: regular files only, none outside it, bounded, whatever ranks put there."""

import asyncio
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.agent_commands import a_start
from tests.support.waiting import until
from walras.errors import ConfigError
from walras.job_needs import JobNeeds, OutputsCollected
from workers.agent import outputs
from workers.agent.outputs import FINISH_S, HURRIED_S, OutputCollector, copy_outputs
from workers.devices import AttemptKey
from workers.preparation.launcher import NEEDS_FILE, read_needs, write_needs


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "out" / "deep").mkdir(parents=True)
    (folder / "out" / "model.bin").write_bytes(b"weights")
    (folder / "out" / "deep" / "run.sh").write_text("x")
    (folder / "out" / "deep" / "run.sh").chmod(0o755)
    return folder


def test_files_and_folders_are_copied_with_their_mode(work: Path, tmp_path: Path) -> None:
    copied = copy_outputs(work, ["out"], tmp_path / "copy")
    assert sorted(copied.paths) == ["out/deep/run.sh", "out/model.bin"]
    assert copied.problem == ""
    assert (tmp_path / "copy/out/model.bin").read_bytes() == b"weights"
    assert os.access(tmp_path / "copy/out/deep/run.sh", os.X_OK)
    copied = copy_outputs(work, ["results.json"], tmp_path / "copy")
    assert copied.paths == []
    assert "results.json: No such file" in copied.problem


def test_nothing_outside_the_folder_is_read_and_no_pipe_is_waited_for(work: Path, tmp_path: Path) -> None:
    """Links (of a file, of a folder on the way, of the output itself) and pipes are named, not followed."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("private")
    (work / "out" / "link").symlink_to(tmp_path / "secret" / "key")
    (work / "out" / "folder").symlink_to(tmp_path / "secret")
    (work / "way").symlink_to(tmp_path / "secret")
    os.mkfifo(work / "out" / "pipe")
    copied = copy_outputs(work, ["out", "way/key", "way"], tmp_path / "copy")
    assert sorted(copied.paths) == ["out/deep/run.sh", "out/model.bin"]
    for name in ("out/link", "out/folder", "out/pipe", "way/key"):
        assert any(each.startswith(name) for each in copied.left_out), name
    assert "private" not in "".join(path.read_text() for path in (tmp_path / "copy").rglob("*") if path.is_file())


def test_too_much_is_refused_with_the_largest_files_before_anything_is_copied(work: Path, tmp_path: Path) -> None:
    """A sparse file of 2 TB costs nothing to make."""
    with open(work / "out" / "huge", "wb") as huge:
        huge.truncate(2 * 10**12)
    with pytest.raises(ConfigError, match=r"out/huge \(2,000,000.0 MB\)"):
        copy_outputs(work, ["out"], tmp_path / "copy")
    assert not any(path.is_file() for path in (tmp_path / "copy").rglob("*"))


@pytest.mark.parametrize("written", [0, 1000])
def test_a_sparse_file_is_named_and_not_sent(work: Path, tmp_path: Path, written: int) -> None:
    """3 GB of zeros would hold the accelerator; the other results are kept, and a file with a small hole too."""
    for name, size in (("sparse", 3 * 10**9), ("some", 8 * 2**20)):
        with open(work / "out" / name, "wb") as file:
            file.truncate(size)
            file.seek(size // 2)
            file.write(b"x" * written)
    copied = copy_outputs(work, ["out"], tmp_path / "copy")
    assert sorted(copied.paths) == ["out/deep/run.sh", "out/model.bin", "out/some"]
    assert "out/sparse is sparse: 3,000,000,000 bytes" in copied.problem
    assert (tmp_path / "copy/out/some").read_bytes() == (work / "out/some").read_bytes()


def test_a_file_that_grows_is_cut_where_it_was(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the copy it has grown: what is kept is a whole beginning of it."""
    plain = outputs._copy_file

    def grow_and_copy(folder: Path, sized: tuple[str, int], *more: Any) -> str:
        with open(folder / sized[0], "ab") as file:
            file.write(b" and more")
        return plain(folder, sized, *more)

    monkeypatch.setattr(outputs, "_copy_file", grow_and_copy)
    copy_outputs(work, ["out/model.bin"], tmp_path / "copy")
    assert (tmp_path / "copy/out/model.bin").read_bytes() == b"weights"


async def test_a_job_that_ends_while_its_results_are_copied_keeps_all_of_them(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint at the end asks for a copy, and the end for another before that one is through."""
    plain, calls, go_on, is_through = outputs._copy_file, [0], threading.Event(), threading.Event()
    told: list[OutputsCollected] = []

    def copy(folder: Path, sized: tuple[str, int], *more: Any) -> str:
        calls[0] += 1
        if calls[0] == 1:
            go_on.wait(60.0)
        elif calls[0] == 2 and not go_on.is_set():  # beside the first
            go_on.set()
            is_through.wait(60.0)
        said = plain(folder, sized, *more)
        if sized[0].endswith("model.bin") and go_on.is_set():
            is_through.set()
        return said

    async def tell(key: object, message: OutputsCollected) -> None:
        told.append(message)

    async def send(*_: object) -> None:
        pass

    monkeypatch.setattr(outputs, "_copy_file", copy)
    monkeypatch.setattr(outputs.ContentTransfer, "send", send)
    write_needs(tmp_path, JobNeeds(outputs=("out",)))
    plan = SimpleNamespace(workdir=str(work), uid=0, gid=0, node_rank=0)
    client = SimpleNamespace(transport=lambda: nullcontext(None), tell_outputs=tell)
    collector = OutputCollector(client, AttemptKey(1, 1), tmp_path, plan)  # type: ignore[arg-type]
    collecting = asyncio.create_task(collector.run())
    collector.request()
    await until(lambda: calls[0] == 1, 30.0, "the first copy has begun")
    collecting.cancel()
    ending = asyncio.create_task(collector.finish(lambda: False))
    await asyncio.wait({ending}, timeout=0.3)
    go_on.set()
    assert (await ending, [(each.files, each.problem) for each in told]) == ("", [(2, "")])
    assert not (tmp_path / "outputs").exists()


def test_needs_survive_the_agent_and_an_older_release_left_none(tmp_path: Path) -> None:
    assert read_needs(tmp_path) == JobNeeds()
    write_needs(tmp_path, JobNeeds(outputs=("out",)))
    assert read_needs(tmp_path).outputs == ("out",)
    os.unlink(tmp_path / NEEDS_FILE)
    os.mkfifo(tmp_path / NEEDS_FILE)
    assert read_needs(tmp_path) == JobNeeds()


class SlowCollection(OutputCollector):
    """A collection that lasts until it is told to be done."""

    def __init__(self, folder: Path) -> None:
        write_needs(folder, JobNeeds(outputs=("out",)))
        plan: Any = a_start(folder, "").model_copy(update={"uid": 0, "gid": 0})
        super().__init__(None, AttemptKey(1, 1), folder, plan)  # type: ignore[arg-type]
        self.done = asyncio.Event()

    async def _collect_patiently(self) -> str:
        await self.done.wait()
        return ""


@pytest.mark.parametrize(
    ("stopped_at_s", "done_at_s", "is_kept"),
    [
        (None, FINISH_S - 1, True),
        (None, FINISH_S + 1, False),
        (0.0, HURRIED_S - 1, True),
        (0.0, HURRIED_S + 1, False),
        (300.0, 300.0 + HURRIED_S - 1, True),
        (300.0, 300.0 + HURRIED_S + 1, False),
        (FINISH_S - 1, FINISH_S + 1, False),
    ],
)
async def test_a_stop_leaves_the_results_a_minute_from_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at_s: float | None, done_at_s: float, is_kept: bool
) -> None:
    """Also one that comes late in a long collection, which it would otherwise end at once; said again it adds none."""
    collector, now = SlowCollection(tmp_path), [0.0]

    async def pass_time(tasks: set[Any], timeout: float) -> None:
        now[0] += 0.5
        if now[0] >= done_at_s:
            collector.done.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    monkeypatch.setattr(outputs, "monotonic", lambda: now[0])
    monkeypatch.setattr("workers.agent.outputs.asyncio.wait", pass_time)
    problem = await collector.finish(lambda: stopped_at_s is not None and now[0] >= stopped_at_s)
    assert (problem == "") is is_kept
