"""Machines and their pools as people see, drain, add, change and remove them, and what machines ask the server for.

The messages of registration and heartbeat are in `walras.wire`.

A reservation, for a project or for maintenance, is of whole machines, from an instant until another. Jobs of other
projects are gone when it begins, and none starts there before its end; the project's jobs get its machines before any
policy is asked.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from walras.connection.body import Body, RequestBody
from walras.job_needs import OutputsCollected
from walras.machines.machine_facts import DeviceSample
from walras.resources.endpoint import AGENT, API, BINARY, LARGE_BODY_BYTES, Call, Calls, Endpoint
from walras.spec.cluster_file import LARGEST_POOL, PoolEntry
from walras.spec.field_types import MAX_ACCELERATORS, AcceleratorName, ShownName, parse_instant
from walras.storage.checkpoint_store import StoreAccess, StoreAccessRequest
from walras.wire import Heartbeat, HeartbeatAnswer, Register, Registered


class NodeView(Body):
    node_id: str
    machine: str = ""  # the machine of several accelerator types that it is a part of; empty: of none
    pool: str
    accelerator: str
    emulated: bool
    market: str
    zone: str
    #: One of up | unreachable | draining | drained | leaving | quarantined | lost | released
    state: str
    detail: str = ""
    accelerators: int
    free: int
    jobs: list[int]
    last_heard_s: float | None = None
    #: Release of its agent; empty while it has not said.
    version: str = ""
    #: The boot of the machine during which its agent runs; empty until the agent has stated it.
    boot: str = ""
    #: The version of the agents' protocol that it speaks; null until this process has heard from it.
    protocol: int | None = None
    #: What keeps its agent from taking more work; empty where nothing does.
    problem: str = ""
    #: Whether it cannot reach the store of checkpoints: then no job is moved off it for others.
    private: bool = False
    #: The tools that it has of those jobs may need: uv, git, docker, ...; null until its agent has stated them.
    tools: list[str] | None = None
    devices: list[DeviceSample] = Field(default_factory=list)


class Drain(RequestBody):
    """How a machine is emptied. Jobs that can save their work move at once; others run to their ends, unless ..."""

    #: All jobs are asked to stop now, those included that cannot save their work.
    now: bool = False
    #: After this time, seconds, all jobs that still run there are asked to stop; None: they may run to their ends.
    deadline_s: float | None = Field(default=None, gt=0, le=366 * 86_400, allow_inf_nan=False)


_NODE = API + "/nodes/{node_id}"


class PoolView(Body):
    """A pool of machines (`GET /pools`)."""

    pool_id: str
    shape: str
    accelerator: str
    #: Accelerators of one machine.
    accelerators: int
    market: str
    zone: str
    #: The price of one machine.
    usd_per_h: float
    #: The most machines that may be rented.
    quota: int
    #: Machines that are held rented whether or not they are worth their price.
    least: int = 0
    #: Whether it is being drained: no new jobs start and nothing is rented there.
    drained: bool
    #: What its provider said when it refused machines, while it is not asked again; empty: it did not.
    refused: str = ""
    #: Machines that are present, and machines that were requested and are not.
    machines: int
    coming: int
    #: The number of jobs that run there.
    jobs: list[int]
    #: The provider that rents out its machines; empty for owned machines.
    provider: str = ""
    #: Seconds from a request until the machine takes jobs, and seconds that it is billed for at least.
    boot_s: float = 0.0
    minimum_billing_s: float = 0.0
    #: The tools that every machine there has: uv, git, docker, ...; null while one of them has not stated its tools.
    tools: list[str] | None = None

    @property
    def standing(self) -> str:
        """Whether it takes jobs, in a word or two."""
        if self.drained or self.refused:
            return "drained" if self.drained else f"refused: {self.refused}"
        return "in use" if self.machines or self.coming else "empty"


class PoolRemoval(Body):
    """A pool that is gone, and the waiting jobs that no other pool could run (`DELETE /pools/{pool_id}`)."""

    pool_id: str
    stranded_jobs: list[int]


class PoolChange(RequestBody):
    """`PATCH /pools/{pool_id}`: what is to be different."""

    quota: int | None = Field(default=None, ge=0, le=LARGEST_POOL)
    least: int | None = Field(default=None, ge=0, le=LARGEST_POOL)
    usd_per_h: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    #: True empties the pool: no new jobs, no new machines; jobs that cannot save run to their ends. False: use it
    #: again.
    drained: bool | None = None


class Revocation(RequestBody):
    """`POST /pools:revoke`."""

    pool_id: str
    #: Warning to the machines before they are taken away, seconds.
    notice_s: float = Field(default=0.0, ge=0, le=86_400)


class Revoked(Body):
    """Machines that will be gone."""

    nodes: list[str]


class FleetCalls(Calls):
    """The client's calls about machines and pools."""

    @Endpoint("GET", f"{API}/nodes")
    async def nodes(self) -> list[NodeView]:
        """Machines."""

    @Endpoint("POST", f"{_NODE}/drain", who="admin", body=Drain, repeatable=True)
    async def drain_node(self, node_id: str, *, now: bool = False, deadline_s: float | None = None) -> NodeView:
        """Empty a machine without losing work, or now. It gets no jobs; those there move away or run to their ends.
        `now`: all are asked to stop at once; `deadline_s`: all that still run then are. A lost machine: for when it is
        back.
        """

    @Endpoint("POST", f"{_NODE}/resume", who="admin", repeatable=True)
    async def resume_node(self, node_id: str) -> NodeView:
        """Use a drained or quarantined machine again."""

    @Endpoint("DELETE", _NODE, who="admin")
    async def forget_node(self, node_id: str) -> NodeView:
        """Forget a machine that will not come back. It is lost, or silent and empty: 409 while it may be alive."""

    @Endpoint("GET", f"{API}/pools")
    async def pools(self) -> list[PoolView]:
        """Pools of machines. Price, quota, machines here and coming, jobs there, whether drained."""

    @Endpoint("POST", f"{API}/pools", who="admin", body=PoolEntry, status=201)
    async def add_pool(self, pool: Mapping[str, Any]) -> PoolView:
        """Add a pool. With the fields of one entry of `pools` in a cluster file; a provider that the server does not
        have is refused.
        """

    @Endpoint("PATCH", API + "/pools/{pool_id}", who="admin", body=PoolChange)
    async def change_pool(self, /, pool_id: str, **changes: float | bool | None) -> PoolView:
        """Change a pool's quota, least, price or drain. Write the slashes of a pool's id as `%2F`."""

    @Endpoint("DELETE", API + "/pools/{pool_id}", who="admin", repeatable=False)
    async def remove_pool(self, pool_id: str) -> PoolRemoval:
        """Take a pool without machines out. 409 while it has machines or jobs; `stranded_jobs`: what no other pool
        runs.
        """

    @Endpoint("POST", f"{API}/pools:revoke", who="admin", body=Revocation)
    async def revoke_pool(self, pool_id: str, notice_s: float) -> Revoked:
        """Take a pool's rented machines away, for drills."""


