"""Checkpoints to and from a store: what is reported, where a copy is found, and who opens the place."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from fsspec.implementations.memory import MemoryFileSystem

from tests.support.agent_commands import LOOP, a_start
from tests.support.memory_objects import memory_objects
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.errors import ClusterError, Forbidden, ServerUnreachable
from walras.storage.checkpoint_store import StoreAccess
from walras.storage.content import ContentTree
from walras.storage.object_store import StoreFailure
from walras.storage.store_proof import StoreChallenge
from walras.training.checkpoint import commit_checkpoint, partial_folder, step_folder
from walras.wire import CommittedReport, Manifest, StartCommand
from workers.agent import checkpoints
from workers.agent.agent import StoreProving
from workers.agent.checkpoints import (
    CheckpointUploads,
    HandedPlace,
    access_to,
    bring_checkpoint,
    local_folder,
    localized,
)
from workers.agent.server_client import ServerClient
from workers.devices import AttemptKey
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
            1, 1, [], {}, "", [0], 0, 0, 1, 0, 30.0, 1e9, 5.0, str(root), "c", "r", "a", 1, store="server",
            served_dir="/srv/jobs/1",
        )  # fmt: skip

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

    async def under_way(self) -> None:
        """The upload of step 1 has begun, and goes on until the store opens."""
        self.store.opens.clear()
        self.commit(1)
        await self.until_begun()

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
        await job.under_way()
        job.commit(2)
        job.commit(3)
        job.store.opens.set()
        await job.uploads.finish()
        assert job.steps == [1, 3]


async def test_at_the_end_the_newest_does_not_wait_for_the_upload_under_way(tmp_path: Path) -> None:
    async with attempt(tmp_path) as job:
        await job.under_way()
        job.uploads.hurry()
        job.commit(2)
        await job.until_begun()
        job.store.opens.set()
        await job.uploads.finish()
        assert job.steps == [2]


async def test_a_hint_lets_one_commit_overtake_and_no_more(tmp_path: Path) -> None:
    """The machine may stay for hours: a job that saves more often than it uploads still gets its checkpoints there."""
    async with attempt(tmp_path) as job:
        await job.under_way()
        job.uploads.hurry_once()
        job.commit(2)
        await job.until_begun()
        job.commit(3)
        job.store.opens.set()
        await job.uploads.finish()
        assert job.steps == [2, 3]


async def test_a_failed_upload_is_tried_again(tmp_path: Path) -> None:
    async with attempt(tmp_path) as job:
        job.store.failures = [ClusterError("full"), ClusterError("full")]
        job.commit(1)
        await job.uploads.finish()
        assert (job.steps, job.store.begun.qsize()) == ([1], 3)


@pytest.mark.parametrize("lies", [False, True])
async def test_a_store_that_takes_nothing_is_given_up_and_the_job_is_told(tmp_path: Path, lies: bool) -> None:
    """One that names it otherwise has not got it either."""
    async with attempt(tmp_path, patience_s=0.3) as job:
        job.store.lies, job.store.failures = lies, [] if lies else [ClusterError("full")] * 100
        job.commit(7)
        await job.uploads.finish()
        assert job.reported == []
        assert job.told == ["checkpoint at step 7 does not count: its store did not take it"]


@pytest.mark.parametrize("later", [False, True])
async def test_nothing_is_reported_of_an_attempt_that_is_fenced(tmp_path: Path, later: bool) -> None:
    """Neither the upload that was under way, nor what its ranks commit after."""
    async with attempt(tmp_path) as job:
        await job.under_way()
        job.uploads.abandon()
        if later:
            job.commit(2)
        job.store.opens.set()
        await job.uploads.finish()
        assert job.reported == []


async def test_a_torn_commit_is_told_and_holds_up_nothing(tmp_path: Path) -> None:
    """A rank that damages its own checkpoint, or puts something else in its place."""
    async with attempt(tmp_path) as job:
        await job.under_way()
        job.commit(2)
        step_folder(tmp_path / "attempt-0001", 2).joinpath("manifest.json").write_text("{}")
        job.store.opens.set()
        await job.uploads.finish()
        job.commit(3)
        await job.uploads.finish()
        assert job.steps == [1, 3]
        assert "step 2 does not count" in job.told[0]


SERVED = "/srv/walras/jobs/1"


class OneCheckpoint:
    """A store that gives a copy of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[str] = []

    @asynccontextmanager
    async def open(self, store: str, *_: object) -> AsyncIterator["OneCheckpoint"]:
        self.opened.append(store)
        yield self

    async def fetch(self, name: str, folder: Path, check: object = None) -> ContentTree:
        shutil.copytree(self.folder, folder)
        return ContentTree()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OneCheckpoint:
    found = OneCheckpoint(tmp_path / "made")
    monkeypatch.setattr(checkpoints, "opened_store", found.open)
    return found


def a_resuming_start(tmp_path: Path, source: OneCheckpoint, **resume: Any) -> StartCommand:
    part = partial_folder(tmp_path / "attempt", 5)
    part.mkdir(parents=True)
    (part / "model.json").write_text("5")
    made = commit_checkpoint(part, step_folder(tmp_path / "attempt", 5), 5)
    source.folder = Path(made.path)
    told = {"step": 5, "path": f"{SERVED}/attempt-0001/step-5", "digest": made.digest, "content": "0" * 64, **resume}
    command = a_start(tmp_path, LOOP, attempt=2, store="s3://bucket/new/jobs/1", checkpoint_dir=SERVED, resume=told)
    return localized(tmp_path / "state", command)


