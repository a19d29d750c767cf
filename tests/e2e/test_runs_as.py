"""A real agent that is root runs ranks as the users who submitted them, and lends them nothing of its own."""

import json
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.real_server import FIFO, A, RealServer, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can run ranks as other users"),
    pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="NOT RUN: no Python that every account can reach"),
]

NOBODY = pwd.getpwnam("nobody")
#: What a rank is and may, then a training that saves, is asked to leave, and goes on from its checkpoint.
SCRIPT = """
import json, os, sys, time
from walras.training import Checkpoint, Loop

def tried(call, *given):
    try:
        return str(call(*given))
    except OSError as error:
        return type(error).__name__

state = os.environ["STATE"]
open("made-here", "w").write("x")
open("/dev/stdout", "w").write("again\\n")
print(json.dumps({
    "ids": [os.getuid(), os.geteuid(), os.getgid()],
    "groups": os.getgroups(),
    "home": os.environ["HOME"], "user": os.environ["USER"],
    "work": os.stat(".").st_uid,
    "state": tried(os.listdir, state), "attempts": tried(os.listdir, state + "/attempts"),
    "plan": tried(open, "../plan.json"), "log": tried(open, "../rank-0.log", "a"),
    "supervisor": tried(os.kill, os.getppid(), 9),
}), flush=True)

class Counter:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

counter = Counter()
loop = Loop(Checkpoint(counter=counter, every_s=0.5))
print("resumed" if loop.resume() else "fresh", counter.n, flush=True)
for step in loop.steps(range(100_000)):
    counter.n += 1
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Below a folder that every account can pass through, as an agent's state has to be."""
    users = tmp_path_factory.mktemp("runs-as") / "users.yaml"
    with TemporaryDirectory(prefix="walras-runs-as-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        found = RealServer(Path(folder), [A], FIFO)
        try:
            found.start()
            users.write_text("admin: nobody\n")
            users.chmod(0o600)
            found.start_agent(runs_as=str(users))
            yield found
        finally:
            found.close()


def test_ranks_are_the_users_and_nothing_of_roots_is_theirs(server: RealServer) -> None:
    """Identity, folder, socket and output; a checkpoint that travels; a command in the job's place; a moved job."""
    state = server.agents["n1"].state
    spec = {"run": ["/usr/bin/python3", "-c", SCRIPT], "workdir": None, "outputs": "made-here", "grace_period": 5}
    job = server.submit(resources={"accelerators": "a"}, envs={"STATE": str(state)}, **spec)
    wait_for(lambda: "fresh" in server.log(job, 1), 60, "the script runs", lambda: server.log(job, 1))
    again, told, *_ = server.log(job, 1).splitlines()
    assert again == "again"
    assert json.loads(told) == {
        "ids": [NOBODY.pw_uid, NOBODY.pw_uid, NOBODY.pw_gid],
        "groups": os.getgrouplist("nobody", NOBODY.pw_gid),
        "home": NOBODY.pw_dir, "user": "nobody",
        "work": NOBODY.pw_uid,
        "state": "PermissionError", "attempts": "PermissionError",
        "plan": "PermissionError", "log": "PermissionError",
        "supervisor": "PermissionError",
    }  # fmt: skip

    done = server.command("exec", str(job), "--", "sh", "-c", "id -u; id -g; cat /etc/shadow")
    assert done.stdout.split() == [str(NOBODY.pw_uid), str(NOBODY.pw_gid)]
    assert "Permission denied" in done.stderr

    look = lambda: server.job(job)["checkpoint"] or {}  # noqa: E731
    wait_for(lambda: (look().get("step") or 0) > 0, 60, "a checkpoint is recorded", lambda: server.job(job))
    assert server.call("POST", f"/jobs/{job}/hold")[0] == 200
    server.until_state(job, "HELD", 60)
    assert server.call("POST", f"/jobs/{job}/release")[0] == 200
    wait_for(lambda: "resumed" in server.log(job, 2), 60, "it goes on from its checkpoint", lambda: server.job(job))
    assert "made-here" in server.told("show", str(job))
    assert server.call("POST", f"/jobs/{job}/cancel")[0] == 200


def test_a_user_without_an_account_there_is_told_so(server: RealServer) -> None:
    """In the reason of the job, with the file that would have to say it."""
    status, answer = server.call("POST", "/tokens", {"user": "ada", "role": "user"})
    assert status == 201
    file = server.folder / "job.yaml"
    file.write_text("run: [id]\nresources: {accelerators: a}\n")
    told = server.told("submit", str(file), env={"WALRAS_TOKEN": answer["token"]})
    found = re.search(r"\d+", told)
    assert found, told
    job, said = int(found[0]), "gives user 'ada' no account to run as"
    wait_for(lambda: said in json.dumps(server.job(job)), 60, "it is told", lambda: server.job(job))
