"""`walras cloud recommend`: machines for one job, from facts and measurements in files."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from optimizer.planning.machine_choice import RunGoal
from optimizer.planning.machine_recommendation import (
    MachineRecommendation,
    PoolRecommendation,
    RecommendationTerms,
    RentablePool,
    recommend_machines,
    recommend_pools,
)
from walras.cli.arguments import instant_of
from walras.cli.main import app
from walras.cli.price_commands import read_catalog
from walras.cli.recommend_commands import pool_launch
from walras.cli.recommend_live import NextPlan, job_on, next_plan, parse_goal, with_measured_speeds
from walras.cluster import Market
from walras.contract import BANDWIDTH_VALUE
from walras.errors import JobSpecError, UserError
from walras.job_request import JobId
from walras.resources.fleet import PoolView
from walras.resources.jobs import JobDetail, planned_speed
from walras.spec.catalog import Catalog, CatalogInstance
from walras.spec.job_spec import JobSpec, parse_spec, spec_mapping
from walras.spec.spec_request import kind_of, to_request
from walras.states import JobState

_ROOT = Path(__file__).resolve().parents[3]
_JOB = _ROOT / "configs" / "jobs" / "resnet50.yaml"
_PROFILE = _ROOT / "configs" / "profiles" / "resnet50.yaml"


def _run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["cloud", "recommend", *map(str, arguments)])


def _json(*arguments: str | Path) -> dict[str, Any]:
    found = _run(*arguments, "-o", "json")
    assert found.exit_code in (0, 1), found.output
    return dict(json.loads(found.stdout))


def test_a_deadline_is_kept_as_cheaply_as_possible() -> None:
    """The choice is told with its interval and its reason, above what else could be had, as docs/recommend.md shows."""
    found = _run(_JOB, "--profile", _PROFILE, "--deadline", "36h")
    assert found.exit_code == 0, found.output
    page = (_ROOT / "docs" / "recommend.md").read_text()
    shown = re.findall(r"^    (   MACHINES .*|[> ]  \d+ x .*)$", page, re.M)
    assert shown == found.stdout.splitlines()[: len(shown)]
    assert "the cheapest within 1d12h" in found.stdout
    assert "four cases out of five within" in found.stdout
    data = _json(_JOB, "--profile", _PROFILE, "--deadline", "36h")
    assert data["kept"]
    assert data["taken"]["late_s"] <= 36 * 3600
    assert data["taken"]["usd"] >= min(setup["usd"] for setup in data["front"])


def test_what_cannot_be_kept_is_said_and_exits_with_1() -> None:
    """Ten minutes are not enough for anybody: the fastest is told, as not kept."""
    found = _run(_JOB, "--profile", _PROFILE, "--deadline", "10m")
    assert found.exit_code == 1
    assert "nothing is done within 10m" in found.stdout


def test_measurements_narrow_what_facts_leave_open(tmp_path: Path) -> None:
    """Speeds measured on one type make the interval on it narrower than any law could."""
    measured = [
        {"accelerator": "v100", "batch": batch, "steps_per_s": 380 / batch, "samples": 30} for batch in (64, 128, 256)
    ]
    profile = tmp_path / "resnet50.yaml"
    profile.write_text(yaml.safe_dump({**yaml.safe_load(_PROFILE.read_text()), "measured": measured}))
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({**yaml.safe_load(_JOB.read_text()), "resources": {"accelerators": "v100:1"}}))

    def width(file: Path) -> float:
        taken = _json(job, "--profile", file, "--budget", "100000", "--set", "machines=1")["taken"]
        return float(taken["late_s"] / taken["early_s"])

    assert width(profile) < 0.5 * width(_PROFILE)


def test_spot_machines_are_cheaper_and_take_longer() -> None:
    """Revocations are counted, so that spot is not taken for the same machine at a lower price."""
    plain = _json(_JOB, "--profile", _PROFILE, "--set", "cloud=aws")["front"][0]
    spot = _json(_JOB, "--profile", _PROFILE, "--set", "cloud=aws", "--spot", "--revocations-per-h", "0.5")["front"]
    assert plain in spot
    assert any(setup["usd"] < plain["usd"] and setup["time_s"] > plain["time_s"] for setup in spot)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_front_is_drawn(tmp_path: Path, ending: str) -> None:
    """As a file that a page or a document can hold."""
    picture = tmp_path / f"front.{ending}"
    assert _run(_JOB, "--profile", _PROFILE, "--deadline", "36h", "--picture", picture).exit_code == 0
    assert picture.stat().st_size > 2000


@pytest.mark.parametrize(
    ("change", "arguments", "told"),
    [
        ({"steps": None}, [], "steps"), ({"batch": None}, [], "batch.global"),
        ({}, ["--set", "batch=512"], "leave batch out"), ({}, ["--picture", "front.txt"], "--picture"),
        ({}, ["--set", "precision=fp12"], "choose from"), ({"profile": "unheard-of"}, [], "FLOPs"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_fix(
    tmp_path: Path, change: dict[str, Any], arguments: list[str], told: str
) -> None:
    """Exit code 2, no traceback."""
    spec = {key: value for key, value in {**yaml.safe_load(_JOB.read_text()), **change}.items() if value is not None}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(spec))
    found = _run(job, "--profile", _PROFILE, *arguments)
    assert found.exit_code == 2, found.output
    assert told in found.output
    assert "Traceback" not in found.output


def test_a_network_far_below_plan_has_the_job_planned_anew(tmp_path: Path) -> None:
    """What was obtained is what is planned with; 15 % missing is borne, more is not, and both are told."""
    job = tmp_path / "job.yaml"
    many = {"resources": {"accelerators": "l40s:16"}, "elastic": {"min": 16, "max": 32}}
    job.write_text(yaml.safe_dump({**yaml.safe_load(_JOB.read_text()), **many}))
    terms = (job, "--profile", _PROFILE, "--set", "cloud=aws", "--network", "10")
    borne, missed = _json(*terms, "--set", "obtained=9"), _json(*terms, "--set", "obtained=0.05")
    assert not borne["network"]["replan"]
    assert missed["network"]["replan"]
    assert _json(*terms)["network"] is None
    assert missed["front"] == _json(*terms[:-1], "0.05")["front"] != _json(*terms)["front"]
    assert "planned anew" in _run(*terms, "--set", "obtained=0.05").stdout
    alone = _run(_JOB, "--profile", _PROFILE, "--set", "obtained=9")
    assert (alone.exit_code, "add --network" in alone.stderr) == (2, True)


def test_two_profiles_of_one_kind_are_refused(tmp_path: Path) -> None:
    """Facts of the one and speeds of the other would make a forecast of neither."""
    other = tmp_path / "other.yaml"
    other.write_text(_PROFILE.read_text())
    found = _run(_JOB, "--profile", _PROFILE, "--profile", other, "--deadline", "36h")
    assert found.exit_code == 2
    assert "are both of kind" in found.stderr
    assert "--profile" in found.stderr or "give the newer one alone" in found.stderr


V100 = {"instance": "vx1", "accelerator": "v100", "accelerators": 1, "cpus": 4, "memory": "8GB"}
COMMON = {"cloud": "aws", "region": "us-east-1", "as_of": date(2026, 11, 1), "source": "made up"}
JOB = parse_spec(
    {
        "run": "x", "steps": 36_000, "batch": {"global": 8}, "resources": {"accelerators": {"v100": 2}}, "num_nodes": 2,
        "throughput": {"v100": 20.0},
    }
)  # fmt: skip


def known() -> Catalog:
    sold = CatalogInstance.model_validate({**COMMON, **V100, "on_demand_usd_per_h": 3.0, "spot_usd_per_h": 1.0})
    return Catalog(read_catalog(()).accelerators, (sold,))


def found(*, spot: bool = False) -> MachineRecommendation:
    """Two machines of one v100 each."""
    terms = RecommendationTerms(spot=spot, network_bytes_per_s=1e9)
    return recommend_machines(JOB, [], known(), terms, RunGoal(deadline_s=7200), ())


def pool(pool_id: str, provider: str, **changes: Any) -> PoolView:
    shape, market, zone = pool_id.split("/")
    fields: dict[str, Any] = {"accelerator": "v100", "accelerators": 1, "usd_per_h": 3.0, "quota": 1, "drained": False}
    fields |= {"machines": 0, "coming": 0, "jobs": []}
    view = {"pool_id": pool_id, "shape": shape, "market": market, "zone": zone, "provider": provider}
    return PoolView(**view, **(fields | changes))


@pytest.fixture
def pair() -> MachineRecommendation:
    """The declared speed is of two machines, so only that set is known to run the job without more facts."""
    recommended = found()
    assert recommended.recommendation is not None
    assert recommended.recommendation.setup.counts == (2,)
    return recommended


def test_a_new_pool_has_as_many_machines_as_the_job_takes(pair: MachineRecommendation) -> None:
    """In a zone of the region where the provider has one, at the catalog's price; real machines are not emulated."""
    step = pool_launch(pair, known(), [pool("g5/spot/us-east-1b", "aws"), pool("q/spot/eu-west-1a", "aws")])
    assert (step.pool_id, step.machines, step.quota) == ("vx1/on_demand/us-east-1b", 2, None)
    assert step.added is not None
    assert (step.added["quota"], step.added["usd_per_h"], step.added["provider"]) == (2, 3.0, "aws")
    assert step.added["emulated"] is False
    bare = pool_launch(pair, known(), [])
    assert bare.pool_id == "vx1/on_demand/us-east-1"


