"""Accounts of this machine, whose rights ranks have under an agent that is root. Standard library only.

Nothing here is setuid: a process that is root gives its rights up for good (`become`), between fork and exec, or lends
a thread an account's view of the disk for a moment (`files_as`). So what an agent that is root does with files that a
rank names, or may have put a link in the place of, it does with the rights of that rank.
"""

import contextlib
import ctypes
import errno
import os
import pwd
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: What is made by somebody who says nothing else: readable by all, as for any shell.
_UMASK = 0o022
#: No id: the calls change nothing and say what holds.
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
        """What a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}


def find_account(name: str) -> Account:
    """Raises KeyError where this machine has no account of that name."""
    entry = pwd.getpwnam(name)
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Give up root for good, in a child that is about to execute something else. Nothing for uid 0.

    Before `die_with_parent`: the kernel forgets what was asked of it there when a process changes its rights.
    """
    if uid:
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        os.umask(_UMASK)


@contextlib.contextmanager
def files_as(uid: int, gid: int) -> Iterator[None]:
    """Files that this thread opens, makes or removes meanwhile are those that the account may; nothing for uid 0.

    The rights are the thread's alone, and of threads that it begins (setfsuid): there is to be no await inside. Raises
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
    """Returns what was before."""
    libc = ctypes.CDLL(None)
    was_gid = libc.setfsgid(gid) & _UNSIGNED
    return libc.setfsuid(uid) & _UNSIGNED, was_gid
