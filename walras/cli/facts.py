"""Facts of a kind of jobs from files: what `facts: FILE` of a job file stands for, and what `walras profile` sends."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.cli.problem_files import read_document
from walras.errors import JobSpecError, UserError

if TYPE_CHECKING:
    from walras.profile_file import ProfileFile


def with_facts(mapping: dict[str, Any]) -> dict[str, Any]:
    """A job whose `facts` name a profile's file, with what that file says in its place.

    A relative path is meant from where the command is given. Raises UserError for a file that is no profile.
    """
    named = mapping.get("facts")
    if not isinstance(named, str):
        return mapping
    from walras.profile_file import ProfileFile

    if not Path(named).is_file():
        raise JobSpecError(
            f"facts: {named[:200]!r} is no file", field="facts", fix="write it: walras profile run JOB --profile FILE"
        )
    return {**mapping, "facts": stated(read_document(Path(named), ProfileFile))}


def stated(profile: "ProfileFile") -> dict[str, Any]:
    """The facts of a profile as a job file states them; samples of a step are those of its first measured row."""
    from walras.model_facts import StatedFacts

    found = {name: value for name in StatedFacts.model_fields if (value := getattr(profile, name, None)) is not None}
    if profile.measured:
        first = profile.measured[0]
        found["batch_per_accelerator"] = first.batch / (first.accelerators * (first.accumulated + 1))
    return found


def check_publishable(profile: "ProfileFile", source: str) -> None:
    """Raises UserError where nothing could be made of it."""
    if profile.flops_per_sample is not None and not profile.measured:
        raise UserError(
            f"{source}: measured: the samples of a step are unknown, so FLOPs of a sample say nothing of a step",
            field="measured",
            fix="add a measured row with its batch, or profile the job again: walras profile run JOB --profile FILE",
        )
    if not {name for name in stated(profile) if name != "batch_per_accelerator"}:
        raise UserError(
            f"{source}: no fact of the model is stated",
            field="flops_per_sample",
            fix="profile the job with a DataLoader",
        )
