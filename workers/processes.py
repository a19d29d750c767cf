"""Processes as the kernel sees them: which are alive, which descend from which, which carry an attempt's cookie.

Standard library and Linux only: used by the supervisor as well as the agent.
"""

import ctypes
import errno
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

#: Every process of an attempt has this in its environment, unless it threw its environment away.
COOKIE_VARIABLE = "WALRAS_ATTEMPT_COOKIE"
#: What a container runtime gives to the processes of an image: a daemon may have started them, far from our own.
CONTAINER_VARIABLE = "WALRAS_IN_CONTAINER"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FALLOC_FL_KEEP_SIZE = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def is_out_of_descriptors(error: OSError) -> bool:
    """Returns whether this process or machine may open no more files, which tells nothing of the one asked for."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class ProcessName:
    """A process, identified by its number and its start time, because numbers are reused."""

    pid: int
    #: Clock ticks after boot.
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and stat.start_ticks == self.start_ticks and not stat.is_over


@dataclass(frozen=True)
class _Stat:
    state: str
    parent: int
    session: int
    threads: int
    start_ticks: int
    image: tuple[int, int]

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs; a process whose first thread alone has ended reads as a zombie, too."""
        return self.state in "ZX" and self.threads <= 1


def boottime() -> float:
    """Returns seconds since boot, suspension included; the same for every process of this machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Returns an id that changes when the machine restarts: earlier process numbers and boot times are then void."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def name_process(pid: int) -> ProcessName | None:
    stat = _stat(pid)
    return None if stat is None else ProcessName(pid, stat.start_ticks)


def is_stopped(pid: int) -> bool:
    """Returns whether the process is stopped by SIGSTOP."""
    stat = _stat(pid)
    return stat is not None and stat.state in "Tt"


def parent_of(pid: int) -> int:
    """Returns the number of the parent; 0 if there is no such process."""
    stat = _stat(pid)
    return 0 if stat is None else stat.parent


def image_of(pid: int) -> tuple[int, int]:
    """Returns where the code and the stack of a process begin; zeros if that may not be read."""
    stat = _stat(pid)
    return (0, 0) if stat is None else stat.image


def become_subreaper() -> None:
    """Makes orphaned descendants of this process its children from now on, so that it can wait for all of them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Lets the kernel kill this process when the thread that started it ends, so start it from the main thread."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def descendants(ancestor: int) -> list[int]:
    """Returns every living process below `ancestor`, without zombies."""
    children: dict[int, list[int]] = {}
    zombies = set()
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
            if stat.is_over:
                zombies.add(pid)
    found: list[int] = []
    to_visit = [ancestor]
    while to_visit:
        below = children.get(to_visit.pop(), [])
        found += below
        to_visit += below
    return [pid for pid in found if pid not in zombies]


def carriers(cookie: str) -> list[int]:
    """Returns every living process of this user whose environment has the cookie."""
    needle = f"{COOKIE_VARIABLE}={cookie}".encode()
    found = []
    for pid in _pids():
        is_carrier = needle in _environment(pid)
        stat = _stat(pid) if is_carrier else None
        if is_carrier and stat is not None and not stat.is_over:
            found.append(pid)
    return found


def cookies() -> set[str]:
    """Returns the cookies of all living processes of this user."""
    before = f"{COOKIE_VARIABLE}=".encode()
    entries = (entry for pid in _pids() for entry in _environment(pid) if entry.startswith(before))
    return {entry.removeprefix(before).decode(errors="replace") for entry in entries}


def contained(cookie: str) -> list[int]:
    """Returns every living process of the attempt that a container runtime started."""
    return [pid for pid in carriers(cookie) if has_variable(pid, CONTAINER_VARIABLE)]


def has_variable(pid: int, name: str) -> bool:
    """Returns whether the process was started with the variable in its environment."""
    needle = f"{name}=".encode()
    return any(entry.startswith(needle) for entry in _environment(pid))


def _environment(pid: int) -> list[bytes]:
    """Returns the entries of the process's environment; none for a process that is gone, or not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError as error:
        if is_out_of_descriptors(error):
            raise
        return []


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_carriers(cookie: str, timeout_s: float) -> bool:
    """Kills every process with the cookie, repeatedly until none is left. Returns False if some are left at the
    timeout.
    """
    until = time.monotonic() + timeout_s
    while found := carriers(cookie):
        send_signal(found, signal.SIGKILL)
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def session_members(leader: ProcessName) -> list[int]:
    """Returns every living process of a session, even after its leader ended: its number is not reused before."""
    now = _stat(leader.pid)
    if now is not None and now.start_ticks != leader.start_ticks:
        return []  # the session is over, and another process has the number
    stats = ((pid, _stat(pid)) for pid in _pids())
    return [pid for pid, stat in stats if stat and stat.session == leader.pid and not stat.is_over]


def kill_known(names: list[ProcessName], leader: ProcessName | None, timeout_s: float) -> None:
    """Kills these processes, their descendants, and the session of the leader, until none is left."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        known = {name.pid for name in names if name.is_alive}
        found = known.union(*(descendants(pid) for pid in known), () if leader is None else session_members(leader))
        if not found:
            return
        send_signal(sorted(found), signal.SIGKILL)
        time.sleep(0.02)


def kill_all_below_me(timeout_s: float) -> bool:
    """Kills and reaps every descendant. True proves that none is left: a subreaper without children has none."""
    until = time.monotonic() + timeout_s
    while not reap_all():
        send_signal(descendants(os.getpid()), signal.SIGKILL)
        if time.monotonic() >= until:
            return False
        time.sleep(0.02)
    return True


def reap_all() -> bool:
    """Reaps the children that have ended. Returns True if no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        return True
    return False


def reserve_room(file: int, length: int) -> None:
    """Reserves disk space for a file without changing its length, where the file system supports that."""
    _LIBC.fallocate(file, _FALLOC_FL_KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(length))


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError as error:
        if is_out_of_descriptors(error):  # it may well be alive
            raise
        return None
    # The command's name is in parentheses and may hold anything, parentheses and spaces included.
    fields = text[text.rindex(b")") + 2 :].split()
    state, (parent, session, threads, start) = fields[0].decode(), (int(fields[at]) for at in (1, 3, 17, 19))
    code, stack = int(fields[23]), int(fields[25])
    image = (code, stack) if stack else (0, 0)  # to others the kernel shows the code as 1
    return _Stat(state, parent, session, threads, start, image)


def hold_port(port: int = 0) -> socket.socket:
    """Returns a socket that keeps the port (0: a free one) from other programs while it is open.

    Who is told the port can listen on it all the same, with SO_REUSEADDR, as torch does. Raises OSError: it is taken.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", port))
    except OSError:
        holder.close()
        raise
    return holder
