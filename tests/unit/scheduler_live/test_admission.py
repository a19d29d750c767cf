"""What the server refuses at the door because no waiting would ever start it, and what it admits to wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import JobCancelled
from scheduler.live.auth.access_control import UserRole
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world
from walras.errors import Conflict, JobSpecError
from walras.job_request import JobId

API = "/api/v1"
OWNED = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GB", "machines": 1}
SPOT = {
    "shape": "sx1", "accelerator": "s", "accelerators": 1, "cpus": 8, "memory": "16GB", "market": "spot",
    "provider": "local", "usd_per_h": 0.5, "quota": 3,
}  # fmt: skip


def wanting(accelerators: str, **more: Any) -> dict[str, Any]:
    return {"run": "true", **more, "resources": {"accelerators": accelerators, **more.get("resources", {})}}


NEVER = [
    (wanting("h900:1"), "resources.accelerators", "this fleet has a, s"),
    (wanting("a:64"), "resources.accelerators", "the most there can be is a: 2"),
    (wanting("s:4"), "resources.accelerators", "the most there can be is s: 3"),
    (wanting("s:2", num_nodes=1), "", ""),
    (wanting("a:4", num_nodes=2), "resources.accelerators", "over 2 machines"),
    (wanting("s:4", num_nodes=2), "num_nodes", "a machine has at most sx1: 1 x s, 8 cpus"),
    (wanting("a:2", resources={"cpus": 5}), "resources", "with 5 cpus"),
    (wanting("a:1", resources={"memory": "20GB"}), "resources", "18.6 GiB"),
]


@pytest.fixture
async def declared(tmp_path: Path) -> AsyncIterator[Face]:
    """Two pools of a cluster file, of which no machine has joined yet."""
    async with facing(tmp_path, cluster={"pools": [OWNED, SPOT]}) as found:
        yield found


@pytest.mark.parametrize(("spec", "field", "told"), NEVER)
async def test_what_the_fleet_can_never_run_is_refused_by_field_and_fix(
    declared: Face, spec: dict[str, Any], field: str, told: str
) -> None:
    """Types, sizes, machines and quotas of the declared pools count, joined or not; dry runs say the same."""
    for path in ("jobs:dryrun", "jobs"):
        status, answer = await declared.json("POST", f"{API}/{path}", spec)
        if not field:
            assert status in (200, 201)
        else:
            assert (status, answer["code"], answer["field"]) == (400, "job_spec", field), answer
            assert told in answer["detail"]
            assert answer["fix"]
    left = (await declared.json("GET", f"{API}/jobs"))[1]["items"]
    assert len(left) == (0 if field else 1)


async def test_one_impossible_job_of_a_batch_takes_no_number_and_harms_no_other(declared: Face) -> None:
    """The item carries the problem; what depends on it is refused with it; the rest is admitted."""
    jobs = [
        wanting("a:1", name="first"), wanting("h900:1", name="never"),
        wanting("a:1", name="after", depends_on=["never"]), wanting("a:1", name="last"),
    ]  # fmt: skip
    answer = await declared.done("POST", f"{API}/jobs:batch", {"jobs": jobs})
    assert [item["id"] for item in answer["items"]] == [1, None, None, 2]
    assert answer["items"][1]["error"]["field"] == "resources.accelerators"
    assert answer["items"][2]["error"]["field"] == "depends_on"


async def test_a_near_miss_is_named(declared: Face) -> None:
    """An unknown type that looks like one of the fleet's is answered with that one."""
    await FakeAgent(declared.world, "n1", shape="big", accelerator="a100").register()
    _, problem = await declared.json("POST", f"{API}/jobs", wanting("a10:1"))
    assert "did you mean 'a100'?" in problem["fix"]


async def test_a_family_is_a_choice_of_the_sizes_that_the_fleet_has(declared: Face) -> None:
    """`h100:1` may run on each H100 of the fleet at its declared speed; a wrong size is answered with a right one."""
    for number, name in enumerate(("h100-80gb", "h100-94gb", "a100-40gb"), start=1):
        await FakeAgent(declared.world, f"n{number}", shape=name, accelerator=name).register()
    job = wanting("NVIDIA H100:1", throughput={"h100": 4, "h100-94gb": 5}, steps=100)
    told = await declared.done("POST", f"{API}/jobs:dryrun", job)
    ways = {each["accelerator"]: (each["steps_per_s"], each["source"]) for each in told["configurations"]}
    assert ways == {"h100-80gb": (4.0, "declared"), "h100-94gb": (5.0, "declared")}
    quoted = await declared.done("POST", f"{API}/jobs:quote", job)
    assert {each["way"] for each in quoted["ways"] if each["way"]} == {"1 x h100-80gb", "1 x h100-94gb"}
    _, problem = await declared.json("POST", f"{API}/jobs", wanting("h100-40gb:1"))
    assert "did you mean 'h100-" in problem["fix"]
    _, problem = await declared.json("POST", f"{API}/jobs", wanting("h100:64"))
    assert "the most there can be is h100-80gb" in problem["detail"]


