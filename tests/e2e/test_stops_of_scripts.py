"""What shells, their traps and what they run beside or after a program do at its stop: with real processes."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.debian_packages import unpacked
from tests.support.stop_runs import SAVE, Run, bash, ends, said
from tests.support.stopped_programs import (
    ASKED,
    HANDS_ON,
    RAISER,
    SAVER,
    SERVER,
    TRAINER,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_shell_leaves_the_stop_to_its_program(run: Run) -> None:
    """Whatever the shell does at the signal itself: mksh and posh handle it without any trap."""
    programs = unpacked("shells")
    posix = {
        "dash": "dash", "mksh": "bin/mksh", "ksh": "bin/ksh93", "zsh": "bin/zsh", "busybox": "bin/busybox sh",
        "yash": "usr/bin/yash", "posh": "usr/bin/posh",
    }  # fmt: skip
    texts = {
        "plain": f"{SAVE}; exit $?",
        "awaited": f"{SAVE} & wait $!",
        "trap on EXIT": f"trap 'echo cleaned' EXIT; {SAVE}; exit $?",
        "trap": f"trap 'echo trapped' TERM; {SAVE}; exit $?",
    }
    commands = {
        f"{name}, {how}": [*(str(programs / shell) if "/" in shell else shell).split(), "-c", text]
        for name, shell in posix.items()
        for how, text in texts.items()
    }
    for name in ("usr/bin/fish", "bin/tcsh"):
        commands[name] = [str(programs / name), "-c", f"{SAVE}; exit $status"]
    assert ends(run(commands, env={"LD_LIBRARY_PATH": f"{programs}/usr/lib/x86_64-linux-gnu"})) == dict.fromkeys(
        commands, (1, 1, 85, None)
    )


def test_a_filter_ends_with_its_input(run: Run, tmp_path: Path) -> None:
    """`| tee log` writes down what the program says while it saves."""
    commands = {
        "tee": bash(f"{SAVE} 2>&1 | tee out.log"),
        "several": bash(f'{SAVE} 2>&1 | cat | (while read -r line; do echo "$line"; done)'),
        "substituted": bash(f"exec > >(tee -a more.log) 2>&1; {SAVE}"),
        "of its own input": bash(f"cat /dev/zero | {SAVE}"),
        "by its name": bash(f"mkfifo named; (cat named | tee named.log) & {SAVE} > named 2>&1"),
        "of a filter": bash(f"{SAVE} 2>&1 | tee >(grep -n . > lines.log)"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    answers = {"answers": ["bash", "-c", "yes | python plain.py; echo after"]}
    assert run(answers)["answers"].output().endswith("after\n")
    assert (tmp_path / "out.log").read_text() == (tmp_path / "more.log").read_text() == "up\ncaught\nsaved\n"


def test_a_shell_that_handles_the_signal_gets_it_too(run: Run, tmp_path: Path) -> None:
    """Its trap runs, at once or after what it runs in the foreground, and may save what its program cannot."""
    (tmp_path / "asked.py").write_text(ASKED)
    commands = {
        "foreground": bash(f"trap 'echo trapped' TERM; {SAVE}; exit $?"),
        "asks by a file": bash("trap 'touch asked; wait; exit 85' TERM; python asked.py & wait; exit 1"),
        "saves by itself": bash(
            "trap 'echo caught; sleep 2.6; echo saved; exit 85' TERM; echo up; while true; do sleep 1; done"
        ),
        "asks, and looks": bash(
            "trap 'touch asked; while kill -0 $P; do sleep 1; done; exit 85' TERM; python asked.py & P=$!\n"
            "while kill -0 $P; do sleep 1 || true; done"
        ),
        "leaves at once": bash(f"trap 'exit 85' TERM; {SAVE} & wait"),
        "ignores": bash(f"trap '' TERM; {SAVE}; exit $?"),
        "passes it on": bash(f"trap 'kill $P; wait $P; exit $?' TERM; {SAVE} & P=$!; wait $P"),
        "by a function": bash(f"on() {{ kill $(jobs -p); wait; exit 85; }}\ntrap on TERM; {SAVE} & wait"),
        "on EXIT": bash(f"trap 'echo trapped' EXIT; {SAVE}; exit $?"),
    }
    attempts = run(commands)
    assert ends(attempts) == dict.fromkeys(commands, (1, 1, 85, None))
    assert attempts["foreground"].output().endswith("saved\ntrapped\n")
    assert attempts["on EXIT"].output().endswith("saved\ntrapped\n")


def test_a_trap_is_read_wherever_it_was_set(run: Run, tmp_path: Path) -> None:
    """In a sourced file, for a loop's signals; one that ends the shell as the signal would passes nothing on."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/own.sh").write_text(
        "trap 'echo caught; sleep 2.6; echo saved; exit 85' TERM\ntrap 'echo cleaned' EXIT\n"
    )
    (tmp_path / "lib/passes.sh").write_text("on() { kill $P; wait $P; exit $?; }\ntrap on TERM\ntrap 'true' EXIT\n")
    commands = {
        "sourced": bash("D=$PWD; source $D/lib/own.sh; echo up; while true; do sleep 0.1; done"),
        "sourced, passes it on": bash(f'. "$(dirname ".")/lib/passes.sh"; {SAVE} & P=$!; wait $P'),
        "a loop's": bash(
            f'for s in TERM INT; do trap "kill -$s \\$P; wait \\$P" $s; done; {SAVE} & P=$!; wait $P; exit 85'
        ),
        "ends itself": bash(f"trap 'wait $P; trap - TERM; kill $$' TERM; {SAVE} & P=$!; wait $P"),
    }
    assert ends(run(commands, stop_s=8.0)) == dict.fromkeys(commands, (1, 1, 85, None))


