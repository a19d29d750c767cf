"""`walras cloud recommend`: which machines to rent for one job, by a deadline or a budget, and what else could be had.

The work is the job's own `steps`, or the steps that a job of a server needs to reach its target (`--steps-of`). Only
`--picture` loads matplotlib.

With `--launch` a recommendation from the catalog becomes a pool, and the job runs there. That is for operators: only
administrators add pools. The pool is added with a quota of as many machines as the job takes, or the quota of one that
is there is raised; then the job is submitted with a plan that is limited to that pool.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import (
    NetworkOption,
    OutputOption,
    ProfileOption,
    SetOption,
    example_or_path,
    parse_length_option,
    read_settings,
)
from walras.cli.price_commands import read_catalog
from walras.cli.recommend_live import (
    GBIT,
    LEFT_OUT_MOST,
    bytes_per_s,
    read_profiles,
    recommendation_data,
    replan_command,
    show_recommendation,
)
from walras.cli.session import job_id_of, with_client
from walras.cli.submit_commands import submit_command
from walras.cli.terminal_output import OutputFormat, ends_at_interrupt, show_json, show_line, warn
from walras.cluster import Market
from walras.contract import SECONDS_PER_HOUR
from walras.errors import ConfigError, UserError, system_refusals
from walras.units import format_count

if TYPE_CHECKING:
    from optimizer.planning.machine_choice import RunGoal
    from optimizer.planning.machine_recommendation import MachineRecommendation
    from optimizer.prediction.step_time import ObtainedNetwork
    from walras.client import Client
    from walras.resources.fleet import PoolView
    from walras.resources.jobs import JobDetail, TargetView
    from walras.spec.catalog import Catalog, CatalogInstance
    from walras.spec.job_spec import JobSpec


_OPTION = "--steps-of"


def with_steps_of_job(word: str, spec: "JobSpec") -> "tuple[JobSpec, str]":
    """Returns the spec with the steps that a job of a server needs, unless it declares fewer, and a line saying so.

    Raises UserError if that job has no comparable target, or its end cannot be predicted yet.
    """
    job_id = job_id_of(word)
    detail = with_client(lambda client: client.job(job_id))
    target = _comparable_target(detail, spec)
    reached = target.reached_step
    steps = target.steps_expected if reached is None else reached
    if steps is None:
        raise UserError(
            f"job {job_id}: {target.detail}", field=_OPTION, fix="ask again when it has gone on, or write `steps`"
        )
    message = (
        f"job {job_id} {'took' if reached is not None else 'is expected to take'} {format_count(round(steps))} steps"
    )
    message += f" to {target.value} {target.at_most:g}"
    if spec.steps is not None and spec.steps <= steps:
        return spec, f"{message}; the file declares {format_count(spec.steps)}, which are fewer and count"
    return spec.model_copy(update={"steps": max(steps, 1.0)}), f"{message}, which count as the work"


def _comparable_target(detail: "JobDetail", spec: "JobSpec") -> "TargetView":
    """Returns the target of the job. Raises UserError if the file has another target or another batch."""
    from walras.spec.job_groups import global_batch_of

    if detail.target is None:
        raise UserError(f"job {detail.id} has no target", field=_OPTION, fix="name a job whose file has `target:`")
    wanted = spec.target
    if wanted is not None and (wanted.value, wanted.at_most) != (detail.target.value, detail.target.at_most):
        raise UserError(
            f"the target of job {detail.id} is {detail.target.value} {detail.target.at_most:g}, that of the file "
            f"{wanted.value} {wanted.at_most:g}",
            field="target",
            fix="make them equal, or leave the file's out",
        )
    batch = detail.spec.get("batch")
    theirs, ours = batch.get("global") if isinstance(batch, dict) else None, global_batch_of(spec.batch)
    if theirs is not None and ours is not None and theirs != ours:
        raise UserError(
            f"a step of job {detail.id} is {theirs} samples, one of the file {ours}",
            field="batch.global",
            fix=f"write `batch: {{global: {theirs}}}`, and try others with --set batch=N",
        )
    return detail.target


_PICTURE_ENDINGS = (".png", ".svg")


def draw_recommendation(path: Path, found: "MachineRecommendation", goal: "RunGoal") -> None:
    """Draws the Pareto front with intervals, the limits and the choice. Raises ConfigError for another file ending."""
    taken = found.recommendation
    assert taken is not None, "drawn only where there is something to take"
    if path.suffix.lower() not in _PICTURE_ENDINGS:
        raise ConfigError(
            f"{path}: pictures are written as {' or '.join(_PICTURE_ENDINGS)}", field="--picture", fix="change it"
        )
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "walras", "font.size": 9}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
        hours = [setup.time_s / SECONDS_PER_HOUR for setup in taken.front]
        early = [(setup.time_s - setup.early_s) / SECONDS_PER_HOUR for setup in taken.front]
        late = [(setup.late_s - setup.time_s) / SECONDS_PER_HOUR for setup in taken.front]
        usd = [setup.usd for setup in taken.front]
        axes.errorbar(
            hours, usd, xerr=[early, late], fmt="o-", color="tab:blue", ecolor="lightgrey", label="not beaten"
        )
        axes.plot(
            [taken.setup.time_s / SECONDS_PER_HOUR],
            [taken.setup.usd],
            "*",
            color="tab:red",
            markersize=14,
            label="taken",
        )
        if goal.deadline_s is not None:
            axes.axvline(goal.deadline_s / SECONDS_PER_HOUR, color="tab:grey", linestyle="--", label="deadline")
        if goal.budget_usd is not None:
            axes.axhline(goal.budget_usd, color="tab:grey", linestyle=":", label="budget")
        axes.set(xlabel="time (h), four cases out of five", ylabel="USD")
        axes.set_title(found.work.kind.name, parse_math=False)
        axes.legend()
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        with system_refusals(path, fix="check the path", field="--picture"):
            figure.savefig(path, metadata=metadata)


EXIT_NOT_KEPT = 1


JobFileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[JOB]",
        help="A job file with `steps` and `batch: {global: N}`, or example:NAME.",
        callback=example_or_path("jobs"),
    ),
]
DeadlineOption = Annotated[str | None, typer.Option("--deadline", help="Finish within this time, such as 6h or 90m.")]
AgainOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="NUMBER",
        help="Plan the rest of a job that was submitted with --recommend again, from its measured speed.",
    ),
]
ApplyOption = Annotated[
    bool, typer.Option("--apply", help="With --job: move the job where the new plan has it, from its checkpoint.")
]
LaunchOption = Annotated[
    bool,
    typer.Option("--launch", help="Add the recommended pool to the server, and submit the job to it (administrators)."),
]
LaunchYesOption = Annotated[bool, typer.Option("--yes", "-y", help="With --launch: do so without asking.")]
StepsOfOption = Annotated[
    str | None,
    typer.Option(
        "--steps-of",
        metavar="JOB",
        help="Take the work from this job of a server: the steps it needs to reach its target.",
    ),
]
PictureOption = Annotated[
    Path | None, typer.Option("--picture", help="Draw time against cost into this .png or .svg file.")
]


@ends_at_interrupt
def recommend_command(
    job: JobFileArgument = None,
    again: AgainOption = None,
    apply: ApplyOption = False,
    deadline: DeadlineOption = None,
    budget: Annotated[float | None, typer.Option("--budget", min=0, help="Spend at most this many USD.")] = None,
    profile: ProfileOption = None,
    spot: Annotated[bool, typer.Option("--spot", help="Also consider spot machines, at typical prices.")] = False,
    network: NetworkOption = None,
    setting: SetOption = None,
    steps_of: StepsOfOption = None,
    picture: PictureOption = None,
    launch: LaunchOption = False,
    yes: LaunchYesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Recommend machines for a job. Needs no server, except for --steps-of and --job.

    Exit code 1: no set of machines keeps the deadline and the budget with confidence.
    """
    if job is None or again is not None:
        _plan_again(again, profile or [], network, apply=apply)
        return
    from optimizer.planning.machine_choice import RunGoal
    from optimizer.planning.machine_recommendation import RecommendationTerms, recommend_machines
    from walras.cli.command_fields import MachineSettings

    said = read_settings(MachineSettings, setting)
    goal = RunGoal(parse_length_option(deadline, "--deadline"), budget)
    terms = RecommendationTerms(
        precision=said.precision,
        spot=spot,
        network_bytes_per_s=bytes_per_s(network if said.obtained is None else said.obtained),
        revocations_per_h=said.revocations_per_h,
        most=said.machines,
        mixed=said.mixed,
        cloud=said.cloud,
    )
    verdict = _network_verdict(network, said.obtained)
    known = read_catalog(said.catalog)
    profiles = read_profiles(profile or [])
    found = recommend_machines(_job_spec(job, steps_of), profiles, known, terms, goal, said.batch)
    if found.recommendation is None:
        raise UserError(
            _no_setup_message(found), field="JOB", fix="profile the job (--profile), or widen what may be rented"
        )
    if picture is not None:
        draw_recommendation(picture, found, goal)
    if output is OutputFormat.JSON:
        show_json(recommendation_data(found, verdict))
    else:
        show_recommendation(found, verdict)
    if not found.recommendation.kept:
        raise typer.Exit(EXIT_NOT_KEPT)
    if launch:
        launch_command(found, known, job, goal, profile or [], network, yes=yes)


