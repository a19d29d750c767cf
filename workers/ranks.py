"""The ranks of an attempt on this machine: starts, signals and reaps them, and keeps their output in bounded files.

An output file keeps its beginning and its last 64 KiB, and marks where something was left out.

A command that starts ranks itself (torchrun, accelerate, deepspeed), or uses all of a machine's devices at once, is
started once on each machine. The variables PET_* are torchrun's: with them `torchrun train.py` forms the gang's world
without arguments. A launcher ends with exit code 1, whatever its ranks ended with, so the code is read from the report
that torch prints last. Standard library only.

DeepSpeed's launcher reads no variables. Without arguments it uses the devices 0, 1, ... of the machine, whichever job
holds them, and one fixed port; it knows devices by numbers, not by the UUIDs of CUDA_VISIBLE_DEVICES. Therefore bash,
which runs a job's `run`, gets a function of the launcher's name that adds the arguments of the placement.
"""

import contextlib
import math
import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from walras.contract import EXIT_MACHINE_UNABLE
from workers import processes
from workers.accounts import become
from workers.control_groups import ControlGroup
from workers.programs import (
    ProcessFacts,
    Program,
    command_line,
    handles_term,
    is_cleaning_up,
    is_filter,
    is_own_code,
    programs_among,
    read_processes,
)
from workers.supervisor_protocol import AttemptPlan, rank_log

if TYPE_CHECKING:
    from walras.wire import StartCommand


def launcher_environment(command: "StartCommand", device_numbers: str = "") -> dict[str, str]:
    """Returns torchrun's variables except the ports, and DeepSpeed's function if the command names it.

    Empty if the machine starts one rank per device. `device_numbers`: DeepSpeed's names of the devices (`0,2`); empty
    if it has none for them.
    """
    if not command.is_launcher and len(command.devices) > 1:
        return {}
    deepspeed = _deepspeed_environment(command, device_numbers) if device_numbers else {}
    return deepspeed | {
        "PET_NNODES": str(command.num_nodes),
        "PET_NODE_RANK": str(command.node_rank),
        "PET_NPROC_PER_NODE": str(len(command.devices)),
        "PET_MASTER_ADDR": command.master_address or "127.0.0.1",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": f"walras-{command.job_id}-{command.attempt}",
    }


#: Bash takes a variable of this name as a function that is defined already.
DEEPSPEED_FUNCTION = "BASH_FUNC_deepspeed%%"
#: `command` runs the program instead of the function. Device or machine numbers at the start of the job's arguments
#: would contradict those of the placement.
_START_DEEPSPEED = """() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --num_gpus | --num_accelerators | --num_nodes) shift 2 ;;
      --num_gpus=* | --num_accelerators=* | --num_nodes=*) shift ;;
      *) break ;;
    esac
  done
  local hosts code=0
  hosts="$(mktemp)"
  printf '%s\\n' $WALRAS_DEEPSPEED_HOSTS | tr : ' ' > "$hosts"
  command deepspeed --hostfile "$hosts" --include "$WALRAS_DEEPSPEED_DEVICES" --no_ssh \\
    --node_rank "$WALRAS_NODE_RANK" --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" "$@" || code=$?
  rm -f "$hosts"
  return $code
}"""


def _deepspeed_environment(command: "StartCommand", device_numbers: str) -> dict[str, str]:
    """Returns the function, and the machines of the gang as DeepSpeed lists them, in parts of equal size.

    The devices of other machines are unknown here; only their number counts.
    """
    if not any("deepspeed" in word for word in command.argv):
        return {}
    own, here = [int(number) for number in device_numbers.split(",")], len(command.devices)
    per_machine = [",".join(map(str, range(here)))] * command.num_nodes
    per_machine[command.node_rank] = device_numbers
    names = [f"machine-{number}" for number in range(command.num_nodes)]
    return {
        DEEPSPEED_FUNCTION: _START_DEEPSPEED,
        "WALRAS_DEEPSPEED_HOSTS": " ".join(f"{name}:slots={max(*own, here - 1) + 1}" for name in names),
        "WALRAS_DEEPSPEED_DEVICES": "@".join(f"{name}:{each}" for name, each in zip(names, per_machine, strict=True)),
    }


