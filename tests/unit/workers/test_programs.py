"""Which processes are a job's programs, by what /proc says of them, and their shells' text."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.stopped_programs import LEAVES, PASSES, RAISER
from workers import processes
from workers import programs as shell_traps
from workers.programs import ProcessFacts, TermTrap, find_programs, read_processes, term_trap
from workers.ranks import _pause_end

#: Number, parent and command line of each process (`~` is a space); `+` handles SIGTERM, `&` runs in the background,
#: `!` has the handlers of a runtime, `%` is a shell with a trap on EXIT, `>` one whose trap sends signals, `?` one that
#: hides what it runs in the background, `w` one that may wait for that, `f` and `s` one that waits for the first or the
#: second of two alone, `l` waits for connections.
#: Then the programs; those that are signalled late are negative, those after what they are beside are strings.
TREES = {
    "a program": ("1 0 python train.py", [1]),
    "its workers": ("1 0 python train.py; 2 1 + ! python train.py; 3 1 python -c from multiprocessing.spawn", [1]),
    "a login shell": ("1 0 -bash -l; 2 1 ./train", [2]),
    "nested shells": ("1 0 sh -c x; 2 1 dash y; 3 2 zsh z; 4 3 ksh w; 5 4 python t.py; 6 5 python t.py", [5]),
    "wrappers": ("1 0 bash x; 2 1 /usr/bin/time -v env; 3 2 timeout 9 x; 4 3 nice x; 5 4 /opt/train", [5]),
    "a wrapper alone": ("1 0 bash x; 2 1 uv pip install torch", [2]),
    "a shell alone": ("1 0 bash x", [1]),
    "busybox": ("1 0 busybox sh x; 2 1 /bin/busybox sleep 9", [2]),
    "torchrun": ("1 0 + /venv/bin/python3.11 /venv/bin/torchrun t.py; 2 1 python -u t.py; 3 2 python -u t.py", [2]),
    "its module": (
        "1 0 + python -X dev -W ignore -u -m torch.distributed.run t.py; 2 1 python t.py; 3 1 python t.py",
        [2, 3],
    ),
    "deepspeed": ("1 0 python /bin/deepspeed t; 2 1 + python -u -m deepspeed.launcher.launch t; 3 2 python t", [3]),
    "accelerate": ("1 0 python /bin/accelerate launch t.py; 2 1 python t.py", [2]),
    "conda run": ("1 0 /c/bin/python /c/bin/conda run -n x t; 2 1 bash /tmp/tmpx; 3 2 python t.py", [3]),
    "bookkeepers": (
        "1 0 python -m torch.distributed.run t; 2 1 python t;"
        " 3 1 python -c from~multiprocessing.resource_tracker~import~main",
        [2],
    ),
    "scripts of a wrapper's name": ("1 0 python script; 2 1 python time; 3 0 python env.py; 4 3 python x", [1, 3]),
    "two commands at once": ("1 0 bash x; 2 1 python a.py; 3 1 & python b.py", [2, 3]),
    "a trap": ("1 0 + bash x; 2 1 python a.py; 3 1 & python b.py; 4 1 + & python c.py", [1, 2, 4]),
    "a trap of a shell that is in the background": ("1 0 + & bash x; 2 1 & python a.py", [1, 2]),
    "a trap that sends signals": (
        "1 0 + > bash x; 2 1 & + python a.py; 3 1 & python b.py; 4 1 + python c.py",
        [1, -2, 4],
    ),
    "a trap of a shell that hides its background": ("1 0 + ? bash x; 2 1 python a.py; 3 1 + python b.py", [1, -2, 3]),
    "a server beside a program": ("1 0 bash x; 2 1 & + python tb.py; 3 1 + python a.py", ["2", 3]),
    "its pipe and wrappers": ("1 0 bash x; 2 1 & bash y; 3 2 + python tb.py; 4 1 nice; 5 4 + python a.py", ["3", 5]),
    "beside what cannot save": ("1 0 bash x; 2 1 & + python tb.py; 3 1 python a.py", [2, 3]),
    "beside a runtime's handlers": ("1 0 bash x; 2 1 & + python tb.py; 3 1 + ! rclone", [2, 3]),
    "both in the background": ("1 0 bash x; 2 1 & + python tb.py; 3 1 & + python a.py", [2, 3]),
    "the second awaited": ("1 0 s bash x; 2 1 & + python tb.py; 3 1 & + python a.py", ["2", 3]),
    "the first awaited": ("1 0 f bash x; 2 1 & + python a.py; 3 1 & + python tb.py", [2, "3"]),
    "awaited, the same program": ("1 0 s bash x; 2 1 & + python a.py 1; 3 1 & + python a.py 2", [2, 3]),
    "awaited, cannot save": ("1 0 s bash x; 2 1 & + python tb.py; 3 1 & python a.py", [2, 3]),
    "awaited, of more than there are": ("1 0 s bash x; 3 1 & + python a.py", [3]),
    "awaited, while one is in front": ("1 0 s bash x; 2 1 & + python a.py; 3 1 + python b.py", ["2", 3]),
    "started after it": ("1 0 bash x; 2 1 + python a.py; 3 1 & + python b.py", [2, 3]),
    "the same program twice": ("1 0 bash x; 2 1 & + python a.py 1; 3 1 + python a.py 2", [2, 3]),
    "a hidden server": ("1 0 ? bash x; 2 1 + python tb.py; 3 1 + python a.py", ["2", 3]),
    "a hidden server of a shell that may wait": ("1 0 ? w bash x; 2 1 + python tb.py; 3 1 + python a.py", [2, 3]),
    "an orphan beside a rank": ("1 0 bash x; 2 1 + python a.py; 3 0 & + python tb.py", [2, "3"]),
    "a daemon beside a rank": ("1 0 bash x; 2 1 + python a.py; 3 0 + redis-server", [2, "3"]),
    "a daemon that runs the same": ("1 0 bash x; 2 1 + python a.py; 3 0 + python a.py", [2, 3]),
    "a daemon beside a shell with a trap": ("1 0 + bash x; 2 1 sleep 1; 3 0 + python a.py", [1, 2, 3]),
    "a daemon beside what cannot save": ("1 0 bash x; 2 1 sleep 1; 3 0 + python a.py", [2, 3]),
    "a shell that became something else": ("1 0 tail -f log; 2 1 & + python a.py", [2, 1]),
    "a trap on EXIT": ("1 0 % bash x; 2 1 python a.py; 3 1 & python b.py", [-1, 2, 3]),
    "a trap on EXIT alone": ("1 0 % bash x", [1]),
    "a script that starts others": (
        "1 0 python a.py; 2 1 + python b.py; 3 1 bash x; 4 3 + ./c; 5 1 python d.py",
        [2, 4],
    ),
    "one that handles the signal": ("1 0 + python a.py; 2 1 + python b.py", [1]),
    "one whose children handle nothing": ("1 0 python a.py; 2 1 python b.py; 3 1 + ! python loader.py", [1]),
    "parallel": ("1 0 + /usr/bin/perl -w /usr/bin/parallel -u t; 2 1 bash x; 3 2 python a.py", [3]),
    "tmux": ("1 0 bash x; 2 0 + tmux new -d t; 3 2 sh x; 4 3 python a.py", [1, 4]),
    "no process of that number": ("2 1 python a.py", []),
}


def read(tree: str) -> dict[int, ProcessFacts]:
    known = {}
    for line in tree.split(";"):
        pid, parent, *words = line.split()
        marks = {word for word in words[:3] if word in "+&!%>?wfs"}
        own = tuple(word.replace("~", " ") for word in words if word not in marks)
        names = {"!": "is_runtime", "%": "cleans_up", ">": "forwards"}
        shown: dict[str, Any] = {name: mark in marks for mark, name in names.items()}
        awaited = next((place for mark, place in (("f", (1, 2)), ("s", (2, 2))) if mark in marks), None)
        shown["text"] = TermTrap(False, False, hides_background="?" in marks, has_wait="w" in marks, awaited=awaited)
        known[int(pid)] = ProcessFacts(int(pid), int(parent), own, "", "+" in marks, "&" in marks, **shown)
    return known


@pytest.mark.parametrize("name", TREES)
def test_programs_are_found(name: str) -> None:
    """What only runs others is looked through, and what a program started is its own affair."""
    tree, expected = TREES[name]
    known = read(tree)
    roots = [1, *(pid for pid, facts in known.items() if facts.parent == 0 and pid != 1)]
    assert programs(roots, known) == expected


def programs(roots: list[int], known: dict[int, ProcessFacts], clients: Collection[int] = ()) -> list[int | str]:
    found = [(each, each.facts.pid) for each in find_programs(roots, known, clients, [1])]
    return [-pid if each.is_late else str(pid) if each.is_aside else pid for each, pid in found]


def test_a_process_with_an_in_job_client_is_a_program() -> None:
    """What it started with a handler of its own gets no signal."""
    known = read("1 0 python a.py; 2 1 python train.py; 3 2 + python helper.py")
    assert (programs([1], known), programs([1], known, {2})) == ([3], [1])
    ranked = {2: ProcessFacts(2, 1, ("python", "a.py"), has_rank=True), 1: ProcessFacts(1, 0, ("python", "a.py"))}
    assert (programs([1], ranked), programs([1], ranked, {1})) == ([2], [1])


@pytest.mark.parametrize(
    "commands",
    [
        "numactl taskset chrt ionice nice prlimit stdbuf setsid nohup timeout flock unbuffer xvfb-run",
        "sudo su runuser setpriv unshare chroot tini dumb-init catatonit conmon apptainer singularity micromamba",
        "strace ltrace perf nsys ncu make ninja just xargs srun mpirun mpiexec mpiexec.hydra uv uvx pixi tmux screen",
        "/v/torchrun /v/accelerate /v/deepspeed /v/horovodrun /v/conda /v/poetry /v/pipenv /v/hatch",
    ],
)
def test_what_runs_a_program_is_looked_through(commands: str) -> None:
    """Each by itself, as the kernel shows it: those of the last line are scripts of Python."""
    for command in commands.split():
        words = f"python {command}" if "/" in command else command
        assert programs([1], read(f"1 0 + {words} x; 2 1 python train.py")) == [2], command


def test_the_client_of_a_container_runtime_is_left_out_where_the_container_is_seen() -> None:
    """The daemon's processes are no children of it; without them, it is all that there is."""
    client = ProcessFacts(1, 0, ("docker", "run"), handles_term=True)
    known = {1: client, 2: ProcessFacts(2, 0, ("python", "a.py"), is_contained=True)}
    assert (programs([1, 2], known), programs([1], {1: client})) == ([2], [1])


