"""`walras workload`: generates traces of jobs, converts them to the native format, and describes them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import OutputOption
from walras.cli.simulate_commands import trace_reading, with_options
from walras.cli.terminal_output import Column, Listing, OutputFormat, show_json, show_line, show_listing, warn

if TYPE_CHECKING:
    from simulator.workloads.trace import SkippedRows
    from simulator.workloads.trace_source import ReadOptions


workload_commands = typer.Typer(
    help="Generate, convert and describe workload traces. Needs no server.", no_args_is_help=True
)

FromOption = Annotated[
    str | None, typer.Option("--from", help="Format of the input; default: from its file ending and first line.")
]
TraceSpeedsOption = Annotated[
    Path | None, typer.Option("--speeds", help="Throughput table in Gavel's format, or speed laws (YAML).")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]


@workload_commands.command("generate")
def workload_generate_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A generator; `walras workload list` lists them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .csv or .jsonl, optionally with .gz.")],
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Number of jobs.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0, help="Arrivals per hour; 0: all at once.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all random draws.")] = 0,
    gangs: Annotated[
        bool | None,
        typer.Option("--gangs/--no-gangs", help="Jobs of up to 8 accelerators, or single-accelerator jobs only."),
    ] = None,
    priorities: Annotated[bool, typer.Option("--priorities", help="Give one job in five weight 5.")] = False,
    slos: Annotated[
        bool, typer.Option("--slos", help="Give jobs deadlines of 1.2, 2 or 10 times their run time.")
    ] = False,
    stretch: Annotated[float, typer.Option("--stretch", help="Multiply run times by this factor.")] = 1.0,
    speeds: TraceSpeedsOption = None,
    force: ForceOption = False,
) -> None:
    """Generate a workload from a stated distribution; the same seed gives the same file."""
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
@with_options(reading=trace_reading)
def workload_convert_command(
    file: Annotated[str, typer.Argument(metavar="IN", help="A trace, a workload file, or a shipped name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .csv or .jsonl, optionally with .gz.")],
    reading: "ReadOptions",
    from_format: FromOption = None,
    seeded_speeds: Annotated[
        str | None,
        typer.Option(
            "--seeded-speeds", metavar="CLUSTER", help="Draw random speeds for the accelerator types of this cluster."
        ),
    ] = None,
    kinds: Annotated[
        int, typer.Option("--kinds", min=1, max=10_000, help="With --seeded-speeds: number of kinds to assign jobs to.")
    ] = 26,
    seed: Annotated[int, typer.Option("--seed", help="With --seeded-speeds: seed of the draws.")] = 0,
    force: ForceOption = False,
) -> None:
    """Convert a trace to the native format."""
    from simulator.workloads.workload_actions import SeededSpeeds, convert_trace

    seeded = SeededSpeeds(seeded_speeds, kinds, seed) if seeded_speeds is not None else None
    written = convert_trace(file, out, format=from_format, reading=reading, seeded=seeded, force=force)
    _warn_of_skipped_rows(written.skipped)
    show_line(f"{written.jobs} jobs of {file} ({written.format}) in {out}")


@workload_commands.command("describe")
@with_options(reading=trace_reading)
def workload_describe_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A trace, a workload file, or a shipped name.")],
    reading: "ReadOptions",
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="A cluster file or a shipped name: also compute the load on it.")
    ] = None,
    speeds: TraceSpeedsOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the trace into this .png or .svg file.")] = None,
    from_format: FromOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Describe a trace: jobs, arrivals, gang sizes, run times, kinds, load."""
    from simulator.workloads.workload_actions import (
        describe_trace_file,
        trace_description_data,
        trace_description_tables,
    )

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
    """List the readable formats, the generators, and the workloads that can be had by name, with their licences."""
    from simulator.workloads.workload_actions import format_catalogue, workload_catalog

    rows = [(*row, "", "") for row in format_catalogue()]
    data = [{"what": what, "name": name, "about": about} for what, name, about, *_ in rows]
    for each in workload_catalog().values():
        what = "workload, to fetch" if each.address else "workload, here"
        rows.append((what, each.name, each.about, each.licence, each.source))
        data.append(
            {
                "what": what,
                "name": each.name,
                "about": each.about,
                "licence": each.licence,
                "source": each.source,
                "format": each.format,
                "address": each.address,
                "sha256": each.sha256,
            }
        )
    columns = [Column(title) for title in ("WHAT", "NAME", "ABOUT", "LICENCE", "SOURCE")]
    show_listing(Listing(columns, rows, data), output)


@workload_commands.command("get")
def workload_get_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A workload that `walras workload list` names.")],
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
    written = write_snapshot(snapshot, str(queue), out, cluster, used=used, force=force)
    if written.skipped.count:
        warn(f"walras: {written.skipped.count} were left out; the first of them:", *written.skipped.first)
    show_line(f"{written.jobs} jobs, {written.running} of them running, in {out}")
    show_line(f"{written.machines} machines with {written.accelerators} accelerators in {cluster}")


def _warn_of_skipped_rows(skipped: "SkippedRows") -> None:
    if skipped.count:
        warn(f"walras: {skipped.count} rows were skipped; the first of them:", *skipped.first)
