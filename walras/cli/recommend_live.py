"""Recommendations from the server's pools: for a job to submit, and for one that runs.

With `walras submit --recommend` machines of the server's pools are chosen for a job, which then runs on these alone.
The plan is made over what the server can rent now at present prices. It becomes part of the job (`plan`), so that
`walras show` and `walras explain` hold what is measured against it.

`walras cloud recommend --job` makes another plan for a job that runs, from the speed that was measured of it. What is
left of its work, its time and its money is planned anew over the server's pools, beside staying where it is.

A recommendation is shown with the ways that no other beats, the one to take, and what was left out.
"""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import instant_of, parse_length_option, read_document
from walras.cli.price_commands import read_catalog
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import show_columns, show_line, warn
from walras.contract import SECONDS_PER_HOUR
from walras.errors import JobSpecError, UserError
from walras.states import JobState
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from optimizer.planning.machine_choice import RunGoal, RunOption, Setup
    from optimizer.planning.machine_recommendation import MachineRecommendation, PoolRecommendation, RentablePool
    from optimizer.prediction.step_time import ObtainedNetwork
    from walras.client import Client
    from walras.profiling.profiles import ProfileFile
    from walras.resources.fleet import PoolView
    from walras.resources.jobs import DryRun, JobDetail, PlannedSpeed
    from walras.spec.job_spec import JobSpec

#: The most left-out machines that are named.
LEFT_OUT_MOST = 5


#: Bytes per second.
GBIT = 1e9 / 8.0


def bytes_per_s(gbit: float | None) -> float | None:
    """Returns a bandwidth that was given in Gbit/s in bytes per second."""
    return None if gbit is None else gbit * GBIT


def read_profiles(paths: Sequence[Path]) -> "list[ProfileFile]":
    """Returns the profiles. Raises UserError if two are of one kind: their facts would be mixed."""
    from walras.profiling.profiles import ProfileFile

    profiles = [read_document(path, ProfileFile) for path in paths]
    kinds = [str(each.kind) for each in profiles]
    for place, kind in enumerate(kinds):
        if (first := kinds.index(kind)) < place:
            raise UserError(
                f"{paths[first]} and {paths[place]} are both of kind {kind!r}",
                field="--profile",
                fix="give the newer one alone, or write another `kind` into the profile of another job",
            )
    return profiles


def show_recommendation(found: "MachineRecommendation", verdict: "ObtainedNetwork | None") -> None:
    """Shows the ways that no other beats, the one to take and why, and what was left out."""
    taken = found.recommendation
    assert taken is not None, "shown only where there is something to take"
    fastest_first = sorted({*taken.front, taken.setup}, key=lambda setup: (setup.time_s, setup.usd))
    rows = [[">" if setup == taken.setup else "", *_setup_cells(found, setup)] for setup in fastest_first]
    if verdict is not None:
        show_line(verdict.why)
    show_columns(" | MACHINES~ | BATCH> | PASSES> | STEPS/S> | TIME> | 4 OF 5 WITHIN> | USD>", rows)
    show_line("")
    show_line(f"take {_setup_name(found, taken.setup)}: {taken.why}")
    show_line(
        f"  {format_length(taken.setup.time_s)} expected, four cases out of five within "
        f"{format_length(taken.setup.early_s)} and {format_length(taken.setup.late_s)}; "
        f"{format_money(taken.setup.usd)} expected"
    )
    show_line(f"  {taken.tried:,} setups judged; the table has those that no other beats in both time and money")
    for name, why in list(found.left_out.items())[:LEFT_OUT_MOST]:
        show_line(f"  left out: {name}: {why}")
    if len(found.left_out) > LEFT_OUT_MOST:
        show_line(f"  and {len(found.left_out) - LEFT_OUT_MOST} more, all in -o json")


