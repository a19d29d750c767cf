"""Facts of a model as a job file states them: a profile's file, named by `facts: FILE`, is submitted in its place.

A profile (`walras profile run JOB --profile FILE`) holds more than a job file may state: here is what of it counts.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from walras.cli.arguments import read_document
from walras.errors import JobSpecError, UserError

if TYPE_CHECKING:
    from walras.profiling.profile_documents import ProfileFile


def with_facts_of_file(mapping: dict[str, Any]) -> dict[str, Any]:
    """Returns a job whose `facts` name a profile's file with the facts of that file in their place.

    A relative path starts from the current folder, as every path on a command line does. Facts that are written out
    stay as they are. Raises JobSpecError where there is no such file, UserError for a file that is no profile.
    """
    named = mapping.get("facts")
    if not isinstance(named, str):
        return mapping
    from walras.profiling.profile_documents import ProfileFile

    if not Path(named).is_file():
        raise JobSpecError(
            f"facts: {named[:200]!r} is no file", field="facts", fix="write it: walras profile run JOB --profile FILE"
        )
    return {**mapping, "facts": stated_facts_of(read_document(Path(named), ProfileFile))}


def stated_facts_of(profile: "ProfileFile") -> dict[str, Any]:
    """Returns the facts of a profile as a job file states them.

    Samples of a step on each accelerator come from its first measured row.
    """
    from walras.spec.job_groups import FactsSpec

    found = {name: value for name in FactsSpec.model_fields if (value := getattr(profile, name, None)) is not None}
    if profile.measured:
        first = profile.measured[0]
        found["batch_per_accelerator"] = first.batch / (first.accelerators * (first.accumulated + 1))
    return found


def check_publishable(profile: "ProfileFile", source: str) -> None:
    """Raises UserError for a profile without usable facts."""
    if profile.flops_per_sample is not None and not profile.measured:
        raise UserError(
            f"{source}: measured: the samples of a step are unknown, so FLOPs of a sample say nothing of a step",
            field="measured",
            fix="add a measured row with its batch, or profile the job again: walras profile run JOB --profile FILE",
        )
    if not {name for name in stated_facts_of(profile) if name != "batch_per_accelerator"}:
        raise UserError(
            f"{source}: no fact of the model is stated",
            field="flops_per_sample",
            fix="profile the job with a DataLoader",
        )
