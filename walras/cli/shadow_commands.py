"""`walras policy shadow`: a second policy beside the one in force, and what would have happened under it."""

from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import OutputOption, example_or_path
from walras.cli.policy_commands import policy_mapping
from walras.cli.session import with_client
from walras.cli.terminal_output import Column, Listing, OutputFormat, dash, show_json, show_line, show_listing
from walras.cli.what_if_text import later_text
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.shadow_views import ShadowFigures, ShadowGroup, ShadowJobView, ShadowView

shadow_commands = typer.Typer(
    help="Run a second policy beside the one in force, and show what would have happened under it.",
    invoke_without_command=True,
)


@shadow_commands.callback()
def policy_shadow_command(context: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show what would have happened under the policy in the shadow since it was started."""
    if context.invoked_subcommand is None:
        _show(with_client(lambda client: client.shadow()), output)


@shadow_commands.command("start")
def policy_shadow_start_command(
    wanted: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="A policy by its name, a policy file (YAML), or example:NAME.",
            callback=example_or_path("policies"),
        ),
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Begin to run a policy beside the one in force, which alone decides (administrators only)."""
    written = policy_mapping(wanted)
    _show(with_client(lambda client: client.start_shadow(written)), output)


@shadow_commands.command("stop")
def policy_shadow_stop_command(output: OutputOption = OutputFormat.TABLE) -> None:
    """Show it once more, and run it no longer (administrators only)."""
    _show(with_client(lambda client: client.stop_shadow()), output)
    if output is OutputFormat.TABLE:
        show_line("It is stopped.")


def _show(found: "ShadowView", output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        show_json(found.model_dump(mode="json"))
    else:
        show_shadow(found)


def show_shadow(found: "ShadowView") -> None:
    """Prints what happened, how the model reproduces it, and what would have happened under the other policy."""
    if found.state == "none":
        show_line("No policy is run in the shadow. Start one: walras policy shadow start NAME")
        return
    show_line(f"`{found.policy}` in the shadow since {found.started_at}, started by {found.started_by}.")
    if found.fault:
        show_line(f"It failed, and nothing was disturbed: {found.fault}")
        return
    if found.total is None or found.as_of is None or found.since is None:
        show_line("Nothing has been worked out yet; look again in a few minutes.")
        return
    many = found.total
    show_line(
        f"{format_length(found.as_of - found.since)} and {many.jobs} jobs; {many.jobs - many.unknown} of known length, "
        f"{many.unknown} not ended yet (drawn {found.draws} times), {many.cancelled} cancelled and left out."
    )
    rows = [row for group in (many, *found.projects) for row in _rows(group)] if found.projects else _rows(many)
    if rows:
        show_listing(Listing(_COLUMNS, rows, None), OutputFormat.TABLE)
        show_line("Jobs of known length. own - live: the model's error; shadow - own: the policy.")
    if many.difference_s is not None:
        show_line(f"All jobs end on average {later_text(many.difference_s)} under `{found.policy}`.")
    if many.never_end:
        show_line(f"{many.never_end} jobs of known length never end in a run, and are compared nowhere.")
    _show_jobs("sooner", found.sooner_jobs, found.sooner)
    _show_jobs("later", found.later_jobs, found.later)


_COLUMNS = [
    Column("PROJECT", shrinks=True),
    Column("RUN"),
    Column("MEAN", right=True),
    Column("MEDIAN", right=True),
    Column("P95", right=True),
    Column("WAIT", right=True),
    Column("PREEMPTED", right=True, spare=1),
    Column("USD", right=True),
]


def _rows(group: "ShadowGroup") -> list[list[str]]:
    runs = (("live", group.live), ("own", group.own), ("shadow", group.shadow))
    return [_row(group.project or "all", run, figures) for run, figures in runs if figures is not None]


def _row(project: str, run: str, figures: "ShadowFigures") -> list[str]:
    wait = dash(None) if figures.waiting_s is None else format_length(figures.waiting_s)
    lengths = [format_length(each) for each in (figures.mean_s, figures.median_s, figures.p95_s)]
    return [project, run, *lengths, wait, f"{figures.preemptions:.0f}", format_money(figures.usd)]


def _show_jobs(word: str, many: int, jobs: "list[ShadowJobView]") -> None:
    if jobs:
        named = ", ".join(
            f"{each.id} by {format_length(abs(each.difference_s))}{'' if each.is_known else ' (length drawn)'}"
            for each in jobs
        )
        show_line(f"{many} jobs would have ended {word}: {named}{'' if many == len(jobs) else ', ...'}")
