"""Machines that leave: by a notice of their end, by an administrator, with their pool; and what holds their jobs."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import JobHeld, JobReleased
from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.departures import POOL_IS_DRAINED
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import AttemptRow, DrainedBy, JobRow, NodeRow, PartRow
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, World, world
from tests.support.stores import open_store
from walras.cluster import NodeId, PoolId
from walras.job_request import JobId
from walras.states import AttemptState, JobState, Reason

pytestmark = pytest.mark.sql

POOL = "/api/v1/pools/ax2%2Fowned%2Fdefault"


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        yield found


async def outlive(w: World, agent: FakeAgent, passed_s: float = 700.0) -> None:
    """The machine is heard for so long."""
    for _ in range(int(passed_s / 10.0)):
        w.clock.at += 10.0
        await agent.beat()
        await w.loop.perform(w.server.gateway.notice_silence)


async def node(face: Face) -> tuple[str, str]:
    """State and detail of the machine, as people are shown them."""
    shown = (await face.json("GET", "/api/v1/nodes"))[1][0]
    return shown["state"], shown["detail"]


@pytest.mark.parametrize("how", [{}, {"now": True}, {"deadline_s": 5.0}])
@pytest.mark.parametrize("is_drained_first", [True, False])
async def test_a_drain_outlives_a_notice(face: Face, how: dict[str, Any], is_drained_first: bool) -> None:
    """A machine that an administrator drained takes no jobs after it has outlived the notice of its end."""
    agent = await FakeAgent(face.world, "n1").register()
    notice = {"type": "notice", "gone_in_s": 10.0}
    if not is_drained_first:
        await agent.beat(notice)
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", how))[0] == 200
    if is_drained_first:
        await agent.beat(notice)
    state, detail = await node(face)
    assert state == "leaving"
    assert detail.startswith("notice: gone in 10 s; drained by ")
    await outlive(face.world, agent)
    state, detail = await node(face)
    assert state == "leaving"
    assert detail.startswith("drained by ")
    assert (await face.json("POST", "/api/v1/nodes/n1/resume"))[0] == 200
    assert await node(face) == ("up", "")


async def test_a_pool_that_takes_jobs_again_leaves_out_a_machine_with_a_notice(face: Face) -> None:
    """It returns once it has outlived the notice."""
    agent = await FakeAgent(face.world, "n1").register()
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    await agent.beat({"type": "notice", "gone_in_s": 10.0})
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    assert await node(face) == ("leaving", "notice: gone in 10 s")
    await outlive(face.world, agent)
    assert await node(face) == ("up", "")


async def test_a_machine_that_outlives_its_notice_stays_drained_with_its_pool(face: Face) -> None:
    agent = await FakeAgent(face.world, "n1").register()
    await agent.beat({"type": "notice", "gone_in_s": 10.0})
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    await outlive(face.world, agent)
    assert (await node(face))[0] == "leaving"
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    assert await node(face) == ("up", "")


@pytest.mark.parametrize("words", ["notice: gone in 5 s", "its pool is drained; what cannot be saved runs on"])
async def test_what_an_agent_hints_is_no_departure(face: Face, words: str) -> None:
    """Words that an agent sends change nothing of why its machine takes no jobs."""
    agent = await FakeAgent(face.world, "n1").register()
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
    await agent.beat({"type": "hint", "detail": words})
    face.world.live_state.nodes["n1"].row.detail = words
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    await outlive(face.world, agent)
    assert (await node(face))[0] == "leaving"


@pytest.mark.sqlite_file
@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_notice_and_a_drain_are_told_apart_after_a_restart(tmp_path: Path, is_drained: bool) -> None:
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        if is_drained:
            assert (await face.json("POST", "/api/v1/nodes/n1/drain", {}))[0] == 200
        await agent.beat({"type": "notice", "gone_in_s": 10.0})
    async with facing(tmp_path) as face:
        agent.world = face.world
        state, detail = await node(face)
        assert (state, detail.startswith("notice: gone in 10 s")) == ("leaving", True)
        await outlive(face.world, agent, 1500.0)
        assert (await node(face))[0] == ("leaving" if is_drained else "up")


# ------------------------------------------------------------------------------------------ machines that are lost


async def lose(w: World) -> None:
    """The machine is silent until its lease has run out."""
    for passed_s in (16.0, 20.0):
        w.clock.at += passed_s
        await w.loop.perform(w.server.gateway.notice_silence)
    assert w.live_state.nodes["n1"].row.state == "lost"


@pytest.mark.sqlite_file
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_registered_anew", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_drained_machine_that_was_lost_stays_drained(
    tmp_path: Path, kind: str, is_registered_anew: bool, is_restarted: bool
) -> None:
    """It takes no job, not even as it joins, over further losses and restarts, until an administrator resumes it."""
    async with facing(tmp_path, kind=kind) as face:
        agent = await FakeAgent(face.world, "n1").register()
        await agent.beat({"type": "notice", "gone_in_s": 10.0})
        assert (await face.json("POST", "/api/v1/nodes/n1/drain", {}))[0] == 200
        job_id = await face.world.submit({})
        await lose(face.world)
        state, detail = await node(face)
        assert (state, detail.startswith("drained by ")) == ("lost", True)
        if not is_restarted:
            await _comes_back_drained(face, agent, job_id, is_registered_anew)
    if is_restarted:
        async with facing(tmp_path, kind=kind) as face:
            agent.world = face.world
            await _comes_back_drained(face, agent, job_id, is_registered_anew)


async def _comes_back_drained(face: Face, agent: FakeAgent, job_id: JobId, is_registered_anew: bool) -> None:
    for _ in range(2):
        if is_registered_anew:
            await agent.register()
        await agent.start_all()
        state, detail = await node(face)
        assert (state, face.world.state(job_id)) == ("leaving", "PENDING")
        assert detail.startswith("drained by ")
        assert detail.endswith("; it stays drained when it is back, until it is resumed")
        await lose(face.world)
        assert (await node(face)) == ("lost", detail)
    await agent.beat()
    assert (await face.json("POST", "/api/v1/nodes/n1/resume"))[0] == 200
    assert await node(face) == ("up", "")
    await agent.start_all()
    assert face.world.state(job_id) == "RUNNING"


async def test_a_lost_machine_is_drained_and_resumed_before_it_is_back(face: Face) -> None:
    """Whoever repairs a machine need not wait for it to say that it takes no jobs, or takes them again."""
    agent, job_id = await FakeAgent(face.world, "n1").register(), None
    for is_drained in (True, False):
        await lose(face.world)
        job_id = job_id or await face.world.submit({})
        status, view = await face.json("POST", f"/api/v1/nodes/n1/{'drain' if is_drained else 'resume'}")
        assert (status, view["state"], view["detail"].startswith("drained by ")) == (200, "lost", is_drained)
        await agent.start_all()
        assert (await node(face))[0] == ("leaving" if is_drained else "up")
        assert face.world.state(job_id) == ("PENDING" if is_drained else "RUNNING")


async def test_a_machine_that_is_forgotten_joins_as_one_that_nobody_drained(face: Face) -> None:
    agent = await FakeAgent(face.world, "n1").register()
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", {}))[0] == 200
    await lose(face.world)
    assert (await face.json("DELETE", "/api/v1/nodes/n1"))[0] == 200
    await agent.register()
    assert await node(face) == ("up", "")


async def test_a_lost_machine_follows_its_pool_when_it_is_back(face: Face) -> None:
    """Whatever the pool was when it was lost; an administrator's own drain outlives that of the pool."""
    agent = await FakeAgent(face.world, "n1").register()
    for is_drained in (True, False):
        assert (await face.json("PATCH", POOL, {"drained": is_drained}))[0] == 200
        await lose(face.world)
        await agent.beat()
        assert await node(face) == (("leaving", POOL_IS_DRAINED) if is_drained else ("up", ""))
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", {}))[0] == 200
    await lose(face.world)
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    await agent.beat()
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    state, detail = await node(face)
    assert (state, detail.startswith("drained by ")) == ("leaving", True)


