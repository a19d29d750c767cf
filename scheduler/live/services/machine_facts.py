"""Facts that agents report of their machines: tools, and inputs that were fetched.

Tools are in the tables, because after a restart a job must not start where it cannot be prepared, before agents have
reported again. Inputs are not: not knowing them costs one fetch at most.
"""

import json
from collections.abc import Iterable

from scheduler.core.core import SchedulerCore
from scheduler.core.events import NodeData, NodeFit, NodeJoined, NodePrivate, NodeTools, NodeUnfit
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.departures import is_drained_by_admin
from scheduler.live.loop.live_state import LiveNode
from scheduler.live.loop.transaction import Transaction
from walras.job_request import JobId, can_prepare
from walras.machines.machine_facts import faults_text
from walras.wire import Heartbeat


def dump_tools(tools: Iterable[str] | None) -> str:
    """Returns the tools as a machine's row keeps them; empty for None."""
    return "" if tools is None else json.dumps(sorted(set(tools)))


def tell_joined(transaction: Transaction, node: LiveNode, paid_since: float | None, paid_usd: float = 0.0) -> None:
    """Tell the core that a machine has joined, with all its facts, since a job may start there in the same instant."""
    row, at = node.row, transaction.at
    tools = None if node.tools is None else tuple(sorted(node.tools))
    machine = node.facts.machine
    drained = is_drained_by_admin(node)
    emit(
        transaction,
        NodeJoined(at, row.node_id, row.pool_id, row.rent_token, paid_since, paid_usd, tools, machine, drained),
    )
    if row.private:
        emit(transaction, NodePrivate(at, row.node_id, private=True))
    if node.data:
        emit(transaction, NodeData(at, row.node_id, node.data, node.fetched))


def has_new_facts(node: LiveNode, message: Heartbeat) -> bool:
    """Returns whether a heartbeat reports tools, inputs or faults of devices that are not known yet."""
    has_tools = message.tools is not None and dump_tools(message.tools) != node.row.tools
    if message.devices is not None and faults_text(message.devices) != node.unfit:
        return True
    return has_tools or (message.data is not None and tuple(sorted(set(message.data))) != node.data)


def take_facts(transaction: Transaction, node: LiveNode, message: Heartbeat) -> None:
    """Record what is new. Facts of a machine that is not a member are kept until it joins again."""
    at, node_id = transaction.at, node.row.node_id
    if message.tools is not None and dump_tools(message.tools) != node.row.tools:
        node.row.tools = dump_tools(message.tools)
        transaction.node_changed(node)
        if node.is_member:
            emit(transaction, NodeTools(at, node_id, tuple(sorted(set(message.tools)))))
    if message.data is not None and tuple(sorted(set(message.data))) != node.data:
        node.data = tuple(sorted(set(message.data)))
        told = {each.key: each for each in message.fetched if each.key in message.data}
        node.fetched = tuple((key, told[key].size_bytes, told[key].seconds) for key in sorted(told))
        if node.is_member:
            emit(transaction, NodeData(at, node_id, node.data, node.fetched))
    if message.devices is not None and (faults := faults_text(message.devices)) != node.unfit and node.is_member:
        node.unfit = faults
        emit(transaction, NodeUnfit(at, node_id, faults) if faults else NodeFit(at, node_id))


def tools_note(core: SchedulerCore, job_id: JobId) -> str:
    """Returns what the submitter should know of a job whose tools no machine has reported, as the rest of a sentence.

    Returns an empty text where a machine has them.
    """
    job = core.ledger.jobs.get(job_id)
    if job is None or not job.request.tools:
        return ""
    pools = [state for state in core.ledger.fleet.pools if job.request.size_on(state.pool)]
    if any(can_prepare(tools, job.request.tools) for state in pools for tools in state.tools.counts):
        return ""
    silent = [state.pool.pool_id for state in pools if not state.tool_sets]
    needs = " and ".join(" or ".join(any_of) for any_of in job.request.tools)
    where = f", and counts on machines of {', '.join(sorted(silent)[:3])} to have it" if silent else ""
    return f"needs {needs}, which no machine has said yet that it has{where}"