def test_a_pool_that_is_there_gets_the_quota_that_is_missing(pair: MachineRecommendation) -> None:
    """Machines that hold other jobs count as taken; a large enough quota is left alone."""
    name = "vx1/on_demand/us-east-1"
    assert pool_launch(pair, known(), [pool(name, "aws")]).quota == 2
    assert pool_launch(pair, known(), [pool(name, "aws", quota=4, machines=3, jobs=[1])]).quota == 5
    enough = pool_launch(pair, known(), [pool(name, "aws", quota=9)])
    assert (enough.added, enough.quota) == (None, None)


def test_a_rehearsal_is_emulated(pair: MachineRecommendation) -> None:
    """On a server that has only the local provider, whatever cloud the catalog names: it says so, and costs nothing."""
    step = pool_launch(pair, known(), [pool("kx1/on_demand/default", "local"), pool("o/owned/default", "")])
    assert step.added is not None
    assert (step.added["provider"], step.added["emulated"], step.added["usd_per_h"]) == ("local", True, 0.0)
    there = pool_launch(pair, known(), [pool(step.pool_id, "local")])
    for each in (step, there):
        assert each.words.startswith("rehearsal (processes of the server's machine, not billed): ")
    assert "rehearsal" not in pool_launch(pair, known(), []).words


