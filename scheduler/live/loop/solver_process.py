"""What the solver's process runs. It imports the optimizer and the core's question, and nothing of the server."""

import json
import threading
from dataclasses import replace

from optimizer.registry import is_built_in
from scheduler.core.commands import RankJobs, Solve
from scheduler.core.cycle.solve_requests import run_solve
from scheduler.core.events import JobsRanked, Proposal, Solved, SolveFailed
from scheduler.core.ordering.rank_ordering import run_rank
from scheduler.core.state.policy_faults import fault_of


def import_solver() -> bool:
    """Return True: importing this module in the child process is the work."""
    return True


#: Set in the solver's process once cvxpy is imported and compiled, so that a bound takes milliseconds.
_PROGRAM_IS_READY = threading.Event()


def prepare_program() -> None:
    """Import and prepare cvxpy in the solver's process, between answers: imports in two threads at once can fail."""
    from optimizer.renting.usd_certificate import prepare_relaxation

    prepare_relaxation()
    _PROGRAM_IS_READY.set()


def solve_and_bound(command: Solve) -> Proposal:
    """Returns the decision; with the bound of the relaxed program in cvxpy as soon as cvxpy is ready."""
    if not _PROGRAM_IS_READY.is_set():
        return run_solve(command)
    from optimizer.renting.usd_certificate import with_relaxed_bound

    return run_solve(command, with_relaxed_bound)


#: The most characters of JSON that a policy of others may remember from one decision to the next.
_MEMORY_MOST = 1 << 20


def answer(command: Solve | RankJobs) -> Solved | JobsRanked | SolveFailed:
    """Returns what the policy answers, or how it failed: method, line, and what it raised."""
    try:
        if isinstance(command, RankJobs):
            return run_rank(command)
        proposal = solve_and_bound(command)
        if not is_built_in(command.policy.name):
            memory = json.dumps(proposal.memory)  # no object of the policy's own goes to the server
            if len(memory) > _MEMORY_MOST:
                raise ValueError(f"decide() remembers {len(memory)} characters; at most {_MEMORY_MOST} are kept")
            proposal = replace(proposal, memory=json.loads(memory))
        return Solved(0.0, command.request_id, proposal)
    except (Exception, SystemExit) as error:  # the outermost handler of this process
        fault = fault_of("key" if isinstance(command, RankJobs) else "decide", error)
        return SolveFailed(0.0, command.request_id, fault.error, fault.where)
