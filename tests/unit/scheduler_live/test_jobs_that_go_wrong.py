"""Scripts that never step, and two kinds of jobs under one name, in a live server."""

from pathlib import Path

from scheduler.core.explain.job_conditions import NO_STEPS, SPEED_DIFFERS, believed_speeds, job_conditions
from scheduler.live.store.store_interface import JobQuery
from tests.support.live_world import FakeAgent, world
from walras.states import JobState, Reason


async def test_a_running_job_that_never_steps_is_told(tmp_path: Path) -> None:
    """After ten minutes, if its steps are stated; a job that steps, or states none, is not."""
    async with world(tmp_path) as w:
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


async def test_of_two_jobs_of_one_kind_that_declare_different_speeds_the_first_is_believed(tmp_path: Path) -> None:
    """Until one is measured, which both then go by."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1", accelerators=2).register()
        given = {"profile": "cnn", "resources": {"accelerators": {"a": 1}}}
        first = await w.submit({**given, "throughput": {"a": 5.0}})
        second = await w.submit({**given, "throughput": {"a": 50.0}})
        assert [believed_speeds(w.server.core, each)[0].speed.steps_per_s for each in (first, second)] == [5.0, 5.0]
        await agent.start_all()
        await agent.beat(agent.progress(second, 1, 5.0, steps_per_s=40.0, start_s=1.0, samples=20))
        assert believed_speeds(w.server.core, second)[0].speed.steps_per_s == 40.0


async def test_two_kinds_under_one_name_are_told_apart(tmp_path: Path) -> None:
    """The one that came later goes by its own speed, and people are told to give it a profile."""
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1", accelerators=2).register()
        spec = {"profile": "cnn", "preemptible": "always", "resources": {"accelerators": {"a": 1}}}
        first, second = [await w.submit(spec) for _ in range(2)]
        await agent.start_all()
        await agent.beat(agent.progress(first, 1, 5.0, steps_per_s=10.0, start_s=1.0, samples=20))
        await agent.beat(agent.progress(second, 1, 5.0, steps_per_s=2.0, start_s=1.0, samples=20))
        (told,) = job_conditions(w.server.core, second)
        assert told.type == SPEED_DIFFERS
        assert "give jobs that differ a `profile` each" in told.detail
        assert job_conditions(w.server.core, first) == ()


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
