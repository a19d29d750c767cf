"""Accounts of this machine whose rights ranks have under an agent that runs as root. Standard library only.

Nothing here is setuid. A process that is root either gives its rights up for good (`become`), between fork and exec, or
lends a thread an account's view of the disk for a moment (`files_as`). So an agent that is root accesses files that a
rank names, or may have replaced by a link, with the rights of that rank.
"""

import contextlib
import ctypes
import errno
import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Umask of a process that sets none: files are readable by all, as in any shell.
_UMASK = 0o022
#: No id: with it the system calls change nothing and return the present id.
_ASK = -1
_UNSIGNED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Account:
    """One account, as the machine's name service knows it."""

    name: str
    uid: int
    gid: int
    #: Supplementary groups, the first one included.
    groups: tuple[int, ...]
    home: str
    shell: str

    @property
    def environment(self) -> dict[str, str]:
        """Returns the variables that a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def find_account(name: str) -> Account:
    """Looks up an account. Raises KeyError if this machine has no account of that name."""
    entry = pwd.getpwnam(name)
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Gives up root for good, in a child that is about to execute another program. Does nothing for uid 0.

    Call it before `die_with_parent`: the kernel clears that setting when a process changes its rights.
    """
    if uid:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.umask(_UMASK)


@contextlib.contextmanager
def files_as(uid: int, gid: int) -> Iterator[None]:
    """Lets this thread open, create and remove files only as the account may; does nothing for uid 0.

    The rights belong to this thread, and to threads that it starts (setfsuid), so the body must not await. Raises
    PermissionError where the process is not root.
    """
    if not uid:
        yield
        return
    before = _set_ids(uid, gid)
    try:
        if _set_ids(_ASK, _ASK) != (uid, gid):
            raise PermissionError(errno.EPERM, "only root can use files with the rights of another account")
        yield
    finally:
        _set_ids(*before)


def _set_ids(uid: int, gid: int) -> tuple[int, int]:
    """Sets the ids. Returns the previous ones."""
    libc = ctypes.CDLL(None)
    was_gid = libc.setfsgid(gid) & _UNSIGNED
    return libc.setfsuid(uid) & _UNSIGNED, was_gid
