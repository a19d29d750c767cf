"""`walras simulate`: runs workloads through the scheduler in virtual time, compares policies, sweeps grids, and
replays live runs from their journals.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from walras.cli.arguments import OutputOption, parse_length_option
from walras.cli.terminal_output import OutputFormat, exit_with
from walras.errors import UserError

simulate_commands = typer.Typer(help="Run workloads in virtual time.", no_args_is_help=True)


class BoundsName(StrEnum):
    NONE = "none"
    CHEAP = "cheap"
    ALL = "all"


class BackendName(StrEnum):
    LOKY = "loky"
    DASK = "dask"


WorkloadArgument = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="A workload file, a trace, one that comes with Walras, generate:NAME.")
]
ClusterOption = Annotated[str, typer.Option("--cluster", help="A cluster that comes with Walras, or a cluster file.")]
PolicyOption = Annotated[str, typer.Option("--policy", help="A policy's name, or a policy file.")]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="The workload's format, where its ending and first line do not tell.")
]
SkipBadRowsOption = Annotated[bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read.")]
SortOption = Annotated[bool, typer.Option("--sort", help="Put the jobs in order of arrival first.")]
OnlyOption = Annotated[
    str, typer.Option("--only", help="Of a file of several traces: the one named so in column `cluster`.")
]
SpeedsOption = Annotated[str | None, typer.Option("--speeds", help="Of a trace: a throughput table, or laws (YAML).")]
MeasuredOption = Annotated[str | None, typer.Option("--measured", help="Speeds and costs measured in a live run.")]
ConditionsOption = Annotated[
    str | None, typer.Option("--conditions", help="A file or a shipped name: costs, noise, faults, markets, ...")
]
WorldOption = Annotated[
    str, typer.Option("--world", help="Whose rules and physics: walras, gavel, pollux, sia, shockwave (see worlds).")
]
LearningOption = Annotated[
    str | None, typer.Option("--learning", help="Of world sia: how applications learn, if not below --speeds.")
]
WindowOption = Annotated[
    str | None, typer.Option("--window", help="Figures over jobs 1001-2000 alone, in order of arrival; all run.")
]
TraceJobsOption = Annotated[int | None, typer.Option("--trace-jobs", min=1, help="Of generate:NAME: how many jobs.")]
RateOption = Annotated[
    float | None, typer.Option("--rate", min=0, help="Of generate:NAME: arrivals per hour; 0: at once.")
]
GangsOption = Annotated[
    bool | None, typer.Option("--gangs/--no-gangs", help="Of generate:NAME: jobs of several, or of one.")
]
PrioritiesOption = Annotated[bool, typer.Option("--priorities", help="Of generate:NAME: weight 5 for one job in five.")]
SlosOption = Annotated[bool, typer.Option("--slos", help="Of generate:NAME: deadlines.")]
StretchOption = Annotated[float, typer.Option("--stretch", help="Of generate:NAME: multiply durations by this.")]
BoundsOption = Annotated[
    BoundsName, typer.Option("--bounds", help="Lower bounds: none, those cheap at this size, or all.")
]
FairnessOption = Annotated[
    bool, typer.Option("--fairness", help="Simulate the policy isolated too, to be compared with.")
]
SeedsOption = Annotated[str, typer.Option("--seeds", help="0-4, or 1,3,5: one run each.")]
ParallelRunsOption = Annotated[int, typer.Option("--jobs", "-j", min=1, max=1024, help="Runs at a time.")]
BackendOption = Annotated[BackendName, typer.Option("--backend", help="Processes of this machine, or a Dask cluster.")]
AddressOption = Annotated[str, typer.Option("--address", help="Of the Dask scheduler: tcp://HOST:PORT.")]


@simulate_commands.command("run")
def simulate_run_command(
    workload: WorkloadArgument,
    cluster: ClusterOption,
    policy: PolicyOption = "walras",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of everything that is random.")] = 0,
    format: FormatOption = None,
    skip_bad_rows: SkipBadRowsOption = False,
    sort: SortOption = False,
    only: OnlyOption = "",
    speeds: SpeedsOption = None,
    measured: MeasuredOption = None,
    conditions: ConditionsOption = None,
    trace_jobs: TraceJobsOption = None,
    rate: RateOption = None,
    gangs: GangsOption = None,
    priorities: PrioritiesOption = False,
    slos: SlosOption = False,
    stretch: StretchOption = 1.0,
    bounds: BoundsOption = BoundsName.CHEAP,
    fairness: FairnessOption = False,
    world: WorldOption = "walras",
    learning: LearningOption = None,
    window: WindowOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for summary, jobs, events, timeline and an HTML report.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a workload through the scheduler in virtual time, and print what came of it."""
    from simulator.reports.baselines import BoundsChoice
    from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource
    from simulator.simulate_actions import simulate_run
    from simulator.workloads.trace_source import ReadOptions

    reading = ReadOptions(skip_bad_rows=skip_bad_rows, sort=sort, only=only)
    made = GeneratorOptions(trace_jobs, rate, gangs, priorities, slos, stretch)
    source = WorkloadSource(workload, format, reading, speeds, measured, learning, made)
    cell = RunSpec(source, cluster, policy, seed, BoundsChoice(bounds.value), fairness, conditions, world, window)
    exit_with(simulate_run(cell, output.value, out))


@simulate_commands.command("report")
def simulate_report_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `walras simulate run --out` left.")],
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; else report.html in the folder.")] = None,
) -> None:
    """Write the HTML report of a run again, without running it."""
    from simulator.simulate_actions import simulate_report

    exit_with(simulate_report(folder, out))