def _setup_cells(found: "MachineRecommendation", setup: "Setup") -> list[str]:
    return [
        _setup_name(found, setup),
        str(setup.batch),
        str(setup.passes),
        f"{setup.steps_per_s:.3g}",
        format_length(setup.time_s),
        f"{format_length(setup.early_s)} - {format_length(setup.late_s)}",
        format_money(setup.usd),
    ]


def _setup_name(found: "MachineRecommendation", setup: "Setup") -> str:
    parts = [f"{count} x {m.offer.name}" for count, m in zip(setup.counts, found.machines, strict=True) if count]
    return " + ".join(parts)


def recommendation_data(found: "MachineRecommendation", verdict: "ObtainedNetwork | None") -> dict[str, Any]:
    taken = found.recommendation
    assert taken is not None, "shown only where there is something to take"
    return {
        "kept": taken.kept,
        "why": taken.why,
        "judged": taken.tried,
        "taken": _setup_data(found, taken.setup),
        "front": [_setup_data(found, setup) for setup in taken.front],
        "left_out": dict(found.left_out),
        "network": None if verdict is None else {"below": verdict.below, "replan": verdict.replan, "why": verdict.why},
    }


def _setup_data(found: "MachineRecommendation", setup: "Setup") -> dict[str, Any]:
    used = [
        {"machine": machine.offer.name, "count": count, "samples_per_accelerator": share}
        for count, share, machine in zip(setup.counts, setup.shares, found.machines, strict=True)
        if count
    ]
    shown = ("accelerators", "batch", "passes", "steps_per_s", "time_s", "early_s", "late_s", "usd")
    return {"machines": used} | {name: getattr(setup, name) for name in shown}


_OPTION = "--recommend"
#: Where no user states what an hour of a planned job is worth, it is this many times the planned machines' price: the
#: market keeps renting while prices rise by less.
WORTH_OF_PRICE = 2.0