# ------------------------------------------------------------------------------------------ what holds jobs


async def _stopping(w: World, max_runtime: str | None = None) -> tuple[FakeAgent, JobId]:
    """A job that can save its work, asked to stop by a drain of its machine; another machine is free."""
    agent = await FakeAgent(w, "n1").register()
    job_id = await w.submit({} if max_runtime is None else {"limits": {"max_runtime": max_runtime}})
    await agent.start_all()
    await agent.beat(agent.committed(job_id, 1, 1.0))
    return agent, job_id


async def _ended_after_restart(folder: Path, agent: FakeAgent, job_id: JobId) -> JobRow:
    """The job, once its attempt has ended of a signal under the server that started next."""
    async with world(folder) as w:
        agent.world = w
        await agent.end(job_id, exit_code=None, signal=15)
        row = w.server.store.job(job_id)
        assert row is not None
        return row


@pytest.mark.sqlite_file
async def test_a_job_that_a_drain_stops_is_not_held_after_a_restart(tmp_path: Path) -> None:
    """The server is restarted between the request to stop and the end: the job waits, and runs elsewhere."""
    async with facing(tmp_path) as face:
        agent, job_id = await _stopping(face.world)
        assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
        assert face.world.state(job_id) == "PREEMPTING"
    assert (await _ended_after_restart(tmp_path, agent, job_id)).state == "PENDING"


