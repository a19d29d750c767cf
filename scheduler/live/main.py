"""`walras server`: reads the configuration, opens the store, runs the server until a signal, shuts it down in order.

The store is a SQLite file of its own, or a PostgreSQL database that several servers share. With PostgreSQL this waits
until the server may lead: one leads, the others stand by with everything imported, and the next one continues from the
last commit. What is not in rows (logs, code, results, keys) is in the data folder, which these servers share.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from aiohttp import web

from scheduler.live.assembly import (
    AssembledServer,
    ServerConfig,
    assemble_server,
    restore_and_configure,
    settings_for_cluster,
)
from scheduler.live.auth.tls_material import TlsFiles, TlsMaterial, load_tls, own_certificate
from scheduler.live.http.connection_guard import ConnectionGuard, GuardedSite, SummedLines, limits_of_process
from scheduler.live.http.web_application import make_app
from scheduler.live.loop.event_loop import Overloaded, collect_all_hourly, collect_young, freeze_gc
from scheduler.live.loop.recurring_steps import keep_core_state, watch_core_state, watch_months, watch_prices
from scheduler.live.providers.provisioning import play_market_script, pool_watches
from scheduler.live.server import Server
from scheduler.live.services.content_sweep import sweep_for_ever
from scheduler.live.services.job_watch import IdleJobs, LateJobNotifications
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.retention import PruneReport, prune
from scheduler.live.store.sql_store import Store
from scheduler.live.store.sqlite_store import SqliteStore
from scheduler.live.store.store_interface import EXIT_NOT_LEADING, LeadershipLost, StoreUnavailable
from walras.errors import ClusterError, ConfigError
from walras.spec.cluster_file import ClusterConfig, KeepEntry, NotifyEntry
from walras.spec.file_model import load_mapping, load_yaml

log = logging.getLogger(__name__)

#: sysexits' EX_SOFTWARE: a bug ended the server; a restart begins from what was committed.
EXIT_CRASHED = 70
_SHUTDOWN_S = 1.0
#: The longest time, seconds, in which an orderly stop stores what only the core knows.
_KEEP_STATE_WITHIN_S = 5.0
_WATCH_AGAIN_S = 1.0
_PRUNE_EVERY_S = 86_400.0
#: Seconds after a start at which users' shares of ended jobs are first looked at, where nothing else is deleted by age.
_FIRST_SHARES_S = 3600.0
_TURN_EVERY_S = 1.0
#: Seconds after which an idle authenticated connection is closed.
_KEEPALIVE_S = 75.0
#: The most bytes of a body that are read from the network before the handler asks for them.
_READ_BYTES = 256 * 1024


#: How addresses of PostgreSQL begin.
POSTGRES_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store that this process may write, with its retention and its leadership."""

    store: Store
    #: `retention.prune` for this store.
    prune: Callable[..., PruneReport]
    #: Waits for ever; raises LeadershipLost once this process may not write any more.
    wait_until_lost: Callable[[], Coroutine[Any, Any, None]]
    #: To be called after every turn of the loop, because the right to write is lost without; None: it is not.
    note_turn: Callable[[], None] | None = None


def open_store(folder: DataFolder, address: str = "", *, new_cluster: bool = False) -> OpenedStore:
    """Open the store at `address` (empty: the SQLite file of the folder); with PostgreSQL, stand by until it may lead.

    Raises ConfigError for an invalid address or an unsuitable database, StoreUnavailable where no database answers,
    Conflict where another server holds the folder's file.
    """
    if not address:
        return alone_with(SqliteStore(folder.path, new_cluster=new_cluster))
    if not address.startswith(POSTGRES_SCHEMES):
        raise ConfigError(
            "the store is no address of PostgreSQL",
            field="--store",
            fix="write postgresql://USER@HOST:PORT/DATABASE, or leave it out: SQLite in --data",
        )
    if new_cluster:
        fix = "make one with createdb, and name it"
        raise ConfigError("a new cluster begins in an empty database", field="--new-cluster", fix=fix)
    return _open_postgres(folder, address)


def alone_with(store: SqliteStore) -> OpenedStore:
    """Returns a SQLite store, which no other server can take over."""
    return OpenedStore(store, prune, _never)


