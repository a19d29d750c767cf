"""`walras top`: the cluster in a terminal. This file starts it; `walras.cli.top_screens` is what one sees."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from walras.errors import NotFound, UserError
from walras.server_access import ServerAccess, server_access

if TYPE_CHECKING:
    from walras.cli.top_screens import TopApp
    from walras.client import Client

#: One try: the screen says that the server is away, and asks again by itself.
_TRIES, _CALL_TIMEOUT_S = 1, 15.0


def top_command(
    every: Annotated[
        float,
        typer.Option("--every", min=0.5, max=3600.0, help="Seconds between polls of a server that pushes no changes."),
    ] = 2.0,
) -> None:
    """Watch the cluster in the terminal: the fleet, its prices, and who is next."""
    _require_textual()
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise UserError("walras top needs a terminal", fix="walras queue prints the queue once")
    asyncio.run(_watch_cluster(server_access(), every))


def _require_textual() -> None:
    """Raises UserError if the library that draws the screens is missing."""
    try:
        import textual  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "textual":
            raise
        raise UserError("walras top needs textual, which is not installed", fix="pip install 'walras[top]'") from None


async def _watch_cluster(server: ServerAccess, every_s: float) -> None:
    from walras.client import Client
    from walras.connection.transport import Patience

    async with Client(server.url, server.token) as client:
        await first_look(client)
    patience = Patience(tries=_TRIES, call_timeout_s=_CALL_TIMEOUT_S)
    async with Client(server.url, server.token, patience=patience) as client:
        await watching_app(client, every_s).run_async()


async def first_look(client: "Client") -> None:
    """Raises, before the terminal is taken, what the commands raise: no server, no token, an older server."""
    try:
        await client.overview()
    except NotFound:
        raise UserError("this server is older than `walras top`", fix="walras queue -w watches it") from None


def watching_app(client: "Client", every_s: float) -> "TopApp":
    """Returns the application, which asks this client every so many seconds."""
    from walras.cli.top_screens import TopApp

    return TopApp(client, every_s)
