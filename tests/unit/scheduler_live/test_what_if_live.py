"""`POST /whatif` and `POST /jobs:quote` on a live server, and what `walras whatif` makes of their answers."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from walras.api import JobDetail
from walras.cli.what_if_commands import parse_added
from walras.cli.what_if_text import later_text, show_ways, show_what_if, taken_text
from walras.errors import UserError
from walras.job_request import JobId
from walras.spec.job_spec import parse_spec, spec_mapping
from walras.taken_quote import take_way
from walras.what_if import QuoteView, WhatIfView

API = "/api/v1"
#: A step takes a second on `a`.
LONG = {"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000}


async def _busy(face: Face) -> None:
    """A machine with a job, another job that waits for it, and a speed that is known."""
    face.world.server.start_forecasts._make_pool = lambda: ThreadPoolExecutor(1)
    agent = await FakeAgent(face.world, "n1").register()
    job_id = await face.world.submit(LONG)
    await agent.start_all()
    await agent.beat(agent.progress(job_id, 1, 1.0, steps_per_s=1.0, start_s=1.0))
    await face.world.submit({**LONG, "name": "second"})
    await face.world.quiet()


async def test_with_another_machine_the_job_that_waits_is_told_to_end_sooner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with facing(tmp_path) as face:
        await _busy(face)
        status, answer = await face.json("POST", f"{API}/whatif", {"add": [{"accelerator": "a", "accelerators": 2}]})
        assert status == 200, answer
        found = WhatIfView.model_validate(answer)
        (second,) = found.jobs
        assert second.name == "second"
        assert second.start_s is not None
        assert second.start_s[1] == pytest.approx(-1000.0, rel=0.1)
        assert found.total.completion_s[1] == pytest.approx(-500.0, rel=0.1)
        assert [each.project for each in found.projects] == ["default"]
        show_what_if(found)
        shown = capsys.readouterr().out
        assert "more in" in shown
        assert "sooner" in shown
        # Nothing was done.
        assert len((await face.json("GET", f"{API}/nodes"))[1]) == 1


async def test_a_job_is_quoted_for_each_type_that_it_may_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with facing(tmp_path) as face:
        await _busy(face)
        status, answer = await face.json("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG})
        assert status == 200, answer
        (way,) = QuoteView.model_validate(answer).ways
        assert way.way == "2 x a"
        assert way.forecast is not None
        assert way.delayed_jobs == 0
        assert way.promised_by is not None
        assert way.promised_by >= way.forecast.end[2]
        show_ways(QuoteView.model_validate(answer))
        shown = capsys.readouterr().out
        assert "nobody" in shown
        assert "by " in shown
        taken = take_way(parse_spec({"run": ["true"], **LONG}), QuoteView.model_validate(answer), "a:2")
        status, submitted = await face.json("POST", f"{API}/jobs", spec_mapping(taken))
        assert status == 201, submitted["detail"]
        job = JobDetail.model_validate((await face.json("GET", f"{API}/jobs/{submitted['id']}"))[1])
        request = face.world.server.core.ledger.jobs[JobId(job.id)].request
        assert taken.quoted is not None
        assert face.world.server.loop.clock.unix(request.deadline_at) == pytest.approx(taken.quoted.end_by, abs=1.0)
        assert taken_text(job).startswith("2 x a, to end by ")
        await face.json("POST", f"{API}/jobs/{job.id}/cancel")
        # With another priority it would go before the one that waits.
        status, answer = await face.json("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG, "priority": 100})
        assert QuoteView.model_validate(answer).ways[0].delayed_jobs > 0
        assert len(face.world.live_state.jobs) == 2


async def test_a_job_without_a_machine_is_promised_nothing_and_told_why(tmp_path: Path) -> None:
    """What no future reaches has no forecast and no promise, in words."""
    async with facing(tmp_path) as face:
        await _busy(face)
        await face.json("POST", f"{API}/nodes/n1/drain", {})
        await face.world.quiet()
        status, answer = await face.json("POST", f"{API}/jobs:quote", {"run": ["true"], **LONG})
        assert status == 200, answer
        (way,) = QuoteView.model_validate(answer).ways
        assert (way.forecast, way.promised_by) == (None, None)
        assert way.no_promise.startswith("half of the futures do not reach its end within 14 days")


@pytest.mark.parametrize(
    ("asked", "status", "field"),
    [
        ({}, 400, "add"),
        ({"add": [{"accelerator": "a", "accelerators": 0}]}, 400, "add.0.accelerators"),
        ({"add": [{"accelerator": "h100", "accelerators": 1}]}, 404, "add"),
        ({"remove": ["nowhere"]}, 404, "remove"),
        ({"remove": ["x"] * 17}, 400, "remove"),
        ({"no_limit": ["default"]}, 404, "no_limit"),
        ({"policy": {"policy": {"name": "no-such"}}}, 400, "policy.name"),
        ({"submit": [{"run": ["true"], "resources": {"accelerators": {"a": 64}}}]}, 400, None),
        ({"nonsense": 1}, 400, "nonsense"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_field(
    tmp_path: Path, asked: dict[str, Any], status: int, field: str | None
) -> None:
    async with facing(tmp_path) as face:
        await _busy(face)
        got, problem = await face.json("POST", f"{API}/whatif", asked)
        assert got == status, problem
        assert field is None or problem["field"] == field


def test_the_words_of_a_difference_say_whether_its_sign_is_sure() -> None:
    assert later_text((0.0, 0.0, 0.4)) == "same"
    assert later_text((-1200.0, -720.0, -480.0)) == "12m00s sooner (8m00s to 20m00s)"
    assert later_text((60.0, 120.0, 180.0)) == "2m00s later (1m00s to 3m00s)"
    assert later_text((-60.0, 10.0, 180.0)) == "not sure (1m00s sooner to 3m00s later)"


def test_machines_to_add_are_read_and_refused_in_words() -> None:
    assert parse_added("4xh100:spot") == {"accelerator": "h100", "accelerators": 4, "market": "spot"}
    assert parse_added("8xa100") == {"accelerator": "a100", "accelerators": 8}
    for text in ("h100", "xh100", "4x", "fourxh100", "4xh100:moon"):
        with pytest.raises(UserError, match="accelerators of a type"):
            parse_added(text)