def test_spot_becomes_a_spot_pool() -> None:
    """At the typical spot price."""
    step = pool_launch(found(spot=True), known(), [])
    assert step.pool_id == "vx1/spot/us-east-1"
    assert step.added is not None
    assert (step.added["market"], step.added["usd_per_h"]) == ("spot", 1.0)


def test_a_mixed_gang_is_not_launched(pair: MachineRecommendation) -> None:
    """It would be of several pools."""
    assert pair.recommendation is not None
    setup = replace(pair.recommendation.setup, counts=(1, 1))
    both = replace(pair, machines=pair.machines * 2, recommendation=replace(pair.recommendation, setup=setup))
    with pytest.raises(UserError, match="several pools"):
        pool_launch(both, known(), [])


SLOW = RentablePool("kx1/on_demand/eu", Market.ON_DEMAND, "k80", 1, 0.5, 4)
FAST = RentablePool("vx1/on_demand/eu", Market.ON_DEMAND, "v100", 1, 3.0, 4)
SPOT = RentablePool("vx1/spot/eu", Market.SPOT, "v100", 1, 1.0, 4)
OWNED = RentablePool("vx1/owned/eu", Market.OWNED, "v100", 1, 0.0, 0)
HOUR = 3600.0


def job(**fields: Any) -> JobSpec:
    """36,000 steps: two hours on a k80, half an hour on a v100."""
    spec = {
        "run": "python train.py", "steps": 36_000, "batch": {"global": 8},
        "resources": {"accelerators": {"k80": 1, "v100": 1}}, "throughput": {"k80": 5.0, "v100": 20.0},
    }  # fmt: skip
    return parse_spec({**spec, **fields})


