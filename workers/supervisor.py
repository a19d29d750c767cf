"""The supervisor of an attempt: starts its ranks, ends them, and leaves nothing behind.

    python -m workers.supervisor < SOCKET

Such a process is an agent's starter: it has loaded what supervisors need, and forks the three processes of each attempt
whose folder comes through the socket. It reads nothing of an attempt, and ends with its agent; the three do not:

    guardian      waits for the supervisor. Should that one be killed, its ranks die with it (PDEATHSIG) and every other
                  descendant becomes the guardian's child and is killed within milliseconds, agent or no agent.
    supervisor    the loop below. Parent and subreaper of the ranks.
    ranks         one process group.

It decides when to ask, signal and kill; it knows nothing of the server. Instants are boot time, which suspension does
not stop, so a machine that thaws after its lease has run out kills before it does anything else. Standard library only.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import time
import traceback
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from walras.contract import EXIT_CHECKPOINTED
from workers import processes
from workers.control_groups import ExceededLimit, ResourceWatch, remove_group
from workers.ranks import LEFTOVER_GRACE_S, RankOutput, Ranks, found_in_containers, is_own_fault
from workers.supervisor_protocol import (
    DESCENDANTS_FILE,
    JOURNAL_FILE,
    MAX_CONNECTIONS,
    SUPERVISOR_FILE,
    SUPERVISOR_LOG,
    AttemptJournal,
    AttemptPlan,
    Channels,
    Connection,
    NotesOfJob,
    PeerRole,
    SocketMessage,
    check_rank_message,
    forget_environment,
    read_plan,
    write_atomically,
)

#: Seconds between SIGTERM and SIGKILL for the other ranks after one rank has failed.
FAILURE_GRACE_S = 5.0
#: Part of the grace period after which SIGTERM goes to what was to end by itself: programs whose in-job client has not
#: begun to save, and ranks after one of them has checkpointed.
PATIENT_PART = 0.75
#: Largest part of a lease that is spent on a graceful end.
MAX_GRACE_PART = 1 / 3
KILL_TIMEOUT_S = 10.0
LONGEST_SLEEP_S = 0.5
KILLING_SLEEP_S = 0.05
#: Seconds between two listings of the descendants.
LOOK_EVERY_S = 1.0
#: Largest number of ranks' notes in the journal.
MAX_NOTES = 100
#: The longest path of an attempt's folder.
MAX_FOLDER_BYTES = 4096
#: Seconds for which an unwritable journal may delay the end of an attempt.
LAST_WRITE_S = 120.0


@dataclass
class Ending:
    """The state of ending the ranks."""

    reason: str
    #: SIGTERM to the job's programs, except those whose in-job client was asked by message.
    term_at: float
    #: SIGTERM to those too, if they handle it and have not begun to save, and to what was left to a trap.
    late_term_at: float
    kill_at: float
    #: The cause to report, unless the ranks end well on their own.
    cause: str = "exited"
    #: Asked for by the scheduler, or for the lease: the whole grace belongs to every rank, however others end.
    is_stop: bool = False
    was_termed: bool = False
    was_termed_late: bool = False
    #: SIGTERM went to what is left after the ranks and their programs.
    was_cleared: bool = False


class Supervisor:
    """One attempt on this machine, from its start until no process of it is left."""

    def __init__(self, folder: Path, plan: AttemptPlan) -> None:
        self._plan = plan
        self._folder = folder
        self._descendants: SocketMessage = {}
        self._journal = AttemptJournal(folder / JOURNAL_FILE)
        self._selector = selectors.DefaultSelector()
        self._channels = Channels(self._selector, plan.rank_socket, plan.control_socket)
        if plan.uid:
            os.chown(plan.rank_socket, plan.uid, plan.gid)
        self._lease_until = plan.lease_until
        self._grace_s = min(plan.grace_s, plan.lease_s * MAX_GRACE_PART)
        self._has_expired = False
        self._ending: Ending | None = None
        self._watch = ResourceWatch(plan.memory_bytes, plan.disk_bytes, str(folder))
        self._exceeded: ExceededLimit | None = None
        self._progress: SocketMessage | None = None
        self._start_s: float | None = None
        #: Seconds of work before each checkpoint, as last stated by the server; None: not stated since the start.
        self._checkpoint_every_s: float | None = None
        self._launched_at = processes.boottime()
        self._look_at = self._launched_at + LOOK_EVERY_S
        self._end_requested = False
        #: True: the server requested the end before any rank failed.
        self._is_asked = False
        #: True: the ranks were told to stop before all had ended.
        self._was_stopped = False
        #: True: a training loop said that it had done its work, and its process was there when the stop came.
        self._is_finished = False
        self._finishers = deque[processes.ProcessName | None](maxlen=MAX_CONNECTIONS)
        self._notes = NotesOfJob()
        self._notes_recorded = 0
        self._wake_on_signals()
        self._ranks = Ranks(folder, plan)
        for rank in self._ranks.all:
            self._selector.register(rank.output.pipe, selectors.EVENT_READ, rank.output)
        self._record({"type": "started", "pids": [rank.pid for rank in self._ranks.all]}, must_sync=False)
        self._note_descendants([rank.pid for rank in self._ranks.all])
        self._tell_job(plan.notes)

    def run(self) -> None:
        """Runs until every descendant is gone and the end is in the journal."""
        is_anyone_left = True
        while is_anyone_left or not self._ranks.have_all_ended:
            for key, _ in self._selector.select(self._sleep_s()):
                self._handle_ready(key.data)
            is_anyone_left = self._take_turn(processes.boottime())
        self._finish()

    def _take_turn(self, now: float) -> bool:
        """Handles pending messages and timeouts. Returns True if a descendant is left."""
        # Checked before messages, because what an attempt says after its lease does not count.
        self._check_lease(now)
        self._read_messages(now)
        is_anyone_left = self._ranks.reap()
        if self._ending is not None and self._ending.is_stop:
            self._ranks.inherit({connection.pid for connection in self._clients}, now, self._ending.kill_at)
        self._check_ranks(now)
        self._act_on_ending(now, is_anyone_left)
        self._journal.flush()
        self._look_around(now)
        self._channels.drop_closed()
        return is_anyone_left

    # ------------------------------------------------------------------------------------------- ending the ranks

    def _check_lease(self, now: float) -> None:
        if self._has_expired:
            return
        if now >= self._lease_until:
            self._has_expired = True
            self._record({"type": "lease_expired"})
            self._end(now, 0.0, "lease expired", "lease_expired")
        elif now >= self._lease_until - self._grace_s and self._ending is None:
            self._end(now, self._lease_until - now, "lease is running out", "lease_expired")

    def _check_ranks(self, now: float) -> None:
        """Ends the other ranks after the first failure, and leftover processes after the end of all programs."""
        failure = self._ranks.first_failure
        if self._ranks.have_all_ended and self._ranks.have_programs_ended:
            if self._ending is None:
                self._ending = Ending("ranks ended", now, now, now + LEFTOVER_GRACE_S)
            self._ending.kill_at = min(self._ending.kill_at, now + LEFTOVER_GRACE_S)
        elif failure is not None and (self._ending is None or not self._ending.is_stop):
            # Ranks that checkpoint end one after the other, each when it is done.
            is_checkpointed = failure.exit_code == EXIT_CHECKPOINTED
            grace_s = self._grace_s if is_checkpointed else FAILURE_GRACE_S
            term_at = now + grace_s * PATIENT_PART if is_checkpointed else now
            if self._ending is None:
                self._ending = Ending("ranks ended", term_at, term_at, now + grace_s)
            elif not is_checkpointed:
                self._ending.kill_at = min(self._ending.kill_at, now + grace_s)

    def _end(self, now: float, grace_s: float, reason: str, cause: str = "exited") -> None:
        """Asks the in-job client to checkpoint; other programs get SIGTERM at once. Never delays an earlier end.

        Ranks that are over by now ended on their own, whatever is left of them.
        """
        self._ranks.reap()
        if not self._was_stopped and not self._ranks.have_all_ended:
            self._was_stopped = True
            # What a loop said that has ended since does not speak for the program after it.
            self._is_finished = any(each is not None and each.is_alive for each in self._finishers)
        late_term_at, kill_at = now + grace_s * PATIENT_PART, now + grace_s
        if self._ending is not None:
            self._ending.term_at = min(self._ending.term_at, now)
            self._ending.late_term_at = min(self._ending.late_term_at, late_term_at)
            self._ending.kill_at = min(self._ending.kill_at, kill_at)
        else:
            self._ending = Ending(reason, now, late_term_at, kill_at, cause, is_stop=True)
            self._record({"type": "stopping", "reason": reason, "grace_s": grace_s})
        if grace_s > 0:
            self._channels.broadcast(PeerRole.RANK, {"type": "stop", "grace_s": grace_s, "reason": reason})

    def _act_on_ending(self, now: float, is_anyone_left: bool) -> None:
        if self._end_requested:
            self._end_requested = False
            self._end(now, self._grace_s, "supervisor was told to end", "supervisor_lost")
        ending = self._ending
        if ending is None:
            return
        if now >= ending.kill_at:
            self._ranks.signal_all(signal.SIGKILL)
        elif self._ranks.have_all_ended and self._ranks.have_programs_ended:
            if is_anyone_left and not ending.was_cleared:
                ending.was_cleared = True
                self._ranks.signal_all(signal.SIGTERM)
        else:
            self._terminate_programs(ending, now)

    def _terminate_programs(self, ending: Ending, now: float) -> None:
        asked = {connection.pid for connection in self._clients}
        saving = {connection.pid for connection in self._clients if connection.saves}
        if now >= ending.term_at and not ending.was_termed:
            ending.was_termed = True
            self._ranks.terminate(asked, asked if ending.is_stop else saving, is_stop=ending.is_stop)
        if now >= ending.late_term_at and not ending.was_termed_late:
            ending.was_termed_late = True
            self._ranks.terminate(asked, saving, is_late=True, is_stop=ending.is_stop)

    @property
    def _clients(self) -> list[Connection]:
        return [connection for connection in self._channels.of(PeerRole.RANK) if connection.handles_stop]

    def _sleep_s(self) -> float:
        now = processes.boottime()
        if self._ending is None:
            wakes = [self._lease_until - self._grace_s]
        elif now >= self._ending.kill_at:
            return KILLING_SLEEP_S
        else:
            wakes = [self._ending.kill_at, self._lease_until]
            if not self._ending.was_termed:
                wakes.append(self._ending.term_at)
            if not self._ending.was_termed_late:
                wakes.append(self._ending.late_term_at)
        return min(LONGEST_SLEEP_S, max(0.0, min(wakes) - now))

    # ------------------------------------------------------------------------------------------- sockets and pipes

    def _handle_ready(self, ready: object) -> None:
        if isinstance(ready, RankOutput):
            if not ready.copy():
                self._selector.unregister(ready.pipe)
        elif not self._channels.handle(ready):
            os.read(self._wake_pipe, 4096)

    def _read_messages(self, now: float) -> None:
        for connection in self._channels.connections:
            inbox, connection.inbox = connection.inbox, []
            for message in inbox:
                try:
                    if connection.role is PeerRole.RANK:
                        checked = check_rank_message(message)
                        self._tell_job(checked.notes)
                        if checked.message is not None:
                            self._handle_rank_message(connection, checked.message, now)
                    else:
                        self._handle_agent_message(connection, message, now)
                except (KeyError, TypeError, ValueError, OverflowError):
                    connection.is_open = False  # not our protocol
            if connection.fault and connection.role is PeerRole.RANK:
                self._tell_job([f"connection to the supervisor closed: {connection.fault}"])

    def _handle_rank_message(self, connection: Connection, message: SocketMessage, now: float) -> None:
        match message["type"]:
            case "hello":
                connection.handles_stop = True
                connection.send({"type": "lease", "until": self._lease_until})
                if self._checkpoint_every_s is not None:
                    connection.send({"type": "checkpoint_every", "every_s": self._checkpoint_every_s})
                if self._ending is not None and now < self._ending.kill_at:
                    left_s = self._ending.kill_at - now
                    connection.send({"type": "stop", "grace_s": left_s, "reason": self._ending.reason})
            case "progress":
                self._handle_progress(message, now)
            case "commit":
                self._handle_commit(message)
            case "saving":
                connection.saves = True
            case "saved":
                connection.saves = self._ending is not None  # it leaves next
            case "finished":
                connection.handles_stop, self._is_finished = False, True
                self._finishers.append(processes.name_process(connection.pid))
            case "note" if self._notes_recorded < MAX_NOTES:
                self._notes_recorded += 1
                self._record({"type": "note", "text": message["text"]})

    def _tell_job(self, notes: list[str]) -> None:
        """Writes notes about the job's messages to its own log, that of the first rank here."""
        self._ranks.all[0].output.write(self._notes.lines(notes))

    def _handle_progress(self, message: SocketMessage, now: float) -> None:
        if self._start_s is None:
            self._start_s = now - self._launched_at
        self._progress = message | {"start_s": self._start_s}
        self._channels.broadcast(PeerRole.AGENT, self._progress)

    def _handle_commit(self, message: SocketMessage) -> None:
        own = os.path.join(self._plan.checkpoint_dir, f"attempt-{self._plan.attempt:04d}", "")
        path = os.path.normpath(message["path"])
        manifest = {"step": message["step"], "path": path, "digest": message["digest"]}
        is_ours = path.startswith(own)
        if self._has_expired or not is_ours:
            why = "its lease had ended" if self._has_expired else f"it is not below {own}"
            self._tell_job([f"checkpoint at step {message['step']:g} does not count: {why}"])
        else:
            how = {"took_s": message["took_s"], "layout": message["layout"]}
            self._record({"type": "committed", "manifest": manifest, **how})

    def _handle_agent_message(self, connection: Connection, message: SocketMessage, now: float) -> None:
        match message["type"]:
            case "status":
                ending = None if self._ending is None else self._ending.reason
                connection.send({"type": "status", "lease_until": self._lease_until, "ending": ending})
                if self._progress is not None:
                    connection.send(self._progress)
            case "renew":
                # An instant, not a length: a message that waited for us to thaw must not grant anew what has run out.
                if not self._has_expired:
                    self._lease_until = max(self._lease_until, float(message["until"]))
                    self._grace_s = min(self._plan.grace_s, float(message["lease_s"]) * MAX_GRACE_PART)
                    self._channels.broadcast(PeerRole.RANK, {"type": "lease", "until": self._lease_until})
            case "stop":
                self._is_asked = self._is_asked or (self._ending is None and self._ranks.first_failure is None)
                self._end(now, float(message["grace_s"]), str(message["reason"]))
            case "save":
                self._channels.broadcast(PeerRole.RANK, {"type": "save"})
            case "checkpoint_every":
                self._checkpoint_every_s = float(message["every_s"])
                self._channels.broadcast(PeerRole.RANK, message)
            case "recorded":
                self._channels.broadcast(PeerRole.RANK, {"type": "recorded", "digest": str(message["digest"])})

    # ------------------------------------------------------------------------------------------- keeping the record

    def _record(self, event: SocketMessage, *, must_sync: bool = True) -> None:
        self._journal.append(event | {"at": processes.boottime()}, must_sync=must_sync)
        self._channels.broadcast(PeerRole.AGENT, {"type": "event"})

    def _finish(self) -> None:
        self._channels.receive_all()
        self._read_messages(processes.boottime())
        for rank in self._ranks.all:
            rank.output.drain()
            rank.output.close()
        failure = self._ranks.first_failure
        if self._exceeded is None and self._ranks.control_group.had_no_memory_left:
            self._exceeded = ExceededLimit("memory", self._plan.memory_bytes, self._plan.memory_bytes)
            self._tell_job([f"ended: {self._exceeded}"])
        self._record(
            {
                "type": "ended",
                "cause": self._cause(),
                "exit_code": 0 if failure is None else failure.exit_code,
                "signal": None if failure is None else failure.signal,
                "failed_rank": None if failure is None else failure.rank,
                "progress": self._progress,
                "cpu_s": self._ranks.cpu_s,
                "asked": self._is_asked,
                "unfinished": self._is_unfinished,
                "own_fault": failure is not None and is_own_fault(failure.output.recent),
                "exceeded": "" if self._exceeded is None else self._exceeded.what,
                "ranks": [{"rank": r.rank, "exit_code": r.exit_code, "signal": r.signal} for r in self._ranks.all],
            }
        )
        forget_environment(self._folder)
        self._write_last()
        self._ranks.control_group.close()
        self._channels.drop_closed()
        self._channels.close()
        self._journal.close()

    def _look_around(self, now: float) -> None:
        """Once a second lists the processes, and checks whether they use more than their limits."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        pids = processes.descendants(os.getpid())
        self._note_descendants(pids)
        if self._ending is None and (exceeded := self._watch.look(pids)) is not None:
            self._exceeded = exceeded
            self._tell_job([f"ended: {self._exceeded}"])
            self._end(now, 0.0, str(self._exceeded))

    def _note_descendants(self, pids: list[int]) -> None:
        """Records the descendants for the case that guardian and supervisor are killed together.

        Some descendants can be found in no other way.
        """
        names = [processes.name_process(pid) for pid in pids]
        seen: SocketMessage = {"boot_id": processes.boot_id(), "leader": _listed(processes.name_process(os.getsid(0)))}
        seen["names"] = [_listed(name) for name in names if name is not None]
        if seen == self._descendants:
            return
        partial = self._folder / f"{DESCENDANTS_FILE}.partial"
        with contextlib.suppress(OSError):  # not synced: after a power failure these processes are gone too
            partial.write_text(json.dumps(seen))
            partial.replace(self._folder / DESCENDANTS_FILE)
            self._descendants = seen

    def _write_last(self) -> None:
        """Waits for space on a full disk, because an end that is not recorded looks like a lost supervisor."""
        until = processes.boottime() + LAST_WRITE_S
        while not self._journal.flush() and processes.boottime() < until:
            time.sleep(LONGEST_SLEEP_S)
        self._channels.broadcast(PeerRole.AGENT, {"type": "event"})

    def _cause(self) -> str:
        """Returns the cause of the end: the supervisor's, unless the ranks ended well on their own."""
        failure = self._ranks.first_failure
        if self._has_expired:
            return "lease_expired"
        if self._ending is None or (failure is not None and failure.exit_code == EXIT_CHECKPOINTED):
            return "exited"
        return "exited" if failure is None and not self._is_unfinished else self._ending.cause

    @property
    def _is_unfinished(self) -> bool:
        """Whether the ranks were told to stop before they ended, and nothing shows that their work was done."""
        return self._was_stopped and not self._is_finished

    def _wake_on_signals(self) -> None:
        self._wake_pipe, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_end)
        self._selector.register(self._wake_pipe, selectors.EVENT_READ, None)

    def _request_end(self, *_: object) -> None:
        self._end_requested = True


