"""The Pollux artifact's mechanism, policies and time model on cases small enough to follow by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from training import steady

from scheduler.core.commands import AttemptTransitioned, Command
from scheduler.core.events import Event, RoundEnded
from scheduler.core.rules import parse_policy
from scheduler.core.state.fleet import FleetMachine
from simulator.engine import RunOutcome
from simulator.goodput.application import Application, GangLayout, OutsideProfileError
from simulator.ground_truth import SpeedKey
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.trace import TraceJob
from simulator.worlds.pollux.pollux_scenario import (
    T4_POOL,
    PackedGangSpeeds,
    PolluxFleet,
    PolluxJob,
    PolluxOptimus,
    place_on_emptiest,
    pollux_policy_names,
    pollux_scenario,
)
from simulator.worlds.pollux.pollux_training import PolluxTraining, PolluxWorkload, pollux_workload
from walras.cluster import NodeId
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import JobId, Kind
from walras.states import AttemptState

#: Arrival, accelerators, batch.
Row = tuple[float, int, int]
NET = steady()


def _workload(rows: Sequence[Row], application: Application = NET, machines: int = 2) -> PolluxWorkload:
    jobs = [TraceJob(at, f"job-{n}", application.name, gang, batch=batch) for n, (at, gang, batch) in enumerate(rows)]
    return pollux_workload(jobs, {application.name: application}, T4_POOL.pool, machines)


def _run(policy: str, rows: Sequence[Row], application: Application = NET, machines: int = 2) -> SimulationResult:
    workload = _workload(rows, application, machines)
    result = simulate(workload.jobs, pollux_scenario(workload, policy, pool=replace(T4_POOL, machines=machines)))
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    return result


def _ends(result: SimulationResult) -> list[float]:
    return [job.ended_at for job in sorted(result.jobs, key=lambda job: job.job_id)]


def test_a_job_is_seen_at_the_end_of_its_step_and_waits_out_its_start() -> None:
    """100 steps at one a second: submitted at 61 s, seen at 120 s, up at 150 s."""
    (job,) = _run("tiresias", [(61.0, 1, 8)]).jobs
    assert (job.first_run_at, job.ended_at) == (150.0, 250.0)
    assert (job.overhead_s, job.running_s) == (30.0, 100.0)


def test_a_job_that_comes_with_the_end_of_a_step_is_seen_at_once() -> None:
    """At 120 s, though another job came between; one that is there from the beginning waits for the first step."""
    ends = _ends(_run("tiresias", [(0.0, 1, 8), (100.0, 1, 8), (120.0, 1, 8)]))
    assert ends == [60.0 + 130.0, 120.0 + 130.0, 120.0 + 130.0]


def test_an_epoch_ends_after_a_whole_number_of_seconds() -> None:
    """Epochs of 50.5 steps: 20.5 s are rounded to the even 20, and so are the 10.5 s that the second has left."""
    assert _ends(_run("tiresias", [(0.0, 1, 8)], steady(steps=50.5))) == [60.0 + 30.0 + 100.0]
    # 51.5: 21.5 s become 22 s, and the 13.5 s after another 38 s become 14 s.
    assert _ends(_run("tiresias", [(0.0, 1, 8)], steady(steps=51.5))) == [60.0 + 30.0 + 52.0 + 52.0]


def test_the_accelerators_of_a_job_that_ends_stay_idle_to_the_end_of_the_step() -> None:
    """The first job ends at 190 s; the one that waits for its place starts at 240 s."""
    assert _ends(_run("tiresias", [(0.0, 8, 64), (1.0, 8, 64)])) == [190.0, 240.0 + 130.0]


def test_a_large_job_is_passed_by_smaller_ones() -> None:
    """Only the number of accelerators counts: 4 of 8 are free, the job of 8 waits, later ones of 4 do not."""
    ends = _ends(_run("tiresias", [(0.0, 4, 32), (1.0, 8, 64), (2.0, 4, 32)]))
    assert ends[0] == ends[2] == 190.0
    assert ends[1] == 240.0 + 130.0


def test_a_job_yields_to_newer_ones_after_sixteen_accelerator_hours() -> None:
    """8 accelerators for 7,200 s; the restart counts as service. Its progress is kept, and it pays for coming back."""
    application = steady(epochs=1, steps=7200.0)
    result = _run("tiresias", [(0.0, 8, 64), (100.0, 8, 64)], application)
    first, second = sorted(result.jobs, key=lambda job: job.job_id)
    # 60 to 7260 s: demoted with 7,170 steps behind it. The other runs as long and is demoted behind it.
    assert first.preemptions == second.preemptions == 1
    assert first.ended_at == 7260.0 + 7200.0 + 30.0 + 30.0
    assert second.ended_at == 14520.0 + 30.0 + 30.0


def test_a_job_that_goes_on_keeps_its_machines() -> None:
    """Three jobs of 2 on two machines: the second goes where more is free; when the first ends, nobody moves."""
    placed: dict[int, list[tuple[str, int]]] = {}

    def record(event: Event, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, AttemptTransitioned) and command.state is AttemptState.LEASED:
                assert command.placement is not None
                parts = [(str(part.node_id), len(part.devices)) for part in command.placement.parts]
                placed.setdefault(int(command.job_id), []).extend(parts)

    workload = _workload([(0.0, 2, 8), (1.0, 2, 8), (2.0, 4, 8)])
    simulate(workload.jobs, pollux_scenario(workload, "tiresias", pool=replace(T4_POOL, machines=2)), recorder=record)
    assert placed == {1: [("t4x4-1", 2)], 2: [("t4x4-2", 2)], 3: [("t4x4-1", 2), ("t4x4-2", 2)]}


def test_accelerators_come_from_the_emptiest_machine_the_first_on_ties() -> None:
    """3, 4, 4 and 0 are free: 9 of them are 4 and 4 and then 1."""
    machines: list[FleetMachine | None] = [
        FleetMachine(NodeId(f"m{row}"), row, 0, 4, list(range(free)), 0.0, 0) for row, free in enumerate((3, 4, 4, 0))
    ]
    machines.insert(0, None)
    machines[1:] = [replace(machine, row=row) for row, machine in enumerate(machines) if machine is not None]
    assert place_on_emptiest(machines, 9) == ((2, 4), (3, 4), (1, 1))
    assert place_on_emptiest(machines, 2) == ((2, 2),)


def test_one_accelerator_with_a_large_batch_trains_in_two_passes_at_least() -> None:
    """The initial batch needs one; Optimus foresees two all the same, and is wrong."""
    alone = GangLayout((1,))
    slow_start = steady(epochs=1, steps=100.0, sync_s=0.25)
    initial = PolluxTraining(slow_start, "t4", 8)
    assert initial.advance(alone, 0.0, 60.0) == (60.0, 0.0)
    assert initial.predicted_s(1, 4) == 1.0  # two passes of 4 samples: as long, for nothing is synchronised
    # 15 samples: two passes of 8 make 16, and an update of 2 s.
    assert PolluxTraining(slow_start, "t4", 15).advance(alone, 0.0, 60.0) == (30.0, 0.0)
    assert PolluxTraining(slow_start, "t4", 15).predicted_s(2, 4) == 1.25


def test_a_job_that_is_done_tells_what_time_it_did_not_need() -> None:
    """Two epochs of 50 steps at one a second."""
    training = PolluxTraining(NET, "t4", 8)
    assert training.advance(GangLayout((1,)), 0.0, 60.0) == (60.0, 0.0)
    assert training.advance(GangLayout((1,)), 60.0, 60.0) == (100.0, 20.0)
    assert training.mean_steps_per_s(GangLayout((1,))) == 1.0


def test_the_scheduler_is_told_mean_speeds_of_packed_gangs() -> None:
    """Of every number of accelerators that there are, of no other type, and nothing of kinds that are not there."""
    kind = Kind("net (batch size 8)")
    speeds = PackedGangSpeeds(_workload([(0.0, 1, 8)]).trainings, replace(T4_POOL, machines=2))
    assert speeds[SpeedKey(kind, "t4", 4)] == 4.0
    assert len(speeds) == len(list(speeds)) == 8
    assert all(speeds[key] >= 1.0 for key in speeds)
    for key in (SpeedKey(kind, "t4", 9), SpeedKey(kind, "v100", 1), SpeedKey(Kind("ent"), "t4", 1)):
        assert key not in speeds


def _allocated(jobs: Sequence[tuple[Application, int, float]], accelerators: int) -> list[tuple[int, int]]:
    """What Optimus gives jobs of (application, batch, steps behind them): number, accelerators."""
    active = [
        PolluxJob(JobId(number), PolluxTraining(application, "t4", batch), 1, steps, 0.0)
        for number, (application, batch, steps) in enumerate(jobs, start=1)
    ]
    return [(int(job.job_id), count) for job, count in PolluxOptimus().allocate(active, PolluxFleet(accelerators, 4))]


def test_optimus_gives_one_each_in_order_of_rows_and_then_to_whoever_gains_most() -> None:
    """Who has most updates left gains most by the same speed-up; placing begins with the smallest gangs."""
    assert _allocated([(NET, 8, 0.0)] * 3, 2) == [(1, 1), (2, 1)]
    long = steady(epochs=50)
    assert _allocated([(long, 8, 0.0), (NET, 8, 0.0)], 4) == [(2, 1), (1, 3)]
    # The last epoch counts as one update, whatever is left of it.
    assert _allocated([(NET, 8, 50.0), (NET, 8, 0.0)], 4) == [(1, 1), (2, 3)]
    # Equal gains: the earliest row.
    assert _allocated([(NET, 8, 0.0), (NET, 8, 0.0)], 3) == [(2, 1), (1, 2)]


def test_optimus_stops_where_one_more_does_not_gain_though_two_more_would() -> None:
    """The first synchronisation costs more than half a batch saves; only ncf is held to one accelerator by name."""
    assert _allocated([(steady(sync_s=0.6), 8, 0.0)], 8) == [(1, 1)]
    # Five have as many samples each as four; eight would have fewer.
    assert _allocated([(steady(sync_s=0.4), 8, 0.0)], 8) == [(1, 4)]
    assert _allocated([(steady("ncf"), 8, 0.0)], 8) == [(1, 1)]
    # No accelerator without a sample.
    assert _allocated([(NET, 3, 0.0)], 8) == [(1, 3)]


def test_a_gang_whose_number_changes_pays_for_a_restart() -> None:
    """Two jobs share 8 accelerators; then a third comes, and whoever gives some up starts again."""
    beats: list[RoundEnded] = []

    def record(event: Event, commands: list[Command]) -> None:
        if isinstance(event, RoundEnded):
            beats.append(event)

    workload = _workload([(0.0, 1, 8), (0.0, 1, 8), (100.0, 1, 8)], steady(epochs=2, steps=100.0))
    scenario = pollux_scenario(workload, "optimus", pool=replace(T4_POOL, machines=2))
    result = simulate(workload.jobs, scenario, recorder=record)
    first, second, third = sorted(result.jobs, key=lambda job: job.job_id)
    # Accelerators at 60 s: 4, 4; at 120 s: 2, 2, 4, for the third has most updates left; at 180 s: 4, 2, 2, for all are
    # in their last epoch; at 240 s only the third is left.
    assert list(beats[1].steps) == [120.0, 120.0]
    assert list(beats[2].steps) == [180.0, 180.0, 120.0]
    assert [job.ended_at for job in (first, second, third)] == [215.0, 190.0, 275.0]
    assert [job.overhead_s for job in (first, second, third)] == [90.0, 60.0, 90.0]


def test_a_job_cancelled_within_a_step_is_credited_what_it_made() -> None:
    """At 100 s, 10 s after its start: its place is free at the end of the step, when the other gets it."""
    workload = _workload([(0.0, 8, 64), (1.0, 8, 64)])
    jobs = (replace(workload.jobs[0], cancel_at=100.0), workload.jobs[1])
    result = simulate(jobs, pollux_scenario(workload, "tiresias", pool=replace(T4_POOL, machines=2)))
    assert result.violations == []
    assert _ends(result) == [100.0, 120.0 + 130.0]
    assert result.worked_steps == 110.0


@pytest.mark.parametrize("policy", pollux_policy_names())
def test_every_policy_finishes_every_job_whatever_was_idle_between(policy: str) -> None:
    """Jobs of all sizes, some after a long gap, and the same again on a second run."""
    rows = [(number * 37.0 + (number > 8) * 5000.0, 1 + number % 8, 8 + number) for number in range(14)]
    result = _run(policy, rows)
    assert len(result.jobs) == 14
    assert _ends(result) == _ends(_run(policy, rows))


def test_a_workload_that_does_not_hold_together_is_named() -> None:
    """No batch, no profile, a gang beyond it, more accelerators than there are; and nothing of it is for servers."""
    with pytest.raises(ConfigError, match="'job-0' wants 9 accelerators, 8 are there"):
        _workload([(0.0, 9, 8)])
    with pytest.raises(ConfigError, match="'job' has no batch size"):
        pollux_workload([TraceJob(0.0, "job", "net", 1)], {"net": NET}, T4_POOL.pool, 2)
    with pytest.raises(ConfigError, match="no profile of application 'ent'") as caught:
        pollux_workload([TraceJob(0.0, "job", "ent", 1, batch=8)], {"net": NET}, T4_POOL.pool, 2)
    assert "net" in caught.value.fix
    with pytest.raises(OutsideProfileError, match="64 samples for 65 accelerators"):
        _workload([(0.0, 65, 8)], machines=17)
    with pytest.raises(UnknownPolicyError, match="tiresias, optimus"):
        pollux_scenario(_workload([(0.0, 1, 8)]), "pollux")
    with pytest.raises(ConfigError, match="mechanism"):
        parse_policy({"policy": "fifo", "rules": {"mechanism": "pollux-osdi21"}})
