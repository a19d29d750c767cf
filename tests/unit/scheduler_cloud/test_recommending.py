"""From a catalog's rows to facts of accelerators."""

import pytest

from optimizer.planning.machine_choice import RunGoal
from optimizer.planning.machine_recommendation import RecommendationTerms, recommend_machines, specs_by_accelerator
from walras.model_facts import Precision
from walras.profiling.profile_documents import ProfileFile
from walras.spec.catalog import load_catalog
from walras.spec.job_spec import parse_spec


def test_a_type_that_is_named_without_its_memory_has_the_sheet_of_its_smallest() -> None:
    """`a100` is what people write; a type that exists under its short name is that one."""
    sheets = specs_by_accelerator(load_catalog())
    assert (sheets["a100"].name, sheets["a100"].memory_bytes) == ("a100", sheets["a100-40gb"].memory_bytes)
    assert sheets["h100"].memory_bytes == 80e9
    assert "a10g" not in sheets  # nobody knows its peak


@pytest.mark.parametrize(
    ("asked", "stated", "peak"), [(None, None, 19.5e12), (None, "bf16", 312e12), ("tf32", "bf16", 156e12)]
)
def test_machines_are_judged_by_the_arithmetic_that_was_asked_for_or_profiled(
    asked: str | None, stated: Precision | None, peak: float
) -> None:
    """The command's word goes before the profile's; fp32 where nobody says any."""
    job = parse_spec({"run": "true", "profile": "net", "steps": 1000, "batch": {"global": 64}})
    profile = ProfileFile(kind="net", flops_per_sample=1e9, gradient_bytes=1e6, precision=stated)
    found = recommend_machines(
        job, [profile], load_catalog(), RecommendationTerms(precision=asked), RunGoal(None, None), ()
    )
    peaks = {each.accelerator.flops_per_s for each in found.machines if each.accelerator.name == "a100-40gb"}
    assert peaks == {peak}