def plan_of(spec: JobSpec, goal: RunGoal, *pools: RentablePool) -> PoolRecommendation:
    terms = RecommendationTerms(revocations_per_h=0.05)
    return recommend_pools(spec, pools, [], read_catalog(()), terms, goal)


def planned(spec: JobSpec, goal: RunGoal, *pools: RentablePool) -> JobSpec:
    return job_on(spec, plan_of(spec, goal, *pools), list(pools), goal, "goal")


def test_goals_are_read() -> None:
    """A deadline, a budget, or both; anything else is refused by name."""
    assert parse_goal("deadline=6h") == RunGoal(6 * HOUR, None)
    assert parse_goal("budget=$20.5") == RunGoal(None, 20.5)
    assert parse_goal("deadline=90m, budget=3") == RunGoal(1.5 * HOUR, 3.0)


@pytest.mark.parametrize("text", ["", "6h", "deadline", "budget=-1", "budget=nan", "deadline=soon", "x=1"])
def test_other_goals_are_refused(text: str) -> None:
    """The option is named."""
    with pytest.raises(UserError) as caught:
        parse_goal(text)
    assert caught.value.field == "--recommend"


def test_the_cheapest_pool_in_time_is_planned_alone() -> None:
    """With time the cheap one; with less the fast one; the job may then run nowhere else."""
    slow = planned(job(), RunGoal(4 * HOUR), SLOW, FAST)
    assert slow.resources.pools == ("kx1/on_demand/eu",)
    fast = planned(job(), RunGoal(HOUR), SLOW, FAST)
    assert fast.resources.pools == ("vx1/on_demand/eu",)
    assert fast.plan is not None
    assert (fast.plan.machines, fast.plan.accelerators, fast.plan.usd) == (1, 1, pytest.approx(1.5))
    assert (fast.plan.low, fast.plan.high) == (pytest.approx(20 / 1.1), pytest.approx(22))
    assert (fast.deadline, fast.value_usd_per_h) == ("+3600s", pytest.approx(6.0))
    assert kind_of(fast) == kind_of(job())
    request = to_request(fast, JobId(1), user="u", project="p", at=0.0)
    assert request.pools == ("vx1/on_demand/eu",)


def test_a_boot_counts_as_time_and_money() -> None:
    """A machine that needs an hour to boot cannot keep a deadline of one, and costs that hour."""
    late = RentablePool("vx1/on_demand/eu", Market.ON_DEMAND, "v100", 1, 3.0, 4, boot_s=HOUR)
    taken = plan_of(job(), RunGoal(budget_usd=100), late).found.recommendation
    assert taken is not None
    assert (taken.setup.time_s, taken.setup.usd) == (pytest.approx(1.5 * HOUR), pytest.approx(4.5))
    least = RentablePool("vx1/on_demand/eu", Market.ON_DEMAND, "v100", 1, 3.0, 4, minimum_billing_s=2 * HOUR)
    taken = plan_of(job(), RunGoal(budget_usd=100), least).found.recommendation
    assert taken is not None
    assert taken.setup.usd == pytest.approx(6.0)


def test_a_deadline_on_spot_keeps_the_same_machines_on_demand_for_its_rescue() -> None:
    """A budget does not: that job waits for spot."""
    assert planned(job(), RunGoal(2 * HOUR), SPOT, FAST).resources.pools == (SPOT.pool_id, FAST.pool_id)
    assert planned(job(), RunGoal(budget_usd=1), SPOT, FAST).resources.pools == (SPOT.pool_id,)


def test_what_cannot_be_rented_is_left_out_with_the_reason() -> None:
    """Owned, drained, used up."""
    full = RentablePool("vx1/on_demand/eu", Market.ON_DEMAND, "v100", 1, 3.0, 0)
    drained = RentablePool("vx1/on_demand/us", Market.ON_DEMAND, "v100", 1, 3.0, 4, drained=True)
    found = plan_of(job(), RunGoal(HOUR), OWNED, full, drained).found
    assert found.recommendation is None
    assert "owned" in found.left_out[OWNED.pool_id]
    assert "quota" in found.left_out[full.pool_id]
    assert "drained" in found.left_out[drained.pool_id]