@pytest.mark.parametrize(("kept_in", "opened"), [("", "server"), ("s3://bucket/old/jobs/1", "s3://bucket/old/jobs/1")])
async def test_the_store_that_has_it_is_asked_whatever_the_job_saves_to_now(
    tmp_path: Path, store: OneCheckpoint, kept_in: str, opened: str
) -> None:
    command = a_resuming_start(tmp_path, store, store=kept_in)
    await bring_checkpoint(command, None)  # type: ignore[arg-type]
    assert store.opened == [opened]
    assert (Path(command.resume.path) / "model.json").read_text() == "5"
    await bring_checkpoint(command, None)  # type: ignore[arg-type]
    assert len(store.opened) == 1, "it is here already"


@pytest.mark.parametrize("planted", ["attempt", "step"])
async def test_links_that_ranks_left_are_not_followed(tmp_path: Path, store: OneCheckpoint, planted: str) -> None:
    command = a_resuming_start(tmp_path, store)
    place = Path(command.resume.path)
    (tmp_path / "victim").mkdir()
    local_folder(tmp_path / "state", SERVED).mkdir(parents=True)
    if planted == "step":
        place.parent.mkdir()
    (place.parent if planted == "attempt" else place).symlink_to(tmp_path / "victim")
    await bring_checkpoint(command, None)  # type: ignore[arg-type]
    assert not list((tmp_path / "victim").iterdir())
    assert (place / "model.json").read_text() == "5"


__all__ = ["memory_objects"]

_CODES = {403: "forbidden", 404: "not_found"}
PLACE, KEY = "s3://bucket/run/jobs/1", AttemptKey(1, 2, "i1")


class Desk:
    """A server's side of it, and an agent's client in front."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | int = {}
        self.at = 100.0

    async def _open(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if isinstance(self.answer, int):
            problem = {"title": "", "status": self.answer, "code": _CODES.get(self.answer, ""), "detail": "no"}
            return web.json_response(problem, status=self.answer)
        return web.json_response(self.answer)

    async def __aenter__(self) -> "Desk":
        app = web.Application()
        app.router.add_post("/agent/v1/store-access", self._open)
        self._server = TestServer(app)
        await self._server.start_server()
        self._session = ClientSession()
        self.client = ServerClient(self._session, str(self._server.make_url("")))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._server.close()

    def place(self) -> HandedPlace:
        return HandedPlace(self.client, KEY, PLACE, Clocks(boottime=lambda: self.at))

    def gives(self, number: int, lasts_s: float = 3600.0) -> None:
        self.answer = StoreAccess(key=f"K{number}", secret="s", token="t", lasts_s=lasts_s).model_dump()


@pytest.fixture
async def desk(objects: MemoryFileSystem) -> AsyncIterator[Desk]:
    async with Desk() as found:
        yield found


async def test_a_place_is_opened_anew_half_way_through_the_time_of_what_opened_it(desk: Desk) -> None:
    desk.gives(1)
    place = desk.place()
    first = await place.folder()
    assert desk.asked == [{"place": PLACE, "job_id": 1, "attempt": 2}]
    desk.at += 1790.0
    assert await place.folder() is first
    desk.at += 20.0
    both = await asyncio.gather(place.folder(), place.folder())
    assert both[0] is both[1] is not first
    assert len(desk.asked) == 2


async def test_a_server_that_gives_nothing_stops_nothing_while_the_old_holds(desk: Desk) -> None:
    desk.gives(1)
    place = desk.place()
    first = await place.folder()
    desk.at += 2000.0
    desk.answer = {"problem": "STS is down"}
    assert await place.folder() is first
    desk.answer = 503
    assert await place.folder() is first
    desk.at += 1300.0
    with pytest.raises(ServerUnreachable):
        await place.folder()
    desk.answer = {"problem": "STS is down"}
    with pytest.raises(StoreFailure, match="STS is down") as told:
        await place.folder()
    assert not isinstance(told.value, ServerUnreachable), "an attempt that has ended is not held for that"


@pytest.mark.parametrize("answer", [{}, 404])
async def test_a_server_that_hands_out_nothing_leaves_machines_to_their_own(desk: Desk, answer: Any) -> None:
    """Also one of the release before, which does not know the question. It is asked once for a transfer."""
    desk.answer = answer
    place = desk.place()
    first = await place.folder()
    desk.at += 1e6
    assert await place.folder() is first
    assert len(desk.asked) == 1
    assert await access_to(desk.client, "gs://bucket/run") is None
    assert len(desk.asked) == 1, "other kinds of stores have no such credentials"


async def test_what_does_not_parse_is_not_quoted(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    desk.answer = {"key": "K", "secret": "very-secret" * 100, "lasts_s": "long"}
    with pytest.raises(ServerUnreachable) as told:
        await desk.place().folder()
    assert "very-secret" not in str(told.value)
    assert "very-secret" not in caplog.text


async def test_a_machine_that_the_server_opens_nothing_for_says_so(desk: Desk) -> None:
    challenge = StoreChallenge(place="s3://bucket/run/proofs/c1", nonce="0" * 32)
    proving = StoreProving(desk.client, "n1", Clocks())
    desk.answer = {"problem": "AccessDenied"}
    proving.take(challenge)
    assert proving._task is not None
    await proving._task
    assert "AccessDenied" in proving.proof.problem
    assert desk.asked == [{"place": challenge.place, "job_id": 0, "attempt": 0}]
    desk.answer = 403
    with pytest.raises(Forbidden):
        await access_to(desk.client, challenge.place)
