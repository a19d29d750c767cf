"""A real server, agents as real processes, and kill -9."""

import signal
import subprocess
import time

import psutil
import pytest

from scheduler.live.store.event_journal import replay_folder
from tests.support.real_server import FIFO, WALRAS, A, RealServer, Serve, processes_of, wait_for
from workers.supervisor_protocol import rank_log

pytestmark = pytest.mark.slow

SPOT = {**A, "shape": "sx1", "accelerator": "s", "market": "spot", "provider": "local", "usd_per_h": 1.0, "quota": 1}
RENTING = {
    "policy": {"name": "max_min_fairness"},
    "rules": {"round_s": 5, "resolve_min_s": 1, "delay_usd_per_h": 100, "profiling_s": 1},
}


@pytest.fixture
def server(serve: Serve) -> RealServer:
    return serve([A], FIFO, lease="150s")


def test_an_acknowledged_submit_survives_kill_9_right_after_the_201(server: RealServer) -> None:
    """Five times: 201, kill -9, start again: the job is there, and its key answers the same job."""
    for number in range(1, 6):
        status, made = server.call("POST", "/jobs", {"run": "true", "name": f"j{number}"}, key=f"k{number}")
        server.kill()
        assert (status, made["id"]) == (201, number)
        server.start()
        assert server.call("GET", f"/jobs/{number}")[1]["name"] == f"j{number}"
        assert server.call("POST", "/jobs", {"run": "true", "name": f"j{number}"}, key=f"k{number}") == (200, made)
    told = subprocess.run(
        [WALRAS, "admin", "check", "--replay", "--data", str(server.data)], capture_output=True, timeout=300
    )
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, b"identical")
    assert b"6 starts" in told.stdout


def test_ranks_are_undisturbed_by_a_server_that_is_killed_and_comes_back(server: RealServer) -> None:
    """kill -9 in mid-run: the same processes go on, every line once, one attempt; what ended meanwhile is known."""
    agent = server.start_agent()
    script = "echo pid $$; i=0; until [ -e go ]; do i=$((i+1)); echo line $i; sleep 0.2; done"
    job_id, short = server.submit(run=script), server.submit(run="echo next")
    wait_for(lambda: "line 3\n" in server.log(job_id, 1), 30, "the job runs")
    known = len(server.log(job_id, 1).splitlines())
    server.kill()
    lines = rank_log(agent.attempt_folder(job_id, 1), 0).read_text
    wait_for(lambda: len(lines().splitlines()) > known + 8, 30, "it goes on while nobody serves it")
    server.start()
    assert server.state(job_id) == "RUNNING"
    (server.folder / "go").touch()
    for job in (job_id, short):
        server.until_state(job, "SUCCEEDED", 40)
    assert [attempt["attempt"] for attempt in server.job(job_id)["attempt_list"]] == [1]
    log = server.log(job_id, 1).splitlines()
    assert len(log) > known + 5, "it went on while nobody served it"
    assert (log[0][:4], log[1:]) == ("pid ", [f"line {i}" for i in range(1, len(log))])
    assert replay_folder(server.data).identical


def test_control_c_ends_the_server_and_its_solver_without_a_traceback(server: RealServer) -> None:
    """A terminal tells every process of the group; the server alone acts on it."""
    assert server.process is not None
    for process in [*psutil.Process(server.process.pid).children(recursive=True), psutil.Process(server.process.pid)]:
        process.send_signal(signal.SIGINT)
    assert server.process.wait(300) == 0
    told = (server.folder / "server.log").read_text()
    assert "Traceback" not in told
    assert "SpawnProcess" not in told


def test_a_rented_machine_outlives_a_killed_server_but_not_a_stopped_one(serve: Serve) -> None:
    """The local provider finds its machine again after kill -9; revocation takes all of it; a stop leaves none."""
    server = serve([SPOT], RENTING, lease="150s")
    job_id = server.submit(run="for i in $(seq 3000); do sleep 0.2; done")
    server.until_state(job_id, "RUNNING")
    machine = server.call("GET", "/nodes")[1][0]["node_id"]
    server.kill()
    server.start()
    assert server.state(job_id) == "RUNNING"
    assert [node["node_id"] for node in server.call("GET", "/nodes")[1]] == [machine]
    revoked = server.call("POST", "/pools:revoke", {"pool_id": "sx1/spot/default", "notice_s": 1})
    assert revoked == (200, {"nodes": [machine]})
    wait_for(lambda: server.job(job_id)["attempts"] == 2, 60, "it starts on another machine")
    attempts = server.call("GET", f"/jobs/{job_id}/attempts")[1]
    assert attempts[0]["state"] in ("NODE_LOST", "PREEMPTED")
    assert attempts[0]["usd"] > 0
    wait_for(lambda: not processes_of(server.data / "machines" / machine), 10, "all of it is gone")
    assert server.stop() == 0
    wait_for(lambda: not processes_of(server.data), 10, "a stop leaves none")


def test_a_server_killed_while_it_starts_keeps_its_port(server: RealServer) -> None:
    """Again and again, at other moments: agents call one port for ever."""
    assert server.process is not None
    url = server.url
    server.kill()
    for moment in range(8):
        starting = subprocess.Popen(
            [WALRAS, "server", "--data", str(server.data)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(0.25 * moment)
        starting.kill()
        starting.wait(300)
    server.start()
    assert server.url == url


def test_a_second_server_on_the_same_folder_says_who_holds_it(server: RealServer) -> None:
    """Exit code 2 and the pid."""
    assert server.process is not None
    second = subprocess.run([WALRAS, "server", "--data", str(server.data)], capture_output=True, timeout=300, text=True)
    assert second.returncode == 2
    assert f"pid {server.process.pid}" in second.stderr
