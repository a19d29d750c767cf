"""The demo's files, folders and processes."""

import sys
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest

from walras.demo.local_cluster import ChildProcesses, child_environment, prepare_demo
from walras.demo.main import ROUND_S, arrivals
from walras.errors import ConfigError


def test_jobs_keep_coming_for_the_web_page(tmp_path: Path) -> None:
    """The workload again and again, in order, under names of their own; each turn begins after the one before."""
    stage = prepare_demo(tmp_path / "run")
    jobs = len(stage.workload.jobs)
    coming = arrivals(stage)
    first, second = list(islice(coming, jobs)), list(islice(coming, jobs))
    assert [at_s for at_s, *_ in second] == [at_s + ROUND_S for at_s, *_ in first]
    assert sorted(at_s for at_s, *_ in first) == [at_s for at_s, *_ in first]
    assert [spec.name for *_, spec in second] == [f"{spec.name}-2" for *_, spec in first]
    assert {user for _, user, _ in first} == set(stage.users)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """A demo never mixes with the remains of another."""
    (tmp_path / "old").touch()
    with pytest.raises(ConfigError, match="not empty"):
        prepare_demo(tmp_path)


def test_daemons_find_this_python_and_no_other_server() -> None:
    """`python` in a job file is the demo's own, and a user's WALRAS_* settings do not leak in."""
    environment = child_environment({"PATH": "/usr/bin", "WALRAS_SERVER": "http://elsewhere", "HOME": "/root"})
    assert environment == {"PATH": f"{Path(sys.executable).parent}:/usr/bin", "HOME": "/root"}


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A grandchild in a session of its own that ignores SIGTERM is gone after `stop`, and it is named."""
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f" print(1, flush=True); time.sleep(60)', {str(tmp_path)!r}], start_new_session=True, stdout=subprocess.PIPE)"
        ".stdout.readline()\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    # In a process of its own: becoming a subreaper is for life.
    runner = (
        "import pathlib, sys, time\n"
        "from walras.demo.local_cluster import ChildProcesses, adopt_orphans\n"
        "adopt_orphans(); processes = ChildProcesses(pathlib.Path(sys.argv[1]))\n"
        "processes.start('parent', [sys.executable, '-c', sys.argv[2]], {})\n"
        "deadline = time.monotonic() + 100\n"
        "while 'ready' not in processes.log_tail('parent') and time.monotonic() < deadline: time.sleep(0.05)\n"
        "print(len(processes.stop(patience_s=2.0)))\n"
    )
    started = psutil.Popen(
        [sys.executable, "-c", runner, str(tmp_path), code], stdout=-1, cwd=Path(__file__).parents[4]
    )
    output, _ = started.communicate(timeout=60)
    assert output.strip() == b"1"
    # By its folder: another test may have the same kind of process at this moment.
    left = [process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])]
    assert left == []


def test_a_process_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    """`died` names the process and shows the end of what it printed."""
    processes = ChildProcesses(tmp_path)
    processes.start("server", [sys.executable, "-S", "-c", "print('no port is free'); raise SystemExit(3)"], {})
    deadline = time.monotonic() + 100
    while (death := processes.died()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert death == "server ended with code 3:\nno port is free"
