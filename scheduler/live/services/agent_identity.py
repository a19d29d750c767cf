"""Identifies who sends messages for a machine: checks the cluster, incarnation, agent and release that they name.

An agent is identified by a secret in its state folder: without that folder it is another agent, whatever name and token
it sends. A machine name that one agent holds is not given to another before every lease granted there has run out,
because ranks may be alive; the join token proves nothing about ranks. A copy of a state folder is told from its
original by the machine's boot: while one of them is heard, the other is refused. An agent that belongs to another
cluster, or knows another incarnation of this one's database, is told both ids and gets nothing.

A machine with accelerators of several types has one agent, and a node for each type (`walras.cluster`). People name the
machine, and what they ask then holds for all its parts. The name belongs to one agent as a whole: while ranks may be
alive on any part of a machine, no other agent gets another part, nor a machine of that very name.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from pydantic import ValidationError

from scheduler.live.loop.live_state import LiveNode, LiveState
from scheduler.live.loop.transaction import Transaction
from walras.cluster import Market, NodeId, Pool, PoolId, Shape, is_same_machine_agent, part_name
from walras.contract import PROTOCOL, protocol_problem
from walras.errors import Forbidden, NameHeld, NotFound, OtherCluster, OtherIncarnation, OtherProtocol, UserError
from walras.spec.accelerator_names import covers
from walras.spec.catalog import catalog_memory_bytes, catalog_speed
from walras.wire import ClusterIdentity, Heartbeat, Register, ShapeFacts, is_like_memory

log = logging.getLogger(__name__)

#: A machine may enrol until this many seconds after its request, or so many times its pool's boot time if longer.
_ENROL_S, _ENROL_BOOTS = 1800.0, 3.0
#: A job number that is told is believed up to so many above the newest one known here.
_NUMBERS_AHEAD = 10_000_000
#: The first protocol version in which agents name themselves and the cluster.
_NAMES_ITSELF = 2


def check_cluster(here: ClusterIdentity, told: ClusterIdentity | None, who: str) -> None:
    """Raise OtherCluster where `who` belongs to another cluster. An older agent, which names none, is let pass."""
    if told is not None and told.cluster_id != here.cluster_id:
        raise OtherCluster(
            f"{who} belongs to cluster {told.cluster_id}; this server is cluster {here.cluster_id}",
            field="cluster",
            fix="give the agent the address of its own server (--server), or a new state folder (--state) to join here",
        )


def check_incarnation(here: ClusterIdentity, told: ClusterIdentity | None, who: str) -> None:
    """Raise OtherIncarnation where `who` knows another incarnation of this cluster's database."""
    if told is not None and told.incarnation != here.incarnation:
        raise OtherIncarnation(
            f"{who} knows incarnation {told.incarnation} of this cluster; the server is incarnation"
            f" {here.incarnation}, because its database was restored",
            identity=here.model_dump(),
            field="cluster",
            fix="the agent says by itself what it has, and goes on",
        )


def check_log_sender(here: ClusterIdentity, node_id: NodeId, query: Mapping[str, str]) -> None:
    """Raise as `check_cluster` and `check_incarnation` do, for an upload; agents of the first release name nothing."""
    if "cluster_id" not in query:
        return
    try:
        told = ClusterIdentity(cluster_id=query["cluster_id"], incarnation=query.get("incarnation", ""))
    except ValidationError:
        raise UserError("no cluster is named like this", field="cluster_id") from None
    check_cluster(here, told, node_id)
    check_incarnation(here, told, node_id)


def check_protocol(message: Register | Heartbeat) -> None:
    """Raise OtherProtocol where this server cannot talk to the agent's release."""
    problem = protocol_problem(
        f"the agent of {message.node_id} (release {message.version or 'unknown'})", message.protocol
    )
    if problem:
        raise OtherProtocol(problem, field="protocol", fix="install the server's release on the machine")


