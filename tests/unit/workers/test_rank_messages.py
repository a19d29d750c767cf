"""What ranks write, parsed as hostile: nothing that passes can hurt anybody, and the job is told what did not."""

import json
import os
import selectors
import socket
import tempfile
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

import pytest

from walras.wire import Manifest, ProgressReport
from workers.rank_messages import (
    COUNT_MOST,
    NOTES_TOLD_MOST,
    VALUES_MOST,
    NotesOfJob,
    check_rank_message,
    parse_object,
)
from workers.supervisor_protocol import (
    MAX_CONNECTIONS,
    MAX_LINE_BYTES,
    AttemptJournal,
    Channels,
    PeerRole,
    find_attempt_end,
    read_attempt_journal,
    read_ranks_file,
)

HOSTILE_LINES = [
    b"[" * 30_000,
    b'{"a":' * 30_000,
    b"[" * 30_000 + b"]" * 30_000,
    b'{"type": "progress", "steps": ' + b"9" * 5000 + b"}",
    b"\xff\xfe",
    b"null",
    b"17",
    b'"text"',
    b"{",
    b"",
]


@pytest.mark.parametrize("line", HOSTILE_LINES, ids=lambda line: repr(line[:12]))
def test_a_line_that_is_no_object_is_none(line: bytes) -> None:
    """Depth, digits and bytes that make a parser raise are the peer's fault, never ours."""
    assert parse_object(line) is None


IMPOSSIBLE_STEPS = [None, nan, inf, -inf, -1, "5", True, [1], {}, 10**400, 1e300, COUNT_MOST * 4]


@pytest.mark.parametrize("steps", IMPOSSIBLE_STEPS, ids=lambda steps: str(steps)[:12])
def test_progress_without_steps_that_count_is_ignored_with_a_note(steps: Any) -> None:
    checked = check_rank_message({"type": "progress", "steps": steps, "values": {"loss": 1.0}})
    assert checked.message is None
    assert len(checked.notes) == 1
    assert checked.notes[0].startswith("progress ignored: steps is ")


def test_one_bad_value_does_not_cost_the_job_its_steps() -> None:
    """A loss of NaN is left out and named; speeds and samples likewise; what remains is a report that is accepted."""
    checked = check_rank_message(
        {
            "type": "progress",
            "steps": 5,
            "steps_per_s": 1e-300,
            "samples": 10**30,
            "pace": "fast",
            "values": {"loss": nan, "accuracy": 0.5, "\ud800": 1.0, "big": 10**400},
            "facts": [1],
            "job_id": 99,
            "attempt": 99,
        }
    )
    assert checked.message is not None
    kept = {name: value for name, value in checked.message.items() if name != "type"}
    assert kept == {"steps": 5.0, "values": {"accuracy": 0.5}, "first_values": {}, "facts": {}}
    assert "values['loss'] ignored: it is not a finite number" in checked.notes
    assert len(checked.notes) == 7
    assert ProgressReport(report_id=1, job_id=1, attempt=1, **kept).steps == 5


def test_values_are_cut_off_at_a_bound() -> None:
    values = {f"v{number}": 1.0 for number in range(1000)}
    checked = check_rank_message({"type": "progress", "steps": 1, "values": values})
    assert checked.message is not None
    assert len(checked.message["values"]) == VALUES_MOST


IMPOSSIBLE_COMMITS: list[tuple[str, Any]] = [
    *(("step", value) for value in (nan, 10**400, None)),
    *(("path", value) for value in (5, "\ud800", "x" * 5000)),
    *(("digest", value) for value in ("A" * 64, "a" * 63, None)),
]


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE_COMMITS)
def test_a_checkpoint_that_cannot_be_reported_does_not_count(field: str, value: Any) -> None:
    commit = {"type": "commit", "step": 5, "path": "/c/1", "digest": "a" * 64, "took_s": 1.0}
    good = check_rank_message(commit | {"took_s": inf}).message
    assert good is not None
    assert Manifest(step=good["step"], path=good["path"], digest=good["digest"])
    assert isfinite(good["took_s"])
    checked = check_rank_message(commit | {field: value})
    assert checked.message is None
    assert checked.notes[0].startswith("checkpoint does not count: its ")


