"""A policy of others that raises, hangs or answers nonsense: refused, or put back; the server never ends for it."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from live_world import FIFO, FakeAgent, World, world

from scheduler.core.events import PolicyChanged, SolveFailed
from scheduler.live.loop.apply_commands import emit
from scheduler.live.services.policy_service import DEFAULT_POLICY, PolicyWish
from scheduler.live.services.policy_trial import run_trial, trial_on_live_state, try_policy
from scheduler.live.store.event_journal import replay_journal
from walras.cli.policy_commands import show_policy
from walras.cli.terminal_output import OutputFormat
from walras.errors import ConfigError
from walras.policy_views import PolicyView
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
        return (-jobs.submitted_at,)
'''
POLICY: dict[str, Any] = {"policy": {"name": "plug"}, "rules": {"round_s": 10.0}}


class PlugIn:
    """An installed package with a policy whose mood a test sets."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        described = folder / "plug-1.0.dist-info"
        described.mkdir(parents=True)
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
        (described / "entry_points.txt").write_text("[walras.policies]\nplug = walras_test_plug:Plug\n")
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


async def test_a_policy_that_raises_is_refused_with_method_and_line(tmp_path: Path, plug: PlugIn) -> None:
    plug.be("raises")
    async with world(tmp_path / "data") as w:
        await started(w)
        with pytest.raises(ConfigError, match=r"key\(\) failed at walras_test_plug.py:2\d: RuntimeError: out of sorts"):
            await w.server.policies.change(POLICY, PolicyWish("ada"))
        assert w.server.policies.in_force.spec.name == "fifo"
        assert [row.version for row in w.server.store.policies()] == [1]
        plug.be("good")
        assert (await w.server.policies.change(POLICY, PolicyWish("ada"))).row.version == 2


@pytest.mark.parametrize(
    ("mood", "said"),
    [("short", "columns of shape"), ("nan", "NaN"), ("exits", "SystemExit"), ("raises", "out of sorts")],
)
async def test_what_is_no_answer_fails_the_trial(tmp_path: Path, plug: PlugIn, mood: str, said: str) -> None:
    async with world(tmp_path / "data") as w:
        await started(w)
        spec, rules = w.server.policies.check(POLICY)
        plug.be(mood)
        trial = trial_on_live_state(w.loop.core, spec, rules.delay_usd_per_h)
        assert trial is not None
        fault = run_trial(trial)
        assert fault is not None
        assert fault.method == "key"
        assert said in fault.error


@pytest.mark.parametrize("mood", ["dies", "hangs"])
async def test_a_policy_that_dies_or_hangs_ends_its_own_process_alone(tmp_path: Path, plug: PlugIn, mood: str) -> None:
    async with world(tmp_path / "data") as w:
        await started(w)
        spec, rules = w.server.policies.check(POLICY)
        plug.be(mood)
        trial = trial_on_live_state(w.loop.core, spec, rules.delay_usd_per_h)
        assert trial is not None
        fault = await try_policy(trial, 3.0)
        assert fault is not None
        assert fault.method == "trial"


async def test_a_policy_that_raises_later_is_put_back_to_the_last_good_one(tmp_path: Path, plug: PlugIn) -> None:
    """Nothing ends; the last good policy is in force, says why, and the journal replays with the fault in it."""
    async with world(tmp_path / "data") as w:
        agent = await started(w)
        await w.server.policies.change(POLICY, PolicyWish("ada"))
        plug.be("raises")
        await agent.end(1)
        await w.advance(20.0)
        in_force = w.server.policies.in_force
        assert (in_force.spec.name, in_force.row.version) == ("fifo", 3)
        assert "version 2 failed: key() failed at walras_test_plug.py" in in_force.put_back
        assert w.loop.core.ledger.policy.fault is None
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


async def test_a_policy_whose_solves_fail_again_and_again_is_put_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
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
