"""Files of conditions: what they say is what the world is like."""

import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from optimizer.policy import PolicySpec
from simulator.conditions import Conditions
from simulator.engine import SolveClock, SolveTime
from simulator.simulate import Scenario
from simulator.study.cell import Cell, Source, description, key_of, run_cell
from simulator.truth import Costs, Truth
from walras.checking import check
from walras.errors import ConfigError
from walras.yaml_text import parse_yaml

PLAIN = Scenario((), Truth({}), PolicySpec("fifo"))
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "simulator.md"


def _read(text: str) -> Conditions:
    return check(Conditions, parse_yaml(text, source="test", max_bytes=10_000), source="test")


def test_conditions_that_say_nothing_change_nothing() -> None:
    """The same scenario, to the last field."""
    assert Conditions().applied_to(PLAIN) == PLAIN


def test_what_a_file_says_reaches_the_scenario() -> None:
    """The example of the document, field by field."""
    (example,) = re.findall(r"```yaml\n(costs:.*?)```", DOCUMENT.read_text(), re.DOTALL)
    scenario = _read(example).applied_to(PLAIN)
    assert scenario.truth.default_costs == Costs(20.0, 30.0, 600.0, 10.0, 2.0, 15.0)
    assert (scenario.world.speed_noise, scenario.world.cost_noise, scenario.world.report_noise) == (0.1, 0.35, 0.02)
    assert (scenario.world.report_s, scenario.oracle) == (60.0, False)
    assert (scenario.lengths.told, scenario.lengths.spread) == (True, 0.5)
    assert (scenario.faults.death_every_s, scenario.faults.repair_s, scenario.faults.lease_s) == (
        2.592e6,
        3600.0,
        600.0,
    )
    assert (scenario.faults.slow_every_s, scenario.faults.slow_s, scenario.faults.slow_pace) == (172_800.0, 600.0, 0.5)
    assert (scenario.faults.uncordon_s, scenario.faults.until_at) == (inf, inf)
    assert scenario.solve_time == SolveTime(SolveClock.FIXED, 3.0)
    assert _read("solve: measured").applied_to(PLAIN).solve_time == SolveTime(SolveClock.MEASURED)


@pytest.mark.parametrize("text", ["noise: {speeds: -1}", "faults: {slow_pace: 0}", "solve: soon", "stragglers: 1h"])
def test_what_makes_no_sense_is_refused(text: str) -> None:
    """By name."""
    with pytest.raises(ConfigError) as refused:
        _read(text)
    assert refused.value.field


def test_a_cell_runs_under_its_conditions_and_is_named_by_them(tmp_path: Path) -> None:
    """Another file of conditions is another run; the same words in another file are the same."""

    def cell(conditions: str | None) -> Cell:
        return Cell(Source("three-types"), "gavel-12-12-12", "fifo", conditions=conditions)

    files: list[Any] = [None]
    for number, text in enumerate(
        ("costs: {start: 100s}", "costs: {start: '100s'}  # the same", "lengths: {told: false}")
    ):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text)
    keys = [key_of(description(cell(None if file is None else str(file)))) for file in files]
    assert len(set(keys)) == 3
    assert keys[1] == keys[2]
    overheads = [{job.overhead_s for job in run_cell(cell(each)).result.jobs} for each in (None, str(files[1]))]
    assert overheads[0] == {0.0}
    assert min(overheads[1]) == pytest.approx(100.0)
