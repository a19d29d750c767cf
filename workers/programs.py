"""Which processes of an attempt are the job's programs: they alone get SIGTERM when the attempt is stopped.

From each first process downwards, shells, wrappers (`env`, `time`, `conda run`) and launchers (torchrun, accelerate)
are looked through; the first process that is none of these is a program, and what it started itself is its own affair:
loader and compile workers get no signal. More rules:

* What starts processes with a variable RANK that it does not have itself is a launcher too.
* What the signal would only kill is looked through if something below it has a handler of its own: a script that starts
  another one, the main process of `mp.spawn`. Handlers of runtimes (Go, Java, torch's loader workers) are none.
* A shell with a trap for SIGTERM is a program as well. A command that it runs in the background is left to the trap if
  it does not handle SIGTERM, or if the trap sends signals. Where bash may hide what it runs in the background, all that
  does not handle SIGTERM is.
* What runs again as it did when it was stopped, started by the same process, is stopped too, then what starts it. So
  is the job's own code that begins to handle the signal after a stop of programs of which none could save.
* Late, at three quarters of the grace, the signal goes to what was left to a trap (if the trap told it, after half of
  what remained when that ended, if that is earlier), and to a shell with a trap on EXIT alone, which cleans up.
* A process that reads what another one of the attempt writes (`| tee log`) is a filter: it ends with its input. One
  that handles SIGTERM is none, unless it reads errors as well (`2>&1 | python log.py`).
* What the signal would only kill waits for programs that save: a server or a mount in the background, of which they may
  be in need. It gets the signal once none of them is left and nothing new has started for a while.
* So does what handles it, if a shell runs it in the background beside another program, in the foreground, that saves:
  it ignores SIGINT or SIGQUIT, and is older than that; so does what runs beside the one in the background for which
  alone the shell waits. Late, it gets the signal.
* What a program leaves that handles the signal is a program as well. If that one may have passed the signal on, by its
  text, it waits half of the remaining time; if it handles the signal no longer, it has had it.
* Where nothing else is found, the first process itself is the program.

`find_programs` is a function of what `read_processes` saw in /proc.

Whether a shell has a trap for the signal, and whether the trap passes it on, is read from its text. /proc says which
signals a shell handles, but with a trap on EXIT alone bash and ksh93 handle all that would end them, SIGTERM included,
and end at once; mksh and its like handle SIGTERM always. Text that is not understood counts as a script without traps.
Standard library only.
"""

import contextlib
import math
import os
import re
import signal
import stat
import threading
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from dataclasses import dataclass, field, replace

from workers import processes