def with_ports(env: dict[str, str], port: int) -> dict[str, str]:
    """Returns the environment with torchrun's port variables, where it has any torchrun variables.

    Variables that the job sets itself are not changed.
    """
    if "PET_NNODES" not in env:
        return env
    address = env.get("PET_MASTER_ADDR", "127.0.0.1")
    return {"PET_MASTER_PORT": str(port), "PET_RDZV_ENDPOINT": f"{address}:{port}"} | env


#: The part of torch's report on the rank that failed first.
_ROOT_CAUSE = b"Root Cause (first observed failure)"
_EXIT_CODE = re.compile(rb"exitcode\s*: (-?[0-9]{1,3}) ")
_CODE_MOST, _SIGNAL_MOST = 255, 64


def end_of_its_ranks(output: bytes, own_code: int) -> tuple[int | None, int | None]:
    """Returns the exit code or the signal of the rank that failed first, by torch's report at the end of `output`.

    Without such a report, the launcher's own code counts. `output` is untrusted: it affects only this job.
    """
    _, found, report = output.rpartition(_ROOT_CAUSE)
    told = _EXIT_CODE.search(report) if found else None
    code = 0 if told is None else int(told[1])
    if 0 < code <= _CODE_MOST:
        return code, None
    if -_SIGNAL_MOST <= code < 0:
        return None, -code
    return own_code, None


TAIL_BYTES = 64 * 1024
READ_BYTES = 64 * 1024


class RankOutput:
    """Copies one pipe into one file of bounded size: its beginning and, beyond the limit, the last 64 KiB."""

    def __init__(self, pipe: int, path: Path, cap_bytes: int) -> None:
        os.set_blocking(pipe, False)
        self.pipe = pipe
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._room = cap_bytes
        self._tail = b""
        self._left_out = 0
        #: The latest output, at least the last 64 KiB, even if the file could not be written.
        self.recent = b""

    def copy(self) -> bool:
        """Copies one chunk. Returns False at the end of the pipe."""
        try:
            chunk = os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.write(chunk)
        return bool(chunk)

    def drain(self) -> None:
        """Copies the remaining content of the pipe: at most 1 MiB, because no writer is left."""
        for _ in range(64):
            try:
                chunk = os.read(self.pipe, READ_BYTES)
            except OSError:
                return
            if not chunk:
                return
            self.write(chunk)

    def write(self, chunk: bytes) -> None:
        self.recent = self.recent[-TAIL_BYTES:] + chunk
        head, rest = chunk[: self._room], chunk[self._room :]
        if head:
            self._room -= self._append(head)
        if rest:
            kept = self._tail + rest
            self._tail = kept[-TAIL_BYTES:]
            self._left_out += len(kept) - len(self._tail)

    def close(self) -> None:
        if self._left_out:
            self._append(f"\n[walras: {self._left_out} bytes of output left out here]\n".encode())
        self._append(self._tail)
        os.close(self._file)
        os.close(self.pipe)

    def _append(self, content: bytes) -> int:
        """Appends to the file. On a full disk output is lost, but the attempt continues."""
        try:
            return os.write(self._file, content)
        except OSError:
            self._left_out += len(content)
            return 0


#: A shell's exit codes for a program that is missing, or cannot be executed.
EXIT_NOT_FOUND = 127
EXIT_NOT_RUNNABLE = 126
#: The exit code with which podman and docker say that they themselves failed: no daemon, no access to a GPU.
EXIT_OF_ENGINE = 125


#: The last line of an error that the program has on any machine. A library that cannot be loaded (`ImportError:
#: libcuda.so.1: cannot open …`) is not among them.
_OWN_ERRORS = re.compile(
    rb"^(ModuleNotFoundError: |ImportError: cannot import name |SyntaxError: |IndentationError: |NameError: "
    rb"|\S*: error: (unrecognized|the following) arguments|\S*python[\w.-]*: (can't open file |No module named ))",
    re.MULTILINE,
)
#: Where torchrun's report begins, which may be longer than a program's last words, and its last line.
_REPORT = re.compile(rb"failed \(exitcode: -?[0-9]{1,3}\) local_rank: ")
_LAST_OF_REPORT = b"=" * 20
_LAST_WORDS_BYTES = 2000