def _listed(name: processes.ProcessName | None) -> list[int] | None:
    return None if name is None else [name.pid, name.start_ticks]


def supervise(folder: Path, plan: AttemptPlan, ready: int) -> None:
    """Runs an attempt; writes a byte to `ready` once its ranks are started."""
    processes.become_subreaper()
    own = processes.name_process(os.getpid())
    assert own is not None
    facts = {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": processes.boot_id()}
    # From here on an agent that restarts finds us; before, nothing was started.
    write_atomically(folder / SUPERVISOR_FILE, facts)
    supervisor = Supervisor(folder, plan)
    with contextlib.suppress(BrokenPipeError):  # the agent has died meanwhile; the next one finds us
        os.write(ready, b"+")
    os.close(ready)
    supervisor.run()


def guard(supervisor_pid: int, plan: AttemptPlan, folder: Path) -> None:
    """Waits for the supervisor, then ends all processes that it left."""
    while os.wait()[0] != supervisor_pid:
        pass
    forget_environment(folder)
    processes.kill_all_below_me(KILL_TIMEOUT_S)
    processes.send_signal(found_in_containers(plan), signal.SIGKILL)
    remove_group(plan.group)


def start_supervisor(folder: Path, ready: int) -> None:
    """Becomes the guardian of an attempt, whose supervisor it starts."""
    _detach(folder)
    processes.become_subreaper()
    plan = read_plan(folder)
    supervisor_pid = os.fork()
    if supervisor_pid == 0:
        supervise(folder, plan, ready)
    else:
        os.close(ready)
        guard(supervisor_pid, plan, folder)


def serve_starts(requests: socket.socket) -> None:
    """Starts the attempt of each folder that comes through the socket, until that is closed.

    With a folder comes the writing end of a pipe: a byte says that the ranks are started, its end that they are not.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps guardians
    importlib.import_module("resource")  # which os.wait4 would import in each fork
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all objects here
    while True:
        folder, pipes, _, _ = socket.recv_fds(requests, MAX_FOLDER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not pipes:
            return
        if os.fork() == 0:
            _run_fork(requests, Path(os.fsdecode(folder)), pipes[0])
        os.close(pipes[0])


def _run_fork(requests: socket.socket, folder: Path, ready: int) -> NoReturn:
    """Runs the guardian or the supervisor to its end, in a process that never returns to the starter's loop."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        requests.close()
        start_supervisor(folder, ready)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _detach(folder: Path) -> None:
    """Starts a new session, with output to a file, because the starter may end."""
    os.setsid()
    log = os.open(folder / SUPERVISOR_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)


if __name__ == "__main__":
    serve_starts(socket.socket(fileno=os.dup(0)))  # forks put something else in the place of 0
