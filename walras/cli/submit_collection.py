"""`walras submit FILE` for a collection: a file with `jobs:`, all of which go to the queue together.

    collection: nightly          # every job of it has the label collection=nightly
    defaults: {project: vision, value_usd_per_h: 4}
    jobs:
      - {name: parse, run: python parse.py}
      - {name: train, run: python train.py, steps: 20000}

Every job is checked before any is sent. The market assigns them to pools and zones, and moves them where that pays.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from walras.cli.session import with_client
from walras.cli.terminal_output import OutputFormat, say_progress, show_json, show_line, warn
from walras.errors import JobSpecError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from walras.api import SubmitResult
    from walras.client import Client
    from walras.content import ContentTree
    from walras.spec.job_spec import JobSpec

#: The most bytes of a collection's file, and its most jobs; and the most jobs in one request that the server takes.
_BYTES_MOST, _JOBS_MOST, _SENT_AT_ONCE = 4_000_000, 10_000, 1000
_FIELDS = ("collection", "defaults", "jobs")


@dataclass(frozen=True, slots=True)
class SubmittedCollection:
    """Jobs that are submitted together, as mappings: the file's defaults are in each."""

    name: str
    jobs: tuple[dict[str, Any], ...]


def read_collection(file: str) -> SubmittedCollection | None:
    """Returns the collection in a YAML file; None for any other file. Raises JobSpecError if it makes no sense."""
    path = Path(file)
    if path.suffix not in (".yaml", ".yml") or not path.is_file() or path.stat().st_size > _BYTES_MOST:
        return None  # whoever reads a single job reports what is wrong with the file
    from walras.errors import ConfigError
    from walras.spec.text_formats import parse_yaml

    try:
        data = parse_yaml(path.read_bytes(), source=file, max_bytes=_BYTES_MOST)
    except (OSError, ConfigError):
        return None
    if not isinstance(data, dict) or "jobs" not in data or "run" in data:
        return None
    return _collection_of(data, file)


def _collection_of(data: dict[str, Any], file: str) -> SubmittedCollection:
    for field in data:
        if field not in _FIELDS:
            raise JobSpecError(
                f"{file}: {str(field)[:60]!r} is no field of a collection",
                field=str(field)[:60],
                fix="what all jobs have goes under `defaults`; a workload of `walras simulate` is not submitted",
            )
    name, jobs, defaults = data.get("collection", Path(file).stem), data["jobs"], data.get("defaults", {})
    if not isinstance(name, str) or not 0 < len(name) <= 63:
        raise JobSpecError(f"{file}: collection: no name", field="collection", fix="write a short text")
    if not isinstance(defaults, dict):
        raise JobSpecError(f"{file}: defaults: no fields", field="defaults", fix="write the fields of a job")
    if not isinstance(jobs, list) or not 0 < len(jobs) <= _JOBS_MOST:
        raise JobSpecError(f"{file}: jobs: not 1 to {_JOBS_MOST:,} jobs", field="jobs", fix="write a list of jobs")
    found = []
    for number, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise JobSpecError(f"{file}: jobs[{number}]: no fields", field=f"jobs[{number}]", fix="write a job")
        labels = {**_labels(defaults), **_labels(job), "collection": name}
        found.append({"name": f"{name}-{number}"[:63], **defaults, **job, "labels": labels})
    return SubmittedCollection(name, tuple(found))


def _labels(fields: Mapping[str, Any]) -> dict[str, Any]:
    labels = fields.get("labels")
    return labels if isinstance(labels, dict) else {}


def check_options(given: Mapping[str, object]) -> None:
    """Raises UserError for options of `walras submit` that are about one job."""
    for option, value in given.items():
        if value:
            raise UserError(f"{option} is for one job, and this file has many", field=option, fix="submit it by itself")


def submit_collection(
    collection: SubmittedCollection,
    checked: "Callable[[dict[str, Any], str], JobSpec]",
    snapshot: "Callable[[JobSpec], tuple[Path, JobSpec, ContentTree | None]]",
    *,
    dry_run: bool,
    quiet: bool,
    output: OutputFormat,
) -> None:
    """Check every job, send what travels with them, and submit them. Exits with 1 if the server refused any.

    Args:
        collection: what was read.
        checked: makes the spec of a job's mapping and a name for messages; raises JobSpecError.
        snapshot: a spec's folder, the spec that names its content, and that content.
        dry_run: stop once all are checked.
        quiet: print numbers only.
        output: table or JSON.
    """
    specs = [checked(job, f"jobs[{number}]") for number, job in enumerate(collection.jobs)]
    if dry_run:
        show_line(f"{len(specs)} jobs of {collection.name} are valid; nothing is submitted")
        return
    ready = [snapshot(spec) for spec in specs]
    trees = {tree.name: (folder, tree) for folder, _, tree in ready if tree is not None}

    async def send(client: "Client") -> "list[SubmitResult]":
        for folder, tree in trees.values():
            await client.send_folder(folder, tree, say_progress("the code travels: {} of {} pieces"))
        results: list[SubmitResult] = []
        for begin in range(0, len(ready), _SENT_AT_ONCE):
            part = [spec for _, spec, _ in ready[begin : begin + _SENT_AT_ONCE]]
            # A key, so that a request whose answer was lost is not carried out twice.
            results += (await client.submit_batch(part, idempotency_key=uuid.uuid4().hex)).items
        return results

    _tell(collection, with_client(send), quiet=quiet, output=output)


def _tell(
    collection: SubmittedCollection, results: "Sequence[SubmitResult]", *, quiet: bool, output: OutputFormat
) -> None:
    numbers = [each.id for each in results if each.id is not None]
    if output is OutputFormat.JSON:
        show_json({"collection": collection.name, "items": [each.model_dump(mode="json") for each in results]})
    elif quiet:
        for number in numbers:
            show_line(str(number))
    elif numbers:
        where = f"job {numbers[0]}" if len(numbers) == 1 else f"jobs {numbers[0]} to {numbers[-1]}"
        verb = "is" if len(numbers) == 1 else "are"
        show_line(f"{where} ({len(numbers)} of {collection.name}) {verb} in the queue")
        show_line(f"  all of them: walras jobs --label collection={collection.name}")
    refused = [(number, each.error) for number, each in enumerate(results) if each.error is not None]
    for number, error in refused:
        fix = f" ({error.fix})" if error.fix else ""
        warn(f"walras: jobs[{number}] was refused: {error.detail}{fix}")
    if refused:
        raise typer.Exit(1)
