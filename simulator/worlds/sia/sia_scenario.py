"""Sia's simulator as a scenario: with the Gavel with which it is compared, or under Walras's plan policies.

Sia's own policy is not reproduced, because its program has many equal optima and solvers choose different ones.

Under our policies jobs change batch, gang and type: in every epoch a job trains with the batch of largest goodput for
its gang. Step times and the gradient noise are known, while Sia learns them during the run. Places are computed anew at
every step, as in Sia, because a job that keeps its shape moves for free: the larger gangs first, on whole machines
where they fill them.

Gavel here is Sia's implementation of it: each step ends with a solve that maximises the sum of throughputs (rows sorted
by name, shares rounded to five decimals), jobs are ranked by share over received time, and the accelerators of each
type are numbered, machine by machine. A job that keeps its accelerators continues to run.

Training is Pollux's by type, slowed down and with other limits. The largest batch per accelerator depends on the
placement: if some placement of as many accelerators was measured, no placement of that many trains with more. A job
that continues in the same shape on the same type pays no restart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from optimizer.decision import Memory
from optimizer.policy import Policy, PolicySpec
from optimizer.problem import FloatArray
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from scheduler.world.attempts import AttemptCosts, SimAttempt, SimulatedJob, WorldParameters
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from simulator.goodput import (
    EPOCHS,
    AcceleratorProfile,
    Application,
    BatchSplit,
    GangLayout,
    MeasuredStepTimes,
    applications_in,
    goodput,
    local_batch_range,
    packed_layout,
    read_learning_curve,
    read_step_times,
    split_batch,
    update_time_s,
)
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.simulation import Scenario
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.gavel.heuristic_policies import (
    GavelAllocation,
    GavelPolicy,
    GavelProblem,
    gavel_problem,
    gavel_solver,
)
from simulator.worlds.gavel.program_policies import ConeSolver, SharePolytope, ShareUnits, no_shares, solve_cone_program
from simulator.worlds.pollux.pollux_scenario import (
    PolluxTraining,
    SteppedAttempts,
    TrainingLaw,
    best_goodput,
    gang_sizes_in,
)
from simulator.worlds.stepped_mechanism import (
    StepConfiguration,
    SteppedMechanism,
    StepPlacement,
    WantedAccelerators,
    free_room,
    own_wiring,
    plan_wiring,
)
from simulator.worlds.world_registry import WorldRequest, WorldRun, owned_pools, required_speeds
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError
from walras.job_request import Demand, JobId, JobRequest, Kind

#: Updates per second that the policy assumes for a job that wants more accelerators than the type has.
_TOO_LARGE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class SiaApplication:
    """An application with its step times by type, and the parameters that Sia's simulator adds."""

    application: Application
    steps: dict[str, MeasuredStepTimes]
    #: Divisor of every speed; seconds that a start or a change costs.
    slow_down: float
    restart_s: float


class SiaTraining(PolluxTraining):
    """A `SiaApplication` trained with one batch size on one type."""

    def __init__(self, sia: SiaApplication, accelerator: str, batch: int) -> None:
        super().__init__(sia.application, accelerator, batch)
        self.sia = sia
        self._steps = sia.steps[accelerator]
        self._slow_down = sia.slow_down
        self._limits: dict[int, int | None] = {}
        self._applications: dict[GangLayout, Application] = {}

    def _trained_goodput(self, placement: GangLayout, epoch: int) -> float:
        return self._goodput_of(placement, self._split(placement, self.batch), epoch)

    def _goodput_of(self, placement: GangLayout, split: BatchSplit, epoch: int) -> float:
        return goodput(self._within(placement), self.accelerator, placement, split, epoch) / self._slow_down

    def _split(self, placement: GangLayout, batch: int) -> BatchSplit:
        """Limits the samples per accelerator to those measured on any placement of as many accelerators, too."""
        count = placement.accelerators
        least = 1 if count == 1 and batch > self.application.batch_initial else 0
        split = split_batch(self._within(placement), self.accelerator, count, batch, accumulated_least=least)
        if count not in self._limits:
            curves = self._steps.curves.items()
            self._limits[count] = min(
                (curve.local[-1] for known, curve in curves if known.accelerators == count), default=None
            )
        most = self._limits[count]
        return split if most is None or split.local <= most else replace(split, local=most)

    def updates_per_s(self, count: int, accelerators: int, machine_size: int) -> float:
        """Returns the speed that Sia's Gavel assumes for a gang of `count` on a type with `accelerators` in all."""
        if count > accelerators:
            return _TOO_LARGE
        placement = packed_layout(count, machine_size)
        application = self._within(placement)
        least = 1 if count == 1 else 0
        split = split_batch(application, self.accelerator, count, self.batch, accumulated_least=least)
        return 1.0 / update_time_s(application, self.accelerator, placement, split) / self._slow_down

    def _within(self, placement: GangLayout) -> Application:
        """Returns the application with the largest batch per accelerator that this placement allows."""
        found = self._applications.get(placement)
        if found is None:
            profile = self.application.on[self.accelerator]
            most = largest_local_batch(self._steps, placement)
            found = replace(
                self.application, on={self.accelerator: AcceleratorProfile(profile.law, profile.local_least, most)}
            )
            self._applications[placement] = found
        return found


