"""Ctrl-C in a terminal during a simulation whose policy runs compiled code: exit code 130 and one line."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = "import runpy; runpy.run_module('walras', run_name='__main__')"
#: Says when the program is loaded: before that Ctrl-C is Python's own.
TOLD = "from walras.cli.main import main; print('begins', flush=True); main()"


def _interrupted(arguments: list[str], after_s: float, folder: Path) -> tuple[int, str]:
    """Run a command in a terminal of its own, press Ctrl-C there so long after it began; returns its exit code and all
    that it printed.
    """
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TOLD, *arguments],
        stdin=end, stdout=end, stderr=end, cwd=folder, start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # the terminal becomes the controlling one
    )  # fmt: skip
    os.close(end)
    said = b""
    while not said.endswith(b"begins\r\n"):
        said += os.read(terminal, 1)
    time.sleep(after_s)
    assert process.poll() is None, "the run was over before it was interrupted"
    os.write(terminal, b"\x03")
    said = b""
    try:
        while chunk := os.read(terminal, 65536):
            said += chunk
    except OSError:
        pass  # the terminal's other end is closed: the process is gone
    os.close(terminal)
    return process.wait(300), said.decode(errors="replace")


def _left_to_see(said: str) -> list[str]:
    """The lines that stand on the terminal in the end: what was drawn and erased is not among them."""
    assert said.rfind("\x1b[?25h") >= said.rfind("\x1b[?25l"), f"the cursor is hidden: {said!r}"
    lines = [re.sub(r".*\x1b\[2K", "", line) for line in said.split("\r\n")]
    return [line for line in (re.sub(r"\x1b\[\??[0-9;]*[a-zA-Z]", "", line).strip() for line in lines) if line]


@pytest.mark.parametrize("after_s", [1.4, *(pytest.param(late_s, marks=pytest.mark.slow) for late_s in (3.7, 5.5))])
def test_ctrl_c_ends_a_simulation_in_one_line(tmp_path: Path, after_s: float) -> None:
    """At several moments: while files are read, while code is loaded or compiled, between and inside solves."""
    made = ["generate:gavel", "--set", "trace_jobs=3000", "--cluster", "gavel-36-36-36"]
    arguments = ["simulate", "run", *made, "--policy", "walras"]
    code, said = _interrupted(arguments, after_s, tmp_path)
    assert code == 130, said
    assert _left_to_see(said) == ["walras: interrupted"], said


@pytest.mark.parametrize("after_s", [0.9, pytest.param(2.5, marks=pytest.mark.slow)])
def test_ctrl_c_ends_a_solve_in_one_line(tmp_path: Path, after_s: float) -> None:
    """While the problem is read, and while code is loaded, compiled or at work on it."""
    pools = {f"p{number}": {"capacity": 40, "machine_size": 4} for number in range(30)}
    speeds = [{"pool": name, "accelerators": 1, "steps_per_s": 1.0 + number % 7} for number, name in enumerate(pools)]
    jobs = [{"id": number, "configurations": speeds} for number in range(1, 20_001)]
    (tmp_path / "large.json").write_text(json.dumps({"schema_version": 1, "pools": pools, "jobs": jobs}))
    code, said = _interrupted(["policy", "solve", "large.json"], after_s, tmp_path)
    assert code == 130, said
    assert _left_to_see(said) == ["walras: interrupted"], said


_PRESSED_WHILE_LOADING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{}":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
_PRESSED_WHILE_PUT_TOGETHER = """
import os, signal, typer.main
made = typer.main.get_group
def get_group(app):
    os.kill(os.getpid(), signal.SIGINT)
    return made(app)
typer.main.get_group = get_group
"""


@pytest.mark.parametrize(
    "pressed",
    [
        _PRESSED_WHILE_LOADING.format("simulator.reports.run_spec"),
        _PRESSED_WHILE_PUT_TOGETHER,
        _PRESSED_WHILE_LOADING.format("walras.cli.main"),
    ],
)
def test_ctrl_c_before_a_run_begins_ends_it_in_the_same_line(tmp_path: Path, pressed: str) -> None:
    """While its options are read, which loads the models, and before: while commands are put together or imported."""
    words = ["simulate", "run", "generate:gavel", "--set", "trace_jobs=3", "--cluster", "gavel-36-36-36"]
    result = subprocess.run(
        [sys.executable, "-c", pressed + COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (result.returncode, result.stdout, result.stderr.strip()) == (130, "", "walras: interrupted")


def test_a_command_started_deaf_to_ctrl_c_stays_so() -> None:
    """A shell starts what is put behind `&` so: Ctrl-C is for the command in front."""
    from walras.cli.terminal_output import exit_at_interrupt

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with exit_at_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_default_answer_to_ctrl_c_is_not_lost_to_others() -> None:
    """The handler is of the command alone: after it, and in other commands, KeyboardInterrupt is raised as ever."""
    from walras.cli.terminal_output import exit_at_interrupt

    before = signal.getsignal(signal.SIGINT)
    with exit_at_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
