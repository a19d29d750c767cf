"""The whole cluster on one page, for people who watch it: once, and again as it changes; and whether it serves.

What it says of a job is the `JobView` of the job's own endpoint, and what it says of pools and of the certificate the
bodies of `GET /prices`. Jobs of projects that the caller does not see are numbers without a name.

Changes come as server-sent events: the first holds all of it, later ones the fields that have changed. What comes is
bounded, since a server is another program: an event that is too large, or no overview, ends the stream with an error.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import aiohttp
from pydantic import ValidationError

from walras.connection.body import Body
from walras.connection.transport import Transport, response_error
from walras.errors import ClusterError
from walras.resources.endpoint import API, Calls, Endpoint, Stream
from walras.resources.jobs import JobView
from walras.resources.prices import CertificateView, PriceView

#: Longest reason for a change, characters.
REASON_LENGTH = 400


class PolicyView(Body):
    """A policy that is or was in force, and its place in the history (`GET /policy`, `GET /policy/versions`)."""

    version: int
    name: str
    parameters: dict[str, Any]
    #: All rules, and the names of those that are not at their defaults; null: an older server does not say.
    rules: dict[str, Any]
    changed_rules: list[str] | None = None
    changed_at: str
    changed_by: str
    #: Why the policy before it was replaced: it failed, and this is the last good one. Empty: a user set this one.
    put_back: str = ""
    #: The user's reason for setting it.
    reason: str = ""


class PolicyCalls(Calls):
    """The client's calls about the policy."""

    @Endpoint("GET", f"{API}/policy")
    async def policy(self) -> PolicyView:
        """The policy in force."""

    @Endpoint("GET", f"{API}/policy/versions")
    async def policy_versions(self) -> list[PolicyView]:
        """The policies that were in force, newest first. The last hundred, with author and reason."""

    @Endpoint("PUT", f"{API}/policy", who="admin", query=("dry_run", "reason", "if_version"), body_values=5000)
    async def set_policy(
        self, policy: Mapping[str, Any], *, dry_run: bool = False, reason: str = "", if_version: int | None = None
    ) -> PolicyView:
        """Change the policy, or only check it (`dry_run`). The body: a policy file; validated, versioned, at once;
        409 where another version than `if_version` is in force.

        Parameters:
            reason: kept in the history, at most `REASON_LENGTH` characters.
            if_version: the version that it is to replace; None: whichever is in force.

        Raises ConfigError for a policy that means nothing here, or fails its trial.
        """


class MachineCells(Body):
    """One machine, and who holds each of its accelerators."""

    node_id: str
    #: The machine of several types to which it belongs; empty: none.
    machine: str = ""
    pool: str
    accelerator: str
    #: up | unreachable | draining | drained | leaving | quarantined
    state: str
    detail: str = ""
    #: By device, the number of the job that holds it, 0 for none; the first where several share it.
    cells: list[int]


class PricePoint(Body):
    """The prices that a solve found."""

    #: Unix seconds.
    at: float
    #: Dual price by pool, in the pools' unit.
    prices: dict[str, float]


class MoneyNow(Body):
    """Money of the current month, USD, of the projects that the caller sees."""

    month: str
    spent_usd: float
    #: The cost of the same time at on-demand prices.
    on_demand_usd: float
    #: The cost per hour of the running attempts.
    usd_per_h: float


class ClusterAlert(Body):
    """A problem to which a person should attend."""

    #: warning | error
    level: str
    text: str
    #: The subject of the alert: "machine n1", "job 7", "solver", "store", "policy".
    subject: str


class FreeAccelerators(Body):
    """Free accelerators of one type."""

    accelerator: str
    #: Those that a job could have now.
    free: int
    #: Those of the machines that take jobs now; `machines` has the others too.
    capacity: int


class Overview(Body):
    """`GET /overview`."""

    #: RFC 3339.
    as_of: str
    policy: str
    #: Active jobs that the caller sees, by state.
    counts: dict[str, int]
    types: list[FreeAccelerators]
    machines: list[MachineCells]
    pools: list[PriceView]
    certificate: CertificateView | None = None
    #: The events, oldest first.
    history: list[PricePoint]
    #: The next jobs, in order, those that are held last: at most 50.
    queue: list[JobView]
    #: How many wait, without those that are held: `counts` has both.
    waiting: int
    #: Names of jobs that hold accelerators, by job number as text; at most 1000.
    names: dict[str, str]
    money: MoneyNow | None = None
    alerts: list[ClusterAlert]