def largest_local_batch(steps: MeasuredStepTimes, placement: GangLayout) -> int:
    """Returns the largest batch per accelerator that was measured on this placement.

    If it was not measured, placements with at least as many machines and accelerators count. Raises ConfigError where
    none was measured.
    """
    curve = steps.curves.get(placement.in_ring())
    if curve is not None:
        return curve.local[-1]
    found = [
        local
        for (machines, accelerators, local), _ in steps.scaling
        if machines >= placement.machines and accelerators >= placement.accelerators
    ]
    if not found:
        raise ConfigError(
            f"no placement of {placement.accelerators} accelerators on {placement.machines} machines was measured",
            field="num_replicas",
            fix="choose a smaller gang",
        )
    return max(found)


#: By application: the divisor of its speeds, and the seconds of a restart.
_APPLICATIONS = {
    "bert": (1.2, 120.0),
    "cifar10": (1.8, 50.0),
    "deepspeech2": (1.2, 25.0),
    "imagenet": (1.2, 250.0),
    "ncf": (1.5, 15.0),
    "yolov3": (1.2, 80.0),
}


def _sia_pool(name: str, accelerators: int, machines: int) -> PoolModel:
    return PoolModel(Pool(PoolId(name), Shape(name, name, accelerators, 48.0, 192 << 30)), machines=machines)


#: The cluster of the measured runs, by Sia's names: machines of 4 T4, of 8 A100 and of 8 RTX 2080 Ti.
SIA_POOLS = (_sia_pool("aws", 4, 6), _sia_pool("dgx-ext", 8, 2), _sia_pool("rtx", 8, 3))


def read_sia_applications(
    learning: str | Path, steps: str | Path, types: Iterable[str] = ("aws", "dgx-ext", "rtx")
) -> dict[str, SiaApplication]:
    """Reads the applications whose step times on these types are below the folder `steps`, by name.

    Pollux's profiles below `learning` say how they learn. Raises ConfigError.
    """
    names = applications_in(steps)
    return {name: _read_application(name, Path(learning) / name, Path(steps) / name, tuple(types)) for name in names}


def _read_application(name: str, learning: Path, steps: Path, types: tuple[str, ...]) -> SiaApplication:
    learned = read_learning_curve(name, learning, EPOCHS[name])
    laws, profiles = {}, {}
    for type_ in types:
        placements = steps / f"placements-{type_}.csv.gz"
        laws[type_] = read_step_times(f"{name} on {type_}", placements, steps / f"scalability-{type_}.csv.gz")
        profiles[type_] = AcceleratorProfile(laws[type_], *local_batch_range(placements))
    application = Application(name, learned.batches[0], learned.batches[-1], learned, profiles)
    return SiaApplication(application, laws, *_APPLICATIONS[name])


@dataclass(frozen=True, slots=True)
class SiaWorkload:
    """Jobs, numbered from 1 in the order of their rows, and the training of each kind on each type."""

    jobs: tuple[SimulatedJob, ...]
    trainings: Mapping[Kind, Mapping[str, SiaTraining]]
    #: Seconds that a start of each kind costs.
    restart_s: Mapping[Kind, float]


