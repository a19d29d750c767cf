"""The commands of `benchmarks/seeds` print what the papers and their recorded data say."""

from importlib import import_module
from pathlib import Path

import pytest


def agrees(system: str) -> bool:
    return all(comparison.agrees for comparison in import_module(f"benchmarks.seeds.{system}").compare())


@pytest.mark.parametrize("system", ["bathtub", "scavenger", "spotdnn"])
def test_every_figure_agrees_with_the_paper(system: str) -> None:
    """The comparison that the command prints."""
    assert agrees(system)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["dispa", "sailor", "transient"])
def test_every_figure_agrees_with_recorded_data(
    system: str, reference_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where the figures follow from the reference data."""
    monkeypatch.setenv("WALRAS_DATA", str(reference_data))
    assert agrees(system)
