"""Reading Gavel's traces and tables, and saying exactly what is wrong with a bad one."""

import json
from pathlib import Path

import pytest

from scheduler.world.attempts import SimulatedJob
from simulator.ground_truth import SpeedKey
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, read_throughput_table
from walras.errors import ConfigError
from walras.job_request import Demand, Kind

LM = "LM (batch size 5)"


def _line(**changed: object) -> str:
    cells = {
        "job_type": LM, "command": "python main.py --data %s/wikitext2", "folder": "language_modeling",
        "steps_arg": "--steps", "needs_data": 1, "steps": 1000, "scale_factor": 1, "weight": 1, "slo": "-1.000000",
        "arrival": "0.000000",
    }  # fmt: skip
    return "\t".join(str(cell) for cell in {**cells, **changed}.values()) + "\n"


def _trace(folder: Path, *lines: str) -> Path:
    path = folder / "trace.tsv"
    path.write_text("".join(lines))
    return path


SPEEDS = {
    SpeedKey(Kind(LM), "v100", 1): 10.0, SpeedKey(Kind(LM), "k80", 1): 4.0, SpeedKey(Kind(LM), "v100", 8): 40.0,
    SpeedKey(Kind(LM), "k80", 8): 0.0,
}  # fmt: skip


def _jobs(path: Path, *types: str) -> list[SimulatedJob]:
    """The trace's jobs on these types."""
    placing = TraceBinding(dict.fromkeys(types, 1.0), table=SPEEDS, source=str(path))
    return list(placing.jobs(read_trace(path).jobs))


def test_a_row_becomes_a_job(tmp_path: Path) -> None:
    """Type is the kind, scale factor the gang, weight the weight, arrival the submission; ids count from 1."""
    path = _trace(tmp_path, _line(), _line(weight=5, arrival="12.5", slo="2.000000"))
    first, second = _jobs(path, "v100", "k80", "p100")
    assert first.request.demands == (Demand("k80", 1), Demand("v100", 1))
    assert (first.request.job_id, first.request.kind, first.steps, first.request.steps) == (1, LM, 1000.0, 1000.0)
    assert (second.at, second.request.weight, second.request.deadline_at) == (12.5, 5.0, 12.5 + 2.0 * 100.0)
    assert [job.name for job in (first, second)] == ["0", "1"]


def test_a_job_does_not_accept_what_it_has_no_speed_on(tmp_path: Path) -> None:
    (job,) = _jobs(_trace(tmp_path, _line(scale_factor=8)), "v100", "k80")
    assert job.request.demands == (Demand("v100", 8),)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ((_line(), "LM\t1\n"), r"trace\.tsv:2: 2 columns, 10 expected"),
        ((_line(), "\n"), r"trace\.tsv:2: an empty line"),
        ((_line(job_type=""),), r"trace\.tsv:1: job_type is empty"),
        ((_line(job_type="a\u202eb"),), r"trace\.tsv:1: job_type has the character '\\u202e'"),
        ((_line(steps="-5"),), r"trace\.tsv:1: total_steps is '-5'"),
        ((_line(steps="1e5"),), "total_steps is '1e5'"),
        ((_line(scale_factor=0),), "scale_factor is '0'"),
        ((_line(weight=0),), "priority_weight is '0'"),
        ((_line(weight="nan"),), "priority_weight is 'nan'"),
        ((_line(arrival="-1"),), "arrival_time is '-1'"),
        ((_line(arrival="inf"),), "arrival_time is 'inf'"),
        ((_line(arrival="7"), _line(arrival="6")), r"trace\.tsv:2: arrives at 6 s, before the row above it \(7 s\)"),
        ((_line(job_type="x" * 100_000),), r"trace\.tsv:1: more than 65536 characters"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, lines: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_trace(_trace(tmp_path, *lines))


def test_a_job_that_runs_nowhere_is_named(tmp_path: Path) -> None:
    """A type without a speed on the cluster's accelerators cannot be simulated."""
    path = _trace(tmp_path, _line(job_type="Unknown"))
    with pytest.raises(ConfigError, match=r"trace\.tsv:1: 'Unknown' x 1 has no speed on v100"):
        _jobs(path, "v100")


def test_a_table_gives_the_speed_of_gangs_that_run_alone(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"v100": {f"('{LM}', 2)": {"null": 3.5, "('other', 2)": [1.0, 2.0]}}}))
    assert read_throughput_table(path) == {SpeedKey(Kind(LM), "v100", 2): 3.5}


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"v100": 3}', '{"v100": {"LM": {"null": 1}}}', '{"v100": {"(\'LM\', 1)": {"null": -1}}}'],
)
def test_a_bad_table_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"table\.json"):
        read_throughput_table(path)


def test_a_missing_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_trace(tmp_path / "nothing.tsv")
