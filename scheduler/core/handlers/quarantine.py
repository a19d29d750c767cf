"""Machines that are put aside because jobs fail there, or because their devices do, and how they come back.

Evidence against a machine are failures that nothing shows to be the job's own: distinct jobs of more than one user,
with no success between them. A machine that was put aside for them takes jobs again after a while, on trial: a success
there ends the trial, one more failure puts it aside for twice as long. A machine whose agent reports a fault of its
devices is put aside until the agent reports that they passed its check; jobs that can save move away.
"""

from scheduler.core.commands import NodeCordoned, NodeReadmitted
from scheduler.core.events import NodeFit, NodeUnfit
from scheduler.core.placement.attempt_lifecycle import ask_to_leave
from scheduler.core.placement.reservations import drop_reservations_on
from scheduler.core.state.fleet import FleetMachine, MachineCondition, failed_jobs
from scheduler.core.state.ledger import JobRecord
from scheduler.core.state.stopping import StopFor
from scheduler.core.state.working_set import Cycle
from walras.cluster import NodeId
from walras.states import Reason

#: At most one in this many of a pool's owned machines (one, if there are fewer) is put aside because jobs failed there.
QUARANTINE_ONE_IN = 4


def blame(cycle: Cycle, job: JobRecord, node_id: NodeId | None) -> None:
    """Records where the job failed, and puts the machine aside if that makes the evidence enough."""
    machine = None if node_id is None else cycle.ledger.fleet.machine(node_id)
    if machine is None:
        return
    rules = cycle.policy.rules
    # Without a name every job counts as somebody else's.
    machine.failures.append((cycle.now, job.job_id, job.request.user or f"job {job.job_id}"))
    wanted = 1 if machine.standing.on_trial else rules.quarantine_jobs
    up = [each for each in cycle.ledger.fleet.whole(machine) if each.condition is MachineCondition.UP]
    jobs = failed_jobs(machine.failures, cycle.now - rules.quarantine_window_s, wanted)
    if not jobs or machine not in up or not all(_may_be_put_aside(cycle, each) for each in up):
        return
    detail = f"{jobs} distinct jobs failed here within {rules.quarantine_window_s:g} s"
    if machine.standing.on_trial:
        detail = f"job {job.job_id} failed here while it was on trial"
    for each in up:
        _put_aside(cycle, each, detail)


def _may_be_put_aside(cycle: Cycle, machine: FleetMachine) -> bool:
    """Returns whether enough other machines remain: where jobs fail on all machines alike, the jobs are at fault.

    A rented machine is exchanged for another one. Of a pool's owned machines, faulty jobs must not quarantine the last
    one, nor most of them.
    """
    if machine.token:
        return True
    members = cycle.ledger.fleet.pools[machine.pool].members.values()
    others_up = any(each.condition is MachineCondition.UP for each in members if each is not machine)
    aside = sum(each.condition is MachineCondition.QUARANTINED for each in members)
    return others_up and aside < max(1, len(members) // QUARANTINE_ONE_IN)


def _put_aside(cycle: Cycle, machine: FleetMachine, detail: str) -> None:
    cycle.ledger.fleet.set_condition(machine, MachineCondition.QUARANTINED, detail)
    cycle.commands.append(NodeCordoned(machine.node_id, detail))
    cycle.solves.problem_changed = True
    if machine.token:
        cycle.backlog.emptied[machine.row] = None
    set_trial(cycle, machine)


def set_trial(cycle: Cycle, machine: FleetMachine) -> None:
    """Sets when an owned machine that was put aside takes jobs again; a rented one is given back instead."""
    if not machine.token and not machine.standing.unfit:
        cycle.timers.set(machine.standing.put_aside(cycle.now), "trial", machine.row)


def on_trial_timer(cycle: Cycle, row: int, number: int) -> None:
    """Lets a machine take jobs again that was put aside for their failures."""
    machine = cycle.ledger.fleet.machines[row] if row < len(cycle.ledger.fleet.machines) else None
    if machine is not None and _is_aside(machine) and machine.standing.begin_trial(cycle.now):
        _readmit(cycle, machine, "is on trial after failures of jobs")


def clear_failures(cycle: Cycle, job: JobRecord) -> None:
    """Clears recorded failures on machines where the job succeeded, since they no longer point to the machines."""
    for row, _ in job.place:
        machine = cycle.ledger.fleet.machines[row]
        if machine is not None:
            machine.failures.clear()
            machine.standing.clear()


def on_node_unfit(cycle: Cycle, machine: FleetMachine, event: NodeUnfit) -> None:
    """Puts a machine aside whose devices are at fault, and moves the jobs that can save."""
    machine.standing.unfit, machine.standing.on_trial = event.detail, False
    if machine.condition is MachineCondition.UP:
        drop_reservations_on(cycle, machine)
    if machine.condition in (MachineCondition.UP, MachineCondition.QUARANTINED):
        _put_aside(cycle, machine, event.detail)
    elif machine.before is MachineCondition.UP:
        machine.before = MachineCondition.QUARANTINED
    detail = f"{machine.node_id}: {event.detail}"
    for job in cycle.ledger.jobs_on(machine):
        ask_to_leave(cycle, job, StopFor.MACHINE, Reason.INFRA_DEVICE_FAULT, detail=detail)


def on_node_fit(cycle: Cycle, machine: FleetMachine, event: NodeFit) -> None:
    """Lets a machine take jobs again whose devices have passed the agent's check."""
    if machine.standing.unfit:
        machine.standing.unfit = ""
        if _is_aside(machine) and not machine.given_back:
            _readmit(cycle, machine, "")


def _is_aside(machine: FleetMachine) -> bool:
    is_silent = machine.condition is MachineCondition.UNREACHABLE
    return (machine.before if is_silent else machine.condition) is MachineCondition.QUARANTINED


def _readmit(cycle: Cycle, machine: FleetMachine, detail: str) -> None:
    machine.failures.clear()
    cycle.commands.append(NodeReadmitted(machine.node_id, detail))
    if machine.condition is MachineCondition.UNREACHABLE:
        machine.before = MachineCondition.UP  # once it is back
    elif cycle.ledger.fleet.pools[machine.pool].pool.drained:
        cycle.ledger.fleet.set_condition(machine, MachineCondition.LEAVING, "its pool is drained")
    else:
        cycle.ledger.fleet.set_condition(machine, MachineCondition.UP, detail)
        cycle.backlog.freed[machine.row] = None
    cycle.solves.problem_changed = True
