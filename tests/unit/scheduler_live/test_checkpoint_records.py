"""Which checkpoint a job goes on from when some are lost, and which content the server keeps for that."""

import asyncio
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from scheduler.core.events import JobCancelled, JobReleased
from scheduler.live.services import content_sweep
from scheduler.live.services.content_sweep import (
    SUPERSEDED_KEPT_S,
    drop_expired_objects,
    drop_superseded,
    drop_superseded_objects,
    take_up_superseded,
)
from scheduler.live.store.content_store import ContentStore
from scheduler.live.store.store_interface import StoreUnavailable
from tests.support.http_face import facing
from tests.support.live_world import FakeAgent, World, world
from tests.support.memory_objects import memory_objects, names_below
from tests.support.waiting import until
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.states import Reason
from walras.storage.content import content_of, hash_folder, read_chunks
from walras.storage.object_store import ObjectFolder, ObjectTransfer

pytestmark = pytest.mark.sql

__all__ = ["memory_objects"]

A = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB"}


def a_commit(agent: FakeAgent, job_id: int, attempt: int, step: float, content: str = "") -> dict[str, Any]:
    report = agent.committed(job_id, attempt, step)
    digest = f"{int(step):064x}"
    return report | {"manifest": {**report["manifest"], "digest": digest, "content": content or digest}}


async def a_running_job(w: World) -> tuple[FakeAgent, JobId]:
    agent, job_id = await w.running({"resources": {"accelerators": "a:2"}})
    return agent, job_id


async def restarted(w: World, agent: FakeAgent) -> Any:
    """The start command of the next attempt."""
    await w.advance(40.0)
    (start,) = await agent.start_all()
    return start


async def test_a_start_names_the_store_and_the_content_of_the_newest_checkpoint(w: World) -> None:
    """Uploads end in any order, and a report is repeated: the newest step stays, and the one before it too."""
    agent, job_id = await a_running_job(w)
    assert agent.here[job_id, 1].store == "server"
    for step in (20.0, 30.0, 10.0, 30.0, 20.0):
        await agent.beat(a_commit(agent, job_id, 1, step) | {"upload_s": 2.0, "lag_s": 3.0})
    job = w.live_state.jobs[job_id]
    assert (job.checkpoint.step, job.earlier_checkpoint.step) == (30.0, 20.0)
    await agent.end(job_id, exit_code=85)
    start = await restarted(w, agent)
    assert (start.resume.step, start.resume.content) == (30.0, f"{30:064x}")
    row = w.server.store.checkpoint(job_id)
    assert (row.upload_s, row.lag_s) == (2.0, 3.0)


async def test_a_moved_data_folder_takes_the_checkpoints_of_what_runs(w: World) -> None:
    """An attempt names the folder of its start: that of another server or disk, where its store is the same."""
    agent, job_id = await a_running_job(w)
    for step, folder in (
        (10.0, f"{agent.here[job_id, 1].checkpoint_dir}/attempt-0001"),
        (20.0, "/former/jobs/1/attempt-0001"),
    ):
        report = a_commit(agent, job_id, 1, step)
        report["manifest"]["path"] = f"{folder}/step-{int(step):010d}"
        await agent.beat(report)
    assert w.live_state.jobs[job_id].checkpoint.step == 20.0
    await agent.end(job_id, exit_code=85)
    start = await restarted(w, agent)
    assert (start.resume.step, start.resume.content) == (20.0, f"{20:064x}")


async def test_a_torn_checkpoint_costs_no_retry_and_the_one_before_takes_its_place(w: World) -> None:
    """Each loss uses up one; a script that goes on saying so without any fails by its own exit code."""
    agent, job_id = await a_running_job(w)
    await agent.beat(*(a_commit(agent, job_id, 1, step) for step in (10.0, 20.0, 30.0)))
    await agent.end(job_id, exit_code=85)
    resumed = []
    for attempt in (2, 3, 4):
        start = await restarted(w, agent)
        resumed.append(None if start.resume is None else start.resume.step)
        await agent.end(job_id, attempt, exit_code=86)
    assert resumed == [30.0, 20.0, None]
    row = w.server.store.job(job_id)
    assert (row.state.value, row.reason, row.restarts) == ("FAILED", Reason.USER_EXIT_CODE, 0)
    lost = [each.reason for each in w.server.store.attempts(job_id)[1:3]]
    assert lost == [Reason.INFRA_CHECKPOINT_LOST] * 2


