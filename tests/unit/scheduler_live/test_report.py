"""How the cluster did: what the tables say of a week, and the bound that nothing which really happened is below."""

import asyncio
import json
import time
from random import Random
from typing import Any

import pytest

from scheduler.core.events import PoolDeclared
from scheduler.live.auth.access_control import UserRole
from scheduler.live.http import usage_api
from scheduler.live.http.usage_api import ReportDesk
from scheduler.live.loop.event_loop import Overloaded
from scheduler.live.services.past_report import ReportQuestion, _count_interrupted, _Sums, report_past
from scheduler.live.store.event_journal import dump_json
from scheduler.live.store.usage_sums import PastAttemptRow, PastRows
from tests.support.http_face import Face
from tests.support.live_world import FakeAgent
from walras.client import Client
from walras.cluster import Market, Pool, PoolId, Shape
from walras.errors import ClusterError
from walras.job_request import Demand, JobId, JobRequest, Kind
from walras.resources.money import ClusterReport

AX2 = Shape("ax2", "a", 2, 8.0, 1 << 34)
HOUR = 3600.0


async def served(f: Face) -> FakeAgent:
    """A machine of two accelerators at 2 USD/h."""
    pool = Pool(PoolId("ax2/owned/default"), AX2, Market.OWNED, "default", 2.0)
    await f.world.emit(lambda at: PoolDeclared(at, pool))
    return await FakeAgent(f.world, "n1", market="owned").register()


async def ran(f: Face, agent: FakeAgent, hours: float, job_id: int, attempt: int = 1) -> None:
    await agent.start_all()
    f.world.clock.at += hours * HOUR
    await agent.end(job_id, attempt)


async def test_a_queue_is_held_against_what_could_not_be_undercut(face: Face) -> None:
    """Two gangs of two on two accelerators, 2 h then 1 h: 2.5 h on average, where 2 h (shortest first) is best."""
    agent = await served(face)
    gang = {"resources": {"accelerators": "a:2"}}
    first = await face.world.submit({"project": "vision", **gang})
    second = await face.world.submit({"project": "speech", **gang})
    await ran(face, agent, 2.0, first)
    await face.world.advance(5.0)
    await ran(face, agent, 1.0, second)
    body = await face.got("/report")
    total = body["total"]
    assert (total["submitted"], total["ended"], total["succeeded"]) == (2, 2, 2)
    assert (total["completion_s"], total["waiting_s"]) == pytest.approx((2.5 * HOUR, 1.0 * HOUR), rel=0.01)
    regret = total["regret"]
    assert (regret["jobs"], regret["assumed"], body["left_out"]) == (2, 0, {})
    assert regret["achieved_s"] == pytest.approx(total["completion_s"])
    # Gangs are divisible in the bound, so it is at most the best schedule's 2 h, and here hardly less.
    assert 0.95 * 2.0 * HOUR <= regret["bound_s"] <= 2.0 * HOUR * 1.01
    assert regret["alone_s"] == pytest.approx(1.5 * HOUR, rel=0.01)
    assert [row["project"] for row in body["projects"]] == ["speech", "vision"]
    speech, vision = body["projects"]
    # By itself each had the machine to itself: vision could not have been sooner, speech need not have waited.
    assert vision["regret"]["bound_s"] == pytest.approx(vision["completion_s"], rel=0.01)
    assert speech["regret"]["bound_s"] == pytest.approx(1.0 * HOUR, rel=0.01)
    assert (vision["usd"], vision["accelerator_h"]) == pytest.approx((4.0, 4.0), rel=0.01)
    (use,) = body["types"]
    assert (use["accelerator"], use["most"]) == ("a", 2.0)
    assert use["held_h"] == pytest.approx(6.0, rel=0.01)
    assert use["held_h"] <= use["there_h"] * (1 + 1e-9)


async def test_what_the_bound_does_not_judge_is_counted(face: Face) -> None:
    """Jobs that run, that were cancelled, that are elastic, and that came before the time asked for."""
    agent = await served(face)
    elastic = {"resources": {"accelerators": "a:1"}, "elastic": {"min": 1, "max": 2}}
    one = await face.world.submit(elastic)
    await ran(face, agent, 1.0, one)
    await face.world.submit({"resources": {"accelerators": "a:1"}})
    await face.world.advance(5.0)
    await agent.start_all()
    dropped = await face.world.submit({"resources": {"accelerators": "a:2"}})
    assert (await face.call("POST", f"/api/v1/jobs/{dropped}/cancel")).status == 200
    body = await face.got("/report")
    assert body["total"]["regret"] is None
    assert body["left_out"] == {"elastic": 1, "ended without success": 1, "not ended": 1}
    face.world.clock.at += HOUR
    late = await face.got("/report?since_s=60")
    assert late["left_out"] == {"submitted before": 1}
    assert (late["total"]["submitted"], late["total"]["ended"]) == (0, 0)
    assert late["total"]["accelerator_h"] == pytest.approx(60 / HOUR, rel=0.05)


async def test_nobody_is_told_of_other_projects(face: Face) -> None:
    """A viewer of one project gets its jobs alone, and nothing of the machines."""
    agent = await served(face)
    for project in ("vision", "speech"):
        job_id = await face.world.submit({"project": project})
        await face.world.advance(1.0)
        await ran(face, agent, 1.0, job_id)
    body = await face.got("/report", token=face.token("bob", UserRole.VIEWER, "vision"))
    assert ([row["project"] for row in body["projects"]], body["total"]["ended"]) == (["vision"], 1)
    assert body["total"]["accelerator_h"] == pytest.approx(1.0, rel=0.01)
    assert (body["types"], body["partial"]) == ([], True)
    async with Client(str(face.client.make_url("")).rstrip("/"), face.admin) as client:
        report = await client.report(since_s=3 * HOUR)
    assert [row.project for row in report.projects] == ["speech", "vision"]