@pytest.mark.sqlite_file
@pytest.mark.parametrize("is_released", [True, False])
async def test_a_hold_of_a_job_that_stops_outlives_a_restart(tmp_path: Path, is_released: bool) -> None:
    """The job was asked to stop for another reason before; a hold that was taken back is no hold."""
    async with facing(tmp_path) as face:
        agent, job_id = await _stopping(face.world)
        if not is_released:
            assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
        await face.world.emit(lambda at: JobHeld(at, job_id, Reason.HOLD_USER))
        if is_released:
            await face.world.emit(lambda at: JobReleased(at, job_id))
        assert face.world.state(job_id) == "PREEMPTING"
    row = await _ended_after_restart(tmp_path, agent, job_id)
    assert (row.state == "HELD", row.reason is Reason.HOLD_USER) == (not is_released, not is_released)


@pytest.mark.sqlite_file
@pytest.mark.parametrize("reason", [Reason.USER_CANCELLED, Reason.POLICY_MAX_RUNTIME])
async def test_a_job_that_was_stopping_ends_after_a_restart_as_it_was_asked_to_since(
    tmp_path: Path, reason: Reason
) -> None:
    """What it was asked to stop for first, a drain here, brings back none that is cancelled, or has used its time."""
    async with facing(tmp_path) as face:
        agent, job_id = await _stopping(face.world, "5s")
        assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
        if reason is Reason.USER_CANCELLED:
            assert (await face.json("POST", f"/api/v1/jobs/{job_id}/cancel"))[0] == 200
        else:
            await face.world.advance(6.0)
    row = await _ended_after_restart(tmp_path, agent, job_id)
    ends = {Reason.USER_CANCELLED: "CANCELLED", Reason.POLICY_MAX_RUNTIME: "TIMEOUT"}
    assert (row.state, row.reason) == (ends[reason], reason)


@pytest.mark.parametrize(("unfinished", "state"), [(True, "CANCELLED"), (False, "SUCCEEDED")])
async def test_a_cancelled_job_that_ends_with_0_has_succeeded_only_if_it_ended_before_it_was_told(
    face: Face, unfinished: bool, state: str
) -> None:
    """Its agent says which; a job that waits for its success follows."""
    agent, job_id = await _stopping(face.world)
    dependent = await face.world.submit({"depends_on": [job_id]})
    assert (await face.json("POST", f"/api/v1/jobs/{job_id}/cancel"))[0] == 200
    await agent.end(job_id, exit_code=0, unfinished=unfinished)
    assert face.world.state(job_id) == state
    assert (face.world.state(dependent) == "CANCELLED") is unfinished


