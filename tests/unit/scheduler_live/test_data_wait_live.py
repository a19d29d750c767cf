"""A running job that waits for its data: said in words, believed only from 0 to 1, and part of what is predicted."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent

API = "/api/v1"
JOB = {"profile": "cnn", "resources": {"accelerators": {"a": 2}}, "steps": 1000}


async def _reporting(face: Face, **values: float) -> int:
    """A job that runs and reports these values."""
    agent = await FakeAgent(face.world, "n1").register()
    job_id = await face.world.submit(JOB)
    await agent.start_all()
    await agent.beat(agent.progress(job_id, 1, 30.0, steps_per_s=1.0, start_s=1.0, values=values))
    return job_id


async def _conditions(face: Face, job_id: int) -> dict[str, str]:
    answer: dict[str, Any] = (await face.json("GET", f"{API}/jobs/{job_id}/explain"))[1]
    return {each["type"]: each["detail"] for each in answer["conditions"]}


async def test_explain_says_how_much_of_its_steps_a_job_waits_for_its_data(tmp_path: Path) -> None:
    """With the most that any accelerator could change."""
    async with facing(tmp_path) as face:
        job_id = await _reporting(face, data_wait=0.384, loss=2.0)
        detail = (await _conditions(face, job_id))["waits_for_data"]
        assert detail.startswith(
            "38% of its step it waits for its data: no accelerator could make it more than 2.6 times"
        )
        job = (await face.json("GET", f"{API}/jobs/{job_id}"))[1]
        assert job["last_values"]["data_wait"] == 0.384
        assert face.world.live_state.data_waits == {("cnn", "a", 2): 4}


@pytest.mark.parametrize("share", [0.1, -0.5, 7.0, 1e300])
async def test_a_short_wait_is_no_news_and_nonsense_is_not_believed(tmp_path: Path, share: float) -> None:
    async with facing(tmp_path) as face:
        job_id = await _reporting(face, data_wait=share)
        assert "waits_for_data" not in await _conditions(face, job_id)
        assert face.world.live_state.data_waits == ({("cnn", "a", 2): 1} if share == 0.1 else {})


async def test_the_wait_is_part_of_the_question_to_the_predictors_and_noise_asks_nothing_again(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        agent = await FakeAgent(face.world, "n1").register()
        job_id = await face.world.submit(JOB)
        await agent.start_all()
        versions = []
        for steps, share in ((30.0, 0.41), (60.0, 0.43), (90.0, 0.62)):
            report = agent.progress(job_id, 1, steps, steps_per_s=1.0, start_s=1.0, values={"data_wait": share})
            await agent.beat(json.loads(json.dumps(report)))
            versions.append(face.world.live_state.data_waits_version)
        assert versions == [1, 1, 2]
