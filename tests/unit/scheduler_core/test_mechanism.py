"""The place of a round mechanism in the core, and speeds that are told rather than measured."""

from optimizer.policy import Policy, PolicySpec
from scheduler.core import events as ev
from scheduler.core.core import SchedulerCore
from scheduler.core.cycle.round import MECHANISMS
from scheduler.core.rules import RoundRules
from scheduler.core.state.throughput import SpeedSource, ThroughputTable
from scheduler.core.state.working_set import Cycle, NoOrdering
from walras.job_request import Demand, JobId, JobRequest, Kind


class _Counting:
    """A mechanism that starts nobody and counts what it is called for."""

    calls = 0

    def __init__(self, cycle: Cycle, policy: Policy, rules: RoundRules) -> None:
        self.rules = rules

    def settle(self, cycle: Cycle) -> None:
        type(self).calls += 1


def test_the_rules_name_the_mechanism_and_it_settles_every_event() -> None:
    """A core that was handed another mechanism uses it from the policy change on, and goes back as easily."""
    core = SchedulerCore(mechanisms={**MECHANISMS, "counting": _Counting})
    core.handle(ev.PolicyChanged(0.0, PolicySpec("fifo"), RoundRules(mechanism="counting")))
    core.handle(ev.JobSubmitted(1.0, JobRequest(JobId(1), Kind("net"), demands=(Demand("a100", 1),))))
    assert _Counting.calls == 2
    assert isinstance(core.cycle.ordering, NoOrdering)
    core.handle(ev.PolicyChanged(2.0, PolicySpec("fifo"), RoundRules()))
    assert _Counting.calls == 2
    assert not isinstance(core.cycle.ordering, NoOrdering)


def test_a_speed_that_is_told_is_not_rounded_and_one_that_is_measured_is() -> None:
    """Noise must not make every solve different from the last; a table has none."""
    table, kind = ThroughputTable(), Kind("net")
    assert table.set_known(kind, "a100", 1, 1.23456789)
    assert not table.set_known(kind, "a100", 1, 1.23456789)
    assert table.speed(kind, "a100", 1, {}).steps_per_s == 1.23456789
    assert table.speed(kind, "a100", 1, {}).source is SpeedSource.MEASURED
    table.measure(kind, "b100", 1, 1.23456789)
    assert table.speed(kind, "b100", 1, {}).steps_per_s == 1.23
