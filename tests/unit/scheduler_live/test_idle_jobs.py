"""Jobs that do nothing with their accelerators: noted, told of, and held where an administrator asks for it."""

from typing import Any

import pytest

from scheduler.core.events import JobReleased
from scheduler.live.services.job_watch import IdleJobs
from tests.support.live_world import FakeAgent, World
from tests.support.notification_receiver import POOL, add_channel, waiting_notifications
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.cluster_file import ClusterConfig, IdleJobEntry
from walras.spec.file_model import check_model

HELD = {"below": "5%", "for": "10m", "act": "requeue-held"}


def rule(**more: Any) -> IdleJobEntry:
    return check_model(IdleJobEntry, {**HELD, **more}, source="cluster")


async def samples(agent: FakeAgent, *utilization: float | None) -> None:
    await agent.beat(devices=[{"device": device, "utilization": used} for device, used in enumerate(utilization)])


async def pass_minutes(w: World, idle: IdleJobs, agent: FakeAgent, minutes: int, *utilization: float | None) -> None:
    """A heartbeat a minute, with these samples, and a look after each."""
    for _ in range(minutes):
        w.clock.at += 60.0
        await samples(agent, *utilization) if utilization else await agent.beat()
        await idle.look()


async def running(w: World, agent: FakeAgent, **more: Any) -> JobId:
    job_id = await w.submit({"resources": {"accelerators": {"a": 2}}, "checkpoint": {"dir": "d"}, **more})
    await agent.start_all()
    return job_id


async def test_an_idle_job_is_told_of_and_held_after_its_checkpoint(w: World, agent: FakeAgent) -> None:
    """Its owner may release it, and then it counts anew."""
    await add_channel(w, "https://example.org/x", "idle")
    job_id = await running(w, agent)
    idle = IdleJobs(w.loop, rule())
    await idle.look()
    await pass_minutes(w, idle, agent, 9, 4.9, 0.0)
    assert w.state(job_id) == "RUNNING"
    await pass_minutes(w, idle, agent, 2, 4.9, 0.0)
    assert w.state(job_id) == "PREEMPTING"
    (told,) = waiting_notifications(w)
    assert (told["kind"], told["title"]) == ("idle", "job 1 (job) is idle, and is held after its checkpoint")
    assert "used for less than 5% for 10m" in told["text"]
    await agent.end(job_id, exit_code=85)
    row = w.live_state.jobs[job_id].row
    assert (row.state, row.reason) == ("HELD", "HOLD:IDLE")
    await w.emit(lambda at: JobReleased(at, job_id))
    await agent.start_all()
    await pass_minutes(w, idle, agent, 5, 0.0, 0.0)
    assert w.state(job_id) == "RUNNING"


async def test_what_is_used_or_not_known_is_not_idle(w: World) -> None:
    """One accelerator at work, one whose driver says nothing, one without samples; no samples; emulated ones."""
    said: list[tuple[tuple[float | None, ...], bool]] = [
        ((0.0, 5.0), False), ((0.0, None), False), ((0.0,), False), ((), False), ((0.0, 0.0), True), ((0.0, 0.0), False)
    ]  # fmt: skip
    idle, agents = IdleJobs(w.loop, rule(act="notify")), []
    for number, (_, emulated) in enumerate(said):
        facts = {"shape": "bx2", "accelerator": "b"} if emulated else {}
        agents.append(await FakeAgent(w, f"n{number}", emulated=emulated, **facts).register())
        await running(w, agents[-1], resources={"accelerators": {"b" if emulated else "a": 2}})
    for _ in range(14):
        w.clock.at += 60.0
        for agent, (utilization, _) in zip(agents, said, strict=True):
            await samples(agent, *utilization)
        await idle.look()
    attempts = [job.attempt for job in w.live_state.jobs.values()]
    assert [attempt is not None and bool(attempt.idle_detail) for attempt in attempts] == [False] * 5 + [True]


async def test_a_moment_of_work_or_of_silence_begins_the_time_anew(w: World, agent: FakeAgent) -> None:
    """One sample between two looks is enough, whatever the newest says."""
    job_id = await running(w, agent)
    idle = IdleJobs(w.loop, rule())
    for between in ((60.0, 60.0), ()):
        await pass_minutes(w, idle, agent, 9, 0.0, 0.0)
        if between:
            await samples(agent, *between)
            await pass_minutes(w, idle, agent, 1, 0.0, 0.0)
        else:
            await pass_minutes(w, idle, agent, 1)
    assert w.state(job_id) == "RUNNING"


async def test_a_job_that_would_lose_its_work_is_only_told_of(w: World) -> None:
    """The condition says why it runs on, until it works again."""
    idle, agents, jobs = IdleJobs(w.loop, rule()), [], []
    for number, more in enumerate(({"preemptible": False}, {"checkpoint": {}})):
        agents.append(await FakeAgent(w, f"n{number}").register())
        jobs.append(await running(w, agents[-1], **more))
    for used in (*[0.0] * 12, 90.0):
        told = [w.server.views.idle(w.live_state.jobs[job_id].row) for job_id in jobs]
        w.clock.at += 60.0
        for agent in agents:
            await samples(agent, used, 0.0)
        await idle.look()
    assert ["could not be stopped without loss" in each.detail for (each,) in told] == [True, True]
    assert [w.state(job_id) for job_id in jobs] == ["RUNNING", "RUNNING"]
    assert [w.server.views.idle(w.live_state.jobs[job_id].row) for job_id in jobs] == [[], []]


@pytest.mark.parametrize(
    "bad", [{"below": 5}, {"below": "0%"}, {"below": "101%"}, {"for": "1s"}, {"act": "kill"}, {"x": 1}]
)
def test_a_rule_that_says_nothing_clear_is_refused_by_its_field(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_model(ClusterConfig, {"pools": [POOL], "idle_job": {**HELD, **bad}}, source="cluster")
    assert refused.value.field == f"idle_job.{next(iter(bad))}"
