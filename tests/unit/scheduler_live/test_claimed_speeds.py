"""How far the speeds that a job claims are believed."""

import math
from collections.abc import AsyncIterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.speed_predictions import predict_speeds, prediction_question
from scheduler.core.speed_events import Guess, PredictedSpeed, SpeedsPredicted
from scheduler.core.state.job_classes import JobClasses
from scheduler.core.state.throughput import (
    SHARED,
    BelievedSpeed,
    MeasuredCell,
    SpeedSource,
    ThroughputTable,
    allowed_speeds,
    shared_news,
    times_at_most,
)
from scheduler.forecast.core_copy import snapshot_at_once
from scheduler.live.loop.claimed_speeds import data_sheets, most_by_data_sheet
from scheduler.live.store.event_journal import replay_journal
from scheduler.live.store.store_interface import WriteBatch
from scheduler.live.store.table_rows import FactsRow, JobRow, RestartCostRow, SpeedRow
from tests.support.fake_fleet import job, pool, remembered_state
from tests.support.live_world import FIFO, FakeAgent, World, world
from tests.support.stores import open_store
from walras.job_request import JobId, Kind, kind_within, project_of
from walras.states import JobState

POOLS = {
    "pools": [
        {"shape": name, "accelerator": name, "accelerators": 2, "cpus": 8, "memory": "16GiB"}
        for name in ("a100-40gb", "k80")
    ]
}
WALRAS = {"policy": {"name": "walras"}, "rules": FIFO["rules"] | {"resolve_min_s": 0.0}}
SLOW, QUICK = "k80", "a100-40gb"
ABSURD = 900_000.0
VISION = kind_within("vision", Kind("cnn"))


@pytest.fixture
async def w(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path, cluster=POOLS, policy=WALRAS) as found:
        yield found


async def agents(w: World) -> dict[str, FakeAgent]:
    return {
        name: await FakeAgent(w, name, shape=name, accelerator=name, accelerators=2).names_itself().register()
        for name in (SLOW, QUICK)
    }


async def ran(w: World, agent: FakeAgent, project: str, claims: float, user: str = "ada", **more: object) -> None:
    """A job of the project runs on one accelerator of this machine, claims this speed with every report, and ends."""
    resources = {"accelerators": {agent.node_id: 1}}
    job_id = await w.submit({"profile": "cnn", "project": project, "resources": resources, **more}, user)
    await w.advance(1.0)
    await agent.start_all()
    for steps in (10.0, 310.0, 610.0, 910.0, 1210.0):
        await agent.beat(agent.progress(job_id, 1, steps, steps_per_s=claims, samples=20, start_s=1.0))
        await w.advance(30.0)
    await agent.end(job_id)


async def place_of_next(w: World, project: str) -> str:
    """Where a job of the kind goes that may have either type; all accelerators are free."""
    job_id = await w.submit({"profile": "cnn", "project": project, "resources": {"accelerators": {SLOW: 1, QUICK: 1}}})
    await w.advance(10.0)
    attempt = w.live_state.jobs[job_id].attempt
    assert attempt is not None
    return str(attempt.row.accelerator)


@pytest.mark.parametrize("has_run", [True, False])
async def test_a_claim_does_not_move_the_jobs_of_another_project(w: World, has_run: bool) -> None:
    """Both call their kind `cnn`: ada's next job goes where it would have gone, whatever bob's jobs claim."""
    here = await agents(w)
    if has_run:
        await ran(w, here[QUICK], "vision", 10.0)
    await ran(w, here[SLOW], "speech", ABSURD, "bob")
    await ran(w, here[QUICK], "speech", 0.01, "bob")
    assert await place_of_next(w, "vision") == QUICK
    assert await place_of_next(w, "speech") == SLOW
    assert replay_journal(w.server.store.journal()).identical


