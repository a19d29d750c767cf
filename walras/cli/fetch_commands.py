"""`walras fetch`: a job's results, and what `walras show` says of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from walras.cli.arguments import JobArgument
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import show_line
from walras.errors import UserError
from walras.units import format_size

if TYPE_CHECKING:
    from walras.kept_outputs import KeptFiles

#: The most files that `walras show` names; `walras fetch --list` names all.
_SHOWN_FILES = 20


def fetch_command(
    job: JobArgument,
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A file or a folder of the results; without it, all of them.")
    ] = "",
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="New folder for the files; without it, job-JOB.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list the files, with their sizes in bytes.")] = False,
) -> None:
    """Fetch what a job left in its `outputs`, also while it runs.

    Each file lies under its path in the working folder. What further machines of a gang left is below `node-N/`.
    """
    from walras.kept_outputs import fetch_outputs

    job_id = job_id_of(job)
    folder = (to or Path(f"job-{job_id}")).absolute()
    if not listing and folder.exists():
        raise UserError(f"{folder} is there already", field="--to", fix="name a new folder with --to")
    found = with_client(lambda client: fetch_outputs(client, job_id, path.strip("/"), None if listing else folder))
    for name, file in found.files.items() if listing else ():
        show_line(f"{file.size:>15} {name}")
    if not listing:
        size = format_size(sum(file.size for file in found.files.values()))
        show_line(f"{len(found.files)} files, {size}, in {folder}")
    for problem in found.problems:
        show_line(f"not kept: {problem}")


def kept_lines(kept: "KeptFiles") -> list[str]:
    """Returns what `walras show` says of a job's results; nothing if there are none."""
    if not kept.files and not kept.problems:
        return []
    size = format_size(sum(file.size for file in kept.files.values()))
    told = ["", f"outputs of attempt {kept.attempt}, {kept.collected_at}: {len(kept.files)} files, {size}"]
    told += [f"  {path}  {format_size(file.size)}" for path, file in list(kept.files.items())[:_SHOWN_FILES]]
    if len(kept.files) > _SHOWN_FILES:
        told.append(f"  and {len(kept.files) - _SHOWN_FILES} more")
    return told + [f"  not kept: {problem}" for problem in kept.problems]
