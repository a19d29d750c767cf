"""`walras simulate`: runs workloads through the scheduler in virtual time, compares policies, sweeps grids, replays
live runs from their journals, and draws the figures of runs that are over.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from walras.cli.arguments import OutputOption, parse_length_option
from walras.cli.terminal_output import OutputFormat, ends_at_interrupt, exit_with
from walras.errors import UserError

if TYPE_CHECKING:
    from simulator.reports.run_spec import RunSpec, WorkloadSource
    from simulator.workloads.trace_source import ReadOptions


SkipBadRowsOption = Annotated[
    bool,
    typer.Option(
        "--skip-bad-rows",
        help="Skip bad rows, rows without a length, and jobs that no machine could hold; they are counted.",
    ),
]
SortOption = Annotated[bool, typer.Option("--sort", help="Sort the jobs by arrival time first.")]
OnlyOption = Annotated[
    str,
    typer.Option("--only", help="Of a file with several traces: use the trace with this value in column `cluster`."),
]
SinceOption = Annotated[
    str, typer.Option("--since", help="Only jobs that arrive from here on: a length into the trace (2d), or a date.")
]
UntilOption = Annotated[
    str, typer.Option("--until", help="Only jobs that arrive before: a length into the trace (5d), or a date.")
]
SampleOption = Annotated[
    float | None,
    typer.Option("--sample", metavar="PART", help="Only this part of the jobs (0.1), drawn the same every time."),
]
FirstOption = Annotated[int | None, typer.Option("--first", help="Use only the first jobs, this many.")]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="OURS=THEIRS",
        help="What the file calls a column, such as gang=num_gpus; repeatable. Unknown columns are ignored then.",
    ),
]
SlicesOption = Annotated[
    int,
    typer.Option(
        "--slices",
        metavar="N",
        help="Formats with fractions of a GPU: accelerators per GPU (7 for MIG); a fraction counts as some of them.",
    ),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="Format of the workload; default: from its file ending and first line.")
]
SpeedsOption = Annotated[
    str | None, typer.Option("--speeds", help="Throughput table or speed laws (YAML) for the jobs of a trace.")
]
TraceJobsOption = Annotated[int | None, typer.Option("--trace-jobs", min=1, help="With generate:NAME: number of jobs.")]
RateOption = Annotated[
    float | None, typer.Option("--rate", min=0, help="With generate:NAME: arrivals per hour; 0: all at once.")
]
GangsOption = Annotated[
    bool | None,
    typer.Option(
        "--gangs/--no-gangs", help="With generate:NAME: multi-accelerator jobs, or single-accelerator jobs only."
    ),
]
PrioritiesOption = Annotated[
    bool, typer.Option("--priorities", help="With generate:NAME: give one job in five weight 5.")
]
SlosOption = Annotated[bool, typer.Option("--slos", help="With generate:NAME: give jobs deadlines.")]
StretchOption = Annotated[
    float, typer.Option("--stretch", help="With generate:NAME: multiply run times by this factor.")
]
WorkloadArgument = Annotated[
    str,
    typer.Argument(metavar="WORKLOAD", help="A workload file, a trace, a shipped workload's name, or generate:NAME."),
]
MeasuredOption = Annotated[
    str | None, typer.Option("--measured", help="Speeds and costs measured in a live run (`measured.json`).")
]
LearningOption = Annotated[
    str | None,
    typer.Option(
        "--learning", help="World sia: folder with the applications' statistical efficiency; default: next to --speeds."
    ),
]


R = TypeVar("R")
_FIGURES = "jct, slowdown, fairness, waiting, utilisation, prices, market-prices, money, means, loads, timeline"

simulate_commands = typer.Typer(help="Simulate workloads in virtual time. Needs no server.", no_args_is_help=True)


class BoundsName(StrEnum):
    NONE = "none"
    CHEAP = "cheap"
    ALL = "all"


class BackendName(StrEnum):
    LOKY = "loky"
    DASK = "dask"


class BenchName(StrEnum):
    SMALL = "small"
    FULL = "full"


ClusterOption = Annotated[str, typer.Option("--cluster", help="A cluster file, or the name of a shipped cluster.")]
PolicyOption = Annotated[str, typer.Option("--policy", help="A policy name or a policy file.")]
ConditionsOption = Annotated[
    str | None, typer.Option("--conditions", help="A conditions file or a shipped name: costs, noise, faults, markets.")
]
WorldOption = Annotated[
    str, typer.Option("--world", help="Scheduling rules and physics; `walras simulate worlds` lists them.")
]
WindowOption = Annotated[
    str | None,
    typer.Option("--window", help="Report metrics for this range of arrivals only, such as 1001-2000; all jobs run."),
]
BoundsOption = Annotated[
    BoundsName, typer.Option("--bounds", help="Lower bounds to compute: none, those cheap at this size, or all.")
]
FairnessOption = Annotated[
    bool, typer.Option("--fairness", help="Also simulate the `isolated` policy, for finish-time fairness.")
]
SeedsOption = Annotated[str, typer.Option("--seeds", help="Seeds: a range (0-4) or a list (1,3,5); one run each.")]
ParallelRunsOption = Annotated[int, typer.Option("--jobs", "-j", min=1, max=1024, help="Number of runs in parallel.")]
BackendOption = Annotated[
    BackendName, typer.Option("--backend", help="Run in processes of this machine (loky), or on a Dask cluster.")
]
AddressOption = Annotated[
    str, typer.Option("--address", help="With --backend dask: address of the Dask scheduler, tcp://HOST:PORT.")
]


def with_options(**groups: Callable[..., Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Have a command take the options of a group in place of each parameter named here.

    A group is a function whose parameters are options and which makes one value of them; it may take another group's
    options in the same way. The command gets the value, its users see the options.
    """

    def decorated(command: Callable[..., R]) -> Callable[..., R]:
        taken = {name: list(inspect.signature(group).parameters) for name, group in groups.items()}

        def run(**given: Any) -> R:
            made = {name: groups[name](**{each: given.pop(each) for each in taken[name]}) for name in groups}
            return command(**given, **made)

        parameters = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in _in_place(command, groups)]
        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        # What names the groups' values is not loaded yet: the command line reads the options' own types.
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorated


