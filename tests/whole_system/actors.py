"""What people, machines and administrators do to a running cluster, each feature by an actor, drawn two at a time.

An actor does its part some times while faults may happen, and checks what it is promised; whatever actors do, every
promise of the `Observer` holds for everybody. What an actor is told with status 500 or more, or is not among the
answers that it may get, breaks the promise `actor`. `python -m tests.whole_system --pairs` plays pairs of them.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import TYPE_CHECKING, Any

import aiohttp

from scheduler.live.auth.access_control import PREFIX_LENGTH
from tests.whole_system.faults import act
from tests.whole_system.plans import CALLS_MOST, FAULTS_UNTIL_S, JOBS_MOST, Fault, Plan, draw_plan
from tests.whole_system.played_ranks import Script

if TYPE_CHECKING:
    from tests.whole_system.world import World

#: What any call may be answered: done, refused, or "not now".
_OK = (200, 201, 204)
_REFUSED = (400, 403, 404, 409, 413, 429)
#: One accelerator of any machine.
_ONE = {"accelerators": {"a": 1}}
#: The room that content has beyond what is kept free, once somebody fills it, and the size of a piece.
_ROOM, _PIECE = 4 << 20, 64 << 10


@dataclass
class Actor:
    """One actor in one world."""

    name: str
    world: "World"
    chance: Random
    turn: int = 0

    @property
    def is_over(self) -> bool:
        return self.world.is_healed

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = "",
        may: tuple[int, ...] = _OK + _REFUSED,
        key: str = "",
    ) -> tuple[int, Any]:
        """The answer of a call; (0, None) without one. `may`: the statuses that do not break the promise."""
        whole = path if path.startswith("/") else f"/api/v1/{path}"
        try:
            status, answer = await self.world.send(method, whole, body, self.name, token=token, key=key)
        except (aiohttp.ClientError, TimeoutError):
            return 0, None
        is_short = status in (401, 503) and not self.world.is_calm  # it starts, or cannot write
        if status not in may and not is_short:
            self.fail(f"{method} {path} is answered {status}: {answer[:200]!r}")
        try:
            return status, json.loads(answer) if answer else None
        except ValueError:
            return status, answer

    def fail(self, words: str) -> None:
        self.world.observer.violate("actor", f"{self.name}: {words}")

    def job(self) -> str:
        """The path of a job that was acknowledged; of one that there never was before the first."""
        return f"jobs/{self.chance.choice(sorted(self.world.observer.acknowledged.values()) or [10**6])}"

    def machine(self) -> str:
        return self.chance.choice(sorted(self.world.machines))

    async def submit(self, **spec: Any) -> int | None:
        """One more job of this actor, with a script of a few seconds; its number, None before it is acknowledged."""
        self.turn += 1
        name = f"{self.name}-{self.turn}"
        self.world.observer.scripts[name] = Script(name, float(self.chance.choice((1, 3, 8))), 3.0)
        told = {"name": name, "run": ["sim", name], "resources": _ONE, "grace_period": "4s", **spec}
        status, answer = await self.ask("POST", "jobs", told, key=f"key-{name}")  # the network repeats calls
        if status not in _OK:
            return None
        self.world.observer.acknowledge(name, int(answer["id"]))
        return int(answer["id"])

    async def fault(self, kind: str, target: str = "", amount: float = 0.0) -> None:
        await act(self.world, Fault(0.0, kind, target, amount))

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# ------------------------------------------------------------------------------------------ jobs


async def _hold(me: Actor) -> None:
    """A job is held for a while, and goes on."""
    job = me.job()
    me.world.observer.asked_to_hold.add(int(job.partition("/")[2]))
    await me.ask("POST", f"{job}/hold")
    await me.wait(5.0)
    await me.ask("POST", f"{job}/release")


async def _redirect(me: Actor) -> None:
    """A held job is sent to other machines."""
    job = me.job()
    me.world.observer.asked_to_hold.add(int(job.partition("/")[2]))
    await me.ask("POST", f"{job}/hold")
    await me.ask("POST", f"{job}/redirect", {"resources": {"accelerators": "any:1"}})
    await me.ask("POST", f"{job}/release")


async def _cancel(me: Actor) -> None:
    """A job that was cancelled ends so, if it had not ended."""
    await me.ask("POST", f"{me.job()}/cancel")


async def _cancel_many(me: Actor) -> None:
    ids = sorted(me.world.observer.acknowledged.values())
    if ids:
        status, answer = await me.ask("POST", "jobs:cancel", {"jobs": [*ids[:2], 10**6]})
        if status == 200 and [each["id"] for each in answer["items"]] != [*ids[:2], 10**6]:
            me.fail(f"the answer is not in order: {answer}")


async def _change(me: Actor) -> None:
    """Priority, budget and deadline of jobs change while they run."""
    changes = ({"priority": me.chance.randrange(100)}, {"budget_usd": 1e6}, {"deadline": "+9h"}, {"deadline": "none"})
    await me.ask("PATCH", me.job(), me.chance.choice(changes))


async def _move(me: Actor) -> None:
    """A waiting job goes to another project."""
    await me.ask("POST", "projects", {"name": "vision"})
    await me.ask("PATCH", me.job(), {"project": me.chance.choice(("vision", "default"))})


async def _repeat(me: Actor) -> None:
    """A submission that is sent twice under one key is one job."""
    me.turn += 1
    name = f"{me.name}-{me.turn}"
    me.world.observer.scripts[name] = Script(name, 2.0)
    spec, found = {"name": name, "run": ["sim", name], "envs": {}, "resources": _ONE}, set[int]()
    for _ in range(2):
        status, answer = await me.world.insist("POST", "jobs", spec, key=f"key-{name}")
        if status not in _OK:
            me.fail(f"a submission is answered {status}: {answer}")
            return
        found.add(int(answer["id"]))
    if me.world.observer.restored_at < 0 and len(found) > 1:
        me.fail(f"one key made jobs {sorted(found)}")
    me.world.observer.acknowledge(name, max(found))


async def _batch(me: Actor) -> None:
    """Each of a batch is accepted or refused on its own."""
    name = f"{me.name}-{me.turn}-b"
    me.turn += 1
    me.world.observer.scripts[name] = Script(name, 2.0)
    well = {"run": ["sim", name], "resources": _ONE, "envs": {}}
    status, answer = await me.ask("POST", "jobs:batch", {"jobs": [well, {"run": 7}, well]})
    if status in _OK and [each["error"] is None for each in answer["items"]] != [True, False, True]:
        me.fail(f"a batch is answered {answer}")


async def _depend(me: Actor) -> None:
    """A job that waits for another starts after that one's end."""
    observer = me.world.observer
    # Who kills the supervisor again and again is held in the end, and so waits what waits for it.
    parents = (job_id for name, job_id in observer.acknowledged.items() if not observer.scripts[name].kills)
    if known := sorted(parents):
        parent = me.chance.choice(known)
        child = await me.submit(depends_on=[parent])
        if child is not None:
            observer.parents[child] = parent


