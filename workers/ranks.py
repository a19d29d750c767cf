"""The ranks of an attempt on this machine: starts, signals and reaps them, and keeps their output in bounded files.

An output file keeps its beginning and its last 64 KiB, and marks where something was left out. Standard library only.
"""

import os
import signal
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from workers import launchers, processes
from workers.accounts import become
from workers.control_groups import ControlGroup
from workers.programs import Program, programs_below
from workers.supervisor_protocol import AttemptPlan, rank_log

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


class Ranks:
    """All ranks of one plan, in one process group. Create it in the main thread: the ranks die with that thread."""

    def __init__(self, folder: Path, plan: AttemptPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._group = 0
        #: The job's programs as they were when SIGTERM was first due; None before.
        self._programs: list[Program] | None = None
        #: Ranks in the order in which they ended.
        self.ended: list[Rank] = []
        #: Processor seconds of all reaped processes.
        self.cpu_s = 0.0
        self.control_group = ControlGroup(plan.group, plan.memory_bytes, len(plan.devices))
        port = plan.master_port or processes.free_port()
        self.all = [self._start(rank, port) for rank in plan.ranks]

    @property
    def have_all_ended(self) -> bool:
        return len(self.ended) == len(self.all)

    @property
    def first_failure(self) -> Rank | None:
        return next((rank for rank in self.ended if rank.exit_code != 0), None)

    def reap(self) -> bool:
        """Records the ranks that have ended. Returns False once no descendant is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.cpu_s += usage.ru_utime + usage.ru_stime
            for rank in self.all:
                if rank.pid == pid and not rank.has_ended:
                    self._record_end(rank, status)

    @property
    def have_programs_ended(self) -> bool:
        """Returns whether none is left of the programs that there were when SIGTERM was first due."""
        return not any(program.name.is_alive for program in self._programs or ())

    def terminate(self, spared: Collection[int] = (), *, handlers_only: bool = False) -> None:
        """Sends SIGTERM, once, to each of the job's programs as they were at the first call.

        What a script starts afterwards, to clean up, gets none. Spared are programs that are, or started, one of the
        processes `spared`; with `handlers_only` also those that the signal could only kill.
        """
        if self._programs is None:
            self._programs = programs_below(os.getpid())
        for program in self._programs:
            is_due = not program.was_signalled and program.pids.isdisjoint(spared) and program.name.is_alive
            if is_due and (program.handles_term or not handlers_only):
                program.was_signalled = True
                processes.send_signal([program.name.pid], signal.SIGTERM)

    def signal_all(self, number: int) -> None:
        """Signals every descendant, whatever session or group it has moved to."""
        if number == signal.SIGKILL:
            self.control_group.kill()
        processes.send_signal(processes.descendants(os.getpid()), number)

    def _record_end(self, rank: Rank, status: int) -> None:
        if os.WIFSIGNALED(status):
            rank.signal = os.WTERMSIG(status)
        else:
            rank.exit_code = os.WEXITSTATUS(status)
            if self._plan.is_launcher and rank.exit_code:
                rank.output.drain()
                rank.exit_code, rank.signal = launchers.end_of_its_ranks(rank.output.recent, rank.exit_code)
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
            if os.getppid() != supervisor:  # it died before the line above
                os._exit(EXIT_NOT_RUNNABLE)

        env = self._plan.env | {"MASTER_PORT": str(port)}
        env = launchers.with_ports(env, port)
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
