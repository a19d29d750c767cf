"""`walras simulate`: runs workloads through the scheduler in virtual time, compares policies, sweeps grids, replays
live runs from their journals, and draws the figures of runs that are over.

`walras simulate whatif` predicts the effect of a change before anything is done. `walras simulate workload` generates
traces of jobs, converts them to the native format, and describes them.
"""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import (
    OutputOption,
    SetOption,
    example_or_path,
    parse_length_option,
    read_settings,
    settings_command,
)
from walras.cli.forecast_text import show_what_if
from walras.cli.job_files import read_job_file
from walras.cli.policy_commands import policy_mapping, recording_of
from walras.cli.session import with_client
from walras.cli.terminal_output import (
    OutputFormat,
    ends_at_interrupt,
    exit_with,
    show_as_json,
    show_columns,
    show_json,
    show_line,
    warn,
)
from walras.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulator.reports.repeated_runs import ParallelWorkers
    from simulator.workloads.trace_source import SkippedRows
    from walras.resources.what_if import WhatIfRequest
    from walras.spec.job_spec import JobSpec


WorkloadArgument = Annotated[
    str,
    typer.Argument(metavar="WORKLOAD", help="A workload file, a trace, a shipped workload's name, or generate:NAME."),
]
_MOST_AT_ONCE = 1024
_FIGURES = "jct, slowdown, fairness, waiting, utilisation, prices, market-prices, money, means, loads, timeline"

simulate_commands = typer.Typer(help="Simulate workloads in virtual time. Needs no server.", no_args_is_help=True)


class BenchName(StrEnum):
    SMALL = "small"
    FULL = "full"


ClusterOption = Annotated[str, typer.Option("--cluster", help="A cluster file, or the name of a shipped cluster.")]
PolicyOption = Annotated[str, typer.Option("--policy", help="A policy name or a policy file.")]
SeedsOption = Annotated[str, typer.Option("--seeds", help="Seeds: a range (0-4) or a list (1,3,5); one run each.")]
ParallelRunsOption = Annotated[
    str,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N|ADDRESS",
        help="Runs in parallel, or the Dask cluster that has them: tcp://HOST:PORT.",
    ),
]
_OF_RUNS = settings_command("simulator.reports.run_spec:RunSettings")
_OF_STUDIES = settings_command("simulator.reports.run_spec:StudySettings")


def _workers(jobs: str) -> "ParallelWorkers":
    """Returns who executes runs. Raises UserError for what is neither a number nor an address."""
    from simulator.reports.repeated_runs import ParallelWorkers

    if "://" in jobs:
        return ParallelWorkers(1, jobs)
    if not (jobs.isascii() and jobs.isdecimal() and 1 <= int(jobs[:9]) <= _MOST_AT_ONCE):
        fix = f"write 1 to {_MOST_AT_ONCE}, or tcp://HOST:PORT of a Dask scheduler"
        raise UserError(f"{jobs[:40]!r} is no number of runs", field="--jobs", fix=fix)
    return ParallelWorkers(int(jobs))