@simulate_commands.command("compare")
def simulate_compare_command(
    workload: WorkloadArgument,
    cluster: ClusterOption,
    policy: Annotated[list[str], typer.Option("--policy", help="A name or a file; give several.")],
    seeds: SeedsOption = "0",
    format: FormatOption = None,
    skip_bad_rows: SkipBadRowsOption = False,
    sort: SortOption = False,
    only: OnlyOption = "",
    speeds: SpeedsOption = None,
    measured: MeasuredOption = None,
    conditions: ConditionsOption = None,
    trace_jobs: TraceJobsOption = None,
    rate: RateOption = None,
    gangs: GangsOption = None,
    priorities: PrioritiesOption = False,
    slos: SlosOption = False,
    stretch: StretchOption = 1.0,
    bounds: BoundsOption = BoundsName.CHEAP,
    fairness: FairnessOption = False,
    world: WorldOption = "walras",
    learning: LearningOption = None,
    window: WindowOption = None,
    jobs: ParallelRunsOption = 1,
    backend: BackendOption = BackendName.LOKY,
    address: AddressOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run several policies on the same jobs and the same chance, seed by seed, and tell what differs."""
    from simulator.reports.baselines import BoundsChoice
    from simulator.reports.repeated_runs import ParallelBackend, ParallelWorkers
    from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource
    from simulator.simulate_actions import simulate_compare
    from simulator.workloads.trace_source import ReadOptions

    reading = ReadOptions(skip_bad_rows=skip_bad_rows, sort=sort, only=only)
    made = GeneratorOptions(trace_jobs, rate, gangs, priorities, slos, stretch)
    source = WorkloadSource(workload, format, reading, speeds, measured, learning, made)
    template = RunSpec(source, cluster, policy[0], 0, BoundsChoice(bounds.value), fairness, conditions, world, window)
    workers = ParallelWorkers(jobs, ParallelBackend(backend.value), address)
    exit_with(simulate_compare(template, policy, seeds, workers, output.value))


@simulate_commands.command("sweep")
def simulate_sweep_command(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="A grid in a YAML file; options replace what it says.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the runs; those that are there are not run again.")
    ] = Path("sweep"),
    workload: Annotated[list[str] | None, typer.Option("--workload", help="A file, a name, generate:NAME.")] = None,
    cluster: Annotated[list[str] | None, typer.Option("--cluster", help="A name or a file.")] = None,
    policy: Annotated[list[str] | None, typer.Option("--policy", help="A name or a file.")] = None,
    rate: Annotated[list[float] | None, typer.Option("--rate", min=0, help="Arrivals per hour, if generated.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="0-4, or 1,3,5.")] = None,
    trace_jobs: TraceJobsOption = None,
    speeds: SpeedsOption = None,
    conditions: ConditionsOption = None,
    format: FormatOption = None,
    bounds: Annotated[BoundsName | None, typer.Option("--bounds", help="Lower bounds: none, cheap, all.")] = None,
    fairness: Annotated[
        bool | None, typer.Option("--fairness/--no-fairness", help="Simulate the policy isolated too.")
    ] = None,
    world: Annotated[str | None, typer.Option("--world", help="Whose rules and physics; see worlds.")] = None,
    learning: LearningOption = None,
    window: WindowOption = None,
    jobs: ParallelRunsOption = 1,
    backend: BackendOption = BackendName.LOKY,
    address: AddressOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a grid: workloads x clusters x policies x rates x seeds. A sweep that was broken off goes on where it was."""
    options: dict[str, Any] = {
        "workloads": workload,
        "clusters": cluster,
        "policies": policy,
        "rates": rate,
        "seeds": seeds,
        "trace_jobs": trace_jobs,
        "speeds": speeds,
        "conditions": conditions,
        "world": world,
        "learning": learning,
        "window": window,
        "format": format,
        "bounds": bounds.value if bounds is not None else None,
        "fairness": fairness,
    }
    given = {name: value for name, value in options.items() if value not in (None, [])}
    if spec is None and not given:
        raise UserError("nothing to run", field="SPEC", fix="give a grid in a YAML file, or --workload, --cluster ...")
    from simulator.reports.repeated_runs import ParallelBackend, ParallelWorkers
    from simulator.simulate_actions import simulate_sweep

    workers = ParallelWorkers(jobs, ParallelBackend(backend.value), address)
    exit_with(simulate_sweep(spec, given, out, workers, output.value))


@simulate_commands.command("worlds")
def simulate_worlds_command(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the worlds that --world names, and the policies that run there."""
    from simulator.simulate_actions import simulate_worlds

    exit_with(simulate_worlds(output.value))


@simulate_commands.command("replay")
def simulate_replay_command(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A server's folder, or a file made by --export.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Another policy than the run's own.")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="With --policy: so long after the first submission; until then the own."),
    ] = None,
    seeds: SeedsOption = "0-4",
    export: Annotated[
        Path | None, typer.Option("--export", help="Write what is replayed as a file, for another machine.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a live run again from its journal, maybe under another policy, and compare the completion times."""
    from simulator.reports.recording import make_recording, read_recording
    from simulator.simulate_actions import simulate_replay

    if source.is_dir():
        from scheduler.live.store.event_journal import read_run

        recording = make_recording(list(read_run(source)))
    else:
        recording = read_recording(source)
    from_s = parse_length_option(from_, "--from") or 0.0
    exit_with(simulate_replay(recording, policy=policy, from_s=from_s, seeds=seeds, export=export, output=output.value))
