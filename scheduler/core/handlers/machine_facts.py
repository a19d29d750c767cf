"""Facts that machines report: tools that jobs need, data in their caches, and whether checkpoints there are private.

Tools limit where jobs start. A pool counts as able to prepare a job as long as one of its machines is, or none of them
has reported tools; within a pool a job goes to a machine that has what it needs. Jobs that run on a machine stay there,
and its pool keeps counting as able, whatever the machine reports later: the speed and the gang size of a running job in
its pool must never become 0.
"""

from collections.abc import Iterable

from scheduler.core.events import NodeData, NodePrivate, NodeTools
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.stopping import mark_private
from scheduler.core.state.working_set import Cycle, count_tools


def parts_of_its_machine(cycle: Cycle, machine: FleetMachine) -> list[FleetMachine]:
    """Returns all parts of the machine with several accelerator types to which this one belongs, or itself."""
    if not machine.whole:
        return [machine]
    return [each for each in cycle.ledger.fleet.machines if each is not None and each.whole == machine.whole]


def join_parts(cycle: Cycle, machine: FleetMachine, whole: str) -> None:
    """Joins a new part to its machine: failures on any part count against the whole machine."""
    machine.whole = whole
    for other in parts_of_its_machine(cycle, machine):
        machine.failures = other.failures


def on_node_tools(cycle: Cycle, machine: FleetMachine, event: NodeTools) -> None:
    take_tools(cycle, machine, event.tools)
    cycle.backlog.freed[machine.row] = None


def take_tools(cycle: Cycle, machine: FleetMachine, tools: Iterable[str] | None) -> None:
    """Sets the machine's tools; None: it has not reported any."""
    fleet = cycle.ledger.fleet
    fleet.knows_tools = fleet.knows_tools or tools is not None
    machine.tools = None if tools is None else frozenset(tools)
    count_tools(cycle, machine)


def keep_where_it_runs(cycle: Cycle, job: JobRecord) -> None:
    """Keeps a restored job's pool able to hold it, whatever its machines have reported since it started."""
    for row, _ in job.place:
        machine = cycle.ledger.fleet.machines[row]
        if machine is not None and machine.tools is not None:
            take_tools(cycle, machine, machine.tools)


def on_node_data(cycle: Cycle, machine: FleetMachine, event: NodeData) -> None:
    """Records the machine's cached data for later starts. Waiting jobs are not judged again for that."""
    told = {key: (size_bytes, seconds) for key, size_bytes, seconds in event.fetched}
    now = {key: told.get(key, (0, 0.0)) for key in event.data}
    machine.data = cycle.ledger.fleet.caches.tell(machine.row, machine.data, now, machine.pool)
    machine.fetched = event.fetched


def on_node_private(cycle: Cycle, machine: FleetMachine, event: NodePrivate) -> None:
    mark_private(cycle.ledger, machine, cycle.policy.rules, is_private=event.private)
    cycle.solves.problem_changed = True
