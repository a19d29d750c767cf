"""What ranks say and write, and what the supervisor makes of it."""

import json
import os
import selectors
import shutil
import socket
import tempfile
from math import inf, isfinite, nan
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any

import pytest

from walras import contract
from walras.training import supervisor_link
from walras.wire import Manifest, ProgressReport
from workers import processes
from workers.rank_environment import build_client_folder
from workers.ranks import RankOutput, is_own_fault
from workers.supervisor_protocol import (
    COUNT_MOST,
    MAX_CONNECTIONS,
    MAX_LINE_BYTES,
    NOTES_TOLD_MOST,
    VALUES_MOST,
    AttemptJournal,
    Channels,
    NotesOfJob,
    PeerRole,
    check_rank_message,
    find_attempt_end,
    parse_object,
    read_attempt_journal,
    read_ranks_file,
    write_durably,
)

HOSTILE_LINES = [
    b"[" * 30_000, b'{"a":' * 30_000, b"[" * 30_000 + b"]" * 30_000,
    b'{"type": "progress", "steps": ' + b"9" * 5000 + b"}", b"\xff\xfe", b"null", b"17", b'"text"', b"{", b"",
]  # fmt: skip


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
            "type": "progress", "steps": 5, "steps_per_s": 1e-300, "samples": 10**30, "pace": "fast",
            "values": {"loss": nan, "accuracy": 0.5, "\ud800": 1.0, "big": 10**400}, "facts": [1], "job_id": 99,
            "attempt": 99,
        }
    )  # fmt: skip
    kept = {name: value for name, value in checked.message.items() if name != "type"}
    assert kept == {"steps": 5.0, "values": {"accuracy": 0.5}, "first_values": {}, "facts": {}}
    assert "values['loss'] ignored: it is not a finite number" in checked.notes
    assert len(checked.notes) == 7
    assert ProgressReport(report_id=1, job_id=1, attempt=1, **kept).steps == 5


def test_values_are_cut_off_at_a_bound() -> None:
    values = {f"v{number}": 1.0 for number in range(1000)}
    checked = check_rank_message({"type": "progress", "steps": 1, "values": values})
    assert len(checked.message["values"]) == VALUES_MOST
    for message in ({}, {"type": 5}, {"type": ["progress"]}, {"type": "from the future"}, {"type": "note"}):
        checked = check_rank_message(message)
        assert (checked.message, checked.notes) == (None, [])


IMPOSSIBLE_COMMITS: list[tuple[str, Any]] = [
    *(("step", value) for value in (nan, 10**400, None)),
    *(("path", value) for value in (5, "\ud800", "x" * 5000)),
    *(("digest", value) for value in ("A" * 64, "a" * 63, None)),
]


@pytest.mark.parametrize(("field", "value"), IMPOSSIBLE_COMMITS)
def test_a_checkpoint_that_cannot_be_reported_does_not_count(field: str, value: Any) -> None:
    commit = {"type": "commit", "step": 5, "path": "/c/1", "digest": "a" * 64, "took_s": 1.0}
    good = check_rank_message(commit | {"took_s": inf}).message
    assert Manifest(step=good["step"], path=good["path"], digest=good["digest"])
    assert isfinite(good["took_s"])
    checked = check_rank_message(commit | {field: value})
    assert checked.message is None
    assert checked.notes[0].startswith("checkpoint does not count: its ")


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
            ["hello"], False, "a line is no JSON object",
        )  # fmt: skip
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


def test_a_journal_is_read_from_where_one_left_off_and_a_torn_line_is_not_there(tmp_path: Path) -> None:
    """An offset leads to what is new; half a line is a line that was never written."""
    path = tmp_path / "journal.jsonl"
    journal = AttemptJournal(path)
    journal.append({"type": "started"})
    events, offset = read_attempt_journal(path)
    assert [event["type"] for event in events] == ["started"]
    journal.append({"type": "ended"})
    with open(path, "ab") as file:
        file.write(b'{"type": "to')
    events, offset = read_attempt_journal(path, offset)
    assert [event["type"] for event in events] == ["ended"]
    assert read_attempt_journal(path, offset) == ([], offset)
    assert read_attempt_journal(tmp_path / "absent") == ([], 0)
    journal.close()


@pytest.mark.parametrize(("cap", "is_whole"), [(10, False), (1000, True)])
def test_output_keeps_its_beginning_and_its_end(tmp_path: Path, cap: int, is_whole: bool) -> None:
    """Below the cap all of it; above, the head, a statement, and the tail."""
    read_end, write_end = os.pipe()
    output = RankOutput(read_end, tmp_path / "log", cap)
    os.write(write_end, b"a" * 50 + b"z" * 50)
    os.close(write_end)
    assert output.copy()
    assert not output.copy()
    output.close()
    text = (tmp_path / "log").read_bytes()
    assert text.startswith(b"a" * min(cap, 50))
    assert text.endswith(b"z" * 50)
    assert (text == b"a" * 50 + b"z" * 50) or not is_whole


