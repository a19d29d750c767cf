"""`walras workload`: generates traces of jobs, converts them to the native format, and describes them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import OutputOption
from walras.cli.terminal_output import Column, Listing, OutputFormat, show_json, show_line, show_listing, warn

if TYPE_CHECKING:
    from simulator.workloads.trace import SkippedRows


workload_commands = typer.Typer(help="Traces of jobs for the simulator.", no_args_is_help=True)

FromOption = Annotated[
    str | None, typer.Option("--from", help="The file's format, where its ending and first line do not tell.")
]
CountBadRowsOption = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read; their number is told.")
]
SortOption = Annotated[bool, typer.Option("--sort", help="Put the jobs in order of arrival first.")]
OnlyOption = Annotated[
    str, typer.Option("--only", help="Of a file of several traces: the one named so in column `cluster`.")
]
TraceSpeedsOption = Annotated[
    Path | None, typer.Option("--speeds", help="Throughput table in Gavel's format, or laws (YAML).")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


@workload_commands.command("generate")
def workload_generate_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A generator; `walras workload list` names them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .csv or .jsonl, maybe with .gz.")],
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="How many.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Arrivals per hour; 0: all at once.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")] = 0,
    gangs: Annotated[
        bool | None, typer.Option("--gangs/--no-gangs", help="Jobs of up to 8 accelerators, or of one.")
    ] = None,
    priorities: Annotated[bool, typer.Option("--priorities", help="Weight 5 for one job in five.")] = False,
    slos: Annotated[bool, typer.Option("--slos", help="Deadlines of 1.2, 2 or 10 times the run time.")] = False,
    stretch: Annotated[float, typer.Option("--stretch", help="Multiply durations by this.")] = 1.0,
    speeds: TraceSpeedsOption = None,
    force: ForceOption = False,
) -> None:
    """Make jobs up from a stated distribution. The same seed gives the same file."""
    from simulator.workloads.workload_actions import generate_trace

    written = generate_trace(
        name,
        out,
        speeds=speeds,
        force=force,
        jobs=jobs,
        rate_per_h=rate,
        seed=seed,
        gangs=gangs,
        priorities=priorities,
        slos=slos,
        stretch=stretch,
    )
    show_line(f"{written.jobs} jobs in {out}")


@workload_commands.command("convert")
def workload_convert_command(
    file: Annotated[str, typer.Argument(metavar="IN", help="A trace, a workload file, or a shipped name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .csv or .jsonl, maybe with .gz.")],
    from_format: FromOption = None,
    skip_bad_rows: CountBadRowsOption = False,
    sort: SortOption = False,
    only: OnlyOption = "",
    seeded_speeds: Annotated[
        str | None,
        typer.Option("--seeded-speeds", metavar="CLUSTER", help="Draw speeds for the types of this cluster."),
    ] = None,
    kinds: Annotated[int, typer.Option("--kinds", min=1, max=10_000, help="With it: kinds to deal jobs out to.")] = 26,
    seed: Annotated[int, typer.Option("--seed", help="With it: of what is drawn.")] = 0,
    force: ForceOption = False,
) -> None:
    """Bring a trace into Walras' own form."""
    from simulator.workloads.trace_source import ReadOptions
    from simulator.workloads.workload_actions import SeededSpeeds, convert_trace

    reading = ReadOptions(skip_bad_rows=skip_bad_rows, sort=sort, only=only)
    seeded = SeededSpeeds(seeded_speeds, kinds, seed) if seeded_speeds is not None else None
    written = convert_trace(file, out, format=from_format, reading=reading, seeded=seeded, force=force)
    _warn_of_skipped_rows(written.skipped)
    show_line(f"{written.jobs} jobs of {file} ({written.format}) in {out}")


@workload_commands.command("describe")
def workload_describe_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace, a workload file, or a shipped name.")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file or a shipped name: the load on it is told.")
    ] = None,
    speeds: TraceSpeedsOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it: a .png or .svg file.")] = None,
    from_format: FromOption = None,
    skip_bad_rows: CountBadRowsOption = False,
    sort: SortOption = False,
    only: OnlyOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell what a trace is like: jobs, arrivals, gangs, lengths, kinds, load."""
    from simulator.workloads.trace_source import ReadOptions
    from simulator.workloads.workload_actions import (
        describe_trace_file,
        trace_description_data,
        trace_description_tables,
    )

    reading = ReadOptions(skip_bad_rows=skip_bad_rows, sort=sort, only=only)
    description, skipped = describe_trace_file(
        file, format=from_format, reading=reading, cluster=cluster, speeds=speeds, plot=plot
    )
    _warn_of_skipped_rows(skipped)
    if output is OutputFormat.JSON:
        show_json(trace_description_data(description))
        return
    for part in trace_description_tables(description):
        columns = [Column(title, right=bool(position)) for position, title in enumerate(part.columns)]
        if part.title:
            show_line("")
        else:
            columns = [Column("what"), Column("")]
        show_listing(Listing(columns, part.rows, None), OutputFormat.TABLE, header=bool(part.title))
    if plot is not None:
        show_line("")
        show_line(f"drawn in {plot}")


@workload_commands.command("list")
def workload_list_command(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the formats that can be read and the generators."""
    from simulator.workloads.workload_actions import format_catalogue

    rows = format_catalogue()
    data = [{"what": what, "name": name, "about": about} for what, name, about in rows]
    show_listing(Listing([Column("WHAT"), Column("NAME"), Column("ABOUT")], rows, data), output)


def _warn_of_skipped_rows(skipped: "SkippedRows") -> None:
    if skipped.count:
        warn(f"walras: {skipped.count} rows were skipped; the first of them:", *skipped.first)
