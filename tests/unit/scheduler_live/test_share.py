"""`GET /share`: what is declared reaches the core, what was used outlives the server, and who sees what of whom."""

from pathlib import Path

import pytest

from scheduler.core.explain.share_standing import share_standings
from scheduler.core.share_events import ShareLimit
from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.recurring_steps import keep_core_state
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent, world

pytestmark = pytest.mark.sql

API = "/api/v1"


async def _shares(face: Face, token: str | None = None) -> dict[str, dict[str, object]]:
    status, found = await face.json("GET", f"{API}/share", token=token)
    assert status == 200, found
    return {each["name"]: each for each in found}


async def test_shares_are_told_and_outlive_the_server(tmp_path: Path) -> None:
    """Weights and limits by project and user, entitlement by demand, what is borrowed, and use after a restart."""
    async with facing(tmp_path / "data") as face:
        await face.call("POST", f"{API}/projects", {"name": "vision", "settings": {"share": {"weight": 3}}})
        await face.call("POST", f"{API}/projects", {"name": "speech"})
        await face.call("PATCH", f"{API}/projects/vision", {"users": {"admin": {"limits": {"a": 2}}}})
        agents = [await FakeAgent(face.world, f"n{number}").register() for number in (1, 2)]
        for _ in range(3):
            await face.json("POST", f"{API}/jobs", {"run": "true", "project": "speech"})
        for agent in agents:
            await agent.start_all()
        shares = await _shares(face)
        assert {name: each["weight"] for name, each in shares.items()} == {
            "speech": 1.0,
            "speech/admin": 1.0,
            "vision": 3.0,
            "vision/admin": 1.0,
        }
        speech, vision = shares["speech"], shares["vision"]
        assert (speech["entitled"], speech["nominal"], vision["entitled"], vision["nominal"]) == (3.0, 1.0, 0.0, 3.0)
        assert (speech["held"], speech["borrowed"]) == ({"a": 3.0}, [{"name": "vision", "accelerators": 2.0}])
        told = "3 a at 1 times the fleet's average speed for its jobs count 3"
        assert speech["because"] == f"speech holds 3 units with 3 accelerators because {told}"
        assert shares["vision/admin"]["limits"] == {"a": 2}
        face.world.clock.at += 7200.0
        used = float((await _shares(face))["speech"]["used_h"])  # type: ignore[arg-type]
        assert used == pytest.approx(6.0, rel=0.01)
        stranger = face.token("eve", UserRole.USER, "speech")
        seen = await _shares(face, stranger)
        assert set(seen) == {"speech", "speech/admin"}
        assert seen["speech"]["borrowed"] == [{"name": "others", "accelerators": 2.0}]
        await face.world.loop.perform_in_pieces(keep_core_state)
    async with world(tmp_path / "data", at=7200.0) as again:
        told = {each.name: each for each in share_standings(again.server.core, 7200.0)}
        assert told["vision"].share.weight == 3.0
        assert told["vision/admin"].share.limits == (ShareLimit("a", 2),)
        assert told["speech"].used_s / 3600.0 == pytest.approx(used, rel=1e-6)
        assert told["speech"].accelerators == 3.0


async def test_what_a_guarantee_is_worth_is_told_to_those_who_see_the_project(tmp_path: Path) -> None:
    """vision's guarantee keeps an accelerator that the short jobs of speech would pay more for."""
    async with facing(tmp_path / "data") as face:
        guaranteed = {"share": {"guaranteed": 0.5, "weight": 0.1}}
        await face.call("POST", f"{API}/projects", {"name": "vision", "settings": guaranteed})
        await face.call("POST", f"{API}/projects", {"name": "speech"})
        rules = {"round_s": 30.0, "resolve_min_s": 1.0}
        await face.json("PUT", f"{API}/policy", {"policy": {"name": "walras"}, "rules": rules})
        for project in ("speech", "speech", *["vision"] * 6):
            length = "1h" if project == "speech" else "100h"
            job = {"run": "true", "project": project, "preemptible": "always", "estimated_duration": length}
            await face.json("POST", f"{API}/jobs", job)
        agent = await FakeAgent(face.world, "n1").register()
        await face.world.advance(1.0)
        await agent.start_all()
        await face.world.advance(600.0)
        _, prices = await face.json("GET", f"{API}/prices")
        assert [(each["name"], each["limit"]) for each in prices["entities"]] == [("vision", 0.0)], prices
        assert prices["entities"][0]["guarantee"] > 0
        _, seen = await face.json("GET", f"{API}/prices", token=face.token("eve", UserRole.USER, "speech"))
        assert seen["entities"] == []
