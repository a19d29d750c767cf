"""Versions of the policy: kept with author and reason, compared, put back; never over another's change."""

from pathlib import Path

from scheduler.live.auth.access_control import UserRole
from tests.support.http_face import facing

API = "/api/v1/policy"
FIFO = {"policy": {"name": "fifo"}, "rules": {"round_s": 33}}
LAS = {"policy": {"name": "las"}}


async def test_every_version_is_kept_with_author_and_reason_also_over_a_restart(tmp_path: Path) -> None:
    """Reasons are one line; the newest version is first."""
    async with facing(tmp_path) as face:
        status, first = await face.json("PUT", f"{API}?reason=short%20jobs%0Await", FIFO)
        assert (status, first["version"], first["reason"]) == (200, 2, "short jobs wait")
        assert (await face.json("PUT", API, LAS))[1]["reason"] == ""
    async with facing(tmp_path, policy=LAS) as face:
        versions = (await face.json("GET", f"{API}/versions"))[1]
        assert [each["version"] for each in versions][:3] == [3, 2, 1]
        assert [each["name"] for each in versions][:2] == ["las", "fifo"]
        assert versions[1]["reason"] == "short jobs wait"
        assert versions[1]["changed_by"]
        assert versions[1]["rules"]["round_s"] == 33


async def test_a_change_that_was_meant_for_another_version_is_refused_and_names_who_was_faster(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        assert (await face.json("PUT", f"{API}?if_version=1", LAS))[0] == 200
        status, problem = await face.json("PUT", f"{API}?if_version=1", FIFO)
        assert (status, problem["field"]) == (409, "if_version")
        assert "version 2 by " in problem["detail"]
        assert (await face.json("GET", API))[1]["name"] == "las"
        assert (await face.json("PUT", f"{API}?if_version=x", LAS))[0] == 400


async def test_listed_pairs_are_refused_where_nobody_lists_any(tmp_path: Path) -> None:
    packed = {"policy": {"name": "max_min_fairness", "parameters": {"packed": True}}}
    async with facing(tmp_path) as face:
        status, problem = await face.json("PUT", API, packed)
        assert (status, problem["field"]) == (400, "policy.parameters.packed")
        assert "resources.shared" in problem["fix"]


async def test_reasons_are_bounded_and_only_administrators_change(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        assert (await face.json("PUT", f"{API}?reason={'x' * 401}", FIFO))[0] == 400
        viewer = face.token("vera", UserRole.VIEWER)
        assert (await face.json("GET", f"{API}/versions", token=viewer))[0] == 200
        assert (await face.json("PUT", API, FIFO, token=viewer))[0] == 403


MONEY = {
    "budgets": [{"project": "lab", "usd": 100.0, "every": "month"}],
    "values": [{"project": "lab", "usd_per_h": 5.0}],
    "delay_usd_per_h": 0.5,
}


async def test_what_an_organisation_decided_about_money_outlives_the_policy(tmp_path: Path) -> None:
    """Another policy, by name or by a file, and a restart with one leave budgets and values as they are; a file that
    names them changes them.
    """
    async with facing(tmp_path) as face:
        status, first = await face.json("PUT", API, {**FIFO, "rules": {**MONEY, "round_s": 33}})
        assert status == 200, first
        kept = {name: first["rules"][name] for name in MONEY}
        assert (len(kept["budgets"]), len(kept["values"]), kept["delay_usd_per_h"]) == (1, 1, 0.5)
        for other in (LAS, {"policy": "walras"}, {**LAS, "rules": {"round_s": 44}}):
            status, changed = await face.json("PUT", API, other)
            assert (status, {name: changed["rules"][name] for name in MONEY}) == (200, kept)
    async with facing(tmp_path, policy=FIFO) as face:
        assert {name: (await face.json("GET", API))[1]["rules"][name] for name in MONEY} == kept
        status, changed = await face.json("PUT", API, {**LAS, "rules": {"budgets": []}})
        assert (status, changed["rules"]["budgets"], changed["rules"]["values"]) == (200, [], kept["values"])


async def test_a_policy_by_name_is_the_shipped_file_of_that_name(tmp_path: Path) -> None:
    async with facing(tmp_path, policy=FIFO) as face:
        status, changed = await face.json("PUT", API, {"policy": {"name": "walras"}})
        assert (status, changed["rules"]["resolve_min_s"], changed["rules"]["round_s"]) == (200, 1.0, 360.0)
        assert (await face.json("PUT", API, {"policy": 3}))[0] == 400
        assert (await face.json("PUT", API, []))[0] == 400