@simulate_commands.command("run", cls=_OF_RUNS)
@ends_at_interrupt
def simulate_run_command(
    workload: WorkloadArgument,
    cluster: ClusterOption,
    policy: PolicyOption = "walras",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of all random draws.")] = 0,
    setting: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for summary, jobs, events, timeline and an HTML report.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a workload under one policy in virtual time, and print its metrics."""
    from simulator.reports.run_spec import RunSettings
    from simulator.simulate_actions import simulate_run

    settings = read_settings(RunSettings, setting)
    exit_with(simulate_run(settings.run(workload, cluster, policy, seed, settings.rate), output.value, out))


@simulate_commands.command("compare", cls=_OF_RUNS)
@ends_at_interrupt
def simulate_compare_command(
    workload: WorkloadArgument,
    cluster: ClusterOption,
    policy: Annotated[
        list[str], typer.Option("--policy", help="A policy name or a policy file; repeat it for each policy.")
    ],
    seeds: SeedsOption = "0",
    setting: SetOption = None,
    jobs: ParallelRunsOption = "1",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for one HTML page of all policies, its figures' data, and a LaTeX table."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate several policies on the same jobs and the same random draws, seed by seed, and compare them."""
    from simulator.reports.run_spec import RunSettings
    from simulator.simulate_actions import simulate_compare

    settings = read_settings(RunSettings, setting)
    template = settings.run(workload, cluster, policy[0], 0, settings.rate)
    exit_with(simulate_compare(template, policy, seeds, _workers(jobs), output.value, out))


@simulate_commands.command("sweep", cls=_OF_STUDIES)
@ends_at_interrupt
def simulate_sweep_command(
    spec: Annotated[
        Path | None, typer.Argument(metavar="[SPEC]", help="A grid in a YAML file; options override its fields.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of results and page; runs that are there are not repeated.")
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
    setting: SetOption = None,
    jobs: ParallelRunsOption = "1",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a grid of workloads x clusters x policies x rates x seeds. An interrupted sweep resumes."""
    axes = {"workloads": workload, "clusters": cluster, "policies": policy, "rates": rate, "seeds": seeds}
    given: dict[str, Any] = {name: value for name, value in axes.items() if value not in (None, [])}
    if spec is None and not given and not setting:
        raise UserError("nothing to run", field="SPEC", fix="give a grid in a YAML file, or --workload, --cluster ...")
    from simulator.reports.run_spec import StudySettings
    from simulator.simulate_actions import simulate_sweep

    given |= read_settings(StudySettings, setting).model_dump(exclude_unset=True)
    exit_with(simulate_sweep(spec, given, out, _workers(jobs), output.value))


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
    jobs: ParallelRunsOption = "1",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run the main policies on a fixed set of workloads and clusters, each scored against its proved bound."""
    from simulator.simulate_actions import simulate_bench

    exit_with(simulate_bench(name.value, out, _workers(jobs), output.value, data))


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
        str | None, typer.Option("--from", help="With --policy: switch to it this long after the first submission.")
    ] = None,
    seeds: SeedsOption = "0-4",
    export: Annotated[
        Path | None, typer.Option("--export", help="Also write the recording to this file, to replay it elsewhere.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate a live run again from its journal, possibly under another policy, and compare completion times."""
    from simulator.simulate_actions import simulate_replay

    recording = recording_of(source)
    from_s = parse_length_option(from_, "--from") or 0.0
    if export is not None:
        from simulator.reports.recorded_runs import write_recording

        write_recording(recording, export)
    exit_with(simulate_replay(recording, policy=policy, from_s=from_s, seeds=seeds, output=output.value))


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
        str, typer.Argument(metavar="FIGURE", help=f"One of {_FIGURES}; timeline of one run, loads of a sweep.")
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


def what_if_command(
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="NxTYPE[:MARKET]", help="Accelerators more, such as 4xh100 or 8xa100:spot."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="NAME", help="Without this machine, pool or accelerator type."),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME|FILE",
            help="With this policy in force: a name, a policy file, or example:NAME.",
            callback=example_or_path("policies"),
        ),
    ] = None,
    submit: Annotated[
        list[Path] | None, typer.Option("--submit", metavar="FILE", help="With this job in the queue.")
    ] = None,
    no_limit: Annotated[
        list[str] | None, typer.Option("--no-limit", metavar="PROJECT", help="Without the limits set on a project.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Forecast what other machines, another policy, another job or no limit would change; nothing is changed."""
    added, other = [parse_added(each) for each in add or ()], None if policy is None else policy_mapping(policy)
    jobs = (read_job_file(str(each), [], [], []) for each in submit or ())
    asked = what_if_request(added, remove, other, jobs, no_limit)
    found = with_client(lambda client: client.what_if(asked))
    if not show_as_json(found, output):
        show_what_if(found)


def parse_added(text: str) -> dict[str, Any]:
    """Returns `4xh100:spot` as a field of the request. Raises UserError."""
    count, times, rest = text.partition("x")
    accelerator, colon, market = rest.partition(":")
    markets = ("owned", "spot", "on_demand")
    if not times or not count.isdecimal() or not accelerator or (colon and market.replace("-", "_") not in markets):
        raise UserError(f"{text!r} says no number of accelerators of a type", field="--add", fix="such as 4xh100:spot")
    added: dict[str, Any] = {"accelerator": accelerator, "accelerators": int(count)}
    return added | ({"market": market.replace("-", "_")} if colon else {})


def what_if_request(
    add: list[dict[str, Any]],
    remove: list[str] | None,
    policy: dict[str, Any] | None,
    submit: "Iterable[JobSpec]",
    no_limit: list[str] | None,
) -> "WhatIfRequest":
    """Returns the request for what would be different; `add`: as `parse_added` returns each."""
    from walras.resources.what_if import WhatIfRequest
    from walras.spec.job_spec import spec_mapping

    return WhatIfRequest.model_validate(
        {
            "add": add,
            "remove": remove or [],
            "policy": policy,
            "submit": [spec_mapping(each) for each in submit],
            "no_limit": no_limit or [],
        }
    )


workload_commands = typer.Typer(
    help="Generate, convert and describe workload traces. Needs no server.", no_args_is_help=True
)

ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


@workload_commands.command("generate", cls=settings_command("simulator.workloads.trace_source:GeneratorSettings"))
def workload_generate_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A generator of `walras simulate workload list`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .csv or .jsonl, optionally with .gz.")],
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Number of jobs.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Arrivals per hour; 0: all at once.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all random draws.")] = 0,
    setting: SetOption = None,
    force: ForceOption = False,
) -> None:
    """Generate a workload from a stated distribution; the same seed gives the same file."""
    from simulator.workloads.trace_source import GeneratorSettings
    from simulator.workloads.workload_actions import generate_trace

    said = read_settings(GeneratorSettings, setting).model_dump()
    written = generate_trace(name, out, force=force, jobs=jobs, rate_per_h=rate, seed=seed, **said)
    show_line(f"{written.jobs} jobs in {out}")


@workload_commands.command("convert", cls=settings_command("simulator.workloads.trace_source:ConvertSettings"))
def workload_convert_command(
    file: Annotated[str, typer.Argument(metavar="IN", help="A trace, a workload file, or a shipped name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .csv or .jsonl, optionally with .gz.")],
    setting: SetOption = None,
    force: ForceOption = False,
) -> None:
    """Convert a trace to the native format."""
    from simulator.workloads.trace_source import ConvertSettings
    from simulator.workloads.workload_actions import convert_trace

    written = convert_trace(file, out, read_settings(ConvertSettings, setting), force=force)
    _warn_of_skipped_rows(written.skipped)
    show_line(f"{written.jobs} jobs of {file} ({written.format}) in {out}")


@workload_commands.command("describe", cls=settings_command("simulator.workloads.trace_source:DescribeSettings"))
def workload_describe_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace, a workload file, or a shipped name.")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file or a shipped name: also compute the load on it.")
    ] = None,
    setting: SetOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the trace into this .png or .svg file.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Describe a trace: jobs, arrivals, gang sizes, run times, kinds, load."""
    from simulator.workloads.trace_source import DescribeSettings
    from simulator.workloads.workload_actions import (
        describe_trace_file,
        trace_description_json,
        trace_description_tables,
    )

    settings = read_settings(DescribeSettings, setting)
    description, skipped = describe_trace_file(file, settings, cluster=cluster, plot=plot)
    _warn_of_skipped_rows(skipped)
    if output is OutputFormat.JSON:
        show_json(trace_description_json(description))
        return
    for part in trace_description_tables(description):
        if part.title:
            show_line("")
        titles = "> | ".join(part.columns).replace(">", "", 1) + ">" if part.title else "what |"
        show_columns(titles, part.rows, header=bool(part.title))
    if plot is not None:
        show_line("")
        show_line(f"drawn in {plot}")


@workload_commands.command("list")
def workload_list_command(output: OutputOption = OutputFormat.TABLE) -> None:
    """List readable formats, generators, worlds of runs with their policies, and the workloads that can be had by name.

    Of workloads the licence and the source are told.
    """
    from simulator.simulate_actions import worlds_catalogue
    from simulator.workloads.workload_actions import format_catalogue, workload_catalog

    data: list[dict[str, Any]] = [
        {"what": what, "name": name, "about": about} for what, name, about in format_catalogue()
    ]
    for world, about, policies in worlds_catalogue():
        data.append({"what": "world", "name": world, "about": about, "policies": policies})
    for each in workload_catalog().values():
        found = asdict(each)
        found = {name: found[name] for name in ("name", "about", "licence", "source", "format", "address", "sha256")}
        data.append({"what": "workload, to fetch" if each.address else "workload, here", **found})
    rows = [
        [each["what"], each["name"], ": ".join([each["about"], *filter(None, [", ".join(each.get("policies", ()))])]),
         each.get("licence", ""), each.get("source", "")]
        for each in data
    ]  # fmt: skip
    show_columns("WHAT | NAME | ABOUT | LICENCE | SOURCE", rows, data, output)


@workload_commands.command("get")
def workload_get_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A workload that `walras simulate workload list` names.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder to write it to.")] = Path(),
    force: ForceOption = False,
) -> None:
    """Get a workload by its name: a copy of one that comes with Walras, or a published one from its publisher."""
    from simulator.workloads.workload_actions import get_workload

    got, path = get_workload(name, to, force=force)
    origin = f"from {got.source}, SHA-256 as recorded" if got.address else "as it comes with Walras"
    show_line(f"{path}: {got.about}; {got.licence}, {origin}; format {got.format}")


@workload_commands.command("from-slurm")
def workload_from_slurm_command(
    queue: Annotated[
        Path, typer.Argument(metavar="SQUEUE", help="Output of squeue -a -O COLUMNS, as docs/workloads.md has it.")
    ],
    machines: Annotated[Path, typer.Argument(metavar="SINFO", help="Output of: sinfo -a -N -o '%N|%G|%c|%m|%T'")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Trace to write: .csv or .jsonl, optionally with .gz.")],
    cluster: Annotated[Path, typer.Option("--cluster", help="Cluster file to write: .yaml.")],
    used: Annotated[
        float,
        typer.Option("--used", metavar="PART", help="Part of the time asked for that jobs really take, such as 0.3."),
    ] = 1.0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Turn a snapshot of a Slurm queue into a trace and a cluster file, to simulate what Walras would do with it."""
    from simulator.workloads.slurm_snapshot import read_slurm_snapshot, write_snapshot

    snapshot = read_slurm_snapshot(queue, machines)
    written = write_snapshot(snapshot, out, cluster, used=used, force=force)
    if written.skipped.count:
        warn(f"walras: {written.skipped.count} were left out; the first of them:", *written.skipped.first)
    show_line(f"{written.jobs} jobs, {written.running} of them running, in {out}")
    show_line(f"{written.machines} machines with {written.accelerators} accelerators in {cluster}")


def _warn_of_skipped_rows(skipped: "SkippedRows") -> None:
    if skipped.count:
        warn(f"walras: {skipped.count} rows were skipped; the first of them:", *skipped.first)
