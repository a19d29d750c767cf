"""A small server that speaks the bodies of `walras.resources`, for the client and the commands to talk to.

It keeps jobs in a list and does as its script says: refuse, break off, answer late. It runs in a thread of its own,
because the commands are synchronous and open their own event loop.
"""

import asyncio
import json
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from walras.cli.main import app
from walras.spec.sweeps import parse_array
from walras.storage.content import ContentTree, check_chunk, unpack_chunk

TOKEN = "walras_user_secret"
AT = "2026-11-05T18:00:00Z"


def job_body(job_id: int, **fields: Any) -> dict[str, Any]:
    """A `JobView` as the server would send it."""
    body = {
        "id": job_id, "name": f"job-{job_id}", "project": "vision", "user": "ada", "kind": "cnn", "state": "PENDING",
        "reason": "WAIT:CAPACITY", "detail": "needs 1 x a100, 0 free", "priority": 50, "accelerators": 1,
        "submitted_at": AT,
    }  # fmt: skip
    return body | fields


def pool_body(**fields: Any) -> dict[str, Any]:
    """A `PoolView` as the server would send it."""
    body = {
        "pool_id": "sx2/spot/default", "shape": "sx2", "accelerator": "s", "accelerators": 2, "market": "spot",
        "zone": "default", "usd_per_h": 1.5, "quota": 4, "drained": False, "machines": 2, "coming": 1, "jobs": [3, 8],
    }  # fmt: skip
    return body | fields


