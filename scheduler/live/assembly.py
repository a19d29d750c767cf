"""Builds a server from a data folder and a configuration.

It is started in this order: core and live state as the tables have them, the event loop, the policy and pools of the
files, HTTP, then machines and solver.

Every start begins a new *generation* of the journal: a fresh core receives, as events, the policy, the pools, all
measurements, the machines as they are, the open requests for machines, the attempts that may be alive, and the waiting
jobs. The order matters: jobs that hold machines come first, so that no occupied machine is given away. The fresh core
gives no command about attempts that continue; whatever else it starts is an ordinary decision. So a restart costs what
is active (about 0.3 ms a job) and not what has happened, and a new version can take over from an old one. Arrears, the
waits between tries (of failed jobs, refused starts, machines that could not be rented), the last prices, the failures
seen on machines and which of these are slow are stored every few seconds and at an orderly stop, and given to the fresh
core; the policy's memory begins anew, and so do the core's reservations for gangs. A solve follows at once. Commands
that agents have not confirmed are in the outbox and are sent again under their old ids.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf
from random import Random
from typing import Any

import walras
from optimizer.policy import PolicySpec
from scheduler.core.budget_limits import users_with_budgets
from scheduler.core.core import SchedulerCore
from scheduler.core.events import (
    BookingsDeclared,
    JobRestored,
    NodeLeaving,
    NodeQuarantined,
    NodeUnreachable,
    PoolDeclared,
    RentRestored,
    SharesDeclared,
)
from scheduler.core.speed_events import FactsTold, NetworkKnown, RestartMeasured, ThroughputMeasured
from scheduler.core.state.throughput import ScoredBelief
from scheduler.live.auth.access_control import (
    EnrolmentTokens,
    JobTokens,
    UserCaller,
    UserRole,
    new_user_token,
)
from scheduler.live.auth.job_privacy import SecretBox
from scheduler.live.auth.people import USER, People, adopt_token_owners
from scheduler.live.auth.single_sign_on import SingleSignOn
from scheduler.live.loop import billing
from scheduler.live.loop.apply_commands import emit, share_speeds
from scheduler.live.loop.budget_sums import UseRow
from scheduler.live.loop.departures import departure_as_written
from scheduler.live.loop.event_loop import Clock, LiveSettings, ServerLoop
from scheduler.live.loop.live_state import LiveAttempt, LiveJob, LiveNode, LiveState, load_live_state
from scheduler.live.loop.prediction_tasks import SpeedPredictions, TargetForecasts
from scheduler.live.loop.solver_pool import SolverPool, WholeGangBound
from scheduler.live.loop.transaction import Transaction
from scheduler.live.providers.live_provider import LiveProvider, ProviderContext, build_providers, providers_by_pool
from scheduler.live.providers.provisioning import Provisioner
from scheduler.live.server import Secrets, Server
from scheduler.live.services.agent_gateway import AgentGateway
from scheduler.live.services.agent_reports import begin_after_restore
from scheduler.live.services.checkpoint_records import CheckpointPlaces, checkpoint_places
from scheduler.live.services.cluster_metrics import ClusterMetrics
from scheduler.live.services.job_submission import JobAdmission
from scheduler.live.services.machine_facts import tell_joined
from scheduler.live.services.notifications import Notifications
from scheduler.live.services.policy_service import PolicyInForce, PolicyService
from scheduler.live.services.policy_trial import PolicyTrial, trial_on_stored_jobs
from scheduler.live.services.start_forecasts import StartForecasts
from scheduler.live.services.store_access import StoreAccessDesk, StoreProofs
from scheduler.live.services.views import ApiViews
from scheduler.live.store.content_store import ContentStore
from scheduler.live.store.data_folder import LOG_BYTES, DataFolder, LogStore, highest_number_used, write_private
from scheduler.live.store.event_journal import parse_facts, parse_request, parse_state
from scheduler.live.store.sql_store import Store
from scheduler.live.store.store_interface import LoadedState
from scheduler.live.store.table_rows import (
    CoreStateRow,
    FactsRow,
    JobRow,
    NetworkRow,
    PeopleRow,
    RestartCostRow,
    SpecRow,
    SpeedRow,
)
from walras.clocks import SYSTEM_CLOCKS, Clocks
from walras.cluster import Market, Rendezvous
from walras.contract import pinned_token
from walras.errors import ConfigError
from walras.job_request import JobId, JobRequest
from walras.resources.people import ALL_PROJECTS, UserSettings
from walras.spec.cluster_file import ClusterConfig, NotifyEntry
from walras.spec.job_spec import parse_spec
from walras.states import AttemptState, Reason
from walras.storage.checkpoint_store import SERVER_STORE

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PriorUsage:
    """The accelerator-seconds and USD that a job has used, and the seconds that its ended attempts held places."""

    accelerator_s: float = 0.0
    usd: float = 0.0
    held_s: float = 0.0


@dataclass(slots=True)
class AssembledServer:
    """A server, with what only its owner needs."""

    server: Server
    #: Providers by name; the server's owner attaches, watches and closes them.
    providers: dict[str, LiveProvider]
    loaded: LoadedState
    requests: dict[JobId, JobRequest]
    used: dict[JobId, PriorUsage]


def restore_core(transaction: Transaction, in_force: PolicyInForce, assembled: AssembledServer) -> None:
    """Begin a generation with a fresh core, and give it what the tables have."""
    loaded, requests, used = assembled.loaded, assembled.requests, assembled.used
    # Charges are written first, so that the fresh core's books contain all use until now.
    transaction.state.users_with_budgets = users_with_budgets(in_force.rules.budgets)
    transaction.state.budgets.put_in_force(in_force.rules)
    spent = billing.restate_spending(transaction)
    transaction.begin_generation(SchedulerCore())
    transaction.state.scores_stored = 0
    emit(transaction, in_force.changed(transaction.at))
    emit(transaction, spent)
    if shares := assembled.server.secrets.people.shares():
        emit(transaction, SharesDeclared(transaction.at, shares))
    for pool in list(transaction.state.pools.values()):
        emit(transaction, PoolDeclared(transaction.at, pool))
    for network in loaded.rows(NetworkRow):
        emit(transaction, NetworkKnown(transaction.at, network.pool_id, network.bytes_per_s))
    for known in loaded.rows(FactsRow):
        emit(transaction, FactsTold(transaction.at, known.kind, parse_facts(known.body), known.counted))
    for speed in loaded.rows(SpeedRow):
        emit(
            transaction,
            ThroughputMeasured(transaction.at, speed.kind, speed.accelerator, speed.count, speed.steps_per_s),
        )
    for cost in loaded.rows(RestartCostRow):
        emit(transaction, RestartMeasured(transaction.at, cost.kind, cost.restart_s))
    for node in list(transaction.state.nodes.values()):
        if node.is_member:
            _restore_node(transaction, node)
    booked = tuple(row.booking for row in transaction.state.bookings.values() if not row.cancelled)
    if any(booking.until_at > transaction.at for booking in booked):
        emit(transaction, BookingsDeclared(transaction.at, booked))
    for kept in loaded.rows(CoreStateRow):
        emit(transaction, replace(parse_state(kept.body), at=transaction.at))
    for rent in list(transaction.state.rents.values()):
        coming = rent.machines - transaction.state.here_of(rent.token)
        if coming > 0:
            emit(transaction, RentRestored(transaction.at, rent.token, rent.pool_id, coming))
    # Jobs that hold machines come first, because a waiting job may start as soon as the core gets it.
    for job in sorted(transaction.state.jobs.values(), key=lambda job: (job.attempt is None, job.row.job_id)):
        emit(
            transaction,
            _restored_job(transaction.at, job, requests[job.row.job_id], used.get(job.row.job_id, PriorUsage())),
        )
    for program in dict.fromkeys(requests[job_id].program for job_id in transaction.state.jobs):
        share_speeds(transaction, program)
    billing.recall_units(transaction)


def _restore_node(transaction: Transaction, node: LiveNode) -> None:
    """Give the core a machine in its present state."""
    row = node.row
    state, cordon, detail = row.state, row.cordon, row.detail
    paid_since = billing.paid_since(transaction.state, node) if row.rent_token else None
    tell_joined(transaction, node, paid_since)
    if cordon == "leaving":
        gentle, until = row.drain_until_at is not None, inf if row.drain_until_at is None else row.drain_until_at
        with departure_as_written(node):  # a notice counts as a drain: how much of its time is left is not known
            emit(transaction, NodeLeaving(transaction.at, row.node_id, until, Reason.HOLD_ADMIN, gentle))
    elif cordon == "quarantined":
        emit(transaction, NodeQuarantined(transaction.at, row.node_id, detail))
    if state == "unreachable":
        emit(transaction, NodeUnreachable(transaction.at, row.node_id))
    # The core that wanted to release the machine is gone, so its detail is dropped.
    row.detail = detail if cordon or state != "up" else ""


def _restored_job(at: float, job: LiveJob, request: JobRequest, used: PriorUsage) -> JobRestored:
    row, attempt = job.row, job.attempt
    revoked = None
    if attempt is not None and attempt.row.state is AttemptState.STOPPING:
        revoked = attempt.row.reason
    return JobRestored(
        at=at,
        job=replace(request, priority=row.priority, budget_usd=row.budget_usd or request.budget_usd),
        submitted_at=row.submitted_at,
        state=row.state,
        attempt=row.attempts,
        restarts=row.restarts,
        steps=row.steps,
        safe_steps=0.0 if job.checkpoint is None else job.checkpoint.step,
        attained_s=used.accelerator_s,
        spent_usd=used.usd,
        held_s=used.held_s,
        hold_reason=job.held_by,
        placement=None if attempt is None else attempt.placement,
        leased_at=0.0 if attempt is None else attempt.row.leased_at,
        running_at=inf if attempt is None or attempt.row.started_at is None else attempt.row.started_at,
        prepared=() if attempt is None else tuple(part.node_id for part in attempt.parts.values() if part.prepared),
        rendezvous=None if attempt is None else _rendezvous_of(attempt),
        revoked=revoked,
        saves=job.checkpoint is not None,
        profiling=attempt is not None and attempt.row.profiling,
        lost=()
        if attempt is None
        else tuple(each.node_id for each in attempt.parts.values() if each.cause == "node_lost"),
    )


def _rendezvous_of(attempt: LiveAttempt) -> Rendezvous | None:
    first = attempt.parts[attempt.placement.parts[0].node_id]
    return Rendezvous(first.address, first.port) if first.port else None


def discount_unproved_time(state: LiveState, unproved_s: float, lease_s: Mapping[str, float]) -> None:
    """Count at most a lease, for each live attempt, of the time that only the wall clock shows.

    Without contact to the server the attempt ended then, so it did not run (and is not charged) for longer.
    """
    for job in state.jobs.values():
        if job.attempt is None:
            continue
        row = job.attempt.row
        market = state.pools[row.pool_id].market if row.pool_id in state.pools else Market.OWNED
        excess_s = unproved_s - lease_s[market]
        if excess_s > 0:
            row.leased_at += excess_s
            row.usd_since_at += excess_s
            row.started_at = None if row.started_at is None else row.started_at + excess_s


def prior_usage(store: Store, job_ids: Iterable[JobId], at: float) -> dict[JobId, PriorUsage]:
    """Returns what each of the jobs has used until then; jobs that never ran are left out."""
    used: dict[JobId, PriorUsage] = {}
    for each in store.usage(job_ids, at):
        before = used.get(each.job_id, PriorUsage())
        used[each.job_id] = PriorUsage(
            before.accelerator_s + each.accelerator_s, before.usd + each.usd, before.held_s + each.held_s
        )
    return used


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What a server is started with."""

    folder: DataFolder
    cluster: ClusterConfig | None
    #: Content of a policy file; None: the policy in force, or the default at the first start.
    policy: Mapping[str, Any] | None
    settings: LiveSettings
    clocks: Clocks = SYSTEM_CLOCKS
    #: The source of tokens and secrets; None: the system's, which cannot be guessed.
    chance: Random | None = None


