"""What is paid for and what is known are the same: compared both ways, again and again.

Machines that a provider lists under our name and that nobody asked for, that were given back, are one too many or do
not come up are given back; machines we believe in and the provider does not list are given up; requests that came to
nothing are said to have failed. Of a provider that does not answer nothing is concluded, and it is asked less often.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from scheduler.cloud.provider import CloudProvider, Machine, MachineState, ProblemKind, ProviderProblem
from scheduler.core.events import RentFailed
from scheduler.live.records.rows import RentRow
from scheduler.live.turns import money
from scheduler.live.turns.carry_out import emit
from scheduler.live.turns.daemon import Daemon
from scheduler.live.turns.turn import Turn
from walras.cluster import Pool
from walras.errors import ClusterError
from walras.ids import NodeId, PoolId
from walras.reasons import Reason

log = logging.getLogger(__name__)

T = TypeVar("T")
#: A provider that answers later than this has not answered.
CALL_S = 120.0
SWEEP_S = 30.0
_SWEEP_MAX_S = 960.0
#: A machine that is missing in a listing may be too new for it: it is lost when it is missing so often in a row.
_MISSING_TWICE = 2
_BOOT_LEAST_S = 600.0
_BOOT_FACTOR = 3.0


def boot_limit_s(pool: Pool) -> float:
    """From a request to the machine's joining, at most: later it has hung."""
    return max(_BOOT_LEAST_S, _BOOT_FACTOR * pool.boot_s)


async def answer(call: Awaitable[T], within_s: float) -> T:
    """A provider's answer; whatever goes wrong is a `ProviderProblem` that says what."""
    try:
        return await asyncio.wait_for(call, within_s)
    except ProviderProblem:
        raise
    except TimeoutError:
        raise ProviderProblem(ProblemKind.UNAVAILABLE, f"no answer within {within_s:g} s") from None
    except OSError as error:
        raise ProviderProblem(ProblemKind.UNAVAILABLE, str(error)) from error
    except ClusterError as error:
        raise ProviderProblem(ProblemKind.REFUSED, str(error)) from error


class Janitor:
    """Compares providers' lists with the board."""

    def __init__(
        self,
        daemon: Daemon,
        providers: Mapping[PoolId, CloudProvider],
        gone: Callable[[NodeId, Reason], Awaitable[None]],
        call_s: float = CALL_S,
    ) -> None:
        self._daemon = daemon
        self._providers = providers
        self._gone = gone
        self._call_s = call_s
        self._missing: Counter[NodeId] = Counter()
        self._failures = 0
        #: Given back before they joined, and listed still: paid for once.
        self._billed: set[NodeId] = set()

    async def watch(self) -> None:
        """Sweep for ever; ever less often while providers do not answer."""
        while True:
            await asyncio.sleep(min(SWEEP_S * 2.0 ** min(self._failures, 8), _SWEEP_MAX_S))
            self._failures = 0 if await self.sweep() else self._failures + 1

    async def sweep(self, *, patient: bool = True) -> bool:
        """Compare once; False if some provider did not answer. Not patient: what is missing now is lost now."""
        answered = True
        for provider in dict.fromkeys(self._providers.values()):
            try:
                await self._sweep(provider, patient)
            except ProviderProblem as problem:
                log.warning("machines are not known: %s", problem)
                answered = False
        return answered

    async def _sweep(self, provider: CloudProvider, patient: bool) -> None:
        board = self._daemon.board
        pools = {pool_id for pool_id, each in self._providers.items() if each is provider}
        # What is believed before the call: a machine that joins meanwhile may be missing in the answer.
        believed = {
            node_id
            for node_id, node in board.nodes.items()
            if node.row.rent_token and node.is_member and node.row.pool_id in pools
        }
        listed = {m.node_id: m for m in await answer(provider.describe(), self._call_s) if m.state is not _GONE}
        for node_id in sorted(believed - set(listed)):
            self._missing[node_id] += 1
            if not patient or self._missing[node_id] >= _MISSING_TWICE:
                del self._missing[node_id]
                await self._gone(node_id, Reason.INFRA_NODE_LOST)
        for node_id in set(listed) & set(self._missing):
            del self._missing[node_id]
        self._billed &= set(listed)
        for machine in self._unwanted(list(listed.values())):
            await self._give_back(provider, machine)
        for rent in [rent for rent in board.rents.values() if rent.pool_id in pools]:
            await self._give_up(rent, sum(m.token == rent.token for m in listed.values()))

    def _unwanted(self, listed: list[Machine]) -> list[Machine]:
        """Machines that are to be given back."""
        board, found = self._daemon.board, []
        coming: Counter[str] = Counter()
        for machine in sorted(listed, key=lambda machine: machine.node_id):
            node, rent = board.nodes.get(machine.node_id), board.rents.get(machine.token)
            if node is not None and node.is_member:
                continue
            coming[machine.token] += 1
            if rent is None:
                why = "it answers no request"
            elif node is not None:
                why = "it was given back before"
            elif coming[machine.token] > rent.machines - self._here(rent):
                why = "more came than were asked for"
            elif self._is_late(rent):
                why = "it did not come up"
            else:
                continue
            log.warning("machine %s is given back: %s", machine.node_id, why)
            found.append(machine)
        return found

    async def _give_back(self, provider: CloudProvider, machine: Machine) -> None:
        try:
            await answer(provider.terminate(machine.node_id), self._call_s)
        except ProviderProblem as problem:
            log.warning("machine %s is not given back yet: %s", machine.node_id, problem)
            return
        if machine.node_id not in self._billed:
            self._billed.add(machine.node_id)
            await self._daemon.perform(lambda turn: _bill(turn, machine))

    async def _give_up(self, rent: RentRow, listed: int) -> None:
        """Machines of a request that should have been here long ago."""
        missing = rent.machines - self._here(rent)
        if missing <= 0 or not self._is_late(rent):
            return
        limit_s = boot_limit_s(self._daemon.board.pools[rent.pool_id])
        what = "came up but did not join" if listed else "never came"
        reason = f"{ProblemKind.UNAVAILABLE}: {missing} of the machines asked for {what} within {limit_s:g} s"
        await self._daemon.perform(lambda turn: emit(turn, RentFailed(turn.at, rent.token, reason, missing)))

    def _here(self, rent: RentRow) -> int:
        nodes = self._daemon.board.nodes.values()
        return sum(node.row.rent_token == rent.token and node.is_member for node in nodes)

    def _is_late(self, rent: RentRow) -> bool:
        pool = self._daemon.board.pools[rent.pool_id]
        return self._daemon.clock.now() - rent.asked_at > boot_limit_s(pool)


def _bill(turn: Turn, machine: Machine) -> None:
    """What a machine has cost that never joined, or that could not be given back before."""
    board = turn.board
    node, rent = board.nodes.get(machine.node_id), board.rents.get(machine.token) or board.past_rents.get(machine.token)
    if node is not None:
        money.machine_gone(turn, node)
    elif rent is not None:
        money.launch_ended(turn, rent, machine.node_id)
    emit(turn, money.restate(turn))


_GONE = MachineState.GONE
