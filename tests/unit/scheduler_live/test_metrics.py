"""`/metrics`: what it counts, who may read it, and the dashboard and rules that are made for it."""

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.core.events import SolveFailed, Woke
from scheduler.core.speed_events import ThroughputMeasured
from scheduler.live.auth.access_control import UserRole
from tests.support.debian_packages import unpacked
from tests.support.http_face import Face, facing
from tests.support.live_world import FIFO, FakeAgent
from walras.job_request import Kind
from walras.spec.text_formats import parse_yaml

MONITORING = Path(__file__).parents[3] / "configs" / "monitoring"
DOCUMENT = Path(__file__).parents[3] / "docs" / "notifications.md"
CLUSTER = {
    "pools": [{"shape": "ax2", "accelerator": "a", "accelerators": 2, "cpus": 8, "memory": "16GiB", "machines": 1}]
}


@pytest.fixture
async def face(tmp_path: Path) -> AsyncIterator[Face]:
    async with facing(tmp_path / "data", cluster=CLUSTER) as found:
        yield found


async def figures(face: Face) -> dict[tuple[str, ...], float]:
    """(name, label values by the labels' names ...) -> value, gathered anew."""
    face.world.clock.at += 5.0
    response = await face.call("GET", "/metrics")
    assert response.status == 200
    families = text_string_to_metric_families(await response.text())
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in families
        for each in family.samples
    }


async def test_a_life_of_jobs_is_counted(face: Face, agent: FakeAgent) -> None:
    """Delays, states with reasons, accelerators, an attempt that is lost with its unsaved work, ends."""
    face.world.clock.at += 10.0
    for _ in range(2):
        await face.world.submit({"resources": {"accelerators": "a:2"}, "retry": {"max_restarts": 0}})
    await agent.beat()
    face.world.clock.at += 3.0
    await agent.start_all()
    seen = await figures(face)
    assert seen["walras_jobs_submitted_total",] == 2
    assert (seen["walras_jobs", "", "RUNNING"], seen["walras_jobs", "WAIT:CAPACITY", "PENDING"]) == (1, 1)
    pool = next(labels[1:] for labels in seen if labels[0] == "walras_pool_accelerators")
    assert (seen["walras_pool_accelerators", *pool], seen["walras_pool_accelerators_held", *pool]) == (2, 2)
    assert seen["walras_job_queueing_seconds_sum", "a"] == seen["walras_attempt_start_seconds_sum", "a"] == 3.0
    assert seen["walras_machines", "up"] == seen["walras_store_up",] == 1
    assert seen["walras_store_bytes",] > 100_000
    assert seen["walras_store_commit_seconds_count",] > 3
    # 100 steps at 2 a second on 2 accelerators, of which 40 are saved, and then it fails.
    await agent.beat(agent.progress(1, 1, 100.0, steps_per_s=2.0, samples=10))
    await agent.beat(agent.committed(1, 1, 40.0))
    await agent.end(1, exit_code=1)
    seen = await figures(face)
    assert seen["walras_lost_work_accelerator_seconds_total", "a"] == pytest.approx(2 * 60 / 2.0)
    assert seen["walras_jobs_ended_total", "FAILED"] == seen["walras_attempts_ended_total", "FAILED"] == 1
    # The second one loses nothing, because it succeeds.
    await agent.start_all()
    await agent.beat(agent.progress(2, 1, 100.0, steps_per_s=2.0, samples=10))
    await agent.end(2)
    seen = await figures(face)
    assert seen["walras_lost_work_accelerator_seconds_total", "a"] == pytest.approx(60.0)
    assert not any(labels[0] == "walras_jobs" for labels in seen)


async def test_stops_and_failed_solves_are_counted(face: Face, agent: FakeAgent) -> None:
    await face.world.submit({"resources": {"accelerators": "a:1"}})
    await agent.start_all()
    assert (await face.call("POST", "/api/v1/jobs/1/hold")).status == 200
    await face.world.emit(lambda at: SolveFailed(at, 10**9, "planted"))
    seen = await figures(face)
    assert seen["walras_preemptions_total", "HOLD:ADMIN"] == 1
    assert seen["walras_solve_failures_total",] == 1


