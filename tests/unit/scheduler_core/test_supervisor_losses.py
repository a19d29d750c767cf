"""A job that loses its supervisor again and again, on machines that live on: it waits ever longer, then it is held."""

from itertools import pairwise

import pytest
from fake_fleet import FakeFleet, cluster, job

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.rules import RoundRules, parse_rules
from walras.cluster import NodeId
from walras.errors import ConfigError
from walras.job_request import JobId

J1 = JobId(1)


def lose(fleet: FakeFleet, *, witnessed: bool = True) -> list[cmd.Command]:
    """The supervisor of the newest attempt is killed."""
    number = fleet.attempts.pop(J1).number
    lost = ev.EndCause.SUPERVISOR_LOST
    return fleet.tell(ev.AttemptEnded(fleet.at, J1, number, lost, node_id=NodeId("a1"), witnessed=witnessed))


def wait(fleet: FakeFleet) -> None:
    """Until the next attempt starts; the end of a wait for another machine wakes the core, too."""
    fleet.wake()
    while J1 not in fleet.attempts:
        fleet.wake()


def begun(**rules: int) -> FakeFleet:
    fleet = cluster(machines="aa", rules=RoundRules(backoff_s=10, **rules))  # type: ignore[arg-type]
    fleet.tell(ev.JobSubmitted(0.0, job(1, "a")))
    return fleet


def test_it_waits_longer_each_time_and_is_held_with_the_reason() -> None:
    """Five tries, not one a second for ever; no machine is put aside for it, no retry used; a person can release it."""
    fleet = begun()
    instants = []
    for number in range(1, 6):
        instants.append(fleet.at)
        commands = lose(fleet)
        assert fleet.core.ledger.jobs[J1].attempt == number
        assert not [c for c in commands if isinstance(c, cmd.Start | cmd.NodeCordoned)]
        if number < 5:
            wait(fleet)
    assert [after - before for before, after in pairwise(instants)] == [10, 20, 40, 80]
    assert fleet.states[J1][-1] == "HELD"
    (held,) = [c for c in commands if isinstance(c, cmd.JobTransitioned)]
    assert held.reason == "HOLD:REPEATED_FAILURE"
    assert "its supervisor was killed, while the machine lived on; 5 times in a row, last on a1" in held.detail
    assert fleet.core.ledger.jobs[J1].restarts == 0
    fleet.tell(ev.JobReleased(fleet.at + 1000.0, J1))
    lose(fleet)
    assert fleet.states[J1][-1] == "PENDING"


def test_losses_that_nobody_witnessed_do_not_count() -> None:
    """A machine that rebooted, an agent that was killed with everything: the job starts elsewhere at once, for ever."""
    fleet = begun()
    for _ in range(20):
        commands = lose(fleet, witnessed=False)
        assert [c for c in commands if isinstance(c, cmd.Start)]


def test_a_checkpoint_between_them_breaks_the_row() -> None:
    """A job that gets on is not held for a machine's bad memory in three years."""
    fleet = begun()
    for number in range(1, 20):
        fleet.tell(ev.CheckpointRecorded(fleet.at, J1, number, float(number)))
        lose(fleet)
        wait(fleet)
    assert "HELD" not in fleet.states[J1]


def test_the_rule_can_be_changed() -> None:
    fleet = begun(supervisor_losses_held=2)
    lose(fleet)
    fleet.wake()
    lose(fleet)
    assert fleet.states[J1][-1] == "HELD"
    never = begun(supervisor_losses_held=0)
    for _ in range(20):
        lose(never)
        wait(never)
    assert "HELD" not in never.states[J1]
    with pytest.raises(ConfigError):
        parse_rules({"supervisor_losses_held": -1})
