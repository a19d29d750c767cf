"""A machine that will not come back leaves the tables: its row, its credential, its place in the list.

That may be done where nothing can be alive on it: it is lost, or it is silent and nothing was granted there that has
not ended. A machine that is heard, or that is rented and still a member, stays: the one by its agent, the other by its
provider, which gives it back. What the machine did stays written in attempts, charges and the journal. Should it come
back all the same, it joins anew by the join token, as any other machine does.
"""

import logging

from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.agent_gateway import declare_node_lost
from walras.cluster import NodeId
from walras.errors import Conflict, NotFound
from walras.states import Reason

log = logging.getLogger(__name__)


def forget_machine(transaction: Transaction, node_id: NodeId, unreachable_s: float) -> None:
    """Raises NotFound for a machine that nobody knows, Conflict where it may still be alive."""
    node = transaction.state.nodes.get(node_id)
    if node is None:
        raise NotFound(f"no machine {node_id}", fix="check `walras nodes`")
    check_may_be_forgotten(transaction, node, unreachable_s)
    if node.is_member:
        declare_node_lost(transaction, node_id, Reason.HOLD_ADMIN)
    transaction.node_forgotten(node)
    log.info("%s is forgotten", node_id)


def check_may_be_forgotten(transaction: Transaction, node: LiveNode, unreachable_s: float) -> None:
    """Raise Conflict, in words that say what to do first."""
    node_id, state = node.row.node_id, transaction.state
    kept = [
        job_id
        for job_id, job in state.jobs.items()
        if job.attempt is not None and (node_id in job.attempt.parts or (job_id, job.attempt.row.attempt) in node.alive)
    ]
    if kept:
        shown = ", ".join(str(job_id) for job_id in kept[:5]) + (", ..." if len(kept) > 5 else "")
        raise Conflict(
            f"{node_id} holds a part of an attempt of job {shown}",
            field="node_id",
            fix=f"empty it with `walras admin drain {node_id}`, or wait until it is lost",
        )
    if node.is_member and node.row.rent_token:
        raise Conflict(
            f"{node_id} is rented and has not been given back", field="node_id", fix="its provider gives it back"
        )
    silent_s = transaction.at - node.heard_at
    if silent_s <= unreachable_s:
        raise Conflict(
            f"the agent of {node_id} was heard {silent_s:.0f} s ago",
            field="node_id",
            fix=f"stop its agent, and try again after {unreachable_s:.0f} s",
        )
    if node.is_member and (node.must_meet or node.expected or node.outbox):
        raise Conflict(
            f"{node_id} has not said what is left on it",
            field="node_id",
            fix="wait until it is lost: `walras nodes` says when",
        )
