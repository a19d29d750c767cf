"""What happens in one run, drawn from its seed: jobs, machines, and faults with their instants.

A `Fault` is a value; `World.act` carries it out. Shrinking drops faults by their position and runs the same seed again.
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.whole_system.network import Weather
from tests.whole_system.played_ranks import Script

LEASE_S = 20.0
#: Machines with nothing to tell call so often: rarer than a live server asks them to, as a lease has room for six.
HEARTBEAT_S = 3.0
#: Requests that a server works on at once, and jobs that have not ended: few, so that holders meet their shares.
CALLS_MOST, JOBS_MOST = 24, 400
#: Faults happen until this instant (virtual seconds after the start), then everything is healed.
FAULTS_UNTIL_S = 70.0
#: After healing, everything ends within this.
LIVENESS_S = 1200.0
#: After all jobs have ended, every machine is up within this.
BACK_S = 180.0

NONSENSE = (
    b'{"type":"progress","steps":5,"values":{"loss":NaN}}',
    b'{"type":"progress","steps":Infinity}',
    b'{"type":"progress"}',
    b'{"type":"progress","steps":"many"}',
    b'{"type":"progress","steps":' + b"9" * 400 + b"}",
    b'{"type":"progress","steps":1e400}',
    b"[" * 30_000,
    b'{"type":"commit","path":7,"step":null,"digest":{},"took_s":"x"}',
    b'{"type":"note","text":{"a":[]}}',
    b'{"type":"progress","steps":3,"steps_per_s":-1,"samples":-5,"facts":{"params":NaN}}',
    b"\xff\xfe\x00",
    b'{"type":1e9}',
)


@dataclass(frozen=True)
class Fault:
    """Something that happens at an instant."""

    at: float
    kind: str
    target: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:.1f} {self.kind} {self.target} {self.amount:g}".strip()


_STORM = Weather(lost=0.1, answer_lost=0.15, cut=0.15, twice=0.15, late=0.2)


@dataclass
class Plan:
    """One run."""

    seed: int
    machines: dict[str, int] = field(default_factory=dict)
    #: Submitted at these instants.
    jobs: list[tuple[float, Script, dict[str, Any]]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: In force from the start, and what a fault changes it to.
    policy: dict[str, Any] = field(default_factory=dict)
    other_policy: dict[str, Any] = field(default_factory=dict)
    #: Whether machines tell of checkpoints after the end of the attempt there.
    tells_late: bool = False
    #: Names of actors (`actors.py`).
    actors: tuple[str, ...] = ()
    #: Machines whose agents are of the release before.
    older: frozenset[str] = frozenset()
    #: Accelerators on each machine that is rented; 0: none is.
    rented: int = 0
    #: What a message takes at most beyond a millisecond, and how calls fare in bad weather.
    lag_s: float = 0.004
    storm: Weather = _STORM


def draw_plan(seed: int, machines: int = 3, jobs: int = 20, *, is_calm: bool = False) -> Plan:
    """`is_calm`: nothing befalls it."""
    chance = Random(f"plan {seed}")
    plan = Plan(seed)
    for number in range(machines):
        plan.machines[f"m{number}"] = chance.choice((1, 2, 2, 4))
    gangs = Random(f"gangs {seed}").choice((0.1, 0.1, 0.4))
    for number in range(jobs):
        plan.jobs.append(_job(chance, number, list(plan.machines.values()), gangs))
    plan.jobs.sort(key=lambda each: each[0])
    choice = Random(f"policy {seed}")
    plan.policy, plan.other_policy = _policy(choice, 10.0), _policy(choice, 20.0)
    if is_calm:
        return plan
    # Few kinds of faults in most runs, each often: what comes of two of a kind is lost among many kinds.
    if chance.random() < 0.5:
        kinds = dict.fromkeys(chance.choice(_TOGETHER), 1)
        count = chance.choice((6, 10, 16))
    else:
        kinds = dict(chance.sample(_KINDS, chance.choice((2, 4, 8, len(_KINDS), len(_KINDS)))))
        count = chance.choice((0, 2, 5, 9, 14))
    for _ in range(count):
        plan.faults.append(_fault(chance, plan, kinds))
    plan.faults.sort(key=lambda fault: fault.at)
    # What a second backup knows of what the first one forgot is not told apart here.
    restores = [fault for fault in plan.faults if fault.kind == "restore"]
    plan.faults = [fault for fault in plan.faults if fault not in restores[1:]]
    _rent(Random(f"rented {seed}"), plan)
    _aim(Random(f"aimed {seed}"), plan)
    _stop(Random(f"stops {seed}"), plan)
    _repair(Random(f"repairs {seed}"), plan)
    _prune(Random(f"prunes {seed}"), plan)
    _repeat(Random(f"commits {seed}"), plan)
    _leave(Random(f"leaves {seed}"), plan)
    _stand_by(Random(f"standby {seed}"), plan)
    _gather(Random(f"many gangs {seed}"), plan)
    _meet(Random(f"actors {seed}"), plan)
    plan.faults.sort(key=lambda fault: fault.at)
    return plan


def _gather(chance: Random, plan: Plan) -> None:
    """In every tenth run there are three machines alike, and most jobs have a part on each of two or three."""
    if chance.random() >= 0.1:
        return
    plan.machines = dict.fromkeys(plan.machines, 2)
    for number, (at, script, spec) in enumerate(plan.jobs):
        parts = chance.choice((1, 2, 2, 3))
        spec["resources"], spec["num_nodes"] = {"accelerators": {"a": parts * chance.choice((1, 2))}}, parts
        if chance.random() < 0.3:  # long enough for what a part goes on with after another has failed
            plan.jobs[number] = at, replace(script, work_s=max(script.work_s, 50.0)), spec
    kinds = {"break_gang": 2, "cut_off": 2, "kill_agent": 2, "kill_rank": 3, "weather": 1}
    plan.faults += [_fault(chance, plan, kinds) for _ in range(chance.choice((2, 5)))]
    if chance.random() < 0.5:
        plan.faults = [fault for fault in plan.faults if fault.kind != "restore"]
        plan.faults.append(Fault(chance.uniform(3.0, 20.0), "refuse_gang", "", 20.0))


def _meet(chance: Random, plan: Plan) -> None:
    """In every fifth run actors use the cluster meanwhile; in every tenth some agents are of the release before."""
    from tests.whole_system.actors import draw_actors

    if chance.random() < 0.2:
        plan.actors = draw_actors(chance)
    if "rogue" in {*plan.actors, *(fault.kind for fault in plan.faults)}:
        for _, _, spec in plan.jobs[::3]:  # such jobs may run there
            spec["resources"] = {"accelerators": "any:1"} if "num_nodes" not in spec else spec["resources"]
    if chance.random() < 0.1:
        plan.older = frozenset(chance.sample(list(plan.machines), chance.choice((1, 2))))
        for _, _, spec in plan.jobs[::4]:  # what the agents of that release cannot bring
            spec["setup"] = "true"


#: Shape of the machines that are rented.
RENTED_POOL = "r"
#: What befalls them: each with how often it is drawn, and its lengths or notices, s.
RENTED_KINDS = {
    "take": (4, (0.0,)), "take_with_notice": (4, (0.0, 2.0, 5.0, 15.0)), "rent_refused": (2, (5.0, 25.0)),
    "rent_unanswered": (3, (0.0,)), "never_boots": (3, (0.0,)), "no_lists": (2, (5.0, 25.0)),
    "revoke": (3, (0.0, 2.0, 15.0)),
    # Drawn apart from these: the next machine that is rented is taken so soon, before it has joined.
    "take_booting": (0, (0.0,)),
}  # fmt: skip


def _rent(chance: Random, plan: Plan) -> None:
    """Every fourth run rents machines, which fare in their own ways beside the others."""
    if chance.random() >= 0.25:
        return
    plan.rented = chance.choice((1, 2))
    often = [often for often, _ in RENTED_KINDS.values()]
    for kind in chance.choices(list(RENTED_KINDS), often, k=chance.choice((0, 2, 4, 8))):
        plan.faults.append(Fault(chance.uniform(0.0, FAULTS_UNTIL_S), kind, "", chance.choice(RENTED_KINDS[kind][1])))
    booting = Random(f"booting {plan.seed}")
    for _ in range(booting.choice((0, 0, 1, 2))):
        plan.faults.append(Fault(booting.uniform(0.0, 40.0), "take_booting", "", booting.choice((0.5, 1.5, 2.5))))


#: Names, with how often each is drawn: what solves programs costs several times the processor time.
_POLICIES = (
    ("fifo", 60), ("las", 8), ("priority", 8), ("srtf", 8), ("tiresias", 6), ("proportional_fairness", 1),
    ("water_filling", 2), ("finish_time_fairness", 2), ("max_min_fairness", 2), ("walras", 3),
)  # fmt: skip


def _policy(choice: Random, round_s: float) -> dict[str, Any]:
    name = choice.choices([name for name, _ in _POLICIES], [often for _, often in _POLICIES])[0]
    return {"policy": {"name": name}, "rules": {"round_s": round_s, "resolve_min_s": 5.0, "backoff_s": 2.0}}


def _job(chance: Random, number: int, machines: list[int], gangs: float) -> tuple[float, Script, dict[str, Any]]:
    """`gangs`: the share of jobs that take two machines."""
    name, draw, largest = f"j{number}", chance.random(), max(machines)
    work_s = float(chance.choice((1, 1, 2, 2, 4, 4, 8, 8, 15, 15, 25, 50)))
    saves = chance.choice((None, None, 3.0, 7.0))
    script = Script(name, work_s, saves, exit_code=1 if draw < 0.06 else 0, ignores_sigterm=chance.random() < 0.1)
    if 0.06 <= draw < 0.14:
        count = chance.choice((1, 2, 4))
        script = Script(name, work_s, saves, nonsense=tuple(chance.sample(NONSENSE, count)))
    elif 0.14 <= draw < 0.17:
        script = Script(name, 30.0, kills_supervisor_at_s=2.0)
    spec: dict[str, Any] = {"name": name, "run": ["sim", name], "envs": {}, "grace_period": "4s"}
    spec["resources"] = {"accelerators": {"a": chance.choice((1, 1, 1, min(2, largest)))}}
    alike = [count for count in set(machines) if machines.count(count) > 1]
    if alike and chance.random() < gangs:
        spec["resources"], spec["num_nodes"] = {"accelerators": {"a": 2 * min(alike)}}, 2
    spec["priority"] = chance.choice((20, 50, 50, 50, 80))
    if chance.random() < 0.25:
        spec["limits"] = {"max_runtime": "40m"}
    return chance.uniform(0.0, FAULTS_UNTIL_S * 0.8), script, spec


_KINDS = (
    ("kill_server", 5), ("kill_server_in", 6), ("down", 3), ("kill_agent", 5), ("kill_agent_in", 5),
    ("freeze_agent", 2), ("reboot", 2), ("cut_off", 4), ("weather", 5), ("kill_supervisor", 2), ("kill_rank", 2),
    ("cancel", 3), ("hold", 2),
    ("drain", 2), ("resume", 1), ("policy", 1), ("slow_disk", 2), ("notice", 1), ("rogue", 2), ("wall", 2),
    ("kill_in_commit", 12), ("kill_both", 5), ("full_disk_agent", 2), ("lose_state", 2), ("twin", 1), ("full_disk", 4),
    ("restore", 2), ("cut_long", 1), ("break_gang", 1),
)  # fmt: skip

#: Kinds that meet in one bug more often than chance brings them together.
_TOGETHER = (
    ("weather", "kill_agent", "kill_agent_in"),
    ("weather", "kill_server_in", "kill_in_commit"),
    ("kill_in_commit", "kill_server_in", "kill_server"),
    ("wall", "kill_server", "down"),
    ("freeze_agent", "cut_off", "down"),
    ("lose_state", "twin", "cut_off", "reboot"),
    ("cancel", "hold", "drain", "resume", "kill_in_commit", "kill_agent_in"),
    ("kill_agent_in", "kill_agent", "full_disk_agent", "kill_both"),
    ("restore", "kill_agent", "cut_off", "kill_server"),
    ("cut_long", "kill_server_in"),
    ("break_gang", "kill_in_commit"),
    ("full_disk", "kill_server_in", "kill_in_commit"),
)

#: Added to half of the runs: what two steps of an agent, a reboot, or late copies of calls come to, each hit often.
_AIMED = (
    ("kill_in_write",), ("kill_in_write", "kill_agent", "weather"), ("reboot", "kill_agent"),
    ("weather", "kill_agent", "kill_server"), ("slow_disk", "kill_in_write"),
    ("full_disk_agent", "kill_agent", "reboot"),
)  # fmt: skip


def _aim(chance: Random, plan: Plan) -> None:
    """Make runs unlike each other: in how long messages take, which mishaps calls meet, and where agents die."""
    if chance.random() < 0.3:
        plan.lag_s = chance.choice((0.05, 0.2, 0.8))
    if chance.random() < 0.5:
        plan.storm = Weather(**dict.fromkeys(chance.sample(_MISHAPS, chance.choice((1, 2))), 0.5))
    if chance.random() < 0.5:
        kinds = dict.fromkeys(chance.choice(_AIMED), 1)
        plan.faults += [_fault(chance, plan, kinds) for _ in range(chance.choice((3, 6, 10)))]


#: The server dies so soon after somebody has stopped what runs, s.
_DIES_AFTER_S = (0.0, 0.3, 1.0, 3.0)


def _stop(chance: Random, plan: Plan) -> None:
    """In every tenth run the server dies while jobs end that an operator has stopped, by a drain or by a hold."""
    if chance.random() >= 0.1:
        return
    for _ in range(chance.choice((2, 4, 8))):
        at, after_s = chance.uniform(5.0, FAULTS_UNTIL_S), chance.choice(_DIES_AFTER_S)
        if chance.random() < 0.5:
            fault = Fault(at, "drain_and_kill", chance.choice(list(plan.machines)), after_s)
        else:
            fault = Fault(at, "hold_and_kill", chance.choice(plan.jobs)[1].name, after_s)
        plan.faults.append(fault)


def _repair(chance: Random, plan: Plan) -> None:
    """In every tenth run the largest machine is drained, gone for longer than its lease, and back while jobs wait."""
    if chance.random() >= 0.1:
        return
    name, at = max(plan.machines, key=lambda each: plan.machines[each]), chance.uniform(3.0, 15.0)
    plan.faults.append(Fault(at, "drain_and_reboot", name, chance.choice((30.0, 36.0))))
    if chance.random() < 0.5:
        plan.faults.append(Fault(at + chance.uniform(5.0, 30.0), "lose_state", name))
    if chance.random() < 0.5:
        plan.faults.append(Fault(at + chance.uniform(5.0, 40.0), "kill_server"))


def _prune(chance: Random, plan: Plan) -> None:
    """In every fifth run somebody deletes the logs and the journal of what is older than some seconds."""
    if chance.random() >= 0.2:
        return
    for _ in range(chance.choice((1, 2, 4))):
        plan.faults.append(Fault(chance.uniform(10.0, FAULTS_UNTIL_S), "prune", "", chance.choice((0.0, 5.0, 20.0))))


def _repeat(chance: Random, plan: Plan) -> None:
    """In every fifth run jobs tell of their checkpoints again, behind newer ones, and machines after the end."""
    if chance.random() < 0.2:
        plan.tells_late = True
        plan.jobs = [(at, replace(script, repeats_commits=True), spec) for at, script, spec in plan.jobs]


def _leave(chance: Random, plan: Plan) -> None:
    """In every third run what jobs leave behind at a stop lives on: for some of the grace, or longer than a lease."""
    if chance.random() < 0.35:
        for number, (at, script, spec) in enumerate(plan.jobs):
            plan.jobs[number] = at, replace(script, leaves_s=chance.choice((None, 1.0, 3.0, 60.0))), spec


def _stand_by(chance: Random, plan: Plan) -> None:
    """In every tenth run the leader takes no turn for a while, and where that is long another server leads."""
    if chance.random() >= 0.1:
        return
    for _ in range(chance.choice((1, 2, 3))):
        plan.faults.append(Fault(chance.uniform(5.0, 50.0), "hang", "", chance.choice((4.0, 9.0, 14.0, 25.0))))


_MISHAPS = ("lost", "answer_lost", "cut", "twice", "late")


def _fault(chance: Random, plan: Plan, weights: dict[str, int]) -> Fault:
    kind = chance.choices(list(weights), list(weights.values()))[0]
    # What lasts longer than a lease begins early enough to end before everything is healed.
    at = chance.uniform(5.0, FAULTS_UNTIL_S * (0.4 if kind == "cut_long" else 1.0))
    machine = chance.choice(list(plan.machines))
    job = chance.choice(plan.jobs)[1].name
    amounts = {
        "kill_server_in": chance.randrange(400), "kill_in_commit": chance.randrange(25),
        "kill_agent_in": chance.randrange(120), "kill_in_write": chance.randrange(16),
        "down": chance.choice((3.0, 10.0, 18.0, 30.0)), "freeze_agent": chance.choice((3.0, 12.0, 40.0)),
        "cut_off": chance.choice((2.0, 8.0, 15.0, 30.0)), "cut_long": chance.choice((32.0, 38.0, 45.0)),
        "weather": chance.choice((5.0, 20.0, 40.0)), "slow_disk": chance.choice((0.05, 0.5, 3.0)),
        "wall": chance.choice((3600.0, -3600.0, 60.0)), "kill_both": chance.choice((0.0, 2.0, 8.0)),
        "full_disk": chance.choice((2.0, 15.0)), "full_disk_agent": chance.choice((5.0, 30.0)),
        "hold": chance.choice((5.0, 30.0)), "restore": chance.choice((1.0, 8.0, 20.0)),
        "notice": chance.choice((0.0, 10.0)),
    }  # fmt: skip
    target = job if kind in ("cancel", "hold") else machine
    return Fault(at, kind, target, float(amounts.get(kind, 0.0)))