async def test_machines_join_a_pool_that_is_declared_as_a_family(tmp_path: Path) -> None:
    """A cluster file that says `h100` takes machines that find 80 GB, and not those that find something else."""
    pool = {**OWNED, "accelerator": "h100", "memory": "16GiB"}
    async with facing(tmp_path, cluster={"pools": [pool]}) as face:
        await FakeAgent(face.world, "n1", shape="ax2", accelerator="h100-80gb", accelerators=2).register()
        assert {each.shape.accelerator for each in face.world.live_state.pools.values()} == {"h100"}
        assert (await face.json("POST", f"{API}/jobs", wanting("h100:2")))[0] == 201
        with pytest.raises(Conflict, match="accelerator is a100-80gb here, h100 there"):
            await FakeAgent(face.world, "n2", shape="ax2", accelerator="a100-80gb", accelerators=2).register()


async def test_an_empty_fleet_admits_and_explains(face: Face) -> None:
    """Before any pool is known nothing is impossible: a newcomer may submit before the agents start."""
    assert (await face.json("POST", f"{API}/jobs", wanting("h900:64")))[0] == 201
    _, told = await face.json("POST", f"{API}/jobs:dryrun", wanting("h900:64"))
    assert (told["reason"], told["chosen"]) == ("WAIT:CAPACITY", None)
    (reason,) = (await face.json("GET", f"{API}/jobs/1/explain"))[1]["reasons"]
    assert (reason["reason"], "no machine has joined" in reason["detail"]) == ("WAIT:CAPACITY", True)
    await FakeAgent(face.world, "n1").register()
    (reason,) = (await face.json("GET", f"{API}/jobs/1/explain"))[1]["reasons"]
    assert reason["reason"] == "CONFIG:NO_SUCH_ACCELERATOR"


async def test_a_machine_that_is_away_still_counts(tmp_path: Path) -> None:
    """A lost machine may come back, across a restart of the server too; a third one would be new."""
    async with world(tmp_path) as w:
        for name in ("n1", "n2"):
            await FakeAgent(w, name).register()
        w.clock.at += 16
        await w.loop.perform(w.server.gateway.notice_silence)
        w.clock.at += 30
        await w.loop.perform(w.server.gateway.notice_silence)
        assert {node.row.state for node in w.live_state.nodes.values()} == {"lost"}
        await w.submit(wanting("a:4"))
    async with world(tmp_path) as again:
        await again.submit(wanting("a:4"))
        with pytest.raises(JobSpecError, match="the most there can be is a: 4"):
            await again.submit(wanting("a:5"))


async def test_a_user_has_a_share_of_the_jobs_that_have_not_ended(declared: Face) -> None:
    """Beyond half of what the others leave, jobs are refused with the number and the way out; an end frees one. Who
    comes next has room, also after a restart of the server.
    """
    declared.world.live_state.job_shares.most = 4
    spec = wanting("a:1")
    first, _ = [(await declared.json("POST", f"{API}/jobs", spec))[1]["id"] for _ in range(2)]
    status, answer = await declared.json("POST", f"{API}/jobs", spec)
    assert (status, answer["fix"]) == (429, "wait until some end, or cancel some")
    assert "2 jobs of yours are held already, your share is 2" in answer["detail"]
    batch = (await declared.json("POST", f"{API}/jobs:batch", {"jobs": [spec]}))[1]["items"]
    assert batch[0]["error"]
    await declared.json("POST", f"{API}/jobs/{first}/cancel", {})
    assert (await declared.json("POST", f"{API}/jobs", spec | {"array": "0-1"}))[0] == 429
    assert len(declared.world.live_state.jobs) == 1
    assert (await declared.json("POST", f"{API}/jobs", spec))[0] == 201
    bob = declared.token("bob", UserRole.USER)
    assert [(await declared.json("POST", f"{API}/jobs", spec, token=bob))[0] for _ in range(2)] == [201, 429]