def test_a_trap_is_found_in_functions_of_functions_and_of_scripts_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    """Its program gets no second signal, which would break the save off."""
    (tmp_path / "raises.py").write_text(RAISER)
    relay = "trap 'kill $P; wait $P; exit 85' TERM\npython raises.py & P=$!\nwait $P"
    (tmp_path / "relay.sh").write_text(relay)
    for name in ("tell.sh", "tell"):
        (tmp_path / name).write_text("kill $1\n")
    one, every = "one() { kill $1; wait $1; }", "every() { for p in $P; do one $p; done; exit 85; }"
    commands = {
        "by two functions": bash(f"{one}\n{every}\ntrap every TERM; python raises.py & P=$!; wait $P"),
        "by another script": bash("trap 'sh ./tell.sh $P; wait $P || exit 85' TERM; python raises.py & P=$!; wait $P"),
        "by one of any name": bash(
            "end() { sh ./tell $P; wait $P || exit 85; }; trap end TERM; python raises.py & P=$!; wait $P"
        ),
        "on its standard input": bash("bash -s < relay.sh; exit $?"),
        "through a pipe": bash("cat relay.sh | bash"),
    }
    assert ends(run(commands, stop_s=12.0)) == dict.fromkeys(commands, (1, 1, 85, None))


def test_a_daemon_and_a_log_outlive_the_save_that_needs_them(run: Run, tmp_path: Path) -> None:
    """Also if they handle the signal: a mount that went into the background by itself, what reads errors too."""
    (tmp_path / "daemon.py").write_text(
        f"import os\nfor _ in range(2):\n    if os.fork(): os._exit(0)\n    os.setsid()\n{SERVER}"
    )
    (tmp_path / "log.py").write_text(
        "import os, signal, sys\nsignal.signal(15, lambda *_: os._exit(0))\n"
        "for line in sys.stdin: print(line, end='')\n"
    )
    os.mkfifo(tmp_path / "asked")
    os.mkfifo(tmp_path / "answer")
    asks = "    open('asked', 'w').close(); print(open('answer').read(), end='')"
    (tmp_path / "asks.py").write_text(SAVER.replace('    sys.stdout.write("saved\\n")', asks))
    commands = {
        "a daemon": bash("python daemon.py; until [ -e served ]; do sleep 0.05; done; python asks.py; exit $?"),
        "a log": bash(f"{SAVE} 2>&1 | python log.py"),
        "a substituted log": bash(f"exec > >(python log.py) 2>&1; {SAVE}"),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))


def test_what_a_shell_became_ends_after_the_save(run: Run) -> None:
    """`tail -f` would show the log for ever."""
    commands = {"tail": bash(f"{SAVE} & exec tail -f /dev/null"), "sleep": bash(f"{SAVE} & exec sleep infinity")}
    stopped = run(commands)
    assert ends(stopped) == dict.fromkeys(commands, (1, 1, None, 15))
    for attempt in stopped.values():
        (stopping,), (ended,) = attempt.events("stopping"), attempt.events("ended")
        assert ended["at"] - stopping["at"] < 30.0