def settings_for_cluster(cluster: ClusterConfig | None) -> LiveSettings:
    """Returns settings for the cluster's lease length: several heartbeats, and `unreachable`, fit into one lease."""
    settings = LiveSettings()
    if cluster is None:
        return settings
    settings = replace(settings, after_restore=cluster.after_restore)
    if cluster.lease is None:
        return settings
    lease_s = cluster.lease
    return replace(
        settings,
        lease_s=dict.fromkeys(settings.lease_s, lease_s),
        heartbeat_s=min(settings.heartbeat_s, lease_s / 10),
        unreachable_s=min(settings.unreachable_s, lease_s / 2),
    )


def assemble_server(config: ServerConfig, store: Store) -> AssembledServer:
    """Returns the server, built on what the tables hold. Blocks on the disk."""
    folder, settings = config.folder, config.settings
    epoch_unix_s, absence = store.epoch_unix_s(), store.absence()
    clock = Clock(epoch_unix_s, store.last_at(), config.clocks, absent_until=absence.now_at if absence else None)
    secret, loaded = folder.server_secret(config.chance), store.load()
    box = SecretBox(secret)
    admission = JobAdmission(clock, _places_of_checkpoints(config, loaded), box)
    specs = {job.job_id: _spec(store, job.job_id) for job in loaded.rows(JobRow)}
    launches = {
        job.job_id: admission.launch(job.job_id, job.project, parse_spec(json.loads(specs[job.job_id].spec)), job.sweep)
        for job in loaded.rows(JobRow)
    }
    state = load_live_state(loaded, launches, clock.now(), settings.lease_s)
    state.identity, state.epoch_unix_s = store.identity(), epoch_unix_s
    former = store.former_incarnations()
    begin_after_restore(state, former)
    if former or state.next_job_id == 1:  # the files may have numbers that the tables lack
        state.next_job_id = max(state.next_job_id, highest_number_used(folder) + 1)
    if absence is not None:
        log.info("away for %.0f s, %.0f s of it by wall time alone", absence.elapsed_s, absence.unproved_s)
        discount_unproved_time(state, absence.unproved_s, settings.lease_s)
    loop = ServerLoop(SchedulerCore(), state, store, clock, settings)
    loop.follow_clock()
    _load_spending(state, store)
    policies = PolicyService(loop, store.policies())
    secrets = Secrets(
        join_token=folder.join_token(config.chance),
        job_tokens=JobTokens(secret),
        enrolment_tokens=EnrolmentTokens(secret),
        users={row.sha256: row for row in store.tokens()},
        people=People.of(loaded.rows(PeopleRow)),
        pin=folder.pin(),
    )
    gateway = AgentGateway(loop, secrets.job_tokens, box, config.chance, _store_proofs(config, loaded, loop))
    providers = build_providers(ProviderContext(config.cluster, folder, secret))
    provisioner = Provisioner(loop, providers_by_pool(providers.values()), named=providers)
    provisioner.take_up_again(state.pools.values())
    solver = SolverPool(loop, settings.solve_timeout_s, clocks=config.clocks)
    predictions, metrics = SpeedPredictions(loop, loaded.rows(ScoredBelief)), ClusterMetrics(loop, solver)
    forecasts, start_forecasts = TargetForecasts(loop), StartForecasts(loop, store, clocks=config.clocks)
    notifications = _notifications(config, loop, secrets.people, SecretBox(secret, "channel"))
    loop.effect_handlers += [gateway, solver, provisioner, predictions, forecasts]
    loop.effect_handlers += [start_forecasts, policies, metrics, notifications]
    server = Server(
        loop=loop,
        store=store,
        secrets=secrets,
        gateway=gateway,
        solver=solver,
        predictions=predictions,
        forecasts=forecasts,
        start_forecasts=start_forecasts,
        whole_gangs=WholeGangBound(solver),
        policies=policies,
        providers=provisioner,
        admission=admission,
        views=ApiViews(clock, loop, start_forecasts.view),
        metrics=metrics,
        notifications=notifications,
        logs=LogStore(folder.logs, LOG_BYTES),
        content=ContentStore(folder.content),
        store_access=_store_access(config, state, gateway.proofs),
        version=walras.__version__,
        sign_on=_sign_on(config),
        clocks=config.clocks,
        chance=config.chance,
    )
    requests = {job_id: parse_request(row.request) for job_id, row in specs.items()}
    return AssembledServer(server, providers, loaded, requests, prior_usage(store, specs, clock.now()))