async def _secrets(me: Actor) -> None:
    """A job with a secret has it whenever its ranks start."""
    value = f"hidden {me.turn}"
    # Some start only after what befalls the server meanwhile.
    later = {"not_before": "+25s"} if me.chance.random() < 0.5 else {}
    job_id = await me.submit(secrets={"TOKEN": {"value": value}}, **later)
    if job_id is not None:
        me.world.observer.secrets[job_id] = value


async def _sweep(me: Actor) -> None:
    name = f"{me.name}-{me.turn}-s"
    me.turn += 1
    me.world.observer.scripts[name] = Script(name, 1.0)
    await me.ask("POST", "jobs", {"run": ["sim", name], "resources": _ONE, "envs": {}, "array": "1-3%2"})


async def _unlimited(me: Actor) -> None:
    """Limits of a job: its run time, its queue time."""
    await me.submit(limits={"max_runtime": "40m", "max_queue_time": "2h"})


async def _dry_run(me: Actor) -> None:
    await me.ask("POST", "jobs:dryrun", {"run": ["sim", "x"], "envs": {}, "resources": _ONE})


async def _hostile(me: Actor) -> None:
    """Bodies that nobody means: refused, and nobody else notices."""
    bodies = (b"[" * 5000, b'{"run":' + b'{"a":' * 2000, b'{"run": ["x"], "run": 7}', b"\xff\xfe", b'{"jobs": [{},{}]}')
    for path in ("jobs", "jobs:batch", "reservations", "users"):
        await me.ask("POST", path, me.chance.choice(bodies), may=(*_REFUSED, 415, 422, 201, 200))


