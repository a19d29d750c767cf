"""What the jobs of a trace are on a cluster: accepted types, speeds, work, deadlines."""

from dataclasses import fields, replace
from math import inf
from pathlib import Path

import pytest

from scheduler.world.attempts import PlannedFailure
from simulator.experiment import load_experiment
from simulator.ground_truth import SpeedKey
from simulator.workloads.trace_binding import TraceBinding
from simulator.workloads.trace_source import ReadOptions, TraceFailure, TraceJob
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind

CLUSTER = """
pools:
  - {shape: a100x4, accelerator: a100, accelerators: 4, cpus: 4, memory: 8GB, nominal_speed: 4, machines: 2}
  - {shape: k80x2, accelerator: k80, accelerators: 2, cpus: 4, memory: 8GB, nominal_speed: 1, machines: 1}
speeds: {cnn: {a100: 12, k80: 3}}
"""


def _placing(table: dict[SpeedKey, float] | None = None) -> TraceBinding:
    """On two types, with one declared kind."""
    return TraceBinding({"a100": 4.0, "k80": 1.0}, declared={"cnn": {"a100": 12.0, "k80": 3.0}}, table=table)


def _speeds(placing: TraceBinding, kind: str, gang: int) -> list[float | None]:
    return [placing.speeds.get(SpeedKey(Kind(kind), name, gang)) for name in ("a100", "k80")]


def test_a_duration_is_worth_that_long_on_the_fastest_type() -> None:
    """Where nobody knows the kind, types differ by their nominal speeds."""
    placing = _placing()
    (job,) = placing.jobs([TraceJob(5.0, "a", "any", 2, duration_s=100.0)])
    assert _speeds(placing, "any", 2) == [4.0, 1.0]
    assert (job.at, job.steps, job.request.steps) == (5.0, 400.0, 400.0)
    assert job.request.demands == (Demand("a100", 2), Demand("k80", 2))


def test_steps_are_taken_at_the_known_speed() -> None:
    placing = _placing()
    (job,) = placing.jobs([TraceJob(0.0, "a", "cnn", 1, steps=60.0, duration_s=1e6)])
    assert (job.steps, _speeds(placing, "cnn", 1)) == (60.0, [12.0, 3.0])


def test_a_duration_refers_to_the_type_it_names() -> None:
    """Even to one that the cluster does not have; else to the fastest it may use."""
    table = {SpeedKey(Kind("k"), name, 1): speed for name, speed in (("a100", 8.0), ("k80", 1.0), ("v100", 2.0))}
    rows = [
        TraceJob(0.0, "a", "k", 1, duration_s=10.0, duration_on="v100"),
        TraceJob(0.0, "b", "k", 1, duration_s=10.0, duration_on="h100"),
        TraceJob(0.0, "c", "k", 1, duration_s=10.0, types=("k80",)),
    ]
    placed = list(_placing(table=table).jobs(rows))
    assert [job.steps for job in placed] == [20.0, 80.0, 10.0]
    assert placed[2].request.demands == (Demand("k80", 1),)


def test_a_table_goes_before_the_row_and_the_row_before_the_cluster() -> None:
    """The first that knows the kind."""
    rows = [TraceJob(0.0, "a", "cnn", 1, steps=1.0, speeds=(("a100", 5.0),))]
    placing = _placing()
    (job,) = placing.jobs(rows)
    assert _speeds(placing, "cnn", 1) == [5.0, None]
    assert job.request.demands == (Demand("a100", 1),)
    tabled = _placing(table={SpeedKey(Kind("cnn"), "k80", 1): 7.0})
    assert next(tabled.jobs(rows)).request.demands == (Demand("k80", 1),)


def test_an_estimate_is_all_that_the_scheduler_is_told() -> None:
    (job,) = _placing().jobs([TraceJob(0.0, "a", "any", 1, duration_s=100.0, estimate_s=500.0)])
    assert (job.steps, job.request.steps, job.request.duration_s) == (400.0, None, 500.0)


