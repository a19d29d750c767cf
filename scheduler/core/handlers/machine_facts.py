"""What machines say of themselves: tools that jobs need, data in their caches, whether what is saved there can be had
elsewhere.

Tools limit where jobs start. A pool counts as able to prepare a job as long as one of its machines may, or none is
there that has said anything; within a pool a job goes to a machine that has what it needs. What runs on a machine stays
there, and its pool goes on counting as able, whatever the machine says later: the speed and the size of a gang in a
pool where it runs must never become nothing.
"""

from collections.abc import Iterable

from scheduler.core.events import NodeData, NodePrivate, NodeTools
from scheduler.core.state.fleet import FleetMachine
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.unsaved_work import mark_private
from scheduler.core.state.working_set import Cycle
from walras.job_request import ToolNeeds


def parts_of_its_machine(cycle: Cycle, machine: FleetMachine) -> list[FleetMachine]:
    """Returns all parts of the machine of several types that this one belongs to; itself alone where it is whole."""
    if not machine.whole:
        return [machine]
    return [each for each in cycle.ledger.fleet.machines if each is not None and each.whole == machine.whole]


def join_parts(cycle: Cycle, machine: FleetMachine, whole: str) -> None:
    """The machine that joined is a part of this one: where a job fails on one part, its machine may be at fault."""
    machine.whole = whole
    for other in parts_of_its_machine(cycle, machine):
        machine.failures = other.failures


def on_node_tools(cycle: Cycle, machine: FleetMachine, event: NodeTools) -> None:
    take_tools(cycle, machine, event.tools)
    cycle.backlog.freed[machine.row] = None


def take_tools(cycle: Cycle, machine: FleetMachine, tools: Iterable[str] | None) -> None:
    """The machine has these tools; None: it has not said."""
    fleet = cycle.ledger.fleet
    fleet.knows_tools = fleet.knows_tools or tools is not None
    machine.tools = None if tools is None else frozenset(tools)
    jobs = (cycle.ledger.jobs[job_id] for job_id in machine.holders)
    _count(cycle, machine, [job.request.tools for job in jobs])


def keep_where_it_runs(cycle: Cycle, job: JobRecord) -> None:
    """A job that has needs was restored: it runs where it runs, whatever the machines there have said since."""
    for row, _ in job.place:
        machine = cycle.ledger.fleet.machines[row]
        if machine is not None and machine.tools is not None:
            take_tools(cycle, machine, machine.tools)


def _count(cycle: Cycle, machine: FleetMachine, in_use: Iterable[ToolNeeds]) -> None:
    """Count the machine among those of its pool, with what is in use there."""
    used = {name for needs in in_use for any_of in needs for name in any_of}
    before, now = machine.counted_tools, None if machine.tools is None else machine.tools | used
    cycle.ledger.fleet.pools[machine.pool].tools.recount(before, now)
    machine.counted_tools = now
    settle_tools(cycle)


def settle_tools(cycle: Cycle) -> None:
    """Machines came, went or said something: jobs that need tools may fit other pools now."""
    if cycle.ledger.classes.tools_changed([state.tool_sets for state in cycle.ledger.fleet.pools]):
        cycle.solves.problem_changed = cycle.backlog.rebuild_queues = True


def on_node_data(cycle: Cycle, machine: FleetMachine, event: NodeData) -> None:
    """Jobs that start from now on know it; none that waits is looked at again for that."""
    told = {key: (size_bytes, seconds) for key, size_bytes, seconds in event.fetched}
    now = {key: told.get(key, (0, 0.0)) for key in event.data}
    machine.data = cycle.ledger.fleet.caches.tell(machine.row, machine.data, now, machine.pool)
    machine.fetched = event.fetched


def on_node_private(cycle: Cycle, machine: FleetMachine, event: NodePrivate) -> None:
    mark_private(cycle.ledger, machine, cycle.policy.rules, is_private=event.private)
    cycle.solves.problem_changed = True
