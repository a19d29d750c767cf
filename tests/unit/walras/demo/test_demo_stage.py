"""The demo's files, folders and processes."""

import sys
import time
from itertools import islice
from pathlib import Path

import psutil
import pytest

from walras.demo.local_cluster import ChildProcesses, child_environment, configs_folder, prepare_demo
from walras.demo.main import ROUND_S, arrivals
from walras.demo.run_report import MOST_RANK_STARTS
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_yaml
from walras.spec.workload_file import WorkloadFile


def test_the_demo_has_the_jobs_it_promises() -> None:
    """At least ten jobs of four kinds by two users: a gang of two, a plain script, an urgent late one, a failure."""
    workload = load_yaml(configs_folder() / "workloads/demo.yaml", WorkloadFile)
    jobs = [arrival.job for arrival in workload.jobs]
    assert len(jobs) >= 10
    assert {"cnn", "transformer", "rnn", "mlp"} <= {job.profile for job in jobs}
    assert {(arrival.user, arrival.project) for arrival in workload.jobs} == {("ada", "vision"), ("bob", "language")}
    assert [job.name for job in jobs if job.resources.accelerators[0].count == 2] == ["pair"]
    assert any(arrival.at >= 30 and arrival.job.priority > 66 for arrival in workload.jobs)
    ranks = sum(job.resources.accelerators[0].count for job in jobs)
    assert ranks <= MOST_RANK_STARTS - 8, "leave room for preemptions and moves"


def test_the_demo_has_the_machines_it_promises() -> None:
    """Two owned machines and a priced spot pool of the local provider, all emulated, and a pace for every kind."""
    cluster = load_yaml(configs_folder() / "clusters/demo.yaml", ClusterConfig)
    workload = load_yaml(configs_folder() / "workloads/demo.yaml", WorkloadFile)
    assert sum(entry.machines for entry in cluster.pools) == 2
    (spot,) = [entry for entry in cluster.pools if entry.provider == "local"]
    assert spot.usd_per_h > 0
    assert [incident.revoke for incident in workload.incidents] == [spot.pool_id]
    assert all(entry.emulated for entry in cluster.pools)
    types = {entry.accelerator for entry in cluster.pools}
    paced = {arrival.job.profile for arrival in workload.jobs} - {"plain_script"}
    assert all(cluster.speeds[str(kind)].keys() == types for kind in paced)


def test_jobs_bring_their_code(tmp_path: Path) -> None:
    """No machine needs the folder of the scripts: a snapshot travels with every job, as with `walras submit`."""
    stage = prepare_demo(tmp_path / "run")
    for arrival in stage.workload.jobs:
        spec = stage.spec(arrival)
        assert spec.workdir is None
        assert spec.code is not None
        tree = stage.code[str(arrival.job.workdir)]
        assert spec.code.tree == tree.name
        assert "cnn.py" in [file.path for file in tree.files]
        assert (stage.code_folder(str(arrival.job.workdir)) / "cnn.py").exists()


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


def test_a_process_that_may_end_is_not_told(tmp_path: Path) -> None:
    """After `forget` the end of a machine's agent ends no demo, and the machine can be started again."""
    processes = ChildProcesses(tmp_path)
    processes.start("a100-1", ["true"], {"PATH": "/usr/bin:/bin"})
    processes.forget("a100-1")
    assert processes.died() is None
    processes.start("a100-1", ["sh", "-c", "exit 3"], {"PATH": "/usr/bin:/bin"})
    deadline = time.monotonic() + 100
    while (death := processes.died()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert death == "a100-1 ended with code 3:\n"


def test_a_process_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    """`died` names the process and shows the end of what it printed."""
    processes = ChildProcesses(tmp_path)
    processes.start("server", [sys.executable, "-S", "-c", "print('no port is free'); raise SystemExit(3)"], {})
    deadline = time.monotonic() + 100
    while (death := processes.died()) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert death == "server ended with code 3:\nno port is free"