class Health(Body):
    ok: bool
    #: Checks by name: "event_loop", "database", "solver", "clock", "content", "policy".
    checks: dict[str, str]
    version: str


HEALTH = Endpoint(
    "GET", f"{API}/healthz", "The loop turns and the database writes. Also at the root.", Health, waits=True
)
READINESS = Endpoint("GET", f"{API}/readyz", "The server takes requests. Also at the root.", Health)
#: Health probes of other systems ask for these.
HEALTH_PROBE, READINESS_PROBE = replace(HEALTH, path="/healthz"), replace(READINESS, path="/readyz")
METRICS = Endpoint(
    "GET", "/metrics",
    "Figures in the format of Prometheus. Of all projects: [metrics](notifications.md#metrics-for-prometheus).",
    "text/plain",
)  # fmt: skip
OPENAPI = Endpoint("GET", f"{API}/openapi.json", "This description")
OVERVIEW_EVENTS = Endpoint(
    "GET", f"{API}/overview/events", "The same, as a stream of what changes. Server-sent events: first everything, "
    "then the fields that changed.", "text/event-stream", waits=True,
)  # fmt: skip


class OverviewCalls(Calls):
    """The client's calls about the whole cluster."""

    @READINESS_PROBE
    async def health(self) -> Health:
        """Returns whether the server is ready, with its checks."""

    @Endpoint("GET", f"{API}/overview")
    async def overview(self) -> Overview:
        """The whole cluster on one page. The first view of the web page: machines with who holds them,
        prices, the queue in order, money, alerts.

        Raises NotFound where the server is of an older release.
        """

    @Stream
    async def overviews(self) -> AsyncIterator[Overview]:
        """Yields the overview, and again whenever it has changed (`follow_overview`)."""
        async for overview in follow_overview(self._transport):
            yield overview


#: The most bytes of one event; the overview of 10,000 machines has a tenth of that.
_EVENT_BYTES_MOST = 64 * 1024 * 1024
_STREAM_PIECE_BYTES = 65_536
#: Seconds to wait for the first event, which the server sends at once. Where it does not come, a proxy holds the stream
#: back.
_FIRST_WITHIN_S = 5.0
#: Seconds of silence after which the stream counts as broken: the server sends something every 15 s.
_SILENCE_S = 40.0


async def follow_overview(transport: Transport) -> AsyncIterator[Overview]:
    """Yields the overview now, and again whenever something of it has changed, until the server ends the stream.

    Raises ServerUnreachable if the connection breaks, or nothing comes for as long as a server never is silent;
    NotFound where the server is of an older release; ClusterError for events that make no overview.
    """
    patience = transport.patience
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience.connect_timeout_s, sock_read=_SILENCE_S)
    fields: dict[str, Any] = {}
    try:
        async with transport.open(OVERVIEW_EVENTS.call({}), timeout=timeout) as response:
            if response.status != 200:
                raise await response_error(response)
            events = _server_events(response)
            event = await asyncio.wait_for(anext(events, None), _FIRST_WITHIN_S)
            while event is not None:
                fields |= _event_fields(event)
                yield _overview(fields)
                event = await anext(events, None)
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
        raise transport.unreachable(error) from None


async def _server_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields the data of each event; what only says that the server is there has none."""
    left = bytearray()
    async for piece in response.content.iter_chunked(_STREAM_PIECE_BYTES):
        start = max(0, len(left) - 1)
        left += piece
        while (end := left.find(b"\n\n", start)) >= 0:
            lines = bytes(left[:end]).split(b"\n")
            del left[: end + 2]
            start = 0
            if data := b"".join(line[5:] for line in lines if line.startswith(b"data:")):
                yield data
        if len(left) > _EVENT_BYTES_MOST:
            raise ClusterError(f"the server sent an event of more than {_EVENT_BYTES_MOST:,} bytes")


def _event_fields(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ClusterError("the server sent an event that is not a JSON object; is it Walras?")
    return found


def _overview(fields: dict[str, Any]) -> Overview:
    try:
        return Overview.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ClusterError(f"the server sent an overview that is none: {first['loc']}: {first['msg']}") from None
