"""The parts of a supervisor that need no processes: journal, output, sockets, plan."""

import json
import os
import selectors
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from walras import contract
from walras.training import supervisor_link
from workers import processes
from workers.rank_environment import build_client_folder
from workers.ranks import RankOutput, is_own_fault
from workers.supervisor_protocol import MAX_LINE_BYTES, AttemptJournal, Channels, PeerRole, read_attempt_journal


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


@pytest.fixture
def channels() -> Iterator[tuple[Channels, selectors.BaseSelector, str, str]]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, selectors.DefaultSelector() as selector:
        paths = f"{folder}/r", f"{folder}/a"
        made = Channels(selector, *paths)
        yield made, selector, *paths
        made.close()


def turn(made: Channels, selector: selectors.BaseSelector) -> None:
    for key, _ in selector.select(0.5):
        assert made.handle(key.data)


def test_a_role_is_given_by_the_socket_not_by_what_is_said(
    channels: tuple[Channels, selectors.BaseSelector, str, str],
) -> None:
    """A rank cannot make itself an agent."""
    made, selector, rank_path, _ = channels
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(rank_path)
        turn(made, selector)
        rank.sendall(b'{"type": "renew", "until": 1e9}\n')
        turn(made, selector)
        (connection,) = made.connections
        assert connection.role is PeerRole.RANK
        assert connection.inbox == [{"type": "renew", "until": 1e9}]
        assert made.of(PeerRole.AGENT) == []


@pytest.mark.parametrize("rubbish", [b"no json\n", b"[1]\n", b"\xff\xfe\n", b"x" * (MAX_LINE_BYTES + 70_000)])
def test_rubbish_ends_the_connection_and_nothing_else(
    channels: tuple[Channels, selectors.BaseSelector, str, str], rubbish: bytes
) -> None:
    """What is no JSON object, or never ends, is hung up on."""
    made, selector, rank_path, _ = channels
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(rank_path)
        rank.setblocking(False)
        turn(made, selector)
        unsent = rubbish
        while made.of(PeerRole.RANK) and unsent:
            unsent = unsent[rank.send(unsent[:65536]) :]
            turn(made, selector)
        assert made.of(PeerRole.RANK) == []
        made.drop_closed()
        assert made.connections == []


def test_a_process_is_told_apart_from_a_later_one_with_its_number() -> None:
    """A number alone is not a name."""
    own = processes.name_process(os.getpid())
    assert own is not None
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


def test_the_in_job_client_agrees_with_the_contract() -> None:
    """`walras.training` repeats what it shares with the rest: the copy in a job's path comes alone."""
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
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", False),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", False),
        ("RuntimeError: NCCL communicator was aborted", False),
        ("", False),
    ],
)
def test_errors_that_a_program_has_anywhere_are_told_from_a_machines(last: str, own: bool) -> None:
    """By the end of its output, however much was printed before."""
    assert is_own_fault(f"epoch 1\n{'x' * 5000}\nTraceback (most recent call last):\n{last}\n".encode()) is own
