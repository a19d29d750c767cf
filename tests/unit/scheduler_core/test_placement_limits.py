"""Declared limits of projects and users hold at every instant, whatever is idle."""

from collections import Counter
from math import floor, inf
from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import measured, settle

from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.events import FLEET, EntityShare, ShareLimit, SharesDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import RoundRules
from walras.cluster import NodeId, Placement, PoolId
from walras.job_request import JobId, JobRequest, Kind
from walras.states import Reason

QUICK = RoundRules(round_s=10, resolve_min_s=0, min_runtime_s=5, restart_default_s=2, profiling_share=0.5)
J1, J2 = JobId(1), JobId(2)
#: Whose, of what, and how many: a count, or a part of the capacity.
Limit = tuple[str, str, int | float]


def limited(machines: str = "a", **projects: object) -> FakeFleet:
    return measured(cluster("hierarchical", rules=QUICK, machines=machines, projects=projects))


def submit(fleet: FakeFleet, request: JobRequest) -> None:
    fleet.tell(ev.JobSubmitted(fleet.at, request))
    settle(fleet)


def held(fleet: FakeFleet) -> Counter[str]:
    """Accelerators by project and by project/user: what attempts hold, those that are being stopped included."""
    found: Counter[str] = Counter()
    for attempt in fleet.attempts.values():
        request = fleet.core.ledger.jobs[attempt.job_id].request
        found[request.project] += attempt.placement.accelerators
        found[f"{request.project}/{request.user}"] += attempt.placement.accelerators
    return found


def test_idle_places_are_not_given_beyond_a_limit() -> None:
    """A quarter of four is one, though three stand idle; explain names the limit, and an end makes room."""
    fleet = limited(small={"limit": 0.25})
    for number in (1, 2, 3, 4):
        submit(fleet, job(number, "a", 1, project="small", steps=1e6))
    assert held(fleet)["small"] == 1
    waiting = next(number for number in (1, 2, 3, 4) if JobId(number) not in fleet.attempts)
    first = pending_reasons(fleet.core, JobId(waiting))[0]
    assert first.reason is Reason.WAIT_QUOTA
    assert first.detail == "needs 1; project small holds 1, and its limit of 0.25 of 4 accelerators allows 1"
    submit(fleet, job(9, "a", 3, project="other", steps=1e6))
    assert held(fleet)["other"] == 3
    (running,) = [each for each in fleet.attempts if each != JobId(9)]
    fleet.end(running)
    settle(fleet)
    assert held(fleet) == Counter({"small": 1, "small/": 1, "other": 3, "other/": 3})


def test_explain_names_every_limit_that_keeps_a_job_waiting_first_the_one_that_it_never_fits() -> None:
    """To save its work would not start a job that asks for more than its project may hold."""
    fleet = limited("a")
    others = EntityShare("owner", owned=(ShareLimit("a", 2),))
    fleet.tell(SharesDeclared(fleet.at, (others, EntityShare("p", limits=(ShareLimit("a", 3),)))))
    submit(fleet, job(1, "a", 4, project="p", preemptible=False))
    told = [each for each in pending_reasons(fleet.core, J1) if each.reason is Reason.WAIT_QUOTA]
    assert [each.detail for each in told[:2]] == [
        "needs 4; project p holds 0, and its limit allows 3 of a",
        "needs 4; project owner lends its a to jobs that can be stopped without loss; 2 are not its own, 0 of them held"
        " by jobs like this",
    ]
    assert told[0].fix == (
        "ask for fewer, or raise the limit of p (`walras admin set project p limits.a=N`): this never fits"
    )


def test_a_limit_below_one_accelerator_allows_none_and_says_so_and_no_limit_asks_nothing() -> None:
    fleet = limited(small={"limit": 0.2})
    submit(fleet, job(1, "a", 1, project="small"))
    assert not fleet.attempts
    first = pending_reasons(fleet.core, J1)[0]
    assert "allows 0" in first.detail
    assert "this never fits" in first.fix
    fleet = measured(cluster("max_min_fairness", rules=QUICK))
    submit(fleet, job(1, "a", 4))
    assert not fleet.core.cycle.limits.are_declared
    assert fleet.core.cycle.limits.room(fleet.core.ledger.jobs[J1]) == inf
    assert any(isinstance(each, cmd.Start) for _, commands in fleet.log for each in commands)


def test_jobs_of_one_project_take_turns_below_its_limit() -> None:
    """Who is owed more makes a job of its own project leave, not one of another: idle places would not do."""
    fleet = limited(small={"limit": 0.25}, other={})
    submit(fleet, job(1, "a", 1, project="small", steps=1e6))
    submit(fleet, job(2, "a", 1, project="small", steps=1e6))
    submit(fleet, job(3, "a", 1, project="other", steps=1e6))
    ran = set()
    for _ in range(120):
        fleet.wake()
        settle(fleet)
        for attempt in [each for each in fleet.attempts.values() if each.stopping]:
            fleet.end(attempt.job_id, 85, fleet.core.ledger.jobs[attempt.job_id].steps)
            settle(fleet)
        assert held(fleet)["small"] <= 1
        assert JobId(3) in fleet.attempts
        ran |= {int(each) for each in fleet.attempts}
    assert ran == {1, 2, 3}