@pytest.mark.parametrize("command", ["bash x", "python a.py"])
def test_processes_may_be_nested_as_deep_as_a_job_likes(command: str) -> None:
    """A script that starts itself again, for weeks."""
    known = read("; ".join(f"{pid} {pid - 1} {command}" for pid in range(1, 3000)) + "; 3000 2999 + ./save")
    assert programs([1], known) == [3000]


@pytest.mark.parametrize(
    ("text", "exists", "forwards"),
    [
        ("trap 'exit 143' TERM; trap 'kill $(jobs -p)' EXIT", True, True),
        ("end() { kill $P; }\nstop() { echo; exit 1; }\ntrap end EXIT; trap stop TERM", True, True),
        ("trap 'echo x' TERM; trap 'kill $P' EXIT", True, False),
        ("trap 'rm -rf $T' EXIT; python t.py & kill $!", False, False),
        ("trap clean EXIT INT TERM", True, False),
        ("trap 'touch asked; wait' 15", True, False),
        ("trap - TERM; trap -- 'kill -TERM $P; wait $P' sigterm", True, True),
        ('trap "pkill -P $$" TERM', True, True),
        ("trap 'kill -0 $P && touch asked' TERM; kill $M", True, False),
        ("function on_term { echo x\n  kill -s TERM $c\n}\ntrap on_term SIGTERM", True, True),
        ("on() { touch asked; }\nother() { kill $P; }\ntrap 'on $P' TERM", True, False),
        ("echo mousetrap TERM", False, False),
        ("TRAPTERM() {\n  kill $P; wait $P\n}", True, True),
        ("trap 'wait; trap - TERM; kill -s TERM $$' TERM", True, False),
        ("trap 'kill $P; kill \"$$\"' TERM", True, True),
        ("trap 'kill -- -$$' TERM", True, True),
        ('for s in INT TERM; do trap "kill -$s $P" $s; done', True, True),
        ("trap 'touch asked' 'TERM' \"INT\"", True, False),
        ('all() { f=$1; shift; for s; do trap "$f $s" "$s"; done; }\non() { kill $P; }\nall on INT TERM', True, True),
        ("trap 'echo x' $s", False, False),
        ("TRAPTERM () { touch asked; }; kill $M", True, False),
        ("one() { kill $1; }\nall() { for p in $P; do one $p; done; }\ntrap all TERM", True, True),
        ("a() { b; }\nb() { a; }\nc() { kill $P; }\ntrap a TERM", True, False),
    ],
)
def test_a_trap_is_read_from_the_text_of_the_shell(text: str, exists: bool, forwards: bool) -> None:
    """Whether it is for SIGTERM, and whether it, or a function that it calls, sends signals."""
    assert term_trap(text) == TermTrap(exists, forwards, on_exit="EXIT" in text, has_wait="wait" in text)


