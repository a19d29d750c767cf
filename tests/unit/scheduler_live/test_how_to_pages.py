"""The how-to pages about the live server, followed word for word."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scheduler.live.http import job_api
from scheduler.live.providers import live_provider
from tests.support import live_world
from tests.support.http_face import Face, facing
from tests.support.live_world import FakeAgent
from walras.client import Client
from walras.errors import ConfigError
from walras.resources import jobs
from walras.spec import cluster_file
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import check_model
from walras.spec.text_formats import parse_yaml

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
WORTH_RENTING = {
    "policy": {"name": "throughput_per_dollar"},
    "rules": {"round_s": 10.0, "resolve_min_s": 1.0, "delay_usd_per_h": 100.0, "rent_keep_s": 5.0, "profiling_s": 1.0},
}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


def files_named_in(page: str, word: str) -> list[str]:
    """Files of a page's first table whose row begins with the word."""
    return re.findall(rf"^\| `([^`]+)` \| {word}", (PAGES / page).read_text(), re.MULTILINE)


@pytest.fixture
def rack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[ClusterConfig]:
    """The steps of add-a-provider.md, taken; the cluster file with the new section."""
    settings, section, provider, entry = blocks("add-a-provider.md", "python")
    names: dict[str, Any] = {**vars(cluster_file), "ClusterConfig": ClusterConfig}
    exec(f"{settings}\n\nclass WithRack(ClusterConfig):\n{section}", names)
    (tmp_path / "rack_provider.py").write_text(provider)
    monkeypatch.syspath_prepend(tmp_path)
    ((name, target),) = re.findall(r'"(\w+)": "scheduler\.live\.providers\.([\w.:]+)"', entry)
    monkeypatch.setitem(live_provider.PROVIDERS, name, target)
    monkeypatch.setattr(live_world, "ClusterConfig", names["WithRack"])
    return names["WithRack"]  # type: ignore[no-any-return]


async def test_a_provider_that_follows_its_page_runs_a_job(rack: type[ClusterConfig], tmp_path: Path) -> None:
    """The file of the page is accepted, a machine of the rack is rented for a job, joins, and is given back."""
    (text,) = blocks("add-a-provider.md", "yaml")
    cluster = parse_yaml(text, source="page", max_bytes=10_000)
    facts = {
        "shape": "blade", "accelerator": "a100", "accelerators": 1, "cpus": 8.0, "memory_bytes": 64 << 30,
        "market": "on_demand", "zone": "default",
    }  # fmt: skip
    async with facing(tmp_path / "data", policy=WORTH_RENTING, cluster=cluster) as face:
        world = face.world
        provisioner = world.server.providers
        world.loop.effect_handlers.append(provisioner)
        provider = world.assembled.providers["rack"]
        await world.submit({"resources": {"accelerators": "a100:1"}})
        await world.advance(2.0)
        (machine,) = await provider.describe()
        agent = await FakeAgent(world, machine.node_id, machine.token, **facts).register()
        (start,) = await agent.start_all()
        await agent.end(start.job_id)
        for _ in range(3):
            await world.advance(11.0)
        assert (await provider.describe(), world.state(start.job_id)) == ((), "SUCCEEDED")
        await provisioner.close()


def test_a_section_that_is_missing_or_wrong_is_named(rack: type[ClusterConfig]) -> None:
    """Pools of the new provider without its settings: the error shows what to write."""
    pool = {
        "shape": "blade", "accelerator": "a", "accelerators": 1, "cpus": 8, "memory": "1GiB", "market": "spot",
        "provider": "rack", "quota": 1,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"pools of provider rack need `rack: \{controller: http://…\}`"):
        check_model(rack, {"pools": [pool]}, source="cluster.yaml")
    with pytest.raises(ConfigError, match="controller"):
        check_model(rack, {"pools": [pool], "rack": {"controller": "rack 2"}}, source="cluster.yaml")


@pytest.mark.parametrize(("page", "count"), [("add-a-provider.md", 2), ("add-an-endpoint.md", 3)])
def test_the_files_that_a_page_edits_exist(page: str, count: int) -> None:
    edited = files_named_in(page, "edited")
    assert len(edited) == count
    assert all((PAGES.parents[1] / name).is_file() for name in edited)


def test_every_registered_provider_can_be_loaded() -> None:
    """The registry names modules in strings, which no type checker follows."""
    for name, target in live_provider.PROVIDERS.items():
        module, _, function = target.partition(":")
        assert live_provider.builder_of(name) is getattr(import_module(module), function)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    """The steps of add-an-endpoint.md, taken; the client with the new method."""
    declared, method, handler = blocks("add-an-endpoint.md", "python")
    names: dict[str, Any] = dict(vars(jobs))
    exec(f"{declared}\n\nclass CountingCalls(Calls):\n{method}", names)
    served = {**vars(job_api), "JobCalls": names["CountingCalls"], "JobCounts": names["JobCounts"]}
    exec(handler, served)
    monkeypatch.setattr(job_api, "count_jobs", served["count_jobs"], raising=False)
    return type("CountingClient", (names["CountingCalls"], Client), {})


async def test_an_endpoint_that_follows_its_page_answers(counted: type[Any], face: Face) -> None:
    """The page's client asks the page's route: jobs are counted by state, and nobody without a token is answered."""
    await face.world.submit({"resources": {"accelerators": "a100:1"}})
    url = str(face.client.make_url("")).rstrip("/")
    async with counted(url, face.admin) as asking:
        assert (await asking.counts()).counts == {"PENDING": 1}
    assert (await face.client.get("/api/v1/counts")).status == 401