async def test_a_checkpoint_that_the_attempt_saved_itself_is_not_lost_with_the_one_it_began_with(w: World) -> None:
    """Also where its begin was moved, for time that only the wall clock shows."""
    agent, job_id = await a_running_job(w)
    await agent.beat(a_commit(agent, job_id, 1, 10.0))
    w.live_state.jobs[job_id].attempt.row.leased_at += 1000.0  # type: ignore[union-attr]
    await agent.end(job_id, exit_code=86)
    assert w.server.store.checkpoint(job_id).step == 10.0  # type: ignore[union-attr]


async def test_a_checkpoint_that_its_store_lost_blames_no_machine(tmp_path: Path) -> None:
    """The machine says which one; what it says of another one changes nothing. A restarted server knows it too."""
    async with world(tmp_path) as w:
        agent, job_id = await a_running_job(w)
        await agent.beat(*(a_commit(agent, job_id, 1, step) for step in (10.0, 20.0)))
        await agent.end(job_id, exit_code=85)
        start = await restarted(w, agent)
        refused = {"type": "refused", "job_id": job_id, "attempt": 2, "detail": "gone"}
        agent.here.pop((job_id, 2))
        await agent.beat(refused | {"lost": start.resume.digest})
        row = w.server.store.job(job_id)
        assert row.reason is Reason.INFRA_CHECKPOINT_LOST
        start = await restarted(w, agent)
        assert start.resume.step == 10.0
        agent.here.pop((job_id, 3))
        await agent.beat(refused | {"attempt": 3, "lost": f"{20:064x}"})
        row = w.server.store.job(job_id)
        assert row.reason is Reason.INFRA_START_REFUSED
    async with world(tmp_path) as w:
        assert w.live_state.jobs[job_id].checkpoint.step == 10.0


async def test_a_job_whose_code_the_server_lacks_is_held_by_name_and_blames_no_machine(w: World) -> None:
    """As after a restore without content. Released while it still lacks it, it is held again."""
    agent, code = FakeAgent(w, "n1").names_itself(), "c" * 64
    job_id = await w.submit({"resources": {"accelerators": "a:2"}})
    w.live_state.jobs[job_id].launch = replace(w.live_state.jobs[job_id].launch, code=code)
    await agent.register()
    for number in (1, 2):
        await w.advance(1.0)
        await agent.beat()
        assert agent.here[job_id, number].code == code
        agent.here.pop((job_id, number))
        await agent.beat({"type": "refused", "job_id": job_id, "attempt": number, "detail": "gone", "lost": code})
        row = w.server.store.job(job_id)
        assert (row.state.value, row.reason) == ("HELD", Reason.HOLD_ADMIN)
        assert "code cccccccccccc is not with the server" in row.detail
        machine = w.server.core.ledger.fleet.machine(agent.node_id)
        assert machine is not None
        assert list(machine.failures) == []
        await w.emit(partial(JobReleased, job_id=job_id))


async def test_a_job_cancelled_before_its_code_was_missed_is_cancelled_and_not_held(w: World) -> None:
    agent, code = FakeAgent(w, "n1").names_itself(), "c" * 64
    job_id = await w.submit({"resources": {"accelerators": "a:2"}})
    w.live_state.jobs[job_id].launch = replace(w.live_state.jobs[job_id].launch, code=code)
    await agent.register()
    await w.advance(1.0)
    await agent.beat()
    await w.emit(partial(JobCancelled, job_id=job_id))
    agent.here.pop((job_id, 1))
    await agent.beat({"type": "refused", "job_id": job_id, "attempt": 1, "detail": "gone", "lost": code})
    row = w.server.store.job(job_id)
    assert (row.state.value, row.reason) == ("CANCELLED", Reason.USER_CANCELLED)
    assert "release" not in (row.detail or "")


