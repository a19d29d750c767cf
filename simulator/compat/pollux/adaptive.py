"""Jobs of the artifact's world that change their batch with their gang, under policies of ours.

In every epoch a job trains with the batch of largest goodput for the gang that it has, as `simulator.goodput.law` says;
step times and the noise of the gradient are taken to be known, and nobody knows the epochs to come. What the artifact
does not let adapt does not adapt: ncf has one accelerator and one batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from optimizer.policy import Policy, PolicySpec
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle import Cycle
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.mechanism import MECHANISMS
from scheduler.core.rules import RoundRules
from simulator.compat.adapting import TrainingLaw, best_goodput, sizes_of
from simulator.compat.planned import PlannedSteps, Way, staying
from simulator.compat.pollux.applications import Workload
from simulator.compat.pollux.pace import SteppedTraining
from simulator.compat.pollux.profile import POLLUX, POLLUX_RULES, RESTART_S, T4_POOL
from simulator.compat.pollux.training import Training
from simulator.goodput.application import goodput, split_batch
from simulator.goodput.placement import Placement, packed
from simulator.machines import PoolModel
from simulator.simulate import Scenario, Wiring
from simulator.truth import Costs, Truth
from walras.ids import Kind

#: Applications that have one accelerator, and the batch that they always train with.
_FIXED = {"ncf": 32_768}


class AdaptiveTraining(Training):
    """An application that is trained with the batch of largest goodput, in every epoch and on every placement."""

    def _steps_per_s(self, placement: Placement, epoch: int) -> float:
        found = self._goodput.get((placement, epoch))
        if found is None:
            application = self.application
            first, last = (
                max(application.batch_initial, self.local_least * placement.accelerators),
                application.batch_most,
            )
            if application.name in _FIXED:
                first = last = _FIXED[application.name]
            found = best_goodput(first, last, partial(self._with, placement=placement, epoch=epoch))
            self._goodput[placement, epoch] = found
        return found

    def _with(self, batch: int, placement: Placement, epoch: int) -> float:
        """Goodput with this batch; 0 where a rank would have too few samples or too many."""
        application, count = self.application, placement.accelerators
        least = 1 if count == 1 and batch > application.batch_initial else 0
        split = split_batch(application, self._accelerator, count, batch, accumulated_least=least)
        profile = application.on[self._accelerator]
        if not profile.local_least <= split.local <= profile.local_most:
            return 0.0
        return goodput(application, self._accelerator, placement, split, epoch)


def adaptive(workload: Workload) -> Workload:
    """The same jobs, trained with batches that adapt. Jobs of one application share what was worked out."""
    shared: dict[str, AdaptiveTraining] = {}
    trainings: dict[Kind, Training] = {}
    for kind, training in workload.trainings.items():
        name = training.application.name
        if name not in shared:
            shared[name] = AdaptiveTraining(training.application, training.accelerator, training.batch)
        trainings[kind] = shared[name]
    return replace(workload, trainings=trainings)


@dataclass(frozen=True, slots=True)
class AdaptiveWays:
    """What every job could have now, by its goodput in the epoch in which it is."""

    trainings: Mapping[Kind, Training]
    sizes: Mapping[Kind, tuple[int, ...]]
    machine_size: int

    @classmethod
    def of(cls, workload: Workload, pool: PoolModel) -> "AdaptiveWays":
        """Of these jobs on this pool."""
        trainings = workload.trainings.items()
        sizes = {kind: (1,) if each.application.name in _FIXED else sizes_of(pool) for kind, each in trainings}
        return cls(workload.trainings, sizes, pool.pool.shape.accelerators)

    def __call__(self, job: JobRecord) -> list[Way]:
        kind = job.request.kind
        training = self.trainings[kind]
        speeds = ((count, training.speed_at(packed(count, self.machine_size), job.steps)) for count in self.sizes[kind])
        return [Way(0, count, speed) for count, speed in speeds if speed > 0]


def planned_scenario(workload: Workload, policy: PolicySpec, *, pool: PoolModel = T4_POOL) -> Scenario:
    """These jobs, with batches that adapt, in the artifact's world under a plan policy of ours."""
    ours = adaptive(workload)
    ways = AdaptiveWays.of(ours, pool)

    def rounds(cycle: Cycle, _: Policy, rules: RoundRules) -> PlannedSteps:
        return PlannedSteps(rules.round_s, ways, staying)

    wiring = Wiring(
        core=partial(SchedulerCore, mechanisms={**MECHANISMS, POLLUX: rounds}),
        pace=partial(SteppedTraining, trainings=ours.trainings, step_s=POLLUX_RULES.round_s),
    )
    accelerator = pool.pool.shape.accelerator
    laws = {kind: TrainingLaw({accelerator: training}) for kind, training in ours.trainings.items()}
    truth = Truth({}, default_costs=Costs(start_s=RESTART_S), laws=laws)
    return Scenario((pool,), truth, policy, POLLUX_RULES, wiring=wiring)
