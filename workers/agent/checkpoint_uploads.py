"""Uploads of an attempt's committed checkpoints to the store, concurrent with its training.

The newest commit counts: one that waits while another is sent is replaced by a newer one. Once the attempt is to end,
the newest does not even wait for the upload in progress. A commit is reported only once the store has it. Chunks that
the store has already are not sent again, so an interrupted transfer continues.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random

from walras.checkpoint_store import CheckpointStore
from walras.clocks import Clocks
from walras.content import ContentTree, DamagedContent, hash_folder
from walras.errors import ClusterError, Conflict, Forbidden, ServerUnreachable, UserError
from walras.training.checkpoint import MANIFEST, TornCheckpoint, read_manifest
from walras.wire import CommittedReport
from workers.accounts import files_as
from workers.agent.checkpoint_places import served_manifest
from workers.agent.server_client import call_backoff_s
from workers.supervisor_protocol import AttemptPlan

log = logging.getLogger(__name__)

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
        self._is_hurried = self._is_abandoned = False
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
        if self._is_hurried and self._sending is not None:
            self._sending.cancel()

    def hurry(self) -> None:
        """Lets a newer commit replace the upload in progress from now on, because the attempt is to end."""
        self._is_hurried = True

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
        """Resets the timeout while the store accepts data, however long that takes."""
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