async def test_an_upload_that_comes_late_of_a_fenced_attempt_is_not_the_newest(w: World) -> None:
    agent, job_id = await a_running_job(w)
    await agent.beat(a_commit(agent, job_id, 1, 10.0))
    late = a_commit(agent, job_id, 1, 90.0)
    await agent.end(job_id, exit_code=85)
    await restarted(w, agent)
    await agent.beat(late)
    assert w.live_state.jobs[job_id].checkpoint.step == 10.0


def put(store: ContentStore, folder: Path, content: bytes) -> str:
    """A tree of one file of the content, whole in the store."""
    (folder / "f").write_bytes(content)
    tree = hash_folder(folder, ["f"])
    for name, chunk in zip(tree.files[0].chunks, read_chunks(folder / "f"), strict=True):
        store.put(name, chunk)
    return store.commit_tree(content_of(tree))


async def test_the_newest_two_of_a_job_stay_and_what_they_took_the_place_of_goes(tmp_path: Path) -> None:
    """Chunks that a kept one needs too stay, and so do those that somebody asked for just now."""
    async with world(tmp_path / "data") as w:
        agent, job_id = await a_running_job(w)
        store = w.server.content
        names = [put(store, tmp_path, content) for content in (b"one", b"two", b"three", b"four")]
        for step, name in enumerate(names):
            await agent.beat(a_commit(agent, job_id, 1, step, name))
        await drop_superseded(w.server)
        assert store.missing(names) == []  # too young
        for path in (tmp_path / "data" / "content").glob("??/*"):
            os.utime(path, (path.stat().st_mtime - 2 * SUPERSEDED_KEPT_S,) * 2)
        store.renew_tree(names[1])
        await drop_superseded(w.server)
        assert store.missing(names) == names[:1]
        assert w.live_state.superseded == {names[1]}
        await agent.end(job_id)
        await w.quiet()
        assert w.server.store.checkpoint_content(0.0) == [names[3]]
        assert w.server.store.checkpoint_content(w.clock.at + 1.0) == []


async def test_what_was_superseded_before_a_restart_goes_too(tmp_path: Path) -> None:
    """On the server's disk and in object stores; what a job may still resume from stays."""
    names = [f"{number:064x}" for number in range(4)]
    async with world(tmp_path) as w:
        agent, job_id = await a_running_job(w)
        for step, name in enumerate(names):
            await agent.beat(a_commit(agent, job_id, 1, step, name))
        job = w.live_state.jobs[job_id]
        place = "s3://bucket/run/jobs/1"
        await w.loop.perform(
            lambda t: t.batch.put(*(replace(job.checkpoint, step=-n, store=place) for n in (1.0, 2.0)))
        )
        assert w.live_state.superseded == set(names[:2])
    async with world(tmp_path) as w:
        assert w.live_state.superseded == set()
        await take_up_superseded(w.server)
        assert w.live_state.superseded == set(names[:2])
        assert w.live_state.superseded_places == {place}


@pytest.mark.sqlite_file
async def test_places_of_jobs_that_ended_long_ago_or_are_forgotten_go(
    tmp_path: Path, objects: MemoryFileSystem
) -> None:
    """Also where `keep` is new, or the store was away for weeks; not what is younger, nor what others keep there."""
    async with world(tmp_path, cluster={"pools": [A], "checkpoints": "s3://bucket/run"}) as w:
        agent, job_id = await a_running_job(w)
        await agent.end(job_id)
        running = await w.submit({"resources": {"accelerators": "a:1"}})
        await w.advance(100 * 86_400.0)

        def there() -> set[str]:
            return {path.split("/")[4] for path in objects.find("/bucket/run/jobs")}

        for name in (str(job_id), str(running), "99", "own"):
            objects.pipe_file(f"/bucket/run/jobs/{name}/chunks/{'0' * 64}", b"x")
        await drop_expired_objects(w.server, 86_400.0)
        assert there() == {str(job_id), str(running), "99", "own"}
        for stored in objects.store.values():
            stored.created = stored.created.replace(year=2020)
        await drop_expired_objects(w.server, 200 * 86_400.0)
        assert there() == {str(job_id), str(running), "99", "own"}
        await drop_expired_objects(w.server, 86_400.0)
        assert there() == {str(running), "99", "own"}
        with closing(sqlite3.connect(tmp_path / "walras.db")) as database, database:
            database.execute("UPDATE chain SET last_job_id = 99")
        await drop_expired_objects(w.server, 86_400.0)
        assert there() == {str(running), "own"}


