"""Gavel's throughput tables: speeds alone and in pairs."""

import json
from pathlib import Path

import pytest

from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.workloads.speed_tables import read_pair_speeds, read_throughput_table
from walras.errors import ConfigError
from walras.job_request import Kind

A, B = "('net', 1)", "('other', 1)"


def _table(folder: Path, entries: object) -> Path:
    path = folder / "speeds.json"
    path.write_text(json.dumps({"v100": {A: entries, B: {"null": 4.0, A: [3.0, 1.5]}}}))
    return path


def test_each_member_of_a_pair_has_its_own_speed(tmp_path: Path) -> None:
    """What stands under a job says first how fast that job is; gangs of other sizes do not pair."""
    path = _table(tmp_path, {"null": 2.0, B: [1.5, 3.0], "('other', 2)": [9.0, 9.0]})
    truth = GroundTruth(read_throughput_table(path), pairs=read_pair_speeds(path, ["v100"]))
    assert truth.colocated_speed(Kind("net"), Kind("other"), "v100", 1) == 1.5
    assert truth.colocated_speed(Kind("other"), Kind("net"), "v100", 1) == 3.0
    assert truth.colocated_speed(Kind("net"), Kind("net"), "v100", 1) == 0.0
    assert truth.speeds[SpeedKey(Kind("net"), "v100", 1)] == 2.0
    assert read_pair_speeds(path, ["k80"]) == {}


@pytest.mark.parametrize("entries", [{"null": -1.0}, {B: [1.0, 1.0]}, {"null": "fast"}])
def test_a_speed_that_is_none_is_refused_by_place(tmp_path: Path, entries: object) -> None:
    """Negative, missing, or not a number."""
    with pytest.raises(ConfigError, match=r"v100: \('net', 1\)"):
        read_throughput_table(_table(tmp_path, entries))


@pytest.mark.parametrize("both", [[1.0], [1.0, -2.0], "fast"])
def test_a_pair_needs_two_speeds(tmp_path: Path, both: object) -> None:
    """One for each member."""
    with pytest.raises(ConfigError, match="speeds of both"):
        read_pair_speeds(_table(tmp_path, {"null": 1.0, B: both}), ["v100"])
