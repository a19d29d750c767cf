"""What lists and records tell people: the reason that holds now, speeds that are true, why a machine left."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.commands import ReleaseNode
from scheduler.live.loop.transaction import TransactionEffects
from scheduler.live.services import job_submission
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent, world
from walras.cluster import NodeId

pytestmark = pytest.mark.sql

API = "/api/v1"
ONE_OF_TWO = {"run": "true", "resources": {"accelerators": "a:2"}}


async def test_every_waiting_job_of_a_list_has_its_first_reason_with_numbers(face: Face, agent: FakeAgent) -> None:
    """Computed when asked; jobs that run have none; `show` says the same."""
    for _ in range(3):
        await face.json("POST", f"{API}/jobs", ONE_OF_TWO)
    await agent.start_all()
    _, page = await face.json("GET", f"{API}/jobs")
    by_id = {item["id"]: item for item in page["items"]}
    assert (by_id[1]["state"], by_id[1]["reason"], by_id[1]["detail"]) == ("RUNNING", None, "")
    for job_id in (2, 3):
        assert by_id[job_id]["reason"] == "WAIT:CAPACITY"
        assert "a: needs 2, 0 of 2 free" in by_id[job_id]["detail"]
    assert (await face.json("GET", f"{API}/jobs/2"))[1]["detail"] == by_id[2]["detail"]


async def test_a_retried_job_tells_what_failed_and_when_it_is_tried_again(face: Face, agent: FakeAgent) -> None:
    """What was written down stands before what holds now."""
    await face.json("POST", f"{API}/jobs", {"run": "true", "retry": {"max_restarts": 2}})
    await agent.start_all()
    await agent.end(1, exit_code=7)
    _, job = await face.json("GET", f"{API}/jobs/1")
    assert job["reason"] == "WAIT:BACKOFF"
    assert job["detail"] == "exit code 7; retry 1 of 2; not before 1s from now"
    _, told = await face.json("GET", f"{API}/jobs/1/explain")
    assert told["reasons"][0]["detail"] == job["detail"]


async def test_an_end_is_explained_with_what_to_do_about_it(face: Face, agent: FakeAgent) -> None:
    """A failed job points to its log; one that succeeded needs no reason."""
    for code in (0, 3):
        job_id = await face.world.submit({})
        await agent.start_all()
        await agent.end(job_id, exit_code=code)
    assert (await face.json("GET", f"{API}/jobs/1/explain"))[1]["reasons"] == []
    (reason,) = (await face.json("GET", f"{API}/jobs/2/explain"))[1]["reasons"]
    assert (reason["reason"], reason["detail"]) == ("USER:EXIT_CODE", "exit code 3")
    assert "walras logs 2" in reason["fix"]


async def test_a_moved_job_shows_no_speed_until_its_new_attempt_has_one(face: Face, agent: FakeAgent) -> None:
    """The speed of the attempt before was of another machine."""
    job_id = await face.world.submit({})

    async def speed() -> float | None:
        return (await face.json("GET", f"{API}/jobs/{job_id}"))[1]["steps_per_s"]  # type: ignore[no-any-return]

    await agent.start_all()
    await agent.beat(agent.progress(job_id, 1, 5.0, steps_per_s=2.5, samples=3))
    assert await speed() == 2.5
    await agent.end(job_id, exit_code=85)
    await agent.start_all()
    assert await speed() is None
    await agent.beat(agent.progress(job_id, 2, 6.0))
    assert await speed() is None
    await agent.beat(agent.progress(job_id, 2, 8.0, steps_per_s=4.0, samples=3))
    assert await speed() == 4.0
    await agent.end(job_id, attempt=2)
    assert await speed() == 4.0


async def test_a_machine_that_was_given_back_says_so_and_why(tmp_path: Path) -> None:
    """Not "lost": given back because it was not worth its price; the numbers stand beside it."""
    rules = {"round_s": 10.0, "resolve_min_s": 1.0, "delay_usd_per_h": 100.0, "rent_keep_s": 5.0, "profiling_s": 1.0}
    policy = {"policy": {"name": "max_min_fairness"}, "rules": rules}
    spot = {
        "shape": "sx1", "accelerator": "s", "accelerators": 1, "cpus": 8, "memory": "16GB", "market": "spot",
        "provider": "local", "usd_per_h": 0.5, "quota": 1,
    }  # fmt: skip
    async with world(tmp_path, policy=policy, cluster={"pools": [spot]}) as w:
        job_id = await w.submit({"value_usd_per_h": 90.0})
        await w.advance(3.0)
        facts = {"shape": "sx1", "accelerator": "s", "accelerators": 1, "memory_bytes": 16 * 10**9}
        agent = await FakeAgent(w, "spot-1", next(iter(w.live_state.rents)), market="spot", **facts).register()
        await agent.start_all()
        await agent.end(job_id)
        for _ in range(8):
            await w.advance(6.0)
        node = w.live_state.nodes[NodeId("spot-1")]
        assert node.row.detail.startswith("given back: idle for ")
        w.server.providers.deliver(TransactionEffects(releases=[ReleaseNode(NodeId("spot-1"))]))
        while node.row.state == "up":
            await w.quiet()
        assert (node.row.state, w.live_state.rents) == ("released", {})
        assert node.row.detail.endswith("at 0.5 USD/h 0 of 1 machines are worth their price")


async def test_a_silent_machine_and_its_cancelled_job_say_what_will_become_of_them(face: Face) -> None:
    """The machine counts down to the end of its lease; the job keeps who cancelled it to its end."""
    agent, job_id = await face.world.running()
    face.world.clock.at += 16
    await face.world.loop.perform(face.world.server.gateway.notice_silence)
    (node,) = (await face.json("GET", f"{API}/nodes"))[1]
    assert (node["state"], node["detail"]) == ("unreachable", "no heartbeat; lost in 9 s unless it comes back")
    _, job = await face.json("GET", f"{API}/jobs/{job_id}")
    assert (job["state"], job["detail"]) == ("UNREACHABLE", "no heartbeat from n1")
    await face.json("POST", f"{API}/jobs/{job_id}/cancel")
    await agent.end(job_id, exit_code=None, signal=15)
    _, job = await face.json("GET", f"{API}/jobs/{job_id}")
    assert (job["state"], job["reason"], job["detail"]) == ("CANCELLED", "USER:CANCELLED", "by admin")


async def test_an_answer_is_remembered_for_a_day(face: Face) -> None:
    """The same key means the same job for 24 h, then it is new; what is older leaves the database."""
    body = {"run": "true"}
    assert (await face.json("POST", f"{API}/jobs", body, key="k"))[0] == 201
    face.world.clock.at += job_submission.ANSWER_KEPT_S - 1
    assert (await face.json("POST", f"{API}/jobs", body, key="k"))[0] == 200
    face.world.clock.at += 2
    assert (await face.json("POST", f"{API}/jobs", body, key="other"))[0] == 201
    assert face.world.server.store.answer("admin", "k") is None
    status, again = await face.json("POST", f"{API}/jobs", body, key="k")
    assert (status, again["id"]) == (201, 3)


JOB = {"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000}


async def _reporting(face: Face, **values: float) -> int:
    """A job that runs and reports these values."""
    agent, job_id = await face.world.running(JOB)
    await agent.beat(agent.progress(job_id, 1, 30.0, steps_per_s=1.0, start_s=1.0, values=values))
    return job_id


async def _conditions(face: Face, job_id: int) -> dict[str, str]:
    answer: dict[str, Any] = (await face.json("GET", f"{API}/jobs/{job_id}/explain"))[1]
    return {each["type"]: each["detail"] for each in answer["conditions"]}


async def test_explain_says_how_much_of_its_steps_a_job_waits_for_its_data(face: Face) -> None:
    """With the most that any accelerator could change."""
    job_id = await _reporting(face, data_wait=0.384, loss=2.0)
    detail = (await _conditions(face, job_id))["waits_for_data"]
    assert detail.startswith("38% of its step it waits for its data: no accelerator could make it more than 2.6 times")
    job = (await face.json("GET", f"{API}/jobs/{job_id}"))[1]
    assert job["last_values"]["data_wait"] == 0.384
    assert face.world.live_state.data_waits == {("cnn", "a", 2): 4}


@pytest.mark.parametrize("share", [0.1, -0.5, 7.0, 1e300])
async def test_a_short_wait_is_no_news_and_nonsense_is_not_believed(face: Face, share: float) -> None:
    job_id = await _reporting(face, data_wait=share)
    assert "waits_for_data" not in await _conditions(face, job_id)
    assert face.world.live_state.data_waits == ({("cnn", "a", 2): 1} if share == 0.1 else {})


async def test_the_wait_is_part_of_the_question_to_the_predictors_and_noise_asks_nothing_again(face: Face) -> None:
    agent, job_id = await face.world.running(JOB)
    versions = []
    for steps, share in ((30.0, 0.41), (60.0, 0.43), (90.0, 0.62)):
        report = agent.progress(job_id, 1, steps, steps_per_s=1.0, start_s=1.0, values={"data_wait": share})
        await agent.beat(json.loads(json.dumps(report)))
        versions.append(face.world.live_state.data_waits_version)
    assert versions == [1, 1, 2]
