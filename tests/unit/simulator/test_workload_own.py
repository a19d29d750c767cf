"""Walras' own trace format: what is written reads back as the same jobs."""

import gzip
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.workloads.formats import read_workload, write_trace
from simulator.workloads.job import Trace, TraceJob
from walras.errors import ConfigError

HEADER = "at,name,kind,gang,duration_s\n"


names = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=30).filter(
    lambda text: text == text.strip()
)
positive = st.floats(1e-6, 1e12)
types = st.sampled_from(["a100-40gb", "k80", "p100", "v100"])
jobs = st.builds(
    TraceJob,
    at=st.floats(0, 1e9),
    name=names,
    kind=names,
    gang=st.integers(1, 65_536),
    types=st.lists(types, unique=True, max_size=3).map(tuple),
    steps=st.none() | positive,
    duration_s=st.none() | positive,
    duration_on=st.just("") | types,
    estimate_s=st.none() | positive,
    speeds=st.dictionaries(types, st.floats(0, 1e9)).map(lambda speeds: tuple(sorted(speeds.items()))),
    weight=positive,
    priority=st.integers(0, 100),
    user=st.just("") | names,
    project=names,
    deadline_at=st.just(inf) | st.floats(-1e9, 1e9),
    slo=st.none() | positive,
    value_usd_per_h=st.none() | st.floats(0, 1e9),
    cpus=st.floats(0, 1e4),
    memory_bytes=st.integers(0, 2**45),
    batch=st.none() | st.integers(1, 10**9),
    batch_rule=st.sampled_from(["", "static", "accordion", "gns"]),
)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "csv.gz"])
@given(rows=st.lists(jobs, min_size=1, max_size=5, unique_by=lambda job: job.name))
@settings(max_examples=30, deadline=None)
def test_what_is_written_reads_back_as_the_same_jobs(
    tmp_path_factory: pytest.TempPathFactory, ending: str, rows: list[TraceJob]
) -> None:
    """Every field of every job, to the last bit, in either form."""
    ordered = sorted(rows, key=lambda job: job.at)
    path = tmp_path_factory.mktemp("own") / f"t.{ending}"
    write_trace(Trace("made up", "generated", ordered), path)
    assert list(read_workload(path).jobs) == ordered


def test_only_what_some_job_has_is_written(tmp_path: Path) -> None:
    """A plain trace stays plain to read."""
    path = tmp_path / "t.csv"
    write_trace(Trace("", "", [TraceJob(0.5, "a", "k", 2, duration_s=60.0), TraceJob(1.0, "b", "k", 1)]), path)
    assert path.read_text() == "at,name,kind,gang,duration_s\n0.5,a,k,2,60.0\n1.0,b,k,1,\n"


def test_equal_traces_give_equal_bytes(tmp_path: Path) -> None:
    """Also when packed: no time and no name is in the file."""
    trace = Trace("", "", [TraceJob(0.0, "a", "k", 1, duration_s=60.0)])
    for name in ("first.csv.gz", "second.csv.gz"):
        write_trace(trace, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("first.csv.gz", "second.csv.gz"))
    assert first == second
    assert gzip.decompress(first).startswith(b"at,name")


def test_a_file_that_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
    """And nothing half written is left behind."""
    trace = Trace("", "", [TraceJob(0.0, "a", "k", 1)])
    path = tmp_path / "t.jsonl"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        write_trace(trace, path)
    assert path.read_text() == "mine"
    write_trace(trace, path, force=True)
    assert path.read_text() == '{"at": 0.0, "name": "a", "kind": "k", "gang": 1}\n'
    with pytest.raises(ConfigError, match=r"traces are written as \.csv, \.jsonl"):
        write_trace(trace, tmp_path / "t.xml")
    with pytest.raises(ConfigError, match="No such file"):
        write_trace(trace, tmp_path / "no" / "t.csv")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.jsonl"]


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("t.csv", "at,name,kind,gang,durations\n0,a,k,1,5\n", "no trace has a column 'durations'"),
        ("t.csv", HEADER + "0,a,k,0,5\n", r"t\.csv:2: gang is '0'"),
        ("t.csv", HEADER + "0,a,k,1,-5\n", r"duration_s is '-5'"),
        ("t.csv", "at,name,kind,gang,speeds\n0,a,k,1,v100=2|v100=3\n", r"speeds is 'v100=2\|v100=3'"),
        ("t.csv", "at,name,kind,gang,speeds\n0,a,k,1,v100\n", "speeds is 'v100'"),
        ("t.csv", "at,name,kind,gang,speeds\n0,a,k,1,v100=inf\n", "speeds is 'v100=inf'"),
        ("t.csv", "at,name,kind,gang,batch_rule\n0,a,k,1,odd\n", "batch_rule is 'odd'"),
        ("t.csv", "at,name,kind,gang,priority\n0,a,k,1,101\n", "priority is '101'"),
        ("t.csv", "at,name,kind,gang,weight\n0,a,k,1,0\n", "weight is '0'"),
        ("t.jsonl", '{"at": 0, "name": "a", "kind": "k"}\n', r"t\.jsonl:1: no field 'gang'"),
        (
            "t.jsonl",
            '{"at": 0, "name": "a", "kind": "k", "gang": 1, "gangs": 2}\n',
            "no field 'gangs'; did you mean 'gang'",
        ),
        ("t.jsonl", '{"at": NaN, "name": "a", "kind": "k", "gang": 1}\n', "NaN is no number"),
        ("t.jsonl", '{"at": true, "name": "a", "kind": "k", "gang": 1}\n', "true and false have no place"),
        ("t.jsonl", "[1]\n", r"t\.jsonl:1: no JSON object"),
        ("t.jsonl", "[" * 60_000 + "\n", r"t\.jsonl:1: "),
        ("t.jsonl", "{\n", r"t\.jsonl:1: "),
    ],
)
def test_a_mistake_is_named_by_file_and_line(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    """In either form."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_workload(tmp_path / name)