def test_a_job_worth_less_than_its_machines_is_refused() -> None:
    """The market would never rent for it; a worth above the price is kept."""
    with pytest.raises(JobSpecError, match="would not rent"):
        planned(job(value_usd_per_h=1), RunGoal(HOUR), FAST)
    assert planned(job(value_usd_per_h=4), RunGoal(HOUR), FAST).value_usd_per_h == 4


def test_what_the_server_measured_goes_before_what_the_file_declares() -> None:
    """Of the gang that the file asks for; predictions and other gangs do not count."""
    rows = [
        {"accelerator": "v100", "accelerators": 1, "steps_per_s": 7.0, "source": "measured"},
        {"accelerator": "k80", "accelerators": 1, "steps_per_s": 9.0, "source": "predicted"},
        {"accelerator": "a100", "accelerators": 4, "steps_per_s": 9.0, "source": "measured"},
    ]
    assert with_measured_speeds(job(), rows).throughput == {"k80": 5.0, "v100": 7.0}


def test_a_plan_is_held_against_what_is_measured() -> None:
    """15 % of speed either way, or 15 % of the bandwidth missing, make another plan worth while."""
    spec = spec_mapping(planned(job(), RunGoal(HOUR), FAST))
    exact, slow, fast = (planned_speed(spec, speed) for speed in (18.0, 16.9, 23.1))
    assert exact is not None
    assert slow is not None
    assert fast is not None
    assert (exact.differs, slow.differs, fast.differs) == (False, True, True)
    assert re.search(r"planned 20 steps/s on 1 x v100 of .*, measured 18 \(-10 %\)$", exact.text)
    spec["plan"]["network_bytes_per_s"] = 1e9
    thin = planned_speed(spec, 20.0, {BANDWIDTH_VALUE: 0.8e9})
    assert thin is not None
    assert thin.differs
    assert thin.text.endswith("6.4 Gbit/s between machines (-20 %)")
    assert planned_speed({"run": "x"}, 1.0) is None
    waiting = planned_speed(spec, None)
    assert waiting is not None
    assert not waiting.differs


def running(goal: str, speed: float, *, spent_usd: float = 0.0, steps: float = 3_600, **changes: Any) -> JobDetail:
    """The planned job after ten minutes on the pool of its plan."""
    spec = planned(job(**changes), parse_goal(goal), SLOW, FAST)
    mapping = spec_mapping(spec)
    mapping["plan"]["goal"] = goal
    return JobDetail(
        id=7, name="job", project="p", user="u", kind=kind_of(spec), state=JobState.RUNNING, priority=50,
        accelerators=1, steps=steps, steps_total=36_000, steps_per_s=speed, submitted_at="2026-11-23T10:00:00+00:00",
        usd=spent_usd, spec=mapping,
    )  # fmt: skip


def again(detail: JobDetail, *pools: RentablePool) -> NextPlan:
    now = instant_of("2026-11-23T10:10:00+00:00")
    return next_plan(detail, list(pools), [], None, now)


def test_a_job_as_fast_as_planned_stays() -> None:
    """Its goal is kept where it is, and nothing is much cheaper."""
    found = again(running("deadline=1h", 20.0), SLOW, FAST)
    assert found.moved is None
    assert found.keeps
    assert found.stay.time_s == pytest.approx(32_400 / 20)


def test_a_job_that_is_too_slow_for_its_deadline_moves_to_what_keeps_it() -> None:
    """Half as fast as planned on a k80, it would be late; a v100 is in time even if the job is as slow there."""
    detail = running("deadline=3h", 2.0)
    assert detail.spec["plan"]["pool"] == SLOW.pool_id
    found = again(detail, SLOW, FAST)
    assert not found.stay_keeps
    assert found.moved is not None
    assert found.moved.resources.pools == (FAST.pool_id,)
    assert found.keeps
    assert found.moved.plan is not None
    assert found.moved.plan.steps_per_s == pytest.approx(20 * 2 / 5)
    assert (found.moved.plan.low, found.moved.plan.high) == (pytest.approx(0.4 * 20 / 1.1), pytest.approx(20 * 1.1))


