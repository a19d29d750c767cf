"""Pools as objects of the API: added, changed, drained and removed, by administrators, over restarts."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import RentFailed
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.departures import POOL_IS_DRAINED
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.sqlite_store import read_stored_journal
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world
from walras.cluster import PoolId
from walras.resources.fleet import PoolView

API = "/api/v1/pools"
OWNED = {"shape": "bx4", "accelerator": "b", "accelerators": 4, "cpus": 16, "memory": "64GB"}
SPOT = OWNED | {"shape": "sx2", "accelerator": "s", "accelerators": 2, "market": "spot", "provider": "local",
                "usd_per_h": 1.5, "quota": 2, "boot": "30s"}  # fmt: skip
B, S, A = "bx4/owned/default", "sx2/spot/default", "ax2/owned/default"


def at(pool_id: str) -> str:
    return f"{API}/{pool_id.replace('/', '%2F')}"


async def shown(face: Face, pool_id: str) -> dict[str, Any]:
    pools = await face.done("GET", API)
    return next((each for each in pools if each["pool_id"] == pool_id), {})


async def test_a_pool_is_added_changed_and_removed(face: Face) -> None:
    """It is a row of the list, of the prices and of the core, and then of none of them."""
    assert (await face.json("POST", API, SPOT))[0] == 201
    found = await shown(face, S)
    assert (found["usd_per_h"], found["quota"], found["drained"], found["machines"]) == (1.5, 2, False, 0)
    status, changed = await face.json("PATCH", at(S), {"quota": 5, "usd_per_h": 0.75})
    assert (status, changed["quota"], changed["usd_per_h"]) == (200, 5, 0.75)
    core = face.world.loop.core.ledger.fleet
    assert [(each.pool.quota, each.pool.usd_per_h) for each in core.pools] == [(5, 0.75)]
    assert face.world.assembled.providers["local"].pools[S].pool.quota == 5  # type: ignore[index,attr-defined]
    assert (await face.json("DELETE", at(S)))[1] == {"pool_id": S, "stranded_jobs": []}
    assert await shown(face, S) == {}
    assert (await face.json("GET", "/api/v1/prices"))[1]["items"] == []
    assert core.pool_row(S) is None  # type: ignore[arg-type]
    assert (await face.json("DELETE", at(S)))[0] == 404
    assert (await face.json("POST", API, SPOT))[0] == 201
    assert len(core.pools) == 1


REFUSED: tuple[tuple[str, str, Any, int, str], ...] = (
    ("POST", API, SPOT | {"provider": "aws"}, 400, "provider"),
    ("POST", API, SPOT | {"provider": "x" * 90}, 400, "provider"),
    ("POST", API, OWNED | {"provider": "local"}, 400, "provider"),
    ("POST", API, OWNED, 409, "shape"),
    ("POST", API, OWNED | {"zone": "z", "accelerators": 2}, 409, "shape"),
    ("POST", API, OWNED | {"quota": -1}, 400, "quota"),
    ("POST", API, [], 400, ""),
    ("PATCH", at(B), {"quota": 3}, 400, "quota"),
    ("PATCH", at(B), {}, 400, "quota"),
    ("PATCH", at(B), {"usd_per_h": 1e999}, 400, "usd_per_h"),
    ("PATCH", at("bx4/owned/defualt"), {"drained": True}, 404, "pool_id"),
    ("DELETE", at("none"), None, 404, "pool_id"),
)


@pytest.mark.parametrize(("method", "path", "body", "status", "field"), REFUSED)
async def test_what_makes_no_sense_is_refused_with_words(
    face: Face, method: str, path: str, body: Any, status: int, field: str
) -> None:
    """Nothing changes, and nothing is written in the audit."""
    assert (await face.json("POST", API, OWNED))[0] == 201
    before = (await face.json("GET", API))[1]
    answer, problem = await face.json(method, path, body)
    assert answer == status, problem
    assert problem.get("field", "").endswith(field)
    assert problem["detail"]
    assert (await face.json("GET", API))[1] == before
    assert len((await face.json("GET", "/api/v1/audit"))[1]) == 1


async def test_only_administrators_change_pools(face: Face) -> None:
    """Anybody known may look."""
    token = face.token("ops", UserRole.OPERATOR, "*")
    assert (await face.json("GET", API, token=token))[0] == 200
    for method, path, body in (("POST", API, OWNED), ("PATCH", at(B), {"drained": True}), ("DELETE", at(B), None)):
        assert (await face.json(method, path, body, token=token))[0] == 403


async def test_a_pool_with_machines_is_not_removed(face: Face) -> None:
    """Drained and empty it is; waiting jobs that nothing else runs are named, and told why they wait."""
    agent, job_id = await face.world.running({"resources": {"accelerators": "a:2"}, "preemptible": False})
    status, problem = await face.json("DELETE", at(A))
    assert status == 409
    assert "1 machines and job 1 running there" in problem["detail"]
    assert problem["fix"] == f"walras admin drain --pool {A}"
    status, drained = await face.json("PATCH", at(A), {"drained": True})
    assert (status, drained["drained"], drained["jobs"]) == (200, True, [job_id])
    waiting = await face.world.submit({"resources": {"accelerators": "a:2"}})
    await agent.end(job_id)
    assert await agent.start_all() == []
    face.world.clock.at += 1000.0
    await face.world.loop.perform(face.world.server.gateway.notice_silence)
    await face.world.loop.perform(face.world.server.gateway.notice_silence)
    assert (await face.json("DELETE", at(A)))[1] == {"pool_id": A, "stranded_jobs": [waiting]}
    (why, *_) = pending_reasons(face.world.loop.core, waiting)
    assert f"{A}, which it accepts, was removed" in why.detail
    # A machine of the same kind brings its pool with it.
    await FakeAgent(face.world, "n2").register()
    assert face.world.live_state.attempt(waiting, 1) is not None


async def test_a_drain_is_lifted_from_the_machines_it_drained(face: Face) -> None:
    """Who was drained alone stays out; who joins meanwhile waits with the others."""
    for name in ("n1", "n2"):
        await FakeAgent(face.world, name).register()
    await face.json("POST", "/api/v1/nodes/n1/drain", {})
    await face.json("PATCH", at(A), {"drained": True})
    await FakeAgent(face.world, "n3").register()
    await face.world.submit({"resources": {"accelerators": "a:2"}})
    nodes = (await face.json("GET", "/api/v1/nodes"))[1]
    assert [each["state"] for each in nodes] == ["drained"] * 3
    assert [each["detail"] == POOL_IS_DRAINED for each in nodes] == [False, True, True]
    status, problem = await face.json("POST", "/api/v1/nodes/n2/resume")
    assert (status, problem["fix"]) == (409, f"walras admin drain --pool {A} --off")
    await face.json("PATCH", at(A), {"drained": False})
    nodes = (await face.json("GET", "/api/v1/nodes"))[1]
    assert [each["state"] for each in nodes] == ["drained", "up", "up"]
    assert face.world.live_state.attempt(1, 1) is not None


async def test_a_pool_that_its_cloud_refuses_says_so(face: Face) -> None:
    """With the provider's words, until it is asked again; an empty pool is not in use."""
    assert (await face.json("POST", API, SPOT))[0] == 201
    assert PoolView.model_validate(await shown(face, S)).standing == "empty"
    fleet = face.world.server.core.ledger.fleet
    row = fleet.pool_row(PoolId(S))
    assert row is not None
    fleet.pools[row].awaited["t"] = 1
    await face.world.emit(lambda at: RentFailed(at, "t", "InsufficientInstanceCapacity"))
    assert PoolView.model_validate(await shown(face, S)).standing == "refused: InsufficientInstanceCapacity"
    face.world.clock.at += 86_400.0
    assert PoolView.model_validate(await shown(face, S)).refused == ""


