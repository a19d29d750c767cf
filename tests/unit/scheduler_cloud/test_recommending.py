"""From a catalog's rows to facts of accelerators."""

from scheduler.cloud.recommending import sheets_of
from walras.catalog import load_catalog


def test_a_type_that_is_named_without_its_memory_has_the_sheet_of_its_smallest() -> None:
    """`a100` is what people write; a type that exists under its short name is that one."""
    sheets = sheets_of(load_catalog())
    assert (sheets["a100"].name, sheets["a100"].memory_bytes) == ("a100", sheets["a100-40gb"].memory_bytes)
    assert sheets["h100"].memory_bytes == 80e9
    assert "a10g" not in sheets  # nobody knows its peak
