"""`walras cloud recommend --job`: another plan for a job that runs, from the speed that was measured of it.

What is left of its work, its time and its money is planned anew over the server's pools, beside staying where it is.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.cli.arguments import instant_of, read_document
from walras.cli.price_commands import read_catalog
from walras.cli.recommend_live import check_kinds, job_on, parse_goal, rentable_pool, show_recommendation
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import show_line
from walras.contract import SECONDS_PER_HOUR
from walras.errors import JobSpecError, UserError
from walras.resources.jobs import OFF_PLAN, JobDetail, PlannedSpeed, planned_speed
from walras.states import JobState
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.machine_choice import RunGoal, RunOption
    from optimizer.planning.machine_recommendation import PoolRecommendation, RentablePool
    from walras.client import Client
    from walras.profiling.profiles import ProfileFile
    from walras.resources.fleet import PoolView
    from walras.spec.job_spec import JobSpec

_OPTION = "--job"
#: Fields of a stored spec to drop: those that a plan set, secrets, and those that no plan reads.
_SET_BY_PLAN = ("plan", "num_nodes", "secrets", "deadline", "limits", "value_usd_per_h", "not_before", "depends_on")


@dataclass(frozen=True, slots=True)
class NextPlan:
    """Staying, against the best available machines, for what is left of a job."""

    job_id: int
    speed: PlannedSpeed
    goal: "RunGoal"
    stay: "RunOption"
    recommended: "PoolRecommendation"
    #: The job on the recommended machines; None: staying is as good.
    moved: "JobSpec | None"

    @property
    def keeps(self) -> bool:
        """Whether the recommendation, to stay or to move, meets the goal."""
        taken = self.recommended.found.recommendation
        if self.moved is None or taken is None:
            return self.stay_keeps
        return self.goal.met(taken.setup.option(late=False))

    @property
    def stay_keeps(self) -> bool:
        """Whether the goal is kept where it runs, at the measured speed."""
        return self.goal.met(self.stay)


def replan_command(word: str, profiles: list[Path], network_gbit: float | None, *, apply: bool) -> NextPlan:
    """Shows the plan for what is left of a job, carries it out if that is asked for, and returns it.

    Raises UserError for a job that cannot be planned.
    """
    from walras.profiling.profiles import ProfileFile

    job_id = job_id_of(word)

    async def look(client: "Client") -> "tuple[JobDetail, list[PoolView]]":
        return await client.job(job_id), await client.pools()

    detail, views = with_client(look)
    known = [read_document(path, ProfileFile) for path in profiles]
    check_kinds(profiles, [str(each.kind) for each in known])
    network = None if network_gbit is None else network_gbit * 1e9 / 8.0
    found = next_plan(detail, [rentable_pool(view) for view in views], known, network, time.time())
    _show(found)
    if found.moved is not None and apply:
        apply_plan(found)
    elif found.moved is not None:
        show_line(f"  to move it, which costs a checkpoint and a start: walras cloud recommend --job {job_id} --apply")
    return found


#: Seconds beyond the job's grace within which a hold must have come about.
_HOLD_S, _LOOK_S = 120.0, 0.5
_REDIRECTED = ("resources", "num_nodes", "throughput", "value_usd_per_h", "plan")


def apply_plan(found: NextPlan) -> None:
    """Holds the job until it has saved, sends it to the recommended machines, and releases it.

    Raises UserError where the hold does not come about, and what the server refuses; the job is released either way.
    """
    from walras.spec.job_spec import spec_mapping

    assert found.moved is not None, "there is somewhere to go"
    written = spec_mapping(found.moved)
    machines = {name: written[name] for name in _REDIRECTED if name in written}
    hold_s = found.moved.grace_period + _HOLD_S

    async def move(client: "Client") -> None:
        await client.hold(found.job_id)
        try:
            await _until_held(client, found.job_id, hold_s)
            await client.redirect(found.job_id, machines)
        finally:
            await client.release(found.job_id)

    with_client(move)
    show_line(f"job {found.job_id} was saved and goes on there")


async def _until_held(client: "Client", job_id: int, within_s: float) -> None:
    """Raises UserError if the job is not held within this time, or has ended."""
    until = time.monotonic() + within_s
    while (state := (await client.job(job_id)).state) is not JobState.HELD:
        if state.is_final or time.monotonic() > until:
            raise UserError(f"job {job_id} is {state}, not held", field="--apply", fix="try again, if it still runs")
        await asyncio.sleep(_LOOK_S)


def next_plan(
    detail: "JobDetail",
    pools: "list[RentablePool]",
    profiles: "list[ProfileFile]",
    network_bytes_per_s: float | None,
    now: float,
) -> NextPlan:
    """Returns the plan for what is left of a job at this instant (Unix seconds).

    The bandwidth that its ranks measured counts before the one given. Raises UserError for a job without a plan, of
    which no speed was measured, or of which nothing is left.
    """
    from optimizer.planning.machine_choice import RunOption
    from optimizer.planning.machine_recommendation import MeasuredGang, RecommendationTerms, recommend_pools

    speed = planned_speed(detail.spec, detail.steps_per_s, detail.last_values)
    if speed is None:
        raise UserError(f"job {detail.id} has no plan", field=_OPTION, fix="submit with --recommend")
    if detail.state.is_final:
        raise UserError(f"job {detail.id} has ended: {detail.state}", field=_OPTION, fix="name one that runs")
    if speed.steps_per_s is None:
        fix = "ask again when it has made some steps"
        raise UserError(f"no speed of job {detail.id} was measured yet", field=_OPTION, fix=fix)
    written = detail.spec["plan"]
    goal, spec = _goal_left(detail, str(written["goal"]), now), _job_left(detail)
    here = next((each for each in pools if each.pool_id == speed.pool), None)
    terms = RecommendationTerms(
        network_bytes_per_s=speed.bytes_per_s or network_bytes_per_s,
        spot=True,
        revocations_per_h=0.05,
        measured=MeasuredGang(speed.accelerator, speed.accelerators, speed.machines, speed.steps_per_s),
    )
    # Its own machines are present: nothing has to boot, and it may keep them.
    mine = [_as_held(each, speed.machines) if each is here else each for each in pools]
    recommended = recommend_pools(spec, mine, profiles, read_catalog(()), terms, goal)
    left_s = (spec.steps or 0.0) / speed.steps_per_s
    usd_per_h = (0.0 if here is None else here.usd_per_h) * speed.machines
    stay = RunOption((), left_s, left_s / SECONDS_PER_HOUR * usd_per_h)
    moved = None
    if _is_worth_moving(recommended, speed, goal, stay):
        moved = job_on(spec, recommended, mine, goal, str(written["goal"]), network_bytes_per_s)
    return NextPlan(detail.id, speed, goal, stay, recommended, moved)


def _goal_left(detail: "JobDetail", text: str, now: float) -> "RunGoal":
    """Returns the goal without the time that is over and the money that is spent. Raises UserError where nothing is
    left.
    """
    from optimizer.planning.machine_choice import RunGoal

    goal = parse_goal(text)
    deadline_s = None if goal.deadline_s is None else goal.deadline_s - (now - instant_of(detail.submitted_at))
    budget_usd = None if goal.budget_usd is None else goal.budget_usd - detail.usd
    for what, left in (("deadline", deadline_s), ("budget", budget_usd)):
        if left is not None and left <= 0:
            raise UserError(f"the {what} of job {detail.id} is over: nothing to plan", field=_OPTION)
    return RunGoal(deadline_s, budget_usd)


def _job_left(detail: "JobDetail") -> "JobSpec":
    """Returns the job as it was written before its plan, with the steps that are left. Raises UserError if none is."""
    from walras.spec.job_spec import parse_spec

    if detail.steps_total is None or detail.steps >= detail.steps_total:
        raise UserError(f"job {detail.id} has no steps left to plan", field=_OPTION)
    plan: Mapping[str, Any] = detail.spec["plan"]
    mapping = {name: value for name, value in detail.spec.items() if name not in _SET_BY_PLAN}
    resources = {name: value for name, value in mapping.get("resources", {}).items() if name != "pools"}
    resources["accelerators"] = plan.get("asked", "any:1")
    mapping |= {"resources": resources, "throughput": plan.get("declared", {})}
    try:
        return parse_spec({**mapping, "steps": detail.steps_total - detail.steps}, source=f"job {detail.id}")
    except JobSpecError as error:
        raise UserError(f"job {detail.id}: {error}", field=_OPTION, fix="submit it again with --recommend") from None


def _as_held(pool: "RentablePool", machines: int) -> "RentablePool":
    return replace(pool, available=pool.available + machines, boot_s=0.0, minimum_billing_s=0.0)


def _is_worth_moving(
    recommended: "PoolRecommendation", speed: PlannedSpeed, goal: "RunGoal", stay: "RunOption"
) -> bool:
    """Returns whether other machines keep a goal that is missed here, or are better by more than a plan may be off."""
    taken = recommended.found.recommendation
    if taken is None:
        return False
    pool, machines = recommended.pool_of(taken.setup)
    if (pool.pool_id, machines) == (speed.pool, speed.machines):
        return False
    there = taken.setup.option(late=False)
    if not goal.met(stay):
        return goal.met(there) or there.time_s < stay.time_s
    gain = stay.usd - there.usd if goal.deadline_s is not None else stay.time_s - there.time_s
    return goal.met(there) and gain > OFF_PLAN * (stay.usd if goal.deadline_s is not None else stay.time_s)


def _show(found: NextPlan) -> None:
    show_line(f"job {found.job_id}: {found.speed.text}")
    if found.recommended.found.recommendation is not None:
        show_recommendation(found.recommended.found, None)
        show_line("")
    keeps = "keeps its goal" if found.stay_keeps else "misses its goal"
    show_line(
        f"where it runs it has {format_length(found.stay.time_s)} and {format_money(found.stay.usd)} left and {keeps}"
    )
    if found.moved is None:
        better = "" if found.stay_keeps else ", and nothing that may be rented is better"
        show_line(f"leave it where it is{better}")
        return
    plan = found.moved.plan
    assert plan is not None, "a planned job has its plan"
    show_line(
        f"move it to {plan.machines} x {plan.pool}: {format_length(plan.hours * SECONDS_PER_HOUR)} and "
        f"{format_money(plan.usd)} left there"
    )