class Watched(FakeFleet):
    """Looks after every command, not only after every event: at no instant may anybody hold more than is allowed."""

    def __init__(self, limits: list[Limit]) -> None:
        super().__init__()
        self.limits = limits

    def _grant(self, job_id: JobId, number: int, placement: Placement) -> None:
        super()._grant(job_id, number, placement)
        capacity, jobs = sum(state.capacity for state in self.core.ledger.fleet.pools), self.core.ledger.jobs
        for name, scope, most in self.limits:
            now = sum(
                count
                for attempt in self.attempts.values()
                if name in jobs[attempt.job_id].request.owners
                for pool, count in attempt.placement.by_pool.items()
                if scope in (FLEET, pool)
            )
            assert now <= (floor(most * capacity + 1e-9) if isinstance(most, float) else most), (name, scope, self.at)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tree", "hierarchical", "walras", "fifo"])
@pytest.mark.parametrize("seed", range(4))
def test_no_start_ever_goes_beyond_a_limit(policy: str, seed: int) -> None:
    """Of a random tree of the policy, or of an administrator's for fleet and pools; gangs, machines that come."""
    random = Random(seed)
    projects, limits = _random_tree(random) if policy == "tree" else ({}, _random_limits(random))
    fleet, parameters = Watched(limits), {"projects": projects} if projects else {}
    template = cluster("hierarchical" if policy == "tree" else policy, rules=QUICK, machines="aabbcc", **parameters)
    for event, _ in template.log:
        fleet.tell(event)
    measured(fleet)
    if policy != "tree":
        names = {name for name, _, _ in limits}
        own = {name: tuple(ShareLimit(scope, int(most)) for of, scope, most in limits if of == name) for name in names}
        fleet.tell(SharesDeclared(fleet.at, tuple(EntityShare(name, limits=own[name]) for name in sorted(names))))
    for number in range(1, 61):
        fleet.at += random.random()
        while fleet.wake_at <= fleet.at:
            fleet.wake()
            settle(fleet)
        match random.randrange(6):
            case 0 | 1 | 2:
                submit(fleet, _random_job(random, number, ["p", "q", "r"]))
            case 3:
                running = [each for each in fleet.attempts.values() if each.started]
                if running:
                    fleet.end(random.choice(running).job_id)
            case 4:
                for attempt in [each for each in fleet.attempts.values() if each.stopping]:
                    fleet.end(attempt.job_id, 85, fleet.core.ledger.jobs[attempt.job_id].steps)
                    settle(fleet)
            case 5:
                fleet.tell(ev.NodeJoined(fleet.at, NodeId(f"n{fleet.at}"), PoolId(random.choice("abc"))))
        settle(fleet)
        for each in list(fleet.attempts.values()):
            if not each.started and not each.stopping:
                fleet.prepare_all(each.job_id)
        settle(fleet)
    assert any(isinstance(each, cmd.Start) for _, commands in fleet.log for each in commands)


def _random_tree(random: Random) -> tuple[dict[str, object], list[Limit]]:
    projects: dict[str, object] = {}
    limits: list[Limit] = []
    for name in ("p", "q", "r")[: random.randint(1, 3)]:
        users = {user: {"limit": random.choice([0.1, 0.2, 0.3])} for user in ("u", "v") if random.random() < 0.5}
        most = random.choice([0.1, 0.25, 0.4, 0.5, 1.0])
        projects[name] = {"limit": most, "users": users}
        limits += [(name, FLEET, most), *((f"{name}/{user}", FLEET, own["limit"]) for user, own in users.items())]
    return projects, limits


def _random_limits(random: Random) -> list[Limit]:
    owned = [(name, scope) for name in ("p", "q", "r", "p/u", "q/v") for scope in (FLEET, "a", "b", "c")]
    return [(name, scope, random.choice([0, 1, 2, 4, 8])) for name, scope in owned if random.random() < 0.4]


def _random_job(random: Random, number: int, projects: list[str]) -> JobRequest:
    count = random.choice([1, 1, 1, 2, 2, 4])
    return job(
        number, random.choice(["a", "a", "*"]), count, kind=Kind("k"), project=random.choice([*projects, "free"]),
        user=random.choice("uv"), steps=random.choice([50.0, 1e4]), priority=random.choice([20, 50, 50, 90]),
        sizes=(1, 2, count) if count > 2 and random.random() < 0.3 else (),
    )  # fmt: skip


def test_a_limit_of_one_pool_leaves_the_others_open() -> None:
    """What may not start there goes elsewhere at once, others behind it start there, and explain names the limit."""
    fleet = measured(cluster("fifo", rules=QUICK, machines="ab"))
    fleet.tell(SharesDeclared(fleet.at, (EntityShare("p", limits=(ShareLimit("a", 2),)),)))
    for number in range(1, 5):
        submit(fleet, job(number, "a", 1, project="p", steps=1e6))
    submit(fleet, job(5, "*", 2, project="p", steps=1e6))
    submit(fleet, job(6, "a", 2, project="q", steps=1e6))
    assert sorted(map(int, fleet.attempts)) == [1, 2, 5, 6]
    first = pending_reasons(fleet.core, JobId(3))[0]
    assert (first.reason, first.detail) == (
        Reason.WAIT_QUOTA,
        "needs 1; project p holds 2, and its limit allows 2 of a",
    )
    assert "walras admin set project p limits.a=N" in first.fix
    fleet.tell(SharesDeclared(fleet.at, ()))
    fleet.end(JobId(6))
    settle(fleet)
    assert {JobId(3), JobId(4)} <= set(fleet.attempts)