async def test_an_operators_hold_of_a_job_that_stops_is_not_its_owners_to_lift(face: Face) -> None:
    """Whatever the owner asked for before or after, and what the job is stopped for meanwhile."""
    agent, job_id = await _stopping(face.world)
    ada, ops = face.token("ada", UserRole.USER), face.token("ops", UserRole.OPERATOR)
    path = f"/api/v1/jobs/{job_id}"
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
    assert (await face.json("POST", f"{path}/release", token=ada))[0] == 200  # a drain is no hold
    for token in (ada, ops, ada):
        assert (await face.json("POST", f"{path}/hold", token=token))[0] == 200
    assert (await face.json("POST", f"{path}/release", token=ada))[0] == 403
    await agent.end(job_id, exit_code=None, signal=15)
    assert face.world.state(job_id) == "HELD"
    assert (await face.json("POST", f"{path}/release", token=ada))[0] == 403
    assert (await face.json("POST", f"{path}/release", token=ops))[0] == 200


# ------------------------------------------------------------------------------------------ earlier databases


def _older_rows() -> WriteBatch:
    """Machines that leave for each reason, and attempts that stop for each, as the release before wrote them."""
    details = {
        "noticed": "notice: gone in 120 s",
        "drained": "drained by notice: ada; what cannot be saved runs on",
        "restored": "",
        "pool": POOL_IS_DRAINED,
        "up": "notice: EC2 may take it away",
    }
    nodes = [
        NodeRow(NodeId(name), PoolId("p"), "{}", name, "up", 1.0, "" if name == "up" else "leaving", detail)
        for name, detail in details.items()
    ]
    batch = WriteBatch(nodes=nodes)
    for number, (reason, where) in enumerate(_STOPS, 1):
        job_id = JobId(number)
        batch.jobs.append(JobRow(job_id, "j", "p", "ada", "k", JobState.PREEMPTING, 50, 1, 1.0, attempts=1))
        row = AttemptRow(job_id, 1, AttemptState.STOPPING, PoolId("p"), "a", False, 1, 2.0, f'[["{where}", [0]]]')
        row.reason = reason
        batch.attempts.append(row)
        batch.parts.append(PartRow(job_id, 1, NodeId(where), 0))
    return batch


#: Why an attempt stops, and where.
_STOPS = (
    (Reason.HOLD_ADMIN, "drained"), (Reason.HOLD_ADMIN, "up"), (Reason.HOLD_USER, "drained"),
    (Reason.HOLD_BUDGET, "up"), (Reason.POLICY_PREEMPTED, "up"), (Reason.INFRA_SPOT_RECLAIM, "noticed"),
)  # fmt: skip
_UNDO = (
    "ALTER TABLE nodes DROP COLUMN notice_s", "ALTER TABLE nodes DROP COLUMN drained_by",
    "ALTER TABLE attempts DROP COLUMN held_by",
)  # fmt: skip


@pytest.mark.sqlite_file
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_database_of_the_release_before_keeps_its_meaning(kind: str, tmp_path: Path) -> None:
    """What leaves by a notice, by an administrator and with its pool stays so, and what is held stays held."""
    store = open_store(kind, tmp_path)
    store.commit(_older_rows())
    made = "_sqlite_migrations" if kind == "sqlite" else "schema_changes"
    for sql in (*_UNDO, f"DELETE FROM {made} WHERE name = 'tell_departures_apart'"):
        store._db.execute(sql)  # type: ignore[attr-defined]
    store.close()
    for _ in range(2):
        store = open_store(kind, tmp_path)
        loaded = store.load()
        store.close()
        assert {row.node_id: (row.cordon, row.notice_s, row.drained_by, row.detail) for row in loaded.nodes} == {
            "noticed": ("leaving", 0.0, DrainedBy.NOBODY, ""),
            "drained": ("leaving", None, DrainedBy.ADMIN, "drained by notice: ada; what cannot be saved runs on"),
            "restored": ("leaving", None, DrainedBy.ADMIN, ""),
            "pool": ("leaving", None, DrainedBy.POOL, POOL_IS_DRAINED),
            "up": ("", None, DrainedBy.NOBODY, "notice: EC2 may take it away"),
        }
        held = {int(row.job_id): row.held_by for row in loaded.attempts}
        held_by = [None, Reason.HOLD_ADMIN, Reason.HOLD_USER, Reason.HOLD_BUDGET, None, None]
        assert held == dict(enumerate(held_by, 1))