def check_name_is_free(transaction: Transaction, node: LiveNode, message: Register, unreachable_s: float) -> bool:
    """Returns True if the registering agent is the one that has the name already, False if the name is free to take.

    Raises NameHeld while another agent is heard under this name, or may have ranks alive.
    """
    row, at = node.row, transaction.at
    is_same_agent = bool(message.agent) and message.agent == row.agent
    is_silent = at - node.heard_at > unreachable_s
    if is_same_agent and (is_silent or not node.was_heard or row.boot_id in ("", message.boot_id)):
        return True
    # Nothing was granted, or all of it has ended: nothing can be alive there, and silence is enough.
    if is_silent and not node.expected and not node.outbox and not node.alive:
        return False
    first = f"another agent speaks for {row.node_id} since {at - row.joined_at:.0f} s"
    if row.boot_id:
        first += f" (boot {row.boot_id})"
    heard = f"{first}, last heard {at - node.heard_at:.0f} s ago"
    if is_silent:
        left_s = max(0.0, node.leased_until - at)
        detail = f"{heard}; its ranks may be alive for another {left_s:.0f} s: nobody else gets the name before"
    else:
        detail = f"{heard}; the name is its own"
    log.warning("registration refused: %s", detail)
    raise NameHeld(
        detail,
        field="node_id",
        fix="choose another --node for a second machine; an agent that lost its state folder has only to wait",
    )


def check_has_left(transaction: Transaction, node: LiveNode, message: Register) -> None:
    """Raise NameHeld where the registering agent has another name already, under which ranks may be alive."""
    if node.expected or node.outbox or node.alive:
        name = node.row.node_id
        raise NameHeld(
            f"this agent is {name}, where its jobs run; as {message.node_id} it would end them",
            field="node_id",
            fix=f"start it as --node {name}, or give {message.node_id} a --state of its own",
        )


def check_enrolment(transaction: Transaction, message: Register, rent_token: str) -> None:
    """Raise Forbidden unless the machine is of the request's pool, comes in time, and is not one too many."""
    state, facts = transaction.state, message.facts
    rent = state.rents.get(rent_token)
    is_of_pool = rent is not None and rent.pool_id == f"{facts.shape}/{facts.market}/{facts.zone}"
    if rent is None or message.rent_token != rent_token or not is_of_pool:
        raise Forbidden("this token admits machines of another request", field="rent_token")
    # For machines from a queue, the boot time includes the waits that were seen in that queue.
    limit_s = max(_ENROL_S, _ENROL_BOOTS * state.pool_of(rent.pool_id).boot_s)
    if transaction.at - rent.asked_at > limit_s:
        raise Forbidden("this token admits no machine any more", field="rent_token")
    others = sum(
        node.row.rent_token == rent_token and node.is_member and node_id != message.node_id
        for node_id, node in state.nodes.items()
    )
    if others >= rent.machines:
        raise Forbidden("all machines of this request are here already", field="rent_token")


def check_speaker(node: LiveNode, message: Heartbeat, now: float, unreachable_s: float) -> None:
    """Raise NameHeld where the message comes from a copy of the agent that is heard from the machine."""
    row = node.row
    if row.agent and message.agent and row.agent != message.agent:
        raise NameHeld(f"another agent speaks for {row.node_id}", field="agent", fix="give this one its own --state")
    is_other_boot = bool(row.boot_id and message.boot_id and row.boot_id != message.boot_id)
    if is_other_boot and node.was_heard and now - node.heard_at <= unreachable_s:
        raise NameHeld(
            f"the agent of {row.node_id} is heard from boot {row.boot_id}, {now - node.heard_at:.0f} s ago; this is"
            f" boot {message.boot_id}",
            field="boot_id",
            fix="two machines share a copied --state: give one of them its own; after a restart, wait a moment",
        )


def is_other_speaker(node: LiveNode, message: Heartbeat, incarnation: str) -> bool:
    """Returns whether the message names its sender otherwise than the machine's row does."""
    row = node.row
    told = (message.agent or row.agent, message.boot_id or row.boot_id, message.version or row.version, incarnation)
    return told != (row.agent, row.boot_id, row.version, row.incarnation)


