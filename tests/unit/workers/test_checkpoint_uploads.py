"""What an attempt commits reaches its store, the newest first, and is reported once it is there and not before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from walras.clocks import SYSTEM_CLOCKS
from walras.content import ContentTree
from walras.errors import ClusterError
from walras.training.checkpoint import commit_checkpoint, partial_folder, step_folder
from walras.wire import CommittedReport, Manifest
from workers.agent.checkpoint_uploads import CheckpointUploads
from workers.supervisor_protocol import AttemptPlan


class Store:
    """Takes a tree once `opens` is set; fails as long as there are failures."""

    def __init__(self) -> None:
        self.opens = asyncio.Event()
        self.opens.set()
        self.failures: list[Exception] = []
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.lies = False
        self.sent_bytes = self.fetched_bytes = 0

    async def send(self, folder: Path, tree: ContentTree) -> str:
        self.begun.put_nowait(folder.name)
        await self.opens.wait()
        if self.failures:
            raise self.failures.pop()
        return "0" * 64 if self.lies else tree.name

    async def fetch(self, name: str, folder: Path, check: object = None) -> ContentTree:
        raise NotImplementedError


class Attempt:
    """An attempt that commits below a folder, with its uploads running."""

    def __init__(self, root: Path, store: Store, patience_s: float) -> None:
        self.root, self.store = root, store
        self.reported: list[CommittedReport] = []
        self.told: list[str] = []
        plan = AttemptPlan(
            1,
            1,
            [],
            {},
            "",
            [0],
            0,
            0,
            1,
            0,
            30.0,
            1e9,
            5.0,
            str(root),
            "c",
            "r",
            "a",
            1,
            store="server",
            served_dir="/srv/jobs/1",
        )

        @asynccontextmanager
        async def opened() -> AsyncIterator[Store]:
            yield store

        self.uploads = CheckpointUploads(plan, opened, SYSTEM_CLOCKS, None, patience_s)
        self.uploads.report, self.uploads.tell_job = self.reported.append, self.told.append

    def commit(self, step: int) -> None:
        attempt = self.root / "attempt-0001"
        partial_folder(attempt, step).mkdir(parents=True)
        (partial_folder(attempt, step) / "model.json").write_text(str(step))
        reference = commit_checkpoint(partial_folder(attempt, step), step_folder(attempt, step), step)
        manifest = Manifest(step=step, path=reference.path, digest=reference.digest)
        report = CommittedReport(report_id=1, job_id=1, attempt=1, manifest=manifest)
        self.uploads.put(report, SYSTEM_CLOCKS.boottime())

    @property
    def steps(self) -> list[float]:
        return [report.manifest.step for report in self.reported]

    async def until_begun(self) -> None:
        """Until an upload has begun that nobody waited for yet."""
        async with asyncio.timeout(5):
            await self.store.begun.get()


@asynccontextmanager
async def attempt(root: Path, patience_s: float = 60.0) -> AsyncIterator[Attempt]:
    found = Attempt(root, Store(), patience_s)
    running = asyncio.create_task(found.uploads.run())
    try:
        yield found
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_commit_is_reported_as_the_server_knows_it_once_the_store_has_it(tmp_path: Path) -> None:
    async with attempt(tmp_path) as job:
        job.store.opens.clear()
        job.commit(10)
        await job.until_begun()
        assert job.reported == []
        job.store.opens.set()
        await job.uploads.finish()
        (report,) = job.reported
        assert report.manifest.path == "/srv/jobs/1/attempt-0001/step-0000000010"
        assert len(report.manifest.content) == 64
        assert 0 < report.upload_s <= report.lag_s


async def test_what_waited_behind_an_upload_gives_way_to_the_newest(tmp_path: Path) -> None:
    """While it trains the upload under way is finished, or a job that saves often would never get one there."""
    async with attempt(tmp_path) as job:
        job.store.opens.clear()
        job.commit(1)
        await job.until_begun()
        job.commit(2)
        job.commit(3)
        job.store.opens.set()
        await job.uploads.finish()
        assert job.steps == [1, 3]


async def test_at_the_end_the_newest_does_not_wait_for_the_upload_under_way(tmp_path: Path) -> None:
    async with attempt(tmp_path) as job:
        job.store.opens.clear()
        job.commit(1)
        await job.until_begun()
        job.uploads.hurry()
        job.commit(2)
        await job.until_begun()
        job.store.opens.set()
        await job.uploads.finish()
        assert job.steps == [2]


async def test_a_failed_upload_is_tried_again(tmp_path: Path) -> None:
    async with attempt(tmp_path) as job:
        job.store.failures = [ClusterError("full"), ClusterError("full")]
        job.commit(1)
        await job.uploads.finish()
        assert (job.steps, job.store.begun.qsize()) == ([1], 3)


async def test_a_store_that_takes_nothing_is_given_up_and_the_job_is_told(tmp_path: Path) -> None:
    async with attempt(tmp_path, patience_s=0.3) as job:
        job.store.failures = [ClusterError("full")] * 100
        job.commit(7)
        await job.uploads.finish()
        assert job.reported == []
        assert job.told == ["checkpoint at step 7 does not count: its store did not take it"]


async def test_a_store_that_names_it_otherwise_has_not_got_it(tmp_path: Path) -> None:
    async with attempt(tmp_path, patience_s=0.2) as job:
        job.store.lies = True
        job.commit(7)
        await job.uploads.finish()
        assert job.reported == []


@pytest.mark.parametrize("later", [False, True])
async def test_nothing_is_reported_of_an_attempt_that_is_fenced(tmp_path: Path, later: bool) -> None:
    """Neither the upload that was under way, nor what its ranks commit after."""
    async with attempt(tmp_path) as job:
        job.store.opens.clear()
        job.commit(1)
        await job.until_begun()
        job.uploads.abandon()
        if later:
            job.commit(2)
        job.store.opens.set()
        await job.uploads.finish()
        assert job.reported == []


async def test_a_torn_commit_is_told_and_holds_up_nothing(tmp_path: Path) -> None:
    """A rank that damages its own checkpoint, or puts something else in its place."""
    async with attempt(tmp_path) as job:
        job.store.opens.clear()
        job.commit(1)
        await job.until_begun()
        job.commit(2)
        step_folder(tmp_path / "attempt-0001", 2).joinpath("manifest.json").write_text("{}")
        job.store.opens.set()
        await job.uploads.finish()
        job.commit(3)
        await job.uploads.finish()
        assert job.steps == [1, 3]
        assert "step 2 does not count" in job.told[0]
