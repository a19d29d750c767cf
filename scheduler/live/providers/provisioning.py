"""Provisions rented machines, and declares pools anew when providers report other prices or waits.

Provisioning carries out the core's Rent and ReleaseNode. A request is in the store before the provider is called; the
provider does nothing twice for one token.

The janitor compares providers' lists with the state periodically. It reports requests whose machines did not come up in
time as failed. It gives back machines that a provider lists for this cluster and that answer no open request, that were
given back before, or that are more than were asked for. It declares machines lost that the state has and the provider
does not list, whether they joined or not. It concludes nothing from a provider that does not answer, and asks that one
less often.

A pool is declared again when its market price changes, or how long its machines wait in a queue; all that depends on
them (what to rent, what use costs from then on, whether a machine would still be of use, when a deadline forces a job
elsewhere, when a request has hung) follows from the declaration. A pool's `boot` in the cluster file is the time that a
machine takes once the provider starts it, to which the wait is added.

For rehearsals and tests, a script takes the place of a market: its steps are those of the cluster file (`market`), in
seconds after the server was ready, which declare a pool with another price, or revoke its machines with or without a
notice.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, TypeVar

from scheduler.core.events import PoolDeclared, RentFailed
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit
from scheduler.live.loop.event_loop import ServerLoop
from scheduler.live.loop.launches import (
    known_launches,
    launch_given_back,
    launch_gone,
    launch_joined,
    launch_kept,
    note_launches,
    unknown_launches,
)
from scheduler.live.loop.transaction import Transaction, TransactionEffects
from scheduler.live.providers.live_provider import (
    SIMULATED,
    GrowingProvider,
    PricedProvider,
    QueueingProvider,
    RevocableProvider,
    provider_for,
    regions_of,
    written_name,
)
from scheduler.live.services.agent_gateway import declare_node_lost
from scheduler.live.store.table_rows import RentRow
from scheduler.providers.provider import (
    CloudProvider,
    MachineState,
    ProviderProblem,
    ProviderProblemKind,
    RentalOffer,
    RentedMachine,
)
from walras.cluster import NodeId, Pool, PoolId
from walras.errors import ClusterError, ConfigError, Conflict, NotFound, UserError
from walras.spec.cluster_file import MarketStep
from walras.states import Reason

log = logging.getLogger(__name__)

T = TypeVar("T")
#: Seconds after which a call of a provider counts as unanswered.
PROVIDER_CALL_S = 120.0
JANITOR_SWEEP_S = 30.0
#: Failures in a row after which the rounds between two calls of a provider, 1, 2, 4 and so on, double no more.
_MOST_DOUBLINGS = 5
#: A listing may lag behind new machines, so a machine is lost only when this many listings in a row lack it.
_MISSING_TWICE = 2
_BOOT_LEAST_S = 600.0
_BOOT_FACTOR = 3.0


def boot_limit_s(pool: Pool) -> float:
    """Returns the seconds from a request after which a machine that has not joined counts as hung."""
    return max(_BOOT_LEAST_S, _BOOT_FACTOR * pool.boot_s)


async def call_provider(call: Awaitable[T], within_s: float) -> T:
    """Returns a provider's answer. Raises ProviderProblem for a timeout and for every error of the call."""
    try:
        return await asyncio.wait_for(call, within_s)
    except ProviderProblem:
        raise
    except TimeoutError:
        raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, f"no answer within {within_s:g} s") from None
    except OSError as error:
        raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, str(error)) from error
    except ClusterError as error:
        raise ProviderProblem(ProviderProblemKind.REFUSED, str(error)) from error


@dataclass(slots=True)
class _Known:
    """What the janitor remembers of one provider."""

    #: Listings in a row that failed, as far as they count.
    failures: int = 0
    #: Rounds for which it is left in peace.
    rounds_off: int = 0
    #: Machines given back after they had been members and listed still, which are charged only once.
    billed: set[NodeId] = field(default_factory=set)


