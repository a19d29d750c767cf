"""Starts that wait for the job's code and checkpoint. Code is kept in a bounded cache, and copied for each attempt.

STATE/code/NAME is a tree of the server's content store, complete or absent. It is copied into the attempt's own work
folder, and the copy is verified against the name, because ranks of the same user could have written to the cache. All
of it happens beside the heartbeats: meanwhile the attempt counts as present and its lease is renewed.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from walras.errors import ClusterError, Forbidden, NotFound, ServerUnreachable, UserError
from walras.storage.content import ContentTree, DamagedContent, hash_folder, remove_draft
from walras.storage.content_transfer import ContentTransfer
from walras.wire import StartCommand
from workers.agent.checkpoints import bring_checkpoint, localized
from workers.agent.launch import (
    MIN_FREE_BYTES,
    AgentMachine,
    SupervisorStarter,
    make_attempt_folder,
    make_attempt_plan,
    start_refusal,
)
from workers.agent.server_client import ServerClient, call_backoff_s
from workers.devices import AttemptKey
from workers.preparation.launcher import write_needs
from workers.supervisor_protocol import AttemptPlan

log = logging.getLogger(__name__)

#: Largest number of trees in the cache, and of bytes of all of them. The least recently used are removed first.
TREES_KEPT, BYTES_KEPT = 20, 8 * 1000**3
#: Factor on a tree's size: at most it is on the disk as chunks, in the cache, and in the work folder.
_COPIES_AT_ONCE = 3
#: Number of tries, each with the patience of a call, before a start whose lease continues is refused.
FETCH_TRIES = 20


class CodeCache:
    """Trees of the server's content store in a folder of the agent's state."""

    def __init__(
        self, folder: Path, client: ServerClient, trees_kept: int = TREES_KEPT, bytes_kept: int = BYTES_KEPT
    ) -> None:
        self._folder = folder
        self._client = client
        self._trees_kept = trees_kept
        self._bytes_kept = bytes_kept
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._used: Counter[str] = Counter()

    async def copy(self, name: str, target: Path, stop: threading.Event) -> None:
        """Creates `target` with the tree's files. `stop` ends a copy in progress.

        Raises NotFound, DamagedContent, OSError, and what calls to the server raise: ServerUnreachable, Forbidden.
        """
        self._used[name] += 1
        try:
            try:
                return await self._copy_once(name, target, stop)
            except DamagedContent as error:
                log.warning("fetched anew: %s", error)
            await asyncio.to_thread(self._forget, name, target)
            await self._copy_once(name, target, stop)
        finally:
            self._used[name] -= 1

    async def _copy_once(self, name: str, target: Path, stop: threading.Event) -> None:
        await self._fetch(name)
        await asyncio.to_thread(_copy_checked, self._folder / name, target, name, stop)

    async def _fetch(self, name: str) -> None:
        """Fetches the tree unless it is here. A fetch continues for later starts if all that wait for it end."""
        place = self._folder / name
        if not place.is_dir():
            task = self._fetching.get(name)
            if task is None:
                task = self._fetching[name] = asyncio.create_task(self._fetch_once(name))
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(task)
        os.utime(place)

    async def _fetch_once(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            async with self._client.transport() as transport:
                await ContentTransfer(transport).fetch(name, self._folder / name, self._check_room)
        finally:
            del self._fetching[name]
        with contextlib.suppress(OSError):  # something is gone already, so the next fetch tries again
            await asyncio.to_thread(self._remove_least_used, name)

    def _check_room(self, tree: ContentTree) -> None:
        """Raises an error before a tree fills the disk that other attempts need."""
        if tree.size > self._bytes_kept:
            raise UserError(f"it has {tree.size:,} bytes, {self._bytes_kept:,} are allowed")
        if shutil.disk_usage(self._folder).free - _COPIES_AT_ONCE * tree.size < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"disk full: no room for {tree.size:,} bytes of code")

    def _forget(self, name: str, target: Path) -> None:
        remove_draft(self._folder / name)
        for path in (self._folder / name, target):
            shutil.rmtree(path, ignore_errors=True)

    def _remove_least_used(self, newest: str) -> None:
        """Keeps the cache within its bounds, except trees being copied. Removes remains of interrupted fetches."""
        kept_bytes = kept_trees = 0
        by_age = sorted(self._folder.iterdir(), key=lambda path: path.lstat().st_mtime, reverse=True)
        for path in sorted(by_age, key=lambda path: path.name != newest):
            name = path.name.lstrip(".").split(".")[0]
            if path.name == name:
                kept_trees += 1
                kept_bytes += sum(each.lstat().st_size for each in path.rglob("*"))
            is_over = path.name != name or kept_trees > self._trees_kept or kept_bytes > self._bytes_kept
            if is_over and not self._used[name] and name not in self._fetching:
                shutil.rmtree(path, ignore_errors=True)


def _copy_checked(source: Path, target: Path, name: str, stop: threading.Event) -> None:
    """Copies a tree. Raises DamagedContent unless the copy has this name, OSError, and _Withdrawn if `stop` is set."""

    def copy_one(file: str, to: str) -> str:
        if stop.is_set():
            raise _Withdrawn
        return str(shutil.copy(file, to, follow_symlinks=False))

    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True, copy_function=copy_one)
    files = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    paths = [path.relative_to(target).as_posix() for path in files]
    try:
        found = hash_folder(target, paths).name
    except (UserError, ValueError) as error:
        raise DamagedContent(f"code {name[:12]} is damaged on this machine: {error}") from None
    if found != name:
        raise DamagedContent(f"code {name[:12]} is damaged on this machine")


class _Withdrawn(Exception):
    """The start was withdrawn while its code was copied."""


@dataclass(frozen=True)
class StartFailure:
    """Why no supervisor runs. `lost`: digest of a checkpoint, or name of code, that its store lacks in part; empty:
    another reason.
    """

    detail: str
    lost: str = ""


@dataclass
class PendingStart:
    """A start that was stored, and whose supervisor does not run yet."""

    command: StartCommand
    #: Boot time of the lease's end; renewed with the other leases.
    lease_until: float
    #: True: the supervisor may exist already, so the start can no longer be withdrawn.
    is_launching: bool = False
    withdrawn: threading.Event = field(default_factory=threading.Event)
    task: "asyncio.Task[None] | None" = None


class AttemptStarts:
    """The starts in progress on a machine."""

    def __init__(self, machine: AgentMachine, client: ServerClient) -> None:
        self._machine = machine
        self._client = client
        self._cache = CodeCache(machine.state / "code", client)
        self.starter = SupervisorStarter(machine.systemd_run)
        self._pending: dict[AttemptKey, PendingStart] = {}

    @property
    def keys(self) -> list[AttemptKey]:
        return list(self._pending)

    @property
    def checkpoint_folders(self) -> list[str]:
        """Returns the checkpoint folders of the starting attempts."""
        return [localized(self._machine.state, each.command).checkpoint_dir for each in self._pending.values()]

    def begin(self, key: AttemptKey, command: StartCommand, lease_until: float) -> PendingStart:
        """Counts the attempt as present from now on; `launch` must follow."""
        start = self._pending[key] = PendingStart(command, lease_until)
        return start

    def renew(self, key: AttemptKey, until: float) -> None:
        if start := self._pending.get(key):
            start.lease_until = max(start.lease_until, until)

    def withdraw(self, key: AttemptKey) -> bool:
        """Withdraws a start. Returns False while its supervisor is starting: the request must then be sent to it."""
        start = self._pending.get(key)
        if start is None:
            return True
        if start.is_launching:
            return False
        del self._pending[key]
        start.withdrawn.set()
        if start.task is not None:
            start.task.cancel()
        return True

    async def launch(self, key: AttemptKey, free_port: Callable[[], None]) -> AttemptPlan | StartFailure:
        """Returns the plan of the supervisor that now runs, or why none does.

        `free_port` is called once it runs, and holds the port itself. Cancelled by `withdraw`, it leaves no process.
        """
        start, folder = self._pending[key], self._machine.attempt_folder(*key)
        command = localized(self._machine.state, start.command, apart=self._machine.run_as is not None)
        try:
            if failure := await self._bring(start, command, folder):
                return failure
            if problem := start_refusal(self._machine, command, start.lease_until):
                return StartFailure(problem)
            if self._machine.run_as is not None:
                whole = self._machine.whole or self._machine.state
                await asyncio.to_thread(self._machine.run_as.hand_over, command, folder, whole)
            start.is_launching = True
            served_dir = start.command.checkpoint_dir if command.store else ""
            plan = make_attempt_plan(self._machine, command, start.lease_until, served_dir)
            write_needs(folder, start.command.needs.model_copy(update={"code": start.command.code}))
            problem = await self.starter.start(folder, plan)
            free_port()
            return StartFailure(problem) if problem else plan
        except (OSError, ValueError, UserError) as error:  # a full disk, a folder in the way, no more processes
            return StartFailure(f"cannot start: {error}")
        finally:
            if self._pending.get(key) is start:
                del self._pending[key]

    async def _bring(self, start: PendingStart, command: StartCommand, folder: Path) -> StartFailure | None:
        """Fills the attempt's work folder, and fetches its checkpoint. Returns why that failed, else None."""
        if not command.code:
            await asyncio.to_thread(make_attempt_folder, folder)
        else:
            await asyncio.to_thread(folder.mkdir, parents=True, mode=0o700)
            copy = partial(self._cache.copy, command.code, folder / "work", start.withdrawn)
            if failure := await self._keep_trying(start, copy, "code"):
                return failure
        return await self._keep_trying(start, partial(bring_checkpoint, command, self._client), "checkpoint")

    async def _keep_trying(
        self, start: PendingStart, bring: Callable[[], Coroutine[None, None, None]], what: str
    ) -> StartFailure | None:
        """Tries again where the server fails, as long as the lease continues."""
        failures = 0
        while True:
            try:
                await bring()
                return None
            except (ServerUnreachable, ClusterError, Forbidden) as error:
                failures += 1
                log.warning("job %d: its %s is not here yet: %s", start.command.job_id, what, error)
                if failures >= FETCH_TRIES or self._machine.clocks.boottime() >= start.lease_until:
                    return StartFailure(f"cannot start: the job's {what} did not come in {failures} tries: {error}")
            except (UserError, ValueError) as error:
                resume, lost = start.command.resume, ""
                if what == "code" and isinstance(error, NotFound):
                    lost = start.command.code
                elif what == "checkpoint" and resume is not None and isinstance(error, NotFound | DamagedContent):
                    lost = resume.digest
                return StartFailure(f"cannot start: the job's {what} cannot be had: {error}", lost)
            await asyncio.sleep(call_backoff_s(failures, self._machine.chance))