def _in_place(command: Callable[..., Any], groups: dict[str, Callable[..., Any]]) -> list[inspect.Parameter]:
    """Returns the parameters of a command, those of its groups spread out. Raises TypeError where a name
    stands twice.
    """
    own = inspect.signature(command).parameters
    if missing := sorted(set(groups) - set(own)):
        raise TypeError(f"{command.__name__} has no parameter {', '.join(missing)}")
    found: list[inspect.Parameter] = []
    for name, parameter in own.items():
        found += inspect.signature(groups[name]).parameters.values() if name in groups else [parameter]
    names = [parameter.name for parameter in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TypeError(f"{command.__name__} takes {', '.join(twice)} twice")
    return found


def trace_reading(
    skip_bad_rows: SkipBadRowsOption = False,
    sort: SortOption = False,
    only: OnlyOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    sample: SampleOption = None,
    first: FirstOption = None,
    column: ColumnOption = None,
    slices: SlicesOption = 1,
) -> "ReadOptions":
    """Returns how a trace is read, and which part of it counts."""
    from simulator.workloads.trace_source import ReadOptions, parse_columns

    return ReadOptions(
        skip_bad_rows=skip_bad_rows,
        sort=sort,
        only=only,
        since=since,
        until=until,
        sample=sample,
        first=first,
        columns=parse_columns(column or ()),
        slices=slices,
    )


@with_options(reading=trace_reading)
def workload_source(
    workload: WorkloadArgument,
    reading: "ReadOptions",
    format: FormatOption = None,
    speeds: SpeedsOption = None,
    measured: MeasuredOption = None,
    learning: LearningOption = None,
    trace_jobs: TraceJobsOption = None,
    rate: RateOption = None,
    gangs: GangsOption = None,
    priorities: PrioritiesOption = False,
    slos: SlosOption = False,
    stretch: StretchOption = 1.0,
) -> "WorkloadSource":
    """Returns the jobs of a run: read from a file, or generated."""
    from simulator.reports.run_spec import GeneratorOptions, WorkloadSource

    made = GeneratorOptions(trace_jobs, rate, gangs, priorities, slos, stretch)
    return WorkloadSource(workload, format, reading, speeds, measured, learning, made)


@with_options(source=workload_source)
def run_template(
    source: "WorkloadSource",
    cluster: ClusterOption,
    conditions: ConditionsOption = None,
    bounds: BoundsOption = BoundsName.CHEAP,
    fairness: FairnessOption = False,
    world: WorldOption = "walras",
    window: WindowOption = None,
) -> "RunSpec":
    """Returns a run whose policy and seed are still to be said."""
    from simulator.reports.baselines import BoundsChoice
    from simulator.reports.run_spec import RunSpec

    return RunSpec(source, cluster, "", 0, BoundsChoice(bounds.value), fairness, conditions, world, window)


@simulate_commands.command("run")
@ends_at_interrupt
@with_options(template=run_template)
def simulate_run_command(
    *,
    policy: PolicyOption = "walras",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random draws.")] = 0,
    template: "RunSpec",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for summary, jobs, events, timeline and an HTML report.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a workload under one policy in virtual time, and print its metrics."""
    from simulator.simulate_actions import simulate_run

    exit_with(simulate_run(replace(template, policy=policy, seed=seed), output.value, out))


@simulate_commands.command("compare")
@ends_at_interrupt
@with_options(template=run_template)
def simulate_compare_command(
    *,
    policy: Annotated[
        list[str], typer.Option("--policy", help="A policy name or a policy file; repeat it for each policy.")
    ],
    seeds: SeedsOption = "0",
    template: "RunSpec",
    jobs: ParallelRunsOption = 1,
    backend: BackendOption = BackendName.LOKY,
    address: AddressOption = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for one HTML page of all policies, and the data of its figures."),
    ] = None,
    latex: Annotated[Path | None, typer.Option("--latex", help="Also write a LaTeX table into this file.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate several policies on the same jobs and the same random draws, seed by seed, and compare them."""
    from simulator.reports.repeated_runs import ParallelBackend, ParallelWorkers
    from simulator.simulate_actions import ComparedFiles, simulate_compare

    workers = ParallelWorkers(jobs, ParallelBackend(backend.value), address)
    exit_with(
        simulate_compare(
            replace(template, policy=policy[0]), policy, seeds, workers, output.value, ComparedFiles(out, latex)
        )
    )


@simulate_commands.command("sweep")
@ends_at_interrupt
def simulate_sweep_command(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="A grid in a YAML file; options override its fields.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option("--out", help="Folder of results and page; runs that are there are not repeated."),
    ] = Path("sweep"),
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="A workload file, a shipped name, or generate:NAME; repeatable."),
    ] = None,
    cluster: Annotated[
        list[str] | None, typer.Option("--cluster", help="A cluster file or a shipped name; repeatable.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", help="A policy name or a policy file; repeatable.")
    ] = None,
    rate: Annotated[
        list[float] | None, typer.Option("--rate", min=0, help="Arrivals per hour of generated workloads; repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds: a range (0-4) or a list (1,3,5).")] = None,
    trace_jobs: TraceJobsOption = None,
    speeds: SpeedsOption = None,
    conditions: ConditionsOption = None,
    format: FormatOption = None,
    bounds: Annotated[
        BoundsName | None, typer.Option("--bounds", help="Lower bounds to compute: none, cheap or all.")
    ] = None,
    fairness: Annotated[
        bool | None,
        typer.Option("--fairness/--no-fairness", help="Also simulate the `isolated` policy, for finish-time fairness."),
    ] = None,
    world: Annotated[
        str | None, typer.Option("--world", help="Scheduling rules and physics; `walras simulate worlds` lists them.")
    ] = None,
    learning: LearningOption = None,
    window: WindowOption = None,
    jobs: ParallelRunsOption = 1,
    backend: BackendOption = BackendName.LOKY,
    address: AddressOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a grid of workloads x clusters x policies x rates x seeds. An interrupted sweep resumes."""
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


@simulate_commands.command("bench")
@ends_at_interrupt
def simulate_bench_command(
    name: Annotated[BenchName, typer.Argument(metavar="NAME", help="small: minutes; full: far longer.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The result file (JSON); the same inputs give the same bytes.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder of the recorded workloads of other systems, for full.")
    ] = None,
    jobs: ParallelRunsOption = 1,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the main policies on a fixed set of grounds, each scored against its proved bound."""
    from simulator.reports.repeated_runs import ParallelWorkers
    from simulator.simulate_actions import simulate_bench

    exit_with(simulate_bench(name.value, out, ParallelWorkers(jobs), output.value, data))


