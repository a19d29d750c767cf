"""The Pollux artifact's mechanism, for the scheduler core: every step the policy decides, whoever must move moves.

A job whose number of accelerators stays keeps its machines; the others let go, and are then placed in the policy's
order, each on the machines with the most free accelerators (the first of them on ties). Nobody is ever moved to come
closer together.
"""

from collections.abc import Iterator

from scheduler.core.cycle import Cycle
from scheduler.core.ledger.fleet import Condition, Machine, Place
from scheduler.core.ledger.ledger import JobRecord
from scheduler.core.rules import RoundRules
from simulator.compat.moving import Move, Moving
from simulator.compat.pollux.policy import ActiveJob, Fleet, PolluxPolicy
from simulator.compat.pollux.training import Training
from walras.ids import JobId, Kind


class SteppedRounds:
    """A `RoundMechanism`: at the end of a step decide, stop and start, and begin the next."""

    def __init__(self, rules: RoundRules, policy: PolluxPolicy, trainings: dict[Kind, Training]) -> None:
        self._policy = policy
        self._trainings = trainings
        self._moving = Moving(rules.round_s)

    def settle(self, cycle: Cycle) -> None:
        """Nothing to do but where a step has ended, and until everybody is where the decision wants them."""
        if cycle.beat is not None:
            cycle.beat = None
            self._decide(cycle)
        self._moving.go_on(cycle)

    def _decide(self, cycle: Cycle) -> None:
        ledger, arrived = cycle.ledger, cycle.arrived
        cycle.arrived = []
        for job_id in arrived:
            if job_id in ledger.jobs:
                ledger.set_eligible(ledger.jobs[job_id])
        fleet = _fleet(cycle)
        active = [self._active(cycle, job) for _, job in sorted(ledger.jobs.items()) if job.holds or job.waits]
        decided = self._policy.allocate(active, fleet) if active else []
        count = {job.job_id: accelerators for job, accelerators in decided}
        stopping: list[JobRecord] = []
        kept: set[JobId] = set()
        for job in ledger:
            if not job.holds:
                continue
            if sum(part for _, part in job.place) == count.get(job.job_id, 0):
                kept.add(job.job_id)
            else:
                stopping.append(job)
        placing = [(job_id, accelerators) for job_id, accelerators in count.items() if job_id not in kept]
        self._moving.begin(cycle, stopping, self._moves(cycle, placing))

    def _active(self, cycle: Cycle, job: JobRecord) -> ActiveJob:
        columns, request = cycle.ledger.columns, job.request
        columns.settle(job.slot, cycle.now)
        return ActiveJob(
            job.job_id,
            self._trainings[request.kind],
            request.demands[0].count,
            job.steps,
            float(columns.attained_s[job.slot]),
        )

    def _moves(self, cycle: Cycle, placing: list[tuple[JobId, int]]) -> Iterator[Move]:
        for job_id, accelerators in placing:
            yield cycle.ledger.jobs[job_id], 0, spread(cycle.ledger.fleet.machines, accelerators)


def _fleet(cycle: Cycle) -> Fleet:
    (pool,) = cycle.ledger.fleet.pools
    return Fleet(pool.capacity, pool.pool.shape.accelerators)


def spread(machines: list[Machine | None], accelerators: int) -> Place:
    """Free accelerators of the emptiest machines, one machine after the other."""
    free = {machine.row: len(machine.free) for machine in machines if machine and machine.condition is Condition.UP}
    place: list[tuple[int, int]] = []
    while accelerators:
        row = max(free, key=free.__getitem__)  # the first of the emptiest
        taken = min(accelerators, free.pop(row))
        assert taken, "the policy gives away more accelerators than there are"
        place.append((row, taken))
        accelerators -= taken
    return tuple(place)