def _plan_again(again: str | None, profiles: list[Path], network: float | None, *, apply: bool) -> None:
    """Raises UserError where neither a file nor a job is named; ends the command with 1 where the goal is missed."""
    if again is None:
        raise UserError("no job is named", field="JOB", fix="give a job file, or --job NUMBER of one that runs")
    if not replan_command(again, profiles, network, apply=apply).keeps:
        raise typer.Exit(EXIT_NOT_KEPT)


def _job_spec(path: Path, steps_of: str | None) -> "JobSpec":
    """Returns the job of the file, with the work of another job if one is named."""
    from walras.spec.job_spec import parse_spec

    spec = parse_spec(_job_bytes(path), source=str(path))
    if steps_of is None:
        return spec

    spec, message = with_steps_of_job(steps_of, spec)
    warn(f"walras: {message}")
    return spec


def _network_verdict(network: float | None, obtained: float | None) -> "ObtainedNetwork | None":
    """Returns whether running machines are connected as planned, or None if no bandwidth was measured."""
    if obtained is None:
        return None
    if network is None:
        raise UserError("what was obtained is compared with what was planned", field="obtained", fix="add --network")
    from optimizer.prediction.step_time import ObtainedNetwork

    return ObtainedNetwork(network * GBIT, obtained * GBIT)