def test_a_trap_on_exit_that_runs_is_not_cut_short(run: Run, tmp_path: Path) -> None:
    """It began before the last quarter, at which the signal would end its shell after its first command."""
    (tmp_path / "copy.py").write_text("import time; time.sleep(4); print('copied', flush=True)")
    ends_so = "end() { python copy.py; python copy.py; echo cleaned; }\n"
    attempt = run({"copies": bash(f"{ends_so}trap end EXIT; {SAVE}; exit $?")}, stop_s=14.0)["copies"]
    assert ends({"copies": attempt}) == {"copies": (1, 1, 85, None)}
    assert attempt.output().endswith("copied\ncopied\ncleaned\n")


def test_a_shell_with_a_trap_on_exit_cleans_up_late(run: Run) -> None:
    """It would end at the signal, so it gets none before its programs have ended and most of the grace is over."""
    commands = {
        "goes on": bash("trap 'echo caught; echo saved' EXIT; python plain.py || true; while true; do sleep 0.1; done"),
        "alone": bash(
            "trap 'echo caught; echo saved' EXIT; echo up; while true; do read -t 1 </dev/zero || true; done"
        ),
    }
    assert ends(run(commands, stop_s=4.0)) == dict.fromkeys(commands, (1, 1, None, 15))


def test_what_a_script_starts_after_the_stop_gets_no_signal(run: Run, tmp_path: Path) -> None:
    """Its own cleaning up, such as copying what was saved, has the rest of the grace."""
    (tmp_path / "copy.py").write_text("import time; time.sleep(2.6); print('copied', flush=True)")
    attempt = run({"copies": bash(f"set +e; {SAVE}; rc=$?; python copy.py; exit $rc")})["copies"]
    assert ends({"copies": attempt}) == {"copies": (1, 1, 85, None)}
    assert attempt.output().endswith("copied\n")


def test_the_next_run_of_a_stopped_program_gets_the_signal_late(run: Run, tmp_path: Path) -> None:
    """A loop goes on to its next seed, which saves too; another program that handles the signal may copy to its end."""
    (tmp_path / "copy.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: exit(3))\n"
        "time.sleep(7.6); print('copied', flush=True)\n"
    )
    commands = {
        "seeds": bash(f"set +e; for s in 1 2; do {SAVE} --seed $s; done; exit 85"),
        "copies": bash(f"set +e; {SAVE}; python copy.py; exit 85"),
    }
    attempts = run(commands, stop_s=12.0)
    assert ends(attempts) == {"seeds": (2, 2, 85, None), "copies": (1, 1, 85, None)}
    assert attempts["copies"].output().endswith("copied\n")


def test_a_loop_that_starts_a_stopped_program_again_is_stopped(run: Run, tmp_path: Path) -> None:
    """After some tries, however much of the grace is left; a script that tries a few times goes on after that."""
    (tmp_path / "loop.py").write_text("import subprocess, sys\nwhile subprocess.run(sys.argv[1:]).returncode: pass\n")
    forks = "import os\nwhile True:\n    if not os.fork():\n        exec(open('save.py').read())\n    os.wait()\n"
    (tmp_path / "forks.py").write_text(forks)
    (tmp_path / "trains.py").write_text(TRAINER)
    commands = {
        "until": bash(f"until {SAVE}; do :; done"),
        "while, with a pause": ["sh", "-c", f"while ! {SAVE}; do sleep 0.5; done"],
        "in Python": ["python", "loop.py", *SAVE.split()],
        "forks": ["python", "forks.py"],
        "what cannot save": bash("while true; do python plain.py || true; done"),
        "a shell that waits": bash("echo up; while [ ! -e never ]; do sleep 0.2 || true; done"),
        "the in-job client": bash("until python trains.py; do :; done"),
        "beside another": bash(f"{SAVE} & until python plain.py; do :; done; exit 3"),
    }
    stopped = run(commands, env={"SAVE_S": "0.1"})
    for name, (caught, saved, code, number) in ends(stopped).items():
        assert (caught, code, number) == (saved, None, 15), (name, said(stopped[name]))
    goes_on = {
        "tries": bash(f"for n in 1 2 3 4 5; do {SAVE} && break; done; echo copied; exit 85"),
        "below a pipe": ["bash", "-c", f"(until {SAVE}; do :; done) 2>&1 | cat; echo copied; exit 85"],
        "a monitor": bash(
            "while true; do sleep 0.3 || true; done 2> log & python plain.py || true; sleep 3; echo copied; exit 85"
        ),
    }
    for name, attempt in run(goes_on, env={"SAVE_S": "0.1"}).items():
        assert (ends({"": attempt})[""][2], attempt.output()[-7:]) == (85, "copied\n"), (name, said(attempt))
    gang = {"gang": bash(f"until {SAVE}; do :; done")}
    assert ends(run(gang, ups=2, devices=[0, 1], env={"SAVE_S": "0.5"}))["gang"][2:] == (None, 15)