def is_own_fault(output: bytes) -> bool:
    """Returns whether the end of a failed rank's output shows that the program itself is at fault."""
    is_report_last = output.rstrip().endswith(_LAST_OF_REPORT)
    reports = [found.start() for found in _REPORT.finditer(output)] if is_report_last else []
    end = max(reports, default=len(output))
    return _OWN_ERRORS.search(output[max(0, end - _LAST_WORDS_BYTES) : end]) is not None


@dataclass
class Rank:
    rank: int
    #: 0 if it could not be started.
    pid: int
    output: RankOutput
    #: One of the two is set once it has ended.
    exit_code: int | None = None
    signal: int | None = None

    @property
    def has_ended(self) -> bool:
        return self.exit_code is not None or self.signal is not None


def found_in_containers(plan: AttemptPlan) -> list[int]:
    """Returns the attempt's processes that a container's daemon started; those of all users are read for an image."""
    return processes.contained(plan.cookie) if plan.has_image else []


#: Seconds for processes that are left after all ranks have ended, or after all programs that save.
LEFTOVER_GRACE_S = 2.0
#: Seconds between two looks for programs that were started again, at least.
LOOK_AGAIN_S = 0.4
#: Times that a program may be started again after its stop before what starts it is stopped too, or late in the grace:
#: scripts that try a few times go on to their next command.
MOST_TRIES, MOST_LATE_TRIES = 5, 2


def _is_any_run(names: Collection[processes.ProcessName], words: Collection[tuple[str, ...]]) -> bool:
    """Returns whether one of the processes has one of these command lines."""
    for name in names:
        with contextlib.suppress(OSError):
            if command_line(name.pid) in words:
                return True
    return False


