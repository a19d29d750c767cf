"""Profiles as files: interpolated where something was measured, refused by name where nothing was or a row is wrong."""

from itertools import product
from pathlib import Path

import pytest

from simulator.goodput import (
    GangLayout,
    MeasuredStepTimes,
    OutsideProfileError,
    RecordedLearningCurve,
    RecordedTraining,
    StepTimeCurve,
    StepTimes,
    local_batch_range,
    read_learning_curve,
    read_step_times,
)
from walras.errors import ConfigError

PLACEMENTS = "placement,local_bsz,step_time,sync_time\n"
SCALABILITY = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n"
VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n"


def _steps(folder: Path, placements: str, scalability: str = "") -> MeasuredStepTimes:
    (folder / "placements.csv").write_text(PLACEMENTS + placements)
    (folder / "scalability.csv").write_text(SCALABILITY + scalability)
    return read_step_times("net", folder / "placements.csv", folder / "scalability.csv")


def test_a_measured_placement_is_linear_between_its_batches(tmp_path: Path) -> None:
    """In whatever rotation it is asked for; rows may stand in any order."""
    law = _steps(tmp_path, "12,8,2.0,0.5\n12,4,1.0,0.1\n1,4,0.5,0.0\n")
    assert law.times(GangLayout((2, 1)), 6) == StepTimes(1.5, pytest.approx(0.3))
    assert law.times(GangLayout((1, 2)), 8) == StepTimes(2.0, 0.5)
    assert local_batch_range(tmp_path / "placements.csv") == (4, 8)


def test_a_batch_outside_the_measured_ones_is_refused_by_name(tmp_path: Path) -> None:
    law = _steps(tmp_path, "12,8,2.0,0.5\n12,4,1.0,0.1\n")
    with pytest.raises(OutsideProfileError, match=r"net .* on 1\+2 accelerators with 3 samples each: from 4 to 8"):
        law.times(GangLayout((1, 2)), 3)


def test_other_placements_are_interpolated_between_those_around_them() -> None:
    """Times that are linear in machines, accelerators and samples come out exactly, and even the uneven count once."""

    def times(machines: int, accelerators: int, local: int) -> StepTimes:
        return StepTimes(machines + 0.5 * accelerators + 0.25 * local, 0.5 * machines)

    curve = [times(2, 4, local) for local in (4, 8)]
    # 1+3 and 2+2 are one point, half way between their times.
    curves = {
        GangLayout(parts): StepTimeCurve(
            (4, 8), tuple(t.step_s + off for t in curve), tuple(t.sync_s + off for t in curve)
        )
        for parts, off in (((1, 3), 0.1), ((2, 2), -0.1))
    }
    grid = list(product((2, 6), (4, 24), (4, 8)))
    law = MeasuredStepTimes("net", curves, [(point, times(*point)) for point in grid if point[:2] != (2, 4)])
    found = law.times(GangLayout((3, 3, 3, 3)), 5)
    assert (found.step_s, found.sync_s) == pytest.approx((11.25, 2.0))
    # Seven machines count as six.
    assert law.times(GangLayout((2,) * 7), 5).step_s == pytest.approx(6 + 7 + 1.25)


def test_a_placement_with_nothing_measured_around_it_is_refused_by_name(tmp_path: Path) -> None:
    law = _steps(tmp_path, "1,4,1.0,0.1\n1,8,2.0,0.1\n", "6,6,4,1.0,0.5\n6,12,4,1.2,0.5\n6,6,8,2.0,0.5\n")
    with pytest.raises(OutsideProfileError, match="no placements around it"):
        law.times(GangLayout((4, 4)), 6)
    alone = _steps(tmp_path, "1,4,1.0,0.1\n")
    with pytest.raises(OutsideProfileError, match="too few placements"):
        alone.times(GangLayout((4, 4)), 4)


@pytest.mark.parametrize(
    ("placements", "scalability", "told"),
    [
        ("102,8,2.0,0.5\n", "", "placements.csv:2: placement is '102'"),
        ("12,8,0,0\n", "", "placements.csv:2: step_time is '0'"),
        ("12,8,1.0,-1\n", "", "placements.csv:2: sync_time is '-1'"),
        ("12,8,1.0,1.5\n", "", "placements.csv:2: sync_time is 1.5, above step_time"),
        ("12,8,1.0,0.5\n21,8,1.0,0.5\n", "", "the same local_bsz"),
        ("12,8,1.0\n", "", "placements.csv:2: 3 columns, 4 expected"),
        ("12,8,1.0,0.5\n", "6,6,x,1.0,0.5\n", "scalability.csv:2: local_bsz is 'x'"),
    ],
)
def test_a_wrong_row_of_step_times_is_named(tmp_path: Path, placements: str, scalability: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _steps(tmp_path, placements, scalability)
    assert told in str(caught.value)


def _learning(folder: Path, files: dict[int, str], epochs: int) -> RecordedLearningCurve:
    for batch, rows in files.items():
        (folder / f"validation-{batch}.csv").write_text(VALIDATION + rows)
    return read_learning_curve("net", folder, epochs)


def test_an_epoch_is_as_much_work_as_the_run_that_made_least_of_it(tmp_path: Path) -> None:
    """Rows beyond the epochs asked for are not read as work; noise and updates are linear between batches."""
    learning = _learning(
        tmp_path, {8: "10,10,0,4,8\n20,20,0,2,6\n30,30,0,1,1\n", 16: "11,5,0,8,2e15\n19,9,0,4,2\n30,15,0,1,1\n"}, 2
    )
    assert learning.work == (0.0, 10.0, 19.0)
    assert learning.batches == (8, 16)
    assert learning.noise(12, 1).grad_sqr == 3.0
    assert learning.noise(16, 0).grad_var == 2e15
    assert learning.updates(10, 2) == pytest.approx(20 - 11 / 4)
    assert learning.updates(10, 0) == 0.0


def test_a_batch_or_an_epoch_that_was_never_run_is_refused_by_name() -> None:
    run = RecordedTraining((10.0,), (10.0,), (1.0,), (1.0,))
    learning = RecordedLearningCurve("net", {8: run, 16: run}, 1)
    for batch in (7, 17):
        with pytest.raises(OutsideProfileError, match=f"batches from 8 to 16, not {batch}"):
            learning.noise(batch, 0)
    with pytest.raises(OutsideProfileError, match="no epoch 1"):
        learning.noise(8, 1)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("10,10,0,1,1\n", "validation-8.csv: 1 epochs, 2 expected"),
        ("10,10,0,1,1\n9,20,0,1,1\n", "progress does not grow"),
        ("0,10,0,1,1\n9,20,0,1,1\n", "progress does not grow"),
        ("10,10,0,nan,1\n20,20,0,1,1\n", "validation-8.csv:2: grad_sqr is 'nan'"),
    ],
)
def test_a_wrong_recorded_run_is_named(tmp_path: Path, rows: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _learning(tmp_path, {8: rows}, 2)
    assert told in str(caught.value)


def test_a_folder_without_a_recorded_run_is_named(tmp_path: Path) -> None:
    """So is a file whose name does not say its batch."""
    with pytest.raises(ConfigError, match=r"no validation-\*\.csv"):
        read_learning_curve("net", tmp_path, 2)
    (tmp_path / "validation-x.csv").write_text(VALIDATION)
    with pytest.raises(ConfigError, match=r"validation-128\.csv is expected"):
        read_learning_curve("net", tmp_path, 2)