async def test_a_claim_is_held_against_the_jobs_own_checkpoints(w: World) -> None:
    """A job says that it does 5,000 steps a second; what it saves grows by ten a second."""
    here = await agents(w)
    agent, resources = here[QUICK], {"accelerators": {QUICK: 1}}
    job_id = await w.submit({"profile": "cnn", "resources": resources, "steps": 1e9})
    await w.advance(1.0)
    await agent.start_all()
    for beat in range(9):
        claim = agent.progress(job_id, 1, 5000.0 * 30.0 * beat, steps_per_s=5000.0, samples=99)
        await agent.beat(agent.committed(job_id, 1, 10.0 + 300.0 * beat), claim)
        await w.advance(30.0)
    believed = w.server.core.ledger.table.measured(Kind("cnn"), QUICK, 1)
    assert believed is not None
    assert believed <= 4.0 * 10.0


async def test_a_claim_is_believed_as_far_as_steps_and_data_sheets_allow(w: World) -> None:
    """A job that does ten steps a second claims an absurd speed of the lesser type: its own project is not moved."""
    here = await agents(w)
    await ran(w, here[QUICK], "vision", 10.0)
    await ran(w, here[SLOW], "vision", ABSURD, "bob")
    table = w.server.core.ledger.table
    believed = table.measured(VISION, SLOW, 1)
    assert believed is not None
    assert believed <= 10.0
    assert replay_journal(w.server.store.journal()).identical


@pytest.mark.parametrize("claims", [ABSURD, 1e-6])
async def test_one_report_moves_no_job(w: World, claims: float) -> None:
    """A claim that contradicts what was measured waits until the job's own steps vouch for it."""
    here = await agents(w)
    await ran(w, here[QUICK], "vision", 10.0)
    resources = {"accelerators": {QUICK: 1}}
    job_id = await w.submit({"profile": "cnn", "project": "vision", "resources": resources})
    await w.advance(1.0)
    agent = here[QUICK]
    await agent.start_all()
    await agent.beat(agent.progress(job_id, 1, 1e9, steps_per_s=claims, samples=100))
    assert w.server.core.ledger.table.measured(VISION, QUICK, 1) == 10.0
    for beat in range(1, 12):
        await w.advance(10.0)
        await agent.beat(agent.progress(job_id, 1, 1e9 + 20.0 * 10.0 * beat, steps_per_s=20.0, samples=100))
    assert w.server.core.ledger.rate_of(w.server.core.ledger.jobs[job_id]) == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(
    ("accelerator", "count", "most"),
    [
        # The lesser type may be as fast as the better one, not faster.
        (SLOW, 1, 10.0),
        # What has no data sheet, and the type itself, are not bounded.
        ("tpu", 1, math.inf),
        (QUICK, 8, math.inf),
        # An H100's fp64, which gained most over an A100's, then by twice the accelerators.
        ("h100", 1, 10.0 * 34.0 / 9.7),
        ("h100", 2, 20.0 * 34.0 / 9.7),
    ],
)
def test_other_types_and_data_sheets_bound_a_claim(accelerator: str, count: int, most: float) -> None:
    """By the largest ratio of peaks and memory bandwidths, and by the size of the gang."""
    measured = [MeasuredCell(Kind("cnn"), QUICK, 1, 10.0, 0.0, 9)]
    assert most_by_data_sheet(measured, accelerator, count, data_sheets()) == pytest.approx(most, rel=0.1)


@pytest.mark.parametrize(("one", "other"), [("h100-80gb", "h100-94gb"), ("h100", "h100-96gb")])
def test_types_that_share_a_data_sheet_may_differ(one: str, other: str) -> None:
    """The second one measured is not held at the speed of the first."""
    assert times_at_most(data_sheets(), one, other) == 1.5


PROGRAM = {"run": ["python", "cnn.py"], "code": {"tree": "c" * 64}}