def _load_spending(state: LiveState, store: Store) -> None:
    state.spent_month_usd, state.spent_user_usd = store.spent(), store.spent_by_user()
    for (project, _), usd in state.spent_month_usd.items():
        state.spent_usd[project] = state.spent_usd.get(project, 0.0) + usd
    for row in store.use_by_day(state.epoch_unix_s):
        state.budgets.add(UseRow(*row))


def _notifications(config: ServerConfig, loop: ServerLoop, people: People, box: SecretBox) -> Notifications:
    loop.state.notifications.is_operator = people.is_operator
    settings = NotifyEntry() if config.cluster is None else config.cluster.notify
    return Notifications(loop, box, settings.private_networks, config.chance)


def _sign_on(config: ServerConfig) -> SingleSignOn | None:
    settings = None if config.cluster is None else config.cluster.sign_in
    if settings is not None:  # what is missing keeps the server from starting
        settings.client_secret()
        if find_spec("jwt") is None:
            raise ConfigError("sign_in needs PyJWT", field="sign_in", fix="pip install 'walras[sso]'")
    return None if settings is None else SingleSignOn(settings, config.clocks)


def _places_of_checkpoints(config: ServerConfig, loaded: LoadedState) -> CheckpointPlaces:
    setting = None if config.cluster is None else config.cluster.checkpoints
    return checkpoint_places(setting, config.folder.checkpoints, is_shared=loaded.shares_checkpoints)


