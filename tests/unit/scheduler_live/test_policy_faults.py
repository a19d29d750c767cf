"""Policies in a server: what of one that fails, and every version kept."""

import asyncio
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from live_world import FIFO, FakeAgent, World, world

from scheduler.core.events import PolicyChanged, SolveFailed
from scheduler.core.rules import parse_policy
from scheduler.core.state.policy_faults import PolicyFault
from scheduler.live.auth.access_control import UserRole
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import LiveSettings
from scheduler.live.services.policy_service import DEFAULT_POLICY, PolicyWish
from scheduler.live.services.policy_trial import trial_on_live_state, try_policy
from scheduler.live.store.event_journal import replay_journal
from tests.support.http_face import Face, facing
from walras.cli.policy_commands import show_policy
from walras.cli.terminal_output import OutputFormat
from walras.errors import ConfigError
from walras.resources.overview import PolicyView
from walras.spec.text_formats import parse_yaml

PLUG = '''
"""An order that fails as its file says."""
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass


@dataclass(frozen=True)
class Plug:
    """Fails on demand."""

    preemptive: bool = True
    strict: bool = False
    aware: bool = True

    def key(self, jobs):
        mood = Path(__file__).with_name("mood").read_text()
        if mood == "raises":
            raise RuntimeError("out of sorts")  # line 21
        if mood == "short":
            return (np.zeros(1 + len(jobs.submitted_at)),)
        if mood == "nan":
            return (jobs.submitted_at * np.nan,)
        if mood == "exits":
            raise SystemExit(3)
        if mood == "dies":
            import os
            os._exit(3)
        if mood == "hangs":
            while True:
                pass
        if mood == "hoards":
            held = []
            while True:
                held.append(np.zeros(1 << 27))
        print("in a good mood")
        return (-jobs.submitted_at,)


@dataclass(frozen=True)
class PlugShares:
    """Ends its process on demand."""

    def decide(self, problem, memory):
        from optimizer.policies.fairness import MaxMinFairness
        import os
        if Path(__file__).with_name("mood").read_text() == "dies" and len(problem.jobs):
            os._exit(3)
        return MaxMinFairness().decide(problem, memory)

    def value(self, newcomer, quote):
        return newcomer.steps_per_s
'''
POLICY: dict[str, Any] = {"policy": {"name": "plug"}, "rules": {"round_s": 10.0}}


class PlugIn:
    """An installed package with a policy whose mood a test sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        described = folder / "plug-1.0.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text(
            "[walras.policies]\nplug = walras_test_plug:Plug\nplug_shares = walras_test_plug:PlugShares\n"
        )
        (folder / "walras_test_plug.py").write_text(PLUG)
        self.be("good")

    def be(self, mood: str) -> None:
        (self._folder / "mood").write_text(mood)


@pytest.fixture
def plug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlugIn:
    folder = tmp_path / "site"
    made = PlugIn(folder)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
    sys.modules.pop("walras_test_plug", None)
    return made


async def started(w: World) -> FakeAgent:
    """A machine with a job that runs and two that wait."""
    w.loop.effect_handlers.append(w.server.policies)
    agent = await FakeAgent(w, "n1").register()
    for _ in range(3):
        await w.submit({"resources": {"accelerators": "a:2"}})
    await agent.start_all()
    return agent


async def test_a_policy_that_raises_is_refused_with_method_and_line(w: World, plug: PlugIn) -> None:
    plug.be("raises")
    await started(w)
    with pytest.raises(ConfigError, match=r"key\(\) failed at walras_test_plug.py:2\d: RuntimeError: out of sorts"):
        await w.server.policies.change(POLICY, PolicyWish("ada"))
    assert w.server.policies.in_force.spec.name == "fifo"
    assert [row.version for row in w.server.store.policies()] == [1]
    plug.be("good")
    assert (await w.server.policies.change(POLICY, PolicyWish("ada"))).row.version == 2


@pytest.mark.parametrize(
    ("mood", "method", "said"),
    [
        ("short", "key", "columns of shape"), ("nan", "key", "NaN"), ("exits", "key", "SystemExit"),
        ("raises", "key", "out of sorts"), ("dies", "trial", "ended the process"),
        ("hangs", "trial", "no answer within 3 s"),
    ],
)  # fmt: skip
async def test_what_is_no_answer_fails_the_trial(w: World, plug: PlugIn, mood: str, method: str, said: str) -> None:
    """In a process of its own, which is all that a policy ends."""
    await started(w)
    spec, rules = w.server.policies.check(POLICY)
    plug.be(mood)
    trial = trial_on_live_state(w.loop.core, spec, rules.delay_usd_per_h)
    assert trial is not None
    fault = await try_policy(trial, 3.0 if mood == "hangs" else 60.0)
    assert isinstance(fault, PolicyFault)
    assert fault.method == method
    assert said in fault.error


async def asked_elsewhere(w: World) -> FakeAgent:
    """As `started`, with a process for the policy's answers."""
    await w.server.solver.start()
    w.loop.effect_handlers = [w.server.gateway, w.server.solver]
    return await started(w)