async def test_prices_that_were_found_to_hold_are_not_old(tmp_path: Path) -> None:
    """The core says when it found them to hold; here it is told so."""
    name = "walras_last_solve_timestamp_seconds"
    async with facing(tmp_path, policy=FIFO | {"policy": {"name": "walras"}}) as face:
        world = face.world
        await FakeAgent(world, "n1").register()
        await world.submit({"resources": {"accelerators": "a:1"}})
        await world.quiet()
        before = (await figures(face))[name,]
        assert world.live_state.proposal is not None
        world.clock.at += 1000.0
        world.server.core.ledger.policy.solved_at = world.clock.now()
        await world.emit(Woke)
        assert (await figures(face))[name,] >= before + 1000.0


async def test_figures_are_for_those_who_see_all_projects(face: Face) -> None:
    """Without a token 401; a token of some projects 403; agents' tokens do not open it."""
    assert (await face.client.get("/metrics")).status == 401
    some = face.token("ada", UserRole.OPERATOR, "vision")
    assert (await face.call("GET", "/metrics", token=some)).status == 403
    everything = face.token("monitoring", UserRole.VIEWER, "*")
    assert (await face.call("GET", "/metrics", token=everything)).status == 200
    agent = await FakeAgent(face.world, "n1").register()
    assert (await face.call("GET", "/metrics", token=agent.credential)).status == 403


async def test_names_of_people_and_jobs_are_no_labels(face: Face) -> None:
    """However many jobs of whatever names there are, the number of series stays."""
    before = len(await figures(face))
    for number in range(30):
        await face.world.submit({"name": f"secret-{number}", "project": f"p{number}"}, user=f"user{number}")
    response = await face.call("GET", "/metrics")
    assert not re.search(r"secret|p1[0-9]|user1", await response.text())
    assert len(await figures(face)) <= before + 2


async def test_dashboard_rules_and_document_use_metrics_that_exist(face: Face) -> None:
    """Every name in the dashboard, the rules and the document is exposed; every exposed metric is documented."""
    families = face.world.server.metrics.registry.collect()
    kinds = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count", ""), "gauge": ("",)}
    exposed = {family.name: {family.name + end for end in kinds[family.type]} for family in families}
    known = set().union(*exposed.values())
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    rules = parse_yaml((MONITORING / "alert-rules.yaml").read_text(), source="rules", max_bytes=100_000)
    watched = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    named = {name for text in (*asked, *watched) for name in re.findall(r"\bwalras_\w+", text)}
    assert len(asked) > 15
    assert len(watched) > 5
    assert named - known == set()
    told = set(re.findall(r"\bwalras_\w+", DOCUMENT.read_text()))
    assert told - known == set()
    assert [name for name, forms in exposed.items() if not forms & told] == []


@pytest.mark.slow
def test_promtool_accepts_the_rules() -> None:
    """As Prometheus itself would read them, with the configuration that names them."""
    promtool = shutil.which("promtool") or unpacked("promtool") / "usr/bin/promtool"
    for command in (["check", "rules", "alert-rules.yaml"], ["check", "config", "--syntax-only", "prometheus.yaml"]):
        done = subprocess.run([promtool, *command], cwd=MONITORING, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


async def test_two_jobs_on_one_accelerator_hold_one(tmp_path: Path) -> None:
    """Machines, prices, the overview and the metrics count an accelerator once, however many jobs share it."""
    shape = {"shape": "ax1", "accelerator": "a", "accelerators": 1, "cpus": 8, "memory": "16GiB"}
    cluster = {"pools": [{**shape, "accelerator_memory": "16GiB", "machines": 1}]}
    async with facing(tmp_path / "data", cluster=cluster) as face:
        agent = await FakeAgent(face.world, "n1", shape="ax1", accelerators=1).register()
        for kind in ("x", "y"):
            await face.world.emit(lambda at, kind=kind: ThroughputMeasured(at, Kind(kind), "a", 1, 10.0))
        for kind in ("x", "y"):
            shared = {"accelerators": "a:1", "shared": {"memory": "4GiB", "busy": 0.4}}
            await face.world.submit({"profile": kind, "resources": shared, "preemptible": "always"})
            await agent.start_all()
        assert [each for each, _ in agent.here] == [1, 2]
        _, nodes = await face.json("GET", "/api/v1/nodes")
        _, prices = await face.json("GET", "/api/v1/prices")
        _, overview = await face.json("GET", "/api/v1/overview")
        assert (nodes[0]["free"], prices["items"][0]["free"], overview["types"][0]["free"]) == (0, 0, 0)
        assert (nodes[0]["jobs"], overview["machines"][0]["cells"]) == ([1, 2], [1])
        seen = await figures(face)
        assert [seen[each] for each in seen if each[0] == "walras_pool_accelerators_held"] == [1]
