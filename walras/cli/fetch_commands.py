"""`walras fetch`: a job's results, and what `walras show` says of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walras.cli.arguments import JobArgument
from walras.cli.session import job_id_of, with_client
from walras.cli.terminal_output import show_line
from walras.errors import NotFound, UserError
from walras.units import format_size

if TYPE_CHECKING:
    from walras.client import Client
    from walras.content import ContentFile, ContentTree
    from walras.job_needs import JobOutputs

#: Files that `walras show` names; `walras fetch --list` names all.
_SHOWN_FILES = 20


@dataclass
class KeptFiles:
    """A job's results by their paths: the gang's first machine at the root, the others below `node-N/`."""

    files: "dict[str, ContentFile]"
    #: What was left out, and what cannot be listed.
    problems: list[str]
    attempt: int = 0
    collected_at: str = ""
    trees: "dict[str, ContentTree]" = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """What `walras show` says of them."""
        if not self.files and not self.problems:
            return []
        size = format_size(sum(file.size for file in self.files.values()))
        told = ["", f"outputs of attempt {self.attempt}, {self.collected_at}: {len(self.files)} files, {size}"]
        told += [f"  {path}  {format_size(file.size)}" for path, file in list(self.files.items())[:_SHOWN_FILES]]
        if len(self.files) > _SHOWN_FILES:
            told.append(f"  and {len(self.files) - _SHOWN_FILES} more")
        return told + [f"  not kept: {problem}" for problem in self.problems]

    def model_dump(self, mode: str = "json") -> dict[str, Any]:
        """As JSON data."""
        sizes = {path: file.size for path, file in self.files.items()}
        return {"attempt": self.attempt, "collected_at": self.collected_at, "files": sizes, "problems": self.problems}


async def kept_files(client: "Client", job_id: int) -> KeptFiles:
    """Returns what is kept of a job's results; empty if nothing is yet."""
    listed: JobOutputs = await client.outputs(job_id)
    transfer = client.outputs_transfer(job_id)
    found = KeptFiles({}, [])
    for each in listed.items:
        where = f"node-{each.node_rank}/" if each.node_rank else ""
        if each.problem:
            found.problems.append(f"{where}{each.problem}")
        if not each.tree:
            continue
        found.attempt = max(found.attempt, each.attempt)
        found.collected_at = max(found.collected_at, each.collected_at)
        tree = found.trees[each.tree] = await transfer.fetch_list(each.tree)
        found.files |= {f"{where}{file.path}": file for file in tree.files}
    return found


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


async def fetch_outputs(client: "Client", job_id: int, path: str, folder: Path | None) -> KeptFiles:
    """Fetch the files of `path`, or only look where there is no folder. Raises NotFound if there are none."""
    from walras.content import ContentTree

    found = await kept_files(client, job_id)
    chosen = {name: file for name, file in found.files.items() if not path or f"{name}/".startswith(f"{path}/")}
    if not chosen:
        await client.job(job_id)  # the job may not be there at all
        what = f"no {path!r} in the outputs of job {job_id}" if path else f"job {job_id} has left no outputs yet"
        raise NotFound(
            what, field="path" if path else "job", fix="see `walras show`; `outputs:` in its file names them"
        )
    found.files = chosen
    if folder is not None:
        files = [file.model_copy(update={"path": name}) for name, file in chosen.items()]
        try:
            tree = ContentTree(files=tuple(sorted(files, key=lambda file: file.path)))
        except ValueError as error:
            raise UserError(f"the machines' files do not fit into one folder: {error}", fix="fetch by PATH") from None
        await client.outputs_transfer(job_id).fetch_files(tree, folder)
    return found