async def until(w: World, what: Callable[[], bool]) -> None:
    """Until another process has answered."""
    for _ in range(2000):
        if what():
            return
        await asyncio.sleep(0.02)
        await w.quiet()
    raise AssertionError("no answer")


async def test_a_policy_of_another_package_orders_jobs_and_never_runs_in_the_server(w: World, plug: PlugIn) -> None:
    """The newest job is next, also one that came after the last answer; the module is not even imported here."""
    agent = await asked_elsewhere(w)
    await w.server.policies.change(POLICY, PolicyWish("ada"))
    await until(w, lambda: not w.loop.core.cycle.solves.in_flight)
    w.clock.at += 1.0
    await w.submit({"resources": {"accelerators": "a:2"}})
    await until(w, lambda: not w.loop.core.cycle.solves.in_flight)
    await agent.end(1)
    assert [s.job_id for s in await agent.start_all()] == [4]
    assert "walras_test_plug" not in sys.modules
    assert replay_journal(w.server.store.journal()).identical


@pytest.mark.parametrize(
    ("mood", "said"),
    [
        ("raises", "key() failed at walras_test_plug.py:"), ("exits", "SystemExit: 3"),
        ("dies", "the solver process died"), ("hangs", "no answer within 5 s"), ("hoards", "MemoryError"),
        ("short", "columns of shape"), ("nan", "NaN"),
    ],
)  # fmt: skip
async def test_a_policy_that_fails_later_is_put_back_to_the_last_good_one(
    tmp_path: Path, plug: PlugIn, mood: str, said: str
) -> None:
    """Nothing ends; the last good policy is in force, says why, and the journal replays with the fault in it."""
    settings = LiveSettings(lease_s=dict.fromkeys(("owned", "on_demand", "spot"), 90.0), solve_timeout_s=5.0)
    async with world(tmp_path / "data", settings=settings) as w:
        agent = await asked_elsewhere(w)
        await w.server.policies.change(POLICY, PolicyWish("ada"))
        await until(w, lambda: not w.loop.core.cycle.solves.in_flight)
        plug.be(mood)
        await w.advance(20.0)
        await until(w, lambda: w.server.policies.in_force.row.version == 3)
        in_force = w.server.policies.in_force
        assert in_force.spec.name == "fifo"
        assert in_force.put_back.startswith("version 2 failed: key() failed")
        assert said in in_force.put_back
        assert (await w.server.check_health())["policy"] == f"put back: {in_force.put_back}"
        assert w.loop.core.ledger.policy.fault is None
        await agent.end(1)
        assert [s.job_id for s in await agent.start_all()] == [2]
        events = [row for row in w.server.store.journal() if row.type == PolicyChanged.__name__]
        assert "version 2 failed" in events[-1].payload
        report = replay_journal(w.server.store.journal())
        assert report.identical, report.differences
    # At a restart nothing of it is left: the version in force is the one that works.
    async with world(tmp_path / "data", policy=None) as again:  # type: ignore[arg-type]
        assert again.server.policies.in_force.put_back == in_force.put_back
        assert again.server.policies.in_force.row.version == 3


async def test_a_stored_policy_that_fails_does_not_keep_the_server_from_starting(tmp_path: Path, plug: PlugIn) -> None:
    async with world(tmp_path / "data") as w:
        await started(w)
        await w.server.policies.change(POLICY, PolicyWish("ada"))
    plug.be("raises")
    async with world(tmp_path / "data", policy=None) as again:  # type: ignore[arg-type]
        assert again.server.policies.in_force.spec.name == "fifo"
        assert "version 2 failed: key()" in again.server.policies.in_force.put_back
        assert again.state(1) == "STARTING" or again.state(1) == "RUNNING"


async def test_the_policy_file_wins_over_a_stored_one_that_fails(tmp_path: Path, plug: PlugIn) -> None:
    async with world(tmp_path / "data", policy=POLICY):
        pass
    plug.be("raises")
    async with world(tmp_path / "data", policy=FIFO) as again:
        assert (again.server.policies.in_force.spec.name, again.server.policies.in_force.put_back) == ("fifo", "")
    async with world(tmp_path / "data", policy=POLICY) as third:
        assert third.server.policies.in_force.spec.name == "fifo"
        assert "version 3 failed: key()" in third.server.policies.in_force.put_back