@simulate_commands.command("replay")
@ends_at_interrupt
def simulate_replay_command(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A server's data folder, or a file written by --export.")
    ],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Use this policy instead of the policy of the run.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="With --policy: switch to it this long after the first submission."),
    ] = None,
    seeds: SeedsOption = "0-4",
    export: Annotated[
        Path | None, typer.Option("--export", help="Also write the recording to this file, to replay it elsewhere.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a live run again from its journal, possibly under another policy, and compare completion times."""
    from simulator.reports.recording import make_recording, read_recording
    from simulator.simulate_actions import simulate_replay

    if source.is_dir():
        from scheduler.live.store.event_journal import read_run

        recording = make_recording(list(read_run(source)))
    else:
        recording = read_recording(source)
    from_s = parse_length_option(from_, "--from") or 0.0
    exit_with(simulate_replay(recording, policy=policy, from_s=from_s, seeds=seeds, export=export, output=output.value))


@simulate_commands.command("report")
def simulate_report_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder given to `walras simulate run --out`.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; default: report.html in the folder.")
    ] = None,
) -> None:
    """Rebuild the HTML report of a finished run."""
    from simulator.simulate_actions import simulate_report

    exit_with(simulate_report(folder, out))


@simulate_commands.command("plot")
def simulate_plot_command(
    figure: Annotated[
        str,
        typer.Argument(metavar="FIGURE", help=f"One of {_FIGURES}; timeline of one run, loads of a sweep."),
    ],
    folder: Annotated[
        Path, typer.Option("--from", help="The folder given to `walras simulate run`, `compare` or `sweep` as --out.")
    ],
    out: Annotated[Path, typer.Option("--out", help="File to write: .png, .svg or .pdf.")],
    setting: Annotated[
        str | None, typer.Option("--setting", help="Of a sweep: the setting, as its page names it; default: the first.")
    ] = None,
) -> None:
    """Draw one figure of a run, a comparison or a sweep into a file."""
    from simulator.simulate_actions import simulate_plot

    exit_with(simulate_plot(figure, folder, out, setting))


@simulate_commands.command("worlds")
def simulate_worlds_command(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the worlds for --world, and the policies of each."""
    from simulator.simulate_actions import simulate_worlds

    exit_with(simulate_worlds(output.value))