# ------------------------------------------------------------------------------------------ looks


_VIEWS = (
    "jobs", "jobs?state=RUNNING", "nodes", "pools", "share", "money", "money?by=user", "usage", "usage/history",
    "worth", "prices", "budgets", "budgets/credits", "audit", "users", "projects", "roles", "tokens", "overview",
    "policy", "policy/versions", "reservations?all=true", "facts", "whoami", "usage/holders", "notify",
    "openapi.json", "healthz", "readyz",
)  # fmt: skip


async def _look(me: Actor) -> None:
    """Every view is there at every instant."""
    for path in me.chance.sample(_VIEWS, 6):
        await me.ask("GET", path, may=(200, 429))


async def _explain(me: Actor) -> None:
    for path in ("", "/attempts", "/explain"):
        await me.ask("GET", f"{me.job()}{path}", may=(200, 404, 429))


async def _logs(me: Actor) -> None:
    await me.ask("GET", f"{me.job()}/logs?tail=5", may=(200, 404, 429))


async def _metrics(me: Actor) -> None:
    await me.ask("GET", "/metrics", may=(200, 429))


# ------------------------------------------------------------------------------------------ people


async def _token(me: Actor, role: str, project: str = "default", user: str = "") -> str:
    """A new token, of a user who is called as the actor unless named; empty without an answer."""
    _, made = await me.ask("POST", "tokens", {"user": user or me.name, "role": role, "projects": [project]})
    return str(made["token"]) if isinstance(made, dict) and "token" in made else ""


async def _revoke(me: Actor) -> None:
    """A token opens nothing after it was revoked."""
    token = await _token(me, "user")
    if token and (await me.ask("GET", "jobs", token=token))[0] == 200:
        status, _ = await me.ask("DELETE", f"tokens/{token[:PREFIX_LENGTH]}", may=(200, 429))
        if status in _OK and (await me.ask("GET", "jobs", token=token, may=(200, 401)))[0] == 200:
            me.fail("a revoked token is good")


async def _stranger(me: Actor) -> None:
    """Who belongs to another project sees no job of this one, and changes none."""
    token = await _token(me, "user", "elsewhere")
    if token and await _send(me, "", 7) in _OK:
        name = hashlib.sha256(_piece(7)).hexdigest()
        status, answer = await me.ask("POST", "/content/v1/missing", {"names": [name]}, token=token)
        if status in _OK and answer["names"] != [name]:
            me.fail("content of another project is told of")
    if token:
        job = me.job()
        for method, path in (
            ("GET", ""),
            ("GET", "/logs"),
            ("GET", "/explain"),
            ("POST", "/cancel"),
            ("POST", "/hold"),
        ):
            await me.ask(method, f"{job}{path}", token=token, may=(401, 403, 404, 429))


async def _viewer(me: Actor) -> None:
    """A viewer looks and changes nothing."""
    token = await _token(me, "viewer")
    if token:
        await me.ask("POST", "jobs", {"run": "true"}, token=token, may=(401, 403, 429))
        await me.ask("POST", f"nodes/{me.machine()}/drain", {}, token=token, may=(401, 403, 429))
        await me.ask("GET", "jobs", token=token, may=(200, 401, 429))


async def _user(me: Actor) -> None:
    """A user is added, changed and removed."""
    await me.ask("POST", "users", {"name": me.name})
    await me.ask("PATCH", f"users/{me.name}", {"projects": ["default", "vision"]})
    await me.ask("DELETE", f"users/{me.name}")


async def _project(me: Actor) -> None:
    """Caps and shares of a project change while its jobs run."""
    await me.ask("POST", "projects", {"name": "speech"})
    await me.ask("PATCH", "projects/default", {"share": {"weight": me.chance.choice((1.0, 3.0))}})
    await me.ask("DELETE", "projects/speech")


async def _facts(me: Actor) -> None:
    await me.ask("POST", "facts", {"kind": "cnn", "facts": {"gradient_bytes": me.chance.randrange(1, 10**9)}})


