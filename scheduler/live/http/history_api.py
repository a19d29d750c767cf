"""Endpoints about who held accelerators when: projects in steps of time, and a machine attempt by attempt.

Callers who see only some projects are told of these alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from aiohttp import web

from optimizer.problem import FloatArray
from scheduler.live.http.requests import RequestContext, Route, json_list
from scheduler.live.loop.billing import month_of, open_charges
from scheduler.live.loop.event_loop import Clock
from scheduler.live.services.parts_of_machines import nodes_named
from scheduler.live.store.history_rows import HeldQuery, HeldRow, NodeAttemptRow
from scheduler.live.store.table_rows import ChargeRow
from walras.usage import (
    LONGEST_USAGE_S,
    MOST_HELD_PROJECTS,
    MOST_NODE_ATTEMPTS,
    HeldByProject,
    HeldHistory,
    NodeAttempt,
)

_DEFAULT_SINCE_S = 7 * 86_400
#: The lengths of steps, seconds, of which a history takes the shortest that needs no more than so many steps.
_STEPS_S, _STEPS_MOST = (60, 900, 3600, 6 * 3600, 86_400, 7 * 86_400), 120
_DEFAULT_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class _Window:
    """A stretch of time in steps of one length; the last step may be shorter."""

    since_at: float
    until_at: float
    step_s: int

    def spread(self, row: HeldRow) -> Iterator[tuple[int, float]]:
        """Yields (index of the step, fraction of the row's time that lies in it) for each step that it touches."""
        length_s = row.until_at - row.since_at
        since_at, until_at = max(row.since_at, self.since_at), min(row.until_at, self.until_at)
        first = int((since_at - self.since_at) // self.step_s)
        last = int((until_at - self.since_at) // self.step_s)
        for step in range(first, last + 1):
            begin = max(since_at, self.since_at + step * self.step_s)
            end = min(until_at, self.since_at + (step + 1) * self.step_s)
            if end > begin:
                yield step, (end - begin) / length_s

    def lengths_s(self) -> FloatArray:
        """Returns the length of each step, seconds."""
        begins = np.arange(self.since_at, self.until_at, self.step_s)
        return np.minimum(self.step_s, self.until_at - begins)


async def show_held_history(call: RequestContext) -> web.StreamResponse:
    """Returns the accelerators that each project held, step by step. Raises UserError where `since_s` is too long."""
    server = call.server
    state, clock = server.state, server.loop.clock
    now, visible = clock.now(), call.user.visible_projects
    since_at = max(0.0, now - call.number("since_s", _DEFAULT_SINCE_S, 1, LONGEST_USAGE_S))
    step_s = next((each for each in _STEPS_S if now - since_at <= each * _STEPS_MOST), _STEPS_S[-1])
    window = _Window(since_at, now, step_s)
    query = HeldQuery(since_at, month_of(clock.unix(since_at)), state.next_charge_id, step_s, visible)
    still_open = [
        _held_of(charge)
        for charge in open_charges(state, now)
        if charge.job_id and charge.until_at > charge.since_at and call.user.sees(charge.project)
    ]
    await server.loop.settled()
    written = await server.read(server.store.held, query)
    body = await server.read(_history, clock, window, [*written, *still_open])
    return web.Response(body=body, content_type="application/json")


def _held_of(charge: ChargeRow) -> HeldRow:
    held_s = charge.until_at - charge.since_at
    return HeldRow(
        charge.project, charge.since_at, charge.until_at, charge.accelerators * held_s, charge.units * held_s
    )


def _history(clock: Clock, window: _Window, rows: Iterable[HeldRow]) -> bytes:
    lengths_s = window.lengths_s()
    held: dict[str, FloatArray] = {}
    for row in rows:
        sums = held.setdefault(row.project, np.zeros((2, len(lengths_s))))
        for step, part in window.spread(row):
            sums[:, min(step, len(lengths_s) - 1)] += row.accelerator_s * part, row.unit_s * part
    order = sorted(held, key=lambda project: (-float(held[project][0].sum()), project))
    items = []
    for project in order[:MOST_HELD_PROJECTS]:
        accelerators, units = held[project] / lengths_s
        items.append(HeldByProject(project=project, accelerators=accelerators.tolist(), units=units.tolist()))
    history = HeldHistory(
        since=clock.unix(window.since_at),
        until=clock.unix(window.until_at),
        step_s=window.step_s,
        items=items,
        left_out=max(0, len(order) - MOST_HELD_PROJECTS),
    )
    return history.model_dump_json().encode()


async def list_node_attempts(call: RequestContext) -> web.StreamResponse:
    """Lists the attempts that ran on a machine, or on its parts, newest first. Raises NotFound for an unknown name."""
    server = call.server
    limit = int(call.number("limit", _DEFAULT_ATTEMPTS, 1, MOST_NODE_ATTEMPTS))
    nodes = nodes_named(server.state, call.request.match_info["node_id"])
    await server.loop.settled()
    found: list[NodeAttemptRow] = []
    for node_id in nodes:
        found += await server.read(server.store.node_attempts, node_id, call.user.visible_projects, limit)
    newest = {(row.job_id, row.attempt): row for row in sorted(found, key=lambda row: -row.leased_at)}
    return json_list([_attempt_view(server.loop.clock, row) for row in list(newest.values())[:limit]])


def _attempt_view(clock: Clock, row: NodeAttemptRow) -> NodeAttempt:
    return NodeAttempt(
        job=row.job_id,
        attempt=row.attempt,
        name=row.name,
        project=row.project,
        user=row.user,
        state=row.state,
        reason=row.reason,
        accelerators=row.accelerators,
        leased_at=clock.unix(row.leased_at),
        started_at=None if row.started_at is None else clock.unix(row.started_at),
        ended_at=None if row.ended_at is None else clock.unix(row.ended_at),
    )


def history_routes() -> list[Route]:
    """Returns the routes about the past of accelerators, for every user."""
    return [
        Route("GET", "/api/v1/usage/history", show_held_history, "What projects held of accelerators, step by step",
              response=HeldHistory, query=("since_s",)),
        Route("GET", "/api/v1/nodes/{node_id}/history", list_node_attempts, "What ran on a machine, newest first",
              response=list[NodeAttempt], query=("limit",)),
    ]  # fmt: skip