_PAUSE_UNITS = {"": 1.0, "inity": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _pause_end(facts: ProcessFacts) -> float:
    """Returns until when a `sleep` in the foreground of a shell lasts, in seconds after boot; -inf for what is none."""
    if facts.command != "sleep" or facts.ignores_interrupt:
        return -math.inf
    words = [re.fullmatch(r"(\d+\.?\d*|inf(?=$|inity$))(\w*)", word, re.ASCII) for word in facts.words[1:]]
    if not all(word and word[2] in _PAUSE_UNITS for word in words):
        return -math.inf
    length = sum(float(word[1]) * _PAUSE_UNITS[word[2]] for word in words if word)
    return facts.start_ticks / float(os.sysconf("SC_CLK_TCK")) + length


def _long_pauses(pids: Iterable[int], until: float) -> dict[int, int]:
    """Returns each `sleep` among the processes of an attempt that outlasts an instant, and the shell that waits for it.

    0 for one that its shell became. None of them if anything else is at work: all others are shells and wrappers, or
    filters of these.
    """
    known = read_processes(pids)
    parents = {facts.parent for facts in known.values()}
    at_work = [
        facts
        for facts in known.values()
        if not (facts.is_shell or (facts.is_looked_through and facts.pid in parents) or is_filter(facts, known))
    ]
    if not all(_pause_end(facts) > until for facts in at_work):
        return {}
    pauses = {facts.pid: facts.parent if facts.parent in known else 0 for facts in at_work}
    return pauses if all(not pid or known[pid].is_shell for pid in pauses.values()) else {}


class Ranks:
    """All ranks of one plan, in one process group. Create it in the main thread: the ranks die with that thread."""

    def __init__(self, folder: Path, plan: AttemptPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._group = 0
        #: The job's programs as they were when SIGTERM was first due; None before.
        self._programs: list[Program] | None = None
        #: All processes of that moment, and those that started since then and outlive ranks and programs.
        self._before: frozenset[processes.ProcessName] = frozenset()
        #: Whether one of the programs of that moment could save.
        self._could_save = True
        self._newcomers: list[processes.ProcessName] = []
        #: Whether what ended programs left is looked for.
        self._inherits = False
        #: Whether most of the grace period is over.
        self._is_late = False
        #: Runs of programs that wait which began while others still saved.
        self._beside_savers = set[processes.ProcessName]()
        #: What had started a stopped program again and again, and got the signal for it.
        self._stopped_starters = set[processes.ProcessName]()
        #: From when on what was started again is looked for.
        self._look_at = 0.0
        #: Pauses beyond the grace that the last look found.
        self._pauses = set[processes.ProcessName]()
        #: From when on programs that cannot save are signalled, unless one saves or has started by then.
        self._quiet_at = 0.0
        #: Ranks in the order in which they ended.
        self.ended: list[Rank] = []
        #: Processor seconds of all reaped processes.
        self.cpu_s = 0.0
        self.control_group = ControlGroup(plan.group, plan.memory_bytes, len(plan.devices))
        port = plan.master_port
        if plan.first_rank == 0:
            try:
                self._port = processes.hold_port(port)
                port = self._port.getsockname()[1]
            except OSError:  # taken since the agent told it: the rank that binds it says so
                if not port:
                    raise
        self.all = [self._start(rank, port) for rank in plan.ranks]

    @property
    def have_all_ended(self) -> bool:
        return len(self.ended) == len(self.all)

    @property
    def first_failure(self) -> Rank | None:
        return next((rank for rank in self.ended if rank.exit_code != 0), None)

    def reap(self) -> bool:
        """Records the ranks that have ended. Returns False once no process of the attempt is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return bool(found_in_containers(self._plan))
            if pid == 0:
                return True
            self.cpu_s += usage.ru_utime + usage.ru_stime
            for rank in self.all:
                if rank.pid == pid and not rank.has_ended:
                    self._record_end(rank, status)

    @property
    def have_programs_ended(self) -> bool:
        """Returns whether none is left of the programs that there were when SIGTERM was first due, and their heirs."""
        programs = [
            each for each in self._programs or () if each.found.is_aside or not (each.facts.cleans_up or each.waits)
        ]
        # One that ended since the last look may have left heirs that save.
        is_any_left = any(each.name.is_alive or (self._inherits and bool(each.below)) for each in programs)
        return not is_any_left and not any(name.is_alive for name in self._newcomers)

    def terminate(
        self,
        clients: Collection[int],
        spared: Collection[int],
        *,
        is_late: bool = False,
        is_stop: bool = False,
    ) -> None:
        """Sends SIGTERM, once, to each of the job's programs as they were at the first call.

        What a script starts afterwards, to clean up, gets none, unless that runs again. `clients`: processes with an
        in-job client. Spared are programs that are, or started, one of the processes `spared`. At a stop those that the
        signal could only kill, or that a shell runs beside others, wait for those that save. What is suspended goes on,
        as it could not save otherwise.
        """
        if self._programs is None:
            self.signal_all(signal.SIGCONT)
            self._programs = programs_among(self._pids(), clients, [rank.pid for rank in self.all])
            self._before = frozenset(self._names())
            self._could_save = bool(self._savers(clients))
        elif is_late and is_stop:
            self._is_late = True
            self._take_up_restarts(self._names(), clients)
        alive = {program.name.pid for program in self._programs if program.name.is_alive}
        is_cleaning_up_now = False
        for program in self._programs:
            own = program.name.pid
            is_told = program.is_told and not (is_late and program.found.is_late and handles_term(own))
            is_due = own in alive and not (program.was_signalled or is_told)
            is_due = is_due and program.pids.isdisjoint(spared)
            if program.found.is_late:
                is_due = is_due and is_late and program.pids.isdisjoint(alive - {own})
                if is_due and is_stop and program.facts.cleans_up and self._is_cleaning_up(program):
                    program.waits, is_due, is_cleaning_up_now = True, False, True  # the signal would end its trap
            if is_due and is_stop and (not handles_term(own) or (program.found.is_aside and not is_late)):
                program.waits = program.waits or not is_late or program.found.is_late
            elif is_due:
                program.signal()
        if not is_cleaning_up_now:
            self._signal_waiting(clients)

    def _is_cleaning_up(self, shell: Program) -> bool:
        names = self._names()
        return is_cleaning_up(shell.facts, [name.pid for name in self._news(names)], [name.pid for name in names])

    def _signal_waiting(self, clients: Collection[int]) -> None:
        """Signals the programs that wait, unless one of the others saves; first those that may save themselves."""
        if not self._are_waited_for(clients):
            waiting = [each for each in self._programs or () if each.waits]
            for program in [each for each in waiting if each.found.is_aside] or waiting:
                program.signal()

    def _are_waited_for(self, clients: Collection[int]) -> bool:
        """Returns whether a program that handles SIGTERM, or has an in-job client, lives beside one that waits.

        A shell with a trap does not count for what runs below it: the shell waits for that. What a shell runs in the
        background waits for all that it runs in the foreground: the shell may end it afterwards.
        """
        waiting = [each for each in self._programs or () if each.waits and each.name.is_alive]
        if any(each.beside is not None and each.beside.is_alive for each in waiting):
            return True
        return any(each.name.pid not in saver.pids for each in waiting for saver in self._savers(clients))

    def inherit(self, clients: Collection[int], now: float, kill_at: float) -> None:
        """Makes what ended programs left running programs too, if it handles SIGTERM, and signals it as those were.

        What its program may have told gets half of the rest of the grace to end by itself first: a second signal may
        break off the save that the first one began. What has handled the signal and no longer does was told.

        When all have ended, what they started since (a copy of what was saved) has the rest of the grace, unsignalled;
        so has what waits for those that save, and gets the signal two seconds after the last of both.
        """
        self._inherits = True
        known, told, handlers = self._programs or [], dict[int, bool](), set[int]()
        for program in known:
            if not program.name.is_alive:
                told |= {pid: told.get(pid, False) or program.may_pass_on for pid in program.below}
                handlers |= {pid for pid, is_handler in program.below.items() if is_handler}
                program.below = {}
            was_left = program.found.is_late and program.facts.handles_term and told.get(program.name.pid, False)
            if program.is_told or was_left:  # a second stop may leave less time
                program.due_at = min(program.due_at, (now + kill_at) / 2)
            if now >= program.due_at and not program.was_signalled:
                if not handles_term(program.name.pid):
                    program.was_signalled = True  # it has had it
                else:
                    program.signal()
            # Its trap has ended, to which it was left.
            is_left_alone = self.have_all_ended and program.found.is_late
            is_left_alone = is_left_alone and not (program.was_signalled or program.is_told)
            program.waits |= is_left_alone and not handles_term(program.name.pid)
        known_names = {each.name for each in known}
        for heir in programs_among(self._pids(), clients) if told else ():
            pid = heir.name.pid
            if pid not in told or heir.name in known_names:
                continue
            if heir.facts.handles_term or pid in clients:
                known.append(heir)
                if told[pid] and heir.facts.saves and heir.pids.isdisjoint(clients):
                    heir.note_signal()
                    heir.due_at = now + (kill_at - now) / 2
                elif heir.pids.isdisjoint(clients):
                    heir.signal()
            elif pid in handlers:
                heir.note_signal()
                heir.was_signalled = True
                known.append(heir)
        if self._programs is not None and now >= self._look_at:
            self._look_at = now + LOOK_AGAIN_S
            names = self._names()
            self._take_up_restarts(names, clients)
            if self.have_programs_ended and not self.have_all_ended:
                self._end_long_pauses(names, clients, kill_at)
            if any(program.waits for program in self._programs):
                is_anything_new = any(name.is_alive and name not in self._pauses for name in self._news(names))
                is_quiet = not is_anything_new and not self._are_waited_for(clients)
                if not is_quiet or not self._quiet_at:
                    self._quiet_at = now + LEFTOVER_GRACE_S
                elif now >= self._quiet_at:
                    self._signal_waiting(clients)
        if self._programs is not None and self.have_all_ended and self.have_programs_ended:
            self._newcomers = self._news(self._names())

    def _take_up_restarts(self, names: list[processes.ProcessName], clients: Collection[int]) -> None:
        """Makes what was started again, as it was and by the same process, programs too.

        If the earlier run was stopped, so is this one; after `MOST_TRIES` so is what waits for it, then what starts it:
        `until train; do :; done` would never end. If that one waited, this one does, should it begin once those that
        save have ended. Late, so is every next run of such a program that handles SIGTERM.
        """
        ended = [each for each in self._programs or () if not each.name.is_alive]
        news, words = self._news(names), {each.facts.words for each in ended}
        is_any_taken = ended and news and (self._is_late or not self._could_save)
        if not (is_any_taken or _is_any_run(news, words)):
            return
        for found in programs_among(self._pids(), clients):
            same = [each for each in ended if self._is_next_run(found, each)]
            if not self._news([found.name]) or not (same or self._is_next_stage(found)):
                continue
            is_early = any(each.facts.handles_term for each in same) and not handles_term(found.name.pid)
            if is_early and not self._is_late:  # it will handle the signal as its earlier run did
                continue
            savers = [each for each in self._savers(clients) if each.name not in found.above]
            found.waits = bool(same) and all(each.waits for each in same)
            if found.waits and savers:
                self._beside_savers.add(found.name)
            if found.waits and found.name in self._beside_savers and not self.have_all_ended:
                continue
            found.restarts = 1 + max((each.restarts for each in same), default=0)
            self._programs = [*(self._programs or ()), found]
            if not found.waits and found.pids.isdisjoint(clients):
                found.signal()
            starter = self._starter(found)
            if starter and found.restarts > (MOST_LATE_TRIES if self._is_late else MOST_TRIES) and not found.waits:
                aside = [
                    each for each in self._programs if each.found.is_aside and each.waits and starter in each.above
                ]
                for program in aside:
                    program.signal()
                if not aside and all(starter not in each.above for each in savers):
                    self._stop_starter(starter, clients)

    def _end_long_pauses(self, names: list[processes.ProcessName], clients: Collection[int], kill_at: float) -> None:
        """Ends shells that do nothing more until the grace is over: `until train; do sleep 60; done`.

        They did so at the last look, and began after the stop: else the pause is a program. What started such a shell
        has the rest of the grace.
        """
        programs = self._programs or []
        waiting = {pid for each in programs if each.waits for pid in each.pids}
        known = {name.pid: name for name in names if name.pid not in waiting}
        pauses = _long_pauses(known, kill_at)
        seen, self._pauses = self._pauses, {known[pid] for pid in pauses} - {each.name for each in programs}
        is_any_waiting = any(each.waits and each.name.is_alive for each in programs)
        if self._pauses and len(self._pauses) == len(pauses) and self._pauses <= seen and not is_any_waiting:
            for shell in {known[shell] for shell in pauses.values() if shell}:
                self._stop_starter(shell, clients)
            processes.send_signal(list(pauses), signal.SIGTERM)

    def _is_next_run(self, found: Program, ended: Program) -> bool:
        """Returns whether a process runs what an ended program ran, and was started by the same one.

        What runs below a shell that got the signal is its trap's work, such as a pause of it, unless it saves.
        """
        traps = {each.name for each in self._programs or () if each.was_signalled and each.facts.is_shell}
        if not handles_term(found.name.pid) and not traps.isdisjoint(found.above):
            return False
        is_same = found.facts.words == ended.facts.words
        is_like = self._is_late and handles_term(found.name.pid) and found.facts.runs == ended.facts.runs
        starter = self._starter(found)
        if starter is None or starter != self._starter(ended):
            return False
        is_fork = found.facts.image == ended.facts.image != (0, 0)
        if is_fork and processes.image_of(starter.pid) != found.facts.image:  # its program forked it to save
            return False
        return is_same or is_like

    def _is_next_stage(self, found: Program) -> bool:
        """Returns whether a process saves after a stop at which nothing could: `python prepare.py; python train.py`.

        It is code of the job's own, or lies beside what was told: a tool may copy what was saved before the stop, and
        so may a shell with a trap, or what a trap on EXIT runs.
        """
        is_due = not (self._could_save or found.found.is_late or found.found.is_aside)
        if not is_due or not found.facts.saves:
            return False
        told = [each for each in self._programs or () if each.was_signalled and not each.facts.is_shell]
        if not is_own_code(found.facts, [each.facts for each in told]):
            return False
        if any(each.name in found.above or each.facts.image == found.facts.image != (0, 0) for each in told):
            return False  # below a stage that was told, or forked by it to save
        traps = [each.facts for each in self._programs or () if each.facts.cleans_up and each.name in found.above]
        pids = [found.name.pid, *(name.pid for name in found.above)]
        return not any(is_cleaning_up(shell, [found.name.pid], pids) for shell in traps)

    def _stop_starter(self, starter: processes.ProcessName, clients: Collection[int]) -> None:
        """Signals, once, what has started a program again and again, unless it is a program that was stopped."""
        program = next((each for each in self._programs or () if each.name == starter), None)
        if starter not in self._stopped_starters and not (program and program.was_signalled):
            self._stopped_starters.add(starter)
            if program is not None:
                program.signal()
            elif starter.pid not in clients:
                processes.send_signal([starter.pid], signal.SIGTERM)

    def _starter(self, program: Program) -> processes.ProcessName | None:
        """Returns the nearest process above a program that lives, and did when the stop began."""
        return next((name for name in program.above if name in self._before and name.is_alive), None)

    def _savers(self, clients: Collection[int]) -> list[Program]:
        """Returns the programs left that handle SIGTERM, or have an in-job client, and do not wait for others."""
        programs = [each for each in self._programs or () if each.name.is_alive and not each.waits]
        return [each for each in programs if each.facts.handles_term or not each.pids.isdisjoint(clients)]

    def _news(self, names: list[processes.ProcessName]) -> list[processes.ProcessName]:
        """Returns those of the processes that have started since the stop began, except programs."""
        programs = {each.name for each in self._programs or ()}
        return [name for name in names if name not in self._before and name not in programs]

    def _names(self) -> list[processes.ProcessName]:
        names = (processes.name_process(pid) for pid in self._pids())
        return [name for name in names if name is not None]

    def _pids(self) -> list[int]:
        """Returns every living process of the attempt: descendants, and those that a container's daemon started."""
        return [*{*processes.descendants(os.getpid()), *found_in_containers(self._plan)}]

    def signal_all(self, number: int) -> None:
        """Signals every process of the attempt, whatever session or group it has moved to."""
        if number == signal.SIGKILL:
            self.control_group.kill()
        processes.send_signal(self._pids(), number)

    def _record_end(self, rank: Rank, status: int) -> None:
        if os.WIFSIGNALED(status):
            rank.signal = os.WTERMSIG(status)
        else:
            rank.exit_code = os.WEXITSTATUS(status)
            if self._plan.has_image and rank.exit_code == EXIT_OF_ENGINE:
                rank.exit_code = EXIT_MACHINE_UNABLE
            elif self._plan.is_launcher and rank.exit_code:
                rank.output.drain()
                rank.exit_code, rank.signal = end_of_its_ranks(rank.output.recent, rank.exit_code)
        self.ended.append(rank)

    def _start(self, rank: int, port: int) -> Rank:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        if self._plan.uid:  # a rank may open its output once more, as /dev/stdout
            os.fchown(write_end, self._plan.uid, self._plan.gid)
        output = RankOutput(read_end, rank_log(self._folder, rank), self._plan.log_cap_bytes)
        try:
            pid = self._spawn(rank, port, write_end)
        except OSError as error:
            output.write(f"walras: cannot start {self._plan.argv[0]!r}: {error}\n".encode())
            code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_RUNNABLE
            failed = Rank(rank, 0, output, exit_code=code)
            self.ended.append(failed)
            return failed
        finally:
            os.close(write_end)
        return Rank(rank, pid, output)

    def _spawn(self, rank: int, port: int, output: int) -> int:
        supervisor = os.getpid()

        def tie_to_supervisor() -> None:
            self.control_group.enter()
            become(self._plan.uid, self._plan.gid, self._plan.groups)
            processes.die_with_parent()
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # ignored, if a script started the agent in the background
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(EXIT_NOT_RUNNABLE)

        env = self._plan.env | {"MASTER_PORT": str(port)}
        env = with_ports(env, port)
        if not self._plan.is_launcher:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank - self._plan.first_rank)}
        started = subprocess.Popen(
            self._plan.argv,
            cwd=self._plan.workdir,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=self._group,
            preexec_fn=tie_to_supervisor,
        )
        # Reaped through wait4, with all other descendants; Popen is to keep out of it.
        started.returncode = 0
        self._group = self._group or started.pid
        return started.pid