async def speed_of(w: World, project: str, accelerator: str) -> BelievedSpeed:
    ledger = w.server.core.ledger
    return ledger.table.speed(kind_within(project, Kind("cnn")), accelerator, 1, ledger.classes.nominal)


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({}, True),
        ({"profile": "another name"}, True),
        ({"run": ["python", "cnn.py", "--seed", "7"]}, True),
        ({"run": ["python", "cnn.py", "--seed", "$(x)"]}, False),
        ({"run": ["python", "cnn.py", "--layers", "7"]}, False),
        ({"code": {"tree": "d" * 64}}, False),
        ({"envs": {"FAST": "1"}}, False),
        ({"setup": "pip install torch"}, False),
        ({"secrets": {"KEY": {"value": "1"}}}, False),
        ({"code": None, "workdir": "/data/cnn"}, False),
    ],
)
async def test_what_others_measured_of_the_same_program_stands_for_ones_own(
    w: World, change: dict[str, Any], counts: bool
) -> None:
    """By code and command, not by name; it is used as if measured, until a job of the project was measured there."""
    here = await agents(w)
    await ran(w, here[QUICK], "speech", 30.0, "bob", **PROGRAM | change)
    await w.submit({"profile": "cnn", "project": "vision", "hold": True, **PROGRAM})
    found = await speed_of(w, "vision", QUICK)
    assert (found.source is SpeedSource.SHARED, found.steps_per_s == 30.0) == (counts, counts)
    await ran(w, here[QUICK], "vision", 20.0, **PROGRAM)
    own = await speed_of(w, "vision", QUICK)
    assert (own.source, own.steps_per_s) == (SpeedSource.MEASURED, 20.0)
    assert replay_journal(w.server.store.journal()).identical


async def test_what_others_measured_counts_after_several_reports_and_outlives_the_server(w: World) -> None:
    """A job of another project that ends after two reports teaches nothing; a server started again knows what one with
    three has taught.
    """
    here = await agents(w)
    job_id = await w.submit(
        {"profile": "cnn", "project": "speech", "resources": {"accelerators": {QUICK: 1}}, **PROGRAM}
    )
    await w.advance(1.0)
    await here[QUICK].start_all()
    await w.submit({"profile": "cnn", "project": "vision", "hold": True, **PROGRAM})
    for reports in (1, 2, 3):
        steps = 600.0 * reports
        await here[QUICK].beat(here[QUICK].progress(job_id, 1, steps, steps_per_s=10.0, samples=20))
        await w.advance(60.0)
        assert ((await speed_of(w, "vision", QUICK)).source is SpeedSource.SHARED) == (reports == 3)
    again = SchedulerCore()
    again.handle(remembered_state(w.server.core.ledger))
    assert again.ledger.table.programs.remembered() == w.server.core.ledger.table.programs.remembered() != ()
    assert snapshot_at_once(w.server.core, w.server.core.ledger.now).remembered.programs == ()


@pytest.mark.parametrize("seed", range(20))
def test_what_others_say_of_a_program_stays_within_data_sheets(seed: int) -> None:
    """Whatever other projects report, a kind believes no ratio that data sheets exclude, nothing of a type without one,
    and of what it measured itself only that.
    """
    chance, table, sheets = Random(seed), ThroughputTable(), data_sheets()
    names = (*chance.sample(sorted(sheets), 4), "tpu")
    gangs = [(name, count) for name in names for count in (1, 4)]
    table.programs.ran(VISION, "p")
    own = {gang: 10.0 ** chance.uniform(0, 2) for gang in gangs[: chance.randrange(2)]}
    for gang, speed in own.items():
        table.measure(VISION, *gang, speed)
    for _ in range(200):
        project = chance.choice(("speech", "robots", "a b"))
        table.programs.saw("p", project, chance.choice(gangs), 10.0 ** chance.uniform(-9, 9))
        for each in shared_news(table, "p", sheets):
            assert table.predict(each)
    known = {gang: table.speed(VISION, *gang, {}) for gang in gangs}
    shared = {gang: each.steps_per_s for gang, each in known.items() if each.source is SpeedSource.SHARED}
    assert len(shared) > 4
    assert not any(name == "tpu" for name, _ in shared)
    assert all(known[gang].source is SpeedSource.MEASURED for gang in own)
    believed = shared | {gang: known[gang].steps_per_s for gang in own}
    for gang, speed in believed.items():
        least, most = allowed_speeds(believed, *gang, sheets)
        assert least / 1.25 <= speed <= most * 1.25  # a speed is published again once it is a tenth off


