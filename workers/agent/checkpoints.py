"""Checkpoints on this machine, where a store keeps them: their folders, fetches, uploads and removal.

STATE/checkpoints/NAME stands for the folder that the server calls `checkpoint_dir`; the paths below it are the same.
The checkpoint from which to resume is fetched before a start unless it is present and complete. Copies of jobs that now
run elsewhere are kept for their return, within bounds.

For a folder of an object store the server gives this machine short-lived credentials for one job's folder
(`walras.storage.checkpoint_store`) where the cluster file says so; otherwise the machine's own environment counts. They
are kept only in memory. A transfer may take longer than they are valid: new ones are requested at half of their
validity, and while the old ones are valid, a server that does not answer stops nothing.

Committed checkpoints are uploaded while their attempt trains. The newest commit counts: one that waits while another is
sent is replaced by a newer one. Once the attempt is to end, the newest does not even wait for the upload in progress;
after a hint that it may end, one does not. A commit is reported only once the store has it. Chunks that the store has
already are not sent again, so an interrupted transfer continues.
"""

import asyncio
import errno
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path, PurePosixPath
from random import Random

from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ClusterError, Conflict, Forbidden, ServerUnreachable, UserError
from walras.storage.checkpoint_store import SERVER_STORE, CheckpointStore, StoreAccess, is_handed_out, is_object_store
from walras.storage.content import ContentTree, DamagedContent, chunk_name, hash_folder
from walras.storage.content_transfer import ContentTransfer
from walras.storage.object_store import ObjectFolder, ObjectTransfer
from walras.training.checkpoint import (
    MANIFEST,
    TornCheckpoint,
    attempt_folder,
    read_manifest,
    step_folder,
    verify_checkpoint,
)
from walras.wire import CommittedReport, Manifest, StartCommand
from workers.accounts import files_as
from workers.agent.launch import MIN_FREE_BYTES
from workers.agent.server_client import ServerClient, call_backoff_s
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
            yield ContentTransfer(transport, job_id=key.job_id)
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
    with suppress(TornCheckpoint):
        await asyncio.to_thread(verify_checkpoint, folder, resume.digest)
        return
    await asyncio.to_thread(_clear, folder)
    async with opened_store(resume.store or SERVER_STORE, client, AttemptKey.of(command)) as store:
        await store.fetch(resume.content, folder, partial(_check_room, root))
    try:
        await asyncio.to_thread(verify_checkpoint, folder, resume.digest)
    except TornCheckpoint as error:
        await asyncio.to_thread(_clear, folder)
        raise DamagedContent(f"the store's checkpoint is torn: {error}") from None


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
                    log.warning("job %d: its access to %s is not renewed yet: %s", self._key.job_id, self._place, error)
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


#: Seconds for which the accelerators are held after the ranks ended, while the store accepts nothing.
PATIENCE_S = 600.0


