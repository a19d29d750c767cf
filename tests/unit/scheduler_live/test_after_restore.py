"""A database restored from a backup, or made anew, while agents keep what they know."""

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import JobHeld, JobReleased, PoolDeclared
from scheduler.live.assembly import settings_for_cluster
from scheduler.live.loop.event_loop import LiveSettings
from scheduler.live.loop.recurring_steps import keep_core_state
from scheduler.live.store.backup import back_up, restore
from scheduler.live.store.data_folder import LogPlace, LogStore
from scheduler.live.store.event_journal import replay_journal
from tests.support.http_face import facing
from tests.support.live_world import FIFO, FakeAgent, World, world
from walras.cluster import Market, Pool, PoolId, Shape
from walras.contract import EXIT_CHECKPOINT_LOST, PROTOCOL
from walras.errors import NameHeld, OtherIncarnation
from walras.job_request import JobId, Kind, kind_within
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.states import Reason
from walras.wire import StartCommand

pytestmark = pytest.mark.sqlite_file

_WHOLE = {"resources": {"accelerators": "a:2"}}
_STOP = LiveSettings(lease_s=dict.fromkeys(("owned", "on_demand", "spot"), 20.0), after_restore="stop")


def _backup(folder: Path) -> bytes:
    """The database as it is on the disk now."""
    copy = folder / "backup.db"
    with sqlite3.connect(folder / "walras.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    return copy.read_bytes()


def _restore(folder: Path, backup: bytes) -> None:
    """Put the backup back, as another incarnation of the same cluster."""
    for path in (*folder.glob("walras.db*"), folder / "tip"):  # as on another disk: nothing tells what came after it
        path.unlink()
    (folder / "walras.db").write_bytes(backup)
    with sqlite3.connect(folder / "walras.db") as database:
        database.execute(
            "INSERT INTO incarnations (cluster_id, incarnation, began_unix_s, why)"
            " SELECT cluster_id, ?, began_unix_s, 'restored' FROM incarnations ORDER BY seq DESC LIMIT 1",
            ["f" * 16],
        )


async def _meet(agent: FakeAgent, w: World, *told: dict[str, Any], highest_job_id: int = 0) -> Any:
    """What an agent does: it is refused, learns the incarnation, and says anew what it has."""
    agent.world = w
    with pytest.raises(OtherIncarnation):
        await agent.beat()
    agent.identity = {**agent.identity, "cluster": w.live_state.identity, "highest_job_id": highest_job_id}
    return await agent.beat(*told, resync=True)


def _ended(start: StartCommand, exit_code: int = 0) -> dict[str, Any]:
    known = {"job_id": start.job_id, "attempt": start.attempt, "incarnation": start.incarnation}
    return {"type": "ended", **known, "cause": "exited", "exit_code": exit_code}


async def test_what_runs_goes_on_and_what_ended_is_told_again(tmp_path: Path) -> None:
    """Of two jobs that run at the backup the one that ended since ends again, once; the other is undisturbed."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        going, ending = await w.submit({}), await w.submit({})
        starts = {start.job_id: start for start in await agent.start_all()}
        backup = _backup(tmp_path)
        saved = agent.committed(ending, 1, 40.0)
        await agent.beat(saved)
        await agent.end(ending)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        assert (again.state(going), again.state(ending)) == ("RUNNING", "RUNNING")
        answer = await _meet(agent, again, saved, _ended(starts[ending]))
        # How often to save is planned anew when its checkpoint is told, before its end is.
        assert (answer.fenced, [each for each in answer.commands if each.type != "checkpoint_every"]) == ([], [])
        assert (again.state(going), again.state(ending)) == ("RUNNING", "SUCCEEDED")
        assert again.server.store.checkpoint(ending).step == 40.0  # type: ignore[union-attr]
        await agent.end(going)
        assert again.state(going) == "SUCCEEDED"


async def test_a_job_that_finished_unknown_to_the_backup_is_not_run_again(tmp_path: Path) -> None:
    """It waited at the time of the backup, started and finished after it: held with the reason, its checkpoint kept."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        first, second = await w.submit(_WHOLE), await w.submit(_WHOLE)
        (start,) = await agent.start_all()
        backup = _backup(tmp_path)
        await agent.end(first)
        (later,) = await agent.start_all()
        saved = agent.committed(second, 1, 70.0) | {"incarnation": later.incarnation}
        await agent.end(second)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        await _meet(agent, again, _ended(start), saved, _ended(later))
        row = again.server.store.job(second)
        assert (again.state(first), row.state.value, row.attempts) == ("SUCCEEDED", "HELD", 0)
        assert row.detail == "attempt 1 ended with exit code 0 after the backup was made: release it to run it again"
        assert again.live_state.jobs[second].checkpoint.step == 70.0
        assert await agent.start_all() == []


@pytest.mark.parametrize(
    "its_end",
    [{"exit_code": None, "signal": 15}, *({"unfinished": True, "exit_code": code} for code in (0, 1, 85, 143))],
)
async def test_a_job_that_was_asked_to_leave_after_the_backup_has_not_failed(
    tmp_path: Path, its_end: dict[str, Any]
) -> None:
    """It is queued again, whatever its shell ended with; one that a signal ended of its own has failed."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        asked, killed = await w.submit({}), await w.submit({})
        starts = {start.job_id: start for start in await agent.start_all()}
        backup = _backup(tmp_path)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        by_signal = {"exit_code": None, "signal": 15}
        told = [_ended(starts[asked]) | its_end | {"asked": True}, _ended(starts[killed]) | by_signal]
        await _meet(agent, again, *told)
        assert again.state(killed) == "FAILED"
        assert again.state(asked) in ("PENDING", "STARTING")


async def test_a_job_whose_start_was_withdrawn_after_the_backup_has_not_failed(tmp_path: Path) -> None:
    """Its machine tells an end with neither exit code nor signal: nothing of that attempt ever ran."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        job_id = await w.submit({})
        (start,) = [each for each in (await agent.beat()).commands if isinstance(each, StartCommand)]
        backup = _backup(tmp_path)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        await _meet(agent, again, _ended(start) | {"exit_code": None})
        (attempt,) = again.server.store.attempts(job_id)
        assert (attempt.state.value, again.state(job_id)) == ("START_FAILED", "PENDING")


async def test_the_end_of_an_earlier_attempt_that_is_told_again_says_nothing(tmp_path: Path) -> None:
    """Attempt 1 was asked to stop and ended well; attempt 2, which the backup knows, goes on."""
    async with world(tmp_path) as w:
        agent, job_id = await w.running(named=True)
        (first,) = agent.here.values()
        await w.emit(lambda at: JobHeld(at, job_id, Reason.HOLD_USER))
        await agent.end(job_id, exit_code=0, unfinished=True)
        await w.emit(lambda at: JobReleased(at, job_id))
        assert [start.attempt for start in await agent.start_all()] == [2]
        backup = _backup(tmp_path)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        await _meet(agent, again, _ended(first) | {"unfinished": True})
        await agent.beat()
        assert (again.state(job_id), len(agent.here)) == ("RUNNING", 1)


async def _resumed(tmp_path: Path) -> tuple[FakeAgent, JobId]:
    """A restored database, and a job whose attempt 9 after the backup saved step 11, and attempt 1 before it step 5."""
    async with world(tmp_path) as w:
        agent, job_id = await w.running(named=True)
        first = agent.committed(job_id, 1, 5.0)
        await agent.beat(first)
        backup = _backup(tmp_path)
        later = agent.committed(job_id, 1, 11.0) | {"attempt": 9, "incarnation": w.live_state.identity.incarnation}
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        agent.here.clear()
        await _meet(agent, again, later)
        again.clock.at += 5.0
        await again.advance(1.0)
        (start,) = await agent.start_all()
        assert (start.attempt, start.resume.step) == (2, 11.0)  # type: ignore[union-attr]
        await agent.beat()
    return agent, job_id


async def test_a_checkpoint_of_this_life_is_newer_than_one_of_an_attempt_with_a_higher_number(tmp_path: Path) -> None:
    """Numbers of attempts go on from the backup, so the next start of the server must not go back to the other."""
    agent, job_id = await _resumed(tmp_path)
    async with world(tmp_path) as w:
        agent.world = w
        await agent.beat(agent.committed(job_id, 2, 46.0))
        assert w.server.store.checkpoint(job_id).step == 46.0  # type: ignore[union-attr]
    async with world(tmp_path) as again:
        job = again.live_state.jobs[job_id]
        assert (job.checkpoint.step, job.earlier_checkpoint.step) == (46.0, 11.0)


async def test_what_was_saved_after_the_backup_s_newest_was_lost_counts(tmp_path: Path) -> None:
    """A later attempt of the same life that saved a lower step began before it: the one of the backup was torn. Of an
    earlier life or attempt a lower step is older.
    """
    async with world(tmp_path) as w:
        agent, job_id = await w.running(named=True)
        await agent.beat(agent.committed(job_id, 1, 5.0), agent.committed(job_id, 1, 11.0))
        life, backup = {"incarnation": w.live_state.identity.incarnation}, _backup(tmp_path)
        after = [agent.committed(job_id, 1, step) | {"attempt": 3} | life for step in (7.0, 8.0)]
        older = agent.committed(job_id, 1, 6.0) | {"attempt": 2} | life
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        agent.here.clear()
        await _meet(agent, again, after[0], older, after[1])
        again.clock.at += 5.0
        await again.advance(1.0)
        (start,) = await agent.start_all()
        assert (start.resume.step, again.live_state.jobs[job_id].earlier_checkpoint.step) == (8.0, 7.0)
    async with world(tmp_path) as again:
        job = again.live_state.jobs[job_id]
        assert (job.checkpoint.step, job.earlier_checkpoint.step) == (8.0, 7.0)


async def test_a_torn_checkpoint_of_an_attempt_with_a_higher_number_is_given_up(tmp_path: Path) -> None:
    """The attempt of this life began with it, so the one before takes its place."""
    agent, job_id = await _resumed(tmp_path)
    async with world(tmp_path) as w:
        agent.world = w
        await agent.end(job_id, 2, exit_code=EXIT_CHECKPOINT_LOST)
        w.clock.at += 5.0
        await w.advance(1.0)
        (start,) = await agent.start_all()
        assert (start.attempt, start.resume.step) == (3, 5.0)  # type: ignore[union-attr]


async def test_nothing_starts_before_every_machine_has_said_what_it_runs(tmp_path: Path) -> None:
    """The job that waited at the backup runs on the machine heard last: nobody else gets it before that has ended."""
    async with world(tmp_path) as w:
        one = await FakeAgent(w, "n1").names_itself().register()
        two = await FakeAgent(w, "n2").names_itself("b" * 32).register()
        jobs = [await w.submit(_WHOLE) for _ in range(2)]
        started = {start.job_id: (agent, start) for agent in (one, two) for start in await agent.start_all()}
        waiting = await w.submit(_WHOLE)
        backup = _backup(tmp_path)
        last, ended = started[jobs[1]]
        await last.end(jobs[1])
        assert [start.job_id for start in await last.start_all()] == [waiting]
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        early, _ = started[jobs[0]]
        await _meet(early, again)
        await early.end(jobs[0])
        assert again.state(waiting) == "PENDING"
        with pytest.raises(NameHeld, match="was restored"):
            await FakeAgent(again, "n3").names_itself("c" * 32).register()
        answer = await _meet(last, again, _ended(ended))
        assert [each.job_id for each in answer.fenced] == [waiting]
        assert again.state(waiting) == "PENDING"
        await last.beat()  # its ranks are gone
        assert again.state(waiting) == "STARTING"
        assert [node.shown_state for node in again.live_state.nodes.values()] == ["up", "up"]


async def test_a_machine_that_never_comes_back_holds_the_others_up_for_a_lease_only(tmp_path: Path) -> None:
    """Its leases run out, it is lost, and the rest take jobs."""
    async with world(tmp_path) as w:
        one = await FakeAgent(w, "n1").names_itself().register()
        await FakeAgent(w, "n2").names_itself("b" * 32).register()
        backup = _backup(tmp_path)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        await _meet(one, again)
        job_id = await again.submit({})
        for _ in range(26):
            assert await one.start_all() == []
            again.clock.at += 1.0
            await again.loop.perform(again.server.gateway.notice_silence)
        assert [start.job_id for start in await one.start_all()] == [job_id]


async def test_attempts_that_the_tables_do_not_know_are_stopped(tmp_path: Path) -> None:
    """Submitted and started after the backup: fenced, and their numbers are not given out again."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        await agent.beat()
        backup = _backup(tmp_path)
        lost = await w.submit({}, user="ada")
        (start,) = await agent.start_all()
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        answer = await _meet(agent, again, highest_job_id=lost)
        assert [(each.job_id, each.incarnation) for each in answer.fenced] == [(lost, start.incarnation)]
        assert await again.submit({}, user="bob") == lost + 1


async def test_a_number_given_out_again_is_another_attempt(tmp_path: Path) -> None:
    """Nobody told of job 1 in time, and it is given out again: the old ranks are fenced, their reports do not count."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        await agent.beat()
        backup = _backup(tmp_path)
        job_id = await w.submit({})
        (old,) = await agent.start_all()
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        assert await again.submit({}) == job_id
        answer = await _meet(agent, again, _ended(old))
        assert [each.incarnation for each in answer.fenced] == [old.incarnation]
        agent.told.clear()
        await agent.beat()
        (start,) = await agent.start_all()
        assert (start.job_id, start.attempt, start.incarnation) == (job_id, 1, "f" * 16)
        assert again.state(job_id) == "RUNNING"


async def test_files_of_a_lost_job_keep_its_number_and_its_log(tmp_path: Path) -> None:
    """Numbers with logs or checkpoints beside the database are skipped; a log lies under its incarnation."""
    async with world(tmp_path) as w:
        backup, incarnation = _backup(tmp_path), w.live_state.identity.incarnation
        job_id = await w.submit({})
        logs = LogStore(tmp_path / "logs", 1000)
        logs.append(LogPlace(job_id, 1, 0, incarnation), 0, b"secret of ada\n")
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        assert await again.submit({}) == job_id + 1
        assert logs.read(LogPlace(job_id, 1, 0, "f" * 16), 0, 100) == b""
        assert logs.read(LogPlace(job_id, 1, 0, incarnation), 0, 100) == b"secret of ada\n"
    _remove_all_but_checkpoints(tmp_path)
    async with world(tmp_path) as empty:
        assert await empty.submit({}) == 8


def _remove_all_but_checkpoints(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    shutil.rmtree(folder / "logs")
    (folder / "checkpoints" / "jobs" / "7").mkdir(parents=True)


async def test_a_restored_fleet_can_be_told_to_stop(tmp_path: Path) -> None:
    """`after_restore: stop`: what ran on is stopped with a checkpoint, and its job is held until it is released."""
    async with world(tmp_path) as w:
        agent, job_id = await w.running(named=True)
        backup = _backup(tmp_path)
    _restore(tmp_path, backup)
    async with world(tmp_path, settings=_STOP) as again:
        await _meet(agent, again)
        assert [command.type for command in agent.commands] == ["start", "stop"]
        await agent.end(job_id, exit_code=None, signal=15)
        assert again.state(job_id) == "HELD"


async def test_a_start_of_the_backup_that_was_carried_out_is_not_carried_out_again(tmp_path: Path) -> None:
    """It lies in the restored outbox under the incarnation that granted it: the agent knows that attempt."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").names_itself().register()
        await w.submit({})
        backup = _backup(tmp_path)
        (start,) = await agent.start_all()
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        agent.told.clear()
        answer = await _meet(agent, again)
        assert [command.incarnation for command in answer.commands] == [start.incarnation]


def test_the_cluster_file_says_what_becomes_of_the_fleet() -> None:
    """With a length of leases or without one."""
    pool = {"shape": "ax1", "accelerator": "a", "accelerators": 1, "cpus": 8, "memory": "16GB", "machines": 1}
    for more in ({}, {"lease": 60}):
        told = check_model(ClusterConfig, {"pools": [pool], "after_restore": "stop", **more}, source="cluster")
        assert settings_for_cluster(told).after_restore == "stop"
    assert settings_for_cluster(None).after_restore == "go_on"


async def test_a_job_of_a_life_before_a_restore_says_which(tmp_path: Path) -> None:
    """And one of this life says nothing; machines say what speaks for them, once they are heard."""
    async with world(tmp_path) as w:
        old = await w.submit({})
        was = w.live_state.identity.incarnation
        backup = _backup(tmp_path)
    _restore(tmp_path, backup)
    async with world(tmp_path) as again:
        new = await again.submit({})
        views, store = again.server.views, again.server.store

        def shown(job_id: Any) -> str:
            row = store.job(job_id)
            assert row is not None
            return views.detail(row, [], {}, []).incarnation

        assert (shown(old), shown(new)) == (was, "")
        agent = await FakeAgent(again, "n1").names_itself(boot_id="boot-7").register()
        assert views.nodes()[0].protocol is None
        await agent.beat()
        (node,) = views.nodes()
        assert (node.version, node.boot, node.protocol, node.problem) == ("2.0", "boot-7", PROTOCOL, "")


@pytest.mark.parametrize("is_restored", [False, True])
async def test_an_elastic_job_keeps_the_speeds_that_others_measured(tmp_path: Path, is_restored: bool) -> None:
    """Two projects run one program: by what one measured, the other's elastic job has its size. A server that is
    started again, or restored, changes neither, and gives the next one the same.
    """
    quick, counts, policy = "a100-40gb", (1, 2, 4), {**FIFO, "policy": {"name": "walras"}}
    program = {"profile": "cnn", "run": ["python", "cnn.py"], "code": {"tree": "c" * 64}, "batch": {"global": 16}}
    elastic = {**program, "project": "vision", "resources": {"accelerators": {quick: 4}}, "steps": 1e6} | {
        "elastic": {"min": 1, "max": 4}
    }

    def believed(w: World) -> list[tuple[str, float]]:
        ledger, kind = w.server.core.ledger, kind_within("vision", Kind("cnn"))
        found = [ledger.table.speed(kind, quick, count, ledger.classes.nominal) for count in counts]
        return [(each.source.name, each.steps_per_s) for each in found]

    async with world(tmp_path, policy=policy) as w:
        agent = FakeAgent(w, "n1", shape=quick, accelerator=quick, accelerators=4).names_itself()
        await agent.register()
        for count, speed in zip(counts, (10.0, 18.0, 19.0), strict=True):
            measured = await w.submit({**program, "project": "speech", "resources": {"accelerators": {quick: count}}})
            await w.advance(1.0)
            await agent.start_all()
            for steps in (10.0, 310.0, 610.0, 910.0, 1210.0):
                await agent.beat(agent.progress(measured, 1, steps, steps_per_s=speed, samples=20, start_s=1.0))
                await w.advance(30.0)
            await agent.end(measured)
        first = await w.submit(elastic)
        await w.advance(10.0)
        await agent.start_all()
        size, known = w.live_state.jobs[first].attempt.row.accelerators, believed(w)
        assert known == [("SHARED", 10.0), ("SHARED", 18.0), ("SHARED", 19.0)]
        await w.loop.perform_in_pieces(keep_core_state)
        backup = _backup(tmp_path)
    if is_restored:
        _restore(tmp_path, backup)
    async with world(tmp_path, policy=policy) as again:
        if is_restored:
            await _meet(agent, again)
        agent.world = again
        assert believed(again) == known
        await again.advance(60.0)
        attempt = again.live_state.jobs[first].attempt.row
        assert (attempt.attempt, attempt.accelerators, believed(again)) == (1, size, known)
        await agent.end(first)
        second = await again.submit(elastic)
        await again.advance(10.0)
        assert again.live_state.jobs[second].attempt.row.accelerators == size
        assert replay_journal(again.server.store.journal()).identical


async def test_machines_and_pools_that_were_drained_after_the_backup_stay_so(tmp_path: Path) -> None:
    """And a quota that was lowered stays low, one that was raised is the backup's; budgets are named in a warning."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    shape, pools = Shape("b1", "b", 1, 8.0, 1 << 34), {}
    for zone, then, later in (("lower", 4, 1), ("raised", 2, 5), ("drained", 3, 3), ("removed", 3, 3)):
        pool = Pool(PoolId(f"b1/spot/{zone}"), shape, Market.SPOT, zone, quota=then)
        pools[pool] = replace(pool, quota=later, drained=zone == "drained")

    async def declare(each: Pool) -> None:
        await w.emit(lambda at: PoolDeclared(at, each))

    async with facing(data) as face:
        w = face.world
        agents = [await FakeAgent(w, name).names_itself().register() for name in ("n1", "n2")]
        for pool in pools:
            await declare(pool)
        back_up(data, backup)
        await face.done("POST", "/api/v1/nodes/n1/drain", {})
        for pool in pools.values():
            await declare(pool)
        await face.done("DELETE", "/api/v1/pools/b1%2Fspot%2Fremoved")
        await face.done("PUT", "/api/v1/policy", {"policy": {"name": "fifo"}, "rules": {"budgets": [{"usd": 5.0}]}})
    told = restore(backup, data, replace=True).may_be_back
    assert told == ("budgets and rules of the policy: version 2 was in force",)
    async with world(data) as again:
        for agent in agents:
            await _meet(agent, again)
        assert [again.live_state.nodes[n].shown_state for n in ("n1", "n2")] == ["drained", "up"]
        found = {
            each.zone: (each.quota, each.drained) for each in again.live_state.pools.values() if each.shape == shape
        }
        assert found == {"lower": (1, False), "raised": (2, False), "drained": (3, True), "removed": (3, True)}


async def test_checkpoints_keep_their_order_over_two_restores(tmp_path: Path) -> None:
    """What is told again comes after what the backup has, and what comes late is none. The tables say the same."""
    data, names = tmp_path / "data", [f"{number:064x}" for number in range(6)]

    def saved(step: int) -> dict[str, Any]:
        told = agent.committed(job_id, 1, float(step))
        return told | {"manifest": told["manifest"] | {"content": names[step]}}

    def check(w: World, newest: int, before: int, superseded: set[int]) -> None:
        job = w.live_state.jobs[job_id]
        assert [each.content for each in (job.checkpoint, job.earlier_checkpoint)] == [names[newest], names[before]]
        assert set(w.server.store.checkpoint_content(0.0)) == {names[newest], names[before]}
        assert set(w.server.store.superseded_checkpoints(1e9)) == {(names[each], "") for each in superseded}

    async with world(data) as w:
        agent, job_id = await w.running(_WHOLE, named=True)
        for step in range(3):
            await agent.beat(saved(step))
        back_up(data, tmp_path / "first")
        await agent.beat(saved(3))
        check(w, 3, 2, {0, 1})
    restore(tmp_path / "first", data, replace=True)
    async with world(data) as w:
        check(w, 2, 1, {0})
        await _meet(agent, w, saved(3))
        check(w, 3, 2, {0, 1})
        back_up(data, tmp_path / "second")
        for step in (4, 5):
            await agent.beat(saved(step))
    restore(tmp_path / "second", data, replace=True)
    async with world(data) as w:
        await _meet(agent, w, saved(5), saved(4), saved(3))
        check(w, 5, 3, {0, 1, 2})
    async with world(data) as w:
        check(w, 5, 3, {0, 1, 2})
