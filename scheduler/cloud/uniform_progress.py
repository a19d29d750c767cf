"""Uniform Progress and greedy: run on spot machines where that leaves the deadline safe (Wu and others, NSDI'24).

Uniform Progress keeps pace with the line from nothing to all work at the deadline: idle and behind it, it goes on
demand; ahead of it by two changeovers, it leaves on-demand machines again, but for a spot machine only, never to idle.
Both go on demand for good once the slack is down to the job's margin. Neither is told anything but the present.
"""

from dataclasses import dataclass, field

from scheduler.cloud.deadline_job import DeadlineJob, Held, Standing


@dataclass(slots=True)
class _SafetyNet:
    """Whether the job has to stay on demand until its end."""

    sprung: bool = False

    def holds(self, job: DeadlineJob, now: Standing) -> bool:
        if now.slack < job.margin:
            self.sprung = True
        return self.sprung


class OnDemandAlone:
    """No spot machine ever: what there is to save from."""

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """See `SpotPolicy`."""
        return Held.ON_DEMAND


@dataclass(slots=True)
class Greedy:
    """Spot where there is any, else nothing, until only on-demand machines can make the deadline."""

    _net: _SafetyNet = field(default_factory=_SafetyNet)

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """See `SpotPolicy`."""
        if self._net.holds(job, now):
            return Held.ON_DEMAND
        return Held.SPOT if now.spot else Held.NOTHING


@dataclass(slots=True)
class UniformProgress:
    """Keep pace with the straight line to the deadline, on spot machines where there are any."""

    _net: _SafetyNet = field(default_factory=_SafetyNet)

    def hold(self, job: DeadlineJob, now: Standing) -> Held:
        """See `SpotPolicy`."""
        if self._net.holds(job, now):
            return Held.ON_DEMAND
        if now.held is Held.ON_DEMAND:
            ahead = self._ahead(job, now, 2 * job.changeover)
            return Held.SPOT if now.spot and ahead else Held.ON_DEMAND
        if now.spot:
            return Held.SPOT
        return Held.NOTHING if self._ahead(job, now, 0) else Held.ON_DEMAND

    @staticmethod
    def _ahead(job: DeadlineJob, now: Standing, later: int) -> bool:
        """Whether the progress is what the line asks for so much later."""
        line = (job.deadline - now.time_left + later) * job.work / job.deadline
        return job.work - now.work_left >= line
