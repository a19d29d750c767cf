"""Endpoints about notifications: users add, list, test and remove the addresses to which they are sent.

Users have channels of their own and see no others. An address is a secret: answers and audit rows show only its host,
or the kind of its service.
"""

import json
from typing import Any

from aiohttp import web

from scheduler.live.auth.access_control import UserRole
from scheduler.live.http.audit_trail import note_write
from scheduler.live.http.requests import RequestContext, Route, json_list
from scheduler.live.loop.transaction import Transaction
from scheduler.live.store.people_rows import ChannelRow
from walras.errors import Forbidden, NotFound, UserError
from walras.notifications import CHOICES, ChannelCreated, ChannelView, NewChannel, NotificationKind

_DIGITS = 18


async def list_channels(call: RequestContext) -> web.StreamResponse:
    rows = call.server.state.notifications.channels_of(call.user.name)
    return json_list([ChannelView(**_shown(call, row)) for row in rows])


async def add_channel(call: RequestContext) -> ChannelCreated:
    """Adds a channel. Raises Forbidden for a kind of event that the caller may not be told of."""
    asked, service = await call.model(NewChannel), call.server.notifications
    if NotificationKind.TEST in asked.kinds:
        raise UserError("test is nothing that happens", field="kinds", fix=f"choose of {', '.join(CHOICES)}")
    if NotificationKind.MACHINE_LOST in asked.kinds and call.user.role < UserRole.OPERATOR:
        raise Forbidden("machines are an operator's to hear of", field="kinds", fix="leave machine_lost out")
    address = await service.checked(asked.url)

    def step(transaction: Transaction) -> tuple[ChannelRow, str]:
        row, key = service.add(transaction, call.user.name, address, asked.kinds)
        note_write(call, transaction, f"channel {row.channel_id}", after=_standing(row))
        return row, key

    row, key = await call.server.loop.perform(step)
    return ChannelCreated(**_shown(call, row), key=key)


async def remove_channel(call: RequestContext) -> ChannelView:
    """Removes a channel with the notifications that wait for it."""
    number, service = _number(call), call.server.notifications

    def step(transaction: Transaction) -> ChannelView:
        row = service.channel_of(call.user.name, number)
        view = ChannelView(**_shown(call, row))
        transaction.state.notifications.remove_channels(transaction.batch, [row])
        note_write(call, transaction, f"channel {number}", before=_standing(row))
        return view

    return await call.server.loop.perform(step)


async def send_test(call: RequestContext) -> ChannelView:
    """Sends a test notification and waits for the outcome: `problem` is empty where the receiver has it."""
    number, service = _number(call), call.server.notifications

    def note(transaction: Transaction, row: ChannelRow) -> None:
        note_write(call, transaction, f"channel {number}", after=_standing(row))

    problem = await service.test(call.user.name, number, note)
    view = _shown(call, service.channel_of(call.user.name, number))
    return ChannelView(**view | {"problem": problem})


def _number(call: RequestContext) -> int:
    text = call.request.match_info["channel_id"]
    if len(text) > _DIGITS:
        raise NotFound("no such channel", field="channel_id", fix="check `walras notify list`")
    return int(text)


def _standing(row: ChannelRow) -> dict[str, Any]:
    return {"user": row.user, "address": row.shown, "kinds": json.loads(row.kinds)}


def _shown(call: RequestContext, row: ChannelRow) -> dict[str, Any]:
    clock = call.server.loop.clock
    return {
        "id": row.channel_id,
        "shown": row.shown,
        "kinds": json.loads(row.kinds),
        "added_at": clock.shown(row.added_at),
        "waiting": len(call.server.state.notifications.by_channel.get(row.channel_id, ())),
        "delivered": row.delivered,
        "failed": row.failed,
        "dropped": row.dropped,
        "delivered_at": clock.shown_or_none(row.delivered_at),
        "problem": row.problem,
    }


def notify_routes() -> list[Route]:
    """Returns the routes about notifications, for users who may submit jobs."""
    base, one, user = "/api/v1/notify", "/api/v1/notify/{channel_id:[0-9]+}", UserRole.USER
    return [
        Route("GET", base, list_channels, "Where you are told of events", role=user, response=list[ChannelView]),
        Route("POST", base, add_channel, "Be told of events at an address", role=user, request=NewChannel,
              response=ChannelCreated, status=201),
        Route("DELETE", one, remove_channel, "Be told there no more", role=user, response=ChannelView),
        Route("POST", f"{one}/test", send_test, "Send a test there", role=user, response=ChannelView, waits=True),
    ]  # fmt: skip
