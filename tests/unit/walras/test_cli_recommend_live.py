"""`walras submit --recommend` without a server: goals, the job that a plan makes, plan against measurement."""

import re
from typing import Any

import pytest

from optimizer.planning.machine_choice import RunGoal
from optimizer.planning.machine_recommendation import RecommendationTerms
from optimizer.planning.pool_plans import PoolRecommendation, RentablePool, recommend_pools
from walras.api import JobDetail
from walras.cli.job_choice import instant_of
from walras.cli.price_commands import read_catalog
from walras.cli.recommend_again import NextPlan, next_plan
from walras.cli.recommend_live import job_on, parse_goal, with_measured_speeds
from walras.cluster import Market
from walras.contract import BANDWIDTH_VALUE
from walras.errors import JobSpecError, UserError
from walras.job_request import JobId
from walras.planned_speed import planned_speed
from walras.spec.job_spec import JobSpec, parse_spec, spec_mapping
from walras.spec.spec_request import kind_of, to_request
from walras.states import JobState

SLOW = RentablePool("kx1/on_demand/eu", Market.ON_DEMAND, "k80", 1, 0.5, 4)
FAST = RentablePool("vx1/on_demand/eu", Market.ON_DEMAND, "v100", 1, 3.0, 4)
SPOT = RentablePool("vx1/spot/eu", Market.SPOT, "v100", 1, 1.0, 4)
OWNED = RentablePool("vx1/owned/eu", Market.OWNED, "v100", 1, 0.0, 0)
HOUR = 3600.0


def job(**fields: Any) -> JobSpec:
    """36,000 steps: two hours on a k80, half an hour on a v100."""
    spec = {
        "run": "python train.py",
        "steps": 36_000,
        "batch": {"global": 8},
        "resources": {"accelerators": {"k80": 1, "v100": 1}},
        "throughput": {"k80": 5.0, "v100": 20.0},
    }
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