def test_types_that_nobody_knows_pass_by() -> None:
    for message in ({}, {"type": 5}, {"type": ["progress"]}, {"type": "from the future"}, {"type": "note"}):
        checked = check_rank_message(message)
        assert (checked.message, checked.notes) == (None, [])


def test_notes_are_told_once_and_not_without_end() -> None:
    """A job that reports NaN at every step is told so once; one that varies its nonsense is told that there is more."""
    notes = NotesOfJob()
    assert notes.lines(["a is odd"]) == b"[walras] a is odd\n"
    assert notes.lines(["a is odd"]) == b""
    told = b"".join(notes.lines([f"{number} is odd"]) for number in range(1000))
    assert told.count(b"\n") == NOTES_TOLD_MOST
    assert told.endswith(b"[walras] further notes are left out\n")


def test_a_hostile_line_closes_its_connection_only(tmp_path: Path) -> None:
    """What came before it counts; too many connections of ranks keep no agent out."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, selectors.DefaultSelector() as selector:
        channels = Channels(selector, f"{folder}/r", f"{folder}/a")

        def turn(times: int = 4) -> None:
            for _ in range(times):
                for key, _ in selector.select(0.005):
                    channels.handle(key.data)

        def connect(name: str) -> socket.socket:
            made = socket.socket(socket.AF_UNIX)
            made.connect(f"{folder}/{name}")
            turn(2)
            return made

        hostile, other = connect("r"), connect("r")
        hostile.sendall(b'{"type": "hello"}\n' + b"[" * 30_000 + b"\n")
        other.sendall(b'{"type": "hello"}\n')
        turn()
        first, second = channels.connections
        assert ([message["type"] for message in first.inbox], first.is_open, first.fault) == (
            ["hello"],
            False,
            "a line is no JSON object",
        )
        assert second.is_open
        for _ in range(MAX_LINE_BYTES // 32768 + 1):
            other.sendall(b"x" * 32768)
            turn(2)
        assert (second.is_open, second.fault) == (False, f"a line is longer than {MAX_LINE_BYTES} bytes")
        channels.drop_closed()
        many = [connect("r") for _ in range(MAX_CONNECTIONS + 5)]
        agent = connect("a")
        assert len(channels.of(PeerRole.RANK)) == MAX_CONNECTIONS
        assert len(channels.of(PeerRole.AGENT)) == 1
        for each in (*many, agent, hostile, other):
            each.close()
        channels.drop_closed()
        channels.close()


def test_a_journal_that_ranks_wrote_into_is_read_past_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = AttemptJournal(path)
    journal.append({"type": "started"})
    with open(path, "ab") as file:
        file.write(b"\n".join(HOSTILE_LINES) + b"\n")
    journal.append({"type": "ended", "cause": "exited"})
    with open(path, "ab") as file:
        file.write(b"[1]\n")
    events, offset = read_attempt_journal(path)
    assert [event["type"] for event in events] == ["started", "ended"]
    assert offset == path.stat().st_size
    assert find_attempt_end(path) == {"type": "ended", "cause": "exited"}
    assert find_attempt_end(tmp_path / "absent") is None
    journal.close()


def test_what_is_no_plain_file_is_empty_and_never_waited_for(tmp_path: Path) -> None:
    """A job that puts a pipe, a link or a folder in the place of its log stops nobody."""

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    assert [read_ranks_file(tmp_path / name, 0, 10) for name in ("pipe", "link", "folder", "absent")] == [b""] * 4


def test_a_journal_on_a_full_disk_is_completed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of which a part fitted is whole once there is room, and nothing is lost."""

    path = tmp_path / "journal.jsonl"
    journal = AttemptJournal(path)
    write, room = os.write, 10

    def limited(file: int, content: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(28, "No space left on device")
        written = write(file, content[:room])
        room -= written
        return written

    monkeypatch.setattr("workers.supervisor_protocol.os.write", limited)
    journal.append({"type": "started"})
    journal.append({"type": "ended"})
    assert not journal.flush()
    assert read_attempt_journal(path) == ([], 0)
    room = 10_000
    assert journal.flush()
    monkeypatch.undo()
    assert [event["type"] for event in read_attempt_journal(path)[0]] == ["started", "ended"]
    assert json.loads(path.read_bytes().splitlines()[0]) == {"type": "started"}
    journal.close()