def test_a_pause_that_outlasts_the_grace_ends_its_shell(run: Run, tmp_path: Path) -> None:
    """What started that shell goes on, to save what was saved; a pause that ends in time, or beside work, is left."""
    (tmp_path / "copy.py").write_text("import time; time.sleep(2.6); print('copied', flush=True)")
    loop = f"until {SAVE}; do sleep 120; done"
    commands = {
        "bash": bash(loop),
        "dash": ["dash", "-c", loop],
        "a function": bash(f"again() {{ while ! {SAVE}; do sleep 1h; done; }}; again; exit 3"),
        "instead of its shell": ["bash", "-c", f"{SAVE}; sleep infinity"],
        "a filter": bash(f"exec > >(tee -a out.log) 2>&1; {loop}"),
        "a helper": bash(f"python plain.py & {loop}"),
        "a trap on EXIT": bash(f"trap 'echo cleaned' EXIT; {loop}"),
    }
    stopped = run(commands)
    for name, (caught, saved, code, number) in ends(stopped).items():
        assert (caught, saved, code in (None, 143), number in (None, 15)) == (1, 1, True, True), (name, code, number)
    assert stopped["a trap on EXIT"].output().endswith("cleaned\n")
    copies = {
        "nested": f"bash -c '{loop}'; python copy.py; exit 85",
        "in time": f"{SAVE}; sleep 3; echo copied; exit 85",
        "beside it": f"{SAVE}; sleep 120 & python copy.py; kill $!; exit 85",
        "beside it, hidden": f"{SAVE}; (sleep 120) & python copy.py; python copy.py; kill $!; exit 85",
    }
    for name, attempt in run({name: ["bash", "-c", text] for name, text in copies.items()}).items():
        assert ends({name: attempt})[name] == (1, 1, 85, None), (name, said(attempt))
        assert "copied\n" in said(attempt), name


def test_what_runs_again_and_again_in_the_background_ends_with_the_programs(run: Run, tmp_path: Path) -> None:
    """It is nothing new: not what copies results. A script that waits for its program by looking goes on after it."""
    commands = {
        "a monitor": bash(f"while true; do date >> seen; sleep 5; done & {SAVE}; exit $?"),
        "a subshell": bash(f"(while sleep 5; do date >> seen; done) & {SAVE}; exit $?"),
        "a poll": bash(f"{SAVE} & while kill -0 $!; do sleep 5; done; echo copied; exit 85"),
    }
    stopped = run(commands, env={"SAVE_S": "6"})
    assert ends(stopped) == dict.fromkeys(commands, (1, 1, 85, None))
    assert stopped["a poll"].output().endswith("copied\n")
    for attempt in stopped.values():
        (stopping,), (ended,) = attempt.events("stopping"), attempt.events("ended")
        assert ended["at"] - stopping["at"] < 40.0


def test_every_seed_after_most_of_the_grace_gets_the_signal(run: Run) -> None:
    """Not only the one that runs then."""
    commands = {"seeds": bash(f"set +e; for s in 1 2 3; do {SAVE} --seed $s; done; exit 85")}
    assert ends(run(commands, stop_s=24.0, env={"SAVE_S": "0.1"})) == {"seeds": (3, 3, 85, None)}