#: Bytes of a shell's scripts that are read, all of them together; and seconds for which its supervisor waits for them.
_TEXT_MOST, _READING_S = 256 * 1024, 1.0
#: `source lib.sh`, `. "$(dirname "$0")/lib.sh"`: words among which files are named, and how many are looked at.
_SOURCES = re.compile(r"(?:^|[\s;&|({])(?:source|\.)[ \t]+([^\n;&|]+)")
#: `import launcher`, `from jobs import launcher`.
_IMPORTS = re.compile(r"(?m)(?:^|;)[ \t]*(?:from|import)[ \t]+([^\n#;]{1,200})")
_FILE_NAME, _VARIABLE = re.compile(r"[\w./+-]+"), re.compile(r"\$\{?\w+\}?")
_NAMED_MOST = 50
#: Under which number bash, most others, and yash keep the script open that they run; `bash < script`.
_SCRIPT_FILES = (255, 10, 11, 100, 0)
#: `trap ACTION NAMES`, with the action in quotes or as one word.
_TRAP = re.compile(r"""\btrap\s+(?:--\s+)?('[^']*'|"(?:[^"\\]|\\.)*"|[^\s'";&|]+)((?:[ \t]+["'${}\w]+)+)""")
_TERM = frozenset({"TERM", "SIGTERM", "15"})
_EXIT = frozenset({"EXIT", "0"})
#: A name among those of a loop or of arguments: `for s in INT TERM; do trap "on $s" $s; done`.
_TERM_SOMEWHERE = re.compile(r"\b(SIG)?TERM\b")
#: The shell itself as the target of `kill`: `trap - TERM; kill -TERM $$` only ends as the signal would have.
_ONLY_ITSELF = r"""(?:\s+-(?:s\s+)?["'${}\w]+)?\s+["']?\\?\$\\?(?:\$|\{?BASHPID\}?)["']?\s*(?:[;&|)}\n'"]|$)"""
#: Commands that send signals; `kill -0` asks whether a process is there.
_SENDS = re.compile(rf"\b(pkill|killall|kill(?!\s+-0\b)(?!{_ONLY_ITSELF}))\b")
_SENDS_IN_CODE = re.compile(r"\b(kill|killpg|terminate|send_signal)\b")
#: What is in every text that handles a signal: `signal.signal(...)`, `$SIG{TERM} = ...`.
_HANDLES_IN_CODE = re.compile(r"signal|SIG")
_EXITS = re.compile(r"\bexit\b")
#: `wait`, or `wait "$TRAINER"` with the name of one command; and what puts a command into the background.
_WAITS = re.compile(r"""\bwait\b(?:[ \t]+["']?\$\{?(\w+|!)\}?["']?[ \t]*(?:2>\S+[ \t]*)?(?=[;&|)}\n'"]|$))?""")
_STARTS = re.compile(r"(?<![&>|<])&(?![&>])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(rf"(?:^|[\s;])(?:function\s+)?({_WORD.pattern})\s*(?:\(\s*\)\s*)?\{{")
#: A subshell, or what may be a function, in the background: `(cd x && train) > log 2>&1 &`, `train &`.
_BACKGROUND = re.compile(
    rf"(?:(\))|(?:^|[\n;{{(])[ \t]*(?:(?:do|then|else)[ \t]+)?({_WORD.pattern})\b)"
    r"(?:>&\d|[^\n;&|()]){0,200}(?<!>)&(?![&>])"
)
#: Where no command ends: comments, substitutions, and what is quoted.
_NO_COMMANDS = re.compile(
    r"(?m)^[ \t]*#[^\n]*|[ \t]#[^\n]*|\$\(\([^()\n]{0,200}\)\)|\$\([^()\n]{0,200}\)|'[^'\n]{0,200}'"
)
#: A comment that no quotes can hide.
_COMMENT = re.compile(r"""(?m)^[ \t]*#[^\n]*|[ \t]#[^\n'"]{0,200}$""")
#: Commands that read and write the files named behind them, and run none.
_MOVES_FILES = re.compile(r"(?<![\w./+-])(?:cp|mv|rm|touch|cat|tar|rsync)[ \t][^\n;&|]*")
#: `bash ./stop`, `sh -e stop`, `. ./stop`: a script, whatever its name.
_RUN_BY_SHELL = re.compile(
    r"(?:^|[\s;&|('\"])(?:[\w./]{0,99}\b[bdakz]{0,2}sh|source|\.)(?:[ \t]+-\w+)*[ \t]+([\w./+-]+)"
)
_END_OF_FUNCTION = re.compile(r"[\n;][ \t]*\}")


@dataclass(frozen=True)
class TermTrap:
    """What a script says of SIGTERM."""

    exists: bool
    #: Whether it sends signals itself, to the programs that the shell runs in the background.
    forwards: bool
    #: Whether the script has a trap for its end.
    on_exit: bool = False
    #: Whether it runs subshells or functions in the background, which bash does not show as such.
    hides_background: bool = False
    #: Whether it may wait for what it runs in the background.
    has_wait: bool = False
    #: If it waits for one of its commands in the background alone: which of how many.
    awaited: tuple[int, int] | None = field(default=None, compare=False)
    #: File names among the words of its trap on EXIT, and of functions that this calls; those of its trap for SIGTERM.
    cleanup: frozenset[str] = field(default=frozenset(), compare=False)
    calls: frozenset[str] = field(default=frozenset(), compare=False)
    #: Those of them that stand behind the name of a shell: scripts, whatever they are called.
    scripts: frozenset[str] = field(default=frozenset(), compare=False)


def term_trap(text: str) -> TermTrap:
    """Returns what the text of a shell says, in time linear in it. An action's functions count as part of it."""
    tells_term = _TERM_SOMEWHERE.search(text) is not None
    traps = [(action, _signal_names(names, tells_term)) for action, names in _TRAP.findall(text)]
    actions = [action for action, names in traps if names & _TERM]
    actions += re.findall(r"\bTRAPTERM(?=\s*\()", text)  # a function of zsh
    exit_actions = [action for action, names in traps if names & _EXIT]
    functions = {found[1] for found in _FUNCTION.finditer(text)}
    commands = _NO_COMMANDS.sub("", text)
    hides = any(found[1] or found[2] in functions for found in _BACKGROUND.finditer(commands))
    forwards = _does(text, actions, _SENDS) or (_does(text, actions, _EXITS) and _does(text, exit_actions, _SENDS))
    cleanup = frozenset(map(os.path.basename, _called(text, exit_actions)[1] if exit_actions else ()))
    run = [_MOVES_FILES.sub("", action) for action in actions]
    kept = _MOVES_FILES.sub("", text)
    places, calls = _called(kept, run) if actions else ([], set[str]())
    bodies = [*run, *(kept[start:end] for start, end in places)]
    scripts = frozenset(name for body in bodies for name in _RUN_BY_SHELL.findall(body))
    waits = (_WAITS.search(text) is not None, _awaited(text, commands))
    return TermTrap(bool(actions), forwards, bool(exit_actions), hides, *waits, cleanup, frozenset(calls), scripts)


def _awaited(text: str, commands: str) -> tuple[int, int] | None:
    """Returns which command in the background a script waits for, by every `wait` in its text, and how many it has.

    None if a function starts one: those start in another order than that of the text.
    """
    functions = [found.start() for found in _FUNCTION.finditer(commands)]
    ends = [found.start() for found in _END_OF_FUNCTION.finditer(commands)]
    names = set(_WAITS.findall(_COMMENT.sub("", text)))
    name = names.pop() if len(names) == 1 else ""
    starts = [found.start() for found in _STARTS.finditer(commands)]
    given = [found.start() for found in re.finditer(r"\bwait\b" if name == "!" else rf'\b{name}="?\$!', commands)]
    is_hidden = any(_last_before(start, functions) > _last_before(start, ends) for start in starts)
    return (bisect(starts, given[0]), len(starts)) if name and len(given) == 1 and not is_hidden else None


def _last_before(place: int, places: list[int]) -> int:
    at = bisect(places, place)
    return places[at - 1] if at else -1


def _signal_names(names: str, tells_term: bool) -> frozenset[str]:
    found = frozenset(re.sub("[\"'{}]", "", names).upper().split())
    return found | _TERM if tells_term and any(name.startswith("$") for name in found) else found


def _does(text: str, actions: list[str], what: re.Pattern[str]) -> bool:
    """Returns whether one of the actions, or a function that it names, has a command of this kind."""
    if any(map(what.search, actions)):
        return True
    done = [found.start() for found in what.finditer(text)]
    if any(action.strip("\"'").startswith("$") for action in actions):  # whatever it is given
        return bool(done)
    return any(bisect(done, start) < bisect(done, end) for start, end in _called(text, actions)[0])


def _called(text: str, actions: list[str]) -> tuple[list[tuple[int, int]], set[str]]:
    """Returns where the functions are that actions call, or that these call, and the words of both."""
    ends = [found.start() for found in _END_OF_FUNCTION.finditer(text)]
    starts = [(found[1], found.start(), found.end() - 1) for found in _FUNCTION.finditer(text)]
    later = [*(start for _, start, _ in starts[1:]), len(text)]
    bodies = dict[str, tuple[int, int, int]]()
    for (name, _, start), next_start in zip(starts, later, strict=False):
        if (at := bisect(ends, start)) < len(ends):
            bodies.setdefault(name, (start, ends[at], min(ends[at], next_start)))
    rest = [word for action in actions for word in _FILE_NAME.findall(action)]
    places, words = list[tuple[int, int]](), set(rest)
    while rest:
        if (body := bodies.pop(rest.pop(), None)) is not None:  # each is read once
            start, end, read_end = body
            places.append((start, end))
            more = _FILE_NAME.findall(text, start, read_end)
            words.update(more)
            rest += more
    return places, words


_reading = threading.Thread()


def _read_in_time(read: Callable[[], str], instead: str) -> str:
    """Returns what is read of files; `instead` while they do not answer: some may be of a file server that is gone."""
    global _reading
    texts = [instead]
    if not _reading.is_alive():
        _reading = threading.Thread(target=lambda: texts.append(read()), daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread may be started
            _reading.start()
            _reading.join(_READING_S)
    return texts[-1]


def shell_text(pid: int, words: tuple[str, ...]) -> str:
    """Returns what a shell was given to run: its words, the script that it has open, and files that these source.

    The words alone while files do not answer.
    """
    return _read_in_time(lambda: _with_scripts(pid, words), "\n".join(words))


def _with_scripts(pid: int, words: tuple[str, ...]) -> str:
    text = _append_files("\n".join(words), [f"/proc/{pid}/fd/{number}" for number in _SCRIPT_FILES])
    lines = [_VARIABLE.sub(" ", line) for line in _SOURCES.findall(text)]
    named = [name for line in lines for name in _FILE_NAME.findall(line)][:_NAMED_MOST]
    folders = {f"/proc/{pid}/root", *(os.path.join(f"/proc/{pid}/cwd", os.path.dirname(word)) for word in words[1:6])}
    sourced = {os.path.join(folder, name.lstrip("/")) for folder in sorted(folders) for name in named}
    return _append_files(text, sorted(sourced))


def _code(pid: int, words: tuple[str, ...]) -> str:
    """Returns what an interpreter runs, with the modules beside it that it imports; nothing if it is not found."""
    option, name = _script(words)
    path = {"": name, "-m": name.replace(".", "/")}.get(option, "")
    start = os.path.join(f"/proc/{pid}/root" if path.startswith("/") else f"/proc/{pid}/cwd", path.lstrip("/"))
    text = _append_files("" if path else name, [start, f"{start}.py", f"{start}/__main__.py"] if path else [])
    paths = list[str]()
    for line in _IMPORTS.findall(text)[:_NAMED_MOST]:
        names = [name.replace(".", "/").strip("/") for name in _FILE_NAME.findall(line) if name != "import"]
        paths += [*names, *(f"{names[0]}/{name}" for name in names[1:])]
    folders = [os.path.dirname(start), *([start] if option == "-m" else [])]
    return _append_files(text, [f"{folder}/{path}.py" for folder in folders for path in paths[:_NAMED_MOST]])


def _called_scripts(pid: int, names: Collection[str], scripts: Collection[str]) -> str:
    """Returns the text of those of the files that are scripts, as `scripts` are, by their names or first bytes."""
    text = ""
    for name in sorted(names)[:_NAMED_MOST]:
        folder = "root" if name.startswith("/") else "cwd"
        script = _append_files("", [os.path.join(f"/proc/{pid}/{folder}", name.lstrip("/"))])
        if name in scripts or name.endswith((".sh", ".py")) or script.startswith("\n#!"):
            text += script
    return text[:_TEXT_MOST]


def _append_files(text: str, paths: list[str]) -> str:
    for path in paths:
        with contextlib.suppress(OSError):
            if len(text) < _TEXT_MOST and stat.S_ISREG(os.stat(path).st_mode):
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                    text += "\n" + file.read(_TEXT_MOST - len(text)).decode(errors="replace")
    return text


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _names("sh bash rbash dash ash zsh ksh ksh93 mksh lksh oksh posh yash fish tcsh csh")
#: Shells that handle SIGTERM without any trap, and end at it.
_ALWAYS_HANDLE = _names("mksh lksh oksh posh")
#: Shells that may handle SIGTERM, and whose traps are written in another way.
_NEVER_TRAP = _names("fish tcsh csh")
#: Programs that run another one and end with it.
_WRAPPERS = _names(
    """env nice ionice time timeout nohup stdbuf setsid chrt taskset numactl prlimit flock script unbuffer xvfb-run
    sudo su runuser setpriv unshare chroot tini dumb-init catatonit strace ltrace perf nsys ncu make gmake ninja just
    xargs srun mpirun mpiexec mpiexec.hydra orterun prterun hydra_pmi_proxy uv uvx pixi micromamba mamba apptainer
    singularity starter starter-suid conmon tmux screen"""
)
#: Programs whose output answers questions, and does not end.
_ANSWERS = _names("yes")
#: What a shell becomes that has nothing else to do (`train & exec tail -f log`): it does not end with what it started.
_NEVER_END = _names("tail sleep")
#: Clients of a container runtime: they would pass a signal on to the first process of the container alone, a shell.
_CONTAINER_CLIENTS = _names("docker podman")
#: The same, as scripts and modules that an interpreter runs.
_SCRIPT_WRAPPERS = _names(
    """parallel niceload chronic unbuffer expect_unbuffer torchrun accelerate deepspeed horovodrun conda mamba poetry
    pipenv hatch torch.distributed.run torch.distributed.launch accelerate.commands.launch
    accelerate.commands.accelerate_cli deepspeed.launcher.runner deepspeed.launcher.launch"""
)
#: Folders of installed tools.
_TOOL_FOLDERS = _names("bin site-packages")
_INTERPRETER = re.compile(r"^(python|pypy|perl|tclsh|expect)[0-9.]*[a-z]*$")
#: Python's options that take a word of their own.
_PYTHON_TAKES_WORD = ("-W", "-X", "--check-hash-based-pycs")
#: Processes by which Python keeps account of semaphores and shared memory, or forks others (of its command line).
_BOOKKEEPERS = re.compile(r"multiprocessing\.(resource_tracker|semaphore_tracker|forkserver)")


def _mask(*numbers: int) -> int:
    return sum(1 << (number - 1) for number in numbers)


_TERM_BIT, _FAULT = _mask(signal.SIGTERM), _mask(signal.SIGSEGV)
_INTERRUPT, _QUIT = _mask(signal.SIGINT), _mask(signal.SIGQUIT)
#: What faulthandler of Python handles, and runtimes do not all.
_FAULTHANDLER = _mask(signal.SIGABRT, signal.SIGILL)
#: What Go handles and programs do not.
_GO = _mask(signal.SIGURG)
#: What bash and ksh93 handle once they have a trap on EXIT, beside SIGTERM.
_ENDS_BASH = _mask(signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGVTALRM)
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
    #: Whether it has a handler for SIGTERM, or blocks it to wait for it.
    handles_term: bool = False
    #: Whether it ignores SIGINT, as what a shell runs in the background does, or SIGQUIT alone, once it has a
    #: handler for SIGINT; a shell itself always ignores that.
    ignores_interrupt: bool = False
    #: Whether it was started with a variable RANK.
    has_rank: bool = False
    #: The pipe that is its standard input, and those that are its output.
    reads: tuple[int, int] | None = None
    writes: frozenset[tuple[int, int]] = frozenset()
    #: The pipe to which it writes its errors.
    reports: tuple[int, int] | None = None
    #: Whether its handlers are those of a runtime (Go, Java, a loader worker of torch), not its own.
    is_runtime: bool = False
    #: Whether it is a shell that ends at SIGTERM, with a trap on EXIT.
    cleans_up: bool = False
    #: Whether it is a shell whose trap passes SIGTERM on.
    forwards: bool = False
    #: What its text says, if it is a shell with several children or a trap.
    text: TermTrap = TermTrap(False, False)
    #: Whether a container runtime started it for this attempt.
    is_contained: bool = False
    #: Where its code and its stack begin: the same for a process and its forks, another for each run of a program.
    image: tuple[int, int] = (0, 0)
    #: Clock ticks after boot.
    start_ticks: int = 0

    @property
    def started(self) -> tuple[int, int]:
        """Orders processes by their starts; numbers are used again, and tell the order within one tick alone."""
        return self.start_ticks, self.pid

    @property
    def command(self) -> str:
        """File name of its program; of a shell in busybox that of the applet."""
        first = os.path.basename(self.words[0]).lstrip("-") if self.words else ""
        name = self.executable or first
        if name == "busybox":
            return first if first != "busybox" else self.words[1] if len(self.words) > 1 else ""
        return name

    @property
    def script_command(self) -> str:
        """What it runs, if it is Python or its like: the file name of a script, the name of a module, or code."""
        option, name = _script(self.words) if _INTERPRETER.match(self.command) else ("", "")
        return name if option else os.path.basename(name)

    @property
    def runs(self) -> tuple[str, str]:
        """The same for every run of a program, whatever its arguments (`spawn_main(pipe_handle=7)`)."""
        return self.command, re.sub(r"=\d+", "", self.script_command)

    @property
    def is_shell(self) -> bool:
        return self.command in _SHELLS

    @property
    def saves(self) -> bool:
        """Whether it may save at SIGTERM."""
        return self.handles_term and not self.is_runtime

    @property
    def is_looked_through(self) -> bool:
        """Whether it only runs other programs."""
        return self.is_shell or self.command in _WRAPPERS or self.script_command in _SCRIPT_WRAPPERS


def _script(words: tuple[str, ...]) -> tuple[str, str]:
    """Returns what an interpreter runs: `-m` and a module, `-c` and code, or nothing and the path of a script."""
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c"):
            return word, next(rest, "")
        if word in _PYTHON_TAKES_WORD:
            next(rest, "")
        elif not word.startswith("-"):
            return "", word
    return "", ""


def read_processes(pids: Iterable[int]) -> dict[int, ProcessFacts]:
    """Returns what is known of those of the processes that are still there."""
    known = {facts.pid: facts for facts in map(_read, pids) if facts is not None}
    children = Counter(facts.parent for facts in known.values())
    for pid, facts in known.items():
        if facts.is_shell and not facts.handles_term and not facts.cleans_up and children[pid] > 1:
            known[pid] = replace(facts, text=term_trap(shell_text(pid, facts.words)))
    return known


def command_line(pid: int) -> tuple[str, ...]:
    """Returns the words of a process. Raises OSError: it is gone, or may not be read."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return tuple(file.read(_WORDS_MOST).decode(errors="replace").split("\0")[:-1])


def _read(pid: int) -> ProcessFacts | None:
    try:
        words = command_line(pid)
        with open(f"/proc/{pid}/status", "rb") as file:
            status = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
        handled, ignored = int(status[b"SigCgt"], 16), int(status[b"SigIgn"], 16)
        awaited = int(status[b"SigBlk"], 16) & ~ignored
        parent = int(status[b"PPid"])
        name, image = processes.name_process(pid), processes.image_of(pid)
    except (OSError, KeyError, ValueError):
        return None
    try:
        executable = os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)"))
    except OSError:
        executable = ""
    outputs = frozenset(pipe for number in (1, 2) if (pipe := _pipe(pid, number)) is not None)
    facts = ProcessFacts(
        pid,
        parent,
        words,
        executable,
        bool((handled | awaited) & _TERM_BIT) or _is_in_sigwait(pid),
        bool(ignored & _INTERRUPT),
        processes.has_variable(pid, "RANK"),
        _pipe(pid, 0),
        outputs,
        _pipe(pid, 2),
        is_contained=processes.has_variable(pid, processes.CONTAINER_VARIABLE),
        image=image,
        start_ticks=name.start_ticks if name else 0,
        is_runtime=bool(handled & _FAULT and (handled & _FAULTHANDLER != _FAULTHANDLER or handled & _GO)),
    )
    if not facts.is_shell:
        return replace(facts, ignores_interrupt=bool(ignored & (_INTERRUPT | _QUIT)))
    return _with_trap(facts, handled) if handled & _TERM_BIT else facts


def _is_in_sigwait(pid: int) -> bool:
    """Returns whether its main thread waits for signals; the kernel does not show those as blocked meanwhile."""
    try:
        with open(f"/proc/{pid}/wchan", "rb") as file:
            return b"sigtimedwait" in file.read(100)
    except OSError:
        return False


def _with_trap(shell: ProcessFacts, handled: int) -> ProcessFacts:
    trap = term_trap(shell_text(shell.pid, shell.words))
    shell = replace(shell, text=trap)
    ends_at_it = shell.command in _ALWAYS_HANDLE or handled & _ENDS_BASH == _ENDS_BASH
    if ends_at_it and not trap.exists:
        cleans_up = trap.on_exit or shell.command not in _ALWAYS_HANDLE
        return replace(shell, handles_term=False, cleans_up=cleans_up)
    # A trap that is not in the text (of a script that came through a pipe) may pass the signal on.
    is_unknown = not trap.exists and shell.command not in _NEVER_TRAP
    called = "" if trap.forwards else _read_in_time(lambda: _called_scripts(shell.pid, trap.calls, trap.scripts), "")
    return replace(shell, forwards=trap.forwards or is_unknown or _SENDS.search(called) is not None)


def _pipe(pid: int, number: int) -> tuple[int, int] | None:
    """Returns which pipe the process has open under that number; None if it is something else."""
    try:
        about = os.stat(f"/proc/{pid}/fd/{number}")
    except OSError:
        return None
    return (about.st_dev, about.st_ino) if stat.S_ISFIFO(about.st_mode) else None


@dataclass(frozen=True)
class Found:
    """A program, and when it is to be signalled."""

    facts: ProcessFacts
    #: Only late in the grace, and only once what runs below it has ended.
    is_late: bool = False
    #: A shell runs it in the background, beside a program that saves.
    is_aside: bool = False
    #: The process in the foreground of that shell; 0 for an orphan.
    beside: int = 0


def find_programs(
    roots: Iterable[int],
    known: Mapping[int, ProcessFacts],
    clients: Collection[int] = (),
    firsts: Collection[int] = (),
) -> list[Found]:
    """Returns the programs at and below the roots, which are processes without a parent in the attempt.

    `clients`: processes with an in-job client; they are programs, whatever is below them. `firsts`: first processes of
    ranks; the other roots are orphans.
    """
    children = _children(known)
    found: list[Found] = []
    roots = [root for root in roots if root in known]
    if any(facts.is_contained for facts in known.values()):
        roots = [root for root in roots if known[root].command not in _CONTAINER_CLIENTS]
    at: dict[int, list[Found]] = {}
    for root in roots:
        for pid in reversed(_subtree(root, children)):
            if pid in known:
                at[pid] = _found_at(known[pid], children.get(pid, []), at, clients)
    aside = _run_aside(None, [known[root] for root in roots], at, clients, firsts)
    for root in roots:
        own = [each for each in at[root] if not is_filter(each.facts, known)]
        own = own if any(not each.facts.cleans_up for each in own) else [Found(known[root])]
        found += _put_aside(known[root], own, aside)
    return found


def _put_aside(child: ProcessFacts, found: list[Found], aside: Mapping[int, int]) -> list[Found]:
    if child.pid not in aside:
        return found
    return [replace(each, is_aside=each.facts.handles_term, beside=aside[child.pid]) for each in found]


def _children(known: Mapping[int, ProcessFacts]) -> dict[int, list[ProcessFacts]]:
    children: dict[int, list[ProcessFacts]] = {}
    for facts in known.values():
        children.setdefault(facts.parent, []).append(facts)
    return children


def _subtree(pid: int, children: Mapping[int, list[ProcessFacts]]) -> list[int]:
    """Returns a process and all below it, each after its parent, however deep a job forks."""
    found = dict.fromkeys([pid])
    rest = [pid]
    while rest:
        below = [child.pid for child in children.get(rest.pop(), []) if child.pid not in found]
        found.update(dict.fromkeys(below))
        rest += below
    return list(found)


def _found_at(
    facts: ProcessFacts, own: list[ProcessFacts], at: Mapping[int, list[Found]], clients: Collection[int]
) -> list[Found]:
    """Returns the programs at and below a process, filters included. `own`: its children; `at`: their programs."""
    ranks = [] if facts.has_rank or facts.is_shell else [child for child in own if child.has_rank]
    only_runs_others = facts.is_looked_through and (facts.is_shell or bool(own))
    if facts.pid in clients or not (ranks or only_runs_others):
        below = [each for child in own for each in at.get(child.pid, []) if not facts.handles_term]
        handlers = [each for each in below if each.facts.handles_term and not each.facts.is_runtime]
        if handlers and facts.pid not in clients:
            return [*handlers, Found(facts)] if facts.command in _NEVER_END else handlers
        is_program = facts.handles_term or not _BOOKKEEPERS.search(facts.script_command)
        return [Found(facts)] if is_program else []
    has_trap = facts.is_shell and facts.handles_term
    found = [Found(facts, is_late=facts.cleans_up)] if has_trap or facts.cleans_up else []
    aside = _run_aside(facts, own, at, clients) if facts.is_shell else {}
    for child in ranks or own:
        below = _put_aside(child, at.get(child.pid, []), aside)
        if has_trap and child.ignores_interrupt and not facts.ignores_interrupt:  # left to the trap
            below = [replace(each, is_late=each.is_late or facts.forwards) for each in below if each.facts.handles_term]
        elif has_trap and facts.text.hides_background:
            below = [replace(each, is_late=each.is_late or not each.facts.handles_term) for each in below]
        found += below
    return found


def _run_aside(
    shell: ProcessFacts | None,
    own: list[ProcessFacts],
    at: Mapping[int, list[Found]],
    clients: Collection[int],
    firsts: Collection[int] = (),
) -> dict[int, int]:
    """Returns the children that a shell runs in the background while it waits for another one that saves, and that one.

    They ignore SIGINT, and are older than that one, unless it is in the background too (`wait $TRAINER`). `shell`: None
    for orphans, beside first processes of ranks: where one of these saves, all orphans (`redis-server --daemonize yes`,
    a mount) are in its background. What runs the same program as one that the shell waits for is its like, not its
    helper.
    """
    if shell is not None and (shell.ignores_interrupt or (shell.text.hides_background and shell.text.has_wait)):
        return {}
    awaited, savers = _awaited_child(shell, own), list[ProcessFacts]()
    for child in own:
        programs = (each.facts for each in at.get(child.pid, []) if not each.is_aside)
        if child.ignores_interrupt == (child is awaited) and any(
            facts.pid in clients or facts.saves for facts in programs
        ):
            savers.append(child)
    if not savers:
        return {}
    in_ranks = [child for child in savers if child.pid in firsts]
    # The trap of a shell may be for what it starts as a daemon.
    are_orphans_aside = shell is None and any(
        each.facts.pid in clients or (each.facts.saves and not each.facts.is_shell)
        for child in in_ranks
        for each in at[child.pid]
        if not each.is_aside
    )
    savers = in_ranks if are_orphans_aside else savers
    last = max(savers, key=lambda each: each.started)
    kinds = {each.facts.runs for child in ([last] if shell else savers) for each in at[child.pid]}
    found = {}
    for child in own:
        is_hidden = shell is not None and shell.text.hides_background and last.reads not in child.writes
        is_like = any(each.facts.runs in kinds for each in at.get(child.pid, []))
        is_hidden = is_hidden or (are_orphans_aside and child.pid not in firsts)
        is_before = shell is None or last is awaited or child.started < last.started
        if (child.ignores_interrupt or is_hidden) and not is_like and is_before:
            found[child.pid] = last.pid if shell else 0
    return found


def _awaited_child(shell: ProcessFacts | None, own: list[ProcessFacts]) -> ProcessFacts | None:
    """Returns the one process that a shell waits for, if it has put all of them into the background."""
    if shell is None or shell.text.awaited is None or not all(child.ignores_interrupt for child in own):
        return None
    number, of_all = shell.text.awaited
    return sorted(own, key=lambda child: child.started)[number - 1] if number > 0 and of_all == len(own) else None


def is_filter(facts: ProcessFacts, known: Mapping[int, ProcessFacts]) -> bool:
    """Returns whether a process ends with its input, which another process of the attempt writes."""
    if facts.reads is None:
        return False
    writers = [each for each in known.values() if facts.reads in each.writes and each.command not in _ANSWERS]
    if facts.handles_term:
        writers = [each for each in writers if each.reports == facts.reads]
    return any(facts.pid not in _line_of(each.pid, known) for each in writers if each.pid != facts.pid)


def _line_of(pid: int, known: Mapping[int, ProcessFacts]) -> list[int]:
    """Returns a process and those above it in the attempt, the nearest first."""
    line = dict[int, None]()
    while pid in known and pid not in line:
        line[pid] = None
        pid = known[pid].parent
    return list(line)


def is_own_code(facts: ProcessFacts, beside: Iterable[ProcessFacts] = ()) -> bool:
    """Returns whether a process runs what is named from its folder or written in its script: no tool, as for copies.

    So is what lies in the folder of one of the processes `beside`.
    """
    option, name, is_named = _named_file(facts)
    if option == "-m":
        return bool(_read_in_time(lambda: _code(facts.pid, facts.words), ""))
    with contextlib.suppress(OSError):
        name = name.removeprefix(os.readlink(f"/proc/{facts.pid}/cwd") + "/")
    is_near = name[:1] != "/" or os.path.dirname(name) in {os.path.dirname(_named_file(each)[1]) for each in beside}
    return option == "-c" or (is_named and is_near and not _TOOL_FOLDERS & {*name.split("/")})


def _named_file(facts: ProcessFacts) -> tuple[str, str, bool]:
    """Returns the option and the file that a process runs, and whether its words name a file."""
    is_script = _INTERPRETER.match(facts.command) is not None
    option, name = _script(facts.words) if is_script else ("", "".join(facts.words[:1]))
    return option, name, is_script or "/" in name


def _may_pass_on(facts: ProcessFacts) -> bool:
    """Returns whether a program may send SIGTERM on when it gets it; what is not known counts as yes.

    So does a handler that is not in its text: a script of a package only imports what handles the signal.
    """
    if facts.is_shell or not facts.handles_term:
        return facts.forwards
    code = _read_in_time(lambda: _code(facts.pid, facts.words), "") if _INTERPRETER.match(facts.command) else ""
    return _HANDLES_IN_CODE.search(code) is None or _SENDS_IN_CODE.search(code) is not None


@dataclass
class Program:
    """A program of the attempt, since its stop began."""

    name: processes.ProcessName
    found: Found
    #: Processes at and below it when it was found, and whether they handled SIGTERM; none once they were looked for as
    #: its heirs.
    below: Mapping[int, bool]
    #: Processes above it, the nearest first.
    above: tuple[processes.ProcessName, ...] = ()
    #: The process in the foreground, beside which a shell runs it.
    beside: processes.ProcessName | None = None
    was_signalled: bool = False
    #: Whether the signal may have reached what it started, too.
    may_pass_on: bool = False
    #: When it gets the signal, in seconds after boot, if it lives.
    due_at: float = math.inf
    #: SIGTERM would only kill it, or it is no program of the foreground: others save, and may need it until they have.
    waits: bool = False
    #: How often the same was started again since the stop began, up to this run.
    restarts: int = 0

    @property
    def facts(self) -> ProcessFacts:
        return self.found.facts

    @property
    def pids(self) -> KeysView[int]:
        """Processes at and below it, when it was found."""
        return self.below.keys()

    @property
    def is_told(self) -> bool:
        """Whether what started it may have passed the signal on: it gets none before `due_at`."""
        return math.isfinite(self.due_at)

    def note_signal(self) -> None:
        """Notes that it may have SIGTERM now: what it started may have it from then on."""
        self.may_pass_on = len(self.below) > 1 and _may_pass_on(self.facts)

    def signal(self) -> None:
        """Sends SIGTERM, unless it has ended."""
        self.was_signalled, self.waits = True, False
        if self.name.is_alive:
            self.note_signal()
            processes.send_signal([self.name.pid], signal.SIGTERM)


def is_cleaning_up(shell: ProcessFacts, news: Iterable[int], pids: Iterable[int]) -> bool:
    """Returns whether one of the processes `news` is what the trap on EXIT of the shell above it runs."""
    known = read_processes(pids) if shell.text.cleanup else {}
    for pid in news:
        if pid in known and shell.pid in _line_of(pid, known):
            names = {known[pid].command, *map(os.path.basename, known[pid].words[:3])} & shell.text.cleanup
            if any(not _INTERPRETER.match(name) for name in names - _SHELLS - _NEVER_END):
                return True
    return False


def handles_term(pid: int) -> bool:
    """Returns whether a process has a handler for SIGTERM now."""
    facts = _read(pid)
    return facts is not None and (facts.handles_term or facts.cleans_up)


def programs_among(pids: Iterable[int], clients: Collection[int], firsts: Collection[int] = ()) -> list[Program]:
    """Returns the programs among the processes of an attempt, as they are now. The others: as of `find_programs`."""
    known = read_processes(pids)
    roots = [facts.pid for facts in known.values() if facts.parent not in known]
    children, programs = _children(known), []
    for found in find_programs(roots, known, clients, firsts):
        if (name := processes.name_process(found.facts.pid)) is not None:
            subtree = _subtree(found.facts.pid, children)
            below = {pid: pid in known and known[pid].handles_term for pid in subtree}
            above = filter(None, map(processes.name_process, _line_of(found.facts.pid, known)[1:]))
            beside = processes.name_process(found.beside) if found.beside else None
            programs.append(Program(name, found, below, tuple(above), beside))
    return programs