class FakeServer:
    """State and script of the fake; `requests` is what reached it."""

    def __init__(self) -> None:
        self.url = ""
        self.jobs: dict[int, dict[str, Any]] = {}
        self.attempts: dict[int, list[dict[str, Any]]] = {}
        self.logs: dict[tuple[int, int], bytes] = {}
        self.keys: dict[str, int] = {}
        #: Chunks and trees that were sent, by name.
        self.content: dict[str, bytes] = {}
        self.trees: dict[str, ContentTree] = {}
        #: What is kept of jobs' results, by job: items of `JobOutputs`.
        self.outputs: dict[int, list[dict[str, Any]]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        #: Rules of the policy in force.
        self.policy_rules: dict[str, Any] = {"round_s": 12.0}
        #: Answers given before anything else, in turn: a status, or "drop" to break off after the work is done.
        self.script: list[int | str] = []
        #: Following a log breaks off after so many bytes, once for each entry.
        self.log_cuts: list[int] = []
        #: The overview; None: a server of a release without one.
        self.overview: dict[str, Any] | None = None
        #: The order of the queue, by number; None: a server of a release that cannot sort so.
        self.turn: list[int] | None = None
        #: Bytes of the overview's stream, sent as they are; b"": the stream ends. None: there is no such stream.
        self.stream: queue.SimpleQueue[bytes] | None = None
        #: Called before each answer to a request, with its number from 1.
        self.on_request: Callable[[int], None] = lambda number: None

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._first])
        api = "/api/v1"
        app.add_routes(
            [
                web.post(f"{api}/jobs", self._submit),
                web.post(f"{api}/jobs:batch", self._batch),
                web.post(f"{api}/jobs:dryrun", self._dryrun),
                web.post(f"{api}/jobs:cancel", self._cancel),
                web.get(f"{api}/jobs", self._list),
                web.get(f"{api}/jobs/{{id}}", self._job),
                web.patch(f"{api}/jobs/{{id}}", self._patch),
                web.get(f"{api}/jobs/{{id}}/attempts", self._attempts),
                web.get(f"{api}/jobs/{{id}}/explain", self._explain),
                web.get(f"{api}/jobs/{{id}}/logs", self._logs),
                web.get(f"{api}/jobs/{{id}}/logs/start", self._log_start),
                web.get(f"{api}/jobs/{{id}}/outputs", self._outputs),
                web.get(f"{api}/jobs/{{id}}/outputs/{{kind:trees|chunks}}/{{name}}", self._output),
                web.post(f"{api}/jobs/{{id}}/{{verb:cancel|hold|release}}", self._act),
                web.get(f"{api}/nodes", self._nodes),
                web.get(f"{api}/overview", self._overview),
                web.get(f"{api}/overview/events", self._overview_stream),
                web.post(f"{api}/nodes/{{node}}/{{verb:drain|resume}}", self._node_act),
                web.get(f"{api}/pools", self._pools),
                web.post(f"{api}/pools", self._pool),
                web.patch(f"{api}/pools/{{pool}}", self._pool),
                web.delete(f"{api}/pools/{{pool}}", self._pool_gone),
                web.get(f"{api}/usage/holders", self._holders),
                web.post(f"{api}/content/prune", self._content_prune),
                web.get(f"{api}/prices", self._prices),
                web.get(f"{api}/policy", self._policy),
                web.put(f"{api}/policy", self._policy),
                web.get(f"{api}/policy/versions", self._policy_versions),
                web.post(f"{api}/tokens", self._token),
                web.get(f"{api}/whoami", self._whoami),
                web.post("/content/v1/missing", self._missing),
                web.put("/content/v1/chunks/{name}", self._chunk),
                web.post("/content/v1/trees", self._tree),
                web.get(f"{api}/audit", self._audit),
                web.get("/readyz", self._ready),
            ]
        )
        return app

    @web.middleware
    async def _first(
        self, request: web.Request, handler: Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]
    ) -> web.StreamResponse:
        body = None if request.path.startswith("/content/v1/chunks/") else await request.text()
        self.requests.append((request.method, request.path_qs, json.loads(body) if body else None))
        self.on_request(len(self.requests))
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthorised", "the token is not valid")
        step = self.script.pop(0) if self.script else 200
        if isinstance(step, int) and step != 200:
            return problem(step, "busy", "not now")
        answer = await handler(request)
        if step == "drop" and request.transport is not None:
            request.transport.abort()
        return answer

    async def _whoami(self, request: web.Request) -> web.Response:
        return web.json_response({"user": "ada", "role": "user", "projects": ["vision"]})

    async def _overview(self, request: web.Request) -> web.Response:
        return problem(404, "no_such_endpoint", "none") if self.overview is None else web.json_response(self.overview)

    async def _overview_stream(self, request: web.Request) -> web.StreamResponse:
        if self.stream is None:
            return problem(404, "no_such_endpoint", "none")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            try:
                piece = self.stream.get_nowait()
            except queue.Empty:
                await asyncio.sleep(0.01)
                continue
            if not piece:
                break
            await response.write(piece)
        return response

    async def _holders(self, request: web.Request) -> web.Response:
        return web.json_response([{"what": "bytes of content", "holder": "user ada", "held": 7_000, "share": 9_000}])

    async def _content_prune(self, request: web.Request) -> web.Response:
        told = {"size_bytes": 9_000_000, "holders": {"user bob": 1_000_000, "user ada": 8_000_000}}
        if "checkpoints_older_s" in await request.json():
            told |= {"objects": 7, "unanswered": ["s3://bucket/jobs/1"]}
        return web.json_response(told)

    async def _missing(self, request: web.Request) -> web.Response:
        asked = (await request.json())["names"]
        return web.json_response({"names": [name for name in asked if name not in self.content]})

    async def _chunk(self, request: web.Request) -> web.Response:
        content = unpack_chunk(await request.read(), request.query["encoding"])
        check_chunk(request.match_info["name"], content)
        self.content[request.match_info["name"]] = content
        return web.Response(status=204)

    async def _tree(self, request: web.Request) -> web.Response:
        tree = ContentTree.model_validate_json(await request.read())
        assert set(tree.chunk_sizes()) <= set(self.content)
        self.trees[tree.name] = tree
        return web.json_response({"name": tree.name})

    async def _submit(self, request: web.Request) -> web.Response:
        spec = await request.json()
        key = request.headers["Idempotency-Key"]
        if key not in self.keys:
            if refusal := self._refusal(spec):
                return refusal
            first = self.keys[key] = len(self.jobs) + 1
            for index in parse_array(spec.get("array", "0")).indices or (0,):
                sweep = {"sweep": first, "sweep_index": index} if "array" in spec else {}
                self.add(name=spec.get("name", "job"), spec=spec, **sweep)
        return web.json_response({"id": self.keys[key], "name": spec.get("name", "job")}, status=201)

    async def _outputs(self, request: web.Request) -> web.Response:
        return web.json_response({"items": self.outputs.get(self.found(request)["id"], [])})

    async def _output(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        is_tree = request.match_info["kind"] == "trees"
        return web.Response(body=self.trees[name].encoded() if is_tree else self.content[name])

    def add(self, **fields: Any) -> int:
        job_id = len(self.jobs) + 1
        self.jobs[job_id] = job_body(job_id, **fields)
        return job_id

    async def _batch(self, request: web.Request) -> web.Response:
        items: list[dict[str, Any]] = []
        for spec in (await request.json())["jobs"]:
            if "run" in spec:
                items.append({"id": self.add(), "name": spec.get("name", "")})
            else:
                error = {"title": "bad", "status": 422, "code": "job_spec", "detail": "run is missing", "field": "run"}
                items.append({"error": error})
        return web.json_response({"items": items})

    @staticmethod
    def _refusal(spec: dict[str, Any]) -> web.Response | None:
        if spec.get("resources", {}).get("accelerators") != {"h900": 1}:
            return None
        return problem(422, "job_spec", "no pool has h900", "resources.accelerators", "choose a100 or v100")

    async def _dryrun(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(await request.json()):
            return refusal
        rows = [{"accelerator": "a100", "steps_per_s": 12.0, "free": True}, {"accelerator": "v100", "free": False}]
        return web.json_response({"kind": "cnn", "accelerators": 1, "configurations": rows, "chosen": rows[0]})

    async def _list(self, request: web.Request) -> web.Response:
        final = {"SUCCEEDED", "FAILED", "CANCELLED", "TIMEOUT"}
        found = [job for job in self.jobs.values() if "active" not in request.query or job["state"] not in final]
        if wanted := request.query.get("state"):
            found = [job for job in found if job["state"] in wanted.split(",")]
        if user := request.query.get("user"):
            found = [job for job in found if job["user"] == user]
        if sweep := request.query.get("sweep"):
            found = [job for job in reversed(found) if job.get("sweep") == int(sweep)]
        if request.query.get("sort") == "queue":
            if self.turn is None:
                return problem(400, "invalid", "jobs cannot be sorted by 'queue'", "sort")
            found = [self.jobs[job_id] for job_id in self.turn if self.jobs[job_id] in found]
        start, limit = int(request.query.get("cursor", 0)), min(int(request.query["limit"]), 3)
        more = {"next": str(start + limit)} if len(found) > start + limit else {}
        return web.json_response({"items": found[start : start + limit], **more})

    def found(self, request: web.Request) -> dict[str, Any]:
        job = self.jobs.get(int(request.match_info["id"]))
        if job is None:
            body = problem(404, "not_found", f"no job {request.match_info['id']}")
            raise web.HTTPNotFound(text=body.text, content_type=body.content_type)
        return job

    async def _job(self, request: web.Request) -> web.Response:
        job = self.found(request)
        return web.json_response({"spec": {}} | job | {"attempt_list": self.attempts.get(job["id"], [])})

    async def _patch(self, request: web.Request) -> web.Response:
        self.found(request).update(await request.json())
        return await self._job(request)

    async def _attempts(self, request: web.Request) -> web.Response:
        return web.json_response(self.attempts.get(self.found(request)["id"], []))

    async def _explain(self, request: web.Request) -> web.Response:
        job = self.found(request)
        figures = "worth 2 here, price 3 (USD/h)"
        reasons = [{"reason": job["reason"], "detail": job["detail"], "fix": "accept v100 too", "figures": figures}]
        body = {"job_id": job["id"], "state": job["state"], "reasons": reasons, "target": job.get("target")}
        return web.json_response(body | {"speeds": job.get("speeds", [])})

    async def _act(self, request: web.Request) -> web.Response:
        job, verb = self.found(request), request.match_info["verb"]
        if verb == "hold" and job["state"] == "RUNNING":
            return problem(409, "conflict", "job runs; only a waiting job can be held", fix="cancel it")
        job["state"] = {"cancel": "CANCELLED", "hold": "HELD", "release": "PENDING"}[verb]
        return await self._job(request)

    async def _cancel(self, request: web.Request) -> web.Response:
        items: list[dict[str, Any]] = []
        for job_id in (await request.json())["jobs"]:
            if job_id in self.jobs:
                self.jobs[job_id]["state"] = "CANCELLED"
                items.append({"id": job_id, "state": "CANCELLED"})
            else:
                error = {"title": "none", "status": 404, "code": "not_found", "detail": f"no job {job_id}"}
                items.append({"id": job_id, "error": error})
        return web.json_response({"items": items})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        job_id, query = self.found(request)["id"], request.query
        newest = max((attempt["attempt"] for attempt in self.attempts.get(job_id, [])), default=0)
        content = self.logs.get((job_id, int(query.get("attempt", newest))), b"")
        offset = int(query["offset"])
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if "follow" not in query:
            answer.headers["X-Walras-Next-Offset"] = str(len(content))
        await answer.prepare(request)
        cut = self.log_cuts.pop(0) if "follow" in query and self.log_cuts else None
        await answer.write(content[offset : offset + cut if cut is not None else None])
        if cut is not None and request.transport is not None:
            await asyncio.sleep(0)
            request.transport.abort()
        return answer

    async def _log_start(self, request: web.Request) -> web.Response:
        return web.json_response({"offset": 7 if "since_s" in request.query else 0})

    @staticmethod
    def _node() -> dict[str, Any]:
        return {
            "node_id": "n1", "pool": "a100x2/owned/default", "accelerator": "a100", "emulated": True, "market": "owned",
            "zone": "default", "state": "up", "accelerators": 2, "free": 1, "jobs": [1, 2], "last_heard_s": 1.5,
            "devices": [{"device": 0, "utilization": 97, "power_w": 250.0}, {"device": 1, "utilization": 3}],
        }  # fmt: skip

    async def _nodes(self, request: web.Request) -> web.Response:
        return web.json_response([self._node()])

    async def _node_act(self, request: web.Request) -> web.Response:
        return web.json_response(self._node())

    async def _pools(self, request: web.Request) -> web.Response:
        return web.json_response([pool_body()])

    async def _pool(self, request: web.Request) -> web.Response:
        return web.json_response(pool_body(**{k: v for k, v in (await request.json()).items() if k in pool_body()}))

    async def _pool_gone(self, request: web.Request) -> web.Response:
        return web.json_response({"pool_id": request.match_info["pool"], "stranded_jobs": [7, 9]})

    async def _prices(self, request: web.Request) -> web.Response:
        price = {
            "pool": "a100x2/owned/default", "accelerator": "a100", "market": "owned", "capacity": 2, "free": 0,
            "price": 0.125, "unit": "share per accelerator", "market_usd_per_h": 0.9,
        }  # fmt: skip
        whole = request.query.get("whole") == "true"
        certificate = {
            "status": "optimal", "objective": 0.5, "bound": 0.5, "gap": 0.0, "path": "cvxpy", "solved_at": AT,
            "integral_bound": 0.375 if whole else None,
        }  # fmt: skip
        rights = [{"name": "vision", "limit": 0.25, "guarantee": 0}, {"name": "speech", "limit": 0, "guarantee": 0.125}]
        return web.json_response({"items": [price], "certificate": certificate, "entities": rights})

    async def _policy(self, request: web.Request) -> web.Response:
        asked = await request.json() if request.method == "PUT" else {"policy": {"name": "max_min_fairness"}}
        name = asked["policy"]["name"]
        if name == "max_mim":
            return problem(422, "unknown_policy", "no policy max_mim", "policy.name", "did you mean max_min_fairness?")
        view = {"version": 2, "name": name, "parameters": {"aware": True}}
        view["rules"] = self.policy_rules | asked.get("rules", {})
        return web.json_response(view | {"changed_at": AT, "changed_by": "root"})

    async def _policy_versions(self, request: web.Request) -> web.Response:
        said = [
            ("max_min_fairness", {"aware": True}, ""), ("max_min_fairness", {"aware": True}, ""), ("fifo", {}, "calm"),
        ]  # fmt: skip
        return web.json_response([
            {"version": 9 - number, "name": name, "parameters": parameters, "rules": {"round_s": 12.0},
             "changed_at": AT, "changed_by": "root", "reason": reason}
            for number, (name, parameters, reason) in enumerate(said)
        ])  # fmt: skip

    async def _audit(self, request: web.Request) -> web.Response:
        row = {"at": AT, "user": "ada", "role": "admin", "address": "10.0.0.7", "project": "vision", "subject": "job 1"}
        row["action"] = "PATCH /api/v1/jobs/{job_id}"
        return web.json_response([{**row, "before": {"priority": 50, "reason": None}, "after": {"priority": 80}}])

    async def _token(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(
            {"token": "walras_new_secret", "prefix": "walras_new", "user": body["user"], "role": body["role"]},
            status=201,
        )

    async def _ready(self, request: web.Request) -> web.Response:
        return web.json_response({"ok": True, "checks": {"database": "ok"}, "version": "0.1.0", "new_field": 1})


def problem(status: int, code: str, detail: str, field: str = "", fix: str = "") -> web.Response:
    body = {"title": "refused", "status": status, "code": code, "detail": detail, "field": field, "fix": fix}
    return web.json_response(body, status=status, content_type="application/problem+json")


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A running fake server; `fake.url` is its address."""
    server, ready, loop = FakeServer(), threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(server.app(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield server
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def answers_from(monkeypatch: pytest.MonkeyPatch, client: Any, *modules: Any) -> None:
    """Makes the commands of these modules talk to this client."""
    for module in modules:
        monkeypatch.setattr(module, "with_client", lambda work: asyncio.run(work(client)))


@pytest.fixture
def run(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `walras ARGS` against the fake server, in an empty folder with a home of its own."""
    monkeypatch.chdir(tmp_path)
    token = tmp_path / "token"
    token.write_text("walras_user_secret\n")
    for name in ("WALRAS_TOKEN", "WALRAS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    settings = {"WALRAS_SERVER": fake.url, "WALRAS_TOKEN_FILE": str(token), "HOME": str(tmp_path)}

    def run_it(*args: str, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Any:
        return CliRunner().invoke(app, list(args), input=stdin, env=settings | (env or {}))

    return run_it
