"""Folders of sockets in /tmp: made where a path is too long, and not left behind for ever."""

import os
import shutil
import socket
from math import inf
from pathlib import Path

import pytest

from workers.agent import launch as subject
from workers.agent.launch import remove_orphans, socket_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(subject, "TEMPORARY", folder)
    return folder


def long_state(tmp_path: Path, name: str = "x") -> Path:
    """A state folder whose path is too long for sockets below it."""
    state = tmp_path / (name * 90)
    state.mkdir()
    return state


def test_a_short_path_needs_no_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sockets are below the state folder, for its owner alone."""
    monkeypatch.setattr(subject, "MAX_SOCKET_FOLDER_BYTES", 1000)
    folder = socket_folder(tmp_path)
    assert folder == tmp_path / "s"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_long_path_is_served_by_one_folder_as_long_as_it_lasts(tmp_path: Path, temporary: Path) -> None:
    """Restarts of the agent find it again; another agent's coming leaves it alone."""
    state = long_state(tmp_path)
    folder = socket_folder(state)
    assert folder.parent == temporary
    assert socket_folder(state) == folder
    socket_folder(long_state(tmp_path, "y"))
    assert folder.is_dir()


def test_a_folder_whose_agent_is_gone_is_removed_by_the_next(tmp_path: Path, temporary: Path) -> None:
    """With the sockets of supervisors that were killed; what is not ours, or of an earlier version, stays."""
    state = long_state(tmp_path)
    folder = socket_folder(state)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(folder / "1.a"))
    shutil.rmtree(state)
    os.utime(folder, (0, 0))
    strange = temporary / "walras-strange"
    strange.mkdir()
    kept = socket_folder(long_state(tmp_path, "y"))
    assert {path.name for path in temporary.iterdir()} == {kept.name, "walras-strange"}


def test_a_folder_in_use_stays_though_its_agents_state_cannot_be_seen(tmp_path: Path, temporary: Path) -> None:
    """Two agents in mount namespaces of their own share /tmp: neither takes the other's folder for an orphan."""
    state = long_state(tmp_path)
    folder = socket_folder(state)
    os.utime(folder, (0, 0))
    assert socket_folder(state) == folder
    state.rename(tmp_path / "unseen")
    socket_folder(long_state(tmp_path, "y"))
    assert folder.is_dir()


def test_a_folder_where_somebody_listens_stays(tmp_path: Path, temporary: Path) -> None:
    """A supervisor may still run though the state folder cannot be seen."""
    state = long_state(tmp_path)
    folder = socket_folder(state)
    shutil.rmtree(state)
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(folder / "1.a"))
        alive.listen()
        remove_orphans(temporary, inf)
        assert folder.is_dir()
    remove_orphans(temporary, inf)
    assert not folder.exists()
