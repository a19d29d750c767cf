"""A stop reaches the programs of a job, whole and once, whatever they are started by: with real processes."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import STUBBORN, SupervisedAttempt, wait_for
from workers import processes
from workers.control_groups import find_group_parent, remove_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Saves for longer than leftover processes may live, and ends with `CODE`.
SAVER = """
import os, signal, sys, time
def stop(number, frame):
    print("caught", flush=True)
    time.sleep(2.6)
    print("saved", flush=True)
    sys.exit(int(os.environ.get("CODE", "85")))
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while True:
    time.sleep(0.05)
"""
#: Does not handle the signal; `up` once it runs.
PLAIN = "import time; print('up', flush=True); time.sleep(300)"
SAVE = "python save.py"
IN_C = """
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static volatile sig_atomic_t asked = 0;
static void stop(int number) { asked = 1; }
int main(void) {
    signal(SIGTERM, stop);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("up");
    while (!asked) usleep(50000);
    puts("caught");
    usleep(2600000);
    puts("saved");
    return 85;
}
"""
#: As most trainers do it: a flag, looked at after each step.
LOADERS = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

asked = False

def stop(number, frame):
    global asked
    if not asked:
        print("caught", flush=True)
    asked = True

class Numbers(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return torch.tensor([float(index)])

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    workers = int(os.environ["W"])
    more = {"multiprocessing_context": os.environ.get("CONTEXT", "fork")} if workers else {}
    loader = DataLoader(Numbers(), batch_size=4, num_workers=workers, persistent_workers="KEPT" in os.environ, **more)
    for step, batch in enumerate(loader):
        if step == 1:
            print("up", flush=True)
        time.sleep(0.1)
        if asked:
            time.sleep(float(os.environ.get("SAVE_S", "2.6")))
            print("saved", flush=True)
            sys.exit(85)
"""

#: Trains with the in-job client; `SAVE_S`, `STEP_S`, `EVALUATE_S`: how long that takes. Handles the signal if told to.
TRAINER = """
import os, signal, sys, time
from walras.training import Checkpoint, Loop

def seconds(name):
    return float(os.environ.get(name, "0.01"))

if "HANDLES" in os.environ:
    signal.signal(signal.SIGTERM, lambda *_: (print("caught", flush=True), sys.exit(1)))

class State:
    def state_dict(self):
        time.sleep(seconds("SAVE_S"))
        return {"n": 1}
    def load_state_dict(self, state):
        pass

loop = Loop(Checkpoint(state=State(), every_s=None))
for epoch in loop.epochs(1000):
    for step in loop.steps(range(10)):
        if step == int(os.environ.get("UP_AT", "5")):
            print("up", flush=True)
        time.sleep(seconds("STEP_S"))
    if epoch == 0:
        print("evaluates", flush=True)
        until = time.monotonic() + seconds("EVALUATE_S")
        while time.monotonic() < until:
            time.sleep(0.05)
        print("evaluated", flush=True)
"""

#: A gang whose rank 1 freezes before the exchange of step 12, as if its machine were gone.
GANG = """
import os, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from walras.training import Checkpoint, Loop

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(200, 200))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
loop = Loop(Checkpoint(model=model, optimizer=optimizer, every_s=None))
for step in loop.steps(range(100_000)):
    optimizer.zero_grad()
    if step == 12:
        print("up", flush=True)
        if loop._gang.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
    model(torch.ones(4, 200)).sum().backward()
    optimizer.step()
"""

