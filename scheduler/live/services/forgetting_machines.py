"""Removes a machine that will not return: its row, its credential, its place in the list.

That is allowed where nothing can be alive on it: it is lost, or it is silent and everything granted there has ended. A
machine whose agent is heard stays, and so does a rented one that is still a member, which its provider has to give
back. Attempts, charges and the journal keep what the machine did. Should it return after all, it joins anew by the join
token.
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
    """Remove a machine. Raises NotFound for an unknown machine, Conflict where something may still be alive on it."""
    node = transaction.state.nodes.get(node_id)
    if node is None:
        raise NotFound(f"no machine {node_id}", fix="check `walras nodes`")
    check_may_be_forgotten(transaction, node, unreachable_s)
    if node.is_member:
        declare_node_lost(transaction, node_id, Reason.HOLD_ADMIN)
    transaction.node_forgotten(node)
    log.info("%s is forgotten", node_id)


def check_may_be_forgotten(transaction: Transaction, node: LiveNode, unreachable_s: float) -> None:
    """Raise Conflict where something may be alive on the machine; the error says what to do first."""
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
