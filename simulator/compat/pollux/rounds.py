"""The Pollux artifact's mechanism, for the scheduler core: every step the policy decides, whoever must move moves.

A job whose number of accelerators stays keeps its machines; the others let go, and are then placed in the policy's
order, each on the machines with the most free accelerators (the first of them on ties). Nobody is ever moved to come
closer together.
"""

from scheduler.core.attempts import is_prepared, revoke, start
from scheduler.core.commands import BeginRound
from scheduler.core.cycle import Cycle
from scheduler.core.fleet import Condition, Machine, Place
from scheduler.core.ledger import JobRecord
from scheduler.core.rules import RoundRules
from simulator.compat.pollux.policy import ActiveJob, Fleet, PolluxPolicy
from simulator.compat.pollux.training import Training
from walras.ids import JobId, Kind
from walras.reasons import Reason


class SteppedRounds:
    """A `RoundMechanism`: at the end of a step decide, stop and start, and begin the next."""

    def __init__(self, rules: RoundRules, policy: PolluxPolicy, trainings: dict[Kind, Training]) -> None:
        self._rules = rules
        self._policy = policy
        self._trainings = trainings
        self._stopping: list[JobRecord] = []
        #: Jobs to be placed once those are gone, with their accelerators; None: nothing is being moved.
        self._placing: list[tuple[JobId, int]] | None = None
        self._starting: list[JobRecord] = []

    def settle(self, cycle: Cycle) -> None:
        """Nothing to do but where a step has ended, and until everybody is where the decision wants them."""
        if cycle.beat is not None:
            cycle.beat = None
            self._decide(cycle)
        if self._placing is not None:
            self._move(cycle, self._placing)

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
        self._stopping = []
        kept: set[JobId] = set()
        for job in ledger:
            if not job.holds:
                continue
            if sum(part for _, part in job.place) == count.get(job.job_id, 0):
                kept.add(job.job_id)
            else:
                self._stopping.append(job)
        for job in self._stopping:
            revoke(cycle, job, Reason.POLICY_PREEMPTED)
        self._placing = [(job_id, accelerators) for job_id, accelerators in count.items() if job_id not in kept]
        self._starting = []

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

    def _move(self, cycle: Cycle, placing: list[tuple[JobId, int]]) -> None:
        """Once all who must go have gone, place the others; once all gangs are prepared, begin the step."""
        if any(job.holds for job in self._stopping):
            return
        self._stopping = []
        for job_id, accelerators in placing:
            job = cycle.ledger.jobs[job_id]
            start(cycle, job, 0, spread(cycle.ledger.fleet.machines, accelerators))
            self._starting.append(job)
        placing.clear()
        if all(is_prepared(job) for job in self._starting if job.holds):
            self._placing = None
            self._starting = []
            cycle.commands.append(BeginRound(self._rules.round_s))


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