async def test_an_administrator_frees_checkpoints_of_ended_jobs_wherever_they_are(
    tmp_path: Path, objects: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the server's disk and in object stores, those of a former setting too; told first, and of silent stores."""

    def age_all() -> None:
        for stored in objects.store.values():
            stored.created = stored.created.replace(year=2020)
        for path in (tmp_path / "server" / "content").glob("??/*"):
            os.utime(path, (path.stat().st_mtime - 86_400.0,) * 2)

    async with facing(tmp_path / "server", cluster={"pools": [A], "checkpoints": "s3://bucket/former"}) as face:
        agent, job_id = await a_running_job(face.world)
        kept = put(face.world.server.content, tmp_path, b"kept")
        store = f"s3://bucket/former/jobs/{job_id}"
        (tmp_path / "f").write_text("over")
        async with ObjectTransfer(ObjectFolder(store)) as transfer:
            name = await transfer.send(tmp_path, hash_folder(tmp_path, ["f"]))
        commit = a_commit(agent, job_id, 1, 1.0, name)
        await agent.beat(commit | {"manifest": commit["manifest"] | {"store": store}})
        await agent.end(job_id)
        # The second job's lies with the server, which keeps what still runs.
        other = await face.world.submit({"resources": {"accelerators": "a:2"}})
        await agent.start_all()
        await agent.beat(a_commit(agent, other, 1, 1.0, kept))
    async with facing(tmp_path / "server", cluster={"pools": [A], "checkpoints": "server"}) as face:
        await face.world.advance(30 * 86_400.0)
        age_all()

        async def pruned(**asked: object) -> Any:
            return await face.done("POST", "/api/v1/content/prune", asked)

        assert (await pruned())["objects"] == 0
        assert (await pruned(checkpoints_older_s=60 * 86_400.0))["objects"] == 0
        with monkeypatch.context() as patched:
            patched.setattr(objects, "find", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "away")))
            told = await pruned(checkpoints_older_s=86_400.0)
            assert (told["objects"], told["unanswered"]) == (0, [store])
        assert (await pruned(checkpoints_older_s=86_400.0, dry_run=True))["objects"] == 2
        assert objects.find(f"/bucket/former/jobs/{job_id}")
        assert (await pruned(checkpoints_older_s=86_400.0))["objects"] == 2
        assert not objects.find(f"/bucket/former/jobs/{job_id}")
        assert face.world.server.content.missing([kept]) == []


async def test_a_store_that_is_away_keeps_nothing_else_from_being_swept(
    tmp_path: Path, objects: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "data", cluster={"pools": [A], "checkpoints": "s3://bucket/run"}) as w:
        put(w.server.content, tmp_path, b"nobody's")
        content = tmp_path / "data" / "content"
        for path in content.glob("??/*"):
            os.utime(path, (0.0, 0.0))
        monkeypatch.setattr(objects, "ls", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "away")))
        sweeping = asyncio.create_task(content_sweep.sweep_for_ever(w.server, 86_400.0))
        await until(lambda: sweeping.done() or not [*content.glob("??/*")], 10.0, "it is swept")
        assert not sweeping.done()
        sweeping.cancel()


