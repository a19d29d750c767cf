"""Machines with accelerators of several types: one name, one agent, one fate; each type with places of its own."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.live.store.event_journal import encode_event
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import agent_of_part
from walras.errors import NameHeld, UserError

WHOLE, OTHER = "a" * 32, "b" * 32
A = {"shape": "ax2-beside-bx1", "accelerator": "a", "accelerators": 2}
B = {"shape": "bx1-beside-ax2", "accelerator": "b", "accelerators": 1}


def part(w: World, facts: dict[str, Any], whole: str = WHOLE, own: str = "1", **more: Any) -> FakeAgent:
    """The part of gpu-1 with these facts, as an agent with these two folders speaks for it."""
    agent = FakeAgent(w, f"gpu-1.{facts['accelerator']}", cpus=4.0, machine="gpu-1", **facts)
    return agent.names_itself(agent_of_part(whole, own * 32), **more)


async def both(w: World) -> tuple[FakeAgent, FakeAgent]:
    return await part(w, A).register(), await part(w, B, own="2").register()


async def passed(w: World, seconds: float) -> None:
    w.clock.at += seconds
    await w.loop.perform(w.server.gateway.notice_silence)


async def test_each_type_has_places_in_its_pool_and_jobs_get_their_own_devices(face: Face) -> None:
    """And silence of the machine loses those of all its types."""
    one, two = await both(face.world)
    for_a = await face.world.submit({"resources": {"accelerators": "a:2"}})
    for_b = await face.world.submit({"resources": {"accelerators": "b:1"}})
    (start_a,), (start_b,) = await one.start_all(), await two.start_all()
    assert (start_a.job_id, start_a.devices, start_a.accelerator) == (for_a, [0, 1], "a")
    assert (start_b.job_id, start_b.devices, start_b.accelerator) == (for_b, [0], "b")
    nodes = await face.got("/nodes")
    assert [(node["node_id"], node["machine"], node["accelerator"], node["free"]) for node in nodes] == [
        ("gpu-1.a", "gpu-1", "a", 0),
        ("gpu-1.b", "gpu-1", "b", 0),
    ]
    overview = await face.got("/overview")
    assert {cells["machine"] for cells in overview["machines"]} == {"gpu-1"}
    await passed(face.world, 16.0)
    assert [face.world.state(job) for job in (for_a, for_b)] == ["UNREACHABLE"] * 2
    await passed(face.world, 20.0)
    assert [face.world.state(job) for job in (for_a, for_b)] == ["PENDING"] * 2


async def test_what_is_asked_of_the_machine_holds_for_all_its_parts(face: Face) -> None:
    """Drained, used again unless the pool of one is drained; a part may be drained by its own."""
    await both(face.world)
    await FakeAgent(face.world, "n9", **B | {"shape": "bx1"}).register()

    async def states() -> dict[str, str]:
        return {node["node_id"]: node["state"] for node in (await face.got("/nodes"))}

    assert (await face.json("POST", "/api/v1/nodes/gpu-1/drain"))[0] == 200
    assert await states() == {"gpu-1.a": "drained", "gpu-1.b": "drained", "n9": "up"}
    assert (await face.json("POST", "/api/v1/nodes/gpu-1/resume"))[0] == 200
    assert (await face.json("POST", "/api/v1/nodes/gpu-1.b/drain"))[0] == 200
    assert await states() == {"gpu-1.a": "up", "gpu-1.b": "drained", "n9": "up"}
    audited = [row["subject"] for row in (await face.got("/audit"))]
    assert audited == ["node gpu-1.b", "node gpu-1.b", "node gpu-1.a", "node gpu-1.b", "node gpu-1.a"]
    assert (await face.json("POST", "/api/v1/nodes/gpu-2/drain"))[0] == 404
    assert (await face.json("DELETE", "/api/v1/nodes/gpu-2"))[0] == 404
    await face.json("POST", "/api/v1/nodes/gpu-1/drain")
    await face.json("PATCH", "/api/v1/pools/bx1-beside-ax2%2Fowned%2Fdefault", {"drained": True})
    assert (await face.json("POST", "/api/v1/nodes/gpu-1/resume"))[0] == 409
    assert await states() == {"gpu-1.a": "drained", "gpu-1.b": "drained", "n9": "up"}


async def test_a_machine_is_forgotten_with_all_its_parts_or_not_at_all(face: Face) -> None:
    one, _ = await both(face.world)
    await passed(face.world, 16.0)
    await one.beat()
    status, problem = await face.json("DELETE", "/api/v1/nodes/gpu-1")
    assert (status, "heard 0 s ago" in problem["detail"]) == (409, True)
    assert len(await face.got("/nodes")) == 2
    await passed(face.world, 16.0)
    assert (await face.json("DELETE", "/api/v1/nodes/gpu-1"))[0] == 200
    assert (await face.got("/nodes")) == []


async def test_the_machine_belongs_to_one_agent_as_a_whole(w: World) -> None:
    """A twin gets no part of it, of whatever types; nor a machine of its very name; nor a part the name of another."""
    one, two = await both(w)
    await one.beat()
    await two.beat()
    for twin in (
        part(w, A, OTHER),
        part(w, {"shape": "c", "accelerator": "c", "accelerators": 1}, OTHER),
        FakeAgent(w, "gpu-1").names_itself(OTHER),
        FakeAgent(w, "gpu-1").names_itself(WHOLE),
    ):
        with pytest.raises(NameHeld, match="another agent speaks for gpu-1"):
            await twin.register()
    plain = await FakeAgent(w, "gpu-2").names_itself(OTHER).register()
    await plain.beat()
    beside = FakeAgent(w, "gpu-2.b", machine="gpu-2", cpus=4.0, **B).names_itself(agent_of_part(OTHER, "3" * 32))
    with pytest.raises(NameHeld, match="another agent speaks for gpu-2"):
        await beside.register()
    assert sorted(w.live_state.nodes) == ["gpu-1.a", "gpu-1.b", "gpu-2"]


@pytest.mark.parametrize("lost", ["the machine's folder", "the part's folder"])
async def test_an_agent_that_lost_a_folder_waits_until_nothing_can_run_there(w: World, lost: str) -> None:
    """The job runs on the part that is not asked for: its ranks may be alive where the whole machine forgot them."""
    one, two = await both(w)
    await w.submit({"resources": {"accelerators": "a:2"}})
    await one.start_all()
    await two.beat()
    anew = part(w, B, OTHER, own="2") if lost == "the machine's folder" else part(w, A, WHOLE, own="9")
    w.clock.at += 16.0
    with pytest.raises(NameHeld, match="ranks may be alive"):
        await anew.register()
    await passed(w, 16.0)
    await passed(w, 20.0)
    await anew.register()
    await anew.beat(resync=True)
    with pytest.raises(NameHeld):
        await (one if lost == "the machine's folder" else part(w, A, WHOLE, own="1")).beat()


async def test_two_agents_never_speak_for_parts_of_one_machine_at_once(w: World) -> None:
    """A silent machine's name went to another agent, one part first; the former agent comes back with the other one."""
    await both(w)
    w.clock.at += 16.0
    newer = await part(w, A, OTHER).register()
    await newer.beat(resync=True)
    with pytest.raises(NameHeld, match="another agent speaks for gpu-1"):
        await part(w, B, own="2").beat()
    await newer.beat()


