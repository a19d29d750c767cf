"""Reservations over HTTP and by command: who may, what is refused with which numbers, and that a restart keeps them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.state.fleet import MachineCondition
from scheduler.live.auth.access_control import UserRole
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world
from walras.cluster import NodeId

pytestmark = pytest.mark.sql

API = "/api/v1/reservations"
WANTED = {"accelerator": "a", "accelerators": 2, "project": "vision", "starts": "+1h", "ends": "+2h", "reason": "demo"}


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data") as found:
        for name in ("n1", "n2"):
            await FakeAgent(found.world, name).register()
        yield found


async def make(face: Face, **more: Any) -> dict[str, Any]:
    found = await face.done("POST", API, WANTED | more, status=201)
    return dict(found)


def condition(face: Face, name: str) -> MachineCondition:
    machine = face.world.loop.core.ledger.fleet.machine(NodeId(name))
    return machine.condition


async def later(face: Face, seconds: float) -> None:
    """The core wakes when it asked to."""
    for _ in range(int(seconds // 60)):
        await face.world.advance(60.0)


async def test_a_reservation_is_made_listed_and_cancelled(face: Face) -> None:
    made = await make(face)
    assert (made["id"], made["project"], made["reserved"], made["state"]) == (1, "vision", 2, "coming")
    assert made["nodes"] == ["n1"]
    assert made["notes"] == []
    assert (await face.json("GET", API))[1] == [made]
    nodes = (await face.json("GET", "/api/v1/nodes"))[1]
    assert nodes[0]["detail"].startswith("reservation 1 of project vision from ")
    status, gone = await face.json("DELETE", f"{API}/1")
    assert (status, gone["state"]) == (200, "cancelled")
    assert (await face.json("GET", API))[1] == []
    assert [each["state"] for each in (await face.json("GET", f"{API}?all=1"))[1]] == ["cancelled"]
    assert face.world.loop.core.cycle.bookings.declared == ()


REFUSED: tuple[tuple[dict[str, Any], int, str], ...] = (
    ({"accelerators": 5}, 409, "4 of 4 a on owned machines can be had"),
    ({"accelerators": 0}, 400, "number above 0"),
    ({"accelerators": -1}, 400, "accelerators"),
    ({"accelerator": "h100"}, 400, "no accelerators of type 'h100'"),
    ({"project": None}, 400, "either a project, or maintenance"),
    ({"starts": "yesterday"}, 400, "starts"),
    ({"starts": "2020-01-01T00:00:00Z"}, 400, "begun already"),
    ({"ends": "+30m"}, 400, "before it begins"),
    ({"ends": "+500d"}, 400, "more than a year"),
    ({"nodes": ["n1"]}, 400, "either an accelerator type"),
    ({"accelerator": None, "accelerators": 0, "nodes": ["n9"]}, 404, "no machine n9"),
    ({"colour": "red"}, 400, "colour"),
)


@pytest.mark.parametrize(("changes", "status", "told"), REFUSED)
async def test_what_cannot_be_is_refused_by_name(face: Face, changes: dict[str, Any], status: int, told: str) -> None:
    got, answer = await face.json("POST", API, WANTED | changes)
    assert got == status, answer
    assert told in str(answer)
    assert face.world.loop.core.cycle.bookings.declared == ()


async def test_two_reservations_of_one_machine_do_not_overlap(face: Face) -> None:
    """The second takes the other machine; a third is refused and told who has them; a later one is not."""
    assert (await make(face))["nodes"] == ["n1"]
    assert (await make(face, project="language"))["nodes"] == ["n2"]
    status, answer = await face.json("POST", API, WANTED)
    assert status == 409
    assert "2 are booked by reservation 1 of project vision" in str(answer)
    assert (await make(face, starts="+2h", ends="+3h"))["id"] == 3


async def test_who_may_reserve(face: Face) -> None:
    """Operators for their projects; administrators for all and for maintenance; nobody sees those of other projects."""
    user = face.token("ada", UserRole.USER, "vision")
    operator = face.token("oda", UserRole.OPERATOR, "vision")
    stranger = face.token("eve", UserRole.OPERATOR, "speech")
    assert (await face.json("POST", API, WANTED, token=user))[0] == 403
    assert (await face.json("POST", API, WANTED, token=stranger))[0] == 403
    assert (await face.json("POST", API, WANTED, token=operator))[0] == 201
    window = {"nodes": ["n2"], "maintenance": True, "ends": "+1h"}
    assert (await face.json("POST", API, window, token=operator))[0] == 403
    assert (await face.json("POST", API, window))[0] == 201
    assert [each["id"] for each in (await face.json("GET", API, token=user))[1]] == [2, 1]
    assert [each["id"] for each in (await face.json("GET", API, token=stranger))[1]] == [2]
    assert (await face.json("DELETE", f"{API}/1", token=stranger))[0] == 404
    assert (await face.json("DELETE", f"{API}/2", token=operator))[0] == 403
    assert (await face.json("DELETE", f"{API}/1", token=operator))[0] == 200


async def test_maintenance_by_name_begins_and_ends_by_itself(face: Face) -> None:
    await make(face, accelerator=None, accelerators=0, nodes=["n1"], project=None, maintenance=True, starts="+10m",
               ends="+20m")  # fmt: skip
    await later(face, 660.0)
    assert condition(face, "n1") is MachineCondition.BOOKED
    assert (await face.json("GET", API))[1][0]["state"] == "active"
    await later(face, 660.0)
    assert condition(face, "n1") is MachineCondition.UP
    assert (await face.json("GET", API))[1] == []


async def test_a_waiting_job_is_told_which_reservation_keeps_it_off(face: Face) -> None:
    for name in ("n1", "n2"):
        await make(face, accelerator=None, accelerators=0, nodes=[name], starts="+0s")
    await face.done("POST", "/api/v1/jobs", {"run": "true", "resources": {"accelerators": "a:1"}}, status=201)
    explained = (await face.json("GET", "/api/v1/jobs/1/explain"))[1]
    assert explained["reasons"][0]["reason"] == "WAIT:BOOKED"
    assert "reservation 1 of project vision (demo) keeps 2 accelerators" in explained["reasons"][0]["detail"]
    assert "walras admin remove reservation 1" in explained["reasons"][0]["fix"]


@pytest.mark.sqlite_file
async def test_reservations_outlive_the_server_and_replay(tmp_path: Path) -> None:
    async with facing(tmp_path / "data") as face:
        await FakeAgent(face.world, "n1").register()
        await make(face, starts="+0s", ends="+5h")
        await make(face, starts="+6h", ends="+7h")
        await face.json("DELETE", f"{API}/2")
        declared = face.world.loop.core.cycle.bookings.declared
        assert condition(face, "n1") is MachineCondition.BOOKED
    async with world(tmp_path / "data") as again:
        assert again.loop.core.cycle.bookings.declared == declared
        machine = again.loop.core.ledger.fleet.machine(NodeId("n1"))
        assert machine.condition is MachineCondition.BOOKED
        assert sorted(again.server.state.bookings) == [1, 2]
    assert replay_journal(read_stored_journal(tmp_path / "data")).identical