def _store_access(config: ServerConfig, state: LiveState, proofs: StoreProofs | None) -> StoreAccessDesk:
    settings = None if config.cluster is None else config.cluster.checkpoint_access
    return StoreAccessDesk(state, settings, proofs, config.clocks)


def _store_proofs(config: ServerConfig, loaded: LoadedState, loop: ServerLoop) -> StoreProofs | None:
    """Returns the check of machines' access to the checkpoint store; None where the store is the server itself."""
    places = _places_of_checkpoints(config, loaded)
    if places.store == SERVER_STORE:
        return None
    store = places.store or places.folder.absolute().as_uri()
    return StoreProofs(loop, f"{store}/proofs/{loop.state.identity.cluster_id}", config.chance)


def _spec(store: Store, job_id: JobId) -> SpecRow:
    row = store.spec(job_id)
    assert row is not None, f"job {job_id} has no spec"
    return row


# ------------------------------------------------------------------------------------------ first steps


async def restore_and_configure(assembled: AssembledServer, config: ServerConfig) -> None:
    """Give the tables to a fresh core, then apply what the files state differently. The loop must be running."""
    server, policies = assembled.server, assembled.server.policies

    def trial_of(spec: PolicySpec) -> PolicyTrial | None:
        had_s = {job_id: had.accelerator_s for job_id, had in assembled.used.items()}
        return trial_on_stored_jobs(
            spec, assembled.loaded.rows(JobRow), assembled.requests, had_s, server.loop.clock.now()
        )

    # Tried before the core gets any job, so that a failing policy decides nothing.
    chosen = await policies.choose(config.policy, trial_of)

    def begin(transaction: Transaction) -> None:
        restore_core(transaction, chosen, assembled)
        policies.store_if_new(transaction)

    await server.loop.perform(begin)
    entries = () if config.cluster is None else config.cluster.pools
    pools = {
        entry.pool_id: replace(entry.pool(), provider=entry.provider, from_file=bool(entry.provider))
        for entry in entries
    }
    for entry in entries:
        server.state.expect(entry.pool_id, entry.machines)

    def step(transaction: Transaction) -> None:
        # Where the file names a rented pool no longer, what is there goes on, and nothing more is rented, until an
        # administrator lets it.
        dropped = [each for pool_id, each in transaction.state.pools.items() if each.from_file and pool_id not in pools]
        for each in dropped:
            log.warning("%s is not in the cluster file any more: it rents no further machine", each.pool_id)
        for pool in (*pools.values(), *(replace(each, quota=0, least=0, from_file=False) for each in dropped)):
            known = transaction.state.pools.get(pool.pool_id)
            declared = replace(pool, drained=known is not None and known.drained)  # no file states that
            if known != declared:
                emit(transaction, PoolDeclared(transaction.at, declared))

    await server.loop.perform(step)
    await _ensure_admin(server, config.folder)