@pytest.mark.parametrize(
    ("node_id", "more", "rent_token", "told"),
    [
        ("gpu-1.c", {}, "", "register it as gpu-1.b"),
        ("gpu-1", {}, "", "register it as gpu-1.b"),
        ("gpu-1.b", {}, "rent", "a rented machine has no parts"),
        ("x", {"machine": "n" * 99}, "", "shorter --node"),
    ],
)
async def test_who_is_no_part_cannot_say_so(
    w: World, node_id: str, more: dict[str, Any], rent_token: str, told: str
) -> None:
    agent = FakeAgent(w, node_id, rent_token, **{"machine": "gpu-1", **B, **more})
    with pytest.raises(UserError) as refused:
        await agent.register()
    assert told in f"{refused.value} {refused.value.fix}"
    assert not w.live_state.nodes


def test_machines_are_named_as_machines_are() -> None:
    facts = {"shape": "s", "accelerator": "a", "accelerators": 1, "cpus": 1, "memory_bytes": 1}
    for name in ("../x", "a/b", " ", "n" * 101, "-x"):
        with pytest.raises(ValueError, match="machine"):
            FakeAgent(None, "n", **facts, machine=name)  # type: ignore[arg-type]
    from scheduler.core.events import NodeJoined
    from walras.cluster import NodeId, PoolId

    assert "machine" not in encode_event(NodeJoined(0.0, NodeId("n"), PoolId("p"))).payload
    assert '"machine":"m"' in encode_event(NodeJoined(0.0, NodeId("n"), PoolId("p"), machine="m")).payload


async def test_a_restarted_server_knows_which_parts_are_one_machine(tmp_path: Path) -> None:
    """A whole machine is written in the journal as it was before machines had parts."""
    async with world(tmp_path) as w:
        await both(w)
        await FakeAgent(w, "n9").register()
    async with world(tmp_path) as again:
        fleet = again.server.core.ledger.fleet
        known = {str(each.node_id): each.whole for each in fleet.machines if each is not None}
        assert known == {"gpu-1.a": "gpu-1", "gpu-1.b": "gpu-1", "n9": ""}
