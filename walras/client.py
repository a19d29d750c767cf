"""The client of a Walras server: the command line, scripts and notebooks use it.

    async with Client("http://127.0.0.1:8080", token) as client:
        submitted = await client.submit({"run": "python train.py", "resources": {"accelerators": "a100:1"}})
        async for line in client.logs(submitted.id, follow=True): ...

Every call is bounded in time. After a lost connection the client repeats a call only where doing it twice is harmless;
a submission carries an idempotency key by which the server recognises it, so it too is repeated and makes one job. Logs
are read from a byte offset and followed over lost connections, without a byte lost or repeated.

The overview comes as server-sent events: the first holds all of it, later ones the fields that have changed. What comes
is bounded, since a server is another program: an event that is too large, or no overview, ends the stream with an
error.

`PeopleCalls` are the calls about users, projects, roles and tokens.
"""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError

from walras.accelerator_worth import WorthCalls
from walras.api import (
    AttemptView,
    BatchResult,
    CancelResult,
    CancelResults,
    DryRun,
    Explanation,
    FactsView,
    Health,
    JobDetail,
    JobPage,
    JobView,
    MoneyReport,
    NodeView,
    PoolRemoval,
    PoolView,
    PriceList,
    SubmitResult,
)
from walras.budgets import BudgetCalls
from walras.cluster_report import ReportCalls
from walras.content import ContentTree
from walras.content_transfer import ContentTransfer
from walras.contract import NEXT_OFFSET_HEADER
from walras.errors import ClusterError
from walras.job_needs import JobOutputs
from walras.notifications import ChannelCreated, ChannelView
from walras.overview import Overview
from walras.people import (
    AuditView,
    ProjectView,
    RoleView,
    ShareView,
    TokenCreated,
    TokenList,
    TokenView,
    UserView,
    WhoAmI,
)
from walras.policy_views import PolicyCalls
from walras.remote_session import MESSAGE_BYTES, SessionAsked, await_ready
from walras.reservations import ReservationView
from walras.spec.job_secrets import with_secret_values
from walras.spec.job_spec import JobSpec, spec_mapping
from walras.states import JobState
from walras.transport import ApiCall, Patience, Transport, response_error
from walras.usage import UsageCalls
from walras.what_if import WhatIfCalls

_API = "/api/v1"
_users: TypeAdapter[list[UserView]] = TypeAdapter(list[UserView])
_projects: TypeAdapter[list[ProjectView]] = TypeAdapter(list[ProjectView])
_shares: TypeAdapter[list[ShareView]] = TypeAdapter(list[ShareView])
_reservations: TypeAdapter[list[ReservationView]] = TypeAdapter(list[ReservationView])
_channels: TypeAdapter[list[ChannelView]] = TypeAdapter(list[ChannelView])
_roles: TypeAdapter[list[RoleView]] = TypeAdapter(list[RoleView])