class LogAccepted(Body):
    """Answer to `POST /agent/v1/logs?job_id=J&attempt=A&rank=R&offset=N` (the body is the raw bytes from offset N on).

    Sending the same bytes again is harmless; bytes beyond a gap are not taken.
    """

    next: int  # the offset from which the agent has to continue
    #: Whether the rank has used up its log quota, so that further bytes are dropped.
    full: bool = False


_SENDER = ("cluster_id", "incarnation", "granted_by")
REGISTER = Endpoint("POST", f"{AGENT}/register", "Admit a machine", Registered, "join token", Register)
HEARTBEAT = Endpoint(
    "POST", f"{AGENT}/heartbeat", "Reports up, commands and leases down. Held open up to `wait_s`.", HeartbeatAnswer,
    "agent", Heartbeat, waits=True, body_bytes=LARGE_BODY_BYTES,
)  # fmt: skip
SEND_LOG = Endpoint(
    "POST", f"{AGENT}/logs", "Bytes that a rank wrote", LogAccepted, "agent",
    query=("job_id", "attempt", "rank", "offset", *_SENDER),
)  # fmt: skip
STORE_ACCESS = Endpoint(
    "POST", f"{AGENT}/store-access", "What opens a job's place in an object store", StoreAccess, "agent",
    StoreAccessRequest, query=_SENDER, waits=True,
)  # fmt: skip
SEND_OUTPUTS = Endpoint(
    "POST", f"{AGENT}/outputs", "Results of an attempt, which the content store has", None, "agent", OutputsCollected,
    query=_SENDER, status=204,
)  # fmt: skip
WHEEL = Endpoint("GET", f"{AGENT}/wheel", "The release that rented machines install", BINARY, "join token")
JOIN_SESSION = Endpoint(
    "GET", AGENT + "/sessions/{session_id}", "The machine's websocket of a session", BINARY, "agent", waits=True,
)  # fmt: skip


