"""`walras workload from-slurm|from-kubernetes`: another scheduler's queue as a trace and a cluster file."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import parse_length_option
from walras.cli.terminal_output import show_line, warn

if TYPE_CHECKING:
    from simulator.workloads.queue_snapshots import QueueSnapshot

OutArgument = Annotated[Path, typer.Option("--out", "-o", help="Trace to write: .csv or .jsonl, optionally with .gz.")]
ClusterFileOption = Annotated[Path, typer.Option("--cluster", help="Cluster file to write: .yaml.")]
UsedOption = Annotated[
    float, typer.Option("--used", metavar="PART", help="Part of the time asked for that jobs really take, such as 0.3.")
]
OverwriteOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


def from_slurm_command(
    queue: Annotated[
        Path, typer.Argument(metavar="SQUEUE", help="Output of squeue -a -O COLUMNS, as docs/workloads.md has it.")
    ],
    machines: Annotated[Path, typer.Argument(metavar="SINFO", help="Output of: sinfo -a -N -o '%N|%G|%c|%m|%T'")],
    out: OutArgument,
    cluster: ClusterFileOption,
    used: UsedOption = 1.0,
    force: OverwriteOption = False,
) -> None:
    """Turn a snapshot of a Slurm queue into a trace and a cluster file, to simulate what Walras would do with it."""
    from simulator.workloads.slurm_snapshot import read_slurm_snapshot

    _write(read_slurm_snapshot(queue, machines), str(queue), out, cluster, used, force)


def from_kubernetes_command(
    lists: Annotated[
        Path,
        typer.Argument(metavar="LIST", help="Output of: kubectl get nodes,pods,workloads.kueue.x-k8s.io -A -o json"),
    ],
    out: OutArgument,
    cluster: ClusterFileOption,
    length: Annotated[str, typer.Option("--length", help="How long jobs take that do not say it, such as 4h.")] = "4h",
    used: UsedOption = 1.0,
    force: OverwriteOption = False,
) -> None:
    """Turn lists of Kubernetes (nodes; Kueue workloads or pods) into a trace and a cluster file."""
    from simulator.workloads.kubernetes_snapshot import read_kubernetes_snapshot

    snapshot = read_kubernetes_snapshot(lists, parse_length_option(length, "--length"))
    _write(snapshot, str(lists), out, cluster, used, force)


def _write(snapshot: "QueueSnapshot", source: str, out: Path, cluster: Path, used: float, force: bool) -> None:
    from simulator.workloads.queue_snapshots import write_snapshot

    written = write_snapshot(snapshot, source, out, cluster, used=used, force=force)
    if written.skipped.count:
        warn(f"walras: {written.skipped.count} were left out; the first of them:", *written.skipped.first)
    show_line(f"{written.jobs} jobs, {written.running} of them running, in {out}")
    show_line(f"{written.machines} machines with {written.accelerators} accelerators in {cluster}")


#: Commands of `walras workload`, by name.
SNAPSHOT_COMMANDS: dict[str, Callable[..., None]] = {
    "from-slurm": from_slurm_command,
    "from-kubernetes": from_kubernetes_command,
}