async def test_the_built_in_default_is_the_last_resort(tmp_path: Path, plug: PlugIn) -> None:
    """The only policy that was ever in force is no longer installed."""
    async with world(tmp_path / "data", policy=POLICY):
        pass
    plug._folder.joinpath("walras_test_plug.py").unlink()
    sys.modules.pop("walras_test_plug", None)
    importlib.invalidate_caches()
    for cached in plug._folder.glob("__pycache__/*"):
        cached.unlink()
    async with world(tmp_path / "data", policy=None) as again:  # type: ignore[arg-type]
        in_force = again.server.policies.in_force
        assert in_force.spec.name == DEFAULT_POLICY["policy"]["name"]
        assert "version 1 failed: make()" in in_force.put_back


async def test_a_policy_whose_solves_fail_again_and_again_is_put_back(w: World) -> None:
    await started(w)
    w.loop.effect_handlers = [w.server.gateway, w.server.policies]  # nobody answers
    await w.server.policies.change({"policy": {"name": "max_min_fairness"}}, PolicyWish("ada"))

    async def fail() -> None:
        request = w.loop.core.cycle.solves.in_flight
        await w.loop.perform(lambda t: emit(t, SolveFailed(t.at, request, "ZeroDivisionError: by nothing")))
        await w.quiet()

    for _ in range(2):
        await fail()
        await w.advance(400.0)
    assert w.server.policies.in_force.spec.name == "max_min_fairness"
    await fail()
    assert w.server.policies.in_force.spec.name == "fifo"
    assert "3 times in a row, the last: ZeroDivisionError" in w.server.policies.in_force.put_back


async def test_shares_of_another_package_are_solved_elsewhere_and_replaced_when_solves_end_their_process(
    w: World, plug: PlugIn
) -> None:
    agent = await asked_elsewhere(w)
    rules = {"round_s": 10.0, "resolve_min_s": 1.0}
    await w.server.policies.change({"policy": {"name": "plug_shares"}, "rules": rules}, PolicyWish("ada"))
    await until(w, lambda: w.live_state.proposal is not None)
    assert w.live_state.proposal.job_ids
    plug.be("dies")
    await agent.end(1)
    for _ in range(3):
        await until(w, lambda: not w.loop.core.cycle.solves.in_flight)
        await w.advance(30.0)
    await until(w, lambda: w.server.policies.in_force.spec.name == "fifo")
    assert "3 times in a row, the last: the solver process died" in w.server.policies.in_force.put_back
    assert "walras_test_plug" not in sys.modules


def test_the_banner_names_the_version_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    """`walras policy show` says it before the policy, as comments: what it prints stays a policy file."""
    why = "version 2 failed: key() failed at plug.py:21: RuntimeError: out of sorts"
    view = PolicyView(
        version=3, name="fifo", parameters={}, rules={}, changed_at="today", changed_by="walras", put_back=why
    )
    show_policy(view, OutputFormat.TABLE)
    shown = capsys.readouterr().out
    assert f"# ATTENTION: {why}" in shown
    assert parse_yaml(shown, source="shown", max_bytes=10_000) == {
        "policy": {"name": "fifo", "parameters": {}},
        "rules": {},
    }