def sia_workload(
    rows: Iterable[TraceJob], applications: Mapping[str, SiaApplication], pools: tuple[PoolModel, ...] = SIA_POOLS
) -> SiaWorkload:
    """Converts the rows to jobs that may run on every pool.

    Raises ConfigError for an application without a profile, a job without a batch size, and one larger than every pool.
    """
    most = max(pool.machines * pool.pool.shape.accelerators for pool in pools)
    trainings: dict[Kind, dict[str, SiaTraining]] = {}
    restart_s: dict[Kind, float] = {}
    jobs: list[SimulatedJob] = []
    for number, row in enumerate(rows, start=1):
        sia = applications.get(row.kind)
        if sia is None:
            known = ", ".join(applications)
            raise ConfigError(
                f"line {row.line}: no profile of {row.kind!r}", field="application", fix=f"known: {known}"
            )
        if row.batch is None:
            raise ConfigError(f"line {row.line}: {row.name!r} has no batch size", field="batch_size", fix="give one")
        if row.gang > most:
            raise ConfigError(
                f"line {row.line}: {row.name!r} wants {row.gang} accelerators, no type has more than {most}",
                field="num_replicas",
                fix="choose a larger cluster",
            )
        kind = Kind(f"{row.kind} (batch size {row.batch})")
        if kind not in trainings:
            trainings[kind] = {name: SiaTraining(sia, name, row.batch) for name in sia.steps}
            restart_s[kind] = sia.restart_s
        demands = tuple(Demand(pool.pool.shape.accelerator, row.gang) for pool in pools)
        steps = sia.application.work
        jobs.append(
            SimulatedJob(row.at, JobRequest(JobId(number), kind, demands=demands, steps=steps), steps, name=row.name)
        )
    return SiaWorkload(tuple(jobs), trainings, restart_s)


@dataclass(frozen=True, slots=True)
class _StoppedAttempt:
    """The place and shape of a stopped job, and the instant at which its restart there ended or would have ended."""

    at: float
    pool_id: PoolId
    shape: tuple[int, ...]
    up_at: float


class SiaAttempts(SteppedAttempts):
    """Simulates attempts in steps; a job that continues in the same shape on the same type pays no restart."""

    def __init__(
        self,
        machines: SimulatedMachines,
        model: WorldParameters,
        streams: RandomStreams,
        *,
        trainings: Mapping[Kind, Mapping[str, SiaTraining]],
        step_s: float,
    ) -> None:
        super().__init__(machines, model, streams, trainings={}, step_s=step_s)
        self._by_type = trainings
        self._left: dict[JobId, _StoppedAttempt] = {}

    def begin(self, now: float, attempt: SimAttempt) -> None:
        left = self._left.pop(attempt.job_id, None)
        if left is not None and (left.at, left.pool_id, left.shape) == (
            now,
            attempt.parts[0][0].pool_id,
            _shape_of(attempt),
        ):
            attempt.costs = replace(attempt.costs, start_s=max(0.0, left.up_at - now))
        super().begin(now, attempt)

    def stop(self, now: float, attempt: SimAttempt, grace_s: float) -> None:
        self._left[attempt.job_id] = _StoppedAttempt(
            now, attempt.parts[0][0].pool_id, _shape_of(attempt), attempt.up_at
        )
        super().stop(now, attempt, grace_s)

    def _training(self, attempt: SimAttempt) -> PolluxTraining:
        accelerator = self._machines.pools[attempt.parts[0][0].pool_id].pool.shape.accelerator
        return self._by_type[attempt.job.plan.request.kind][accelerator]


def _shape_of(attempt: SimAttempt) -> tuple[int, ...]:
    return tuple(len(devices) for _, devices in attempt.parts)