# ------------------------------------------------------------------------------------------ machines and money


async def _drain(me: Actor, **how: Any) -> None:
    name = me.machine()
    me.world.drained.add(name)
    await me.ask("POST", f"nodes/{name}/drain", how)
    await me.wait(6.0)
    me.world.observer.resume(name)
    await me.ask("POST", f"nodes/{name}/resume")


async def _drain_now(me: Actor) -> None:
    await _drain(me, now=True)


async def _forget(me: Actor) -> None:
    """A machine that lives is not forgotten."""
    status, answer = await me.ask("DELETE", f"nodes/{me.machine()}")
    if status in _OK and me.world.is_calm:
        me.fail(f"a machine that lives was forgotten: {answer}")


async def _reserve(me: Actor) -> None:
    """Accelerators are reserved for a project, and given back; where the answer is lost, once the time is over."""
    asked = {"accelerator": "a", "accelerators": 1, "project": "vision", "ends": "+10m"}
    status, made = await me.ask("POST", "reservations", asked)
    if status in _OK:
        await me.wait(8.0)
        await me.world.insist("DELETE", f"reservations/{made['id']}")


async def _pools(me: Actor) -> None:
    """A pool without machines is added and taken out."""
    pool = {"shape": f"x{me.turn}", "accelerator": "x", "accelerators": 1, "cpus": 4, "memory": "4GiB"}
    me.turn += 1
    status, made = await me.ask("POST", "pools", pool)
    if status in _OK:
        await me.ask("DELETE", f"pools/{made['pool_id']}")


async def _policy(me: Actor) -> None:
    for body in (me.world.plan.other_policy, me.world.plan.policy):
        await me.ask("PUT", "policy?dry_run=true", body)
        await me.ask("PUT", "policy", body)
        await me.wait(3.0)


async def _credits(me: Actor) -> None:
    await me.ask("POST", "budgets/credits", {"project": "default", "usd": 5.0, "reason": "more"})


# ------------------------------------------------------------------------------------------ content, backups, the clock


