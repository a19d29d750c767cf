"""`walras server`: reads the configuration, runs the server until a signal, and shuts it down in order."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import sys
from collections.abc import Coroutine
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
from scheduler.live.http.web_application import make_app
from scheduler.live.loop.event_loop import (
    collect_all_hourly,
    freeze_gc,
    keep_core_state,
    watch_core_state,
    watch_months,
)
from scheduler.live.providers.live_provider import PricedProvider
from scheduler.live.providers.market_prices import MarketWatch, play_market_script
from scheduler.live.store.data_folder import DataFolder
from scheduler.live.store.sqlite_store import SqliteStore
from walras.errors import ConfigError
from walras.spec.cluster_file import ClusterConfig
from walras.spec.file_model import load_mapping, load_yaml

log = logging.getLogger(__name__)

#: sysexits' EX_SOFTWARE: a mistake of ours ended the server; a restart begins from what was committed.
EXIT_CRASHED = 70
_SHUTDOWN_S = 1.0
#: At an orderly stop what the core knows is written down, unless that takes longer than this.
_KEEP_STATE_WITHIN_S = 5.0


def run_server(
    *, data: Path, host: str = "127.0.0.1", port: int = 0, cluster: Path | None = None, policy: Path | None = None
) -> int:
    """Run until SIGTERM or SIGINT; answers the exit code.

    Raises ConfigError for files or an address that will not do, Conflict where another server holds the folder.
    """
    check_host(host)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    cluster_config = None if cluster is None else load_yaml(cluster, ClusterConfig)
    policy_data = None if policy is None else load_mapping(policy)
    folder = DataFolder(data.absolute())
    folder.create()
    store = SqliteStore(folder.path)
    try:
        config = ServerConfig(folder, cluster_config, policy_data, settings_for_cluster(cluster_config))
        return asyncio.run(_serve(config, store, host, port))
    finally:
        store.close()


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
            fix="listen on 127.0.0.1 behind a reverse proxy with TLS (docs/operations.md), or use an ssh tunnel",
        )


async def _serve(config: ServerConfig, store: SqliteStore, host: str, port: int) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    wanted_port = port or config.folder.last_port()
    config.folder.server_file.unlink(missing_ok=True)
    assembled = await loop.run_in_executor(None, assemble_server, config, store)
    server = assembled.server
    tasks = [asyncio.create_task(server.loop.run(), name="loop")]
    runner: web.AppRunner | None = None
    try:
        await _until_crash(tasks, restore_and_configure(assembled, config))
        runner = web.AppRunner(
            make_app(server), access_log=None, shutdown_timeout=_SHUTDOWN_S, handler_cancellation=True
        )
        url, listening_port = await _listen(runner, host, wanted_port, exact=bool(port))
        await _until_crash(tasks, _start_parts(assembled, config, tasks, url, listening_port))
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
    """Machines, solver, readiness."""
    server, providers = assembled.server, assembled.providers
    for provider in providers.values():
        provider.attach(url, server.providers.gone)
    await server.providers.reconcile()
    tasks.append(asyncio.create_task(server.gateway.watch(), name="leases"))
    tasks += [asyncio.create_task(each.watch(), name=f"machines of {name}") for name, each in providers.items()]
    priced = [provider for provider in providers.values() if isinstance(provider, PricedProvider)]
    if priced:
        market = MarketWatch(server.loop, priced)
        tasks.append(asyncio.create_task(market.watch(), name="prices"))
    tasks.append(asyncio.create_task(server.providers.janitor.watch(), name="janitor"))
    tasks.append(asyncio.create_task(watch_months(server.loop), name="months"))
    tasks.append(asyncio.create_task(watch_core_state(server.loop), name="core state"))
    await server.solver.start()
    freeze_gc()
    tasks.append(asyncio.create_task(collect_all_hourly(), name="sweep"))
    if config.cluster is not None and config.cluster.market:
        script = play_market_script(server.loop, server.providers, config.cluster.market)
        tasks.append(asyncio.create_task(script, name="market"))
    server.is_ready = True
    config.folder.announce(url, port)
    log.info("ready at %s with %d active jobs", url, len(server.state.jobs))


async def _listen(runner: web.AppRunner, host: str, port: int, *, exact: bool) -> tuple[str, int]:
    """Listen; a port that was only remembered may have been taken meanwhile."""
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError as error:
        if exact:
            why = os.strerror(error.errno) if error.errno else error
            fix = "choose another --port, or 0 for any that is free"
            raise ConfigError(f"cannot listen on {host}:{port}: {why}", field="--port", fix=fix) from None
        site = web.TCPSite(runner, host, 0)
        await site.start()
    bound = runner.addresses[0][1]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound}", bound


class _Crashed(Exception):
    """The loop ended while others waited for it."""


async def _until_crash(tasks: list[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that needs the loop, but not for ever if the loop has ended."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, tasks[0]], return_when=asyncio.FIRST_COMPLETED)
    if tasks[0].done():
        task.cancel()
        raise _Crashed
    await task


async def _wait_for_stop(stop: asyncio.Event) -> None:
    await stop.wait()


def _exit_code(tasks: list[asyncio.Task[None]]) -> int:
    """0 for an orderly stop; a task that ended by itself is a crash."""
    for task in tasks:
        if task.done() and task.get_name() != "stop":
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
    if tasks and not tasks[0].done():  # the loop is alive: this is an orderly stop
        with contextlib.suppress(Exception):
            await asyncio.wait_for(server.loop.perform(keep_core_state), _KEEP_STATE_WITHIN_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.predictions.close()
    await server.forecasts.close()
    await server.solver.close()
    server.loop.close()
    server.readers.shutdown(wait=True)
