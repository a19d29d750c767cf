"""A policy in the shadow of a live server: started, told of, kept over a restart, stopped, and never in the way."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.forecast.shadow_run import ShadowAnswer
from scheduler.live.auth.access_control import UserRole
from scheduler.live.services.policy_shadow import (
    SHADOW_CORE_SHARE,
    SHADOW_CPU_S,
    PolicyShadow,
    ShadowQuestion,
    answer_shadow,
)
from tests.support.http_face import facing
from tests.support.live_world import FIFO, FakeAgent, World, world
from walras.cli.shadow_commands import show_shadow
from walras.shadow_views import ShadowView

API = "/api/v1"
PATH = f"{API}/policy/shadow"
#: A step takes a second on `a`.
LONG = {"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000}
SHORT = {**LONG, "steps": 100}
SHORTEST_FIRST = {"policy": {"name": "srtf"}}

Find = Callable[[ShadowQuestion], ShadowAnswer]


async def _here(find: Find, question: ShadowQuestion, timeout_s: float) -> ShadowAnswer:
    """Answer in this process: another one would take seconds to begin."""
    return answer_shadow(question)


def _shadow(w: World) -> PolicyShadow:
    w.server.shadow._ask = _here
    return w.server.shadow


async def _three_jobs(w: World) -> FakeAgent:
    """One machine; a job that runs, whose speed is known; the shadow begins after it."""
    agent = await FakeAgent(w, "n1").register()
    first = await w.submit(LONG)
    await agent.start_all()
    await agent.beat(agent.progress(first, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    return agent


async def _queue_passes(w: World, agent: FakeAgent) -> None:
    """A long job and a short one come; the three run one after the other, first come first served."""
    w.clock.at += 10.0
    await w.submit(LONG)
    w.clock.at += 10.0
    await w.submit(SHORT)
    for job_id, took_s in ((1, 980.0), (2, 1000.0), (3, 100.0)):
        for _ in range(20):
            w.clock.at += took_s / 20
            await agent.beat()
        await agent.end(job_id)
        w.clock.at += 1.0
        await agent.start_all()
        await w.quiet()


async def test_what_would_have_happened_is_told_of_by_project_and_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with facing(tmp_path) as face:
        shadow = _shadow(face.world)
        agent = await _three_jobs(face.world)
        status, answer = await face.json("PUT", PATH, SHORTEST_FIRST)
        assert (status, answer["state"], answer["started_by"]) == (200, "waiting", "admin"), answer
        show_shadow(ShadowView.model_validate(answer))
        assert "look again" in capsys.readouterr().out
        await _queue_passes(face.world, agent)
        assert await shadow.refresh() > 0.0
        status, answer = await face.json("GET", PATH)
        found = ShadowView.model_validate(answer)
        assert (found.state, found.policy, found.core_share) == ("ready", "srtf", SHADOW_CORE_SHARE), found
        assert found.total is not None
        live, own, other = found.total.live, found.total.own, found.total.shadow
        assert live is not None
        assert own is not None
        assert other is not None
        assert (found.total.jobs, found.total.unknown) == (3, 0)
        assert own.mean_s == pytest.approx(live.mean_s, rel=0.05)
        assert other.mean_s < own.mean_s - 200.0
        assert [each.id for each in found.sooner] == [3]
        assert [each.id for each in found.later] == [2]
        assert found.sooner[0].difference_s == pytest.approx(-1000.0, rel=0.05)
        assert [each.project for each in found.projects] == ["default"]
        show_shadow(found)
        shown = capsys.readouterr().out
        assert "3 of known length" in shown
        assert "sooner" in shown
        # Only the live policy decided.
        assert face.world.server.core.ledger.policy.spec.name == "fifo"


async def test_the_policy_in_force_in_its_own_shadow_differs_by_nothing(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        shadow = _shadow(face.world)
        agent = await _three_jobs(face.world)
        await face.json("PUT", PATH, {"policy": FIFO["policy"]})
        await _queue_passes(face.world, agent)
        await shadow.refresh()
        found = ShadowView.model_validate((await face.json("GET", PATH))[1])
        assert found.total is not None
        assert found.total.own == found.total.shadow is not None
        assert found.total.difference_s == (0.0, 0.0, 0.0)
        assert found.sooner == found.later == []


async def test_administrators_start_and_stop_it_and_everybody_sees_the_own_jobs_alone(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        shadow = _shadow(face.world)
        agent = await _three_jobs(face.world)
        other, ops = face.token("eve", UserRole.USER, "other"), face.token("ops", UserRole.OPERATOR, "default")
        for token in (other, ops):
            assert (await face.json("PUT", PATH, SHORTEST_FIRST, token=token))[0] == 403
            assert (await face.json("DELETE", PATH, token=token))[0] == 403
        assert (await face.json("GET", PATH, token=other))[1]["state"] == "none"
        assert (await face.json("DELETE", PATH))[0] == 404
        assert (await face.json("PUT", PATH, {"policy": {"name": "nothing"}}))[0] == 400
        assert (await face.json("PUT", PATH, {"policy": {"name": "file:/tmp/own.py"}}))[0] == 400
        assert (await face.json("PUT", PATH, SHORTEST_FIRST))[0] == 200
        assert (await face.json("PUT", PATH, SHORTEST_FIRST))[0] == 409
        await _queue_passes(face.world, agent)
        await shadow.refresh()
        seen = (await face.json("GET", PATH, token=other))[1]
        assert (seen["state"], seen["total"]["jobs"], seen["sooner"], seen["projects"]) == ("ready", 0, [], [])
        assert (await face.json("GET", PATH, token=ops))[1]["total"]["jobs"] == 3
        status, last = await face.json("DELETE", PATH)
        assert (status, last["state"]) == (200, "ready")
        assert (await face.json("GET", PATH))[1]["state"] == "none"
        status, rows = await face.json("GET", f"{API}/audit")
        told = [row for row in rows if row["subject"] == "policy in the shadow"]
        assert [row["action"].split()[0] for row in told] == ["DELETE", "PUT"]
        assert told[1]["after"]["policy"]["name"] == "srtf"


async def test_it_outlives_the_server_and_counts_what_came_before_and_after(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent = await _three_jobs(w)
        await w.server.shadow.start(SHORTEST_FIRST, "admin")
        await _queue_passes(w, agent)
        since_at, at = w.server.shadow.setting.since_at, w.clock.at  # type: ignore[union-attr]
        before = await _answered(w)
    async with world(tmp_path, at=at + 30.0) as w:
        setting = w.server.shadow.setting
        assert setting is not None
        assert (setting.spec.name, setting.by, setting.since_at) == ("srtf", "admin", since_at)
        after = await _answered(w)
        assert [job.job_id for job in after.jobs] == [1, 2, 3]
        assert [(job.live, job.own, job.shadow) for job in after.jobs] == [
            (job.live, job.own, job.shadow) for job in before.jobs
        ]
        await w.server.shadow.stop()
    async with world(tmp_path, at=at + 60.0) as w:
        assert w.server.shadow.setting is None


async def _answered(w: World) -> ShadowAnswer:
    shadow = _shadow(w)
    await shadow.refresh()
    assert shadow.fault == ""
    assert shadow.answer is not None
    return shadow.answer


@pytest.mark.parametrize(
    ("error", "told"), [(RuntimeError("its own fault"), "its own fault"), (TimeoutError(), "no answer in time")]
)
async def test_whatever_goes_wrong_in_the_process_is_told_and_disturbs_nothing(
    tmp_path: Path, error: Exception, told: str
) -> None:
    async def wrong(find: Find, question: ShadowQuestion, timeout_s: float) -> ShadowAnswer:
        assert timeout_s > SHADOW_CPU_S
        raise error

    async with facing(tmp_path) as face:
        await _three_jobs(face.world)
        await face.json("PUT", PATH, SHORTEST_FIRST)
        face.world.server.shadow._ask = wrong
        await face.world.server.shadow.refresh()
        status, answer = await face.json("GET", PATH)
        assert (status, answer["state"]) == (200, "failed")
        assert told in answer["fault"]
        assert (await face.json("GET", f"{API}/jobs/1"))[1]["state"] == "RUNNING"
        assert (await face.json("DELETE", PATH))[0] == 200


async def test_a_policy_that_raises_does_so_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that an installed package brings: its class is found by name, also in the new process."""
    (tmp_path / "raising_policy.py").write_text(
        "from dataclasses import dataclass\n"
        "from optimizer.policies.queue_orders import Fifo\n"
        "@dataclass(frozen=True)\n"
        "class Raising(Fifo):\n"
        "    def key(self, facts):\n"
        "        raise RuntimeError('no order')\n"
    )
    info = tmp_path / "raising-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raising\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[walras.policies]\nraising = raising_policy:Raising\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    async with facing(tmp_path / "data") as face:
        await _three_jobs(face.world)
        status, answer = await face.json("PUT", PATH, {"policy": {"name": "raising"}})
        assert status == 200, answer
        face.world.clock.at += 10.0
        await face.world.submit(LONG)
        await face.world.submit(LONG)
        face.world.clock.at += 10.0
        await face.world.server.shadow.refresh()
        fault = (await face.json("GET", PATH))[1]["fault"]
        assert "key() failed" in fault
        assert "no order" in fault
        for process in multiprocessing.active_children():
            process.join(10.0)  # it was killed
        assert multiprocessing.active_children() == []
        assert face.world.server.core.ledger.policy.fault is None


async def test_the_journal_is_read_from_the_beginning_on_and_no_further_than_is_bearable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may be read is said, not cut."""

    async with world(tmp_path) as w:
        agent = await _three_jobs(w)
        await w.server.shadow.start(SHORTEST_FIRST, "admin")
        since_at = w.server.shadow.setting.since_at  # type: ignore[union-attr]
        with pytest.raises(LookupError):
            list(w.server.store.journal_after(-1.0, ("JobSubmitted",), 5))
        monkeypatch.setattr("scheduler.live.services.policy_shadow._ROWS_MOST", 3)
        await _queue_passes(w, agent)
        rows = list(w.server.store.journal_after(since_at, ("JobSubmitted", "Start"), 3))
        assert [row.type for row in rows] == ["JobSubmitted", "JobSubmitted", "Start"]
        assert all(row.at > since_at for row in rows)
        await _shadow(w).refresh()
        assert "more than 3 things" in w.server.shadow.fault