RecommendOption = Annotated[
    str | None,
    typer.Option(
        "--recommend",
        metavar="GOAL",
        help="Choose machines of the server's pools for this goal, deadline=6h or budget=20 (USD), and run on these.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="With --recommend: submit without asking.")]


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is made from, besides the job: the goal as written, profiles, and the network in Gbit/s."""

    goal: str
    profiles: tuple[Path, ...] = ()
    network_gbit: float | None = None
    yes: bool = False
    #: Only the job's number, or JSON, goes to standard output.
    quiet: bool = False


def parse_goal(text: str) -> "RunGoal":
    """Returns the goal of `deadline=6h`, `budget=20`, or both with a comma between. Raises UserError."""
    from optimizer.planning.machine_choice import RunGoal

    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name == "deadline" and value:
            found["deadline_s"] = parse_length_option(value, _OPTION)
        elif name == "budget" and (usd := _positive(value.removeprefix("$"))) is not None:
            found["budget_usd"] = usd
        else:
            raise UserError(f"{part[:60]!r} is no goal", field=_OPTION, fix="write deadline=6h, budget=20, or both")
    return RunGoal(**found)


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < 1e12 else None


def planned_job(spec: "JobSpec", options: PlanOptions, *, ask: bool = True) -> "JobSpec":
    """Returns the job limited to the machines that a plan for it chose, once whoever submits it agrees.

    Shows the plan. Raises UserError where nothing is known to run the job, nothing keeps the goal, or nobody can be
    asked.
    """
    from optimizer.planning.machine_recommendation import RecommendationTerms, recommend_pools

    _check_plannable(spec)
    goal = parse_goal(options.goal)
    profiles = read_profiles(options.profiles)

    async def look(client: "Client") -> "tuple[list[PoolView], DryRun]":
        return await client.pools(), await client.dry_run(spec)

    views, tried = with_client(look)
    network = bytes_per_s(options.network_gbit)
    terms = RecommendationTerms(network_bytes_per_s=network, spot=True, revocations_per_h=0.05)
    pools = [rentable_pool(view) for view in views]
    measured = with_measured_speeds(spec, tried.configurations)
    plan = recommend_pools(measured, pools, profiles, read_catalog(()), terms, goal)
    _check_kept(plan, goal, spec)
    taken = plan.found.recommendation
    assert taken is not None, "checked above"
    planned = job_on(spec, plan, pools, goal, options.goal, network)
    if not options.quiet:
        show_recommendation(plan.found, None)
        for line in _plan_lines(planned):
            show_line(f"  {line}")
    if not taken.kept:
        warn(f"walras: {taken.why}")
    if ask and not options.yes:
        _ask(planned)
    return planned


def _check_plannable(spec: "JobSpec") -> None:
    """Raises JobSpecError for a job that is many, or that no plan for one gang of one type describes."""
    from walras.spec.sweeps import is_sweep

    fields = {"array": is_sweep(spec), "fork": spec.fork is not None, "mixed": spec.mixed, "plans": bool(spec.plans)}
    fields["roles"] = bool(spec.roles)
    for field in (name for name, holds in fields.items() if holds):
        raise JobSpecError(
            f"{field}: a plan is for one gang on machines of one type",
            field=field,
            fix=f"leave {field} or {_OPTION} out",
        )


def rentable_pool(view: "PoolView") -> "RentablePool":
    """Returns a pool as a plan reads it. Machines that are there count as taken where jobs run on any of them."""
    from optimizer.planning.machine_recommendation import RentablePool
    from walras.cluster import Market

    taken = view.machines + view.coming if view.jobs else 0
    return RentablePool(
        pool_id=view.pool_id,
        market=Market(view.market),
        accelerator=view.accelerator,
        accelerators=view.accelerators,
        usd_per_h=view.usd_per_h,
        available=max(0, view.quota - taken),
        boot_s=view.boot_s,
        minimum_billing_s=view.minimum_billing_s,
        drained=view.drained,
    )


def with_measured_speeds(spec: "JobSpec", configurations: list[dict[str, Any]]) -> "JobSpec":
    """Returns the job with the speeds that the server measured of its kind in the place of those that it declares."""
    from walras.spec.accelerator_names import named_type

    wanted = {demand.accelerator: demand.count for demand in spec.resources.accelerators}
    found = {
        str(each["accelerator"]): float(each["steps_per_s"])
        for each in configurations
        if each["source"] == "measured"
        and wanted.get(named_type(wanted, each["accelerator"]) or "*") == each["accelerators"]
        and each["steps_per_s"] > 0
    }
    return spec.model_copy(update={"throughput": {**spec.throughput, **found}}) if found else spec


def _check_kept(plan: "PoolRecommendation", goal: "RunGoal", spec: "JobSpec") -> None:
    """Raises UserError if nothing runs the job, or if the best misses the goal even when all goes as expected."""
    taken = plan.found.recommendation
    if taken is None:
        reasons = "".join(f"\n  {name}: {why}" for name, why in list(plan.found.left_out.items())[:8])
        raise UserError(
            f"no pool of this server is known to run {spec.name}{reasons}",
            field=_OPTION,
            fix="give a --profile of the job or `throughput`, or have a pool added (walras admin add pool FILE)",
        )
    if not goal.met(taken.setup.option(late=False)):
        pool, machines = plan.pool_of(taken.setup)
        raise UserError(
            f"{taken.why}: {machines} x {pool.pool_id} would take {format_length(taken.setup.time_s)} "
            f"and {format_money(taken.setup.usd)}",
            field=_OPTION,
            fix="allow more, or have a faster or cheaper pool added (walras admin add pool FILE)",
        )


def job_on(
    spec: "JobSpec",
    plan: "PoolRecommendation",
    pools: "list[RentablePool]",
    goal: "RunGoal",
    goal_text: str,
    network_bytes_per_s: float | None = None,
) -> "JobSpec":
    """Returns the job that runs on the machines of a plan alone, with its goal, its worth and the plan itself.

    With a deadline, a job that is planned on spot may also have the on-demand machines of the same accelerators, which
    the market rents for it at the last moment. Raises JobSpecError for a worth below the price of the plan.
    """
    from optimizer.planning.machine_recommendation import rescue_pools
    from walras.spec.job_spec import parse_spec, spec_mapping
    from walras.spec.spec_request import kind_of

    assert plan.found.recommendation is not None, "a plan is made of something to take"
    setup = plan.found.recommendation.setup
    pool, machines = plan.pool_of(setup)
    usd_per_h = setup.usd / setup.time_s * SECONDS_PER_HOUR
    if spec.value_usd_per_h is not None and spec.value_usd_per_h < usd_per_h:
        raise JobSpecError(
            f"an hour of the plan costs {format_money(usd_per_h)}, an hour of the job is worth "
            f"{format_money(spec.value_usd_per_h)}: the market would not rent for it",
            field="value_usd_per_h",
            fix="raise it, or leave it out",
        )
    allowed = [pool, *(rescue_pools(pool, pools) if goal.deadline_s is not None else ())]
    mapping = {name: value for name, value in spec_mapping(spec).items() if name not in ("elastic", "throughput")}
    resources = dict(mapping.get("resources", {}))
    resources["accelerators"] = {pool.accelerator: setup.accelerators}
    resources["pools"] = [each.pool_id for each in allowed]
    changes: dict[str, Any] = {
        "resources": resources,
        "num_nodes": machines,
        "throughput": {pool.accelerator: setup.steps_per_s},
        # Measurements of this job count for the next plan of the same file, however this plan changed the gang.
        "profile": kind_of(spec) if machines == spec.num_nodes else f"{kind_of(spec)} on {machines} machines"[:200],
        "plan": _plan_mapping(spec, setup, pool, machines, goal_text, network_bytes_per_s),
    }
    if spec.value_usd_per_h is None:
        changes["value_usd_per_h"] = WORTH_OF_PRICE * usd_per_h
    if goal.deadline_s is not None:
        changes["deadline"] = f"+{goal.deadline_s:.0f}s"
    if goal.budget_usd is not None:
        changes["limits"] = {**mapping.get("limits", {}), "budget_usd": goal.budget_usd}
    # The kind of a job follows from its gang; what was measured of the job as it was written counts for this one.
    return parse_spec({**mapping, **changes}, source="plan")


def _plan_mapping(
    spec: "JobSpec", setup: "Setup", pool: "RentablePool", machines: int, goal: str, network_bytes_per_s: float | None
) -> dict[str, Any]:
    from walras.spec.field_types import shown_accelerator

    running_s = setup.time_s - pool.boot_s
    low = setup.steps_per_s * running_s / max(setup.late_s - pool.boot_s, 1e-9)
    high = setup.steps_per_s * running_s / max(setup.early_s - pool.boot_s, 1e-9)
    found = {
        "pool": pool.pool_id,
        "machines": machines,
        "accelerator": pool.accelerator,
        "accelerators": setup.accelerators,
        "steps_per_s": setup.steps_per_s,
        "low": low,
        "high": high,
        "hours": setup.time_s / SECONDS_PER_HOUR,
        "usd": setup.usd,
        "goal": goal[:200],
        "asked": {shown_accelerator(each.accelerator): each.count for each in spec.resources.accelerators},
        "declared": spec.throughput,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return (
        found if machines == 1 or network_bytes_per_s is None else {**found, "network_bytes_per_s": network_bytes_per_s}
    )


def _plan_lines(planned: "JobSpec") -> list[str]:
    """Returns what becomes of the job by the plan."""
    plan, pools = planned.plan, planned.resources.pools
    assert plan is not None, "a planned job has its plan"
    noun = "machine" if plan.machines == 1 else "machines"
    lines = [
        f"{plan.machines} {noun} of {plan.pool} at {format_money(plan.usd / plan.hours)} an hour in all, no others"
    ]
    if len(pools) > 1:
        lines = [f"{lines[0]} but, where only they keep the deadline, of {', '.join(pools[1:])}"]
    lines.append(
        f"an hour of it is worth {format_money(planned.value_usd_per_h or 0.0)}, above which nothing is rented"
    )
    return lines


def _ask(planned: "JobSpec") -> None:
    """Raises UserError where nobody can be asked; ends the command where the answer is no."""
    if not sys.stdin.isatty():
        raise UserError("nobody can be asked whether to rent this", field=_OPTION, fix="add --yes")
    typer.confirm(f"submit {planned.name} and rent these machines?", abort=True)


# -------------------------------------------------------------------------------------------------------- another plan


_JOB_OPTION = "--job"
#: Fields of a stored spec to drop: those that a plan set, secrets, and those that no plan reads.
_SET_BY_PLAN = ("plan", "num_nodes", "secrets", "deadline", "limits", "value_usd_per_h", "not_before", "depends_on")


@dataclass(frozen=True, slots=True)
class NextPlan:
    """Staying, against the best available machines, for what is left of a job."""

    job_id: int
    speed: "PlannedSpeed"
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
    job_id = job_id_of(word)

    async def look(client: "Client") -> "tuple[JobDetail, list[PoolView]]":
        return await client.job(job_id), await client.pools()

    detail, views = with_client(look)
    known, network = read_profiles(profiles), bytes_per_s(network_gbit)
    found = next_plan(detail, [rentable_pool(view) for view in views], known, network, time.time())
    _show_next_plan(found)
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
    from walras.resources.jobs import planned_speed

    speed = planned_speed(detail.spec, detail.steps_per_s, detail.last_values)
    if speed is None:
        raise UserError(f"job {detail.id} has no plan", field=_JOB_OPTION, fix="submit with --recommend")
    if detail.state.is_final:
        raise UserError(f"job {detail.id} has ended: {detail.state}", field=_JOB_OPTION, fix="name one that runs")
    if speed.steps_per_s is None:
        fix = "ask again when it has made some steps"
        raise UserError(f"no speed of job {detail.id} was measured yet", field=_JOB_OPTION, fix=fix)
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
    mine = [
        replace(each, available=each.available + speed.machines, boot_s=0.0, minimum_billing_s=0.0)
        if each is here
        else each
        for each in pools
    ]
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
            raise UserError(f"the {what} of job {detail.id} is over: nothing to plan", field=_JOB_OPTION)
    return RunGoal(deadline_s, budget_usd)


def _job_left(detail: "JobDetail") -> "JobSpec":
    """Returns the job as it was written before its plan, with the steps that are left. Raises UserError if none is."""
    from walras.spec.job_spec import parse_spec

    if detail.steps_total is None or detail.steps >= detail.steps_total:
        raise UserError(f"job {detail.id} has no steps left to plan", field=_JOB_OPTION)
    plan: Mapping[str, Any] = detail.spec["plan"]
    mapping = {name: value for name, value in detail.spec.items() if name not in _SET_BY_PLAN}
    resources = {name: value for name, value in mapping.get("resources", {}).items() if name != "pools"}
    resources["accelerators"] = plan.get("asked", "any:1")
    mapping |= {"resources": resources, "throughput": plan.get("declared", {})}
    try:
        return parse_spec({**mapping, "steps": detail.steps_total - detail.steps}, source=f"job {detail.id}")
    except JobSpecError as error:
        raise UserError(
            f"job {detail.id}: {error}", field=_JOB_OPTION, fix="submit it again with --recommend"
        ) from None


def _is_worth_moving(
    recommended: "PoolRecommendation", speed: "PlannedSpeed", goal: "RunGoal", stay: "RunOption"
) -> bool:
    """Returns whether other machines keep a goal that is missed here, or are better by more than a plan may be off."""
    from walras.resources.jobs import OFF_PLAN

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


def _show_next_plan(found: NextPlan) -> None:
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
