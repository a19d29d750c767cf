"""When a month ends: its charges are closed, and the core hears that a new month's budgets begin."""

import asyncio

from scheduler.live.turns import money
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.turn import Turn

#: The calendar is looked at this often at least: wall clocks are set, machines sleep.
_LOOK_S = 600.0


def turn_month(turn: Turn) -> None:
    """Tell the core if the month is another one than it knows of."""
    board = turn.board
    if board.month != money.month_of(turn.at + board.epoch_unix_s):
        emit(turn, money.restate(turn))


async def keep_months(daemon: Daemon) -> None:
    """For ever."""
    while True:
        await daemon.perform(turn_month)
        unix_s = daemon.clock.unix(daemon.clock.now())
        await asyncio.sleep(min(_LOOK_S, money.next_month_unix_s(unix_s) - unix_s + 0.01))
