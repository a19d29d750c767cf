"""The commands of `benchmarks/seeds` print what the papers and their recorded data say."""

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from benchmarks.instances import Instance, draw
from benchmarks.seeds.incremental_dual import ClassMembers, IncrementalSolver
from optimizer.classes.class_problem import MaxSum


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


def test_a_market_stays_certified_while_jobs_come_and_go() -> None:
    """Ten of five hundred leave and ten come: the bound holds for the market as it is, and a solve closes the gap."""
    drawn, later = draw(Instance(500, 4, seed=1)), draw(Instance(500, 4, seed=2))
    standing = IncrementalSolver(drawn.market, MaxSum(drawn.speed, drawn.speed, np.zeros(500)))
    newcomers = ClassMembers(later.market, MaxSum(later.speed, later.speed, np.zeros(500)))
    for event in range(10):
        standing.leave(7 * event)
        standing.arrive(newcomers.entrant(event))
    lasting = standing.certificate
    settled = standing.recertify()
    assert lasting.reached <= settled.bound
    assert lasting.bound >= settled.reached
    assert lasting.gap < 1e-2
    assert settled.gap <= 1e-4
