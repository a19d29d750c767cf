"""Machines that leave or take no jobs: by a notice, a person, their pool or a fault; and what holds their jobs."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.departures import POOL_IS_DRAINED
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
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


async def outlive(w: World, agent: FakeAgent, passed_s: float = 700.0) -> None:
    """The machine is heard for so long."""
    for _ in range(int(passed_s / 10.0)):
        w.clock.at += 10.0
        await agent.beat()
        await w.loop.perform(w.server.gateway.notice_silence)


async def node(face: Face) -> tuple[str, str]:
    """State and detail of the machine, as people are shown them."""
    shown = (await face.got("/nodes"))[0]
    return shown["state"], shown["detail"]


@pytest.mark.parametrize("how", [{}, {"now": True}, {"deadline_s": 5.0}])
@pytest.mark.parametrize("is_drained_first", [True, False])
async def test_a_drain_outlives_a_notice(
    face: Face, agent: FakeAgent, how: dict[str, Any], is_drained_first: bool
) -> None:
    """A machine that an administrator drained takes no jobs after it has outlived the notice of its end."""
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
    assert state == "drained"
    assert detail.startswith("drained by ")
    assert (await face.json("POST", "/api/v1/nodes/n1/resume"))[0] == 200
    assert await node(face) == ("up", "")


async def test_a_pool_that_takes_jobs_again_leaves_out_a_machine_with_a_notice(face: Face, agent: FakeAgent) -> None:
    """It returns once it has outlived the notice, unless its pool is drained by then."""
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    await agent.beat({"type": "notice", "gone_in_s": 10.0})
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    assert await node(face) == ("leaving", "notice: gone in 10 s")
    await outlive(face.world, agent)
    assert await node(face) == ("up", "")
    await agent.beat({"type": "notice", "gone_in_s": 10.0})
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    await outlive(face.world, agent)
    assert (await node(face))[0] == "drained"
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    assert await node(face) == ("up", "")


@pytest.mark.parametrize("words", ["notice: gone in 5 s", "its pool is drained; what cannot be saved runs on"])
async def test_what_an_agent_hints_is_no_departure(face: Face, agent: FakeAgent, words: str) -> None:
    """Words that an agent sends change nothing of why its machine takes no jobs."""
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
    await agent.beat({"type": "hint", "detail": words})
    face.world.live_state.nodes["n1"].row.detail = words
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    await outlive(face.world, agent)
    assert (await node(face))[0] == "drained"


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
        assert (await node(face))[0] == ("drained" if is_drained else "up")


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
        assert (state, face.world.state(job_id)) == ("drained", "PENDING")
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
        assert (await node(face))[0] == ("drained" if is_drained else "up")
        assert face.world.state(job_id) == ("PENDING" if is_drained else "RUNNING")


async def test_a_lost_machine_follows_its_pool_when_it_is_back(face: Face, agent: FakeAgent) -> None:
    """Its own drain outlives that of the pool; a machine that is forgotten joins as one that nobody drained."""
    for is_drained in (True, False):
        assert (await face.json("PATCH", POOL, {"drained": is_drained}))[0] == 200
        await lose(face.world)
        await agent.beat()
        assert await node(face) == (("drained", POOL_IS_DRAINED) if is_drained else ("up", ""))
    assert (await face.json("POST", "/api/v1/nodes/n1/drain", {}))[0] == 200
    await lose(face.world)
    assert (await face.json("PATCH", POOL, {"drained": True}))[0] == 200
    await agent.beat()
    assert (await face.json("PATCH", POOL, {"drained": False}))[0] == 200
    state, detail = await node(face)
    assert (state, detail.startswith("drained by ")) == ("drained", True)
    await lose(face.world)
    assert (await face.json("DELETE", "/api/v1/nodes/n1"))[0] == 200
    await agent.register()
    assert await node(face) == ("up", "")


async def _stopping(w: World, max_runtime: str | None = None) -> tuple[FakeAgent, JobId]:
    """A job that can save its work, asked to stop by a drain of its machine; another machine is free."""
    agent, job_id = await w.running({} if max_runtime is None else {"limits": {"max_runtime": max_runtime}})
    await agent.beat(agent.committed(job_id, 1, 1.0))
    return agent, job_id


@pytest.mark.sqlite_file
@pytest.mark.parametrize(
    ("acts", "state", "reason"),
    [
        (("drain",), "PENDING", None),
        (("drain", "hold"), "HELD", Reason.HOLD_USER),
        (("hold", "release"), "STARTING", None),
        (("drain", "cancel"), "CANCELLED", Reason.USER_CANCELLED),
        (("drain", "run time"), "TIMEOUT", Reason.POLICY_MAX_RUNTIME),
    ],
)
async def test_a_job_that_was_stopping_ends_after_a_restart_as_it_was_asked_to_last(
    tmp_path: Path, acts: tuple[str, ...], state: str, reason: Reason | None
) -> None:
    """A drain alone has it wait; a hold that was taken back is no hold."""
    async with facing(tmp_path) as face:
        agent, job_id = await _stopping(face.world, "5s" if "run time" in acts else None)
        for act in acts:
            if act == "drain":
                assert (await face.json("POST", "/api/v1/nodes/n1/drain", {"now": True}))[0] == 200
            elif act == "run time":
                await face.world.advance(6.0)
            else:
                ada = face.token("ada", UserRole.USER)
                assert (await face.json("POST", f"/api/v1/jobs/{job_id}/{act}", token=ada))[0] == 200
    async with world(tmp_path) as w:
        agent.world = w
        await agent.end(job_id, exit_code=None, signal=15)
        row = w.server.store.job(job_id)
        assert row.state == state
        assert reason in (None, row.reason)


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


async def test_an_operators_hold_of_a_job_that_its_owner_holds_is_not_its_owners_to_lift(face: Face) -> None:
    ada, ops = face.token("ada", UserRole.USER), face.token("ops", UserRole.OPERATOR)
    _, submitted = await face.json("POST", "/api/v1/jobs", {"run": "true", "hold": True}, token=ada)
    path = f"/api/v1/jobs/{submitted['id']}"
    assert (await face.json("POST", f"{path}/hold", token=ops))[0] == 200
    _, told = await face.json("GET", f"{path}/explain", token=ada)
    _, shown = await face.json("GET", path, token=ada)
    assert (told["reasons"][0]["reason"], shown["reason"]) == (Reason.HOLD_ADMIN, Reason.HOLD_ADMIN)
    assert (await face.json("POST", f"{path}/release", token=ada))[0] == 403
    assert (await face.json("POST", f"{path}/release", token=ops))[0] == 200


def _older_rows() -> WriteBatch:
    """Machines that leave for each reason, and attempts that stop for each, as the release before wrote them."""
    details = {
        "noticed": "notice: gone in 120 s", "drained": "drained by notice: ada; what cannot be saved runs on",
        "restored": "", "pool": POOL_IS_DRAINED, "up": "notice: EC2 may take it away",
    }  # fmt: skip
    nodes = [
        NodeRow(NodeId(name), PoolId("p"), "{}", name, "up", 1.0, "" if name == "up" else "leaving", detail)
        for name, detail in details.items()
    ]
    batch = WriteBatch(*nodes)
    for number, (reason, where) in enumerate(_STOPS, 1):
        job_id = JobId(number)
        batch.put(JobRow(job_id, "j", "p", "ada", "k", JobState.PREEMPTING, 50, 1, 1.0, attempts=1))
        row = AttemptRow(job_id, 1, AttemptState.STOPPING, PoolId("p"), "a", False, 1, 2.0, f'[["{where}", [0]]]')
        row.reason = reason
        batch.put(row)
        batch.put(PartRow(job_id, 1, NodeId(where), 0))
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
        assert {
            row.node_id: (row.cordon, row.notice_s, row.drained_by, row.detail) for row in loaded.rows(NodeRow)
        } == {
            "noticed": ("leaving", 0.0, DrainedBy.NOBODY, ""),
            "drained": ("leaving", None, DrainedBy.ADMIN, "drained by notice: ada; what cannot be saved runs on"),
            "restored": ("leaving", None, DrainedBy.ADMIN, ""),
            "pool": ("leaving", None, DrainedBy.POOL, POOL_IS_DRAINED),
            "up": ("", None, DrainedBy.NOBODY, "notice: EC2 may take it away"),
        }
        held = {int(row.job_id): row.held_by for row in loaded.rows(AttemptRow)}
        held_by = [None, Reason.HOLD_ADMIN, Reason.HOLD_USER, Reason.HOLD_BUDGET, None, None]
        assert held == dict(enumerate(held_by, 1))


NODE = "/api/v1/nodes/n1"


async def _silent(face: Face, seconds: float) -> None:
    face.world.clock.at += seconds
    await face.world.loop.perform(face.world.server.gateway.notice_silence)


async def test_a_member_that_is_heard_stays(face: Face) -> None:
    await FakeAgent(face.world, "n1").register()
    status, problem = await face.json("DELETE", NODE)
    assert status == 409
    assert "heard 0 s ago" in problem["detail"]
    assert "stop its agent" in problem["fix"]
    assert (await face.json("DELETE", "/api/v1/nodes/nope"))[0] == 404
    operator = face.token("ada", UserRole.OPERATOR)
    assert (await face.json("DELETE", NODE, token=operator))[0] == 403
    assert [node["node_id"] for node in (await face.got("/nodes"))] == ["n1"]


async def test_a_machine_that_holds_an_attempt_stays_until_it_is_lost(face: Face) -> None:
    """Silent, but its ranks may be alive; once its leases have run out it may go, and the job is elsewhere or waits."""
    _agent, job_id = await face.world.running()
    await _silent(face, 16.0)
    status, problem = await face.json("DELETE", NODE)
    assert (status, problem["detail"]) == (409, f"n1 holds a part of an attempt of job {job_id}")
    await _silent(face, 20.0)
    assert face.world.live_state.nodes["n1"].row.state == "lost"
    status, view = await face.json("DELETE", NODE)
    assert (status, view["state"]) == (200, "lost")
    assert (await face.got("/nodes")) == []
    row = (await face.got("/audit"))[0]
    assert (row["action"], row["subject"]) == ("DELETE /api/v1/nodes/{node_id}", "node n1")
    assert row["before"]["state"] == "lost"


@pytest.mark.sqlite_file
async def test_a_drained_silent_machine_leaves_the_core_and_the_tables_and_may_join_anew(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        await agent.beat()
        await face.json("POST", f"{NODE}/drain")
        await _silent(face, 16.0)
        assert (await face.json("DELETE", NODE))[0] == 200
        assert face.world.server.core.ledger.fleet.machine("n1") is None  # type: ignore[arg-type]
        assert face.world.server.gateway.node_of(agent.credential) is None
    async with world(tmp_path) as again:
        assert not again.live_state.nodes
        _back, job_id = await again.running()
        assert again.state(job_id) == "RUNNING"
    async with world(tmp_path) as third:
        assert list(third.live_state.nodes) == ["n1"]
    assert replay_journal(read_stored_journal(tmp_path)).identical


FIT = [{"device": 0}, {"device": 1}]
FAULT = [{"device": 0}, {"device": 1, "fault": "Xid 79, it fell off the bus\x1b[2J"}]
SHOWN = "GPU 1: Xid 79, it fell off the bus?[2J"


async def test_a_faulty_machine_takes_no_jobs_and_says_why_until_it_is_checked(tmp_path: Path) -> None:
    """Its state and the reason are in the tables and survive a restart of the server; so does its return."""
    async with world(tmp_path) as w:
        agents = [await FakeAgent(w, name).register() for name in ("n1", "n2")]
        for agent in agents:
            await agent.beat(devices=FIT)
        await agents[0].beat(devices=FAULT)
        row = w.live_state.nodes["n1"].row  # type: ignore[index]
        assert (row.state, row.cordon, row.detail) == ("up", "quarantined", SHOWN)
        await agents[0].beat(devices=FAULT)
        for _ in range(2):
            await w.submit({"run": "true", "resources": {"accelerators": "a:2"}})
        await w.loop.settled()
        assert [len((await agent.beat()).commands) for agent in agents] == [0, 1]
    async with world(tmp_path) as again:
        again_row = again.live_state.nodes["n1"].row  # type: ignore[index]
        assert (again_row.cordon, again_row.detail) == ("quarantined", SHOWN)
        for agent in agents:
            agent.world = again
        await agents[0].beat(devices=FAULT, resync=True)
        await agents[0].beat(devices=FIT)
        assert (again_row.cordon, again_row.detail) == ("", "")