def test_what_bash_hides_in_the_background_is_left_to_the_trap(run: Run, tmp_path: Path) -> None:
    """The last command of a subshell, and a function; in the foreground, such a program ends late."""
    (tmp_path / "asked.py").write_text(ASKED)
    (tmp_path / "usr1.py").write_text(SAVER.replace("SIGTERM", "SIGUSR1"))
    commands = {
        "a subshell": bash("trap 'touch asked' TERM; (cd . && python asked.py) & wait $! || wait $!; exit 85"),
        "another signal": bash("trap 'kill -USR1 $P; wait $P' TERM; (cd . && python usr1.py) & P=$!; wait $P"),
        "a function": bash("train() { python asked.py; }; trap 'wait; exit 85' TERM; train > >(cat) 2>&1 & wait"),
        "one that saves": bash(
            f"train() {{ {SAVE}; }}; trap 'kill $P; wait $P || exit 85' TERM; train & P=$!; wait $P"
        ),
    }
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    foreground = {"foreground": bash("(sleep 300) & trap 'echo trapped' TERM; python plain.py; exit $?")}
    assert ends(run(foreground, stop_s=8.0)) == {"foreground": (0, 0, 143, None)}
    ended = {"ended": bash("trap 'exit 85' TERM; (cd . && python plain.py) & wait")}
    assert ends(run(ended)) == {"ended": (0, 0, 85, None)}