def _checked_instant(text: str) -> str:
    """Returns the text. Raises ValueError for one that is no instant; what it means depends on the server's now."""
    parse_instant(text, now=0.0)
    return text


_Instant = Annotated[str, Field(min_length=1, max_length=40), AfterValidator(_checked_instant)]
#: The most machines that one reservation may name.
_MOST_MACHINES = 4096


class NewReservation(RequestBody):
    """`POST /reservations`: accelerators of a type for a project, or machines by name."""

    #: Type and number of accelerators; both empty with `nodes`.
    accelerator: AcceleratorName | None = None
    accelerators: Annotated[int, Field(ge=0, le=MAX_ACCELERATORS)] = 0
    nodes: list[Annotated[str, Field(min_length=1, max_length=300)]] = Field(default=[], max_length=_MOST_MACHINES)
    #: The project whose jobs may run there; empty with `maintenance`, when no jobs may.
    project: ShownName | None = None
    maintenance: bool = False
    #: RFC 3339, or a length from now such as `+2h`; `starts` empty: now.
    starts: _Instant = "+0s"
    ends: _Instant
    reason: Annotated[str, Field(max_length=200)] = ""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if bool(self.nodes) == bool(self.accelerator):
            raise ValueError("give either an accelerator type and a number, or machines by name")
        if bool(self.accelerator) != bool(self.accelerators):
            raise ValueError("an accelerator type needs a number above 0")
        if self.maintenance == bool(self.project):
            raise ValueError("give either a project, or maintenance")
        return self


class ReservationView(Body):
    """A reservation, and what becomes of it as things stand."""

    id: int
    #: The project; empty: for maintenance.
    project: str
    maintenance: bool
    #: The type that was asked for; empty where machines were named.
    accelerator: str = ""
    accelerators: int = 0
    #: Its machines, and the accelerators of those that are present.
    nodes: list[str]
    reserved: int
    starts: str
    ends: str
    #: coming, active, over or cancelled.
    state: str
    reason: str = ""
    created_by: str = ""
    #: When its machines are empty of other jobs at the latest; None where that is unknown.
    ready: str | None = None
    #: Notes for people, with numbers: jobs still there, jobs that lose work, machines that are away.
    notes: list[str] = Field(default=[])


RESERVATIONS = Endpoint(
    "GET", f"{API}/reservations", "Machines reserved for a time. For your projects or for maintenance, and what "
    "stands in their way; `all=1`: with the newest of those that are over.", list[ReservationView], query=("all",),
)  # fmt: skip


class ReservationCalls(Calls):
    """The client's calls about reservations."""

    @Endpoint("POST", f"{API}/reservations", who="operator", body=NewReservation, status=201)
    async def reserve(self, asked: Mapping[str, Any]) -> ReservationView:
        """Reserve machines for a project, or for maintenance. `accelerator` and `accelerators`, or `nodes`; `project`,
        or (administrators) `maintenance`; 409 with the numbers where it cannot be honoured.
        """

    @Call
    async def reservations(self, *, everything: bool = False) -> list[ReservationView]:
        """Returns the reservations that have not ended; `everything`: the newest of the others too."""
        found: list[ReservationView] = await RESERVATIONS.ask(self, {"all": "1" if everything else ""})
        return found

    @Endpoint("DELETE", API + "/reservations/{reservation_id}", who="operator")
    async def cancel_reservation(self, reservation_id: int) -> ReservationView:
        """Cancel a reservation."""
