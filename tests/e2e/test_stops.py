"""A stop reaches the programs of a job, whole and once, whatever they are started by: with real processes."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.attempts import STUBBORN, SupervisedAttempt, wait_for
from tests.support.stop_runs import SAVE, Run, bash, ends, said
from tests.support.stopped_programs import (
    CLIENT,
    DAEMON,
    GANG,
    HANDS_ON,
    IN_C,
    INIT,
    LEAVES,
    LOADERS,
    PASSES,
    PLAIN,
    RAISER,
    SAVER,
    TRAINER,
)
from workers import processes
from workers.control_groups import find_group_parent, remove_group
from workers.preparation.launcher import ContainerPlace, container_argv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


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
        "a terminal": bash(f"script -qec '{SAVE}' /dev/null; exit $?"),
        "perl": bash(f"perl -e 'if (!fork) {{ exec \"{SAVE}\" }} wait; exit($? >> 8)'"),
        "xargs": bash(f"echo 1 | xargs {SAVE} || exit 85"),
        "make": bash(f"printf 'train:\\n\\t{SAVE}\\n' | make -f - train || exit 85"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    script = run({"script": ["./job.sh"]})["script"]
    assert ends({"script": script}) == {"script": (1, 1, 0, None)}
    assert script.output().endswith("after\n")


def test_what_only_starts_others_is_looked_through(run: Run, tmp_path: Path) -> None:
    """The signal would only kill it, and what it started has a handler of its own."""
    (tmp_path / "spawns.py").write_text(
        "import multiprocessing, sys\ndef work():\n    exec(open('save.py').read(), globals())\n"
        "if __name__ == '__main__':\n    own = multiprocessing.get_context(sys.argv[1]).Process(target=work)\n"
        "    own.start()\n    own.join()\n    sys.exit(own.exitcode)\n"
    )
    (tmp_path / "awaits.py").write_text(
        "import signal, sys, time\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "print('up', flush=True)\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "print('caught', flush=True); time.sleep(2.6); print('saved', flush=True); sys.exit(85)\n"
    )
    call = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    commands = {
        "a script": ["python", "-c", call, "python", "save.py"],
        "one that awaits the signal": ["python", "-c", call, "python", "awaits.py"],
        "below a shell": bash(f"python -c '{call}' bash -c '{SAVE} | tee log'; exit $?"),
        "spawned": ["python", "spawns.py", "spawn"],
        "by a server": ["python", "spawns.py", "forkserver"],
    }
    stopped = ends(run(commands))
    assert stopped.pop("below a shell")[:2] == (1, 1)
    assert set(stopped.values()) == {(1, 1, 85, None)}


def test_what_cannot_save_lives_until_what_saves_has_ended(run: Run, tmp_path: Path) -> None:
    """A save may need it: a server or a mount in the background, a filter behind a named pipe, the rest of the gang."""
    (tmp_path / "serve.py").write_text(
        "import os\nopen('served', 'w').close()\nwhile True:\n"
        "    with open('asked') as asked:\n        asked.read()\n    open('answer', 'w').write('saved\\n')\n"
    )
    os.mkfifo(tmp_path / "asked")
    os.mkfifo(tmp_path / "answer")
    (tmp_path / "save.py").write_text(
        SAVER.replace(
            '    sys.stdout.write("saved\\n")', "    open('asked', 'w').close(); print(open('answer').read(), end='')"
        )
    )
    ready = "until [ -e served ]; do sleep 0.05; done"
    serve = f"python serve.py & S=$!; {ready}"
    commands = {
        "a helper": bash(f"{serve}; {SAVE}; exit $?"),
        "ended by its shell": bash(f"{serve}; set +e; {SAVE}; rc=$?; kill $S && exit $rc"),
        "ended at the exit": bash(f"{serve}; trap 'kill $S' EXIT; {SAVE}"),
        "a daemon": bash(f"(setsid python serve.py &); {ready}; {SAVE}; exit $?"),
    }
    for name, argv in commands.items():
        assert ends(run({name: argv})) == {name: (1, 1, 85, None)}
        (tmp_path / "served").unlink()
    gang = {"a gang": bash("case $RANK in 0) CODE=1 python late.py ;; *) python plain.py ;; esac")}
    (tmp_path / "late.py").write_text(SAVER)
    assert ends(run(gang, ups=2, devices=[0, 1])) == {"a gang": (1, 1, 1, None)}


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


def test_what_a_program_leaves_behind_saves_with_the_whole_grace(run: Run, tmp_path: Path) -> None:
    """Whoever ends at the signal, and so tells nothing to what it started, cuts nothing short: that saves as well."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    (tmp_path / "ignores.py").write_text(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {PLAIN}")
    leaves = "python leaves.py"
    commands = {
        "alone": [*leaves.split(), *SAVE.split()],
        "below a shell": bash(f"{leaves} {SAVE}; exit $?"),
        "in a pipe": bash(f"{leaves} bash -c '{SAVE}; true' | cat"),
        "by one that does so itself": bash(f"{leaves} {leaves} {SAVE}"),
        "double-forked": bash(f"{leaves} bash -c '({SAVE} &); exec sleep 600'"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    ranks = {"the rank after it": bash(f"case $RANK in 0) {leaves} {SAVE} ;; *) SAVE_S=9 {SAVE} ;; esac")}
    ranks["one after a failure"] = bash(f"case $RANK in 0) CODE=1 {SAVE} ;; *) SAVE_S=9 {SAVE} ;; esac")
    stopped = ends(run(ranks, ups=2, devices=[0, 1]))
    assert stopped == {"the rank after it": (2, 2, 85, None), "one after a failure": (2, 2, 1, None)}
    ignores = run({"ignores": bash(f"{leaves} python ignores.py")})
    assert ends(ignores) == {"ignores": (0, 0, 85, None)}
    (stopping,), (ended,) = (ignores["ignores"].events(kind) for kind in ("stopping", "ended"))
    assert ended["at"] - stopping["at"] < 30.0
    assert ends(run({"too slow": bash(f"{leaves} {SAVE}")}, stop_s=1.0)) == {"too slow": (1, 0, 85, None)}


def test_what_a_launcher_told_is_not_told_again(run: Run, tmp_path: Path) -> None:
    """It passes the signal on and ends at once: a second one would break the save off, whatever the first came from."""
    (tmp_path / "raises.py").write_text(RAISER)
    for name, handler in {"ignores": "signal.SIG_IGN", "resets": "signal.SIG_DFL"}.items():
        told = f'    signal.signal(signal.SIGTERM, {handler}); print("caught'
        (tmp_path / f"{name}.py").write_text(SAVER.replace('    sys.stdout.write("caught', told))
    (tmp_path / "passes.py").write_text(PASSES)
    (tmp_path / "starts.py").write_text("import sys\nfrom lib import passes\npasses.start(sys.argv[1:])\n")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/passes.py").write_text(PASSES)
    raises = "python raises.py"
    commands = {
        "alone": ["python", "passes.py", *raises.split()],
        "below a shell": bash(f"python passes.py {raises}; exit $?"),
        "a shell between": bash(
            f"python passes.py python passes.py bash -c 'trap \"kill \\$!\" TERM; {raises} & wait'"
        ),
        "by a module": bash(f"python starts.py {raises}; exit $?"),
        "as a module": bash(f"python -m passes {raises} | cat"),
        "perl": [
            "perl",
            "-e",
            "if (!($p = fork)) { exec @ARGV } $SIG{TERM} = sub { kill 15, $p; exit 85 }; wait",
            *raises.split(),
        ],
        "at a shell's exit": bash(f"trap 'exit 85' TERM; trap 'kill $(jobs -p)' EXIT; {raises} & wait"),
        "by a function": bash(f"end() {{ kill $P; }}; trap end EXIT; trap 'echo; exit 85' TERM; {raises} & P=$!; wait"),
        "no longer handles it": bash("python passes.py python ignores.py; exit $?"),
        "resets its handler": bash("python passes.py python resets.py; exit $?"),
        "long": bash(f"SAVE_S=9 python passes.py {raises}; exit $?"),
    }
    assert ends(run(commands, stop_s=24.0)) == dict.fromkeys(commands, (1, 1, 85, None))
    gang = {"gang": bash(f"python passes.py {raises}; exit $?")}
    assert ends(run(gang, ups=2, devices=[0, 1])) == {"gang": (2, 2, 85, None)}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="NOT RUN: no C compiler")
def test_what_a_launcher_may_have_told_is_told_in_time(run: Run, tmp_path: Path) -> None:
    """Nobody can know whether a binary passed the signal on: half of the grace is left to what it did not tell."""
    (tmp_path / "leaves.c").write_text(
        "#include <signal.h>\n#include <unistd.h>\nstatic void stop(int number) { _exit(85); }\n"
        "int main(int count, char **words) {\n    if (!fork()) execvp(words[1], words + 1);\n"
        "    signal(SIGTERM, stop);\n    for (;;) pause();\n}\n"
    )
    subprocess.run(["gcc", "-o", tmp_path / "leaves", tmp_path / "leaves.c"], check=True, timeout=60)
    assert ends(run({"tells nothing": ["./leaves", "python", "save.py"]}, stop_s=12.0)) == {
        "tells nothing": (1, 1, 85, None)
    }


def test_an_agent_that_a_script_started_in_the_background_tells_the_same(run: Run, tmp_path: Path) -> None:
    """It ignores SIGQUIT, but no rank does: not everything looks as if its script ran it in the background."""
    (tmp_path / "served.py").write_text("import signal, os; signal.signal(15, lambda *_: os._exit(0)); signal.pause()")
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        commands = {"beside": bash(f"python served.py & S=$!; CODE=0 {SAVE}; kill $S; exit 85")}
        assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    finally:
        signal.signal(signal.SIGQUIT, before)


def test_a_save_is_not_taken_for_the_next_run_below_an_init(run: Run, tmp_path: Path) -> None:
    """It is a fork of its program, and the first process of a container, which started that, takes it up."""
    (tmp_path / "init.py").write_text(INIT)
    (tmp_path / "hands.py").write_text(HANDS_ON)
    commands = {how: ["python", "init.py", "python", "hands.py", how] for how in ("fork", "start")}
    commands["a double fork"] = ["python", "init.py", "bash", "-c", f"({SAVE} &); exec sleep 300"]
    stopped = ends(run(commands))
    assert stopped.pop("a double fork")[:2] == (1, 1)
    assert stopped == {"fork": (1, 1, 85, None), "start": (1, 1, 85, None)}


def test_what_is_started_at_the_signal_outlives_its_program(run: Run, tmp_path: Path) -> None:
    """Whoever hands the save to a process of its own and ends leaves it the rest of the grace, and not more."""
    (tmp_path / "hands.py").write_text(HANDS_ON)
    commands = {
        "forks": bash("python hands.py fork; exit $?"),
        "starts": ["python", "hands.py", "start"],
        "a trap": bash(
            "trap '(echo caught; sleep 2.6; echo saved) & exit 85' TERM; echo up; while :; do sleep 0.1; done"
        ),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    assert ends(run({"too slow": commands["forks"]}, stop_s=1.0)) == {"too slow": (1, 0, 85, None)}


def test_a_suspended_program_goes_on_to_save(run: Run) -> None:
    """With the shell that waits for it."""

    def suspend(attempt: SupervisedAttempt) -> bool:
        processes.send_signal(attempt.alive(), signal.SIGSTOP)
        return all(map(processes.is_stopped, attempt.alive()))

    commands = {"suspended": bash(f"{SAVE}; exit $?")}
    assert ends(run(commands, after=suspend, stop_s=8.0)) == {"suspended": (1, 1, 85, None)}


@pytest.mark.parametrize("by", ["lease", "guardian"])
def test_nothing_left_behind_outlives_lease_or_supervisor(tmp_path: Path, by: str) -> None:
    """However much of its grace is left: the next attempt may start then."""
    (tmp_path / "leaves.py").write_text(LEAVES)
    (tmp_path / "save.py").write_text(SAVER)
    env = {"SAVE_S": "300", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    attempt = SupervisedAttempt(
        tmp_path / "attempt", bash(f"python leaves.py {SAVE}; exit $?"), env=env, grace_s=60.0, lease_s=30.0
    ).start()
    try:
        attempt.wait_output("up\n")
        attempt.tell({"type": "stop", "grace_s": 60.0, "reason": "preempted"})
        attempt.wait_output("caught\n")
        if by == "guardian":
            processes.send_signal([attempt.supervisor_pid], signal.SIGKILL)
        if by == "lease":
            assert attempt.wait_event("ended", 60.0)["cause"] == "lease_expired"
        wait_for(lambda: not attempt.alive(), 60.0, "nothing is left")
        assert processes.boottime() < attempt.plan.lease_until + 10.0
    finally:
        attempt.close()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="NOT RUN: no C compiler")
def test_a_program_in_c_saves(run: Run, tmp_path: Path) -> None:
    """Nothing here is about Python."""
    (tmp_path / "save.c").write_text(IN_C)
    subprocess.run(["gcc", "-pthread", "-o", tmp_path / "save", tmp_path / "save.c"], check=True, timeout=60)
    commands = {
        "alone": ["./save"],
        "in a pipe": bash("./save | tee out.log"),
        "two": bash("./save; echo after"),
        "its first thread has ended": bash("./save thread; exit $?"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    call = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    runtime = {"a runtime's handlers": ["python", "-c", call, "./save", "runtime"]}
    assert ends(run(runtime)) == dict.fromkeys(runtime, (1, 1, None, 15))
    ignores = {"its first thread has ended": ["./save", "ignores"]}
    assert ends(run(ignores, stop_s=1.0)) == dict.fromkeys(ignores, (0, 0, None, 9))


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
    # Without a GPU, accelerate would run one process unless it is told to act as if there were several.
    accelerate = "accelerate launch --multi_gpu --mixed_precision no --num_machines 1 --num_processes 2"
    launched = {
        "torchrun": bash("true; W=2 python -m torch.distributed.run loaders.py; exit $?"),
        "accelerate": bash(f"true; W=2 {accelerate} --main_process_port 0 loaders.py; exit $?"),
    }
    stopped = run(launched, ups=2, devices=[0, 1], is_launcher=True, env=launcher | {"SAVE_S": "0.5"})
    for name, (caught, saved, code, _) in ends(stopped).items():
        assert (caught >= 2, saved, code) == (True, 2, 85), said(stopped[name])


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


def test_a_save_outlives_what_started_it(run: Run, tmp_path: Path) -> None:
    """What ends while a process with the in-job client below it saves leaves it the rest of the grace, unsignalled."""
    (tmp_path / "trains.py").write_text(TRAINER)
    (tmp_path / "leaves.py").write_text(
        "import os, subprocess, time\nsubprocess.Popen(['python', 'trains.py'])\n"
        "while not os.path.exists('saving'): time.sleep(0.05)\nos._exit(85)\n"
    )
    (tmp_path / "kills.py").write_text(
        "import os, signal, subprocess\nown = subprocess.Popen(['python', 'trains.py'])\n"
        "signal.signal(signal.SIGTERM, lambda *_: (own.kill(), os._exit(1)))\nos._exit(own.wait())\n"
    )
    for name in ("leaves", "kills"):
        attempt = run({name: ["python", f"{name}.py"]}, env={"SAVE_S": "3"})[name]
        assert (len(attempt.events("committed")), ends({"": attempt})) == (1, {"": (0, 0, 85, None)}), said(attempt)
        (tmp_path / "saving").unlink()


def test_a_loop_that_begins_after_the_stop_is_told_of_it(run: Run, tmp_path: Path) -> None:
    """A script whose imports took long, and that outlived the signal, saves and leaves at its first step."""
    (tmp_path / "begins.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: open('asked', 'w').close())\n"
        f"print('up', flush=True)\nwhile not os.path.exists('asked'): time.sleep(0.05)\n{TRAINER}"
    )
    attempt = run({"begins": ["python", "begins.py"]}, stop_s=20.0)["begins"]
    assert ends({"begins": attempt}) == {"begins": (0, 0, 85, None)}, said(attempt)


def test_what_was_trained_is_saved_in_the_evaluation(run: Run, tmp_path: Path) -> None:
    """At once, while the script knows nothing of it; it leaves at its next step, within the grace, unsignalled."""
    (tmp_path / "trains.py").write_text(TRAINER)
    command = {"evaluates": bash("HANDLES=1 EVALUATE_S=7 python trains.py")}
    attempt = run(command, stop_s=8.8, after=lambda attempt: "evaluates" in attempt.output())["evaluates"]
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
    assert "the gang is broken: rank 0 has saved step 12" in said(gang)


def test_a_program_in_a_container_saves(run: Run, tmp_path: Path) -> None:
    """A daemon started it, and its client would signal the shell around it alone; nothing of it outlives the grace."""
    docker = tmp_path / "docker"
    shutil.copy(os.path.realpath(sys.executable), docker)  # the kernel tells the name of the file
    (tmp_path / "daemon.py").write_text(DAEMON)
    (tmp_path / "client.py").write_text(CLIENT)
    words = [sys.executable, str(tmp_path / "daemon.py"), str(tmp_path / "daemon")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        place = ContainerPlace(str(tmp_path), (), (), os.getuid(), os.getgid())
        names = ["PYTHONUNBUFFERED", "SAVE_S", processes.COOKIE_VARIABLE]
        own = bash(f"{SAVE}; exit $?")
        argv = container_argv("docker", "docker", "an-image", place, names, own)
        commands = {"docker": [str(docker), "client.py", *argv[1:]]}
        env = {"DAEMON": str(tmp_path / "daemon"), "SAVE_S": "2.6", "PYTHONHOME": sys.base_prefix}
        try:
            assert ends(run(commands, env=env)) == {"docker": (1, 1, 85, None)}
            assert ends(run(commands, env=env | {"SAVE_S": "60"}, stop_s=1.0)) == {"docker": (1, 0, None, 9)}
        finally:
            daemon.kill()


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

    commands = {"done": bash("(trap '' TERM; touch up; sleep 300) & until [ -e up ]; do sleep 0.05; done; echo up")}
    (ended,) = run(commands, after=has_ended)["done"].events("ended")
    assert (ended["exit_code"], ended["unfinished"]) == (0, False)


def test_a_finished_loop_speaks_for_its_own_process_alone(run: Run, tmp_path: Path) -> None:
    """A program after it that was stopped, and exits with 0, has not done its work."""
    loop = "from walras.training import Loop\nfor step in Loop(steps=3).steps(range(9)): pass\n"
    (tmp_path / "loop.py").write_text(loop)
    (tmp_path / "both.py").write_text(loop + SAVER)
    commands = {"after it": bash(f"python loop.py; {SAVE}"), "the same": ["python", "both.py"]}
    stopped = run(commands, env={"CODE": "0", "SAVE_S": "0.1"})
    found = {name: attempt.events("ended")[0] for name, attempt in stopped.items()}
    assert {name: (ended["exit_code"], ended["unfinished"]) for name, ended in found.items()} == {
        "after it": (0, True),
        "the same": (0, False),
    }


@pytest.mark.parametrize("code", [0, 1, 85, 143])
def test_the_code_with_which_a_stopped_program_ends_is_kept(run: Run, code: int) -> None:
    """Of one rank and of several, each of which saves whole, whatever the others end with."""
    commands = {"one": ["python", "save.py"]}
    several = {"several": bash(f"CODE=$((LOCAL_RANK * {code})) {SAVE}; exit $?")}
    assert ends(run(commands, env={"CODE": str(code)})) == {"one": (1, 1, code, None)}
    assert ends(run(several, ups=2, devices=[0, 1])) == {"several": (2, 2, code, None)}