async def _never() -> None:
    await asyncio.Event().wait()


def _open_postgres(folder: DataFolder, address: str) -> OpenedStore:
    from scheduler.live.store.postgres_store import PostgresStore, check_folder, has_cluster, wait_for_leadership

    check_folder(address, folder.key_digest())
    leadership = wait_for_leadership(address)
    try:
        check_folder(address, folder.key_digest())  # another server may have led since
        if (folder.path / "walras.db").exists() and not has_cluster(leadership.connection):
            raise ConfigError(
                f"{folder.path} has a cluster in SQLite, and this database is empty",
                field="--store",
                fix="copy it with `walras admin to-postgresql --data DIR --store URL`, or choose another --data",
            )
        store = PostgresStore(address, leadership)
        folder.server_secret()
        leadership.claim_folder(folder.key_digest())
    except BaseException:
        leadership.release()
        raise
    return OpenedStore(store, store.prune, leadership.wait_until_lost, leadership.note_turn)


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where the server listens, and how it is encrypted."""

    host: str = "127.0.0.1"
    #: 0: the port of the last start, or else any free one.
    port: int = 0
    #: A certificate and its key; None: without TLS, or with the server's own certificate (`tls_self`).
    tls: TlsFiles | None = None
    tls_self: bool = False
    #: Others may connect without TLS, because something in front of the server encrypts, or nobody can listen in.
    insecure: bool = False

    def check(self) -> None:
        """Raise ConfigError where tokens would cross a network unencrypted."""
        if self.tls is not None and self.tls_self:
            raise ConfigError("two certificates", field="--tls", fix="give --tls self, or --tls-cert with --tls-key")
        if self.tls is None and not self.tls_self and not self.insecure:
            check_host(self.host)

    def material(self, folder: DataFolder) -> TlsMaterial | None:
        """Returns the TLS context to listen with; None without TLS. Raises ConfigError for unusable files."""
        files = own_certificate(folder.path) if self.tls_self else self.tls
        return None if files is None else load_tls(files)


def run_server(
    *,
    data: Path,
    listen: ListenOptions | None = None,
    cluster: Path | None = None,
    policy: Path | None = None,
    store: str = "",
    new_cluster: bool = False,
    greet: Callable[[str], None] | None = None,
) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. `new_cluster` puts what is in the folder aside.

    `store`: the address of a PostgreSQL database; while another server leads there, this one stands by.

    `greet` is called with the URL once the server is ready, at the first start in this folder.

    Raises ConfigError for unusable files or addresses, Conflict where another server holds the folder.
    """
    listen = listen or ListenOptions()
    listen.check()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if listen.insecure:
        log.warning("--insecure: tokens cross the network readable unless something else encrypts")
    # Log lines that callers without a token can cause must not fill the disk.
    for noisy in ("aiohttp.server", "asyncio"):
        logging.getLogger(noisy).addFilter(SummedLines())
    cluster_config = None if cluster is None else load_yaml(cluster, ClusterConfig)
    policy_data = None if policy is None else load_mapping(policy)
    folder = DataFolder(data.absolute())
    is_first = not folder.server_file.exists()
    folder.create()
    opened = open_store(folder, store, new_cluster=new_cluster)
    try:
        config = ServerConfig(folder, cluster_config, policy_data, settings_for_cluster(cluster_config))
        tls = listen.material(folder)
        folder.pin_tokens("" if tls is None else tls.pin)
        return asyncio.run(_serve(config, opened, listen, tls, greet if is_first else None))
    finally:
        opened.store.close()