def _piece(number: int) -> bytes:
    return number.to_bytes(8, "big") * (_PIECE // 8)


async def _send(me: Actor, token: str, number: int) -> int:
    piece = _piece(number)
    path = f"/content/v1/chunks/{hashlib.sha256(piece).hexdigest()}"
    status, _ = await me.ask("PUT", path, piece, token=token)
    if 0 < me.world.content_room < me.world.content_bytes():
        me.fail("more content is held than there is room for")
    return status


async def _fill(me: Actor) -> None:
    """One user fills the content store: another still finds room, and so does an administrator."""
    world = me.world
    world.content_room = world.content_room or _ROOM
    eve, bob = await _token(me, "user"), await _token(me, "user", user=f"bob-{me.name}")
    first = 1000 * me.turn
    me.turn += 1
    for number in range(first, first + 2 * _ROOM // _PIECE):
        status = await _send(me, eve, number) if eve else 0
        if status not in _OK:
            break
    if bob and eve and status == 413:
        for who, token in (("another user", bob), ("an administrator", "")):
            if await _send(me, token, first + 900 + len(who)) == 413 and world.is_calm:
                me.fail(f"{who} is refused content, for one user has filled the store")


async def _crowd(me: Actor) -> None:
    """One user asks for all that there is, of calls and of jobs: others are answered."""
    eve, bob = await _token(me, "user"), await _token(me, "user", user=f"bob-{me.name}")
    many = {"run": ["sim", "x"], "envs": {}, "resources": _ONE, "array": f"1-{JOBS_MOST // 2 + 1}"}
    if not (eve and bob):
        return
    status, answer = await me.ask("POST", "jobs", many, token=eve)
    if status in _OK:
        me.fail(f"one user has {JOBS_MOST // 2 + 1} of {JOBS_MOST} jobs: {answer}")
    who = [*[eve] * (2 * CALLS_MOST), bob, "", bob]
    calls = [asyncio.create_task(_send(me, token, 8)) for token in who]
    told = [await each for each in calls]
    if me.world.is_calm and 429 in told[2 * CALLS_MOST :]:
        me.fail(f"others are refused, for one user has {2 * CALLS_MOST} calls under way: {told}")


async def _prune(me: Actor) -> None:
    await me.fault("prune", amount=me.chance.choice((0.0, 5.0, 20.0)))
    await me.ask("POST", "content/prune", {"older_s": 0.0})


async def _backup(me: Actor) -> None:
    """A backup on another machine is the same cluster: nothing else of the data folder is needed."""
    if me.turn == 0:
        me.turn = 1
        await me.fault("move", amount=me.chance.choice((1.0, 8.0)))


def _fault(kind: str, *amounts: float, at_machine: bool = False) -> Callable[[Actor], Awaitable[None]]:
    async def do(me: Actor) -> None:
        await me.fault(kind, me.machine() if at_machine else "", me.chance.choice(amounts or (0.0,)))

    return do


#: By name: what it does, how often, and the seconds between.
ACTORS: dict[str, Callable[[Actor], Awaitable[None]]] = {
    "hold": _hold, "redirect": _redirect, "cancel": _cancel, "cancel_many": _cancel_many, "change": _change,
    "move": _move, "repeat": _repeat, "batch": _batch, "depend": _depend, "secrets": _secrets, "sweep": _sweep,
    "limits": _unlimited, "dry_run": _dry_run, "hostile": _hostile, "look": _look, "explain": _explain, "logs": _logs,
    "metrics": _metrics, "revoke": _revoke, "stranger": _stranger, "viewer": _viewer, "user": _user,
    "project": _project, "facts": _facts, "drain": _drain, "drain_now": _drain_now, "forget": _forget,
    "reserve": _reserve, "pools": _pools, "policy": _policy, "credits": _credits, "fill": _fill, "prune": _prune,
    "backup": _backup, "crowd": _crowd, "standby": _fault("hang", 4.0, 14.0),
    "server_dies": _fault("kill_server"), "agent_dies": _fault("kill_agent", at_machine=True),
    "reboot": _fault("reboot", at_machine=True), "cut_off": _fault("cut_off", 8.0, 15.0, at_machine=True),
    "weather": _fault("weather", 10.0), "wall": _fault("wall", 3600.0, -3600.0, 60.0),
    "rank_dies": _fault("kill_rank", at_machine=True), "twin": _fault("twin", at_machine=True),
    "rogue": _fault("rogue"), "gang_breaks": _fault("break_gang", at_machine=True),
}  # fmt: skip
#: Actors after which a call may fail for a moment.
_DISTURB = {"backup", "standby", "server_dies", "agent_dies", "reboot", "cut_off", "weather", "gang_breaks", "twin"}


def disturbs(plan: Plan) -> bool:
    """Whether an actor keeps calls from their answers, or machines from the server."""
    return not _DISTURB.isdisjoint(plan.actors)


async def play(world: "World", name: str, number: int) -> None:
    """An actor acts until everything is healed."""
    chance = Random(f"actor {world.plan.seed} {number} {name}")
    me = Actor(f"{name}{number}", world, chance)
    await asyncio.sleep(chance.uniform(4.0, 15.0))
    for _ in range(5):
        if me.is_over:
            return
        world.observer.tell(f"-- actor {me.name}")
        await ACTORS[name](me)
        await asyncio.sleep(chance.uniform(3.0, FAULTS_UNTIL_S / 5))


#: Every pair of actors, in an order that seeds in a row go through.
PAIRS = Random("pairs").sample(list(combinations(ACTORS, 2)), len(ACTORS) * (len(ACTORS) - 1) // 2)


#: Actors who find what no other does are drawn more often.
_OFTEN = ("backup", "fill", "crowd", "secrets", "depend", "revoke", "stranger")


def draw_actors(chance: Random) -> tuple[str, ...]:
    """One to three actors for a run with faults."""
    return tuple(dict.fromkeys(chance.choices((*ACTORS, *_OFTEN, *_OFTEN), k=chance.choice((1, 2, 3)))))


def draw_pair(seed: int) -> Plan:
    """A few jobs on three machines without faults, and the seed's pair of actors."""
    plan = draw_plan(seed, jobs=8, is_calm=True)
    plan.actors = PAIRS[seed % len(PAIRS)]
    return plan
