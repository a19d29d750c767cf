"""The kept results of a job by path, and fetching all of them or a part.

The server keeps one tree of files for each machine of a gang. Here they are one folder: the files of the first machine
at its root, those of the others below `node-N/`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.content import ContentFile, ContentTree
from walras.errors import NotFound, UserError

if TYPE_CHECKING:
    from walras.client import Client


@dataclass
class KeptFiles:
    """A job's results by their paths: the gang's first machine at the root, the others below `node-N/`."""

    files: dict[str, ContentFile]
    #: What was left out, and which machines' results cannot be listed.
    problems: list[str]
    attempt: int = 0
    collected_at: str = ""
    trees: dict[str, ContentTree] = field(default_factory=dict)

    def model_dump(self, mode: str = "json") -> dict[str, Any]:
        """Returns the files as JSON data."""
        sizes = {path: file.size for path, file in self.files.items()}
        return {"attempt": self.attempt, "collected_at": self.collected_at, "files": sizes, "problems": self.problems}


async def kept_files(client: "Client", job_id: int) -> KeptFiles:
    """Returns what is kept of a job's results; empty if nothing is yet."""
    listed = await client.outputs(job_id)
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


async def fetch_outputs(client: "Client", job_id: int, path: str, folder: Path | None) -> KeptFiles:
    """Fetch the files of `path`, or only look where there is no folder. Raises NotFound if there are none."""
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