def test_money_that_is_spent_is_gone() -> None:
    """What is left of a budget is planned with; with nothing left there is nothing to plan."""
    assert again(running("budget=3", 20.0, spent_usd=0.5), FAST).goal.budget_usd == pytest.approx(2.5)
    with pytest.raises(UserError, match="budget of job 7 is over"):
        again(running("budget=3", 20.0, spent_usd=3.5), FAST)


def test_what_cannot_be_planned_again_says_why() -> None:
    """No plan, no speed, no steps left, ended, its pool gone."""
    detail = running("deadline=1h", 20.0)
    for changes, why in (
        ({"spec": {"run": "x"}}, "has no plan"),
        ({"steps_per_s": None}, "no speed"),
        ({"steps": 36_000.0}, "no steps left"),
        ({"state": JobState.SUCCEEDED}, "has ended"),
    ):
        with pytest.raises(UserError, match=why):
            again(detail.model_copy(update=changes), SLOW, FAST)
    found = again(detail)
    assert found.moved is None
    assert found.recommended.found.recommendation is None


_TARGET = {"value": "loss", "at_most": 0.35, "outlook": "expected", "detail": "loss 0.5 at step 400"}
Run = Callable[..., Any]


@pytest.fixture
def recommend(run: Run) -> Run:
    """Runs `walras cloud recommend` for a job file with these changes, against the fake server."""

    def run_it(*args: str, **change: Any) -> Any:
        job = Path("job.yaml")
        spec = {**yaml.safe_load(_JOB.read_text()), **change}
        job.write_text(yaml.safe_dump({name: value for name, value in spec.items() if value is not None}))
        return run("cloud", "recommend", str(job), "--profile", str(_PROFILE), "--cloud", "aws", *args)

    return run_it


def time_s(result: Any) -> float:
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["taken"]["time_s"])


def test_the_steps_to_the_target_are_the_work(recommend: Run, fake: Any) -> None:
    """Expected or reached; in a file without steps, and instead of more steps; fewer declared ones count."""
    fake.add(target=_TARGET | {"steps_expected": 1000.0})
    fake.add(target=_TARGET | {"steps_expected": 5000.0, "reached_step": 2000.0})
    declared = time_s(recommend("-o", "json", steps=1000))
    found = recommend("-o", "json", "--steps-of", "1", steps=None)
    assert time_s(found) == pytest.approx(declared)
    assert "job 1 is expected to take 1,000 steps to loss 0.35, which count as the work" in found.stderr
    reached = recommend("-o", "json", "--steps-of", "2", steps=90000)
    assert time_s(reached) == pytest.approx(2 * declared, rel=0.2)
    assert "job 2 took 2,000 steps" in reached.stderr
    fewer = recommend("-o", "json", "--steps-of", "2", steps=1000)
    assert time_s(fewer) == pytest.approx(declared)
    assert "the file declares 1,000, which are fewer and count" in fewer.stderr


@pytest.mark.parametrize(
    ("job", "change", "told"),
    [
        ({}, {}, "job 1 has no target"),
        ({"target": _TARGET}, {}, "loss 0.5 at step 400"),
        (
            {"target": _TARGET | {"steps_expected": 9.0}},
            {"target": {"value": "loss", "at_most": 0.3}},
            "make them equal",
        ),
        (
            {"target": _TARGET | {"steps_expected": 9.0}, "spec": {"run": "x", "batch": {"global": 7}}},
            {},
            "a step of job 1 is 7 samples",
        ),
    ],
)
def test_what_says_nothing_of_this_job_is_refused(
    recommend: Run, fake: Any, job: dict[str, Any], change: dict[str, Any], told: str
) -> None:
    """No target, nothing foreseen, another target, another batch: exit code 2 with the fix."""
    fake.add(**job)
    found = recommend("--steps-of", "1", **change)
    assert (found.exit_code, "Traceback" in found.output) == (2, False)
    assert told in " ".join(found.stderr.split())