def _job_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", field="JOB", fix="check the path") from None


def _no_setup_message(found: "MachineRecommendation") -> str:
    reasons = "".join(f"\n  {name}: {why}" for name, why in list(found.left_out.items())[:LEFT_OUT_MOST])
    return f"nothing that may be rented is known to run {found.work.kind.name}{reasons}"


_LAUNCH_OPTION = "--launch"
#: The provider whose machines are processes of this one: they have no accelerator, and pace their steps.
_LOCAL = "local"


@dataclass(frozen=True, slots=True)
class PoolLaunch:
    """What the server must add before the job can run there."""

    pool_id: str
    machines: int
    #: The fields of a new pool; None: the pool exists.
    added: Mapping[str, Any] | None
    #: The quota to which an existing pool must be raised; None: its quota suffices.
    quota: int | None
    #: Whether a process of the server's machine stands for each rented machine.
    is_rehearsal: bool = False

    @property
    def words(self) -> str:
        """What is done, in words."""
        words = f"add pool {self.pool_id} with quota {self.machines}" if self.added is not None else ""
        words = words or f"use {self.pool_id}" + (f" with quota {self.quota}" if self.quota is not None else "")
        return f"rehearsal (processes of the server's machine, not billed): {words}" if self.is_rehearsal else words


def pool_launch(found: "MachineRecommendation", known: "Catalog", pools: "Sequence[PoolView]") -> PoolLaunch:
    """Returns the pool of a recommendation. Raises UserError for a gang of several types."""
    assert found.recommendation is not None, "a launch is of something to take"
    used = [
        (machine.offer, count)
        for machine, count in zip(found.machines, found.recommendation.setup.counts, strict=True)
        if count
    ]
    if len(used) > 1:
        raise UserError("a gang of several types is of several pools", field=_LAUNCH_OPTION, fix="leave --mixed out")
    ((offer, machines),) = used
    name = offer.name.removesuffix(" spot")
    sold = next(each for each in known.offers() if f"{each.cloud} {each.instance} {each.region}" == name)
    market = Market.SPOT if name != offer.name else Market.ON_DEMAND
    provider = _provider_of(sold, pools)
    zone, is_rehearsal = _zone_of(sold, provider, pools), provider == _LOCAL
    pool_id = f"{sold.instance}/{market}/{zone}"
    there = next((each for each in pools if each.pool_id == pool_id), None)
    if there is not None:
        wanted = machines + (there.machines + there.coming if there.jobs else 0)
        quota = wanted if there.quota < wanted else None
        return PoolLaunch(pool_id, machines, None, quota, is_rehearsal=there.provider == _LOCAL)
    added = {
        "shape": sold.instance,
        "accelerator": sold.accelerator,
        "accelerators": sold.accelerators,
        "cpus": sold.cpus,
        "memory": sold.memory,
        "market": str(market),
        "zone": zone,
        "provider": provider,
        "usd_per_h": 0.0 if is_rehearsal else offer.usd_per_h,
        "quota": machines,
        "emulated": is_rehearsal,
    }
    return PoolLaunch(pool_id, machines, added, None, is_rehearsal)