class ReceivedService:
    """Seconds received by every job on every type, and by all jobs: never reset, ended jobs included."""

    def __init__(self, types: int, prior_s: float) -> None:
        self._prior_s = prior_s
        self._received_s: dict[JobId, FloatArray] = {}
        self._all_s: FloatArray = np.zeros(types)

    def admit(self, job_id: JobId) -> None:
        """Adds a job as if it had run for half a round on every type."""
        self._received_s[job_id] = np.full(len(self._all_s), self._prior_s)
        self._all_s += self._prior_s

    def forget(self, job_id: JobId) -> None:
        """Removes an ended job; the time received by all jobs together stays."""
        del self._received_s[job_id]

    def credit(self, job_id: JobId, type_: int, time_s: float) -> None:
        """Credits a job with seconds of run time on a type."""
        self._received_s[job_id][type_] += time_s
        self._all_s[type_] += time_s

    def ranked(self, shares: Mapping[JobId, FloatArray]) -> list[tuple[JobId, int]]:
        """Returns (job, type) pairs: largest share over received time first, then largest share, then type and job."""
        priority = {
            job_id: np.where(share > 0, share / (self._received_s[job_id] / self._all_s), 0.0)
            for job_id, share in shares.items()
        }
        cells = [(job_id, type_) for type_ in range(len(self._all_s)) for job_id in shares]
        return sorted(cells, key=lambda cell: (-priority[cell[0]][cell[1]], -shares[cell[0]][cell[1]]))


def pick_by_priority(
    ranked: Sequence[tuple[JobId, int]], count: Mapping[JobId, int], free: Sequence[int]
) -> dict[JobId, int]:
    """Returns the type of each job that runs, in order of choice; jobs that do not fit are skipped."""
    left, chosen = list(free), {}
    for job_id, type_ in ranked:
        if job_id not in chosen and count[job_id] <= left[type_]:
            left[type_] -= count[job_id]
            chosen[job_id] = type_
    return chosen


def number_accelerators(
    picked: Sequence[JobId], count: Mapping[JobId, int], before: Mapping[JobId, tuple[int, ...]]
) -> dict[JobId, tuple[int, ...]]:
    """Returns the numbers of the accelerators of one type that each picked job gets, ascending; larger gangs first.

    Among gangs of equal size, those that ran on the type keep their accelerators (`before`) if all of them are still
    free. The others take the lowest free numbers above all that such gangs have taken or skipped before.
    """
    used: set[int] = set()
    numbers: dict[JobId, tuple[int, ...]] = {}
    lowest = 0
    for size in sorted({count[job_id] for job_id in picked}, reverse=True):
        group = [job_id for job_id in picked if count[job_id] == size]
        for job_id in group:
            if job_id in before and used.isdisjoint(before[job_id]):
                numbers[job_id] = before[job_id]
                used.update(before[job_id])
        for job_id in group:
            if job_id in numbers:
                continue
            taken: list[int] = []
            while len(taken) < size:
                if lowest not in used:
                    taken.append(lowest)
                lowest += 1
            numbers[job_id] = tuple(taken)
            used.update(taken)
    return numbers


#: Decimals to which shares are rounded, so that a solver's noise of 1e-9 counts as 0.
_DECIMALS = 5


@dataclass(frozen=True, slots=True)
class SiaGavel(GavelPolicy):
    """Maximises the sum of updates per second."""

    names: Mapping[JobId, str]
    solver: ConeSolver = solve_cone_program

    def allocate(self, problem: GavelProblem, memory: Memory) -> tuple[GavelAllocation, Memory]:
        names = [self.names[JobId(job_id)] for job_id in problem.jobs.job_id.tolist()]
        order = np.array(sorted(range(len(names)), key=names.__getitem__))
        rows, speed = np.arange(len(order)), problem.speed[order]
        no_second = np.full(len(rows), -1)
        units = ShareUnits(rows, no_second, problem.count[order], speed, np.zeros_like(speed), len(rows), problem.total)
        polytope = SharePolytope(units)
        polytope.add_base()
        found = polytope.solve(self.solver, polytope.rate_cost(np.ones(len(problem.total))))
        if found is None:
            return no_shares(problem), None
        shares = np.zeros_like(problem.speed)
        shares[order] = np.round(found.x, _DECIMALS)
        return GavelAllocation(shares), None