Run = Callable[..., dict[str, SupervisedAttempt]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts attempts side by side, one for each command; stops them once each has said `up`; waits for their ends."""
    started: list[SupervisedAttempt] = []
    (tmp_path / "save.py").write_text(SAVER)
    (tmp_path / "plain.py").write_text(PLAIN)

    def run_all(
        commands: Mapping[str, list[str]],
        *,
        ups: int = 1,
        stop_s: float = 60.0,
        after: Callable[[SupervisedAttempt], bool] = lambda attempt: True,
        **changes: Any,
    ) -> dict[str, SupervisedAttempt]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        fields = {"lease_s": 600.0, "grace_s": 60.0} | changes
        env = {"PATH": path} | fields.pop("env", {})
        attempts = {}
        for name, argv in commands.items():
            folder = tmp_path / f"attempt-{len(started)}"
            attempts[name] = SupervisedAttempt(folder, argv, env=env, **fields)
            started.append(attempts[name])
            attempts[name].start()
        for name, attempt in attempts.items():
            wait_for(lambda a=attempt: said(a).count("up\n") >= ups, 60.0, f"{name} is up")  # type: ignore[misc]
            wait_for(lambda a=attempt: after(a), 60.0, f"{name} is as far as it should be")  # type: ignore[misc]
            attempt.tell({"type": "stop", "grace_s": stop_s, "reason": "preempted"})
        for attempt in attempts.values():
            attempt.wait_event("ended", 90.0)
        return attempts

    yield run_all
    for attempt in started:
        attempt.close()


def said(attempt: SupervisedAttempt) -> str:
    return "".join(attempt.output(rank) for rank in attempt.plan.ranks)


def bash(text: str) -> list[str]:
    """As a job's `run: TEXT` is started."""
    return ["bash", "-euo", "pipefail", "-c", text]


def ends(attempts: Mapping[str, SupervisedAttempt]) -> dict[str, tuple[int, int, int | None, int | None]]:
    """By name: how often the signal was caught, how often a save was finished, exit code and signal."""
    found = {}
    for name, attempt in attempts.items():
        (ended,) = attempt.events("ended")
        output = said(attempt)
        found[name] = output.count("caught\n"), output.count("saved\n"), ended["exit_code"], ended["signal"]
        assert attempt.alive() == [], name
        assert (ended["unfinished"], ended["cause"]) == (True, "exited"), name
    return found


def test_a_program_is_found_behind_shells_and_wrappers(run: Run, tmp_path: Path) -> None:
    """It gets the signal once and saves in its own time; its shell gets none, and does not cut it short."""
    (tmp_path / "conda").write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        "sys.exit(subprocess.run(['bash', '-c', '\"$@\"; exit $?', 'conda', *sys.argv[4:]]).returncode)\n"
    )
    (tmp_path / "conda").chmod(0o755)
    (tmp_path / "job.sh").write_text('#!/bin/bash\nsrun() { command "$@"; }\nsrun python save.py\necho after\n')
    (tmp_path / "job.sh").chmod(0o755)
    commands = {
        "alone": ["python", "save.py"],
        "exec": bash(f"exec {SAVE}"),
        "two commands": bash(f"{SAVE}\necho after"),
        "its code": bash(f"set +e; {SAVE}; rc=$?; exit $rc"),
        "in the background": bash(f"(sleep 600) & {SAVE}"),
        "awaited": bash(f"{SAVE} & wait $!"),
        "nested": bash(f"bash -c 'true; bash -c \"{SAVE}; exit \\$?\"; exit $?'; exit $?"),
        "sh": ["sh", "-c", f"{SAVE}; exit $?"],
        "env, nice, time": bash(f"env A=1 nice -n 1 timeout 500 {SAVE}; exit $?"),
        "time": bash(f"time {SAVE}"),
        "conda run": bash(f"./conda run -n base {SAVE}; exit $?"),
        "nohup": bash(f"nohup setsid --wait {SAVE}; exit $?"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    script = run({"script": ["./job.sh"]})["script"]
    assert ends({"script": script}) == {"script": (1, 1, 0, None)}
    assert script.output().endswith("after\n")


def test_a_filter_ends_with_its_input(run: Run, tmp_path: Path) -> None:
    """`| tee log` writes down what the program says while it saves."""
    commands = {
        "tee": bash(f"{SAVE} 2>&1 | tee out.log"),
        "several": bash(f'{SAVE} 2>&1 | cat | (while read -r line; do echo "$line"; done)'),
        "substituted": bash(f"exec > >(tee -a more.log) 2>&1; {SAVE}"),
        "of its own input": bash(f"cat /dev/zero | {SAVE}"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    assert (tmp_path / "out.log").read_text() == (tmp_path / "more.log").read_text() == "up\ncaught\nsaved\n"


def test_a_shell_that_handles_the_signal_gets_it_too(run: Run, tmp_path: Path) -> None:
    """Its trap runs, at once or after what it runs in the foreground, and may save what its program cannot."""
    (tmp_path / "asked.py").write_text(
        "import os, time\nprint('up', flush=True)\n"
        "while not os.path.exists('asked'): time.sleep(0.05)\n"
        "print('caught', flush=True); time.sleep(2.6); print('saved', flush=True)\n"
    )
    commands = {
        "foreground": bash(f"trap 'echo trapped' TERM; {SAVE}; exit $?"),
        "asks by a file": bash("trap 'touch asked; wait; exit 85' TERM; python asked.py & wait; exit 1"),
        "saves by itself": bash(
            "trap 'echo caught; sleep 2.6; echo saved; exit 85' TERM; echo up; while true; do sleep 1; done"
        ),
        "leaves at once": bash(f"trap 'exit 85' TERM; {SAVE} & wait"),
        "ignores": bash(f"trap '' TERM; {SAVE}; exit $?"),
    }
    attempts = run(commands)
    assert ends(attempts) == dict.fromkeys(commands, (1, 1, 85, None))
    assert attempts["foreground"].output().endswith("trapped\n")


def test_what_a_script_starts_after_the_stop_gets_no_signal(run: Run, tmp_path: Path) -> None:
    """Its own cleaning up, such as copying what was saved, has the rest of the grace."""
    (tmp_path / "copy.py").write_text("import time; time.sleep(2.6); print('copied', flush=True)")
    attempt = run({"copies": bash(f"set +e; {SAVE}; rc=$?; python copy.py; exit $rc")})["copies"]
    assert ends({"copies": attempt}) == {"copies": (1, 1, 85, None)}
    assert attempt.output().endswith("copied\n")


def test_who_does_not_handle_the_signal_ends_at_once(run: Run) -> None:
    """By the signal, as its own end or, through its shell, as code 143."""
    plain = run({"plain": ["python", "plain.py"], "below a shell": bash("python plain.py; exit $?")})
    assert ends(plain) == {"plain": (0, 0, None, 15), "below a shell": (0, 0, 143, None)}


def test_who_ignores_the_signal_is_killed_when_the_grace_is_over(run: Run) -> None:
    """With all that it double-forked, whether it saves on by then or not."""
    commands = {"ignores": ["python", "-c", STUBBORN], "saves for too long": ["python", "save.py"]}
    assert ends(run(commands, stop_s=1.0)) == {"ignores": (0, 0, None, 9), "saves for too long": (1, 0, None, 9)}


def test_a_double_forked_program_saves_as_long_as_its_rank_lives(run: Run) -> None:
    """It is an orphan that the supervisor adopted, and a program as any other, also when its rank ends before it."""
    commands = {"daemon": bash(f"({SAVE} &); sleep 300"), "rank first": bash(f"({SAVE} &); exec python plain.py")}
    attempts = run({"daemon": commands["daemon"]}) | run({"rank first": commands["rank first"]}, ups=2)
    assert ends(attempts) == {"daemon": (1, 1, None, 15), "rank first": (1, 1, None, 15)}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="NOT RUN: no C compiler")
def test_a_program_in_c_saves(run: Run, tmp_path: Path) -> None:
    """Nothing here is about Python."""
    (tmp_path / "save.c").write_text(IN_C)
    subprocess.run(["gcc", "-o", tmp_path / "save", tmp_path / "save.c"], check=True, timeout=60)
    commands = {"alone": ["./save"], "in a pipe": bash("./save | tee out.log"), "two": bash("./save; echo after")}
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))


def test_loader_workers_get_no_signal(run: Run, tmp_path: Path) -> None:
    """However many, forked or spawned, kept or not, below a launcher or not: their main process saves."""
    (tmp_path / "loaders.py").write_text(LOADERS)
    commands = {
        "0": bash("W=0 python loaders.py"),
        "2": bash("W=2 python loaders.py; exit $?"),
        "8, kept": bash("W=8 KEPT=1 python loaders.py"),
        "2, spawned and kept": bash("W=2 KEPT=1 CONTEXT=spawn python loaders.py"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    launcher = {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "2", "PET_RDZV_BACKEND": "static"}
    torchrun = {"torchrun": bash("true; W=2 python -m torch.distributed.run loaders.py; exit $?")}
    stopped = run(torchrun, ups=2, devices=[0, 1], is_launcher=True, env=launcher | {"SAVE_S": "0.5"})
    caught, saved, code, _ = ends(stopped)["torchrun"]
    assert (caught >= 2, saved, code) == (True, 2, 85), said(stopped["torchrun"])


def test_what_starts_ranks_is_a_launcher(run: Run, tmp_path: Path) -> None:
    """Whatever its name: the processes that it gave a RANK are the programs."""
    (tmp_path / "starts.py").write_text(
        "import os, subprocess, sys\n"
        "own = [subprocess.Popen(['python', 'save.py'], env=os.environ | {'RANK': str(n)}) for n in range(2)]\n"
        "sys.exit(max(each.wait() for each in own))\n"
    )
    commands = {"launcher": ["python", "starts.py"]}
    assert ends(run(commands, ups=2, devices=[0, 1], is_launcher=True)) == {"launcher": (2, 2, 85, None)}


def test_a_save_or_a_step_that_lasts_has_the_whole_grace(run: Run, tmp_path: Path) -> None:
    """One that saves is not signalled, one that has not begun to only late, and only if it handles the signal."""
    (tmp_path / "trains.py").write_text(TRAINER)
    commands = {
        "saves": bash("SAVE_S=6.8 python trains.py"),
        "saves, and handles the signal": bash("HANDLES=1 SAVE_S=6.8 python trains.py; exit $?"),
        "in a step": bash("UP_AT=0 STEP_S=6.5 python trains.py"),
        "in a step, and handles the signal": bash("HANDLES=1 UP_AT=0 STEP_S=30 python trains.py"),
    }
    stopped = ends(run(commands, stop_s=8.0))
    assert stopped.pop("in a step, and handles the signal") == (1, 0, 1, None)
    assert set(stopped.values()) == {(0, 0, 85, None)}


def test_what_was_trained_is_saved_in_the_evaluation(run: Run, tmp_path: Path) -> None:
    """At once, while the script knows nothing of it; it leaves at its next step, within the grace."""
    (tmp_path / "trains.py").write_text(TRAINER)
    attempt = run(
        {"evaluates": bash("EVALUATE_S=4 python trains.py")}, after=lambda attempt: "evaluates" in attempt.output()
    )["evaluates"]
    (committed,), (ended,) = attempt.events("committed"), attempt.events("ended")
    assert (committed["manifest"]["step"], ended["exit_code"]) == (10, 85)
    assert ended["at"] - committed["at"] > 1.0
    assert "evaluated" in attempt.output()


def test_a_rank_whose_gang_hangs_saves_for_all(run: Run, tmp_path: Path) -> None:
    """A machine of the gang is gone without a word: rank 0 has all weights, those of the last step."""
    (tmp_path / "gang.py").write_text(GANG)
    gang = run({"gang": ["python", "gang.py"]}, ups=2, devices=[0, 1], stop_s=15.0)["gang"]
    (committed,) = gang.events("committed")
    assert committed["manifest"]["step"] == 12, said(gang)
    assert "the gang hangs: rank 0 has saved step 12" in said(gang)


PARENT, WHY_NONE = find_group_parent()


@pytest.mark.skipif(PARENT is None, reason=f"NOT RUN: no control groups here: {WHY_NONE}")
def test_a_program_in_a_control_group_saves(run: Run) -> None:
    """The group is killed as a whole, but not before the program has saved."""
    assert PARENT is not None
    group = PARENT.group_for(f"stops-{os.getpid()}")
    commands = {"in a group": bash(f"(trap '' TERM; sleep 300) & {SAVE}; exit $?")}
    assert ends(run(commands, group=group)) == {"in a group": (1, 1, 85, None)}
    assert remove_group(group)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can run ranks as other users")
def test_a_program_of_another_account_saves(run: Run, tmp_path: Path) -> None:
    """A supervisor that is root finds the programs of the account that runs them."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    save = "/usr/bin/python3 save.py"
    commands = {"shell": bash(f"{save}; exit $?"), "tee": bash(f"{save} | tee /dev/null")}
    nobody = pwd.getpwnam("nobody")
    stopped = run(commands, uid=nobody.pw_uid, gid=nobody.pw_gid, groups=[nobody.pw_gid])
    assert ends(stopped) == dict.fromkeys(commands, (1, 1, 85, None))


def test_what_ended_before_the_stop_was_finished(run: Run) -> None:
    """A stop that comes when only leftovers live does not make an end of its own into one of the scheduler."""

    def has_ended(attempt: SupervisedAttempt) -> bool:
        return not any(processes.parent_of(pid) for pid in attempt.events("started")[0]["pids"])

    commands = {"done": bash("echo up; (trap '' TERM; sleep 300) & true")}
    (ended,) = run(commands, after=has_ended)["done"].events("ended")
    assert (ended["exit_code"], ended["unfinished"]) == (0, False)


@pytest.mark.parametrize("code", [0, 1, 85, 143])
def test_the_code_with_which_a_stopped_program_ends_is_kept(run: Run, code: int) -> None:
    """Of one rank and of several, each of which saves whole, whatever the others end with."""
    commands = {"one": ["python", "save.py"]}
    several = {"several": bash(f"CODE=$((LOCAL_RANK * {code})) {SAVE}; exit $?")}
    assert ends(run(commands, env={"CODE": str(code)})) == {"one": (1, 1, code, None)}
    assert ends(run(several, ups=2, devices=[0, 1])) == {"several": (2, 2, code, None)}