def test_what_a_trap_on_exit_runs_is_read_from_its_text() -> None:
    """With what its functions run, and functions that these call."""
    text = "put() { /usr/bin/aws s3 cp; }\nend() { put; rsync a b; }\nother() { scp; }\ntrap end EXIT; trap 'cp' TERM"
    assert term_trap(text).cleanup == {"end", "put", "aws", "s3", "cp", "rsync", "a", "b"}


@pytest.mark.parametrize(
    ("text", "awaited"),
    [
        ("tb & T=$!; train & P=$!\nwait $P", (2, 2)),
        ("train 2>&1 > log & P=$!; tb &> log & trap 'kill $P; wait $P' TERM; wait \"${P}\" || true", (1, 2)),
        ("tb && prep & train & wait $! 2>/dev/null; exit $?", (2, 2)),
        ("tb & train & wait", None),
        ("tb & train & wait -n", None),
        ("tb & A=$!; train & B=$!; wait $A $B", None),
        ("tb & A=$!; train & B=$!; wait $A; wait $B", None),
        ("tb & A=$!; train & A=$!; wait $A", None),
        ("tb & train & wait $P", None),
        ("tb & train &", None),
        ("run() { train & P=$!; wait $P; }; tb & run", None),
        ("end() { kill $S; }; trap end EXIT; tb & S=$!; train & P=$!; wait $P", (2, 2)),
        ('# wait for all\ntb & train & # wait\nP="$!"; wait $P', (2, 2)),
        ("tb & A=$!; train & B=$!; echo 'step #1'; wait $A; wait $B", None),
        ("tb & A=$!; train & B=$!; echo 'step #1' #2; wait $A\nwait $B", (2, 2)),
    ],
)
def test_which_command_a_script_waits_for_is_read_from_its_text(text: str, awaited: tuple[int, int] | None) -> None:
    """If it is one, of those that it puts into the background."""
    assert term_trap(text).awaited == awaited