@pytest.mark.parametrize("error", [StoreUnavailable("timeout"), sqlite3.OperationalError("locked"), OSError(5, "?")])
async def test_a_sweep_that_a_disk_or_database_refuses_is_made_again(
    w: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends no server, and what was to go is not forgotten."""
    refused: list[str] = []

    def refuse() -> list[str]:
        refused.append("")
        raise error

    w.live_state.superseded = {"0" * 64}
    monkeypatch.setattr(content_sweep, "_DROP_EVERY_S", 0.0)
    monkeypatch.setattr(content_sweep, "_SWEEP_EVERY_S", 0.0)
    sweeping = asyncio.create_task(content_sweep.sweep_for_ever(w.server, None))
    with monkeypatch.context() as patched:
        patched.setattr(w.server.store, "output_trees", refuse)
        await until(lambda: sweeping.done() or len(refused) > 2, 10.0, "it was tried again")
        assert not sweeping.done()
        with pytest.raises(type(error)):
            await drop_superseded(w.server)
        assert w.live_state.superseded == {"0" * 64}
    await until(lambda: not w.live_state.superseded, 10.0, "they are dropped")
    sweeping.cancel()


@pytest.mark.parametrize("setting", ["", "servers", "s3://", "file://host/x", "file:x", "/shared", "file:///a?b"])
def test_a_store_that_there_is_not_is_refused_in_words(setting: str) -> None:
    with pytest.raises(ConfigError, match="checkpoints"):
        check_model(ClusterConfig, {"pools": [A], "checkpoints": setting}, source="cluster")


async def test_where_checkpoints_go_is_for_the_cluster_file_to_say(tmp_path: Path) -> None:
    """A shared folder is named as it is, and nothing is sent; an older cluster shares what it did."""
    async with world(tmp_path / "shared", cluster={"pools": [A], "checkpoints": f"file://{tmp_path}/disk"}) as w:
        agent, job_id = await a_running_job(w)
        start = agent.here[job_id, 1]
        assert (start.store, start.checkpoint_dir) == ("", f"{tmp_path}/disk/jobs/{job_id}")


async def test_in_an_object_store_each_folder_has_a_place_and_superseded_ones_go(
    tmp_path: Path, objects: MemoryFileSystem
) -> None:
    """A machine that names another place is not believed; what is kept stays when the cluster file says otherwise."""
    cluster = {"pools": [A], "checkpoints": "s3://bucket/run"}
    async with world(tmp_path / "data", cluster=cluster) as w:
        agent, job_id = await a_running_job(w)
        place = f"s3://bucket/run/jobs/{job_id}"
        assert agent.here[job_id, 1].store == place
        async with ObjectTransfer(ObjectFolder(place)) as transfer:
            for step in range(1, 5):
                (tmp_path / "f").write_text(str(step))
                name = await transfer.send(tmp_path, hash_folder(tmp_path, ["f"]))
                commit = a_commit(agent, job_id, 1, float(step), name)
                elsewhere = a_commit(agent, job_id, 1, step + 0.5, name)
                elsewhere["manifest"]["store"] = "s3://thief/run"
                commit["manifest"]["store"] = place
                await agent.beat(commit, elsewhere)
        assert w.live_state.jobs[job_id].checkpoint.step == 4.0
        assert w.live_state.superseded_places == {place}
        for stored in objects.store.values():
            stored.created = stored.created.replace(year=2020)
        await drop_superseded_objects(w.server)
        assert len(names_below(objects, "trees")) == len(names_below(objects, "chunks")) == 2
        assert not w.live_state.superseded_places
    async with world(tmp_path / "data", cluster={"pools": [A], "checkpoints": "server"}) as w:
        agent.world = w
        await agent.beat(resync=True)
        await agent.beat(commit | {"took_s": 1.0})  # of the attempt that was begun before
        await agent.end(job_id, exit_code=85)
        start = await restarted(w, agent)
        assert (start.store, start.resume.store, start.resume.step) == ("server", place, 4.0)
        await agent.end(job_id, 2)
        await w.advance(100.0)
        await drop_expired_objects(w.server, 1.0)
        assert {path.split("/")[3] for path in objects.find("/bucket")} == {"proofs"}  # what machines show they read


async def test_a_store_that_does_not_answer_is_swept_the_next_time(
    w: World, objects: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.live_state.superseded_places.add("s3://bucket/run/jobs/1")

    def fail(*_: object, **__: object) -> Any:
        raise TimeoutError("slow")

    with monkeypatch.context() as patched:
        patched.setattr(objects, "find", fail)
        await drop_superseded_objects(w.server)
    assert w.live_state.superseded_places == {"s3://bucket/run/jobs/1"}
    await drop_superseded_objects(w.server)
    assert not w.live_state.superseded_places
