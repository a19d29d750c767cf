"""Jobs that need tools start where these are, and nowhere else; of equal machines, one that has their data."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, cluster, job, pool
from planned_fleet import planning, think

from scheduler.core import events as ev
from scheduler.core.events import FLEET, EntityShare, ShareLimit, SharesDeclared
from scheduler.core.explain.pending_reasons import pending_reasons
from scheduler.core.rules import Backfill, RoundRules
from walras.cluster import Market, NodeId, PoolId
from walras.job_request import JobId, JobRequest, can_prepare
from walras.states import Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)
UV, IMAGE = (("uv",),), (("apptainer", "podman", "docker"),)
POLICIES = ("fifo", "max_min_fairness", "las", "walras")


def joined(fleet: FakeFleet, name: str, *tools: str, of: str = "a", data: tuple[str, ...] = ()) -> None:
    fleet.tell(ev.NodeJoined(fleet.at, NodeId(name), PoolId(of), tools=tools))
    if data:
        fleet.tell(ev.NodeData(fleet.at, NodeId(name), data))


def submit(fleet: FakeFleet, *requests: JobRequest) -> None:
    for request in requests:
        fleet.tell(ev.JobSubmitted(fleet.at, request))


def places(fleet: FakeFleet) -> dict[int, str]:
    """The first machine of each attempt, a minute later, every solve answered."""
    think(fleet, 60.0)
    return {int(job_id): str(each.placement.parts[0].node_id) for job_id, each in fleet.attempts.items()}


@pytest.mark.parametrize(
    ("tools", "needs", "able"),
    [(None, UV, True), ({"uv"}, UV, True), (set(), UV, False), (set(), (), True), ({"docker"}, IMAGE, True)],
)
def test_a_machine_that_has_not_said_may_have_everything(tools: set[str] | None, needs: object, able: bool) -> None:
    assert can_prepare(None if tools is None else frozenset(tools), needs) is able  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
def test_tools_that_were_in_use_count_no_longer_than_the_job_that_used_them(policy: str) -> None:
    """A machine loses a tool under a job that uses it; the next job goes to a machine that has it."""
    fleet = cluster(policy, machines="")
    joined(fleet, "loses", "uv")
    submit(fleet, job(1, "a", 4, tools=UV, steps=100.0))
    assert places(fleet) == {1: "loses"}
    fleet.tell(ev.NodeTools(fleet.at, NodeId("loses"), ()))
    fleet.run(1)
    joined(fleet, "has", "uv", of="b")
    fleet.end(J1)
    submit(fleet, job(2, "*", 1, tools=UV, steps=100.0))
    assert places(fleet) == {2: "has"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_waits_for_a_machine_that_can_prepare_it(policy: str) -> None:
    """Another is free all the time; a job without needs takes it."""
    fleet = cluster(policy, machines="")
    joined(fleet, "bare")
    submit(fleet, job(1, "a", 1, tools=UV))
    assert 1 not in places(fleet)
    submit(fleet, job(2, "a", 1))
    assert places(fleet)[2] == "bare"
    joined(fleet, "able", "git", "uv")
    assert places(fleet)[1] == "able"


def test_every_machine_of_a_job_is_known_to_prepare_it() -> None:
    """From when it joins; it meets all needs by itself, and so does every machine of a gang."""
    fleet = cluster(machines="")
    submit(fleet, job(1, "a", 1, tools=IMAGE))
    joined(fleet, "bare", "uv")
    assert not fleet.attempts
    fleet.tell(ev.NodeTools(fleet.at, NodeId("bare"), ("uv", "podman")))
    assert places(fleet) == {1: "bare"}
    fleet = cluster(machines="")
    submit(fleet, job(1, "a", 1, tools=UV + IMAGE))
    joined(fleet, "one", "uv")
    joined(fleet, "two", "docker")
    assert not fleet.attempts
    joined(fleet, "three", "docker", "uv")
    assert places(fleet) == {1: "three"}
    fleet = cluster(machines="")
    submit(fleet, job(1, "a", 8, nodes=2, tools=UV))
    for name, tools in (("n1", ("uv",)), ("n2", ()), ("n3", ("git",)), ("n4", ("uv", "git"))):
        joined(fleet, name, *tools)
    assert {part.node_id for part in fleet.attempts[J1].placement.parts} == {"n1", "n4"}


@pytest.mark.parametrize("names", [("bare", "able"), ("able", "bare")])
def test_it_takes_the_place_of_another_only_where_it_can_run(names: tuple[str, str]) -> None:
    """A more urgent job has whoever is there leave the able machine, weaker or not than who is on the other."""
    fleet = cluster("priority", machines="")
    for name in names:
        joined(fleet, name, *(["uv"] if name == "able" else []))
    submit(fleet, *(job(number, "a", 4, priority=10, steps=1e6) for number in (1, 2)))
    for number in (J1, J2):
        fleet.tell(ev.AttemptStarted(fleet.at, number, 1))
    on_able = next(number for number, name in places(fleet).items() if name == "able")
    submit(fleet, job(3, "a", 4, priority=90, tools=UV))
    fleet.tell(ev.Woke(fleet.at + 400.0))
    assert [int(number) for number, each in fleet.attempts.items() if each.stopping] == [on_able]


def test_a_share_of_a_pool_that_lost_the_tool_moves_nobody() -> None:
    """It was computed when a machine there had the tool; the job stays where it runs."""
    fleet = planning("", "max_min_fairness", RoundRules(round_s=10, min_runtime_s=1, profiling_share=0))
    joined(fleet, "slow", "uv", of="c")
    submit(fleet, job(1, "*", 1, tools=UV, steps=1e6))
    assert places(fleet) == {1: "slow"}
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    joined(fleet, "fast", "uv")
    submit(fleet, job(2, "c", 1))
    fleet.answer({1: {"a": 1.0}, 2: {"c": 1.0}})
    fleet.tell(ev.NodeTools(fleet.at, NodeId("fast"), ()))
    fleet.tell(ev.Woke(fleet.at + 20.0))
    assert not fleet.attempts[J1].stopping


def test_a_job_below_a_limit_whose_tool_is_gone_starts_when_both_are_there() -> None:
    fleet = cluster("fifo", machines="")
    joined(fleet, "able", "uv")
    fleet.tell(SharesDeclared(0.0, (EntityShare("default", limits=(ShareLimit(FLEET, 1),)),)))
    submit(fleet, job(1, "a", 1), job(2, "a", 1, tools=UV))
    fleet.tell(ev.NodeTools(fleet.at, NodeId("able"), ()))
    fleet.end(J1)
    assert places(fleet) == {}
    fleet.tell(ev.NodeTools(fleet.at, NodeId("able"), ("uv",)))
    assert places(fleet) == {2: "able"}


def test_a_place_is_kept_for_it_only_where_it_can_run() -> None:
    """A gang waits for the able machine, however long a bare one has been free."""
    fleet = cluster("fifo", rules=RoundRules(backfill=Backfill.EASY), machines="", strict=False)
    joined(fleet, "bare")
    joined(fleet, "able", "uv")
    submit(fleet, job(1, "a", 1, tools=UV, steps=1e6))
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    submit(fleet, job(2, "a", 4, tools=UV))
    assert places(fleet) == {1: "able"}
    machines = fleet.core.ledger.fleet.machines
    kept = [machines[row] for row in fleet.core.cycle.reservations[J2].wanted]
    assert [str(machine.node_id) for machine in kept if machine is not None] == ["able"]


def test_machines_without_it_hide_none_with_it_and_who_has_not_said_counts_as_able() -> None:
    """However many are looked at in vain; a pool that is empty, or whose machine has not said, counts as able."""
    fleet = cluster(machines="")
    for number in range(100):
        joined(fleet, f"bare{number}", "git")
    joined(fleet, "able", "uv")
    submit(fleet, job(1, "a", 1, tools=UV))
    assert places(fleet) == {1: "able"}
    fleet = cluster(machines="")
    rented = replace(pool("s", quota=2, market=Market.ON_DEMAND), usd_per_h=1.0)
    fleet.tell(ev.PoolDeclared(0.0, rented))
    joined(fleet, "bare")
    submit(fleet, job(1, "*", 1, tools=UV))
    counts = fleet.core.ledger.classes.shapes[fleet.core.ledger.class_of(fleet.core.ledger.jobs[J1]).shape].counts
    names = [str(state.pool.pool_id) for state in fleet.core.ledger.fleet.pools]
    assert dict(zip(names, counts, strict=True)) == {"a": 0, "b": 1, "c": 1, "s": 1}
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("old"), PoolId("b")))
    assert places(fleet) == {1: "old"}


def test_what_runs_stays_where_its_machine_has_lost_the_tool() -> None:
    """An agent that was started again with another PATH ends nothing; nothing more starts there."""
    fleet = cluster(machines="")
    joined(fleet, "n1", "uv")
    submit(fleet, job(1, "a", 1, tools=UV, steps=1e6))
    fleet.tell(ev.AttemptStarted(fleet.at, J1, 1))
    fleet.tell(ev.NodeTools(fleet.at, NodeId("n1"), ()))
    submit(fleet, job(2, "a", 1, tools=UV))
    assert places(fleet) == {1: "n1"}
    record = fleet.core.ledger.jobs[J1]
    assert fleet.core.ledger.rate_of(record) > 0
    fleet.restart()
    assert places(fleet) == {1: "n1"}
    assert fleet.core.ledger.rate_of(fleet.core.ledger.jobs[J1]) > 0


def test_the_reason_names_what_is_missing_and_a_fix() -> None:
    fleet = cluster(machines="")
    joined(fleet, "bare", "git")
    submit(fleet, job(1, "a", 1, tools=IMAGE))
    (told,) = pending_reasons(fleet.core, J1)
    assert told.reason is Reason.WAIT_CAPACITY
    assert "with apptainer or podman or docker" in told.detail
    assert "walras nodes -v" in told.fix
    joined(fleet, "able", "podman")
    submit(fleet, job(2, "a", 4, tools=IMAGE))
    reasons = [each for each in pending_reasons(fleet.core, J2) if each.reason is Reason.WAIT_FRAGMENTED]
    assert "bare lacks tools that it needs" in reasons[0].detail
    fleet = cluster(machines="")
    joined(fleet, "bare")
    joined(fleet, "able", "uv")
    fleet.lose(NodeId("able"))
    submit(fleet, job(1, "a", 1, tools=UV))
    assert not fleet.attempts
    (told,) = pending_reasons(fleet.core, J1)
    assert told.reason is Reason.WAIT_CAPACITY
    assert "uv" in told.detail


def test_of_equal_machines_the_one_with_the_data_is_taken() -> None:
    """The one with most of it; not by data that is gone, nor where the job cannot be prepared."""
    fleet = cluster(machines="")
    for name, data in (("n1", ()), ("n2", ("d1",)), ("n3", ("d1", "d2"))):
        joined(fleet, name, data=data)
    submit(fleet, job(1, "a", 4, data=("d1", "d2")), job(2, "a", 4, data=("d1", "d2")), job(3, "a", 4, data=("d9",)))
    assert places(fleet) == {1: "n3", 2: "n2", 3: "n1"}
    fleet = cluster(machines="")
    for name, data in (("n1", ()), ("n2", ("d",)), ("n3", ("d",))):
        joined(fleet, name, data=data)
    fleet.tell(ev.NodeData(fleet.at, NodeId("n2"), ()))
    fleet.lose(NodeId("n3"))
    submit(fleet, job(1, "a", 4, data=("d",)))
    assert places(fleet) == {1: "n1"}
    fleet = cluster(machines="")
    joined(fleet, "bare", data=("d",))
    joined(fleet, "able", "uv")
    submit(fleet, job(1, "a", 1, tools=UV, data=("d",)))
    assert places(fleet) == {1: "able"}


def test_data_delays_nothing_and_costs_no_room() -> None:
    """The fullest machine that fits still comes first; a machine with the data that is full is not waited for."""
    fleet = cluster(machines="")
    for name, data in (("full", ("d",)), ("part", ()), ("empty", ("d",))):
        joined(fleet, name, data=data)
    submit(fleet, job(1, "a", 4, data=("d",)), job(2, "a", 3))
    assert places(fleet) == {1: "full", 2: "part"}
    submit(fleet, job(3, "a", 1, data=("d",)))
    assert places(fleet)[3] == "part"