def _provider_of(sold: "CatalogInstance", pools: "Sequence[PoolView]") -> str:
    """Returns the provider named as the cloud is; on a server that only rehearses, the one that emulates clouds."""
    named = {each.provider for each in pools if each.provider}
    return _LOCAL if named == {_LOCAL} else sold.cloud


def _zone_of(sold: "CatalogInstance", provider: str, pools: "Sequence[PoolView]") -> str:
    """Returns a zone of the region in which the provider has a pool already, else the region itself."""
    zones = sorted(each.zone for each in pools if each.provider == provider and each.zone.startswith(sold.region))
    return zones[0] if zones else sold.region


def launch_command(
    found: "MachineRecommendation",
    known: "Catalog",
    job: Path,
    goal: "RunGoal",
    profiles: list[Path],
    network_gbit: float | None,
    *,
    yes: bool,
) -> None:
    """Asks, adds the pool or raises its quota, and submits the job with a plan that is limited to it.

    Raises UserError without a goal, where nobody can be asked, and what the server refuses.
    """
    goals = [] if goal.deadline_s is None else [f"deadline={goal.deadline_s:.0f}s"]
    goals += [] if goal.budget_usd is None else [f"budget={goal.budget_usd:g}"]
    if not goals:
        raise UserError("a job is launched for a goal", field=_LAUNCH_OPTION, fix="add --deadline or --budget")

    step = pool_launch(found, known, with_client(lambda client: client.pools()))
    words = step.words
    if not yes:
        if not sys.stdin.isatty():
            raise UserError(f"nobody can be asked whether to {words}", field=_LAUNCH_OPTION, fix="add --yes")
        typer.confirm(f"{words} and submit the job?", abort=True)

    async def prepare(client: "Client") -> None:
        if step.added is not None:
            await client.add_pool(step.added)
        elif step.quota is not None:
            await client.change_pool(step.pool_id, quota=step.quota)

    with_client(prepare)
    show_line(f"{words}: done" if step.added is not None or step.quota is not None else words)
    limit = [f'resources.pools=["{step.pool_id}"]']
    submit_command(str(job), setting=limit, recommend=",".join(goals), profile=profiles, network=network_gbit, yes=True)