class PeopleCalls:
    """The client's calls about people. Changes are merge patches: null removes a setting."""

    _transport: Transport

    async def users(self) -> list[UserView]:
        """Returns the users of the caller's projects."""
        return _users.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/users")))

    async def add_user(self, name: str, settings: Mapping[str, Any]) -> UserView:
        """Add a user. Raises Conflict for one who is there already."""
        return UserView.model_validate(await self._add("users", name, settings))

    async def change_user(self, name: str, changes: Mapping[str, Any]) -> UserView:
        """Give a user another role or other projects."""
        return UserView.model_validate(await self._change("users", name, changes))

    async def remove_user(self, name: str) -> UserView:
        """Remove a user: their tokens open nothing any more."""
        return UserView.model_validate(await self._remove("users", name))

    async def projects(self) -> list[ProjectView]:
        """Returns the projects that the caller has, with their settings."""
        return _projects.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/projects")))

    async def add_project(self, name: str, settings: Mapping[str, Any]) -> ProjectView:
        """Add a project. Raises Conflict for one that is there already."""
        return ProjectView.model_validate(await self._add("projects", name, settings))

    async def change_project(self, name: str, changes: Mapping[str, Any]) -> ProjectView:
        """Change caps, defaults or shares of a project."""
        return ProjectView.model_validate(await self._change("projects", name, changes))

    async def remove_project(self, name: str) -> ProjectView:
        """Forget a project's settings. Raises Conflict while somebody uses it."""
        return ProjectView.model_validate(await self._remove("projects", name))

    async def roles(self) -> list[RoleView]:
        """Returns the roles with their caps, the least first."""
        return _roles.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/roles")))

    async def change_role(self, name: str, changes: Mapping[str, Any]) -> RoleView:
        """Change the caps of a role."""
        return RoleView.model_validate(await self._change("roles", name, changes))

    async def create_token(
        self, user: str, role: str, projects: Sequence[str], *, expires_in_s: float | None = None
    ) -> TokenCreated:
        """Make a token. Only this answer holds the secret, so the call is not repeated after a lost answer."""
        body = {"user": user, "role": role, "projects": list(projects), "expires_in_s": expires_in_s}
        call = ApiCall("POST", f"{_API}/tokens", body=body, repeatable=False)
        return TokenCreated.model_validate(await self._transport.json(call))

    async def tokens(self) -> list[TokenView]:
        """Returns the tokens that the caller could have made, and its own, without their secrets."""
        return TokenList.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/tokens"))).items

    async def revoke_token(self, prefix: str) -> TokenView:
        """Make a token open nothing any more; `prefix`: its first characters, as `tokens` has them."""
        path = f"{_API}/tokens/{quote(prefix, safe='')}"
        return TokenView.model_validate(await self._transport.json(ApiCall("DELETE", path)))

    async def share(self, project: str = "") -> list[ShareView]:
        """Returns where the caller's projects and their users stand; of one project, or all."""
        query = {"project": project} if project else {}
        return _shares.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/share", query=query)))

    async def reserve(self, asked: Mapping[str, Any]) -> ReservationView:
        """Reserve machines, with the fields of `walras.reservations.NewReservation`.

        Raises Conflict where that cannot be honoured as things stand, with the numbers.
        """
        call = ApiCall("POST", f"{_API}/reservations", body=dict(asked), repeatable=False)
        return ReservationView.model_validate(await self._transport.json(call))

    async def reservations(self, *, everything: bool = False) -> list[ReservationView]:
        """Returns the reservations that have not ended; `everything`: the newest of the others too."""
        query = {"all": "1"} if everything else {}
        call = ApiCall("GET", f"{_API}/reservations", query=query)
        return _reservations.validate_python(await self._transport.json(call))

    async def cancel_reservation(self, reservation_id: int) -> ReservationView:
        """Give the machines of a reservation back to everybody."""
        call = ApiCall("DELETE", f"{_API}/reservations/{reservation_id:d}")
        return ReservationView.model_validate(await self._transport.json(call))

    async def channels(self) -> list[ChannelView]:
        """Returns where the caller is told of events."""
        return _channels.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/notify")))

    async def add_channel(self, url: str, kinds: Sequence[str]) -> ChannelCreated:
        """Adds an address that is told of these kinds of events; only this answer shows the key of its signatures."""
        call = ApiCall("POST", f"{_API}/notify", body={"url": url, "kinds": list(kinds)}, repeatable=False)
        return ChannelCreated.model_validate(await self._transport.json(call))

    async def remove_channel(self, channel_id: int) -> ChannelView:
        """Removes an address, which is told of nothing any more."""
        return ChannelView.model_validate(
            await self._transport.json(ApiCall("DELETE", f"{_API}/notify/{channel_id:d}"))
        )

    async def test_channel(self, channel_id: int) -> ChannelView:
        """Sends a test to an address and waits for the outcome: `problem` says what went wrong."""
        call = ApiCall("POST", f"{_API}/notify/{channel_id:d}/test", repeatable=False)
        return ChannelView.model_validate(await self._transport.json(call))

    async def _add(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any:
        body = {"name": name, "settings": dict(settings)}
        return await self._transport.json(ApiCall("POST", f"{_API}/{kind}", body=body, repeatable=False))

    async def _change(self, kind: str, name: str, changes: Mapping[str, Any]) -> Any:
        path = f"{_API}/{kind}/{quote(name, safe='')}"
        return await self._transport.json(ApiCall("PATCH", path, body=dict(changes)))

    async def _remove(self, kind: str, name: str) -> Any:
        return await self._transport.json(ApiCall("DELETE", f"{_API}/{kind}/{quote(name, safe='')}"))


#: The items of one page of a listing; the server may send fewer.
_PAGE = 500
BodyT = TypeVar("BodyT", bound=BaseModel)
AnySpec = JobSpec | Mapping[str, Any]
_attempts: TypeAdapter[list[AttemptView]] = TypeAdapter(list[AttemptView])
_audit: TypeAdapter[list[AuditView]] = TypeAdapter(list[AuditView])
_facts: TypeAdapter[list[FactsView]] = TypeAdapter(list[FactsView])
_nodes: TypeAdapter[list[NodeView]] = TypeAdapter(list[NodeView])
_pools: TypeAdapter[list[PoolView]] = TypeAdapter(list[PoolView])


class Client(
    BudgetCalls,
    PeopleCalls,
    PolicyCalls,
    ReportCalls,
    UsageCalls,
    WhatIfCalls,
    WorthCalls,
):
    """Asynchronous calls to one server with one token. Errors are those of `walras.errors`."""

    def __init__(self, url: str, token: str = "", *, patience: Patience | None = None) -> None:
        self._transport = Transport(url, token, patience or Patience())

    @property
    def url(self) -> str:
        return self._transport.url

    @property
    def patience(self) -> Patience:
        return self._transport.patience

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    async def _body(self, model: type[BodyT], call: ApiCall) -> BodyT:
        return model.model_validate(await self._transport.json(call))

    # ------------------------------------------------------------------------------------------------ submitting

    async def send_folder(
        self, folder: Path, tree: ContentTree, told: Callable[[int, int], None] = lambda done, of: None
    ) -> None:
        """Make the files of a folder durable with the server, before a job that names the tree is submitted.

        `told` hears how many pieces have been sent, and of how many.
        """
        await ContentTransfer(self._transport).send(folder, tree, told)

    async def outputs(self, job_id: int) -> JobOutputs:
        """Returns what is kept of a job's results, by machine of its gang."""
        return await self._body(JobOutputs, ApiCall("GET", f"{_API}/jobs/{job_id:d}/outputs"))

    def outputs_transfer(self, job_id: int) -> ContentTransfer:
        """Returns a transfer that fetches the trees of a job's results."""
        return ContentTransfer(self._transport, f"{_API}/jobs/{job_id:d}/outputs")

    async def open_session(self, job_id: int, asked: SessionAsked) -> aiohttp.ClientWebSocketResponse:
        """Opens a session with a running job (its owner, operators). Raises Conflict for a job that does not run."""
        given = asked.model_dump(mode="json", exclude_defaults=True)
        query = {name: json.dumps(value) if name == "argv" else str(value) for name, value in given.items()}
        path = f"{_API}/jobs/{job_id:d}/session"
        socket = await self._transport.websocket(path, {"kind": asked.kind, **query}, MESSAGE_BYTES)
        await await_ready(socket)
        return socket

    async def submit(self, spec: AnySpec, *, idempotency_key: str | None = None) -> SubmitResult:
        """Submit one job. With the same key the server returns the same job, even to another client."""
        call = ApiCall("POST", f"{_API}/jobs", body=_with_secrets(spec), headers=_key(idempotency_key))
        return await self._body(SubmitResult, call)

    async def submit_batch(self, specs: Sequence[AnySpec], *, idempotency_key: str | None = None) -> BatchResult:
        """Submit up to 1000 jobs; each is accepted or refused on its own, in the order given."""
        body = {"jobs": [_with_secrets(spec) for spec in specs]}
        return await self._body(
            BatchResult, ApiCall("POST", f"{_API}/jobs:batch", body=body, headers=_key(idempotency_key))
        )

    async def dry_run(self, spec: AnySpec) -> DryRun:
        """Returns what would happen to the job now. Nothing is stored."""
        return await self._body(DryRun, ApiCall("POST", f"{_API}/jobs:dryrun", body=_mapping(spec)))

    # --------------------------------------------------------------------------------------------------- looking

    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        user: str | None = None,
        project: str | None = None,
        active: bool = False,
        sweep: int | None = None,
        fold_sweeps: bool = False,
        limit: int | None = None,
    ) -> AsyncIterator[JobView]:
        """Yields jobs, newest first, fetched a page at a time; at most `limit`.

        `sweep`: only those of this one; `fold_sweeps`: one job for each sweep, with `sweep_states`.
        """
        query = {"state": ",".join(states), "user": user or "", "project": project or ""}
        query = {name: value for name, value in query.items() if value}
        query |= {"active": "true"} if active else {}
        query |= {"sweeps": "folded"} if fold_sweeps else {}
        query |= {} if sweep is None else {"sweep": str(sweep)}
        left = limit if limit is not None else 2**62
        while left > 0:
            query["limit"] = str(min(left, _PAGE))
            page = await self._body(JobPage, ApiCall("GET", f"{_API}/jobs", query=dict(query)))
            for job in page.items[:left]:
                yield job
            left -= len(page.items)
            if not page.next or not page.items:
                return
            query["cursor"] = page.next

    async def job(self, job_id: int) -> JobDetail:
        return await self._body(JobDetail, ApiCall("GET", f"{_API}/jobs/{job_id:d}"))

    async def attempts(self, job_id: int) -> list[AttemptView]:
        """Returns the job's attempts, oldest first."""
        return _attempts.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/jobs/{job_id:d}/attempts")))

    async def explain(self, job_id: int) -> Explanation:
        """Returns every reason for the job's state."""
        return await self._body(Explanation, ApiCall("GET", f"{_API}/jobs/{job_id:d}/explain"))

    async def logs(
        self, job_id: int, *, attempt: int | None = None, rank: int | None = None, offset: int = 0, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """Yields the output of one rank (default: the first) from byte `offset` on, as raw pieces that end anywhere.

        Without `attempt`: the newest one. `follow` goes on until the attempt ends, over lost connections, every byte
        once; without `attempt` it goes on with the next attempt, from its beginning, until the job ends. Raw bytes of
        a job: never write them to a terminal before `walras.cli.terminal_output.safe_text`.
        """
        place = LogCursor(job_id, attempt, rank, offset)
        if not follow:
            async for piece in read_log(self._transport, place):
                yield piece
            return
        shown = 0
        while True:
            place.attempt = attempt if attempt is not None else await self._next_attempt(job_id, after=shown)
            if place.attempt is None:
                return
            async for piece in follow_attempt(self._transport, place):
                yield piece
            if attempt is not None:
                return
            shown, place.offset = place.attempt, 0

    async def log_start(self, /, job_id: int, **wanted: int | None) -> int:
        """Does what `log_start` does."""
        return await log_start(self._transport, job_id, wanted)

    async def _next_attempt(self, job_id: int, *, after: int) -> int | None:
        """Waits for an attempt after `after` and returns the newest; None if the job ends first."""
        while True:
            job = await self.job(job_id)
            newest = max((view.attempt for view in job.attempt_list), default=job.attempts)
            if newest > after:
                return newest
            if job.state.is_final:
                return None
            await self._transport.pause()

    # -------------------------------------------------------------------------------------------------- changing

    async def cancel(self, job_id: int) -> JobState:
        """Request the job's end; returns its present state. Harmless if the job has ended already."""
        return JobView.model_validate(await self._act(job_id, "cancel")).state

    async def cancel_all(self, job_ids: Sequence[int]) -> list[CancelResult]:
        """Request the end of up to 1000 jobs in one call; each is cancelled or refused on its own, in this order."""
        call = ApiCall("POST", f"{_API}/jobs:cancel", body={"jobs": list(job_ids)})
        return (await self._body(CancelResults, call)).items

    async def hold(self, job_id: int) -> None:
        """Keep a waiting job from starting until released."""
        await self._act(job_id, "hold")

    async def redirect(self, job_id: int, machines: Mapping[str, Any]) -> None:
        """Send a held job to other machines: `resources`, `num_nodes`, `throughput`, `value_usd_per_h` and `plan`.

        Raises Conflict for a job that is not held.
        """
        await self._transport.json(ApiCall("POST", f"{_API}/jobs/{job_id:d}/redirect", body=dict(machines)))

    async def release(self, job_id: int) -> None:
        """End a hold."""
        await self._act(job_id, "release")

    async def _act(self, job_id: int, verb: Literal["cancel", "hold", "release"]) -> Any:
        return await self._transport.json(ApiCall("POST", f"{_API}/jobs/{job_id:d}/{verb}"))

    async def reprioritise(self, job_id: int, priority: int) -> None:
        """Give a job that has not ended another priority (0-100)."""
        await self._transport.json(ApiCall("PATCH", f"{_API}/jobs/{job_id:d}", body={"priority": priority}))

    async def rebudget(self, job_id: int, budget_usd: float) -> None:
        """Set the total budget of a job that has not ended; a job held for its budget goes on if it is larger."""
        await self._transport.json(ApiCall("PATCH", f"{_API}/jobs/{job_id:d}", body={"budget_usd": budget_usd}))

    async def redate(self, job_id: int, deadline: str) -> None:
        """Set the deadline of a job that has not ended, as in a job file (`+6h`, an instant); `none` takes it away."""
        await self._transport.json(ApiCall("PATCH", f"{_API}/jobs/{job_id:d}", body={"deadline": deadline}))

    async def reassign(self, job_id: int, project: str, priority: int | None = None) -> None:
        """Give a job that waits or is held to another project of the token and of its owner; its cost stays behind.

        `priority`: the one that it is to have there; None: the one that it has, or the new project's default.
        """
        body = {"project": project} | ({} if priority is None else {"priority": priority})
        await self._transport.json(ApiCall("PATCH", f"{_API}/jobs/{job_id:d}", body=body))

    # ------------------------------------------------------------------------------------------------ the cluster

    async def overview(self) -> Overview:
        """Returns the whole cluster on one page. Raises NotFound where the server is of an older release."""
        return await self._body(Overview, ApiCall("GET", f"{_API}/overview"))

    async def overviews(self) -> AsyncIterator[Overview]:
        """Yields the overview, and again whenever it has changed (`follow_overview`)."""
        async for overview in follow_overview(self._transport):
            yield overview

    async def nodes(self) -> list[NodeView]:
        return _nodes.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/nodes")))

    async def drain_node(self, node_id: str, *, now: bool = False, deadline_s: float | None = None) -> None:
        """Start no new jobs there, and let those there move away; what cannot be saved runs to its end.

        `now`: all are asked to stop at once. `deadline_s`: all that still run then are.
        """
        body: dict[str, Any] = {"now": now} | ({} if deadline_s is None else {"deadline_s": deadline_s})
        await self._transport.json(ApiCall("POST", f"{_API}/nodes/{quote(node_id, safe='')}/drain", body=body))

    async def resume_node(self, node_id: str) -> None:
        """Use a drained or quarantined machine again."""
        await self._transport.json(ApiCall("POST", f"{_API}/nodes/{quote(node_id, safe='')}/resume"))

    async def forget_node(self, node_id: str) -> None:
        """Strike a machine that is lost, or silent and empty, off the list. Raises Conflict while it may be alive."""
        await self._transport.json(ApiCall("DELETE", f"{_API}/nodes/{quote(node_id, safe='')}"))

    async def pools(self) -> list[PoolView]:
        return _pools.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/pools")))

    async def add_pool(self, pool: Mapping[str, Any]) -> PoolView:
        """Add a pool, with the fields that a pool of a cluster file has (administrators)."""
        return await self._body(PoolView, ApiCall("POST", f"{_API}/pools", body=dict(pool), repeatable=False))

    async def change_pool(self, /, pool_id: str, **changes: float | bool | None) -> PoolView:
        """Change `quota`, `least`, `usd_per_h` or `drained`: no new jobs and nothing rented there (administrators)."""
        body = {name: value for name, value in changes.items() if value is not None}
        return await self._body(PoolView, ApiCall("PATCH", f"{_API}/pools/{quote(pool_id, safe='')}", body=body))

    async def remove_pool(self, pool_id: str) -> PoolRemoval:
        """Take a pool without machines out; returns the waiting jobs that no other pool could run (administrators)."""
        call = ApiCall("DELETE", f"{_API}/pools/{quote(pool_id, safe='')}", repeatable=False)
        return await self._body(PoolRemoval, call)

    async def prices(self, *, whole: bool = False) -> PriceList:
        """Returns the price of every pool at the last solve, and that solve's certificate.

        `whole`: with what whole gangs can reach at best, which takes the server some seconds.
        """
        return await self._body(PriceList, ApiCall("GET", f"{_API}/prices", query={"whole": "true"} if whole else {}))

    async def money(
        self, by: str = "project", *, month: str = "", project: str = "", limit: int | None = None
    ) -> MoneyReport:
        """Returns the spending until now, by project, user, job, pool or month; the dearest, and all others as one."""
        filters = {"by": by, "month": month, "project": project, "limit": "" if limit is None else str(limit)}
        query = {name: value for name, value in filters.items() if value}
        return await self._body(MoneyReport, ApiCall("GET", f"{_API}/money", query=query))

    async def state_facts(self, kind: str, facts: Mapping[str, Any], batch: float | None = None) -> FactsView:
        """State facts of a kind of jobs (`walras.spec.job_groups.FactsSpec`); returns the facts now in force."""
        body = {"kind": kind, "facts": dict(facts), "batch": batch}
        return await self._body(FactsView, ApiCall("POST", f"{_API}/facts", body=body))

    async def facts(self, kind: str | None = None) -> list[FactsView]:
        """Returns the facts of one kind of jobs besides its speed, or of all kinds."""
        query = {} if kind is None else {"kind": kind}
        return _facts.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/facts", query=query)))

    async def revoke_pool(self, pool_id: str, notice_s: float) -> None:
        """Have a provider revoke the pool's rented machines after a notice, for drills (administrators)."""
        body = {"pool_id": pool_id, "notice_s": notice_s}
        await self._transport.json(ApiCall("POST", f"{_API}/pools:revoke", body=body, repeatable=False))

    async def whoami(self) -> WhoAmI:
        """Returns whose token this client uses."""
        return await self._body(WhoAmI, ApiCall("GET", "/api/v1/whoami"))

    async def audit(self, *, user: str = "", since: str = "", limit: int = 100) -> list[AuditView]:
        """Returns who changed what, newest first; `since`: an RFC 3339 instant (administrators; operators: theirs)."""
        query = {"user": user, "since": since, "limit": str(limit)}
        query = {name: value for name, value in query.items() if value}
        return _audit.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/audit", query=query)))

    async def health(self) -> Health:
        """Returns whether the server is ready, with its checks."""
        return await self._body(Health, ApiCall("GET", "/readyz"))


def _mapping(spec: AnySpec) -> dict[str, Any]:
    return spec_mapping(spec) if isinstance(spec, JobSpec) else dict(spec)


def _with_secrets(spec: AnySpec) -> dict[str, Any]:
    """Returns the job with the values of its secrets, from this process's environment and files."""
    return with_secret_values(_mapping(spec), os.environ)


def _key(given: str | None) -> dict[str, str]:
    return {"Idempotency-Key": given or uuid.uuid4().hex}


_PIECE_BYTES = 65_536


@dataclass(slots=True)
class LogCursor:
    """A position in a log: `offset` advances with every piece that was yielded."""

    job_id: int
    attempt: int | None
    rank: int | None
    offset: int

    def call(self, *, follow: bool) -> ApiCall:
        query = {"offset": str(self.offset)}
        if self.attempt is not None:
            query["attempt"] = str(self.attempt)
        if self.rank is not None:
            query["rank"] = str(self.rank)
        if follow:
            query["follow"] = "true"
        return ApiCall("GET", f"/api/v1/jobs/{self.job_id:d}/logs", query=query)


async def read_log(transport: Transport, place: LogCursor) -> AsyncIterator[bytes]:
    """Yields the log up to its present end.

    The server may answer in parts. An answer shorter than a piece is the last one, so that a job that prints all the
    time is not read for ever.
    """
    failures = 0
    while True:
        before = place.offset
        try:
            async for piece in _read_pieces(transport, place, follow=False):
                yield piece
        except _CONNECTION_ERRORS as error:
            failures = 0 if place.offset > before else failures + 1
            await _pause_or_give_up(transport, failures, error)
        else:
            if place.offset - before < _PIECE_BYTES:
                return


async def follow_attempt(transport: Transport, place: LogCursor) -> AsyncIterator[bytes]:
    """Yields the log of `place.attempt` as it grows, until the attempt has ended and its whole output was yielded."""
    assert place.attempt is not None
    failures = 0
    while True:
        # Checked before reading: the output of an attempt that has ended is complete when it is read afterwards.
        ended = await _has_ended(transport, place.job_id, place.attempt)
        before = place.offset
        try:
            async for piece in _read_pieces(transport, place, follow=not ended):
                yield piece
            failures = 0
        except _CONNECTION_ERRORS as error:
            failures = 0 if place.offset > before or isinstance(error, TimeoutError) else failures + 1
            await _pause_or_give_up(transport, failures, error)
            continue
        if ended and place.offset == before:
            return
        if not ended and place.offset == before:
            await transport.pause()


_CONNECTION_ERRORS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError)


