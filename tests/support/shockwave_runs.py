"""Recorded runs of Shockwave's simulator, and ours of the same."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from scheduler.core.commands import BeginRound, Command
from scheduler.core.events import AttemptEnded, AttemptStarted, Event, RoundEnded
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth
from simulator.simulation import SimulationResult, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, read_throughput_table
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.gavel.program_policies import ConeSolver, solve_cone_program
from simulator.worlds.shockwave.shockwave_scenario import (
    batch_schedules,
    charged_time_s,
    shockwave_alone_s,
    shockwave_fairness,
    shockwave_scenario,
)
from walras.cluster import Pool, PoolId, Shape
from walras.job_request import JobId

ACCELERATORS = 32


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded run: makespan, mean completion time, and each job's, in order of the trace."""

    makespan_s: float
    avg_jct_s: float
    utilisation: float
    jct_s: tuple[float, ...]
    fairness: tuple[float, ...]


@lru_cache(maxsize=1)
def _runs(data: Path) -> dict[str, Recorded]:
    runs = json.loads((data / "golden" / "shockwave" / "golden_tacc32_results.json").read_text())
    return {
        run["variant"]: Recorded(
            run["makespan_s"], run["avg_jct_s"], run["cluster_util"], tuple(run["jct_list_s"]), tuple(run["ftf_list"])
        )
        for run in runs
        if run["set"] == "tacc_32gpus" and run["kind"] == "simulation"
    }


def recorded(data: Path, policy: str) -> Recorded:
    """The simulated run on 32 accelerators under that policy."""
    return _runs(data)[policy]


@lru_cache(maxsize=1)
def truth(data: Path) -> GroundTruth:
    """Shockwave's speeds."""
    return GroundTruth(read_throughput_table(data / "golden" / "shockwave" / "tacc_throughputs.json"))


def _rows(data: Path) -> Sequence[TraceJob]:
    return read_trace(data / "golden" / "shockwave" / "trace_tacc32_120jobs.tsv", "shockwave").jobs


@lru_cache(maxsize=1)
def _alone_s(data: Path) -> list[float]:
    rows, known = _rows(data), truth(data)
    lengths = [int(row.steps or 0) for row in rows]
    return [
        shockwave_alone_s(one, steps, known, "v100")
        for one, steps in zip(batch_schedules(rows).values(), lengths, strict=True)
    ]


class Busy:
    """Accelerator-seconds that jobs trained in a run, starts not counted, from its events alone."""

    def __init__(self, gangs: dict[JobId, int]) -> None:
        self.busy_s = 0.0
        #: Rounds of all, and rounds of single jobs in which there was nothing to do.
        self.rounds = self.empty = 0
        self._gangs = gangs
        self._began_at = 0.0
        self._started: set[JobId] = set()

    def see(self, event: Event, commands: list[Command]) -> None:
        """Recorder of a run."""
        match event:
            case AttemptStarted(_, job_id) if self.rounds > 1:
                self._started.add(job_id)
            case AttemptEnded(at, job_id, exit_code=0):
                self._count(job_id, at)
            case RoundEnded(_, job_ids, _, stopped_at):
                for job_id, at in zip(job_ids, stopped_at, strict=True):
                    self._count(job_id, at)
                self._started.clear()
        if any(isinstance(command, BeginRound) for command in commands):
            self._began_at = event.at
            self.rounds += 1

    def _count(self, job_id: JobId, stopped_at: float) -> None:
        ran_s = stopped_at - self._began_at
        self.empty += ran_s == 0
        self.busy_s += charged_time_s(ran_s, job_id in self._started) * self._gangs[job_id]


@dataclass(frozen=True, slots=True)
class Ours:
    """The same run by our scheduler under the profile."""

    result: SimulationResult
    jct_s: tuple[float, ...]
    fairness: tuple[float, ...]
    utilisation: float
    rounds: int
    #: Rounds of single jobs in which they had nothing to do.
    empty: int

    @property
    def makespan_s(self) -> float:
        return self.result.ended_at

    @property
    def avg_jct_s(self) -> float:
        return sum(self.jct_s) / len(self.jct_s)

    def worst_s(self, theirs: Recorded) -> float:
        """The largest difference between completion times."""
        return max(abs(ours - other) for ours, other in zip(self.jct_s, theirs.jct_s, strict=True))


def run_again(data: Path, policy: str, solver: ConeSolver = solve_cone_program) -> Ours:
    """Our run of the trace."""
    known = truth(data)
    rows = _rows(data)
    batchings = batch_schedules(rows)
    pool = PoolModel(Pool(PoolId("v100"), Shape("v100", "v100", 1, 8.0, 2**36)), machines=ACCELERATORS)
    jobs = list(TraceBinding({"v100": 1.0}, table=known.speeds).jobs(rows))
    busy = Busy({job.request.job_id: job.request.demands[0].count for job in jobs})
    result = simulate(jobs, shockwave_scenario(pool, known, policy, batchings, solver=solver), recorder=busy.see)
    assert result.violations == []
    by_id = {job.job_id: job.jct_s for job in result.jobs}
    jct_s = tuple(by_id[job.request.job_id] for job in jobs)
    return Ours(
        result, jct_s, tuple(shockwave_fairness(jct_s, _alone_s(data), ACCELERATORS)),
        busy.busy_s / (ACCELERATORS * result.ended_at), busy.rounds, busy.empty,
    )  # fmt: skip
