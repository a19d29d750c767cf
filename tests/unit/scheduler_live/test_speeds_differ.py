"""Jobs that are not as fast as their kind, as a live server finds them: by their steps, and by their network."""

import json
import sqlite3
from pathlib import Path

import pytest

from scheduler.core.explain.job_conditions import SPEED_DIFFERS, believed_speeds, job_conditions
from scheduler.forecast.job_forecasts import ForecastQuestion, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from scheduler.live.loop.recurring_steps import keep_core_state
from scheduler.live.services.dry_run import dry_run
from scheduler.live.services.start_forecasts import take_snapshot
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from tests.support.live_world import FIFO, FakeAgent, World, world

WALRAS = {"policy": {"name": "walras"}, "rules": FIFO["rules"] | {"resolve_min_s": 0.0}}


def told(w: World) -> list[str]:
    events = ("SpeedDiffers", "NetworkMeasured")
    return [row.type for row in w.server.store.journal() if row.type in events]


async def test_two_kinds_under_one_name_do_not_spoil_each_other(tmp_path: Path) -> None:
    """Both were declared `cnn`; the second goes half as fast, and is counted with its own speed."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        first = await w.submit({"profile": "cnn"})
        await agent.start_all()
        await agent.beat(agent.progress(first, 1, 5.0, steps_per_s=8.0, samples=20, start_s=1.5))
        await agent.end(first)
        second = await w.submit({"profile": "cnn", "preemptible": "always"})
        await agent.start_all()
        await agent.beat(agent.progress(second, 1, 5.0, steps_per_s=4.0, samples=12, start_s=1.5))
        await w.quiet()
        core = w.server.core
        assert told(w) == ["SpeedDiffers"]
        assert [each.speed.steps_per_s for each in believed_speeds(core, second)] == [4.0]
        assert core.ledger.table.measured("cnn", "a", 1) == 8.0  # type: ignore[arg-type]
        (condition,) = job_conditions(core, second)
        assert "cnn at 0.5 times its speed" in condition.detail
        assert [row.steps_per_s for row in w.server.store.load().speeds] == [8.0]
        assert replay_journal(w.server.store.journal()).identical


async def test_a_few_odd_steps_make_no_kind(tmp_path: Path) -> None:
    """Noise is not another kind: it takes ten windows of steps, and a factor of one and a half."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        for steps_per_s, samples in ((8.0, 20), (4.0, 2), (6.5, 30)):
            job_id = await w.submit({"profile": "cnn"})
            await agent.start_all()
            await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=steps_per_s, samples=samples))
            await agent.end(job_id)
        assert told(w) == []


async def test_a_slow_network_is_told_once_and_slows_its_job(tmp_path: Path) -> None:
    """A scripted network: the second gang gets half of what the first one got, and says so with every report."""
    async with world(tmp_path) as w:
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
        for steps in range(1, 8):
            await w.advance(30.0)
            for job_id, agent in places.items():
                speed = 6.0 if agent is agents["n2"] else 9.0
                told_now = agent.progress(job_id, 1, float(steps), steps_per_s=speed + steps / 100, samples=8)
                await agent.beat(told_now)
        for job_id, agent in places.items():
            await agent.end(job_id)
    await w.quiet()
    return agents


async def test_a_slow_machine_is_told_and_not_held_against_its_kind(tmp_path: Path) -> None:
    """Three machines, one a third slower for every job: `walras nodes` says so, and the kind's speed is the others'."""
    async with world(tmp_path) as w:
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


async def test_under_prices_a_slow_machine_has_one_of_its_own(tmp_path: Path) -> None:
    """`walras prices` and `walras nodes` tell it; jobs are told of the declared pool; the journal replays."""
    async with world(tmp_path, policy=WALRAS) as w:
        agents = await agents_with_a_slow_one(w)
        jobs = [await w.submit({"profile": "cnn", "resources": {"accelerators": "a:2"}}) for _ in range(4)]
        for _ in range(3):
            await w.advance(400.0)
            for agent in agents.values():
                await agent.beat()
        await w.quiet()
        ((pool_id, machines, *_), (apart, *others)) = [
            (each.pool, each.capacity, each.free) for each in w.server.views.prices().items
        ]
        assert (machines, apart, others) == (4.0, f"{pool_id}~slow", [2.0, 0.0])
        detail = next(node.detail for node in w.server.views.nodes() if node.node_id == "n2")
        assert detail.endswith(f"by what jobs report; its accelerators have a price of their own, as {apart}")
        attempts = [w.live_state.attempt(job_id, 1) for job_id in jobs]
        assert {each.placement.pool_id for each in attempts if each is not None} == {pool_id}
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
    (pool_id, _), (apart, _) = before
    assert before == [(pool_id, 4.0), (f"{pool_id}~slow", 2.0)]
    async with world(tmp_path, policy=WALRAS) as w:
        assert [(state.name, state.capacity) for state in w.server.core.ledger.fleet.pools] == before
        assert priced(w) == before
        told = {node.node_id: node.detail for node in w.server.views.nodes()}
        assert told["n2"].endswith(f"by what jobs report; its accelerators have a price of their own, as {apart}")
        assert (told["n1"], told["n3"]) == ("", "")
        core = w.server.core
        (on_slow,) = (job_id for job_id in running if core.ledger.rate_of(core.ledger.jobs[job_id]) < 7.0)
        speeds = {
            each["pool"]: each["steps_per_s"]
            for each in dry_run(core, core.ledger.jobs[on_slow].request).configurations
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
