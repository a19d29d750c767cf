"""`walras search`: moves a job between batches and numbers of workers while it trains, until the best is found."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import OutputOption, example_or_path, parse_length_option
from walras.cli.job_files import read_job_file
from walras.cli.submit_commands import in_local_folder
from walras.cli.terminal_output import Column, Listing, OutputFormat, show_json, show_line, show_listing, warn
from walras.configuration_search import SearchAim, SearchStep
from walras.errors import JobSpecError, UserError
from walras.units import format_length, format_money

if TYPE_CHECKING:
    from walras.configuration_search import TrialConfiguration
    from walras.spec.job_spec import JobSpec
    from workers.trials.configuration_trials import SearchOutcome


def search_command(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A job file with `batch: {global: N}`, or example:NAME.",
            callback=example_or_path("jobs"),
        ),
    ],
    folder: Annotated[Path, typer.Option("--folder", help="A new folder for checkpoints and logs; it is kept.")],
    workers: Annotated[str, typer.Option("--workers", metavar="N,N", help="Numbers of workers to choose from.")] = "1",
    batches: Annotated[
        str | None,
        typer.Option("--batches", metavar="N,N", help="Global batch sizes to choose from; default: the job's own."),
    ] = None,
    earlier: Annotated[
        list[str] | None,
        typer.Option(
            "--earlier",
            metavar="BATCH=SAMPLES",
            help="Samples that a finished run with this batch size needed; repeatable.",
        ),
    ] = None,
    aim: Annotated[
        SearchAim, typer.Option("--aim", help="What to minimise: time, money, or the knee of time against money.")
    ] = SearchAim.KNEE,
    usd_per_h: Annotated[
        float, typer.Option("--usd-per-h", min=0.0, help="Price of one worker in USD per hour.")
    ] = 1.0,
    trials: Annotated[int, typer.Option("--trials", min=1, max=64, help="Make at most this many trials.")] = 6,
    windows: Annotated[
        int, typer.Option("--windows", min=1, max=60, help="Undisturbed half-second windows to time in each trial.")
    ] = 4,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest time that one trial may take.")] = "5m",
    train: Annotated[
        bool, typer.Option("--train", help="Continue to the end of the job in the configuration found.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Train a job on this machine while searching for its best batch size and number of workers. Needs no server."""
    from optimizer.planning.online_search import OnlineSearch, SearchSpace
    from walras.spec.job_groups import global_batch_of
    from walras.spec.shipped_files import folder_of_relative_paths
    from workers.trials.configuration_trials import Extent, moving_job, search_job

    spec = in_local_folder(read_job_file(file, [], [], []), folder_of_relative_paths(file))
    own_batch = global_batch_of(spec.batch)
    counts = _parse_numbers(workers, "--workers")
    sizes = _parse_numbers(batches, "--batches") if batches else (own_batch,) if own_batch else ()
    if not sizes:
        raise JobSpecError("no batch is given", field="batch", fix="batch: {global: N} in the job file, or --batches")
    space = SearchSpace(counts, sizes, usd_per_h, aim, trials)
    if not space.all:
        raise UserError("no batch can be shared evenly by any number of workers", field="--batches", fix="multiples")
    samples = _samples_needed(spec, own_batch, sizes, earlier or [])
    timeout_s = parse_length_option(timeout, "--timeout")
    folder.mkdir(parents=True, exist_ok=True)
    job = moving_job(spec, folder, max(counts))
    searched = search_job(
        job,
        OnlineSearch(space, samples),
        _steps_limit(spec, samples),
        Extent(windows, timeout_s, train),
        lambda ahead, moved: warn(f"{moved.configuration}: {moved.steps} steps in {moved.wall_s:.1f} s ({ahead.why})"),
    )
    if output is OutputFormat.JSON:
        show_json(_search_data(searched))
    else:
        _show_search(searched)