class SiaRounds(SteppedMechanism):
    """A `RoundMechanism` that solves, ranks, reallocates, and begins the next step."""

    def __init__(self, rules: RoundRules) -> None:
        super().__init__(rules.round_s)
        self._rules = rules
        self._service: ReceivedService | None = None
        #: Instant of admission of each job that has not ended.
        self._known: dict[JobId, float] = {}
        #: Type and accelerators (numbered within the type) of each running job.
        self._now_on: dict[JobId, tuple[int, tuple[int, ...]]] = {}

    def step_ended(self, cycle: Cycle) -> None:
        ledger, (arrived, cycle.backlog.arrived) = cycle.ledger, (cycle.backlog.arrived, [])
        if self._service is None:
            self._service = ReceivedService(len(ledger.fleet.pools), self._rules.round_s / 2)
        for job_id in [job_id for job_id in self._known if job_id not in ledger.jobs]:
            del self._known[job_id]
            self._now_on.pop(job_id, None)
            self._service.forget(job_id)
        for job_id in sorted(arrived):
            if job_id in ledger.jobs and job_id not in self._known:
                ledger.set_eligible(ledger.jobs[job_id])
                self._known[job_id] = cycle.now
                self._service.admit(job_id)
        self.request_solve(cycle, lambda: gavel_problem(ledger, self._known))

    def decide(self, cycle: Cycle) -> None:
        """Ranks by the shares of the last successful solve, and numbers the accelerators."""
        assert self._service is not None
        ledger, proposal, pools = cycle.ledger, cycle.policy.proposal, cycle.ledger.fleet.pools
        shares = {job_id: np.zeros(len(pools)) for job_id in self._known if job_id in ledger.jobs}
        if proposal is not None:
            for job_id, pool, share in zip(proposal.job_ids, proposal.pool_rows, proposal.shares, strict=True):
                if job_id in shares:
                    shares[job_id][pool] = share
        count = {job_id: ledger.jobs[job_id].request.demands[0].count for job_id in shares}
        picked = pick_by_priority(self._service.ranked(shares), count, [state.capacity for state in pools])
        chosen: dict[JobId, tuple[int, tuple[int, ...]]] = {}
        for row in range(len(pools)):
            before = {job_id: numbers for job_id, (pool, numbers) in self._now_on.items() if pool == row}
            group = [job_id for job_id, pool in picked.items() if pool == row]
            for job_id, numbers in number_accelerators(group, count, before).items():
                chosen[job_id] = row, numbers
                self._service.credit(job_id, row, self._rules.round_s)
        self._now_on = chosen
        self._plan(cycle)

    def _plan(self, cycle: Cycle) -> None:
        places = {
            job_id: (pool, _place_of_numbers(cycle, pool, numbers)) for job_id, (pool, numbers) in self._now_on.items()
        }
        self.reallocation.begin(cycle, *_stay_or_move(cycle, places))


def _stay_or_move(cycle: Cycle, places: Mapping[JobId, tuple[int, Place]]) -> StepPlacement:
    """Keeps the jobs that already hold their place (machines and accelerators on each), and moves the others."""
    jobs = cycle.ledger.jobs
    kept = {job_id for job_id, (_, place) in places.items() if jobs[job_id].holds and jobs[job_id].place == place}
    return kept, [(jobs[job_id], *where) for job_id, where in places.items() if job_id not in kept]


