"""`walras workload generate|convert|describe|list`: traces made up, brought into our own form, and looked at."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.options import Output
from walras.cli.output import Column, Listing, OutputFormat, show_json, show_line, show_listing, warn

if TYPE_CHECKING:
    from simulator.workloads.job import Skipped

workload_commands = typer.Typer(help="Traces of jobs for the simulator.", no_args_is_help=True)

From = Annotated[
    str | None, typer.Option("--from", help="The file's format, where its ending and first line do not tell.")
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read; their number is told.")
]
Sort = Annotated[bool, typer.Option("--sort", help="Put the jobs in order of arrival first.")]
Only = Annotated[str, typer.Option("--only", help="Of a file of several traces: the one named so in column `cluster`.")]
Speeds = Annotated[Path | None, typer.Option("--speeds", help="Throughput table in Gavel's format, or laws (YAML).")]
Force = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]


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
    speeds: Speeds = None,
    force: Force = False,
) -> None:
    """Make jobs up from a stated distribution. The same seed gives the same file."""
    from simulator.workloads.face import generate_file

    written = generate_file(
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
    from_format: From = None,
    skip_bad_rows: SkipBadRows = False,
    sort: Sort = False,
    only: Only = "",
    seeded_speeds: Annotated[
        str | None,
        typer.Option("--seeded-speeds", metavar="CLUSTER", help="Draw speeds for the types of this cluster."),
    ] = None,
    kinds: Annotated[int, typer.Option("--kinds", min=1, max=10_000, help="With it: kinds to deal jobs out to.")] = 26,
    seed: Annotated[int, typer.Option("--seed", help="With it: of what is drawn.")] = 0,
    force: Force = False,
) -> None:
    """Bring a trace into Walras' own form."""
    from simulator.workloads.face import Seeded, convert_file
    from simulator.workloads.source import Reading

    reading = Reading(skip_bad_rows=skip_bad_rows, sort=sort, only=only)
    seeded = Seeded(seeded_speeds, kinds, seed) if seeded_speeds is not None else None
    written = convert_file(file, out, format=from_format, reading=reading, seeded=seeded, force=force)
    _tell_skipped(written.skipped)
    show_line(f"{written.jobs} jobs of {file} ({written.format}) in {out}")


@workload_commands.command("describe")
def workload_describe_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace, a workload file, or a shipped name.")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file or a shipped name: the load on it is told.")
    ] = None,
    speeds: Speeds = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it: a .png or .svg file.")] = None,
    from_format: From = None,
    skip_bad_rows: SkipBadRows = False,
    sort: Sort = False,
    only: Only = "",
    output: Output = OutputFormat.TABLE,
) -> None:
    """Tell what a trace is like: jobs, arrivals, gangs, lengths, kinds, load."""
    from simulator.workloads.face import describe_file, description_json, description_parts
    from simulator.workloads.source import Reading

    reading = Reading(skip_bad_rows=skip_bad_rows, sort=sort, only=only)
    description, skipped = describe_file(
        file, format=from_format, reading=reading, cluster=cluster, speeds=speeds, plot=plot
    )
    _tell_skipped(skipped)
    if output is OutputFormat.JSON:
        show_json(description_json(description))
        return
    for part in description_parts(description):
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
def workload_list_command(output: Output = OutputFormat.TABLE) -> None:
    """List the formats that can be read and the generators."""
    from simulator.workloads.face import catalogue

    rows = catalogue()
    data = [{"what": what, "name": name, "about": about} for what, name, about in rows]
    show_listing(Listing([Column("WHAT"), Column("NAME"), Column("ABOUT")], rows, data), output)


def _tell_skipped(skipped: "Skipped") -> None:
    if skipped.count:
        warn(f"walras: {skipped.count} rows were skipped; the first of them:", *skipped.first)