def test_deadlines() -> None:
    """The earlier of the instant and the multiple of the run time; none without either."""
    rows = [
        TraceJob(10.0, "a", "any", 1, duration_s=100.0, slo=2.0),
        TraceJob(10.0, "b", "any", 1, duration_s=100.0, slo=2.0, deadline_at=150.0),
        TraceJob(10.0, "c", "any", 1, duration_s=100.0),
    ]
    assert [job.request.deadline_at for job in _placing().jobs(rows)] == [210.0, 150.0, inf]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (TraceJob(0.0, "a", "any", 1, steps=5.0, line=7), r"trace:7: 'any' x 1 has no speed on a100, k80"),
        (TraceJob(0.0, "a", "bert", 2), "'bert' x 2 has no length: neither steps nor a duration"),
        (TraceJob(0.0, "a", "any", 1, duration_s=5.0, types=("h100",)), "wants h100; the cluster has a100, k80"),
        (TraceJob(0.0, "a", "x", 1, steps=5.0, speeds=(("h100", 3.0),)), "'x' x 1 has no speed on a100, k80"),
    ],
)
def test_what_cannot_run_here_is_named(row: TraceJob, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        list(_placing().jobs([row]))


def test_two_rows_of_a_kind_say_the_same_speed() -> None:
    """Else one of them would run at the other's."""
    rows = [
        TraceJob(0.0, name, "k", 1, steps=5.0, speeds=(("a100", speed),)) for name, speed in (("a", 2.0), ("b", 3.0))
    ]
    with pytest.raises(ConfigError, match="makes 3 steps/s on 1 x a100, an earlier job of its kind 2"):
        list(_placing().jobs(rows))


def test_a_row_says_all_that_the_scheduler_hears_of_a_job() -> None:
    """No field of a request is beyond a trace, but its number, what is held, a menu of plans, which job files state,
    and what a live run alone believes.

    (An elastic job is neither forked nor mixed: the row is tried with these instead.)
    """
    above = TraceJob(0.0, "first", "cnn", 1, steps=10.0)
    row = TraceJob(
        1.0, "second", "cnn", 2, types=("a100",), steps=240.0, estimate_factor=0.5, sizes=(2, 4), nodes=2, weight=2.0,
        scaling=0.5, priority=80, user="ada", project="vision", deadline_at=99.0, value_usd_per_h=3.0, cpus=4.0,
        memory_bytes=2**30, depends_on=("first",), condition="finished", not_before_at=5.0, cancel_at=50.0,
        budget_usd=8.0, preemptible=False, max_restarts=2, restart_codes=(3,), max_runtime_s=60.0, max_queue_s=70.0,
        grace_s=9.0, failures=(TraceFailure(0.25, 3, 2),),
    )  # fmt: skip
    placing = _placing()
    job = list(placing.jobs([above, row]))[1]
    plain = JobRequest(JobId(1), Kind("k"), demands=())
    said = {each.name for each in fields(JobRequest) if getattr(job.request, each.name) != getattr(plain, each.name)}
    for mixed in (True, "shares"):
        spread = list(_placing().jobs([above, replace(row, sizes=(), fork_max=2, mixed=mixed)]))[1].request
        said |= {name for name in ("fork_max", "mixed", "shares") if getattr(spread, name) != getattr(plain, name)}
    assert {each.name for each in fields(JobRequest)} - said == {
        "duration_s", "held", "declared", "unproven", "sweep", "sweep_limit", "checkpoint_every_s", "pools", "tools",
        "data", "shared", "plans", "program",
    }  # fmt: skip
    assert (job.steps, job.request.steps, job.request.depends_on) == (240.0, 120.0, (1,))
    assert (job.cancel_at, job.failures) == (50.0, (PlannedFailure(60.0, 3, 2),))
    four = placing.speeds[SpeedKey(Kind("cnn"), "a100", 4)]
    assert four == pytest.approx(placing.speeds[SpeedKey(Kind("cnn"), "a100", 2)] * 2**0.5)
    assert next(_placing().jobs([replace(above, estimate_factor=0.0)])).request.steps is None
    with pytest.raises(ConfigError, match="depends on 'first', and no job above it has that name"):
        list(_placing().jobs(iter([above, row])))


def test_a_trace_in_any_format_is_an_experiment(tmp_path: Path) -> None:
    """And a job that no pool can hold is refused before anything runs."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    trace = tmp_path / "t.csv"
    trace.write_text("at,name,kind,gang,duration_s\n0,a,cnn,8,60\n")
    experiment = load_experiment(trace, tmp_path / "c.yaml")
    (job,) = experiment.jobs
    assert (job.steps, experiment.truth.steps_per_s(job.request.kind, "a100", 8)) == (720.0, 12.0)
    trace.write_text("at,name,kind,gang,duration_s\n0,a,cnn,1,60\n1,b,cnn,9,60\n")
    with pytest.raises(ConfigError, match=r"job 2 \(b\) wants 9 x a100 or 9 x k80; no pool is that large"):
        load_experiment(trace, tmp_path / "c.yaml")
    (tmp_path / "t.dat").write_text(trace.read_text().replace(",9,", ",8,"))
    assert len(list(load_experiment(tmp_path / "t.dat", tmp_path / "c.yaml", format="csv").jobs)) == 2


def test_a_table_that_lacks_a_type_of_the_cluster_is_refused(tmp_path: Path) -> None:
    """Half of the cluster would stand idle without a word."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    (tmp_path / "t.csv").write_text("at,name,kind,gang,duration_s\n0,a,cnn,1,60\n")
    (tmp_path / "s.json").write_text('{"a100": {"(\'cnn\', 1)": {"null": 1}}}')
    with pytest.raises(ConfigError, match=r"s\.json: no speeds for k80 of the cluster"):
        load_experiment(tmp_path / "t.csv", tmp_path / "c.yaml", speeds_path=tmp_path / "s.json")


def test_jobs_that_no_machine_can_hold_are_named_before_anything_runs(tmp_path: Path) -> None:
    """By processors, memory and machine size, not by accelerators alone: one of them would block all behind it."""
    (tmp_path / "c.yaml").write_text(CLUSTER)
    trace = tmp_path / "t.csv"
    rows = "".join(f"{number},j{number},cnn,1,60,{cpus},1\n" for number, cpus in enumerate((1, 5, 1, 6, 7, 8, 9, 10)))
    trace.write_text("at,name,kind,gang,duration_s,cpus,nodes\n" + rows + "9,wide,cnn,6,60,1,3\n")
    with pytest.raises(ConfigError) as refused:
        load_experiment(trace, tmp_path / "c.yaml")
    said = str(refused.value)
    assert said.startswith("7 jobs could never run on this cluster: job 2 (j1) ")
    assert "5 processors" in said or "cpus" in said
    assert said.endswith("; and 2 more")
    assert "skip_bad_rows" in (refused.value.fix or "")
    experiment = load_experiment(trace, tmp_path / "c.yaml", reading=ReadOptions(skip_bad_rows=True))
    assert [job.name for job in experiment.jobs] == ["j0", "j2"]
    assert experiment.skipped.count == 7
    assert experiment.skipped.first[0].startswith("job 2 (j1) ")


TWO_FAMILIES = """
pools:
  - {shape: small, accelerator: NVIDIA A100-SXM4-40GB, accelerators: 2, cpus: 8, memory: 16GB, machines: 1}
  - {shape: large, accelerator: a100_80gb, accelerators: 2, cpus: 8, memory: 16GB, machines: 1}
  - {shape: other, accelerator: t4, accelerators: 4, cpus: 8, memory: 16GB, machines: 1}
speeds:
  cnn: {A100: 10, a100-80gb: 20, T4: 1}
"""
WORKLOAD = """
jobs:
  - {at: 0, job: {name: one, run: "true", profile: cnn, steps: 1000, resources: {accelerators: "NVIDIA A100:2"}}}
"""
TRACE = "at,name,kind,gang,steps,types\n0,one,cnn,2,1000,Tesla A100\n"


@pytest.mark.parametrize("name", ["workload.yaml", "trace.csv"])
def test_a_family_is_every_size_of_the_cluster_at_its_own_speed(tmp_path: Path, name: str) -> None:
    """A size has the speed that the cluster states for it, else that of the family; another product is no choice."""
    (tmp_path / "cluster.yaml").write_text(TWO_FAMILIES)
    (tmp_path / name).write_text(WORKLOAD if name.endswith("yaml") else TRACE)
    experiment = load_experiment(tmp_path / name, tmp_path / "cluster.yaml")
    (job,) = experiment.jobs
    types = [model.pool.shape.accelerator for model in experiment.pools]
    assert [job.request.size_on(model.pool) for model in experiment.pools] == [2, 2, 0]
    assert experiment.truth.accelerators_of(job.request, types) == [("a100-40gb", 2), ("a100-80gb", 2)]
    speeds = [experiment.truth.steps_per_s(job.request.kind, name, 2) for name in types[:2]]
    assert speeds == [10.0, 20.0]
