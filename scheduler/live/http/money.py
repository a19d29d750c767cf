"""The ledger of money over HTTP."""

import re

from scheduler.live.desks.money_report import report, sums_of
from scheduler.live.http.routing import Call
from scheduler.live.records.rows import MONEY_KEYS, MoneyQuery
from scheduler.live.turns import money
from walras.api import MoneyReport
from walras.errors import UserError

_MONTH = re.compile(r"^[0-9]{4}-(0[1-9]|1[0-2])$")


async def show(call: Call) -> MoneyReport:
    """Sums of what is written and of what is open, as of one instant."""
    asked = call.request.query
    by, month = asked.get("by", "project"), asked.get("month", "")
    if by not in MONEY_KEYS:
        raise UserError(
            f"money cannot be summed by {by[:40]!r}", field="by", fix=f"choose from {', '.join(MONEY_KEYS)}"
        )
    if month and not _MONTH.match(month):
        raise UserError(f"{month[:40]!r} is no month", field="month", fix="write it as 2026-11")
    server = call.server
    board = server.board
    query = MoneyQuery(by, board.next_charge_id, month, asked.get("project", ""), call.user.visible_projects)
    open_now = sums_of(money.open_charges(board, server.daemon.clock.now()), query)
    await server.daemon.settled()
    written = await server.read(server.store.money, query)
    return report(query, [*written, *open_now])