class Janitor:
    """Compares the lists of the providers with the live state, and corrects what differs."""

    def __init__(
        self,
        loop: ServerLoop,
        providers: Mapping[PoolId, CloudProvider],
        gone: Callable[[NodeId, Reason, str], Awaitable[None]],
        call_s: float = PROVIDER_CALL_S,
    ) -> None:
        self._loop = loop
        self._providers = providers
        self._gone = gone
        self._call_s = call_s
        self._missing: Counter[NodeId] = Counter()
        self._known: defaultdict[CloudProvider, _Known] = defaultdict(_Known)

    async def watch(self) -> None:
        """Sweep for ever, in rounds; a provider that does not answer is left out of ever more of them."""
        while True:
            await asyncio.sleep(JANITOR_SWEEP_S)
            due = []
            for provider in dict.fromkeys(self._providers.values()):
                known = self._known[provider]
                if known.rounds_off:
                    known.rounds_off -= 1
                else:
                    due.append(provider)
            await self._sweep_all(due, patient=True)

    async def sweep(self, *, patient: bool = True) -> bool:
        """Compare once; returns False if a provider did not answer. Without `patient`, one listing proves a loss."""
        return await self._sweep_all(dict.fromkeys(self._providers.values()), patient)

    async def _sweep_all(self, providers: Iterable[CloudProvider], patient: bool) -> bool:
        sweeps = (self._answers(provider, patient) for provider in providers)
        answers = await asyncio.gather(*sweeps, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return all(answers)

    async def _answers(self, provider: CloudProvider, patient: bool) -> bool:
        known = self._known[provider]
        try:
            await self._sweep(provider, patient)
        except ProviderProblem as problem:
            log.warning("machines are not known: %s", problem)
            known.failures = min(known.failures + 1, _MOST_DOUBLINGS)
            known.rounds_off = 2**known.failures - 1
            return False
        known.failures = known.rounds_off = 0
        return True

    async def _sweep(self, provider: CloudProvider, patient: bool) -> None:
        state = self._loop.state
        pools = {pool_id for pool_id, each in self._providers.items() if each is provider}
        # Read before the call: a machine that joins during it may be missing in the answer.
        believed = {
            node_id
            for node_id, node in state.nodes.items()
            if node.row.rent_token and node.is_member and node.row.pool_id in pools
        }
        launched = {node_id: rent.token for node_id, rent in known_launches(state) if rent.pool_id in pools}
        listed = {m.node_id: m for m in await call_provider(provider.describe(), self._call_s) if m.state is not _GONE}
        for node_id in sorted((believed | set(launched)) - set(listed)):
            self._missing[node_id] += 1
            if not (patient or node_id in launched) or self._missing[node_id] >= _MISSING_TWICE:
                del self._missing[node_id]
                await self._gone(node_id, Reason.INFRA_NODE_LOST, launched.get(node_id, ""))
        for node_id in set(listed) & set(self._missing):
            del self._missing[node_id]
        self._known[provider].billed &= set(listed)
        if unknown_launches(state, listed.values()):
            await self._loop.perform(lambda transaction: note_launches(transaction, listed.values()))
        for rent in [rent for rent in state.rents.values() if rent.pool_id in pools]:
            await self._give_up(rent, sum(m.token == rent.token for m in listed.values()))
        for machine in self._unwanted(list(listed.values())):
            await self._give_back(provider, machine)

    def _unwanted(self, listed: list[RentedMachine]) -> list[RentedMachine]:
        """Returns the listed machines that are to be given back, and logs why."""
        state, found = self._loop.state, []
        coming: Counter[str] = Counter()
        for machine in sorted(listed, key=lambda machine: machine.node_id):
            node, rent = state.nodes.get(machine.node_id), state.rents.get(machine.token)
            if node is not None and node.is_member:
                continue
            coming[machine.token] += 1
            if rent is None:
                why = "it answers no request that is open"
            elif node is not None:
                why = "it was given back before"
            elif coming[machine.token] > rent.machines - state.here_of(rent.token):
                why = "more came than were asked for"
            else:
                continue
            log.warning("machine %s is given back: %s", machine.node_id, why)
            found.append(machine)
        return found

    async def _give_back(self, provider: CloudProvider, machine: RentedMachine) -> None:
        try:
            await call_provider(provider.terminate(machine.node_id), self._call_s)
        except ProviderProblem as problem:
            log.warning("machine %s is not given back yet: %s", machine.node_id, problem)
            return
        billed = self._known[provider].billed
        if machine.node_id not in billed:
            billed.add(machine.node_id)
            await self._loop.perform(lambda transaction: _charge_given_back(transaction, machine))

    async def _give_up(self, rent: RentRow, listed: int) -> None:
        """Report machines of a request as failed that have not joined within `boot_limit_s`."""
        missing = rent.machines - self._loop.state.here_of(rent.token)
        limit_s = boot_limit_s(self._loop.state.pool_of(rent.pool_id))
        if missing <= 0 or self._loop.clock.now() - rent.asked_at <= limit_s:
            return
        what = "came up but did not join" if listed else "never came"
        reason = f"{ProviderProblemKind.UNAVAILABLE}: {missing} of the machines asked for {what} within {limit_s:g} s"
        await self._loop.perform(
            lambda transaction: emit(transaction, RentFailed(transaction.at, rent.token, reason, missing))
        )


def _charge_given_back(transaction: Transaction, machine: RentedMachine) -> None:
    """Charge a machine that never joined, or that could not be given back before."""
    node = transaction.state.nodes.get(machine.node_id)
    if node is None:
        launch_given_back(transaction, machine)
        return
    billing.machine_gone(transaction, node)
    emit(transaction, billing.restate_spending(transaction))


_GONE = MachineState.GONE


class Provisioner:
    """Carries out the core's requests for machines at the providers."""

    def __init__(
        self,
        loop: ServerLoop,
        providers: Mapping[PoolId, CloudProvider],
        call_s: float = PROVIDER_CALL_S,
        request_s: float | None = None,
        named: Mapping[str, CloudProvider] | None = None,
    ) -> None:
        self._loop = loop
        self._providers = dict(providers)
        #: All providers of the server by name, to which pools may be added.
        self._named = dict(named or {})
        self._tasks: set[asyncio.Task[None]] = set()
        self._call_s = call_s
        #: Seconds for a request; None: as long as the pool's machines may take to come up, plus one call.
        self._request_s = request_s
        self.janitor = Janitor(loop, self._providers, self.gone, call_s)

    def deliver(self, effects: TransactionEffects) -> None:
        for rent in effects.rents:
            self._spawn(self._rent(rent.token, rent.pool_id, rent.machines))
        for release in effects.releases:
            self._spawn(self._release(release.node_id))

    def revoke(self, pool_id: PoolId, notice_s: float) -> list[NodeId]:
        """Take every rented machine of a pool away, after a notice; returns their names. Raises NotFound, Conflict."""
        if pool_id not in self._providers:
            raise NotFound(f"no rented pool {pool_id}", field="pool_id", fix=f"known: {', '.join(self._providers)}")
        provider = self._providers[pool_id]
        if not isinstance(provider, RevocableProvider):
            raise Conflict(
                f"the provider of {pool_id} holds no drills", field="pool_id", fix="let the cloud itself do it"
            )
        nodes = [
            node_id
            for node_id, node in sorted(self._loop.state.nodes.items())
            if node.row.pool_id == pool_id and node.row.rent_token and node.is_member
        ]
        for node_id in nodes:
            self._spawn(self._revoke(provider, node_id, notice_s))
        return nodes

    def provider_name(self, pool_id: PoolId) -> str:
        """Returns the name of the pool's provider; empty where no provider rents its machines out."""
        provider = self._providers.get(pool_id)
        names = (written_name(name) for name, each in self._named.items() if each is provider)
        return next(names, "") if provider else ""

    def check_provider(self, pool: Pool) -> None:
        """Raise UserError unless a provider of the pool's name accepts new pools, and one of its regions the zone."""
        if isinstance(provider_for(self._named, pool), GrowingProvider):
            return
        name, regions = pool.provider, regions_of(self._named, pool.provider)
        if regions:
            raise UserError(
                f"{pool.zone} lies in no region of {name} that this server's cluster file names",
                field="zone",
                fix=f"known: {', '.join(regions)}; a further one is added to `{name}.regions`, then restart the server",
            )
        known = sorted({written_name(each) for each, held in self._named.items() if isinstance(held, GrowingProvider)})
        raise UserError(
            f"this server rents nothing from {name!r}: the cluster file it was started with does not describe it",
            field="provider",
            fix=f"known: {', '.join(known) or 'none'}; a new one is added to the cluster file, then restart the server",
        )

    def take_up(self, pool: Pool) -> None:
        """Have the pool's provider rent it out from now on, at these terms; nothing for owned pools."""
        provider = self._providers.get(pool.pool_id) or provider_for(self._named, pool)
        if isinstance(provider, GrowingProvider):
            provider.take_up(pool)
            self._providers[pool.pool_id] = provider

    def take_up_again(self, pools: Iterable[Pool]) -> None:
        """Take up those of these pools that the cluster file does not declare: added while a server ran, or dropped.

        Raises ConfigError where nobody could give back machines of a pool, which cost money until then.
        """
        for pool in pools:
            if pool.provider in ("", SIMULATED) or pool.removed:
                continue
            if pool.pool_id not in self._providers:
                self.take_up(pool)
            is_held = pool.pool_id in self._providers
            if is_held and self.provider_name(pool.pool_id) in ("", pool.provider):
                continue
            whose = f"{pool.provider} and the region of zone {pool.zone}"
            if machines := self._paid_for(pool.pool_id):
                by = f"{self.provider_name(pool.pool_id)} now" if is_held else "nobody"
                raise ConfigError(
                    f"{pool.pool_id} is rented by {by}, and {machines} of its machines cannot be given back",
                    field=pool.provider,
                    fix=f"name it in the cluster file again, with `quota: 0`, {whose}, until `walras admin drain"
                    f" --pool {pool.pool_id}` has given them back",
                )
            if not is_held:
                log.warning("%s is rented by nobody: describe %s, then restart the server", pool.pool_id, whose)

    def _paid_for(self, pool_id: PoolId) -> int:
        """Returns how many machines of the pool are held, were asked for, or have come and are not known to be gone."""
        state = self._loop.state
        held = sum(
            each.row.pool_id == pool_id and bool(each.row.rent_token) and each.is_member
            for each in state.nodes.values()
        )
        asked = sum(
            rent.machines - state.here_of(rent.token) for rent in state.rents.values() if rent.pool_id == pool_id
        )
        return held + max(asked, sum(rent.pool_id == pool_id for _, rent in known_launches(state)))

    async def reconcile(self) -> None:
        """At the start: declare missing machines lost, and repeat the requests that were not answered.

        A pool that rents nothing more repeats none: what such a request has brought is given back as an unknown one's.
        """
        await self.janitor.sweep(patient=False)
        state = self._loop.state
        launched = {rent.token for _, rent in known_launches(state)}
        for rent in list(state.rents.values()):
            pool = state.pools[rent.pool_id]
            may_rent = pool.quota > 0 and not pool.drained
            if may_rent or rent.token in launched or state.here_of(rent.token):
                self._spawn(self._rent(rent.token, rent.pool_id, rent.machines))
            else:
                await self._refuse(rent.token, "its pool rents nothing more")

    async def gone(self, node_id: NodeId, reason: Reason, token: str = "") -> None:
        """Record that a rented machine is certainly gone, or (with its request's token) never joined."""

        def step(transaction: Transaction) -> None:
            node = transaction.state.nodes.get(node_id)
            if node is not None and node.is_member:
                declare_node_lost(transaction, node_id, reason)
            elif node is None:
                launch_gone(transaction, token, node_id)
            else:
                launch_joined(transaction, token, node_id)

        await self._loop.perform(step)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---------------------------------------------------------------- the calls

    async def _rent(self, token: str, pool_id: PoolId, machines: int) -> None:
        pool, provider = self._loop.state.pools[pool_id], self._providers.get(pool_id)
        try:
            if provider is None:
                raise ClusterError(f"nobody rents out {pool_id}")
            # Some providers answer only when their machines are up.
            answered = await call_provider(
                provider.request(token, pool, machines), self._request_s or boot_limit_s(pool) + PROVIDER_CALL_S
            )
            if unknown_launches(self._loop.state, answered):
                await self._loop.perform(lambda transaction: note_launches(transaction, answered))
        except ClusterError as error:
            reason, missing = str(error), error.missing if isinstance(error, ProviderProblem) else None
            await self._refuse(token, reason, missing)

    async def _refuse(self, token: str, reason: str, missing: int | None = None) -> None:
        log.warning("rent %s failed: %s", token, reason)
        await self._loop.perform(
            lambda transaction: emit(transaction, RentFailed(transaction.at, token, reason, missing))
        )

    async def _release(self, node_id: NodeId) -> None:
        provider = self._provider_of(node_id)
        if provider is None:
            log.warning("machine %s is not given back: nobody rents out its pool", node_id)
        else:
            await self._end(provider, node_id)
        await self.gone(node_id, Reason.POLICY_RELEASED)

    async def _end(self, provider: CloudProvider, node_id: NodeId) -> None:
        """Give the machine back. If that fails, the janitor finds it later, since it answers no request any more; a
        server that nobody lets give it back does not start.
        """
        try:
            await call_provider(provider.terminate(node_id), self._call_s)
        except ProviderProblem as problem:
            log.warning("machine %s is not given back yet: %s", node_id, problem)
            await self._loop.perform(lambda transaction: launch_kept(transaction, node_id))

    async def _revoke(self, provider: RevocableProvider, node_id: NodeId, notice_s: float) -> None:
        await provider.revoke(node_id, notice_s)
        await self.gone(node_id, Reason.INFRA_SPOT_RECLAIM)

    def _provider_of(self, node_id: NodeId) -> CloudProvider | None:
        node = self._loop.state.nodes.get(node_id)
        return None if node is None else self._providers.get(node.row.pool_id)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a call to a provider failed", exc_info=task.exception())


_POLL_EVERY_S = 300.0


def _is_plausible(offer: RentalOffer) -> bool:
    """Returns False, and logs it, for a price of 0 or of no number: a listing's mistake, where the last price holds."""
    if isfinite(offer.usd_per_h) and offer.usd_per_h > 0:
        return True
    log.warning("%s is offered at %g USD/h, which is not believed", offer.pool_id, offer.usd_per_h)
    return False


async def _ask_for_ever(look: Callable[[], Awaitable[None]], every_s: float, what: str) -> None:
    """Look every so often; a provider that does not answer changes nothing."""
    while True:
        try:
            await look()
        except ProviderProblem as problem:
            log.warning("%s are not known: %s", what, problem)
        await asyncio.sleep(every_s)


def _declare_again(transaction: Transaction, pool_id: PoolId, term: str, value: float) -> None:
    """Declare a pool with another price or boot time; nothing where it has that, or was removed meanwhile."""
    pool, changed = transaction.state.pools.get(pool_id), dict[str, Any]({term: value})
    if pool is not None and getattr(pool, term) != value:
        log.info("%s of %s is %g, no longer %g", term, pool_id, value, getattr(pool, term))
        emit(transaction, PoolDeclared(transaction.at, replace(pool, **changed)))


class MarketWatch:
    """Asks one provider for its market prices every few minutes."""

    def __init__(self, loop: ServerLoop, provider: CloudProvider) -> None:
        self._loop = loop
        self._provider = provider

    async def watch(self) -> None:
        """Ask for ever. A pool keeps its last price while its market does not answer."""
        await _ask_for_ever(self.look, _POLL_EVERY_S, "prices")

    async def look(self) -> None:
        """Ask once, and declare pools whose price has changed. Raises ProviderProblem."""
        offers = [each for each in await call_provider(self._provider.offers(), PROVIDER_CALL_S) if _is_plausible(each)]
        if self._moved(offers):
            await self._loop.perform(lambda transaction: self._declare(transaction, offers))

    def _moved(self, offers: Sequence[RentalOffer]) -> bool:
        pools = self._loop.state.pools
        return any(offer.pool_id in pools and pools[offer.pool_id].usd_per_h != offer.usd_per_h for offer in offers)

    @staticmethod
    def _declare(transaction: Transaction, offers: Sequence[RentalOffer]) -> None:
        for offer in offers:
            _declare_again(transaction, offer.pool_id, "usd_per_h", offer.usd_per_h)


async def play_market_script(loop: ServerLoop, provisioner: Provisioner, steps: Sequence[MarketStep]) -> None:
    """Take each step of the script at its time, then wait for ever."""
    began_at = loop.clock.now()
    for step in sorted(steps, key=lambda step: step.at):
        await asyncio.sleep(max(0.0, began_at + step.at - loop.clock.now()))
        pool_id = PoolId(step.pool)
        if step.usd_per_h is not None:
            await loop.perform(partial(_declare_again, pool_id=pool_id, term="usd_per_h", value=step.usd_per_h))
        if step.revoke is not None:
            taken = provisioner.revoke(pool_id, step.revoke)
            log.info("market script: %s takes %s back", pool_id, ", ".join(taken) or "nothing")
    await asyncio.Event().wait()


# ------------------------------------------------------------------------------------------ waits in queues


_LOOK_EVERY_S = 30.0
#: A changed wait is declared only beyond this fraction and these seconds, because every declaration makes a solve due.
_SAME_PART = 0.25
_SAME_S = 15.0
#: The longest wait that is believed, seconds: longer ones change no decision, and may come from a clock that jumped.
_LONGEST_S = 30 * 86_400.0


class QueueWatch:
    """Asks one provider with a queue for its waits."""

    def __init__(self, loop: ServerLoop, provider: QueueingProvider) -> None:
        self._loop = loop
        self._provider = provider
        #: Boot times without the queue, seconds, as people declared the pools.
        self._stated: dict[PoolId, float] = {}
        self._told: dict[PoolId, float] = {}

    async def watch(self) -> None:
        """Ask for ever. A pool keeps its last wait while its queue is not known."""
        await asyncio.sleep(_LOOK_EVERY_S)
        await _ask_for_ever(self.look, _LOOK_EVERY_S, "queues")

    async def look(self) -> None:
        """Ask once, and declare pools whose boot time has changed. Raises ProviderProblem."""
        boots = self._boots(await call_provider(self._provider.waits(), PROVIDER_CALL_S))
        if boots:
            await self._loop.perform(lambda transaction: self._declare(transaction, boots))

    def _boots(self, waits: Mapping[PoolId, float]) -> dict[PoolId, float]:
        """Returns the new boot time, seconds, of each pool for which it has changed."""
        moved = {}
        for pool_id, wait_s in waits.items():
            pool = self._loop.state.pools.get(pool_id)
            if pool is None or not isfinite(wait_s) or wait_s < 0:
                continue
            boot_s = self._stated_boot_s(pool) + min(wait_s, _LONGEST_S)
            if abs(boot_s - pool.boot_s) > max(_SAME_S, _SAME_PART * pool.boot_s):
                moved[pool_id] = self._told[pool_id] = boot_s
        return moved

    def _stated_boot_s(self, pool: Pool) -> float:
        """Returns the pool's boot time as people stated it: the declared one, unless this class declared it."""
        if self._told.get(pool.pool_id) != pool.boot_s:
            self._stated[pool.pool_id] = pool.boot_s
        return self._stated[pool.pool_id]

    @staticmethod
    def _declare(transaction: Transaction, boots: Mapping[PoolId, float]) -> None:
        for pool_id, boot_s in boots.items():
            _declare_again(transaction, pool_id, "boot_s", boot_s)


def pool_watches(
    loop: ServerLoop, providers: Mapping[str, CloudProvider]
) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
    """Returns the watches of prices and queues, by name: one for each provider, so that none delays another."""
    watches: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
    for name, provider in providers.items():
        if isinstance(provider, PricedProvider):
            watches[f"market prices of {name}"] = MarketWatch(loop, provider).watch
        if isinstance(provider, QueueingProvider):
            watches[f"queue of {name}"] = QueueWatch(loop, provider).watch
    return watches
