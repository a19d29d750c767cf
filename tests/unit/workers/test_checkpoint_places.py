"""A checkpoint is brought to where its job will look for it, from the store that has it, and to nowhere else."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_commands import LOOP, a_start
from walras.content import ContentTree
from walras.training.checkpoint import commit_checkpoint, partial_folder, step_folder
from walras.wire import StartCommand
from workers.agent import checkpoint_places
from workers.agent.checkpoint_places import bring_checkpoint, local_folder, localized

SERVED = "/srv/walras/jobs/1"


class OneCheckpoint:
    """A store that gives a copy of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[str] = []

    @asynccontextmanager
    async def open(self, store: str, *_: object) -> AsyncIterator["OneCheckpoint"]:
        self.opened.append(store)
        yield self

    async def fetch(self, name: str, folder: Path, check: object = None) -> ContentTree:
        shutil.copytree(self.folder, folder)
        return ContentTree()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneCheckpoint:
    found = OneCheckpoint(tmp_path / "made")
    monkeypatch.setattr(checkpoint_places, "opened_store", found.open)
    return found


def a_resuming_start(tmp_path: Path, source: OneCheckpoint, **resume: Any) -> StartCommand:
    part = partial_folder(tmp_path / "attempt", 5)
    part.mkdir(parents=True)
    (part / "model.json").write_text("5")
    made = commit_checkpoint(part, step_folder(tmp_path / "attempt", 5), 5)
    source.folder = Path(made.path)
    told = {"step": 5, "path": f"{SERVED}/attempt-0001/step-5", "digest": made.digest, "content": "0" * 64, **resume}
    command = a_start(tmp_path, LOOP, attempt=2, store="s3://bucket/new/jobs/1", checkpoint_dir=SERVED, resume=told)
    return localized(tmp_path / "state", command)


@pytest.mark.parametrize(("kept_in", "opened"), [("", "server"), ("s3://bucket/old/jobs/1", "s3://bucket/old/jobs/1")])
async def test_the_store_that_has_it_is_asked_whatever_the_job_saves_to_now(
    tmp_path: Path, store: OneCheckpoint, kept_in: str, opened: str
) -> None:
    command = a_resuming_start(tmp_path, store, store=kept_in)
    await bring_checkpoint(command, None)  # type: ignore[arg-type]
    assert store.opened == [opened]
    assert command.resume is not None
    assert (Path(command.resume.path) / "model.json").read_text() == "5"
    await bring_checkpoint(command, None)  # type: ignore[arg-type]
    assert len(store.opened) == 1, "it is here already"


@pytest.mark.parametrize("planted", ["attempt", "step"])
async def test_links_that_ranks_left_are_not_followed(tmp_path: Path, store: OneCheckpoint, planted: str) -> None:
    command = a_resuming_start(tmp_path, store)
    assert command.resume is not None
    place = Path(command.resume.path)
    (tmp_path / "victim").mkdir()
    local_folder(tmp_path / "state", SERVED).mkdir(parents=True)
    if planted == "step":
        place.parent.mkdir()
    (place.parent if planted == "attempt" else place).symlink_to(tmp_path / "victim")
    await bring_checkpoint(command, None)  # type: ignore[arg-type]
    assert not list((tmp_path / "victim").iterdir())
    assert (place / "model.json").read_text() == "5"
