"""A real job with roles: a trainer and two rollouts on unlike machines, over the addresses that they are given."""

import contextlib
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.attempts import ROOT
from tests.support.real_server import A, RealServer, Serve, processes_of, wait_for

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "configs/jobs/training/post_training.py"
B = A | {"shape": "bx1", "accelerator": "b"}
WALRAS = {"policy": {"name": "walras"}, "rules": {"round_s": 2, "resolve_min_s": 1, "backoff_s": 1, "profiling_s": 1}}
STEPS, PACE = 150, 15.0


def _trains(server: RealServer, tmp_path: Path, restarts: int = 0, **more: Any) -> int:
    """The job, on machines of type a and, twice, b; its trainer at fifteen steps a second."""
    speeds = tmp_path / "speeds.json"
    speeds.write_text(json.dumps({"rl": {"a": PACE}}))
    for name, pool in (("b1", B), ("a1", A), ("b2", B)):
        server.start_agent(name, pool, speeds=str(speeds))
    own = f"{sys.executable} {SCRIPT}"
    roles = {
        "trainer": {"run": f"{own} trainer", "accelerators": "a:1", "after": "rollout"},
        "rollout": {"run": f"{own} rollout", "accelerators": "b:1", "count": 2, "restarts": restarts},
    }
    return server.submit(name="rl", profile="rl", steps=STEPS, roles=roles, grace_period="20s", **more)


def _rewards(server: RealServer, job: int, attempt: int) -> dict[int, float]:
    """The mean reward of each step that the attempt took, by the steps done before."""
    found = re.findall(r"^\[trainer 0\] step (\d+): reward ([0-9.]+)$", server.log(job, attempt), re.MULTILINE)
    return {int(step): float(reward) for step, reward in found}


def _rollouts(server: RealServer) -> list[psutil.Process]:
    """Of this server's job: a test beside this one may have some, too."""
    found = []
    for process in processes_of(SCRIPT):
        with contextlib.suppress(psutil.Error):  # it has ended since
            is_ours = process.cwd() == str(server.folder) and process.environ().get("WALRAS_ROLE")
            if is_ours and "rollout" in process.cmdline():  # a shell that starts one has it within a word
                found.append(process)
    return found


def test_a_trainer_learns_from_rollouts_on_other_machines_and_all_resume_together(serve: Serve, tmp_path: Path) -> None:
    """One rollout is killed: all end and start again from the checkpoint. A machine of one role is drained: all save
    and wait for it, and say so. With the trainer's last step the job is done, and no process is left."""
    server = serve([A, B], WALRAS)
    job = _trains(server, tmp_path, retry={"max_restarts": 1}, checkpoint={"interval": "1s"})
    server.until_step(job, 30)
    assert server.attempt(job)["placement"] == ["a1:0", "b1:0", "b2:0"]
    said = server.call("GET", f"/jobs/{job}/explain")[1]["why"]
    assert said.startswith("has trainer 0 on a1 (log of rank 0), rollout 0 on b1 (log of rank 1), rollout 1 on b2")
    wait_for(lambda: server.recorded(job), 60.0, "a checkpoint", lambda: server.job(job))
    _rollouts(server)[0].send_signal(signal.SIGKILL)
    server.until_running(job, 2)
    assert server.job(job)["attempt_list"][0]["signal"] == signal.SIGKILL
    resumed = [step for attempt, step, _ in server.recorded(job) if attempt == 1][-1]
    wait_for(lambda: _rewards(server, job, 2), 60.0, "a step", lambda: server.log(job, 2))
    assert min(_rewards(server, job, 2)) == resumed

    server.until_step(job, resumed + 20)
    assert server.call("POST", "/nodes/b2/drain")[0] == 200
    wait_for(lambda: server.state(job) == "PENDING", 60.0, "the job stops", lambda: server.job(job))
    (stopped,) = [step for attempt, step, _ in server.recorded(job) if attempt == 2][-1:]
    assert stopped == max(_rewards(server, job, 2)) + 1
    assert all(server.node(name)["free"] for name in ("a1", "b1"))  # type: ignore[index]
    why = server.call("GET", f"/jobs/{job}/explain")[1]["why"]
    assert why.startswith("it needs trainer 1 x a + rollout 2 x b; rollout needs 2 x b: 1 of 1 free on b")
    assert server.call("POST", "/nodes/b2/resume")[0] == 200
    server.until_state(job, "SUCCEEDED", 120.0)
    rewards = _rewards(server, job, 3)
    assert min(rewards) == stopped
    assert max(rewards) == STEPS - 1
    first = _rewards(server, job, 1)
    assert sum(first[step] for step in range(5)) / 5 < 0.3
    assert sum(rewards[step] for step in range(STEPS - 5, STEPS)) / 5 > 0.6
    assert not _rollouts(server)


def test_a_rollout_that_may_be_is_started_again_alone(serve: Serve, tmp_path: Path) -> None:
    """The trainer waits for it and goes on in the same attempt to the job's end."""
    server = serve([A, B], WALRAS)
    job = _trains(server, tmp_path, restarts=2)
    server.until_step(job, 20)
    _rollouts(server)[0].send_signal(signal.SIGKILL)
    server.until_state(job, "SUCCEEDED", 120.0)
    assert len(server.job(job)["attempt_list"]) == 1
    logs = server.log(job, 1, 1) + server.log(job, 1, 2)
    assert "was ended by signal 9; it is started again in 1 s" in logs