async def _read_pieces(transport: Transport, place: LogCursor, *, follow: bool) -> AsyncIterator[bytes]:
    patience = transport.patience
    total = None if follow else patience.call_timeout_s
    timeout = aiohttp.ClientTimeout(
        total=total, sock_connect=patience.connect_timeout_s, sock_read=patience.silence_s if follow else None
    )
    async with transport.open(place.call(follow=follow), timeout=timeout) as response:
        if response.status != 200:
            raise await response_error(response)
        async for piece in response.content.iter_chunked(_PIECE_BYTES):
            place.offset += len(piece)
            yield piece
        # The server's count is right where it left bytes out (a log over its limit).
        stated = response.headers.get(NEXT_OFFSET_HEADER, "")
        if not follow and stated.isascii() and stated.isdigit():
            place.offset = max(place.offset, int(stated))


async def _has_ended(transport: Transport, job_id: int, attempt: int) -> bool:
    answer = await transport.json(ApiCall("GET", f"/api/v1/jobs/{job_id:d}/attempts"))
    views = [AttemptView.model_validate(item) for item in answer]
    newest = max((view.attempt for view in views), default=0)
    return newest > attempt or any(view.attempt == attempt and view.state.is_final for view in views)


async def _pause_or_give_up(transport: Transport, failures: int, error: BaseException) -> None:
    if failures >= transport.patience.tries:
        raise transport.unreachable(error) from None
    await transport.pause(failures)


async def log_start(transport: Transport, job_id: int, wanted: Mapping[str, int | None]) -> int:
    """Returns the offset at which the last `tail` lines of a `rank` and `attempt` begin, or what came within `since_s`
    seconds; the later of both. None: as if it were left out.
    """
    query = {name: str(value) for name, value in wanted.items() if value is not None}
    call = ApiCall("GET", f"/api/v1/jobs/{job_id:d}/logs/start", query=query)
    return int((await transport.json(call))["offset"])


_OVERVIEW_EVENTS = "/api/v1/overview/events"
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
        async with transport.open(ApiCall("GET", _OVERVIEW_EVENTS), timeout=timeout) as response:
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
