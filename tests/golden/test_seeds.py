"""The commands of `benchmarks/seeds` print what the papers and their recorded data say."""

from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def agrees(system: str) -> bool:
    return all(comparison.agrees for comparison in import_module(f"benchmarks.seeds.{system}").compare())


@pytest.mark.parametrize("system", ["sailor"])
def test_every_figure_agrees_with_recorded_data(
    system: str, reference_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison that the command prints, with the reference data."""
    monkeypatch.setenv("WALRAS_DATA", str(reference_data))
    assert agrees(system)
