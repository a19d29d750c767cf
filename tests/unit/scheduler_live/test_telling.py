"""What lists and records tell people: the reason that holds now, speeds that are true, why a machine left."""

from pathlib import Path

import pytest

from scheduler.core.commands import ReleaseNode
from scheduler.live.loop.transaction import TransactionEffects
from scheduler.live.services import job_submission
from tests.support.http_face import facing
from tests.support.live_world import FakeAgent, world
from walras.cluster import NodeId

pytestmark = pytest.mark.sql

API = "/api/v1"
ONE_OF_TWO = {"run": "true", "resources": {"accelerators": "a:2"}}


async def test_every_waiting_job_of_a_list_has_its_first_reason_with_numbers(tmp_path: Path) -> None:
    """Computed when asked; jobs that run have none; `show` says the same."""
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        for _ in range(3):
            await face.json("POST", f"{API}/jobs", ONE_OF_TWO)
        await agent.start_all()
        _, page = await face.json("GET", f"{API}/jobs")
        by_id = {item["id"]: item for item in page["items"]}
        assert (by_id[1]["state"], by_id[1]["reason"], by_id[1]["detail"]) == ("RUNNING", None, "")
        for job_id in (2, 3):
            assert by_id[job_id]["reason"] == "WAIT:CAPACITY"
            assert "ax2/owned/default: needs 2, 0 of 2 free" in by_id[job_id]["detail"]
        assert (await face.json("GET", f"{API}/jobs/2"))[1]["detail"] == by_id[2]["detail"]


async def test_a_retried_job_tells_what_failed_and_when_it_is_tried_again(tmp_path: Path) -> None:
    """What was written down stands before what holds now."""
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        await face.json("POST", f"{API}/jobs", {"run": "true", "retry": {"max_restarts": 2}})
        await agent.start_all()
        await agent.end(1, exit_code=7)
        _, job = await face.json("GET", f"{API}/jobs/1")
        assert job["reason"] == "WAIT:BACKOFF"
        assert job["detail"] == "exit code 7; retry 1 of 2; not before 1 s from now"
        _, told = await face.json("GET", f"{API}/jobs/1/explain")
        assert told["reasons"][0]["detail"] == job["detail"]


async def test_an_end_is_explained_with_what_to_do_about_it(tmp_path: Path) -> None:
    """A failed job points to its log; one that succeeded needs no reason."""
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        for code in (0, 3):
            job_id = await face.world.submit({})
            await agent.start_all()
            await agent.end(job_id, exit_code=code)
        assert (await face.json("GET", f"{API}/jobs/1/explain"))[1]["reasons"] == []
        (reason,) = (await face.json("GET", f"{API}/jobs/2/explain"))[1]["reasons"]
        assert (reason["reason"], reason["detail"]) == ("USER:EXIT_CODE", "exit code 3")
        assert "walras logs 2" in reason["fix"]


async def test_a_moved_job_shows_no_speed_until_its_new_attempt_has_one(tmp_path: Path) -> None:
    """The speed of the attempt before was of another machine."""
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
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


async def test_a_silent_machine_and_its_cancelled_job_say_what_will_become_of_them(tmp_path: Path) -> None:
    """The machine counts down to the end of its lease; the job keeps who cancelled it to its end."""
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        job_id = await face.world.submit({})
        await agent.start_all()
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


async def test_an_answer_is_remembered_for_a_day(tmp_path: Path) -> None:
    """The same key means the same job for 24 h, then it is new; what is older leaves the database."""
    async with facing(tmp_path) as face:
        body = {"run": "true"}
        assert (await face.json("POST", f"{API}/jobs", body, key="k"))[0] == 201
        face.world.clock.at += job_submission.ANSWER_KEPT_S - 1
        assert (await face.json("POST", f"{API}/jobs", body, key="k"))[0] == 200
        face.world.clock.at += 2
        assert (await face.json("POST", f"{API}/jobs", body, key="other"))[0] == 201
        assert face.world.server.store.answer("admin", "k") is None
        status, again = await face.json("POST", f"{API}/jobs", body, key="k")
        assert (status, again["id"]) == (201, 3)