def test_what_a_script_runs_beside_its_program_outlives_the_save(run: Run, tmp_path: Path) -> None:
    """A server in the background ends at the signal. The script, which ends it itself, has its turn before that."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "twice.py").write_text("import signal; signal.signal(2, int); exec(open('../server.py').read())")
    save = "    open('asked', 'w').close(); print(open('answer').read(), end='')"
    (tmp_path / "needs.py").write_text(SAVER.replace('    sys.stdout.write("saved\\n")', save))
    (tmp_path / "slow.py").write_text("import time; time.sleep(2); exec(open('../needs.py').read())")
    ready, needs = "until [ -e served ]; do sleep 0.05; done", "CODE=0 python ../needs.py"
    slow = "CODE=0 python ../slow.py"
    end = "kill $S; echo after; exit 85"
    texts = {
        "ended": f"python ../server.py & S=$!; {ready}; {needs}; {end}",
        "nohup": f"nohup setsid python ../server.py > log & S=$!; {ready}; {needs}; {end}",
        "handles SIGINT": f"python ../twice.py & S=$!; {ready}; {needs}; {end}",
        "a subshell": f"(cd . && python ../server.py) & S=$!; {ready}; {needs}; {end}",
        "in a pipe": f"python ../server.py & S=$!; {ready}; {needs} 2>&1 | tee log; {end}",
        "used after it": f"python ../server.py & S=$!; {ready}; {needs}; sleep 3; : > asked; cat answer > log; {end}",
        "at the exit": f"python ../server.py & S=$!; trap 'kill $S && echo after' EXIT; {ready}; python ../needs.py",
        "nobody": f"python ../server.py & {ready}; {needs}; echo after; exit 85",
        "an orphan": f"(python ../server.py &); {ready}; {needs}; echo after; exit 85",
        "nested": f"bash -euc 'python ../server.py & S=$!; {ready}; {needs}; kill $S'; echo after; exit 85",
        "twice": f"python ../server.py & S=$!; {ready}; for n in 1 2; do {needs}; done; {end}",
        "twice, slow to handle it": f"python ../server.py & S=$!; {ready}; for n in 1 2; do {slow}; done; {end}",
        "awaited": f"python ../server.py & S=$!; {ready}; {needs} & T=$!; wait $T; {end}",
        "awaited, nobody": f"python ../server.py & {ready}; {needs} & wait $!; echo after; exit 85",
    }
    commands = {}
    for number, (name, text) in enumerate(texts.items()):
        for shell in ("bash", "dash"):
            own = f"{shell}{number}"
            (tmp_path / own).mkdir()
            os.mkfifo(tmp_path / own / "asked")
            os.mkfifo(tmp_path / own / "answer")
            commands[f"{name}, {shell}"] = [shell, "-ec", f"cd {own}; {text}"]
    for name, attempt in run(commands).items():
        caught, saved, *end_of_it = ends({name: attempt})[name]
        assert (caught, *end_of_it, "after\n" in attempt.output()) == (saved, 85, None, True), (name, said(attempt))


def test_programs_in_the_background_that_save_are_told_in_time(run: Run, tmp_path: Path) -> None:
    """At once, if the script waits for them or they are the program of the foreground; else after that, or late."""
    (tmp_path / "other.py").write_text(SAVER.replace('"saved', '"other saved').replace('"caught', '"other caught'))
    commands = {
        "awaited": bash(f"{SAVE} & python other.py & wait"),
        "hidden, awaited": bash(f"(cd . && {SAVE}) & python other.py & (cd . && true) & wait"),
        "polled": bash(f"python other.py & {SAVE} & while kill -0 $!; do sleep 0.5; done; wait"),
        "its like": bash(f"{SAVE} & {SAVE}; wait"),
    }
    for name, attempt in run(commands, ups=2).items():
        words = said(attempt).replace("other ", "").split()
        assert [word for word in words if word in ("caught", "saved")] == ["caught"] * 2 + ["saved"] * 2, name
    beside = {
        "after": bash(f"python other.py & CODE=0 {SAVE}; echo after; wait"),
        "late": bash("python other.py & SAVE_S=300 python save.py; wait"),
        "beside a loop": bash(f"SAVE_S=2 python other.py & P=$!; while kill -0 $P; do SAVE_S=0 {SAVE} || true; done"),
    }
    for name, attempt in run(beside, ups=2, stop_s=16.0).items():
        assert "other saved\n" in said(attempt), (name, said(attempt))


def test_what_begins_after_a_stop_at_which_nothing_could_save_is_told(run: Run, tmp_path: Path) -> None:
    """Once it handles the signal: a script without `-e` goes on from its preparation to its training, which saves."""
    copies = "import signal, time\nsignal.signal(15, lambda *_: exit(3))\ntime.sleep(3); print('copied', flush=True)\n"
    (tmp_path / "copy.py").write_text(copies)
    (tmp_path / "hands.py").write_text(HANDS_ON)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/copies").write_text(f"#!{sys.executable}\n{copies}")
    (tmp_path / "bin/copies").chmod(0o755)
    told = {
        "the next": f"python plain.py; {SAVE}; exit $?",
        "of a trap on EXIT": f"trap 'rm -f scratch' EXIT; python plain.py; {SAVE}; exit $?",
        "of its shell": f"python plain.py; bash -c '{SAVE}; exit $?'; exit $?",
        "a module": "python plain.py; python -m save; exit $?",
        "in the background": f"python plain.py; {SAVE} & wait $!; exit $?",
        "by its path": f"python plain.py; python {tmp_path}/save.py; exit $?",
        "beside what was told": f"cd /; python {tmp_path}/plain.py; python {tmp_path}/save.py; exit $?",
        "forks its save": "python plain.py; python hands.py fork; exit $?",
    }
    commands = {name: ["bash", "-c", text] for name, text in told.items()}
    assert ends(run(commands)) == dict.fromkeys(commands, (1, 1, 85, None))
    (tmp_path / "copy.sh").write_text("trap 'exit 3' TERM; sleep 3; echo copied")
    copied = {
        "a script": "python plain.py; sh ./copy.sh; exit 85",
        "a tool": "python plain.py; bin/copies; exit 85",
        "by its path": f"python plain.py; {tmp_path}/bin/copies; exit 85",
        "elsewhere": f"cd bin; python ../plain.py; python {tmp_path}/copy.py; exit 85",
        "a trap": "trap 'python copy.py' EXIT; python plain.py; exit 85",
    }
    for name, attempt in run({name: ["bash", "-c", text] for name, text in copied.items()}).items():
        assert (ends({name: attempt})[name][2], "copied\n" in attempt.output()) == (85, True), (name, said(attempt))


def test_what_a_trap_left_is_told_in_time(run: Run, tmp_path: Path) -> None:
    """A server that the trap does not tell: after half of what remained when the script had ended."""
    (tmp_path / "server.py").write_text("import os, signal; signal.signal(15, lambda *_: os._exit(0)); signal.pause()")
    trap = "trap 'kill $T; wait $T; exit 85' TERM"
    commands = {"a server": bash(f"python server.py & {trap}; {SAVE} & T=$!; wait $T; exit 85")}
    stopped = run(commands, stop_s=40.0, env={"SAVE_S": "0.1"})
    assert ends(stopped) == dict.fromkeys(commands, (1, 1, 85, None))
    (stopping,), (ended,) = (stopped["a server"].events(kind) for kind in ("stopping", "ended"))
    assert ended["at"] - stopping["at"] < 28.0
