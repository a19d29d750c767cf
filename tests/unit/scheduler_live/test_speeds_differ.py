"""Jobs that are not as fast as their kind, as a live server finds them, and jobs that never step."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.explain.job_conditions import NO_STEPS, SPEED_DIFFERS, believed_speeds, job_conditions
from scheduler.forecast.job_forecasts import ForecastQuestion, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from scheduler.live.loop.recurring_steps import keep_core_state
from scheduler.live.services.job_submission import dry_run
from scheduler.live.services.start_forecasts import take_snapshot
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from scheduler.live.store.store_interface import JobQuery
from scheduler.live.store.table_rows import SpeedRow
from tests.support.live_world import FIFO, FakeAgent, World, world
from walras.job_request import JobId
from walras.states import JobState, Reason

WALRAS = {"policy": {"name": "walras"}, "rules": FIFO["rules"] | {"resolve_min_s": 0.0}}


def told(w: World) -> list[str]:
    events = ("SpeedDiffers", "NetworkMeasured")
    return [row.type for row in w.server.store.journal() if row.type in events]


async def test_two_kinds_under_one_name_do_not_spoil_each_other(w: World) -> None:
    """Both were declared `cnn`; the second goes half as fast, and is counted with its own speed."""
    agent, first = await w.running({"profile": "cnn"})
    await agent.beat(agent.progress(first, 1, 5.0, steps_per_s=8.0, samples=20, start_s=1.5))
    await agent.end(first)
    second = await w.submit({"profile": "cnn", "preemptible": "always"})
    await agent.start_all()
    await agent.train(second, 1, 4.0, samples=12, start_s=1.5)
    await w.quiet()
    core = w.server.core
    assert told(w) == ["SpeedDiffers"]
    assert [each.speed.steps_per_s for each in believed_speeds(core, second)] == [4.0]
    assert core.ledger.table.measured("cnn", "a", 1) == 8.0  # type: ignore[arg-type]
    (condition,) = job_conditions(core, second)
    assert "cnn at 0.5 times its speed" in condition.detail
    assert "give jobs that differ a `profile` each" in condition.detail
    assert [row.steps_per_s for row in w.server.store.load().rows(SpeedRow)] == [8.0]
    assert replay_journal(w.server.store.journal()).identical


async def test_a_few_odd_steps_make_no_kind(w: World, agent: FakeAgent) -> None:
    """Noise is not another kind: it takes ten windows of steps, and a factor of one and a half."""
    for steps_per_s, samples in ((8.0, 20), (4.0, 2), (6.5, 30)):
        job_id = await w.submit({"profile": "cnn"})
        await agent.start_all()
        await agent.train(job_id, 1, steps_per_s, samples=samples)
        await agent.end(job_id)
    assert told(w) == []


async def test_a_slow_network_is_told_once_and_slows_its_job(w: World) -> None:
    """A scripted network: the second gang gets half of what the first one got, and says so with every report."""
    agents = [await FakeAgent(w, "n1").register(), await FakeAgent(w, "n2").register()]
    jobs = []
    for bytes_per_s in (1e9, 5e8):
        job_id = await w.submit({"profile": "gang", "num_nodes": 2, "resources": {"accelerators": "a:4"}})
        jobs.append(job_id)
        for agent in agents:
            await agent.beat()
            mine = [c for c in agent.commands if c.type == "prepare" and c.job_id == job_id]
            prepared = {"type": "prepared", "job_id": job_id, "attempt": 1}
            await agent.beat({**prepared, **({} if mine[0].node_rank else {"address": "10.0.0.1", "port": 4321})})
        for agent in agents:
            await agent.start_all()
        values = {"network_bytes_per_s": bytes_per_s}
        first = next(a for a in agents if a.here[job_id, 1].first_rank == 0)
        # Its own steps are counted later: until then its speed is an estimate.
        speed = {"steps_per_s": 8.0} if bytes_per_s == 1e9 else {}
        for steps in (5.0, 6.0):
            await first.beat(first.progress(job_id, 1, steps, samples=20, values=values, **speed))
        if bytes_per_s == 1e9:
            for agent in agents:
                await agent.end(job_id)
    await w.quiet()
    assert told(w) == ["NetworkMeasured", "NetworkMeasured"]
    (speed_now,) = believed_speeds(w.server.core, jobs[1])
    # Half of a step is taken to be exchange, which takes twice as long.
    assert speed_now.speed.steps_per_s == pytest.approx(8.0 / 1.5, rel=0.01)
    assert replay_journal(w.server.store.journal()).identical


async def agents_with_a_slow_one(w: World) -> dict[str, FakeAgent]:
    """Three machines, of which the second is a third slower for every job, after three jobs on each."""
    agents = {name: await FakeAgent(w, name).register() for name in ("n1", "n2", "n3")}
    for _ in range(3):
        jobs = [await w.submit({"profile": "cnn", "resources": {"accelerators": "a:2"}}) for _ in agents]
        for agent in agents.values():
            await agent.beat()
            await agent.start_all()
        places = {job_id: next(a for a in agents.values() if (job_id, 1) in a.here) for job_id in jobs}
        for n in range(1, 10):
            await w.advance(30.0)
            for job_id, agent in places.items():
                speed = 6.0 if agent is agents["n2"] else 9.0
                told_now = agent.progress(job_id, 1, n * 30.0 * speed, steps_per_s=speed + n / 100, samples=8)
                await agent.beat(told_now)
        for job_id, agent in places.items():
            await agent.end(job_id)
    await w.quiet()
    return agents


async def test_a_slow_machine_is_told_and_not_held_against_its_kind(w: World) -> None:
    """Three machines, one a third slower for every job: `walras nodes` says so, and the kind's speed is the others'."""
    agents = await agents_with_a_slow_one(w)
    assert {node.node_id: node.detail for node in w.server.views.nodes()} == {
        "n1": "", "n2": "33 % slower than others of its pool, by what jobs report", "n3": "",
    }  # fmt: skip
    jobs = [await w.submit({"profile": "cnn", "resources": {"accelerators": "a:2"}}) for _ in agents]
    every = [each for job_id in jobs for each in job_conditions(w.server.core, job_id)]
    (condition,) = (each for each in every if each.type == SPEED_DIFFERS)
    assert condition.detail.startswith("n2 is 33 % slower")
    assert w.server.core.ledger.table.measured("cnn", "a", 2) == pytest.approx(9.0, rel=0.05)  # type: ignore[arg-type]
    assert replay_journal(w.server.store.journal()).identical


SMALL = {"profile": "cnn", "resources": {"accelerators": "a:2"}, "steps": 100_000}


async def trained_beside_a_slow_one(w: World) -> dict[str, FakeAgent]:
    """Three jobs on three machines, of which the second is known to be slow; the state of the core is written down."""
    agents = await agents_with_a_slow_one(w)
    for _ in agents:
        await w.submit(SMALL)
    for _ in range(3):
        await w.advance(400.0)
        for agent in agents.values():
            await agent.beat()
            await agent.start_all()
    await w.server.loop.perform_in_pieces(keep_core_state)
    return agents


def priced(w: World) -> list[tuple[str, float]]:
    return [(each.pool, each.capacity) for each in w.server.views.prices().items]


@pytest.mark.sqlite_file
async def test_a_restarted_server_knows_which_machines_are_slow(tmp_path: Path) -> None:
    """It goes on with their pool, tells it, foresees ends by their speed, and its journal replays."""
    async with world(tmp_path, policy=WALRAS) as w:
        await trained_beside_a_slow_one(w)
        before, running = priced(w), set(w.server.core.ledger.jobs)
        told = {node.node_id: node.detail for node in w.server.views.nodes()}
        attempts = [w.live_state.attempt(job_id, 1) for job_id in running]
        assert replay_journal(w.server.store.journal()).identical
    (pool_id, _), (apart, _) = before
    assert before == [(pool_id, 4.0), (f"{pool_id}~slow", 2.0)]
    assert {each.placement.pool_id for each in attempts if each is not None} == {pool_id}, "jobs see the declared pool"
    assert told["n2"].endswith(f"by what jobs report; its accelerators have a price of their own, as {apart}")
    async with world(tmp_path, policy=WALRAS) as w:
        assert [(state.name, state.capacity) for state in w.server.core.ledger.fleet.pools] == before
        assert priced(w) == before
        assert {node.node_id: node.detail for node in w.server.views.nodes()} == told
        assert (told["n1"], told["n3"]) == ("", "")
        core = w.server.core
        (on_slow,) = (job_id for job_id in running if core.ledger.rate_of(core.ledger.jobs[job_id]) < 7.0)
        speeds = {
            each["pool"]: each["steps_per_s"]
            for each in dry_run(core, replace(core.ledger.jobs[on_slow].request, job_id=JobId(99))).configurations
        }
        assert speeds == {pool_id: pytest.approx(9.0, rel=0.05), apart: pytest.approx(6.0, rel=0.05)}
        question = ForecastQuestion(await take_snapshot(w.loop), PastJobs(), draws=3, cpu_s=60.0)
        ends = {job_id: each.end.p50 for job_id, each in forecast_jobs(question).jobs.items()}
        assert max(ends, key=lambda job_id: ends[job_id]) == on_slow
    assert replay_journal(read_stored_journal(tmp_path)).identical


@pytest.mark.sqlite_file
async def test_a_server_starts_from_what_a_release_without_slow_machines_wrote(tmp_path: Path) -> None:
    """It knows none, prices the declared pool alone, and finds them anew."""
    async with world(tmp_path, policy=WALRAS) as w:
        await trained_beside_a_slow_one(w)
    with sqlite3.connect(tmp_path / "walras.db") as database:
        ((body,),) = database.execute("SELECT body FROM core_state")
        state = json.loads(body)
        assert [name for name, *_ in state.pop("paces")] == ["n2"]
        state["prices"] = [each for each in state["prices"] if "~" not in each[0]]
        database.execute("UPDATE core_state SET body = ?", (json.dumps(state),))
    database.close()
    async with world(tmp_path, policy=WALRAS) as w:
        assert [capacity for _, capacity in priced(w)] == [6.0]
        assert {node.detail for node in w.server.views.nodes()} == {""}
    assert replay_journal(read_stored_journal(tmp_path)).identical


async def test_a_running_job_that_never_steps_is_told(w: World) -> None:
    """After ten minutes, if its steps are stated; a job that steps, or states none, is not."""
    agent = await FakeAgent(w, "n1", accelerators=3).register()
    silent, works, unstated = [
        await w.submit({"resources": {"accelerators": {"a": 1}}, "preemptible": "always", **more})
        for more in ({"steps": 100}, {"steps": 100}, {})
    ]
    await agent.start_all()
    await w.advance(10.0)
    await agent.beat(agent.progress(works, 1, 5.0, steps_per_s=1.0, start_s=1.0))
    assert job_conditions(w.server.core, silent) == ()
    for _ in range(65):
        await w.advance(10.0)
        await agent.beat()
    (told,) = job_conditions(w.server.core, silent)
    assert told.type == NO_STEPS
    assert "walras.training.Loop" in told.detail
    assert job_conditions(w.server.core, works) == job_conditions(w.server.core, unstated) == ()


async def test_of_two_jobs_of_one_kind_that_declare_different_speeds_the_first_is_believed(w: World) -> None:
    """Until one is measured, which both then go by."""
    agent = await FakeAgent(w, "n1", accelerators=2).register()
    given = {"profile": "cnn", "resources": {"accelerators": {"a": 1}}}
    first = await w.submit({**given, "throughput": {"a": 5.0}})
    second = await w.submit({**given, "throughput": {"a": 50.0}})
    assert [believed_speeds(w.server.core, each)[0].speed.steps_per_s for each in (first, second)] == [5.0, 5.0]
    await agent.start_all()
    await agent.beat(agent.progress(second, 1, 5.0, steps_per_s=40.0, start_s=1.0, samples=20))
    assert believed_speeds(w.server.core, second)[0].speed.steps_per_s == 40.0


async def test_memory_is_a_limit_that_machines_hold_and_the_server_names(tmp_path: Path) -> None:
    """The start says how much the ranks of one machine may use; an end for that is USER:OOM."""
    resources = {"accelerators": "any:2", "memory": "1GB"}
    async with world(tmp_path / "data") as w:
        agent = await FakeAgent(w, "n1", accelerators=2).register()
        await w.submit({"resources": resources})
        (start,) = await agent.start_all()
        assert start.memory_bytes == 2 * 10**9
        await agent.end(1, exit_code=None, signal=9, exceeded="memory")
    async with world(tmp_path / "data") as w:
        (row,) = w.server.store.jobs(JobQuery())
    assert (row.state, row.reason) == (JobState.FAILED, Reason.USER_OOM)
