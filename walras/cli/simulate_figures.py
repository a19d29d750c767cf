"""`walras simulate report|plot|worlds`: pages and figures of runs that are over, and what runs can be simulated in."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from walras.cli.arguments import OutputOption
from walras.cli.terminal_output import OutputFormat, exit_with

_FIGURES = "jct, slowdown, fairness, waiting, utilisation, prices, market-prices, money, means, loads, timeline"


def simulate_report_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder given to `walras simulate run --out`.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; default: report.html in the folder.")
    ] = None,
) -> None:
    """Rebuild the HTML report of a finished run."""
    from simulator.simulate_actions import simulate_report

    exit_with(simulate_report(folder, out))


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


def simulate_worlds_command(output: OutputOption = OutputFormat.TABLE) -> None:
    """List the worlds for --world, and the policies of each."""
    from simulator.simulate_actions import simulate_worlds

    exit_with(simulate_worlds(output.value))


#: Commands of `walras simulate`, by name.
FIGURE_COMMANDS: dict[str, Callable[..., None]] = {
    "report": simulate_report_command,
    "plot": simulate_plot_command,
    "worlds": simulate_worlds_command,
}
