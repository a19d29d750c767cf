"""Machines with accelerators of several types: one agent, and a node for each type (`walras.machine_parts`).

People name the machine, and what they ask then holds for all its parts. The name belongs to one agent as a whole: while
ranks may be alive on any part of a machine, no other agent gets another part, nor a machine of that very name.
"""

from dataclasses import dataclass, field

from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.services.agent_identity import check_name_is_free
from walras.cluster import NodeId
from walras.errors import NameHeld, NotFound, UserError
from walras.machine_parts import is_same_machine_agent, part_name
from walras.wire import Heartbeat, Register


def check_part(message: Register) -> None:
    """Raise UserError where a machine registers as a part under a wrong name, or as a part though it is rented."""
    facts = message.facts
    if not facts.machine:
        return
    try:
        expected = part_name(facts.machine, facts.accelerator)
    except ValueError as error:
        raise UserError(str(error), field="facts.machine") from None
    if message.node_id != expected:
        raise UserError(
            f"{message.node_id} is not the part of {facts.machine} with {facts.accelerator}",
            field="node_id",
            fix=f"register it as {expected}",
        )
    if message.rent_token:
        raise UserError("a rented machine has no parts", field="rent_token", fix="register it as a whole")


def check_machine_is_free(transaction: Transaction, message: Register, unreachable_s: float) -> None:
    """Raise NameHeld while another agent is heard for the machine or a part of it, or ranks may be alive there."""
    own = message.facts.machine or message.node_id
    for node_id, node in transaction.state.nodes.items():
        if node_id == message.node_id or not node.is_member or own not in (node_id, node.facts.machine):
            continue
        are_parts = bool(message.facts.machine) and bool(node.facts.machine)
        if not (are_parts and is_same_machine_agent(node.row.agent, message.agent)):
            check_name_is_free(transaction, node, message, unreachable_s)


def machines_named(state: LiveState, name: str) -> list[LiveNode]:
    """Returns the node of this name, or that machine's parts, lost ones included.

    Raises NotFound without any, and for a rented machine that was given back.
    """
    found = [state.nodes[node_id] for node_id in nodes_named(state, name)]
    if any(node.row.state == "released" for node in found):
        raise NotFound(f"no machine {name}", fix="check `walras nodes`")
    return found


def nodes_named(state: LiveState, name: str) -> list[NodeId]:
    """Returns the node of this name, or that machine's parts, lost ones included. Raises NotFound without any."""
    if name in state.nodes:
        return [NodeId(name)]
    parts = [node_id for node_id, each in sorted(state.nodes.items()) if each.facts.machine == name]
    if not parts:
        raise NotFound(f"no machine {name}", fix="check `walras nodes`")
    return parts


@dataclass(slots=True)
class _Heard:
    agent: str
    is_part: bool
    at: float


@dataclass(slots=True)
class MachineSpeakers:
    """The agent that was heard last for each machine; in memory only, because it is worthless after a silence."""

    _heard: dict[str, _Heard] = field(default_factory=dict)

    def check(self, node: LiveNode, message: Heartbeat, now: float, unreachable_s: float) -> None:
        """Note who sends. Raises NameHeld where another agent was just heard for another part of this machine."""
        agent, is_part = message.agent or node.row.agent, bool(node.facts.machine)
        name = node.facts.machine or message.node_id
        last = self._heard.get(name)
        if last is not None and (last.is_part or is_part) and now - last.at <= unreachable_s:
            is_same = last.is_part and is_part and is_same_machine_agent(last.agent, agent)
            if not is_same:
                raise NameHeld(
                    f"another agent speaks for {name}, heard {now - last.at:.0f} s ago",
                    field="agent",
                    fix="give each machine its own name (--node) and its own folder (--state)",
                )
        self._heard[name] = _Heard(agent, is_part, now)