@pytest.mark.sqlite_file
async def test_the_changes_outlive_a_restart(tmp_path: Path) -> None:
    """Added, drained and removed pools are as they were; what the cluster file declares wins, but for the drain."""
    file = {"pools": [OWNED | {"shape": "cx4"}, SPOT | {"shape": "fx2"}]}
    gone, kept = "cx4/owned/default", "fx2/spot/default"
    async with facing(tmp_path, cluster=file) as face:
        await FakeAgent(face.world, "n1").register()
        assert (await face.json("POST", API, SPOT))[0] == 201
        for pool_id in (S, A, kept):
            assert (await face.json("PATCH", at(pool_id), {"drained": True}))[0] == 200
        assert (await face.json("PATCH", at(kept), {"quota": 7}))[0] == 200
        assert (await face.json("DELETE", at(gone)))[0] == 200
    async with world(tmp_path) as w:
        state = w.live_state
        assert {pool_id: each.drained for pool_id, each in state.pools.items()} == {kept: True, S: True, A: True}
        assert (state.nodes["n1"].row.cordon, state.nodes["n1"].row.detail) == ("leaving", POOL_IS_DRAINED)
        assert w.loop.core.ledger.fleet.machine("n1").condition.value == "leaving"  # type: ignore[union-attr,arg-type]
        assert {S, kept} <= w.assembled.providers["local"].pools.keys()  # what was rented there can be given back
        assert (state.pools[kept].quota, state.pools[S].quota) == (0, SPOT["quota"])
    async with world(tmp_path, cluster=file) as w:
        pools = w.live_state.pools
        assert set(pools) == {kept, S, A, gone}
        assert (pools[kept].quota, pools[kept].drained, pools[gone].drained) == (2, True, False)
    # Later the file declares the pool that was added: its terms hold, for the core and for the provider.
    async with world(tmp_path, cluster={"pools": [*file["pools"], SPOT | {"quota": 9, "usd_per_h": 4}]}) as w:
        pool = w.assembled.providers["local"].pools[S].pool  # type: ignore[index,attr-defined]
        assert (pool.quota, pool.usd_per_h) == (9, 4)
        assert (w.live_state.pools[S].quota, w.live_state.pools[S].usd_per_h) == (9, 4)
    assert replay_journal(read_stored_journal(tmp_path)).identical