def test_lost_work_is_what_was_not_saved() -> None:
    """Preempted at step 100 after an hour, saved at 75: a quarter of an hour is lost."""
    rows = [
        [1, 1, "PREEMPTED", "a", 2, 0.0, 0.0, HOUR, "[]", 75.0, 100.0],
        [1, 2, "NODE_LOST", "a", 2, HOUR, HOUR, 2 * HOUR, "[]", None, None],
        [1, 3, "SUCCEEDED", "a", 2, 2 * HOUR, 2 * HOUR, 3 * HOUR, "[]", None, None],
    ]
    sums = _Sums()
    _count_interrupted(sums, [PastAttemptRow(*row) for row in rows])
    assert (sums.preemptions, sums.losses) == (1, 1)
    assert sums.lost_s == pytest.approx(2 * (0.25 + 1.0) * HOUR)


async def test_too_much_is_refused(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs beyond the limit, times that are none, and a report that takes too long."""
    await served(face)
    await face.world.submit({})
    await face.world.submit({})
    assert (await face.call("GET", "/api/v1/report?since_s=0")).status == 400
    monkeypatch.setattr(usage_api, "MOST_REPORTED", 1)
    status, body = await face.json("GET", "/api/v1/report")
    assert (status, body["fix"]) == (400, "ask for less: a shorter --since")


async def test_reports_that_take_long_or_are_many_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks is told so; the next one is answered."""

    async def question(call: Any) -> float:
        return float(call)

    monkeypatch.setattr(usage_api, "_question", question)
    desk = ReportDesk(time.sleep, timeout_s=0.2)  # type: ignore[arg-type]
    asked = [asyncio.ensure_future(desk.report(9.0)) for _ in range(6)]  # type: ignore[arg-type]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in found] == [ClusterError] * 5 + [Overloaded]
    desk = ReportDesk(str.encode, timeout_s=30.0)  # type: ignore[arg-type]
    monkeypatch.setattr(usage_api, "_question", lambda call: asyncio.sleep(0, "done"))
    assert await desk.report(None) == b"done"  # type: ignore[arg-type]


def generated(seed: int) -> ReportQuestion:
    """Tables of a random week: gangs of two projects on two types, some preempted, failed, without steps, or rented."""
    chance = Random(seed)
    free = {"a": [0.0] * 4, "b": [0.0] * chance.choice([2, 4])}
    speed = {("k1", "a"): 1.0, ("k1", "b"): chance.uniform(0.2, 2.0), ("k2", "a"): 3.0}
    jobs: list[list[Any]] = []
    attempts: list[list[Any]] = []
    at = 0.0
    for job_id in range(1, chance.randint(3, 40)):
        at += chance.expovariate(1 / chance.choice([20.0, 200.0]))
        kind, gang, accelerator = chance.choice(["k1", "k2"]), chance.choice([1, 1, 2]), chance.choice(["a", "b"])
        length_s, state = chance.lognormvariate(4.0, 1.0), chance.choice(["SUCCEEDED", "SUCCEEDED", "FAILED"])
        stops = sorted(chance.uniform(0.0, 1.0) for _ in range(chance.choice([0, 0, 1, 2])))
        ends_at, done = at, 0.0
        for attempt, part in enumerate([*stops, 1.0], 1):
            free[accelerator].sort()
            begins_at = max(ends_at, free[accelerator][gang - 1])
            ends_at, done = begins_at + (part - done) * length_s, part
            free[accelerator][:gang] = [ends_at] * gang
            how = state if part == 1.0 else "PREEMPTED"
            place = json.dumps([accelerator, job_id])
            fields = [job_id, attempt, how, accelerator, gang, begins_at, begins_at, ends_at, place, part, part]
            attempts.append(fields)
        true = speed.get((kind, accelerator), 1.0)
        steps = 0.0 if chance.random() < 0.3 else length_s * true
        demand = Demand("*" if chance.random() < 0.5 else accelerator, gang)
        request = dump_json(JobRequest(JobId(job_id), Kind(kind), demands=(demand,)))
        told = chance.choice([None, true])
        jobs.append([job_id, chance.choice("pq"), kind, state, at, ends_at, steps, told, request])
    until_at = max(row[5] for row in jobs)
    speeds = [[kind, accelerator, 1, value] for (kind, accelerator), value in speed.items()]
    owned = [["a-pool", "up", chance.uniform(0, 100.0)]] * 4
    rents = [["b", 1.0, 0.0, chance.uniform(10.0, until_at)]] * chance.choice([0, 2])
    rows = [[json.dumps(each)] for each in (jobs, attempts, speeds, owned, rents, [])]
    return ReportQuestion(0.0, until_at, 0.0, PastRows(*rows, len(jobs)), (), (), {"a-pool": ("a", 1)}, False)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_nothing_that_happened_is_below_the_bound(first: int) -> None:
    """Of all jobs and of each project, over generated tables; and every success is judged."""
    judged = succeeded = 0
    for seed in range(first, first + 50):
        report = ClusterReport.model_validate_json(report_past(generated(seed)))
        for row in (report.total, *report.projects):
            if row.regret is not None:
                assert row.regret.alone_s <= row.regret.bound_s * (1 + 1e-9), seed
                assert row.regret.bound_s <= row.regret.achieved_s * (1 + 1e-9), seed
                judged += row.regret.jobs
            succeeded += row.succeeded
        for use in report.types:
            assert use.held_h <= use.there_h * (1 + 1e-9), seed
    assert judged == succeeded