async def test_jobs_of_before_a_restart_count_in_their_users_share(tmp_path: Path) -> None:
    """Those that have ended do not."""
    async with world(tmp_path) as w:
        for user in ("ada", "ada", "ada", "bob"):
            last = await w.submit({}, user)
        await w.emit(lambda at: JobCancelled(at, JobId(last - 1)))
    async with world(tmp_path) as again:
        assert again.live_state.job_shares.held == {"ada": 2, "bob": 1}
        await again.emit(lambda at: JobCancelled(at, last))
        assert again.live_state.job_shares.held == {"ada": 2}


async def test_others_have_their_turn_within_a_batch(declared: Face) -> None:
    """A submission that comes while a long batch is taken is answered before it, which has one answer all the same."""
    jobs = [wanting("a:1", hold=True)] * 400
    batch = asyncio.create_task(declared.json("POST", f"{API}/jobs:batch", {"jobs": jobs}))
    while not declared.world.live_state.jobs:
        await declared.got("/whoami")
    own = (await declared.json("POST", f"{API}/jobs", wanting("a:1")))[1]["id"]
    assert not batch.done()
    ids = [each["id"] for each in (await batch)[1]["items"]]
    assert sorted([*ids, own]) == list(range(1, 402))
    assert own < ids[-1]


async def test_a_batch_that_was_interrupted_goes_on_under_its_key(declared: Face) -> None:
    """Whoever sends it again, in the same moment or after the end of the first, gets the same jobs, none twice."""
    jobs = [wanting("a:1", hold=True)] * 200
    body = {"jobs": [*jobs, {"run": 7}]}

    async def send() -> list[int | None]:
        answer = await declared.done("POST", f"{API}/jobs:batch", body, key="one")
        return [each["id"] for each in answer["items"]]

    first = asyncio.create_task(send())
    while not declared.world.live_state.jobs:
        await declared.got("/whoami")
    first.cancel()
    told = await asyncio.gather(send(), send())
    assert told[0] == told[1] == await send() == [*range(1, 201), None]
    assert len(declared.world.live_state.jobs) == 200
    audit = await declared.got("/audit?limit=200")
    noted = [each["after"]["admitted"] for each in audit if each["subject"].startswith("jobs ")]
    assert (sum(noted), max(noted)) == (200, 16)


PLANNING = {"policy": {"name": "walras"}, "rules": {"round_s": 10.0, "resolve_min_s": 1.0}}
UNLIKE = [
    {**OWNED, "shape": f"{name}x1", "accelerator": name, "accelerators": 1, "memory": "16GiB", "machines": 1}
    for name in "abc"
]


@pytest.mark.parametrize(
    ("way", "told"),
    [("shares", "no pool holds it alone; the next plan may give it 1 x a + 1 x b + 1 x c (free now): 7 steps/s"),
     (True, "no pool holds it alone; the next plan may give it 1 x a + 1 x b + 1 x c (free now): 3 steps/s"),
     (False, "wants 3 x any in one pool; the most there can be is a: 1")],
)  # fmt: skip
async def test_three_unlike_machines_for_one_job(tmp_path: Path, way: bool | str, told: str) -> None:
    """A dry run says over what and how fast; who may not be mixed is told what to write; without a policy that plans,
    the policy is named."""
    job = wanting("any:3", mixed=way, throughput={"a": 12, "b": 6, "c": 3}, steps=100)
    async with facing(tmp_path, policy=PLANNING, cluster={"pools": UNLIKE}) as face:
        for name in "abc":
            await FakeAgent(face.world, name, shape=f"{name}x1", accelerator=name, accelerators=1).register()
        status, answer = await face.json("POST", f"{API}/jobs:dryrun", job)
        assert status == (200 if way else 400)
        assert answer["detail"].startswith(told)
        if not way:
            assert answer["fix"].startswith("write `mixed: shares` if its script shares batches")
        elif (await face.json("POST", f"{API}/jobs", job))[0] == 201:
            assert (await face.json("GET", f"{API}/jobs/1/explain"))[0] == 200
    async with facing(tmp_path / "fifo", cluster={"pools": UNLIKE}) as face:
        status, answer = await face.json("POST", f"{API}/jobs", job)
        assert status == 400
        assert ("have a policy that plans" in answer["fix"]) == bool(way)