@pytest.mark.parametrize(
    ("text", "hides"),
    [
        ("(cd x && python t.py) & wait", True),
        ("(python t.py) > log 2>&1 &\nwait", True),
        ("train() {\n  python t.py\n}\nif true; then train --fast 2>&1 & fi", True),
        ("train() { python t.py; }; train; python t.py & wait", False),
        ("(cd x) && train", False),
        ("(cd x) >& log; (cd y) &> log; (cd z) |& cat", False),
        ("(cd x && python t.py $(date)) &", True),
        ("tensorboard --logdir $(pwd) &\nserve $((1 + 2)) &\npython -c 'print(1)' & # see (docs) & more", False),
    ],
)
def test_what_bash_hides_in_the_background_is_read_from_its_text(text: str, hides: bool) -> None:
    """It lets the last command of a subshell, and a function, look as if they ran in the foreground."""
    assert term_trap(text).hides_background == hides


@pytest.mark.parametrize(
    "piece",
    [
        "trap $x TERM\n", "trap a $x\n", "trap on TERM\non {\n", "on {\n", "\n", " ", ";", "trap ", "trap -- ",
        "trap '", 'trap "', "trap 'kill $$' TERM\n", "kill $$", "kill -s ", "TRAPTERM ", "function ", "on (",
        "trap @ TERM\n@ {\n", "trap @ EXIT\n@ {\n", ")", "on ", "do on ", ") >&1",
        "sh -a ", ";sh", "a/", "sh ", ". ", "sh x;",
    ],
)  # fmt: skip
def test_hostile_text_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """A supervisor keeps no lease while it reads."""

    def took_s(length: int) -> float:
        text = "trap on TERM; on() {" + "".join(piece.replace("@", f"w{at}") for at in range(length // len(piece)))
        began = time.process_time()
        term_trap(text)
        return time.process_time() - began

    small = min(took_s(32 * 1024) for _ in range(3))
    assert min(took_s(256 * 1024) for _ in range(3)) < 0.1 + 20 * small


def test_a_file_that_does_not_answer_leaves_the_words_of_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file server of a job's folder may be gone. Until it answers, no other shell's files are asked for."""
    answers, real = threading.Event(), os.stat

    def stat(path: Any, **more: Any) -> os.stat_result:
        return real(path, **more) if answers.is_set() or "/fd/" not in str(path) or answers.wait() else real(path)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(shell_traps, "_READING_S", 0.01)
    try:
        assert shell_traps.shell_text(os.getpid(), ("bash", "-c", "x")) == "bash\n-c\nx"
        assert shell_traps.shell_text(os.getpid(), ("sh", "y")) == "sh\ny"
    finally:
        answers.set()
        shell_traps._reading.join()


def test_the_executable_tells_more_than_the_command_line() -> None:
    """A script is run by its interpreter; a process may call itself what it likes."""
    shell = ProcessFacts(1, 0, ("./job.sh",), executable="bash")
    program = ProcessFacts(2, 1, ("bash", "-c"), executable="python3.12")
    assert programs([1], {1: shell, 2: program}) == [2]


PIPE, OTHER = (1, 7), (1, 8)


@pytest.mark.parametrize(
    ("writes", "reads", "handles", "expected"),
    [(PIPE, PIPE, False, [2]), (PIPE, PIPE, True, [2, 3]), (PIPE, OTHER, False, [2, 3]), (PIPE, None, False, [2, 3])],
)
def test_a_filter_reads_what_another_process_writes(
    writes: tuple[int, int], reads: tuple[int, int] | None, handles: bool, expected: list[int]
) -> None:
    """Unless it handles the signal, it is left to the end of its input."""
    known = {
        1: ProcessFacts(1, 0, ("bash",)),
        2: ProcessFacts(2, 1, ("python", "a.py"), writes=frozenset({writes})),
        3: ProcessFacts(3, 1, ("tee", "log"), handles_term=handles, reads=reads),
    }
    assert programs([1], known) == expected


def test_who_reads_errors_is_a_filter_whatever_it_handles() -> None:
    """`2>&1 | python log.py`: no data are sent so. It would break the pipe to which its program tells of its save."""
    known = {
        1: ProcessFacts(1, 0, ("bash",)),
        2: ProcessFacts(2, 1, ("python", "a.py"), handles_term=True, writes=frozenset({PIPE}), reports=PIPE),
        3: ProcessFacts(3, 1, ("python", "log.py"), handles_term=True, reads=PIPE),
    }
    assert programs([1], known) == [2]


def test_who_reads_what_it_started_writes_is_no_filter() -> None:
    """A program that talks to itself, or to its children, is a program."""
    known = {
        1: ProcessFacts(1, 0, ("python", "a.py"), reads=PIPE, writes=frozenset({PIPE})),
        2: ProcessFacts(2, 1, ("cat",), writes=frozenset({PIPE})),
    }
    assert programs([1], known) == [1]


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_pipes_are_seen_on_every_stream(stream: str) -> None:
    """`2> >(tee errors)` reads what is written as an error; a file or a terminal is none."""
    with subprocess.Popen(["sleep", "300"], **{stream: subprocess.PIPE}) as started:  # type: ignore[call-overload]
        try:
            facts = read_processes([started.pid])[started.pid]
            about = os.fstat(getattr(started, stream).fileno())
            pipe = about.st_dev, about.st_ino
            assert (facts.reads == pipe, pipe in facts.writes) == (stream == "stdin", stream != "stdin")
        finally:
            started.kill()


def test_what_started_first_is_older_whatever_its_number() -> None:
    """Numbers are used again, from small ones on."""
    known = read("800 0 bash x; 900 800 & + python tb.py; 20 800 + python a.py")
    assert programs([800], known) == [900, 20]
    ticks = {800: 5, 900: 6, 20: 7}
    assert programs([800], {pid: replace(facts, start_ticks=ticks[pid]) for pid, facts in known.items()}) == ["900", 20]
    name = processes.name_process(os.getpid())
    assert name is not None
    assert read_processes([name.pid])[name.pid].start_ticks == name.start_ticks


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("passes.py", True), ("leaves.py", False), ("-m passes", True), ("-m leaves", False), ("gone.py", True),
        ("-c import~passes;~passes.start([])", True), ("-c import~sys;~import~passes", True),
        ("-c import~leaves", False), ("-c import~signal,~gone", False), ("-c import~gone;~gone.start()", True),
        ("tool train.py", True),
    ],
)  # fmt: skip
def test_a_program_may_pass_on_the_signal_unless_its_text_says_otherwise(
    words: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script of a package that is installed elsewhere says nothing of what handles the signal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passes.py").write_text(PASSES)
    (tmp_path / "leaves.py").write_text(LEAVES)
    (tmp_path / "tool").write_text("import sys\nfrom some_launcher.cli import main\nsys.exit(main())\n")
    own = tuple(word.replace("~", " ") for word in f"python {words}".split())
    assert shell_traps._may_pass_on(ProcessFacts(os.getpid(), 1, own, "python3.11", handles_term=True)) == expected


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("60", 63.0), ("1m 30", 93.0), ("1.5h", 5403.0), ("infinity", math.inf), ("inf", math.inf),
        ("1e3", -math.inf), ("0x1", -math.inf), ("-- 5", -math.inf), ("& 60", -math.inf), ("9" * 5000, math.inf),
    ],
)  # fmt: skip
def test_a_pause_ends_as_its_words_say(words: str, end: float) -> None:
    """Not in the background, where nobody waits for it."""
    is_aside = words.startswith("& ")
    ticks = 3 * os.sysconf("SC_CLK_TCK")
    own = ("sleep", *words.removeprefix("& ").split())
    assert _pause_end(ProcessFacts(1, 0, own, ignores_interrupt=is_aside, start_ticks=ticks)) == end


#: In a process of its own: the processes of an attempt are all that descend from its supervisor.
_LOOKS = """
import os, signal, sys
from pathlib import Path
from tests.support.attempts import SupervisedAttempt
from workers.ranks import Ranks
attempt = SupervisedAttempt(Path(sys.argv[1]), ["sleep", "300"])
attempt.folder.mkdir()
ranks = Ranks(attempt.folder, attempt.plan)
ranks.terminate((), [ranks.all[0].pid])
ranks.inherit((), 0.0, 9.0)
os.kill(ranks.all[0].pid, signal.SIGKILL)
while not ranks.have_all_ended:
    ranks.reap()
before = ranks.have_programs_ended
ranks.inherit((), 0.0, 9.0)
print(before, ranks.have_programs_ended)
"""


def run_ranks(code: str, *words: str | Path) -> str:
    """Returns what one of the texts above prints: the attempt of a process that is its supervisor."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_has_ended_once_what_it_left_was_looked_for(tmp_path: Path) -> None:
    """Else its heir, which saves, would count as a leftover between the end and that look."""
    assert run_ranks(_LOOKS, tmp_path / "attempt") == "False True\n"


_TOLD = """
import atexit, signal, sys
from pathlib import Path
from tests.support.attempts import SupervisedAttempt
from workers import processes
from workers.ranks import Ranks
processes.become_subreaper()
attempt = SupervisedAttempt(Path(sys.argv[1]), [sys.executable, *sys.argv[2:]], env={"SAVE_S": "300"})
attempt.folder.mkdir()
ranks = Ranks(attempt.folder, attempt.plan)
atexit.register(ranks.signal_all, signal.SIGKILL)
def wait_for(word):
    while word not in ranks.all[0].output.recent:
        ranks.all[0].output.copy()
wait_for(b"up")
ranks.terminate((), (), is_stop=True)
wait_for(b"caught")
while not ranks.have_all_ended:
    ranks.reap()
ranks.inherit((), 0.0, 100.0)
(heir,) = [program for program in ranks._programs if program.name.is_alive]
ranks.terminate((), (), is_late=True, is_stop=True)
print(heir.was_signalled, end=" ")
for now in (48.0, 49.0):
    ranks.inherit((), now, 50.0)
    print(heir.was_signalled, end=" ")
"""


def test_an_heir_that_was_told_gets_no_signal_before_it_is_due(tmp_path: Path) -> None:
    """Not late in the grace either; a stop that comes after that one, with less time, still leaves it half of that."""
    (tmp_path / "passes.py").write_text(PASSES)
    (tmp_path / "raises.py").write_text(RAISER)
    words = (tmp_path / "attempt", tmp_path / "passes.py", sys.executable, tmp_path / "raises.py")
    assert run_ranks(_TOLD, *words) == "False False True "


_LEFT = """
import atexit, signal, sys
from pathlib import Path
from tests.support.attempts import SupervisedAttempt
from workers import processes
from workers.ranks import Ranks
processes.become_subreaper()
attempt = SupervisedAttempt(Path(sys.argv[1]), ["bash", "-c", sys.argv[2]])
attempt.folder.mkdir()
ranks = Ranks(attempt.folder, attempt.plan)
atexit.register(ranks.signal_all, signal.SIGKILL)
def wait_for(word):
    while word not in ranks.all[0].output.recent:
        ranks.all[0].output.copy()
wait_for(b"up")
ranks.terminate((), (), is_stop=True)
wait_for(b"caught")
while not ranks.have_all_ended:
    ranks.reap()
ranks.inherit((), 0.0, 100.0)
(left,) = [program for program in ranks._programs if program.name.is_alive]
print(left.is_told, left.was_signalled, end=" ")
ranks.inherit((), 30.0, 100.0)
ranks.terminate((), (), is_late=True, is_stop=True)
print(left.was_signalled, end=" ")
ranks.inherit((), 50.0, 100.0)
print(left.was_signalled, left.may_pass_on or left.waits)
if left.facts.words[-1] == "reset":
    wait_for(b"saved")
"""
#: Left to a trap, which tells it; it saves until it is told again, unless it resets its handler for that time.
_IS_LEFT = """
import os, signal, sys, time
def stop(*_):
    if sys.argv[-1] == "reset":
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("caught", flush=True)
    time.sleep(2.0)
    print("saved", flush=True)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(("how", "is_late_told"), [("reset", False), ("keep", True)])
def test_what_a_trap_told_gets_the_signal_at_half_or_late_unless_that_would_kill_it(
    tmp_path: Path, how: str, is_late_told: bool
) -> None:
    """Whichever is first, after the trap has ended; who handles the signal no longer has had it, and saves."""
    (tmp_path / "left.py").write_text(_IS_LEFT)
    text = f"trap 'kill $P; exit 85' TERM; {sys.executable} {tmp_path}/left.py {how} & P=$!; wait $P"
    assert run_ranks(_LEFT, tmp_path / "attempt", text) == f"True False {is_late_told} True False\n"


@pytest.mark.parametrize(
    ("action", "forwards"),
    [
        ("cp train.log kept.log; wait $P", False),
        ("report train.log; wait $P", False),
        ("echo; cp tell.sh kept.sh", False),
        ("sh ./tell.sh $P", True),
        ("./tell $P", True),
        ("bash ./bare $P", True),
        (". ./bare", True),
        ("cat bare; wait $P", False),
        ("report bare; wait $P", False),
        ("@/tell $P", True),
    ],
)
def test_a_trap_passes_the_signal_on_by_scripts_that_it_runs(action: str, forwards: bool, tmp_path: Path) -> None:
    """Not by a log that it copies, in which the word is."""
    (tmp_path / "train.log").write_text("the kernel may kill this\n")
    (tmp_path / "tell.sh").write_text("kill $1\n")
    (tmp_path / "tell").write_text("#!/bin/sh\nkill $1\n")
    (tmp_path / "bare").write_text("kill $1\n")
    text = f"trap '{action.replace('@', str(tmp_path))}' TERM; echo up; read x; exit 0"
    with subprocess.Popen(["bash", "-c", text], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"up\n"
            assert read_processes([started.pid])[started.pid].forwards == forwards
        finally:
            started.kill()


def test_an_image_is_that_of_a_run_and_its_forks() -> None:
    """What the kernel does not show is none, not one that all processes of other users have."""
    own = processes.image_of(os.getpid())
    fork = os.fork()
    if not fork:
        os._exit(processes.image_of(os.getpid()) != own)
    assert (os.waitpid(fork, 0)[1], 0 in own, processes.image_of(2**22 + 1)) == (0, False, (0, 0))
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            assert processes.image_of(1) == (0, 0)
        finally:
            os.seteuid(0)