def _place_of_numbers(cycle: Cycle, pool: int, numbers: tuple[int, ...]) -> Place:
    """Returns the machines, in the order in which they joined, and the count of these accelerator numbers on each."""
    rows = list(free_room(cycle, pool))
    size = cycle.ledger.fleet.pools[pool].pool.shape.accelerators
    return tuple((rows[machine], wanted) for machine, wanted in sorted(Counter(n // size for n in numbers).items()))


#: The mechanism's name in `RoundRules`, and its parameters.
SIA = "sia-sosp23"
SIA_GAVEL_RULES = RoundRules(mechanism=SIA, round_s=360.0, resolve_min_s=0.0, idle_to_round_end=True)
#: Sia's names of the measured types, by Walras's names.
_SIA_TYPES = {"t4": "aws", "a100-40gb": "dgx-ext", "rtx-2080-ti": "rtx"}


def sia_scenario(
    workload: SiaWorkload, *, pools: tuple[PoolModel, ...] = SIA_POOLS, solver: ConeSolver = solve_cone_program
) -> Scenario:
    """Returns a run of Sia's simulator under its Gavel over these jobs, on the pools for which they were made."""
    gavel = SiaGavel({job.request.job_id: job.name for job in workload.jobs}, solver)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> SiaRounds:
        return SiaRounds(rules)

    pace = partial(SiaAttempts, trainings=workload.trainings, step_s=SIA_GAVEL_RULES.round_s)
    wiring = own_wiring(SIA, lambda spec: gavel, rounds, pace, gavel_solver(gavel))
    costs = {kind: AttemptCosts(start_s=restart_s) for kind, restart_s in workload.restart_s.items()}
    truth = GroundTruth(_packed_speeds(workload, pools), costs)
    return Scenario(pools, truth, PolicySpec("gavel"), SIA_GAVEL_RULES, wiring=wiring)


def _packed_speeds(workload: SiaWorkload, pools: tuple[PoolModel, ...]) -> dict[SpeedKey, float]:
    """Returns the speeds announced to the scheduler: updates per second on as few machines as possible.

    The time model sets a job's progress at a time and placement. Raises OutsideProfileError (a ConfigError) where it
    has no entry.
    """
    ways = {(job.request.kind, job.request.demands[0].count) for job in workload.jobs}
    speeds: dict[SpeedKey, float] = {}
    for kind, gang in sorted(ways):
        for model in pools:
            accelerator, size = model.pool.shape.accelerator, model.pool.shape.accelerators
            training = workload.trainings[kind][accelerator]
            speeds[SpeedKey(kind, accelerator, gang)] = training.updates_per_s(gang, size * model.machines, size)
    return speeds


#: Sia decides every minute.
SIA_RULES = RoundRules(mechanism=SIA, round_s=60.0, resolve_min_s=0.0, idle_to_round_end=True)


class AdaptiveSiaTraining(SiaTraining):
    """Training on one type with the batch of largest goodput, in every epoch and on every placement."""

    def _trained_goodput(self, placement: GangLayout, epoch: int) -> float:
        first = max(self.application.batch_initial, self.local_least * placement.accelerators)
        return best_goodput(first, self.application.batch_most, partial(self._with, placement=placement, epoch=epoch))

    def _with(self, batch: int, placement: GangLayout, epoch: int) -> float:
        """Returns the goodput with this batch; 0 where a rank would have too few samples."""
        split = self._split(placement, batch)
        return 0.0 if split.local < self.local_least else self._goodput_of(placement, split, epoch)


def with_adaptive_sia_batches(workload: SiaWorkload) -> SiaWorkload:
    """Returns the same jobs with adaptive batches. Jobs of one application share computed speeds."""
    shared: dict[tuple[str, str], SiaTraining] = {}
    trainings: dict[Kind, Mapping[str, SiaTraining]] = {}
    for kind, by_type in workload.trainings.items():
        for name, training in by_type.items():
            shared.setdefault((training.application.name, name), AdaptiveSiaTraining(training.sia, name, 1))
        trainings[kind] = {name: shared[training.application.name, name] for name, training in by_type.items()}
    return replace(workload, trainings=trainings)


@dataclass(frozen=True, slots=True)
class AdaptiveSiaConfigurations:
    """Returns the configurations of a job, by goodput in its present epoch."""

    trainings: Mapping[Kind, Mapping[str, SiaTraining]]
    pools: tuple[PoolModel, ...]

    def __call__(self, job: JobRecord) -> list[StepConfiguration]:
        found = []
        for row, model in enumerate(self.pools):
            shape = model.pool.shape
            training = self.trainings[job.request.kind][shape.accelerator]
            for count in gang_sizes_in(model):
                speed = training.speed_at(packed_layout(count, shape.accelerators), job.steps)
                if speed > 0:
                    found.append(StepConfiguration(row, count, speed))
        return found


def place_anew(cycle: Cycle, wanted: WantedAccelerators) -> StepPlacement:
    """Computes all placements anew, type by type."""
    places: dict[JobId, tuple[int, Place]] = {}
    for state in cycle.ledger.fleet.pools:
        rows = list(free_room(cycle, state.row))
        counts = {job_id: count for job_id, (pool, count) in wanted.items() if pool == state.row}
        size = state.pool.shape.accelerators
        places.update({job_id: (state.row, place) for job_id, place in pack_in_order(counts, rows, size).items()})
    return _stay_or_move(cycle, places)


def pack_in_order(counts: Mapping[JobId, int], machines: list[int], size: int) -> dict[JobId, Place]:
    """Places gangs on machines of `size` accelerators, one after the other, the larger first, then by number.

    No gang is split needlessly if every gang is whole machines or a power of two that divides a machine.
    """
    places: dict[JobId, Place] = {}
    at, used = 0, 0
    for job_id in sorted(counts, key=lambda job_id: (-counts[job_id], job_id)):
        left, place = counts[job_id], list[tuple[int, int]]()
        while left:
            taken = min(left, size - used)
            place.append((machines[at], taken))
            left, used = left - taken, used + taken
            if used == size:
                at, used = at + 1, 0
        places[job_id] = tuple(place)
    return places


def sia_plan_scenario(
    workload: SiaWorkload, policy: PolicySpec, *, pools: tuple[PoolModel, ...] = SIA_POOLS
) -> Scenario:
    """Returns a run of these jobs, with adaptive batches, in Sia's world under one of Walras's plan policies."""
    ours = with_adaptive_sia_batches(workload)
    ways = AdaptiveSiaConfigurations(ours.trainings, pools)
    pace = partial(SiaAttempts, trainings=ours.trainings, step_s=SIA_RULES.round_s)
    wiring = plan_wiring(SIA, ways, place_anew, pace)
    costs = {kind: AttemptCosts(start_s=restart_s) for kind, restart_s in workload.restart_s.items()}
    laws = {kind: TrainingLaw(by_type) for kind, by_type in ours.trainings.items()}
    return Scenario(pools, GroundTruth({}, costs, laws=laws), policy, SIA_RULES, wiring=wiring)


def sia_world_run(request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a cluster, speeds or a trace that Sia's simulator cannot have."""
    pools = tuple(sorted(map(_with_sia_type, owned_pools(request)), key=lambda model: model.pool.shape.accelerator))
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types):
        raise ConfigError("world 'sia' has one pool of each type", field="cluster", fix="choose sia-64")
    steps = required_speeds(request, "a folder of Sia's profiles")
    made = sia_workload(request.trace.jobs, read_sia_applications(request.learning or steps, steps, types), pools)
    alone_s = {job.request.job_id: _sia_alone_s(made, job.request.job_id, pools) for job in made.jobs}
    if request.is_own:
        return WorldRun(made.jobs, sia_scenario(made, pools=pools), alone_s)
    return WorldRun(made.jobs, sia_plan_scenario(made, request.policy, pools=pools), alone_s)


def _with_sia_type(model: PoolModel) -> PoolModel:
    shape = model.pool.shape
    name = _SIA_TYPES.get(shape.accelerator)
    if name is None:
        raise ConfigError(
            f"world 'sia' was measured on {', '.join(_SIA_TYPES)}, the cluster has {shape.accelerator}",
            field="cluster",
            fix="choose a cluster such as sia-64",
        )
    return replace(model, pool=replace(model.pool, shape=replace(shape, accelerator=name)))


def _sia_alone_s(made: SiaWorkload, job_id: JobId, pools: tuple[PoolModel, ...]) -> float:
    """Returns the run time alone in seconds on the fastest type, with the gang and batch of the workload."""
    job = made.jobs[job_id - 1]  # numbered from 1 in their order
    gang, speeds = job.request.demands[0].count, []
    for model in pools:
        shape = model.pool.shape
        if gang <= shape.accelerators * model.machines:
            training = made.trainings[job.request.kind][shape.accelerator]
            speeds.append(training.mean_steps_per_s(packed_layout(gang, shape.accelerators)))
    return job.steps / max(speeds)