@pytest.mark.parametrize("knows", ["nothing", "declared", "measured"])
def test_speeds_that_others_share_are_held_against_ones_own(knows: str) -> None:
    """Three reports of an absurd speed are clipped where the project measured or declared one; until then the cell
    counts as unmeasured, so that the first lease there corrects it.
    """
    classes = JobClasses(table := ThroughputTable())
    classes.pools_changed([pool(QUICK)])
    if knows != "nothing":
        learn = table.measure if knows == "measured" else table.declare
        learn(VISION, SLOW, 1, 2.0)
    bound = 2.0 * times_at_most(data_sheets(), QUICK, SLOW) if knows != "nothing" else 1e12
    table.programs.recall((("p", "speech", QUICK, 1, 1e12),))
    table.programs.ran(VISION, "p")
    assert [table.predict(each) for each in shared_news(table, "p", data_sheets())] == [True]
    found = classes.classes[classes.row(job(1, QUICK, kind=VISION, project="vision"))]
    assert found.best_rate == pytest.approx(bound, rel=0.01)
    assert found.measured == (knows != "nothing",)


def test_what_others_measured_is_scaled_by_what_both_measured() -> None:
    """The own jobs are half as fast as the others' where both ran."""
    table = ThroughputTable()
    table.programs.ran(VISION, "p")
    table.programs.recall((("p", "speech", SLOW, 1, 2.0), ("p", "speech", QUICK, 1, 8.0)))
    table.measure(VISION, SLOW, 1, 1.0)
    assert [table.predict(each) for each in shared_news(table, "p", data_sheets())] == [True]
    assert table.speed(VISION, QUICK, 1, {}) == BelievedSpeed(4.0, SpeedSource.SHARED)


@pytest.mark.parametrize("declares_first", [True, False])
def test_a_shared_speed_does_not_hide_a_declared_one_of_the_family(declares_first: bool) -> None:
    """Whichever comes first, all types of the family that the project has not measured have what it declared."""
    table, shared = ThroughputTable(), Guess(SHARED, 9.0, 9.0, 9.0)
    if declares_first:
        table.declare(VISION, "a100", 1, 5.0)
    assert table.predict(PredictedSpeed(VISION, "a100-80gb", 1, shared)) is not declares_first
    if not declares_first:
        table.declare(VISION, "a100", 1, 5.0)
    assert table.speed(VISION, "a100-80gb", 1, {}) == BelievedSpeed(5.0, SpeedSource.DECLARED)


def test_what_is_kept_of_programs_is_bounded() -> None:
    """The newest kinds of each, none of one that no kind runs; a successor learns of the newest, a forecast of none."""
    programs = ThroughputTable().programs
    kinds = [kind_within("vision", Kind(f"k{number}")) for number in range(99)]
    programs.recall(tuple((f"p{number}", "speech", QUICK, 1, 2.0) for number in range(999)))
    for kind in kinds:
        programs.ran(kind, "p0")
    assert programs.kinds("p0") == tuple(kinds[-32:])
    for number, kind in enumerate(kinds):
        programs.ran(kind, f"p{number}")
    assert [programs.kinds(f"p{number}") for number in (0, 98)] == [(kinds[0],), (kinds[98],)]
    assert [each[0] for each in programs.remembered()] == [f"p{number}" for number in range(699, 999)]
    assert deepcopy(programs).remembered() == deepcopy(programs).kinds("p0") == ()


