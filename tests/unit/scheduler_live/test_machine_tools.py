"""A job that no machine could prepare is refused when it is submitted, with what would help."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.live.http.pool_api import _pool_view
from tests.support.http_face import facing
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import PoolId
from walras.errors import JobSpecError
from walras.job_needs import GitNeed, InputNeed, JobNeeds, PythonNeed
from walras.machine_tools import TOOLS_MOST, unmet_need
from walras.wire import Heartbeat
from workers.preparation.environments import tools_here

PYTHON = JobNeeds(python=PythonNeed(packages=("numpy",)))
COMMIT = "0" * 40


@pytest.mark.parametrize(
    ("needs", "machines", "field"),
    [
        (JobNeeds(), [set()], None),
        (PYTHON, [], None),
        (PYTHON, [{"git"}, None], None),
        (PYTHON, [{"git"}, {"uv"}], None),
        (PYTHON, [{"git"}, set()], "python"),
        (JobNeeds(image="pytorch:2"), [{"docker"}], None),
        (JobNeeds(image="pytorch:2"), [{"uv", "git"}], "image"),
        (JobNeeds(image="/images/a.sif"), [{"docker", "podman"}], "image"),
        (JobNeeds(git=GitNeed(url="x", commit=COMMIT)), [{"uv"}], "workdir"),
        (JobNeeds(inputs={"d": InputNeed(url="s3://b/x")}), [{"uv"}], "inputs.d"),
        (JobNeeds(inputs={"d": InputNeed(url="https://h/x"), "e": InputNeed(command="true")}), [set()], None),
        (JobNeeds(python=PYTHON.python, image="i"), [{"uv"}, {"docker"}], "image"),
        (JobNeeds(python=PYTHON.python, image="i"), [{"uv"}], "image"),
        (JobNeeds(python=PYTHON.python, image="i"), [{"uv", "podman"}], None),
    ],
)
def test_one_machine_has_to_have_all(needs: JobNeeds, machines: list[Any], field: str | None) -> None:
    found = unmet_need(needs, machines)
    if field is None:
        assert found is None
    else:
        assert found is not None
        assert found.field in (field, "python")
        assert found.fix


async def a_machine(w: World, *tools: str, name: str = "n1") -> FakeAgent:
    agent = await FakeAgent(w, name).register()
    agent.identity["tools"] = list(tools)
    await agent.beat()
    return agent


async def test_a_job_that_no_pool_can_prepare_is_refused_with_the_fix(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await a_machine(w, "git")
        with pytest.raises(JobSpecError, match="no machine that it fits has uv") as told:
            await w.submit({"python": {"packages": ["numpy"]}})
        assert (told.value.field, "walras[environments]" in told.value.fix) == ("python", True)
        await w.submit({})
        await a_machine(w, "uv", name="n2")
        await w.submit({"python": {"packages": ["numpy"]}})


async def test_an_older_agent_and_a_pool_without_machines_refuse_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        agent = await FakeAgent(w, "n1").register()
        await agent.beat()
        await w.submit({"image": "pytorch:2"})
    a = {"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB", "machines": 1}
    async with world(tmp_path / "expected", cluster={"pools": [a]}) as w:
        await w.submit({"image": "pytorch:2"})


async def test_a_dry_run_refuses_it_too(tmp_path: Path) -> None:
    async with facing(tmp_path) as face:
        await a_machine(face.world)
        status, answer = await face.json("POST", "/api/v1/jobs:dryrun", {"run": "true", "image": "pytorch:2"})
        assert (status, answer["field"]) == (400, "image")
        assert "apptainer or podman or docker" in answer["detail"]


async def test_a_pool_has_what_all_its_machines_have(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await a_machine(w, "uv", "git")
        pool = w.live_state.pools[PoolId("ax2/owned/default")]
        assert _pool_view(w.live_state, pool, "").tools == ["git", "uv"]
        await a_machine(w, "git", "docker", name="n2")
        assert _pool_view(w.live_state, pool, "").tools == ["git"]
        await (await FakeAgent(w, "n3").register()).beat()
        assert _pool_view(w.live_state, pool, "").tools is None


def test_what_a_machine_says_is_bounded() -> None:
    known = tools_here()
    assert "git" in known
    assert len(known) <= TOOLS_MOST
    for tools in (["x"] * (TOOLS_MOST + 1), ["x" * 41]):
        with pytest.raises(ValueError, match="tools"):
            Heartbeat(node_id="n1", tools=tools)
