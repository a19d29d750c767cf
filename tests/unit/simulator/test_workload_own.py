"""Walras' own trace format: what is written reads back as the same jobs."""

import gzip
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.workloads.formats import read_trace, write_trace
from simulator.workloads.trace_source import Trace, TraceFailure, TraceJob
from walras.errors import ConfigError

HEADER = "at,name,kind,gang,duration_s\n"


names = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=30).filter(
    lambda text: text == text.strip()
)
positive = st.floats(1e-6, 1e12)
types = st.sampled_from(["a100-40gb", "k80", "p100", "v100"])
failures = st.builds(
    TraceFailure, part=st.floats(0, 1, exclude_max=True), exit_code=st.integers(1, 255),
    times=st.none() | st.integers(1, 9),
)  # fmt: skip


@st.composite
def related(draw: st.DrawFn, jobs: st.SearchStrategy[TraceJob]) -> list[TraceJob]:
    """Jobs in order of arrival, each of which may wait for some above it; what its columns say goes together."""
    rows = sorted(draw(st.lists(jobs, min_size=1, max_size=5, unique_by=lambda job: job.name)), key=lambda job: job.at)
    found: list[TraceJob] = []
    for job in rows:
        above = draw(st.lists(st.sampled_from(found), unique_by=lambda job: job.name, max_size=2)) if found else []
        sizes = tuple(sorted({job.gang, *draw(st.sets(st.integers(1, 64), min_size=1, max_size=3))}))
        nodes = draw(st.sampled_from([n for n in (1, 2, 3, 8) if job.gang % n == 0]))
        found.append(
            replace(
                job,
                depends_on=tuple(other.name for other in above),
                sizes=draw(st.sampled_from([(), sizes])) if nodes == 1 else (),
                nodes=nodes,
                cancel_at=job.at + draw(st.just(inf) | st.floats(0, 1e6)),
                batch_max=draw(st.none() | st.integers(job.batch or 1, 2 * 10**9)),
                estimate_factor=draw(st.sampled_from([0.0, 0.5, 1.0, 3.7])) if job.estimate_s is None else 1.0,
            )
        )
    return found


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
    scaling=st.floats(0.01, 1.0),
    condition=st.sampled_from(["", "finished"]),
    not_before_at=st.just(-inf) | st.floats(0, 1e9),
    preemptible=st.booleans(),
    max_restarts=st.integers(0, 1000),
    restart_codes=st.sets(st.integers(1, 255), max_size=3).map(sorted).map(tuple),
    max_runtime_s=st.just(inf) | positive,
    budget_usd=st.just(inf) | positive,
    max_queue_s=st.just(inf) | positive,
    grace_s=positive,
    failures=st.lists(failures, max_size=2).map(tuple),
)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "csv.gz"])
@given(ordered=related(jobs))
@settings(max_examples=30, deadline=None)
def test_what_is_written_reads_back_as_the_same_jobs(
    tmp_path_factory: pytest.TempPathFactory, ending: str, ordered: list[TraceJob]
) -> None:
    path = tmp_path_factory.mktemp("own") / f"t.{ending}"
    write_trace(Trace("made up", "generated", ordered), path)
    assert list(read_trace(path).jobs) == ordered


def test_only_what_some_job_has_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_trace(Trace("", "", [TraceJob(0.5, "a", "k", 2, duration_s=60.0), TraceJob(1.0, "b", "k", 1)]), path)
    assert path.read_text() == "at,name,kind,gang,duration_s\n0.5,a,k,2,60.0\n1.0,b,k,1,\n"


def test_equal_traces_give_equal_bytes(tmp_path: Path) -> None:
    trace = Trace("", "", [TraceJob(0.0, "a", "k", 1, duration_s=60.0)])
    for name in ("first.csv.gz", "second.csv.gz"):
        write_trace(trace, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("first.csv.gz", "second.csv.gz"))
    assert first == second
    assert gzip.decompress(first).startswith(b"at,name")


def test_a_file_that_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
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
        ("t.csv", "at,name,kind,gang,sizes\n0,a,k,2,1|4\n", r"t\.csv:2: sizes has no 2, the job's gang"),
        ("t.csv", "at,name,kind,gang,sizes\n0,a,k,2,1|-2\n", r"sizes is '1\|-2'"),
        ("t.csv", "at,name,kind,gang,nodes\n0,a,k,3,2\n", "nodes is 2, which cannot share the gang evenly"),
        ("t.csv", "at,name,kind,gang,scaling\n0,a,k,1,1.5\n", "scaling is '1.5'"),
        ("t.csv", "at,name,kind,gang,cancel_at\n9,a,k,1,5\n", "cancel_at is 5, before the job arrives"),
        ("t.csv", "at,name,kind,gang,depends_on\n0,a,k,1,b\n0,b,k,1,\n", r"t\.csv:2: depends_on names 'b', and no job"),
        ("t.csv", "at,name,kind,gang,depends_on\n0,a,k,1,a\n", "depends_on names 'a', and no job above"),
        ("t.csv", "at,name,kind,gang,condition\n0,a,k,1,maybe\n", "condition is 'maybe'"),
        ("t.csv", "at,name,kind,gang,preemptible\n0,a,k,1,true\n", "preemptible is 'true'"),
        ("t.csv", "at,name,kind,gang,failures\n0,a,k,1,1.0=3\n", "failures is '1.0=3'"),
        ("t.csv", "at,name,kind,gang,failures\n0,a,k,1,0.5=300\n", "failures is '0.5=300'"),
        ("t.csv", "at,name,kind,gang,failures\n0,a,k,1,0.5\n", "failures is '0.5'"),
        ("t.csv", "at,name,kind,gang,estimate_s,estimate_factor\n0,a,k,1,5,2\n", "estimate_factor stands beside"),
        ("t.csv", "at,name,kind,gang,batch,batch_max\n0,a,k,1,64,32\n", "batch_max is 32, below batch"),
        ("t.csv", "at,name,kind,gang,restart_codes\n0,a,k,1,0\n", "restart_codes is '0'"),
        ("t.csv", "at,name,kind,gang,grace_s\n0,a,k,1,-1\n", "grace_s is '-1'"),
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
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_trace(tmp_path / name)