async def _ensure_admin(server: Server, folder: DataFolder) -> None:
    """Make sure that there is an administrator's token, by which somebody can use the server.

    Where `admin` had lost the role, older tokens of that name are void: they would have it again.
    """
    people, tokens, unix_s = server.secrets.people, server.secrets.users, server.clocks.wall()
    adopted = adopt_token_owners(people, tokens.values(), unix_s)
    if adopted:
        await server.loop.perform(lambda transaction: transaction.batch.put(*adopted))
    callers = (people.caller(row, unix_s) for row in tokens.values())
    if any(caller is not None and caller.role is UserRole.ADMIN for caller in callers):
        return
    clocks, chance = server.clocks, server.chance
    admin = UserCaller("admin", UserRole.ADMIN, (ALL_PROJECTS,))
    body = UserSettings(role=admin.role.word, projects=list(admin.projects)).model_dump_json()
    owner = PeopleRow(USER, admin.name, body, unix_s, "first start")
    token, row = new_user_token(admin, "first start", clocks=clocks, chance=chance)
    void = [each for each in tokens.values() if each.user == admin.name and each.revoked_at is None]

    def step(transaction: Transaction) -> None:
        for each in void:
            each.revoked_at = unix_s
        transaction.batch.put(row, *void)
        transaction.batch.put(owner)
        people.put(owner)

    await server.loop.perform(step)
    tokens[row.sha256] = row
    shown = pinned_token(token, server.secrets.pin)
    await asyncio.get_running_loop().run_in_executor(None, write_private, folder.admin_token_file, shown + "\n")
