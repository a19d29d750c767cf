"""A job that no machine could prepare is refused with what would help; others start where they can be prepared."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.core.state.fleet import FleetMachine
from scheduler.live.http.pool_api import _tools_in
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent, World, world
from walras.cluster import NodeId
from walras.errors import JobSpecError
from walras.job_needs import GitNeed, InputNeed, JobNeeds, PythonNeed
from walras.job_request import JobId
from walras.machines.machine_facts import DATA_MOST, TOOLS_MOST, data_key, unmet_need
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
        assert found.field in (field, "python")
        assert found.fix


async def a_machine(w: World, *tools: str, name: str = "n1") -> FakeAgent:
    agent = await FakeAgent(w, name).register()
    agent.identity["tools"] = list(tools)
    await agent.beat()
    return agent


async def test_a_job_that_no_pool_can_prepare_is_refused_with_the_fix(w: World) -> None:
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


async def test_a_dry_run_refuses_it_too(face: Face) -> None:
    await a_machine(face.world)
    status, answer = await face.json("POST", "/api/v1/jobs:dryrun", {"run": "true", "image": "pytorch:2"})
    assert (status, answer["field"]) == (400, "image")
    assert "apptainer or podman or docker" in answer["detail"]
    await a_machine(face.world, "git", name="n2")
    other = FakeAgent(face.world, "b1", shape="bx2", accelerator="b")
    other.identity["tools"] = ["docker"]
    await other.register()
    spec = {"run": "true", "image": "pytorch:2", "resources": {"accelerators": "any"}}
    answer = await face.done("POST", "/api/v1/jobs:dryrun", spec)
    assert [each["pool"] for each in answer["configurations"]] == ["bx2/owned/default"]


async def test_a_pool_has_what_all_its_machines_have(w: World) -> None:
    await a_machine(w, "uv", "git")
    assert _tools_in([*w.live_state.nodes.values()]) == ["git", "uv"]
    await a_machine(w, "git", "docker", name="n2")
    assert _tools_in([*w.live_state.nodes.values()]) == ["git"]
    await (await FakeAgent(w, "n3").register()).beat()
    assert _tools_in([*w.live_state.nodes.values()]) is None


async def test_what_a_machine_says_is_bounded(tmp_path: Path) -> None:
    known = tools_here()
    assert "git" in known
    assert len(known) <= TOOLS_MOST
    for tools in (["x"] * (TOOLS_MOST + 1), ["x" * 41]):
        with pytest.raises(ValueError, match="tools"):
            Heartbeat(node_id="n1", tools=tools)
    for data in (["0" * 32] * (DATA_MOST + 1), ["x" * 32], ["0" * 31], ["../" + "0" * 29]):
        with pytest.raises(ValueError, match="data"):
            Heartbeat(node_id="n1", data=data)
    assert data_key(InputNeed(url="a")) != data_key(InputNeed(command="a"))


def known(w: World, name: str) -> FleetMachine:
    """The machine as the core knows it."""
    found = w.server.core.ledger.fleet.machine(NodeId(name))
    assert found is not None
    return found


def where(w: World, job: JobId) -> list[str] | None:
    """The machines of its attempt; None: it waits."""
    attempt = w.live_state.jobs[job].attempt
    return None if attempt is None else [part.node_id for part in attempt.placement.parts]


async def test_a_job_starts_only_where_it_can_be_prepared_even_right_after_a_restart(tmp_path: Path) -> None:
    """What a machine has is known from its registration on, and to the server that takes over, before it is heard."""
    async with world(tmp_path) as w:
        bare = FakeAgent(w, "bare")
        bare.identity["tools"] = ["git"]
        await bare.register()
        await (await FakeAgent(w, "old").register()).beat()
        job = await w.submit({"python": {"packages": ["numpy"]}})
        await w.quiet()
        assert where(w, job) == ["old"]
    async with world(tmp_path) as w:
        assert known(w, "bare").tools == frozenset({"git"})
        second = await w.submit({"python": {"packages": ["numpy"]}, "resources": {"accelerators": "a:2"}})
        await w.quiet()
        assert where(w, second) is None
        assert [each.tools for each in w.server.views.nodes()] == [["git"], None]


async def test_an_agent_that_has_found_more_gets_the_job_that_waits(w: World) -> None:
    agent = await a_machine(w, "git")
    await a_machine(w, "uv", name="n2")
    for _ in range(2):
        await w.submit({"python": {"packages": ["numpy"]}, "resources": {"accelerators": "a:2"}})
    await w.quiet()
    assert where(w, JobId(2)) is None
    agent.identity["tools"] = ["git", "uv"]
    await agent.beat()
    assert where(w, JobId(2)) == ["n1"]


async def test_a_job_goes_where_its_inputs_are(w: World) -> None:
    """By keys that both sides compute from the job file; a machine that forgets them is one like others."""
    url = "https://host/data.bin"
    await a_machine(w)
    agent = await a_machine(w, name="n2")
    agent.identity["data"] = [data_key(InputNeed(url=url), "default/ada")]
    await agent.beat()
    job = await w.submit({"inputs": {"d": url}})
    await w.quiet()
    assert where(w, job) == ["n2"]
    assert w.server.core.ledger.jobs[await w.submit({"inputs": {"d": url}}, "bob")].request.data != (
        w.server.core.ledger.jobs[job].request.data
    )
    agent.identity["data"] = []
    await agent.beat()
    assert known(w, "n2").data == frozenset()


async def test_what_inputs_have_cost_is_told_the_core_and_kept_for_a_machine_that_joins_again(w: World) -> None:
    keys = [data_key(InputNeed(url=f"https://host/{name}")) for name in "ab"]
    agent = await a_machine(w)
    told = {"key": keys[0], "size_bytes": 12 * 10**9, "seconds": 60.0}
    other = {"key": "f" * 32, "size_bytes": 1, "seconds": 1.0}
    await agent.beat(data=keys, fetched=[told, other])
    assert known(w, "n1").fetched == ((keys[0], 12 * 10**9, 60.0),)
    assert w.live_state.nodes["n1"].fetched == known(w, "n1").fetched
    for wrong in ({"size_bytes": -1}, {"seconds": -1.0}, {"seconds": float("nan")}, {"key": "x"}):
        with pytest.raises(ValueError, match="fetched"):
            Heartbeat(node_id="n1", data=keys, fetched=[told | wrong])
    with pytest.raises(ValueError, match="fetched"):
        Heartbeat(node_id="n1", data=keys, fetched=[told] * (DATA_MOST + 1))


async def test_the_submitter_is_told_that_no_machine_has_said_that_it_can(face: Face) -> None:
    await (await FakeAgent(face.world, "old").register()).beat()
    _, answer = await face.json("POST", "/api/v1/jobs", {"run": "true", "image": "pytorch:2"})
    assert "needs apptainer or podman or docker, which no machine has said yet that it has" in answer["note"]
    assert "ax2/owned/default" in answer["note"]
    await a_machine(face.world, "docker", name="n2")
    _, answer = await face.json("POST", "/api/v1/jobs", {"run": "true", "image": "pytorch:2"})
    assert "needs" not in answer["note"]