def note_speaker(transaction: Transaction, node: LiveNode, message: Heartbeat) -> None:
    """Record which agent sends for the machine, and that it knows this incarnation."""
    row = node.row
    incarnation = row.incarnation if node.must_meet else transaction.state.identity.incarnation
    if not is_other_speaker(node, message, incarnation):
        return
    if message.protocol < _NAMES_ITSELF and row.incarnation != incarnation:
        log.info(
            "the agent of %s speaks protocol %d, here it is %d: it names neither itself nor the cluster",
            row.node_id, message.protocol, PROTOCOL,
        )  # fmt: skip
    row.agent, row.boot_id = message.agent or row.agent, message.boot_id or row.boot_id
    row.version, row.incarnation = message.version or row.version, incarnation
    transaction.node_changed(node)


def highest_number_told(state: LiveState, message: Heartbeat) -> int:
    """Returns the highest job number that the agent reports this cluster to have given out, up to a plausible bound."""
    return min(message.highest_job_id, state.next_job_id + _NUMBERS_AHEAD)


# ------------------------------------------------------------------------------------------ the machine it is


def pool_of_agent(message: Register) -> Pool:
    """Returns the pool that the machine states for itself."""
    facts = message.facts
    shape = Shape(
        name=facts.shape,
        accelerator=facts.accelerator,
        accelerators=facts.accelerators,
        cpus=facts.cpus,
        memory_bytes=facts.memory_bytes,
        nominal_speed=facts.nominal_speed,
        emulated=facts.emulated,
    )
    return Pool(PoolId(f"{facts.shape}/{facts.market}/{facts.zone}"), shape, Market(facts.market), facts.zone)


def with_known_speed(pool: Pool, declared: Pool | None) -> Pool:
    """Returns the pool with the speed of the declared pool, or of the type's data sheet, if the machine states none
    (1).

    Emulated accelerators have the speed that they state, which is no device's. The memory of an accelerator, which no
    machine states, is filled in likewise, and main memory where it is about the declared pool's. A pool that is
    declared as a family (`h100`) keeps that name for what its machines find (`h100-80gb`).
    """
    if declared is not None and covers(declared.shape.accelerator, pool.shape.accelerator):
        pool = replace(pool, shape=replace(pool.shape, accelerator=declared.shape.accelerator))
    known_bytes = None if declared is None else declared.shape.accelerator_memory_bytes
    memory_bytes = catalog_memory_bytes(pool.shape.accelerator) if known_bytes is None else known_bytes
    shape = replace(pool.shape, accelerator_memory_bytes=memory_bytes)
    if declared is not None and is_like_memory(shape.memory_bytes, declared.shape.memory_bytes):
        shape = replace(shape, memory_bytes=declared.shape.memory_bytes)
    pool = replace(pool, shape=shape)
    if shape.nominal_speed != 1.0:
        return pool
    by_sheet = 1.0 if shape.emulated else catalog_speed(shape.accelerator) or 1.0
    speed = by_sheet if declared is None else declared.shape.nominal_speed
    return replace(pool, shape=replace(shape, nominal_speed=speed))


def is_same_machine(known: ShapeFacts, told: ShapeFacts) -> bool:
    """Returns whether a machine that states `told` can be the one that stated `known`."""
    is_like = is_like_memory(known.memory_bytes, told.memory_bytes)
    return is_like and known == told.model_copy(update={"memory_bytes": known.memory_bytes})


def shape_differences(known: Shape, joining: Shape) -> str:
    """Returns how a machine's shape differs from the known one, in `walras agent`'s words; empty if equal."""
    told = [
        f"{each.name} is {getattr(joining, each.name)} here, {getattr(known, each.name)} there"
        for each in fields(Shape)
        if getattr(joining, each.name) != getattr(known, each.name)
    ]
    return ", ".join(told)


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
    """Raise NameHeld while another agent is heard for the machine or a part of it, or ranks may be alive there, be it
    under another name of this agent.
    """
    own = message.facts.machine or message.node_id
    for node_id, node in transaction.state.nodes.items():
        if node_id == message.node_id or not node.is_member:
            continue
        if message.agent and message.agent == node.row.agent:
            check_has_left(transaction, node, message)
        if own not in (node_id, node.facts.machine):
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
