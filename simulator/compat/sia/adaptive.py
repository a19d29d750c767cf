"""Jobs of Sia's world that change batch, gang and type, under policies of ours.

In every epoch a job trains with the batch of largest goodput for the gang that it has; step times and the noise of the
gradient are taken to be known, where Sia learns them as the jobs run. Places are made anew at every step, as Sia makes
them, for what keeps its shape moves for nothing: the larger gangs first, on whole machines where they fill them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.fleet import Place
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.adapting import TrainingLaw, best_goodput, sizes_of
from simulator.compat.moving import Move
from simulator.compat.planned import Placing, PlannedSteps, Wanted, Way
from simulator.compat.sia.pace import SiaSteps
from simulator.compat.sia.profile import SIA
from simulator.compat.sia.training import SiaTraining
from simulator.compat.sia.workload import SIA_POOLS, SiaWorkload
from simulator.goodput.application import goodput, split_batch
from simulator.goodput.placement import Placement, packed
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Costs, Truth
from walras.ids import JobId, Kind

#: Sia decides every minute.
SIA_RULES = RoundRules(mechanism=SIA, round_s=60.0, resolve_min_s=0.0, idle_to_round_end=True)


class AdaptiveSiaTraining(SiaTraining):
    """Trained with the batch of largest goodput on one type, in every epoch and on every placement."""

    def _steps_per_s(self, placement: Placement, epoch: int) -> float:
        found = self._goodput.get((placement, epoch))
        if found is None:
            first = max(self.application.batch_initial, self.local_least * placement.accelerators)
            found = best_goodput(
                first, self.application.batch_most, partial(self._with, placement=placement, epoch=epoch)
            )
            self._goodput[placement, epoch] = found
        return found

    def _with(self, batch: int, placement: Placement, epoch: int) -> float:
        """Goodput with this batch; 0 where a rank would have too few samples."""
        count = placement.accelerators
        least = 1 if count == 1 and batch > self.application.batch_initial else 0
        application = self._within(placement)
        split = split_batch(application, self._type, count, batch, accumulated_least=least)
        split = self._limited(split, count)
        if split.local < self.local_least:
            return 0.0
        return goodput(application, self._type, placement, split, epoch) / self._slow_down


def adaptive(workload: SiaWorkload) -> SiaWorkload:
    """The same jobs, trained with batches that adapt. Jobs of one application share what was worked out."""
    shared: dict[tuple[str, str], SiaTraining] = {}
    trainings: dict[Kind, Mapping[str, SiaTraining]] = {}
    for kind, by_type in workload.trainings.items():
        for name, training in by_type.items():
            shared.setdefault((training.application.name, name), AdaptiveSiaTraining(training.sia, name, 1))
        trainings[kind] = {name: shared[training.application.name, name] for name, training in by_type.items()}
    return replace(workload, trainings=trainings)


@dataclass(frozen=True, slots=True)
class AdaptiveWays:
    """What every job could have now, by its goodput in the epoch in which it is."""

    trainings: Mapping[Kind, Mapping[str, SiaTraining]]
    pools: tuple[PoolModel, ...]

    def __call__(self, job: JobRecord) -> list[Way]:
        found = []
        for row, model in enumerate(self.pools):
            shape = model.pool.shape
            training = self.trainings[job.request.kind][shape.accelerator]
            for count in sizes_of(model):
                speed = training.speed_at(packed(count, shape.accelerators), job.steps)
                if speed > 0:
                    found.append(Way(row, count, speed))
        return found


def renewed(cycle: Cycle, wanted: Wanted) -> Placing:
    """All places made anew, type by type."""
    fleet = cycle.ledger.fleet
    places: dict[JobId, tuple[int, Place]] = {}
    for state in fleet.pools:
        rows = [machine.row for machine in fleet.machines if machine is not None and machine.pool == state.row]
        counts = {job_id: count for job_id, (pool, count) in wanted.items() if pool == state.row}
        size = state.pool.shape.accelerators
        places.update({job_id: (state.row, place) for job_id, place in in_turn(counts, rows, size).items()})
    jobs = cycle.ledger.jobs
    kept = {job_id for job_id, (_, place) in places.items() if jobs[job_id].holds and jobs[job_id].place == place}
    return kept, _moves(cycle, {job_id: where for job_id, where in places.items() if job_id not in kept})


def _moves(cycle: Cycle, places: Mapping[JobId, tuple[int, Place]]) -> Iterator[Move]:
    for job_id, (pool, place) in places.items():
        yield cycle.ledger.jobs[job_id], pool, place


def in_turn(counts: Mapping[JobId, int], machines: list[int], size: int) -> dict[JobId, Place]:
    """Places on machines of so many accelerators, one gang after the other, the larger first, then by number.

    Nobody is apart who need not be where every gang is whole machines or a power of two that divides one.
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


def planned_scenario(
    workload: SiaWorkload, policy: PolicySpec, *, pools: tuple[PoolModel, ...] = SIA_POOLS
) -> Scenario:
    """These jobs, with batches that adapt, in Sia's world under a plan policy of ours."""
    ours = adaptive(workload)
    ways = AdaptiveWays(ours.trainings, pools)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedSteps:
        return PlannedSteps(rules.round_s, ways, renewed)

    wiring = Wiring(
        core=partial(SchedulerCore, mechanisms={**MECHANISMS, SIA: rounds}),
        pace=partial(SiaSteps, trainings=ours.trainings, step_s=SIA_RULES.round_s),
    )
    costs = {kind: Costs(start_s=restart_s) for kind, restart_s in workload.restart_s.items()}
    laws = {kind: TrainingLaw(by_type) for kind, by_type in ours.trainings.items()}
    return Scenario(pools, Truth({}, costs, laws=laws), policy, SIA_RULES, wiring=wiring)