@pytest.mark.parametrize("name", ["r", "a"])
def test_the_last_message_of_a_peer_that_is_gone_is_read(name: str) -> None:
    """Also if the supervisor had something to tell it meanwhile: a commit, or a stop, is not lost."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, selectors.DefaultSelector() as selector:
        channels = Channels(selector, f"{folder}/r", f"{folder}/a")
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(f"{folder}/{name}")
            peer.sendall(b'{"type": "commit"}\n')
        for key, _ in selector.select(5.0):
            assert channels.handle(key.data)
        (connection,) = channels.connections
        connection.send({"type": "lease"})
        channels.drop_closed()
        while connection.is_open:
            for key, _ in selector.select(5.0):
                channels.handle(key.data)
        assert connection.inbox == [{"type": "commit"}]
        channels.drop_closed()
        assert channels.connections == []
        channels.close()


def test_a_role_is_given_by_the_socket_not_by_what_is_said() -> None:
    """A rank cannot make itself an agent."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, selectors.DefaultSelector() as selector:
        channels = Channels(selector, f"{folder}/r", f"{folder}/a")
        with socket.socket(socket.AF_UNIX) as rank:
            rank.connect(f"{folder}/r")
            rank.sendall(b'{"type": "renew", "until": 1e9}\n')
            for _ in range(2):
                for key, _ in selector.select(0.5):
                    assert channels.handle(key.data)
            (connection,) = channels.connections
            assert (connection.role, channels.of(PeerRole.AGENT)) == (PeerRole.RANK, [])
            assert connection.inbox == [{"type": "renew", "until": 1e9}]
        channels.close()


def test_a_process_is_told_apart_from_a_later_one_with_its_number() -> None:
    """A number alone is not a name."""
    own = processes.name_process(os.getpid())
    assert own.is_alive
    assert not processes.ProcessName(own.pid, own.start_ticks + 1).is_alive
    assert processes.name_process(2**22 - 1) is None


def test_the_client_folder_holds_the_client_and_nothing_else(tmp_path: Path) -> None:
    """Root file and `walras/training`: no wire, no server, no generic name. Built once."""
    folder = build_client_folder(tmp_path)
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.py")}
    in_training = {name for name in names if name.startswith("walras/training/")}
    assert names == {"walras/__init__.py"} | in_training
    assert "walras/training/loop.py" in names
    assert build_client_folder(tmp_path) == folder
    assert json.dumps(sorted(path.name for path in folder.iterdir())) == '["walras"]'
    shared = {"EXIT_CHECKPOINTED", "GRADIENT_NOISE_VALUE", "BANDWIDTH_VALUE", "DATA_WAIT_VALUE", "SAVES_VALUE"}
    for name in sorted(shared | {"CHOSEN_BATCH_VALUE", "UPDATE_GAIN_VALUE"}):
        assert getattr(supervisor_link, name) == getattr(contract, name)


@pytest.mark.parametrize(
    ("last", "own"),
    [
        ("ModuleNotFoundError: No module named 'trochvision'", True),
        ("ImportError: cannot import name 'Foo' from 'bar' (/x/bar.py)", True),
        ("  File 'a.py', line 3\n    x = (\nSyntaxError: '(' was never closed", True),
        ("train.py: error: unrecognized arguments: --ephocs 3", True),
        ("python: can't open file '/w/trian.py': [Errno 2] No such file or directory", True),
        ("/opt/conda/bin/python3: can't open file '/w/trian.py': [Errno 2] No such file or directory", True),
        ("/opt/conda/bin/python3.11: No module named trian", True),
        ("python3.13t: can't open file '/w/trian.py': [Errno 2] No such file or directory", True),
        ("python3-dbg: No module named trian", True),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", False),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", False),
        ("RuntimeError: NCCL communicator was aborted", False),
        ("", False),
    ],
)
def test_errors_that_a_program_has_anywhere_are_told_from_a_machines(last: str, own: bool) -> None:
    """By the end of its output, however much was printed before, or by torchrun behind it on each of its ranks."""
    output = f"epoch 1\n{'x' * 5000}\nTraceback (most recent call last):\n{last}\n"
    report = f"E1130 torch/x.py:1] failed (exitcode: 1) local_rank: 0 (pid: 8748) of binary: python\n{'x' * 5000}\n"
    report += f"{'=' * 60}\n"
    assert is_own_fault(output.encode()) is is_own_fault((output + report).encode()) is own
    assert is_own_fault(f"SyntaxError: x\n{report}epoch 1\n{last}\n".encode()) is own  # of what a script ran next


def test_a_file_that_a_full_disk_cut_never_takes_the_place_of_a_whole_one(tmp_path: Path) -> None:
    """A disk with room for a part takes that part without an error."""
    write_durably(tmp_path / "plan.json", {"rank": 1})
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write_durably(tmp_path / "plan.json", {"argv": "x" * 200})
    finally:
        setrlimit(RLIMIT_FSIZE, before)
    assert json.loads((tmp_path / "plan.json").read_text()) == {"rank": 1}


def test_a_journal_whose_folder_is_gone_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Whoever deleted the agent's state has no use for it: no end waits for a disk that is not full."""
    folder = tmp_path / "7-1"
    folder.mkdir()
    journal = AttemptJournal(folder / "journal.jsonl")
    shutil.rmtree(folder)
    journal.append({"type": "ended"})
    assert journal.flush()
    journal.close()
