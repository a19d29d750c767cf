"""Checkpoints on this machine, where a store keeps them: their folders, fetches before a start, and removal.

STATE/checkpoints/NAME stands for the folder that the server calls `checkpoint_dir`; the paths below it are the same.
The checkpoint from which to resume is fetched unless it is present and complete. Copies of jobs that now run elsewhere
are kept for their return, within bounds.

For a folder of an object store the server gives this machine short-lived credentials for one job's folder
(`walras.store_access`) where the cluster file says so; otherwise the machine's own environment counts. They are kept
only in memory. A transfer may take longer than they are valid: new ones are requested at half of their validity, and
while the old ones are valid, a server that does not answer stops nothing.
"""

import asyncio
import errno
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path, PurePosixPath

from walras.checkpoint_store import SERVER_STORE, CheckpointStore, is_object_store
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.content import ContentTree, DamagedContent, chunk_name
from walras.content_transfer import ContentTransfer
from walras.errors import ClusterError, Forbidden, ServerUnreachable, UserError
from walras.object_store import ObjectFolder, ObjectTransfer
from walras.store_access import StoreAccess, is_handed_out
from walras.training.checkpoint import TornCheckpoint, attempt_folder, step_folder, verify_checkpoint
from walras.wire import Manifest, StartCommand
from workers.agent.launch import MIN_FREE_BYTES
from workers.agent.server_client import ServerClient
from workers.devices import AttemptKey
from workers.supervisor_protocol import AttemptPlan

#: Largest number of jobs whose copies are kept, and the part of the disk that copies leave free.
JOBS_KEPT, FREE_PART = 20, 0.2
#: Factor on a checkpoint's size while it is fetched, when it is on the disk as chunks and as files.
_COPIES_AT_ONCE = 2
#: Suffix of a folder of copies beside the one to which ranks write.
_FETCHED = "-fetched"
_ATTEMPT = re.compile(r"attempt-\d{4,9}", re.ASCII)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)


def local_folder(state: Path, served_dir: str) -> Path:
    """Returns the folder on this machine that stands for a folder of the server's."""
    name = PurePosixPath(served_dir).name
    shown = f"{name}-" if _PLAIN_NAME.fullmatch(name) else ""
    return state / "checkpoints" / f"{shown}{chunk_name(served_dir.encode())[:12]}"


def localized(state: Path, command: StartCommand, *, apart: bool = False) -> StartCommand:
    """Returns the command with the paths of this machine; unchanged where all machines share a folder.

    `apart`: ranks have their own account, so that nothing is fetched into folders to which they can write.
    """
    if not command.store:
        return command
    local, resume = local_folder(state, command.checkpoint_dir), command.resume
    if resume is not None and resume.content:
        attempt = PurePosixPath(resume.path).parent.name
        copies = local.with_name(f"{local.name}{_FETCHED}") if apart else local
        folder = copies / attempt if _ATTEMPT.fullmatch(attempt) else attempt_folder(copies, 0)
        resume = resume.model_copy(update={"path": str(step_folder(folder, int(resume.step)))})
    return command.model_copy(update={"checkpoint_dir": str(local), "resume": resume})


@asynccontextmanager
async def opened_store(store: str, client: ServerClient, key: AttemptKey) -> AsyncIterator[CheckpointStore]:
    """Opens a connection to a store, by its setting, for an attempt.

    Raises ConfigError where this machine has no access to it, and what `HandedPlace.folder` raises.
    """
    if store == SERVER_STORE:
        async with client.transport() as transport:
            yield ContentTransfer(transport)
        return
    if not is_object_store(store):
        raise UserError(f"this release knows no store {store[:80]!r}")
    place = HandedPlace(client, key, store)
    async with ObjectTransfer(await place.folder(), renewed=place.folder) as transfer:
        yield transfer


async def bring_checkpoint(command: StartCommand, client: ServerClient) -> None:
    """Fetches the checkpoint from which a localized command resumes, unless it is present and complete.

    Raises NotFound or DamagedContent where its store lacks it, OSError for a full disk, and what calls raise.
    """
    resume = command.resume
    if not command.store or resume is None or not resume.content:
        return
    folder, root = Path(resume.path), Path(command.checkpoint_dir)
    for copies in {root, folder.parent.parent}:
        await asyncio.to_thread(_remove_other_attempts, copies, folder.parent)
    if await asyncio.to_thread(_is_whole, folder, resume.digest):
        return
    await asyncio.to_thread(_clear, folder)
    key = (command.job_id, command.attempt, command.incarnation)
    async with opened_store(resume.store or SERVER_STORE, client, key) as store:
        await store.fetch(resume.content, folder, partial(_check_room, root))
    try:
        await asyncio.to_thread(verify_checkpoint, folder, resume.digest)
    except TornCheckpoint as error:
        await asyncio.to_thread(_clear, folder)
        raise DamagedContent(f"the store's checkpoint is torn: {error}") from None


