"""Which processes of an attempt are the job's programs: they alone get SIGTERM when the attempt is stopped.

From each first process downwards, shells, wrappers (`env`, `time`, `conda run`) and launchers (torchrun, accelerate)
are looked through; the first process that is none of these is a program, and what it started itself is its own affair:
loader and compile workers get no signal. Four rules more:

* What starts processes with a variable RANK that it does not have itself is a launcher too.
* A shell that handles SIGTERM (it has a trap) is a program as well. A command that it runs in the background and that
  does not handle SIGTERM is left to the trap.
* A process that reads what another one of the attempt writes (`| tee log`) is a filter, unless it handles SIGTERM: it
  ends with its input.
* Where nothing else is found, the first process itself is the program.

`find_programs` is a function of what `read_processes` saw in /proc. Standard library only.
"""

import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from workers import processes


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _names("sh bash rbash dash ash zsh ksh ksh93 mksh fish tcsh csh")
#: Programs that run another one and end with it.
_WRAPPERS = _names(
    """env nice ionice time timeout nohup stdbuf setsid chrt taskset numactl prlimit flock script unbuffer xvfb-run
    sudo su runuser setpriv unshare chroot tini dumb-init catatonit strace ltrace perf nsys ncu make gmake just xargs
    srun mpirun mpiexec orterun prterun hydra_pmi_proxy uv uvx pixi micromamba mamba apptainer singularity starter
    starter-suid"""
)
#: The same, as scripts and modules that Python runs.
_PYTHON_WRAPPERS = _names(
    """torchrun accelerate deepspeed horovodrun conda mamba poetry pipenv hatch torch.distributed.run
    torch.distributed.launch accelerate.commands.launch accelerate.commands.accelerate_cli deepspeed.launcher.runner
    deepspeed.launcher.launch"""
)
_PYTHON = re.compile(r"^(python|pypy)[0-9.]*[a-z]*$")
#: Python's options that take a word of their own.
_PYTHON_TAKES_WORD = ("-W", "-X", "--check-hash-based-pycs")
#: Processes by which Python keeps account of semaphores and shared memory, or starts others.
_BOOKKEEPERS = re.compile(r"multiprocessing\.(resource_tracker|semaphore_tracker|forkserver)")
_TERM, _INTERRUPT = 1 << (signal.SIGTERM - 1), 1 << (signal.SIGINT - 1)
#: Characters of a command line that are read.
_WORDS_MOST = 64 * 1024


@dataclass(frozen=True)
class ProcessFacts:
    """What /proc says of one process."""

    pid: int
    parent: int
    #: Its command line.
    words: tuple[str, ...] = ()
    #: File name of the executable; empty if it may not be read.
    executable: str = ""
    #: Whether it has a handler for SIGTERM.
    handles_term: bool = False
    #: Whether it ignores SIGINT, as what a shell runs in the background does.
    ignores_interrupt: bool = False
    #: Whether it was started with a variable RANK.
    has_rank: bool = False
    #: The pipe that is its standard input, and those that are its output.
    reads: tuple[int, int] | None = None
    writes: frozenset[tuple[int, int]] = frozenset()

    @property
    def command(self) -> str:
        """File name of its program; of a shell in busybox that of the applet."""
        first = os.path.basename(self.words[0]).lstrip("-") if self.words else ""
        name = self.executable or first
        if name == "busybox":
            return first if first != "busybox" else self.words[1] if len(self.words) > 1 else ""
        return name

    @property
    def python_command(self) -> str:
        """What it runs, if it is Python: the file name of a script, the name of a module, or code."""
        return _python_command(self.words) if _PYTHON.match(self.command) else ""

    @property
    def is_shell(self) -> bool:
        return self.command in _SHELLS

    @property
    def is_looked_through(self) -> bool:
        """Whether it only runs other programs."""
        return self.is_shell or self.command in _WRAPPERS or self.python_command in _PYTHON_WRAPPERS


def _python_command(words: tuple[str, ...]) -> str:
    """Returns the file name of the script, or the module, that Python runs; its code after `-c`."""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c"):
            return next(rest, "")
        if word in _PYTHON_TAKES_WORD:
            next(rest, "")
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""