class CheckpointUploads:
    """The uploads of one attempt. Run `run` beside the attempt, and `finish` once its ranks have ended."""

    def __init__(
        self,
        plan: AttemptPlan,
        opened: Callable[[], AbstractAsyncContextManager[CheckpointStore]],
        clocks: Clocks,
        chance: Random | None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`opened`: opens a connection to the store."""
        self._plan = plan
        self._opened = opened
        self._clocks = clocks
        self._chance = chance
        self._patience_s = patience_s
        #: The newest commit that the store lacks, when it was made (boot time), and the newest step seen before.
        self._wanted: tuple[CommittedReport, float] | None = None
        self._newest_step = -1.0
        self._is_wanted, self._is_idle = asyncio.Event(), asyncio.Event()
        self._is_idle.set()
        self._sending: asyncio.Task[None] | None = None
        self._is_hurried_once = self._is_hurried = self._is_abandoned = False
        #: When the store last accepted data (boot time).
        self._heard_at = clocks.boottime()
        #: Called for each commit: reports it once the store has it, or tells the job why it does not count.
        self.report: Callable[[CommittedReport], None] = lambda _: None
        self.tell_job: Callable[[str], None] = lambda _: None

    def put(self, commit: CommittedReport, made_at: float) -> None:
        """Sends this commit unless one of a later step was seen. `made_at`: boot time."""
        if commit.manifest.step <= self._newest_step or self._is_abandoned:
            return
        self._newest_step = commit.manifest.step
        self._wanted = commit, made_at
        self._is_idle.clear()
        self._is_wanted.set()
        if (self._is_hurried or self._is_hurried_once) and self._sending is not None:
            self._sending.cancel()
        self._is_hurried_once = False

    def hurry(self) -> None:
        """Lets a newer commit replace the upload in progress from now on, because the attempt is to end."""
        self._is_hurried = True

    def hurry_once(self) -> None:
        """Lets the next commit replace the upload in progress, because the attempt may have to end."""
        self._is_hurried_once = True

    def abandon(self) -> None:
        """Stops uploading: the attempt's fence is old, so its commits no longer count."""
        self._is_abandoned = True
        self._drop()

    def _drop(self) -> None:
        self._wanted = None
        self._is_wanted.clear()
        self._is_idle.set()
        if self._sending is not None:
            self._sending.cancel()

    async def finish(self) -> None:
        """Waits until the newest commit is in the store or abandoned, or the store accepts nothing for too long."""
        self.hurry()
        self._heard_at = self._clocks.boottime()
        while not self._is_idle.is_set():
            left_s = self._heard_at + self._patience_s - self._clocks.boottime()
            if left_s <= 0 and self._wanted is not None:
                step = self._wanted[0].manifest.step
                self.tell_job(f"checkpoint at step {step:g} does not count: its store did not take it")
                self._drop()
                return
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._is_idle.wait()
            except TimeoutError:
                continue

    async def run(self) -> None:
        """Sends commits until cancelled."""
        failures = 0
        while True:
            await self._is_wanted.wait()
            assert self._wanted is not None
            commit, made_at = self._wanted
            self._sending = asyncio.ensure_future(self._send_once(commit, made_at))
            try:
                await asyncio.wait({self._sending})
            finally:
                self._sending.cancel()
            done, self._sending = self._sending, None
            is_newest = self._wanted is not None and self._wanted[0] is commit
            if done.cancelled():
                continue
            error = done.exception()
            if error is None or not _may_help_to_try_again(error):
                failures = 0
                if error is not None:
                    self.tell_job(f"checkpoint at step {commit.manifest.step:g} does not count: {error}"[:500])
                if is_newest:
                    self._drop()
                continue
            failures += 1
            log.warning("job %d: its checkpoint is not in the store yet: %s", self._plan.job_id, error)
            if isinstance(error, ServerUnreachable):
                self._heard_at = self._clocks.boottime()  # the end of the attempt could not have been reported either
            await asyncio.sleep(call_backoff_s(failures, self._chance))

    async def _send_once(self, commit: CommittedReport, made_at: float) -> None:
        folder, began = Path(commit.manifest.path), self._clocks.monotonic()
        tree = await asyncio.to_thread(_described, folder, self._plan)
        async with self._opened() as store:
            watch = asyncio.create_task(self._watch(store))
            try:
                name = await store.send(folder, tree)
            finally:
                watch.cancel()
        if name != tree.name:
            raise ClusterError(f"the store calls it {name[:12]!r} and not {tree.name[:12]}")
        took_s = self._clocks.monotonic() - began
        lag_s = max(0.0, self._clocks.boottime() - made_at)
        log.info(
            "job %d: checkpoint at step %g is in the store: %d of %d bytes sent in %.1f s, %.1f s after its commit",
            self._plan.job_id, commit.manifest.step, store.sent_bytes, tree.size, took_s, lag_s,
        )  # fmt: skip
        if self._is_abandoned:
            return
        manifest = served_manifest(commit.manifest, self._plan, name)
        self.report(commit.model_copy(update={"manifest": manifest, "upload_s": took_s, "lag_s": lag_s}))

    async def _watch(self, store: CheckpointStore) -> None:
        """Postpones the timeout whenever more bytes were sent, so that a slow upload is not taken for a hung one."""
        seen = 0
        while True:
            await asyncio.sleep(1.0)
            if store.sent_bytes > seen:
                seen, self._heard_at = store.sent_bytes, self._clocks.boottime()


def _described(folder: Path, plan: AttemptPlan) -> ContentTree:
    """Returns the files that a checkpoint lists, and its list, as far as its ranks can read them.

    Later uploads are checked against this. Raises TornCheckpoint, OSError or UserError.
    """
    with files_as(plan.uid, plan.gid):
        files, _, _ = read_manifest(folder)
        return hash_folder(folder, [MANIFEST, *(str(file["name"]) for file in files)])


def _may_help_to_try_again(error: BaseException) -> bool:
    """Returns whether the store is at fault, and not the checkpoint."""
    if isinstance(error, TornCheckpoint | DamagedContent | FileNotFoundError):
        return False
    if isinstance(error, UserError):
        return isinstance(error, Conflict | Forbidden)  # chunks swept meanwhile, a credential that is being renewed
    return isinstance(error, ClusterError | OSError)
