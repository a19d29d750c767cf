"""Machines that a provider has launched for a request and that have not joined yet.

They are paid for from their request on, whether they join or not. The market may take a machine away before it joins,
or while the server is down. So that it is charged all the same, the row of its request names it as soon as the provider
does: in the answer to the request, or in a listing. What has been paid for stays named until no listing shows it any
more, so that an outdated listing does not charge it twice.
"""

import json
from collections.abc import Iterable, Iterator

from scheduler.core.events import RentFailed
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.live_state import LiveState
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.table_rows import RentRow
from scheduler.providers.provider import RentedMachine
from walras.cluster import NodeId


def known_launches(state: LiveState) -> Iterator[tuple[NodeId, RentRow]]:
    """Yields every machine that was launched and is not known to be gone, with its request; of those that joined, what
    their provider would not take back.
    """
    for rent in (*state.rents.values(), *state.past_rents.values()):
        if rent.launched != "{}":
            yield from ((NodeId(name), rent) for name in json.loads(rent.launched))


def unknown_launches(state: LiveState, machines: Iterable[RentedMachine]) -> list[RentedMachine]:
    """Returns those of these machines that `note_launches` would record."""
    found = []
    for machine in machines:
        rent = _rent_of(state, machine.token)
        if rent is not None and machine.node_id not in state.nodes and machine.node_id not in json.loads(rent.launched):
            found.append(machine)
    return found


def note_launches(transaction: Transaction, machines: Iterable[RentedMachine]) -> None:
    """Record that the provider names these machines."""
    for machine in unknown_launches(transaction.state, machines):
        rent = _rent_of(transaction.state, machine.token)
        assert rent is not None
        _write(transaction, rent, json.loads(rent.launched) | {str(machine.node_id): False})


def launch_given_back(transaction: Transaction, machine: RentedMachine) -> None:
    """Charge a machine that its provider took back before it joined; only once."""
    rent = _rent_of(transaction.state, machine.token)
    if rent is not None and not json.loads(rent.launched).get(machine.node_id):
        billing.launch_ended(transaction, rent, machine.node_id)
        _write(transaction, rent, json.loads(rent.launched) | {str(machine.node_id): True})
        emit(transaction, billing.restate_spending(transaction))


def launch_joined(transaction: Transaction, token: str, node_id: NodeId) -> None:
    """Take the machine out of its request's launches: it is billed as a member, from now on or until it was gone."""
    rent = _rent_of(transaction.state, token)
    launched = {} if rent is None else json.loads(rent.launched)
    if rent is not None and launched.pop(node_id, None) is not None:
        _write(transaction, rent, launched)


def launch_kept(transaction: Transaction, node_id: NodeId) -> None:
    """Put a member that its provider would not take back under its request's launches, until it is gone."""
    node = transaction.state.nodes.get(node_id)
    rent = None if node is None else _rent_of(transaction.state, node.row.rent_token)
    if rent is not None:
        _write(transaction, rent, json.loads(rent.launched) | {str(node_id): True})


def launch_gone(transaction: Transaction, token: str, node_id: NodeId) -> None:
    """Record that a machine is gone that never joined.

    Charges it unless that was done, and tells the core if its request now lacks a machine.
    """
    rent = _rent_of(transaction.state, token)
    if rent is None:
        return
    launched = json.loads(rent.launched)
    was_paid = launched.pop(node_id, None)
    if was_paid is not None:
        _write(transaction, rent, launched)
    if was_paid is False:
        billing.launch_ended(transaction, rent, node_id)
        emit(transaction, billing.restate_spending(transaction))
    here = transaction.state.here_of(token)
    if token in transaction.state.rents and here + list(launched.values()).count(False) < rent.machines:
        emit(transaction, RentFailed(transaction.at, token, f"{node_id} did not come up", 1))


def _rent_of(state: LiveState, token: str) -> RentRow | None:
    return state.rents.get(token) or state.past_rents.get(token)


def _write(transaction: Transaction, rent: RentRow, launched: dict[str, bool]) -> None:
    rent.launched = json.dumps(launched)
    transaction.rent_changed(rent)