def read_processes(pids: Iterable[int]) -> dict[int, ProcessFacts]:
    """Returns what is known of those of the processes that are still there."""
    found = (_read(pid) for pid in pids)
    return {facts.pid: facts for facts in found if facts is not None}


def _read(pid: int) -> ProcessFacts | None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_WORDS_MOST).decode(errors="replace").split("\0")[:-1]
        with open(f"/proc/{pid}/status", "rb") as file:
            status = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
        handled, ignored = int(status[b"SigCgt"], 16), int(status[b"SigIgn"], 16)
        parent = int(status[b"PPid"])
    except (OSError, KeyError, ValueError):
        return None
    try:
        executable = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
    except OSError:
        executable = ""
    outputs = frozenset(pipe for number in (1, 2) if (pipe := _pipe(pid, number)) is not None)
    return ProcessFacts(
        pid,
        parent,
        tuple(words),
        executable,
        bool(handled & _TERM),
        bool(ignored & _INTERRUPT),
        processes.has_variable(pid, "RANK"),
        _pipe(pid, 0),
        outputs,
    )


def _pipe(pid: int, number: int) -> tuple[int, int] | None:
    """Returns which pipe the process has open under that number; None if it is something else."""
    try:
        about = os.stat(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None
    return (about.st_dev, about.st_ino) if stat.S_ISFIFO(about.st_mode) else None


def find_programs(roots: Iterable[int], known: Mapping[int, ProcessFacts]) -> list[int]:
    """Returns the programs at and below the roots, which are processes without a parent in the attempt."""
    children: dict[int, list[ProcessFacts]] = {}
    for facts in known.values():
        children.setdefault(facts.parent, []).append(facts)
    found: list[int] = []
    for root in roots:
        if root in known:
            own = [each.pid for each in _below(known[root], children) if not _is_filter(each, known)]
            found += own or [root]
    return found


def _below(facts: ProcessFacts, children: Mapping[int, list[ProcessFacts]]) -> Iterator[ProcessFacts]:
    """Yields the programs at and below a process, filters included."""
    own = children.get(facts.pid, [])
    ranks = [] if facts.has_rank or facts.is_shell else [child for child in own if child.has_rank]
    if not ranks and (not facts.is_looked_through or (not own and not facts.is_shell)):
        if not _BOOKKEEPERS.search(facts.python_command):
            yield facts
        return
    has_trap = facts.is_shell and facts.handles_term
    if has_trap:
        yield facts
    for child in ranks or own:
        is_left_to_trap = has_trap and child.ignores_interrupt and not facts.ignores_interrupt
        for each in _below(child, children):
            if each.handles_term or not is_left_to_trap:
                yield each


def _is_filter(facts: ProcessFacts, known: Mapping[int, ProcessFacts]) -> bool:
    if facts.reads is None or facts.handles_term:
        return False
    writers = (each for each in known.values() if facts.reads in each.writes and each.pid != facts.pid)
    return any(not is_below(each.pid, facts.pid, known) for each in writers)


def is_below(pid: int, ancestor: int, known: Mapping[int, ProcessFacts]) -> bool:
    """Returns whether the process is the other one, or descends from it."""
    seen = set[int]()
    while pid != ancestor and pid in known and pid not in seen:
        seen.add(pid)
        pid = known[pid].parent
    return pid == ancestor


@dataclass
class Program:
    """A program of the attempt, since its stop began."""

    name: processes.ProcessName
    #: Processes at and below it, when the stop began.
    pids: frozenset[int]
    was_signalled: bool = False

    @property
    def handles_term(self) -> bool:
        facts = _read(self.name.pid)
        return facts is not None and facts.handles_term


def programs_below(supervisor: int) -> list[Program]:
    """Returns the programs of the attempt of this supervisor, as they are now."""
    known = read_processes(processes.descendants(supervisor))
    roots = [facts.pid for facts in known.values() if facts.parent not in known]
    found = []
    for pid in find_programs(roots, known):
        if (name := processes.name_process(pid)) is not None:
            found.append(Program(name, frozenset(each for each in known if is_below(each, pid, known))))
    return found
