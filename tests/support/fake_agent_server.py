"""The server's side of `walras/wire.py`, as far as an agent can see it: parses what agents send, keeps it, and sends
commands until they are acknowledged.

Tests of agents run against it in their own event loop; tests of the real server may run the same agents against that.
"""

import asyncio
from collections import defaultdict
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from tests.support.waiting import until
from walras.job_needs import OutputsCollected
from walras.storage.content import ContentTree, check_chunk, unpack_chunk
from walras.wire import (
    AnyCommand,
    AnyReport,
    AttemptHere,
    ClusterIdentity,
    Heartbeat,
    HeartbeatAnswer,
    Register,
    Registered,
)
from workers import processes

MAX_LOG_CALL_BYTES = 256 * 1024


class FakeAgentServer:
    def __init__(self, *, lease_s: float = 30.0, heartbeat_s: float = 0.3) -> None:
        self.lease_s = lease_s
        self.heartbeat_s = heartbeat_s
        self.join_token = "join-secret"
        self.credential = "agent-credential-secret"
        self.url = ""
        self.registered: list[Register] = []
        self.heartbeats: list[Heartbeat] = []
        self.reports: list[AnyReport] = []
        self.logs: defaultdict[tuple[int, int, int], bytes] = defaultdict(bytes)
        #: (job, attempt) whose lease is refused.
        self.fenced: set[tuple[int, int]] = set()
        #: While true, every call is answered with 503.
        self.is_down = False
        #: Calls that were answered so.
        self.refused = 0
        #: While false, reports are taken but never acknowledged.
        self.acknowledges = True
        #: Answers that carry commands are this long on their way.
        self.delay_s = 0.0
        #: Boot-time instants at which the heartbeats arrived that were answered with commands.
        self.heard_at: list[float] = []
        #: Who it says it is; None: a server of the first release, which says nothing.
        self.cluster: ClusterIdentity | None = None
        self.protocol = 1
        #: While true, registrations are refused because another agent has the name.
        self.holds_name = False
        #: Commands as JSON, handed out as they are until acknowledged.
        self.raw_commands: list[dict[str, Any]] = []
        #: What uploads of logs named beside the place of the bytes.
        self.uploads: list[dict[str, str]] = []
        #: Chunks and trees by name, handed out while `gives_content` is set.
        self.content: dict[str, bytes] = {}
        self.gives_content = asyncio.Event()
        self.gives_content.set()
        #: Names of content that were asked for, in order.
        self.asked_content: list[str] = []
        #: Chunks that were sent, in order; they are taken while `gives_content` is set.
        self.offered_content: list[str] = []
        #: Results of attempts.
        self.outputs: list[OutputsCollected] = []
        self._seen_report = 0
        self._commands: dict[int, AnyCommand] = {}
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=8 * 1024**2, middlewares=[self._admit])
        app.router.add_post("/agent/v1/register", self._register)
        app.router.add_post("/agent/v1/heartbeat", self._heartbeat)
        app.router.add_post("/agent/v1/logs", self._take_log)
        app.router.add_post("/agent/v1/outputs", self._take_outputs)
        app.router.add_get("/content/v1/{kind}/{name}", self._give_content)
        app.router.add_post("/content/v1/missing", self._say_missing)
        app.router.add_put("/content/v1/chunks/{name}", self._take_chunk)
        app.router.add_post("/content/v1/trees", self._take_tree)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    # ------------------------------------------------------------------------------------------- for tests

    async def send(self, command: AnyCommand) -> None:
        """Send until acknowledged."""
        async with self._changed:
            self._commands[command.command_id] = command
            self._changed.notify_all()

    async def acknowledged(self, command_id: int, timeout_s: float = 40.0) -> None:
        await self.until(lambda: command_id not in self._commands, timeout_s, f"ack of command {command_id}")

    def of_type(self, kind: str) -> list[Any]:
        return [report for report in self.reports if report.type == kind]

    async def report(self, kind: str, timeout_s: float = 40.0) -> Any:
        """The first report of this type."""
        await self.until(lambda: bool(self.of_type(kind)), timeout_s, f"report {kind}")
        return self.of_type(kind)[0]

    async def until(self, condition: Any, quiet_s: float, what: str) -> None:
        await until(condition, quiet_s, what, lambda: self.reports[-5:])

    # ------------------------------------------------------------------------------------------- calls

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.is_down:
            self.refused += 1
            return web.Response(status=503)
        token = self.join_token if request.path.endswith("/register") else self.credential
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        return await handler(request)

    def _identity_refusal(self, told: ClusterIdentity | None, *, with_incarnation: bool) -> web.Response | None:
        here = self.cluster
        if here is None or told is None or told == here:
            return None
        if told.cluster_id != here.cluster_id:
            return _problem("other_cluster", f"it belongs to {told.cluster_id}, this is {here.cluster_id}")
        return _problem("other_incarnation", "restored", here) if with_incarnation else None

    async def _register(self, request: web.Request) -> web.Response:
        message = Register.model_validate_json(await request.read())
        self.registered.append(message)
        if refusal := self._identity_refusal(message.cluster, with_incarnation=False):
            return refusal
        if self.holds_name:
            return _problem("name_held", "another agent speaks for it")
        answer = Registered(
            credential=self.credential, heartbeat_s=self.heartbeat_s, lease_s=self.lease_s, cluster=self.cluster,
            protocol=self.protocol,
        )  # fmt: skip
        return web.json_response(text=answer.model_dump_json())

    async def _heartbeat(self, request: web.Request) -> web.Response:
        message = Heartbeat.model_validate_json(await request.read())
        if refusal := self._identity_refusal(message.cluster, with_incarnation=True):
            return refusal
        self.heartbeats.append(message)
        heard_at = processes.boottime()
        for report in message.reports:
            if report.report_id > self._seen_report:
                self._seen_report = report.report_id
                self.reports.append(report)
        for command_id in message.acks:
            self._commands.pop(command_id, None)
            self.raw_commands = [each for each in self.raw_commands if each["command_id"] != command_id]
        if message.wait_s > 0:
            await self._hold(message.wait_s)
        if self._commands:
            self.heard_at.append(heard_at)
            await asyncio.sleep(self.delay_s)
        here = {(attempt.job_id, attempt.attempt) for attempt in message.here}
        answer = HeartbeatAnswer(
            commands=list(self._commands.values()),
            reports_acked=self._seen_report if self.acknowledges else 0,
            lease_s=self.lease_s,
            fenced=[AttemptHere(job_id=job_id, attempt=attempt) for job_id, attempt in sorted(here & self.fenced)],
            cluster=self.cluster,
            protocol=self.protocol,
        )
        body = answer.model_dump(mode="json")
        return web.json_response({**body, "commands": [*body["commands"], *self.raw_commands]})

    async def _hold(self, wait_s: float) -> None:
        """Until there is something to say, or the time is over."""
        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(lambda: bool(self._commands))
        except TimeoutError:
            return

    async def _give_content(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.asked_content.append(name)
        await self.gives_content.wait()
        if name not in self.content:
            return web.json_response({"title": "", "status": 404, "code": "not_found", "detail": "no such"}, status=404)
        return web.Response(body=self.content[name])

    async def _say_missing(self, request: web.Request) -> web.Response:
        names = (await request.json())["names"]
        return web.json_response({"names": [name for name in names if name not in self.content]})

    async def _take_chunk(self, request: web.Request) -> web.Response:
        self.offered_content.append(request.match_info["name"])
        body = await request.read()
        await self.gives_content.wait()
        content = unpack_chunk(body, request.query["encoding"])
        check_chunk(request.match_info["name"], content)
        self.content[request.match_info["name"]] = content
        return web.Response(status=204)

    async def _take_tree(self, request: web.Request) -> web.Response:
        tree = ContentTree.model_validate_json(await request.read())
        self.content[tree.name] = tree.encoded()
        return web.json_response({"name": tree.name})

    async def _take_outputs(self, request: web.Request) -> web.Response:
        self.outputs.append(OutputsCollected.model_validate_json(await request.read()))
        return web.Response(status=204)

    async def _take_log(self, request: web.Request) -> web.Response:
        key = (int(request.query["job_id"]), int(request.query["attempt"]), int(request.query["rank"]))
        self.uploads.append(dict(request.query))
        content = await request.read()
        assert len(content) <= MAX_LOG_CALL_BYTES
        offset, have = int(request.query["offset"]), len(self.logs[key])
        if offset <= have:
            self.logs[key] += content[have - offset :]
        return web.json_response({"next": len(self.logs[key])})


def _problem(code: str, detail: str, cluster: ClusterIdentity | None = None) -> web.Response:
    named = {} if cluster is None else {"cluster": cluster.model_dump()}
    problem = {"title": "Conflict", "status": 409, "code": code, "detail": detail, "fix": "mend it", **named}
    return web.json_response(problem, status=409)
