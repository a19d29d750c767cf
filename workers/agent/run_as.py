"""`runs_as: user`: under an agent that is root, the ranks of a job run with the account of the user who submitted it.

A file of the machine's administrator maps users of the cluster to accounts here. A user who is not in it, has no
account, or has root's, is refused with a message. The agent, its supervisors, logs, journals and credentials stay
root's. An attempt's work folder, its socket and its own copy of a checkpoint belong to the account. Folders above these
can be passed through by all, but not listed.

Ranks prepare themselves, so what a job needs is fetched and made with the rights of its account: in a folder of the
attempt, and in caches that jobs of the same account share. Root makes these folders and gives them away, and does
nothing in them afterwards.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import StringConstraints, TypeAdapter, ValidationError

from walras.errors import ConfigError, UserError
from walras.wire import StartCommand
from workers.accounts import Account, files_as, find_account
from workers.preparation.launcher import write_needs

_Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_ACCOUNTS = TypeAdapter(dict[_Name, Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]])
_MOST_BYTES = 4 * 1024 * 1024
#: Folders of the agent's state through which ranks pass; all others are closed to them.
_WAYS = ("attempts", "checkpoints", "client")
#: Below the folder of the whole machine: the caches of each account, by its number.
_ACCOUNTS_FOLDER = "accounts"
#: In an attempt's folder: what its ranks keep of preparing.
OWN_FOLDER = "own"
_PASS_THROUGH = 0o711


@dataclass(frozen=True)
class RunAs:
    """The accounts of this machine, by user of the cluster."""

    accounts: Mapping[str, str]
    #: The file with the mapping, for messages.
    source: str

    def account_of(self, user: str) -> Account:
        """Returns the user's account. Raises UserError with a message for the submitter and the administrator."""
        if not user:
            raise UserError("the server does not say who submitted the job, and ranks run as users here: upgrade it")
        if user not in self.accounts:
            raise UserError(f"{self.source} on this machine gives user {user!r} no account to run as")
        name = self.accounts[user]
        try:
            account = find_account(name)
        except KeyError:
            raise UserError(f"user {user!r} is to run as {name!r}, which is no account of this machine") from None
        if account.uid == 0:
            raise UserError(f"user {user!r} is to run as {name!r}, which is root: name another account")
        return account

    def refusal(self, command: StartCommand) -> str:
        """Returns why the ranks of this job cannot run as a user here; empty if they can."""
        try:
            account = self.account_of(command.user)
        except UserError as error:
            return str(error)
        if command.needs.is_prepared_first and (closed := _closed_to(account)):
            return f"jobs are prepared by {closed}, which {account.name} cannot read: install the agent elsewhere"
        return ""

    def files_of(self, command: StartCommand) -> AbstractContextManager[None]:
        """Lets this thread access the disk as the job's account, within the context."""
        account = self.account_of(command.user)
        return files_as(account.uid, account.gid)

    def hand_over(self, command: StartCommand, folder: Path, whole: Path) -> None:
        """Gives the account the work folder of an attempt that is about to start, and its copies of checkpoints.

        `whole`: the machine's folder. Raises OSError, UserError. The account must have no living process in this
        attempt.
        """
        account = self.account_of(command.user)
        folder.chmod(_PASS_THROUGH)
        _give(folder / "work", account)
        if command.needs.is_prepared_first:
            own = folder / OWN_FOLDER
            own.mkdir(mode=0o700)
            write_needs(own, command.needs.model_copy(update={"code": command.code}))
            _give(own, account)
            _make_caches(account_caches(whole, account), account)
        if not command.store:
            return
        copies = Path(command.checkpoint_dir)
        owner = copies.stat().st_uid
        if owner not in (0, account.uid):
            raise UserError(f"{copies} belongs to another account: the job was submitted by somebody else before")
        os.chown(copies, account.uid, account.gid, follow_symlinks=False)
        if command.resume is not None and command.resume.content:
            step = Path(command.resume.path)
            for place in (step.parent, step.parent.parent):
                place.chmod(_PASS_THROUGH)
            _give(step, account)


def account_caches(whole: Path, account: Account) -> Path:
    """Returns the folder of what jobs of the account have prepared on this machine."""
    return whole / _ACCOUNTS_FOLDER / str(account.uid)


def _make_caches(place: Path, account: Account) -> None:
    """Makes the folder, whose parent is root's. Raises UserError where another account has it."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
        os.chown(place, account.uid, account.gid, follow_symlinks=False)
    about = place.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != account.uid:
        raise UserError(f"{place} is no folder of {account.name}: remove it")


def _closed_to(account: Account) -> Path | None:
    """Returns a file of the program that prepares ranks which the account cannot read; None if it can read all."""
    with files_as(account.uid, account.gid):
        for place in (Path(sys.executable), Path(__file__).parents[1] / "preparation" / "launcher.py"):
            try:
                place.open("rb").close()
            except OSError:
                return place
    return None


def load_run_as(path: Path) -> RunAs:
    """Reads `user: account`, a YAML file that only the machine's administrator can write. Raises ConfigError."""
    if os.geteuid() != 0:
        raise ConfigError(
            "only an agent that runs as root can run ranks as other users",
            field="--runs-as",
            fix="start the agent as root, or leave the option out",
        )
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            text = file.read(_MOST_BYTES)
        accounts = _ACCOUNTS.validate_python(yaml.safe_load(text))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, ValidationError) as error:
        problem = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            problem = f"{where[:80]}: {first['msg']}"
        raise ConfigError(
            f"{path}: {problem}", field="--runs-as", fix="give a YAML file of lines user: account"
        ) from None
    if about.st_uid != 0 or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"{path} can be written by others than root", field="--runs-as", fix="chown root, chmod go-w")
    return RunAs(accounts, str(path))


def open_the_way(whole: Path, states: Iterable[Path], sockets: Iterable[Path]) -> None:
    """Lets accounts pass through to their folders, and closes all others; files that this process creates later are
    closed.

    `whole`: the agent's state folder; `states`: those of its parts, or itself. Raises ConfigError where a folder above
    is closed to the accounts.
    """
    for above in whole.resolve().parents:
        if not above.stat().st_mode & stat.S_IXOTH:
            raise ConfigError(
                f"{above} is closed to the accounts that ranks run as, and {whole} lies in it",
                field="--state",
                fix="give the agent a folder such as /var/lib/walras-agent",
            )
    os.umask(0o077)
    # A thread that acts for an account must not keep access through root's groups.
    os.setgroups([])
    states = list(states)
    for state in {whole, *states}:
        for place in state.iterdir():
            if not place.is_symlink():
                place.chmod(stat.S_IMODE(place.stat().st_mode) & 0o700)
    ways = [whole / _ACCOUNTS_FOLDER, *(state / name for state in states for name in _WAYS)]
    for way in ways:
        way.mkdir(exist_ok=True)
    between = [place for state in states for place in (state, *state.parents) if place.is_relative_to(whole)]
    for place in (*ways, *between, *sockets):
        place.chmod(_PASS_THROUGH)


def _give(place: Path, account: Account) -> None:
    """Gives the folder and everything in it to the account; links themselves, not their targets."""
    os.chown(place, account.uid, account.gid, follow_symlinks=False)
    for folder, folders, files in os.walk(place):
        for name in (*folders, *files):
            os.chown(os.path.join(folder, name), account.uid, account.gid, follow_symlinks=False)