#: What a hostile job may say in each report, whole lives of it by seed.
LIES = ("steps_per_s", "start_s", "facts", "values")


async def lies(w: World, agent: FakeAgent, chance: Random) -> None:
    """A job of bob's project runs here under the name that ada uses, and says whatever it likes until it ends."""
    job_id = await w.submit({"profile": "cnn", "project": "speech", "resources": {"accelerators": {agent.node_id: 1}}})
    await w.advance(1.0)
    await agent.start_all()
    steps = 0.0
    for _ in range(chance.randrange(1, 7)):
        steps += 10.0 ** chance.uniform(-3, 7)
        said = {
            "steps_per_s": 10.0 ** chance.uniform(-9, 9),
            "start_s": 10.0 ** chance.uniform(-3, 6),
            "facts": {name: 10.0 ** chance.uniform(0, 18) for name in ("flops", "samples", "gradient_bytes")},
            "values": {"data_wait": chance.random(), "loss": chance.gauss(0.0, 1e9)},
        }
        told = {name: said[name] for name in LIES if chance.random() < 0.7}
        await agent.beat(agent.progress(job_id, 1, steps, samples=chance.randrange(1, 99), **told))
        await w.advance(chance.choice((1.0, 5.0, 30.0)))
    await agent.end(job_id)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_another_project_reports_moves_no_job(tmp_path: Path, seed: int) -> None:
    """The next job of ada goes where it goes on a cluster without bob, and so is what is believed of its speeds."""
    found = []
    for name, has_bob in (("with", True), ("without", False)):
        chance = Random(seed)
        async with world(tmp_path / name, cluster=POOLS, policy=WALRAS) as w:
            here = await agents(w)
            if seed % 2:
                await ran(w, here[SLOW], "vision", 3.0)
            for _ in range(3):
                if has_bob:
                    await lies(w, here[chance.choice((SLOW, QUICK))], chance)
            ledger = w.server.core.ledger
            asked = prediction_question(ledger, ())
            await w.emit(lambda at, asked=asked: SpeedsPredicted(at, predict_speeds(asked, data_sheets())))
            place = await place_of_next(w, "vision")
            speeds = [ledger.table.speed(VISION, each, 1, ledger.classes.nominal) for each in (SLOW, QUICK)]
            costs = ledger.costs.restart_s(VISION, 60.0), ledger.facts.of(VISION), VISION in ledger.saving_kinds
            found.append((place, speeds, costs))
            assert replay_journal(w.server.store.journal()).identical
    assert found[0] == found[1]


@pytest.mark.sqlite_file
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_each_project_keeps_what_all_had_learnt_before(kind: str, tmp_path: Path) -> None:
    """A database of the release before, where projects shared a kind: its speeds are those of each of its projects."""
    store = open_store(kind, tmp_path)
    speed, cost = SpeedRow(Kind("cnn"), "a", 1, 5.0), RestartCostRow(Kind("cnn"), 9.0)
    projects = ("default", "vision", "two words", "50%")
    jobs = (JobRow(JobId(n), "j", name, "ada", "cnn", JobState.FAILED, 50, 1, 1.0) for n, name in enumerate(projects))
    store.commit(WriteBatch(speed, cost, FactsRow(Kind("cnn"), True, "{}", 0.0, ""), *jobs))
    made = "_sqlite_migrations" if kind == "sqlite" else "schema_changes"
    store._db.execute(f"DELETE FROM {made} WHERE name = 'keep_speeds_per_project'")  # type: ignore[attr-defined]
    store.close()
    store = open_store(kind, tmp_path)
    loaded = store.load()
    store.close()
    for row in (SpeedRow, RestartCostRow, FactsRow):
        assert {each.kind for each in loaded.rows(row)} == {kind_within(name, Kind("cnn")) for name in projects}
    assert {project_of(each.kind) for each in loaded.rows(SpeedRow)} == set(projects)