def _parse_numbers(text: str, option: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**31 for part in parts) or len(parts) > 64:
        raise UserError(f"{text!r} is no list of whole numbers", field=option, fix="such as 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def _samples_needed(
    spec: "JobSpec", own_batch: int | None, sizes: Sequence[int], earlier: Sequence[str]
) -> Callable[[int], float]:
    """Returns the samples the job needs as a function of the batch: from finished runs, else from its own `steps`."""
    from optimizer.planning.online_search import samples_by_power

    finished = []
    for text in earlier:
        batch, _, count = text.partition("=")
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in (batch, count)):
            raise UserError(f"{text!r} is not BATCH=SAMPLES", field="--earlier", fix="such as 64=1200000")
        finished.append((int(batch), float(count)))
    if not finished and spec.steps is not None and own_batch is not None:
        finished = [(own_batch, float(spec.steps * own_batch))]
    if not finished:
        raise UserError(
            "nothing tells how much the job has to do",
            field="--earlier",
            fix="`steps` and `batch` in the job file, or --earlier BATCH=SAMPLES of a finished run",
        )
    if len({batch for batch, _ in finished}) < 2 and len(sizes) > 1:
        raise UserError(
            "what another batch does to learning is known from finished runs with two batches at least",
            field="--earlier",
            fix="--earlier BATCH=SAMPLES twice, or one of --batches only",
        )
    return samples_by_power(finished)


def _steps_limit(spec: "JobSpec", samples: Callable[[int], float]) -> Callable[[int, SearchStep], int | None]:
    """Returns the limit of steps of a job with `steps`: as much learning as those steps; None for a job without."""

    def limit(done: int, ahead: SearchStep) -> int | None:
        if spec.steps is None:
            return None
        batch = ahead.configuration.batch
        return done + max(1, round(ahead.left * samples(batch) / batch))

    return limit


def _show_search(searched: "SearchOutcome") -> None:
    found = searched.found
    if found is None:
        show_line(f"the job ended after {searched.steps} steps, before anything was decided")
        return
    columns = (
        Column(""),
        Column("WORKERS", right=True),
        Column("BATCH", right=True),
        Column("TIME LEFT", right=True),
        Column("USD", right=True),
        Column("FROM"),
    )
    rows = [
        [
            ">" if each.configuration == found.configuration else "",
            str(each.configuration.workers),
            str(each.configuration.batch),
            format_length(each.time_s),
            format_money(each.usd),
            "measured" if each.measured else "the law",
        ]
        for each in found.expected
    ]
    show_listing(Listing(columns, rows, None), OutputFormat.TABLE)
    show_line("")
    show_line(f"take {found.configuration}: {found.why}")
    if searched.finished:
        show_line(f"  trained to the end: {searched.steps} steps")
    elif searched.checkpoint is not None:
        show_line(f"  {1 - found.left:.0%} of the job is done: {searched.steps} steps, in {searched.checkpoint.path}")


def _search_data(searched: "SearchOutcome") -> dict[str, Any]:
    found = searched.found
    return {
        "finished": searched.finished,
        "steps": searched.steps,
        "checkpoint": None if searched.checkpoint is None else searched.checkpoint.path,
        "taken": None if found is None else _configuration_data(found.configuration),
        "why": None if found is None else found.why,
        "left": None if found is None else found.left,
        "moves": [
            _configuration_data(moved.configuration)
            | {"steps": moved.steps, "wall_s": moved.wall_s, "iteration_s": moved.iteration_s, "loss": moved.loss}
            for moved in searched.moves
        ],
        "expected": [
            _configuration_data(each.configuration)
            | {"time_s": each.time_s, "usd": each.usd, "measured": each.measured}
            for each in (found.expected if found is not None else ())
        ],
    }


def _configuration_data(configuration: "TrialConfiguration") -> dict[str, Any]:
    return {"workers": configuration.workers, "batch": configuration.batch}
