"""Sia's simulator as a scenario: with the Gavel with which it is compared, or under Walras's plan policies.

Sia's own policy is not reproduced, because its program has many equal optima and solvers choose different ones.

Under our policies jobs change batch, gang and type: in every epoch a job trains with the batch of largest goodput for
its gang. Step times and the gradient noise are known, while Sia learns them during the run. Places are computed anew at
every step, as in Sia, because a job that keeps its shape moves for free: the larger gangs first, on whole machines
where they fill them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.rules import RoundRules
from scheduler.core.state.fleet import Place
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.working_set import Cycle
from simulator.goodput.application import GangLayout, goodput, packed_layout, split_batch
from simulator.ground_truth import AttemptCosts, GroundTruth, SpeedKey
from simulator.machines import PoolModel
from simulator.simulation import Scenario, SchedulerWiring
from simulator.worlds.gavel.gavel_policy import GavelPolicy, gavel_solver
from simulator.worlds.gavel.share_polytope import ConeSolver, solve_cone_program
from simulator.worlds.pollux.pollux_training import TrainingLaw, best_goodput, gang_sizes_in
from simulator.worlds.sia.sia_rounds import SiaGavel, SiaRounds
from simulator.worlds.sia.sia_training import (
    SIA_POOLS,
    SiaAttempts,
    SiaTraining,
    SiaWorkload,
    read_sia_applications,
    sia_workload,
)
from simulator.worlds.stepped_mechanism import (
    Move,
    PlannedMechanism,
    StepConfiguration,
    StepPlacement,
    WantedAccelerators,
)
from simulator.worlds.world_run import WorldRequest, WorldRun, owned_pools, required_speeds
from walras.errors import ConfigError, UnknownPolicyError
from walras.job_request import JobId, Kind

#: The mechanism's name in `RoundRules`, and its parameters.
SIA = "sia-sosp23"
SIA_GAVEL_RULES = RoundRules(mechanism=SIA, round_s=360.0, resolve_min_s=0.0, idle_to_round_end=True)
_GAVEL = "gavel"
#: Sia's names of the measured types, by Walras's names.
_SIA_TYPES = {"t4": "aws", "a100-40gb": "dgx-ext", "rtx-2080-ti": "rtx"}


def sia_policy_names() -> tuple[str, ...]:
    """Returns the policies of Sia's simulator that can be reproduced."""
    return (_GAVEL,)


def sia_scenario(
    workload: SiaWorkload,
    policy: str = _GAVEL,
    *,
    pools: tuple[PoolModel, ...] = SIA_POOLS,
    solver: ConeSolver = solve_cone_program,
) -> Scenario:
    """Returns a run of Sia's simulator over these jobs, on the pools for which they were made.

    Raises UnknownPolicyError.
    """
    if policy != _GAVEL:
        raise UnknownPolicyError(f"'{policy}' of Sia's simulator is not known; known: {_GAVEL}", field="policy.name")
    names = {job.request.job_id: job.name for job in workload.jobs}

    def make(spec: PolicySpec) -> GavelPolicy:
        return SiaGavel(names, solver)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> SiaRounds:
        return SiaRounds(rules)

    pace = partial(SiaAttempts, trainings=workload.trainings, step_s=SIA_GAVEL_RULES.round_s)
    wiring = SchedulerWiring(partial(SchedulerCore, make, {**MECHANISMS, SIA: rounds}), gavel_solver(make), pace)
    costs = {kind: AttemptCosts(start_s=restart_s) for kind, restart_s in workload.restart_s.items()}
    return Scenario(
        pools, GroundTruth(_packed_speeds(workload, pools), costs), PolicySpec(policy), SIA_GAVEL_RULES, wiring=wiring
    )


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

    def _steps_per_s(self, placement: GangLayout, epoch: int) -> float:
        found = self._goodput.get((placement, epoch))
        if found is None:
            first = max(self.application.batch_initial, self.local_least * placement.accelerators)
            found = best_goodput(
                first, self.application.batch_most, partial(self._with, placement=placement, epoch=epoch)
            )
            self._goodput[placement, epoch] = found
        return found

    def _with(self, batch: int, placement: GangLayout, epoch: int) -> float:
        """Returns the goodput with this batch; 0 where a rank would have too few samples."""
        count = placement.accelerators
        least = 1 if count == 1 and batch > self.application.batch_initial else 0
        application = self._within(placement)
        split = split_batch(application, self._type, count, batch, accumulated_least=least)
        split = self._limited(split, count)
        if split.local < self.local_least:
            return 0.0
        return goodput(application, self._type, placement, split, epoch) / self._slow_down


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
    fleet = cycle.ledger.fleet
    places: dict[JobId, tuple[int, Place]] = {}
    for state in fleet.pools:
        rows = [machine.row for machine in fleet.machines if machine is not None and machine.pool == state.row]
        counts = {job_id: count for job_id, (pool, count) in wanted.items() if pool == state.row}
        size = state.pool.shape.accelerators
        places.update({job_id: (state.row, place) for job_id, place in pack_in_order(counts, rows, size).items()})
    jobs = cycle.ledger.jobs
    kept = {job_id for job_id, (_, place) in places.items() if jobs[job_id].holds and jobs[job_id].place == place}
    return kept, _moves(cycle, {job_id: where for job_id, where in places.items() if job_id not in kept})


def _moves(cycle: Cycle, places: Mapping[JobId, tuple[int, Place]]) -> Iterator[Move]:
    for job_id, (pool, place) in places.items():
        yield cycle.ledger.jobs[job_id], pool, place


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

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedMechanism:
        return PlannedMechanism(rules.round_s, ways, place_anew)

    wiring = SchedulerWiring(
        core=partial(SchedulerCore, mechanisms={**MECHANISMS, SIA: rounds}),
        pace=partial(SiaAttempts, trainings=ours.trainings, step_s=SIA_RULES.round_s),
    )
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
        return WorldRun(made.jobs, sia_scenario(made, request.policy.name, pools=pools), alone_s)
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