def check_host(host: str) -> None:
    """Raise ConfigError for an address that others can reach: whoever may submit a job may run code here."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"will not listen on {host}: tokens would cross the network unencrypted",
            field="--host",
            fix="add --tls self, or --tls-cert and --tls-key; --insecure only if something else encrypts",
        )


async def _serve(
    config: ServerConfig,
    opened: OpenedStore,
    listen: ListenOptions,
    tls: TlsMaterial | None,
    greet: Callable[[str], None] | None = None,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # The earlier server's announcement stays until this one is ready: if killed before, the next start needs it.
    wanted = replace(listen, port=listen.port or config.folder.kept_port())
    assembled = await loop.run_in_executor(None, assemble_server, config, opened.store)
    server = assembled.server
    tasks = [asyncio.create_task(server.loop.run(), name="loop")]
    tasks.append(asyncio.create_task(opened.wait_until_lost(), name="leadership"))
    runner: web.AppRunner | None = None
    try:
        await _until_crash(tasks, restore_and_configure(assembled, config))
        guard = ConnectionGuard(limits_of_process())
        runner = web.AppRunner(
            make_app(server, guard),
            access_log=None,
            shutdown_timeout=_SHUTDOWN_S,
            handler_cancellation=True,
            keepalive_timeout=_KEEPALIVE_S,
            read_bufsize=_READ_BYTES,
        )
        tasks.append(asyncio.create_task(guard.watch(), name="connections"))
        url, listening_port = await _listen(runner, guard, wanted, tls, exact=bool(listen.port))
        if listen.port or not wanted.port:
            await loop.run_in_executor(None, config.folder.keep_port, listening_port)
        elif listening_port != wanted.port:
            log.warning("port %d, which agents call, is taken; the next start tries it again", wanted.port)
        await _until_crash(tasks, _start_parts(assembled, config, tasks, url, listening_port))
        if opened.note_turn is not None:
            tasks.append(asyncio.create_task(_note_turns(server, opened.note_turn), name="turns"))
        keep = None if config.cluster is None else config.cluster.keep
        pruning = _prune_daily(server, opened.prune, config.folder, keep)
        tasks.append(asyncio.create_task(pruning, name="retention"))
        if greet is not None:
            greet(url)
        tasks.append(asyncio.create_task(_wait_for_stop(stop), name="stop"))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return _exit_code(tasks)
    except _Crashed:
        return _exit_code(tasks)
    finally:
        await _shut_down(assembled, runner, tasks)


async def _start_parts(
    assembled: AssembledServer, config: ServerConfig, tasks: list[asyncio.Task[None]], url: str, port: int
) -> None:
    """Start machines, background tasks and the solver, and announce that the server is ready."""
    server, providers, cluster = assembled.server, assembled.providers, config.cluster

    def begin(name: str, work: Coroutine[Any, Any, None]) -> None:
        tasks.append(asyncio.create_task(work, name=name))

    def keep_up(name: str, watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        begin(name, through_full_disks(watch))

    for provider in providers.values():
        provider.attach(url, server.providers.gone)
    await server.providers.reconcile()
    keep_up("leases", server.gateway.watch)
    for name, each in providers.items():
        keep_up(f"machines of {name}", each.watch)
    for name, watch in pool_watches(server.loop, providers).items():
        keep_up(name, watch)
    keep_up("janitor", server.providers.janitor.watch)
    keep_up("months", partial(watch_months, server.loop))
    keep_up("prices", partial(watch_prices, server.loop))
    keep_up("clocks", server.loop.note_clocks)
    begin("lag", server.metrics.watch_lag())
    keep = None if cluster is None else cluster.keep
    begin("content", sweep_for_ever(server, None if keep is None else keep.checkpoints))
    keep_up("core state", partial(watch_core_state, server.loop))
    await server.solver.start(rents=any(provider.pools for provider in providers.values()))
    keep_up("start forecasts", server.start_forecasts.watch)
    keep_up("notifications", server.notifications.watch)
    stuck_after_s = (NotifyEntry() if cluster is None else cluster.notify).stuck_after
    keep_up("late jobs", LateJobNotifications(server.loop, server.start_forecasts.view, stuck_after_s).watch)
    if cluster is not None and cluster.idle_job is not None:
        keep_up("idle jobs", IdleJobs(server.loop, cluster.idle_job).watch)
    freeze_gc()
    begin("sweep", collect_young())
    begin("sweep", collect_all_hourly())
    if cluster is not None and cluster.market:
        begin("market", play_market_script(server.loop, server.providers, cluster.market))
    server.is_ready = True
    config.folder.announce(url, port)
    log.info("ready at %s with %d active jobs", url, len(server.state.jobs))


async def through_full_disks(watch: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a watch for ever; if the database cannot be written, or too much waits, start it again a little later."""
    while True:
        try:
            return await watch()
        except (StoreUnavailable, Overloaded):
            await asyncio.sleep(_WATCH_AGAIN_S)