def _is_whole(folder: Path, digest: str) -> bool:
    try:
        verify_checkpoint(folder, digest)
    except TornCheckpoint:
        return False
    return True


def _clear(folder: Path) -> None:
    for place in (folder.parent, folder):  # ranks can write there, and must not redirect us through a link
        if place.is_symlink():
            place.unlink()
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _remove_other_attempts(root: Path, kept: Path) -> None:
    """Removes the files of other attempts: a job resumes only from its recorded checkpoint."""
    with suppress(OSError):
        for path in root.iterdir():
            if path != kept and _ATTEMPT.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


def _check_room(folder: Path, tree: ContentTree) -> None:
    """Raises an error before a checkpoint fills the disk that other attempts need."""
    if shutil.disk_usage(folder).free - _COPIES_AT_ONCE * tree.size < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"disk full: no room for a checkpoint of {tree.size:,} bytes")


def remove_old_copies(state: Path, in_use: Iterable[str]) -> None:
    """Removes copies of jobs that are not here, the least recently used first, beyond the bounds.

    `in_use`: the folders of attempts that are here.
    """
    kept = {Path(folder).name + ending for folder in in_use for ending in ("", _FETCHED)}
    with suppress(OSError):  # one of them is gone already
        idle = [path for path in (state / "checkpoints").iterdir() if path.name not in kept]
        newest_first = sorted(idle, key=lambda path: path.lstat().st_mtime, reverse=True)
        for position, path in reversed(list(enumerate(newest_first))):
            disk = shutil.disk_usage(state)
            if position >= JOBS_KEPT or disk.free < max(FREE_PART * disk.total, MIN_FREE_BYTES):
                shutil.rmtree(path, ignore_errors=True)


def served_manifest(manifest: Manifest, plan: AttemptPlan, content: str) -> Manifest:
    """Returns a commit of this machine as the server knows it: inside its folder, and with the store's name."""
    inner = os.path.relpath(manifest.path, plan.checkpoint_dir)
    store = "" if plan.store == SERVER_STORE else plan.store
    told = {"path": os.path.join(plan.served_dir, inner), "content": content, "store": store}
    return manifest.model_copy(update=told)


# ------------------------------------------------------------------------------------------ handed access


log = logging.getLogger(__name__)

#: Parts of the validity of credentials: new ones are requested from the first on, and old ones used until the second.
_RENEW_PART, _USED_PART = 0.5, 0.9


class HandedPlace:
    """One attempt's folder, for one transfer."""

    def __init__(self, client: ServerClient, key: AttemptKey, place: str, clocks: Clocks = SYSTEM_CLOCKS) -> None:
        self._client = client
        self._key = key
        self._place = place
        self._clocks = clocks
        self._folder: ObjectFolder | None = None
        self._renew_at = self._used_until = -inf
        self._lock = asyncio.Lock()

    async def folder(self) -> ObjectFolder:
        """Returns the folder, opened with credentials that are valid for a while.

        Raises StoreFailure where the server gets no credentials, ServerUnreachable, ServerRefusal, and ConfigError
        where this machine lacks the library.
        """
        async with self._lock:
            now = self._clocks.boottime()
            if self._folder is None or now >= self._renew_at:
                try:
                    await self._open(now)
                except (ClusterError, Forbidden, ServerUnreachable) as error:
                    if self._folder is None or now >= self._used_until:
                        raise
                    log.warning("job %d: its access to %s is not renewed yet: %s", self._key[0], self._place, error)
            assert self._folder is not None
            return self._folder

    async def _open(self, asked_at: float) -> None:
        access = await access_to(self._client, self._place, self._key)
        self._folder = await asyncio.to_thread(ObjectFolder, self._place, access)
        lasts_s = inf if access is None else access.lasts_s
        self._renew_at, self._used_until = asked_at + _RENEW_PART * lasts_s, asked_at + _USED_PART * lasts_s


async def access_to(client: ServerClient, place: str, key: AttemptKey | None = None) -> StoreAccess | None:
    """Returns the credentials of a folder; None: the machine's own. Raises as `ServerClient.store_access`."""
    return await client.store_access(place, key) if is_handed_out(place) else None