async def test_what_differs_from_the_default_is_shown_and_is_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`walras policy show` leaves rules at their defaults out, and what it prints is the same policy again."""
    async with facing(tmp_path, policy={"policy": {"name": "fifo"}, "rules": {"round_s": 33}}) as face:
        view = PolicyView.model_validate((await face.json("GET", API))[1])
        show_policy(view, OutputFormat.TABLE)
        shown = parse_yaml(capsys.readouterr().out, source="shown", max_bytes=10_000)
        assert shown["rules"] == {"round_s": 33.0}
        assert parse_policy(shown) == parse_policy({"policy": shown["policy"], "rules": view.rules})


API = "/api/v1/policy"
HISTORY_FIFO = {"policy": {"name": "fifo"}, "rules": {"round_s": 33}}
LAS = {"policy": {"name": "las"}}


async def test_every_version_is_kept_with_author_and_reason_also_over_a_restart(tmp_path: Path) -> None:
    """Reasons are one line; the newest version is first."""
    async with facing(tmp_path) as face:
        status, first = await face.json("PUT", f"{API}?reason=short%20jobs%0Await", HISTORY_FIFO)
        assert (status, first["version"], first["reason"]) == (200, 2, "short jobs wait")
        assert (await face.json("PUT", API, LAS))[1]["reason"] == ""
    async with facing(tmp_path, policy=LAS) as face:
        versions = (await face.json("GET", f"{API}/versions"))[1]
        assert [each["version"] for each in versions][:3] == [3, 2, 1]
        assert [each["name"] for each in versions][:2] == ["las", "fifo"]
        assert versions[1]["reason"] == "short jobs wait"
        assert versions[1]["changed_by"]
        assert versions[1]["rules"]["round_s"] == 33


async def test_a_change_that_was_meant_for_another_version_is_refused_and_names_who_was_faster(face: Face) -> None:
    assert (await face.json("PUT", f"{API}?if_version=1", LAS))[0] == 200
    status, problem = await face.json("PUT", f"{API}?if_version=1", HISTORY_FIFO)
    assert (status, problem["field"]) == (409, "if_version")
    assert "version 2 by " in problem["detail"]
    assert (await face.json("GET", API))[1]["name"] == "las"
    assert (await face.json("PUT", f"{API}?if_version=x", LAS))[0] == 400


async def test_a_change_whose_answer_was_lost_is_made_once(face: Face) -> None:
    """The same by the same person in the place of the same version is that change, and no conflict with it."""
    first = (await face.json("PUT", f"{API}?if_version=1", LAS))[1]
    status, again = await face.json("PUT", f"{API}?if_version=1", LAS)
    assert (status, again["version"], first["version"]) == (200, 2, 2)


async def test_listed_pairs_are_refused_where_nobody_lists_any(face: Face) -> None:
    packed = {"policy": {"name": "max_min_fairness", "parameters": {"packed": True}}}
    status, problem = await face.json("PUT", API, packed)
    assert (status, problem["field"]) == (400, "policy.parameters.packed")
    assert "resources.shared" in problem["fix"]


async def test_reasons_are_bounded_and_only_administrators_change(face: Face) -> None:
    assert (await face.json("PUT", f"{API}?reason={'x' * 401}", HISTORY_FIFO))[0] == 400
    viewer = face.token("vera", UserRole.VIEWER)
    assert (await face.json("GET", f"{API}/versions", token=viewer))[0] == 200
    assert (await face.json("PUT", API, HISTORY_FIFO, token=viewer))[0] == 403


MONEY = {
    "budgets": [{"project": "lab", "usd": 100.0, "every": "month"}],
    "values": [{"project": "lab", "usd_per_h": 5.0}],
    "delay_usd_per_h": 0.5,
}


async def test_what_an_organisation_decided_about_money_outlives_the_policy(tmp_path: Path) -> None:
    """Another policy and a restart leave budgets and values; a file that names them changes them."""
    async with facing(tmp_path) as face:
        first = await face.done("PUT", API, {**HISTORY_FIFO, "rules": {**MONEY, "protected_s": 33}})
        kept = {name: first["rules"][name] for name in MONEY}
        assert (len(kept["budgets"]), len(kept["values"]), kept["delay_usd_per_h"]) == (1, 1, 0.5)
        for other in (LAS, {"policy": "walras"}, {**LAS, "rules": {"round_s": 44}}):
            status, changed = await face.json("PUT", API, other)
            assert (status, {name: changed["rules"][name] for name in MONEY}) == (200, kept)
    async with facing(tmp_path, policy=HISTORY_FIFO) as face:
        assert {name: (await face.json("GET", API))[1]["rules"][name] for name in MONEY} == kept
        status, changed = await face.json("PUT", API, {**LAS, "rules": {"budgets": []}})
        assert (status, changed["rules"]["budgets"], changed["rules"]["values"]) == (200, [], kept["values"])


async def test_round_times_that_an_organisation_chose_outlive_the_policy(tmp_path: Path) -> None:
    """Those of the shipped file of a policy are the policy's own, and go with it."""
    async with facing(tmp_path, policy=HISTORY_FIFO) as face:
        rules = {"round_s": 33, "protected_s": 20}
        assert (await face.json("PUT", API, {**HISTORY_FIFO, "rules": rules}))[0] == 200
        for name, least_s in (("srtf", 60.0), ("walras", 60.0), ("fifo", 60.0)):
            now = (await face.json("PUT", API, {"policy": {"name": name}}))[1]["rules"]
            assert [now[each] for each in ("round_s", "protected_s", "min_runtime_s")] == [33, 20, least_s], name
        now = (await face.json("PUT", API, {"policy": "walras", "rules": {"round_s": 360, "protected_s": 0}}))[1][
            "rules"
        ]
        assert (now["round_s"], now["protected_s"]) == (360, 0)
        assert (await face.json("PUT", API, {"policy": {"name": "srtf"}}))[1]["rules"]["round_s"] == 60


async def test_a_policy_by_name_is_the_shipped_file_of_that_name(tmp_path: Path) -> None:
    async with facing(tmp_path, policy={"policy": {"name": "las"}}) as face:
        status, changed = await face.json("PUT", API, {"policy": {"name": "walras"}})
        assert (status, changed["rules"]["resolve_min_s"], changed["rules"]["round_s"]) == (200, 1.0, 360.0)
        assert (await face.json("PUT", API, {"policy": 3}))[0] == 400
        assert (await face.json("PUT", API, []))[0] == 400