async def _prune_daily(
    server: Server, delete_old: Callable[..., PruneReport], folder: DataFolder, keep: KeepEntry | None
) -> None:
    """Delete once a day what is older than `keep` says, and ended jobs beyond their users' shares; without `keep` these
    alone. What fails, for lack of space or a lock, waits a day.
    """
    ages = {} if keep is None else {"checkpoints_older_s": keep.checkpoints, "journal_older_s": keep.journal}
    jobs_s, logs_s = (inf, inf) if keep is None else (keep.jobs, keep.logs)
    work = partial(delete_old, folder.path, jobs_older_s=jobs_s, logs_older_s=logs_s, **ages)
    if keep is None:
        await asyncio.sleep(_FIRST_SHARES_S)
    while True:
        try:
            told = await server.read(work)
            log.info("deleted: %s", told)
        except (OSError, sqlite3.OperationalError, ClusterError) as error:
            log.warning("what is older than `keep` was not all deleted: %s", error)
        await asyncio.sleep(_PRUNE_EVERY_S)


async def _listen(
    runner: web.AppRunner, guard: ConnectionGuard, wanted: ListenOptions, tls: TlsMaterial | None, *, exact: bool
) -> tuple[str, int]:
    """Listen; returns URL and port. If a remembered port (not `exact`) is taken, any free port is used instead."""
    await runner.setup()
    host, context = wanted.host, None if tls is None else tls.context
    try:
        await GuardedSite(runner, host, wanted.port, guard, context).start()
    except OSError as error:
        if exact:
            why = os.strerror(error.errno) if error.errno else error
            fix = "choose another --port, or 0 for any that is free"
            raise ConfigError(f"cannot listen on {host}:{wanted.port}: {why}", field="--port", fix=fix) from None
        await GuardedSite(runner, host, 0, guard, context).start()
    bound = runner.addresses[0][1]
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{shown}:{bound}", bound


class _Crashed(Exception):
    """The loop has ended while others waited for it."""


async def _until_crash(tasks: list[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that needs the loop. Raises _Crashed if the loop ends first."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, tasks[0]], return_when=asyncio.FIRST_COMPLETED)
    if tasks[0].done():
        task.cancel()
        raise _Crashed
    await task


async def _note_turns(server: Server, note_turn: Callable[[], None]) -> None:
    """Call `note_turn` after each empty change that passed through the loop, for ever; also while the store refuses."""
    while True:
        with contextlib.suppress(StoreUnavailable, Overloaded):
            await server.loop.perform(lambda _: None)
        note_turn()
        await asyncio.sleep(_TURN_EVERY_S)


async def _wait_for_stop(stop: asyncio.Event) -> None:
    await stop.wait()


def _exit_code(tasks: list[asyncio.Task[None]]) -> int:
    """Returns 0 for an orderly stop; another code if a task ended by itself."""
    for task in tasks:
        if task.done() and task.get_name() != "stop":
            if not task.cancelled() and isinstance(task.exception(), LeadershipLost):
                log.error("%s", task.exception())
                return EXIT_NOT_LEADING
            log.critical("%s ended", task.get_name(), exc_info=None if task.cancelled() else task.exception())
            return EXIT_CRASHED
    return 0


async def _shut_down(assembled: AssembledServer, runner: web.AppRunner | None, tasks: list[asyncio.Task[None]]) -> None:
    server = assembled.server
    server.is_ready = False
    if runner is not None:
        await runner.cleanup()
    await server.providers.close()
    for provider in assembled.providers.values():
        await provider.close()
    if not any(task.done() for task in tasks[:2]):  # the loop is alive and may write: this is an orderly stop
        # If the loop ends meanwhile, it cancels this step.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(server.loop.perform_in_pieces(keep_core_state), _KEEP_STATE_WITHIN_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.predictions.close()
    await server.forecasts.close()
    await server.start_forecasts.close()
    await server.notifications.close()
    await server.solver.close()
    server.loop.close()
    server.bodies.close()
    server.readers.shutdown(wait=True)
