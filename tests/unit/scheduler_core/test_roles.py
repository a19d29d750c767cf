"""Jobs with roles in the core: placed all at once, stopped all at once, and told which role waits for what."""

from dataclasses import replace

import pytest
from fake_fleet import FakeFleet, revoked
from planned_fleet import QUICK, carried_out, planning, sits, submit

from optimizer.policy import PolicySpec
from scheduler.core import commands as cmd
from scheduler.core import events as ev
from scheduler.core.explain.feasibility import PoolLimit, infeasibility
from scheduler.core.explain.pending_reasons import dominant_reason, pending_reasons
from scheduler.live.store.event_journal import dump_json, parse_request
from walras.cluster import NodeId
from walras.job_request import GangRequest, JobId, JobRequest, Kind, group_fields
from walras.machines.topology import Topology
from walras.spec.roles import RoleSpec, gang_of_roles
from walras.states import JobState, Reason

J1, J2, J3 = JobId(1), JobId(2), JobId(3)
#: The leading role is on the pool that comes last.
TRAIN = {"trainer": "b:1", "rollout": "a:2"}


def roles_job(job_id: int = 1, roles: dict[str, str] = TRAIN, count: int = 1, most: int | None = None) -> JobRequest:
    named = {
        name: RoleSpec(run="x", accelerators=text, count=count if row else 1, max_count=most if row else None)
        for row, (name, text) in enumerate(roles.items())
    }
    gang = gang_of_roles(GangRequest(demands=()), named, None)
    return JobRequest(JobId(job_id), Kind("rl"), steps=1e5, **group_fields(gang, GangRequest))


def parts(fleet: FakeFleet, job_id: JobId) -> list[tuple[str, int]]:
    return [(part.node_id, len(part.devices)) for part in fleet.attempts[job_id].placement.parts]


def test_roles_start_at_once_on_the_machines_of_their_types_the_leading_one_first() -> None:
    """Each process whole on one machine; people are told who is where; what the job reports is its speed; its request
    is stored as it is."""
    fleet = planning()
    submit(fleet, 0.0, roles_job(count=2))
    assert parts(fleet, J1) == [("b2", 1), ("a1", 4)]
    fleet.run(J1)
    ledger = fleet.core.ledger
    where = "trainer 0 on b2 (log of rank 0), rollout 0, rollout 1 on a1 (log of rank 1)"
    assert dominant_reason(fleet.core, J1) == f"has {where}, planned at 5 steps/s"
    fleet.tell(ev.AttemptProgressed(50.0, J1, 1, 100.0, 2.0, 5))
    assert ledger.rate_of(ledger.jobs[J1]) == 2.0
    assert parse_request(dump_json(ledger.jobs[J1].request)) == ledger.jobs[J1].request
    fleet.tell(ev.Woke(500.0))
    assert not revoked(carried_out(fleet)), "the next plan knows it where it is"


def test_the_loss_of_one_roles_machine_ends_all_and_all_start_again() -> None:
    """From the checkpoint, once there is a machine again; until then nothing of it holds anything."""
    fleet = planning()
    submit(fleet, 0.0, roles_job())
    fleet.run(J1)
    fleet.tell(ev.CheckpointRecorded(10.0, J1, 1, 70.0, 0.1))
    fleet.lose(NodeId("b2"))
    fleet.end(J1, None)
    carried_out(fleet)
    assert fleet.core.ledger.jobs[J1].state is JobState.PENDING
    assert not fleet.core.cycle.reservations
    assert all(state.free == state.capacity for state in fleet.core.ledger.fleet.pools)
    fleet.tell(ev.NodeJoined(fleet.at, NodeId("b9"), fleet.core.ledger.fleet.pools[1].pool.pool_id))
    fleet.tell(ev.Woke(fleet.at + 200.0))
    carried_out(fleet)
    fleet.run(J1)
    commands = [command for _, told in fleet.log for command in told]
    (start,) = [each for each in commands if isinstance(each, cmd.Start) and each.attempt == 2]
    assert [part.node_id for part in start.placement.parts] == ["b9", "a1"]
    assert start.resume_steps == 70.0


def test_two_jobs_with_roles_never_hold_one_half_each() -> None:
    """Each wants all of two pools: one runs, the other waits for both and holds neither, then runs."""
    fleet = planning("ab")
    both = [roles_job(number, {"trainer": "a:4", "rollout": "b:2"}) for number in (1, 2)]
    for request in both:
        submit(fleet, fleet.at, request)
    fleet.run(J1)
    assert J2 not in fleet.attempts
    told = pending_reasons(fleet.core, J2)
    assert [reason.detail.split(";")[0] for reason in told[:2]] == [
        "trainer needs 4 x a: 0 of 4 free on a", "rollout needs 2 x b: 0 of 2 free on b",
    ]  # fmt: skip
    assert "held by job 1" in told[0].detail
    assert dominant_reason(fleet.core, J2).startswith("it needs trainer 4 x a + rollout 2 x b; ")
    fleet.end(J1)
    carried_out(fleet)
    assert parts(fleet, J2) == [("a1", 4), ("b2", 2)]


def test_a_role_that_waits_is_named_with_what_it_lacks() -> None:
    """One pool is taken by a job that cannot be stopped: that role waits, and nothing of the other's is held."""
    fleet = planning()
    sits(fleet, 2, "a", 3, preemptible=False)
    submit(fleet, fleet.at, roles_job())
    first, second = pending_reasons(fleet.core, J1)
    assert first.reason is Reason.WAIT_CAPACITY
    assert first.detail.startswith("rollout needs 2 x a: 1 of 4 free on a; held by job 2")
    assert second.detail == "roles start together, as the next plan decides; trainer needs 1 x b: 2 of 2 free on b"
    assert not fleet.core.cycle.reservations
    fleet = planning("aab")
    sits(fleet, 2, "a", 3, preemptible=False)
    sits(fleet, 3, "a", 3, preemptible=False)
    submit(fleet, fleet.at, roles_job())
    assert pending_reasons(fleet.core, J1)[0].reason is Reason.WAIT_FRAGMENTED


def test_others_leave_for_all_roles_together_and_a_cancelled_job_frees_all() -> None:
    """The place of each role is kept while those who hold it stop; a cancellation ends every role with the grace."""
    fleet = planning()
    sits(fleet, 2, "a", 4)
    sits(fleet, 3, "b", 2)
    fleet.at = 1000.0
    wants = replace(roles_job(1, {"trainer": "a:4", "rollout": "b:2"}), priority=90, grace_s=7.0)
    asked = submit(fleet, 1000.0, wants)
    assert set(revoked(asked)) == {2, 3}
    fleet.end(J2, 85)
    carried_out(fleet)
    assert J1 not in fleet.attempts
    fleet.end(J3, 85)
    carried_out(fleet)
    assert parts(fleet, J1) == [("a1", 4), ("b2", 2)]
    fleet.run(J1)
    (stop,) = [each for each in fleet.tell(ev.JobCancelled(fleet.at, J1)) if isinstance(each, cmd.Revoke)]
    assert stop.grace_s == 7.0
    fleet.end(J1, 85)
    assert J1 not in fleet.core.ledger.jobs


def test_an_elastic_role_grows_as_far_as_there_is_room() -> None:
    """With the speed that was measured, what is not measured is believed to follow."""
    fleet = planning()
    submit(fleet, 0.0, roles_job(1, {"trainer": "b:1", "rollout": "a:1"}, count=1, most=4))
    assert parts(fleet, J1) == [("b2", 1), ("a1", 4)]
    fleet.run(J1)
    fleet.tell(ev.AttemptProgressed(50.0, J1, 1, 100.0, 50.0, 5))
    ledger = fleet.core.ledger
    ways = dict(ledger.classes.plan_ways(ledger.jobs[J1].class_row))
    assert ways[((0, 1), (1, 1))] == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("roles", "over_pools", "says"),
    [
        ({"trainer": "a:4", "rollout": "b:2"}, True, ""),
        ({"trainer": "a:4", "rollout": "b:2"}, False, "`walras`"),
        ({"trainer": "a:4", "rollout": "b:3"}, True, "rollout wants 1 times 3 x b"),
        ({"trainer": "a:4", "rollout": "z:1"}, True, "rollout wants 1 times 1 x z"),
        ({"trainer": "a:3", "rollout": "a:2"}, True, "wants trainer 3 x a + rollout 2 x a together"),
    ],
)
def test_roles_that_no_fleet_or_policy_holds_are_refused(roles: dict[str, str], over_pools: bool, says: str) -> None:
    """The first role that does not fit is named; a policy that does not plan places none."""
    most = {"a": 4.0, "b": 2.0, "c": 1.0}
    pools = [PoolLimit(state.pool, most[state.pool.pool_id]) for state in planning().core.ledger.fleet.pools]
    found = infeasibility(roles_job(1, roles), pools, over_pools=over_pools)
    assert (found is None) == (not says)
    assert found is None or says in found.detail + found.fix


@pytest.mark.parametrize(
    ("count", "cpus", "fits"), [(3, 0.0, True), (4, 0.0, False), (3, 1e6, False)], ids=["", "machines", "processors"]
)
def test_each_process_has_to_fit_a_machine(count: int, cpus: float, fits: bool) -> None:
    """Of four accelerators one holds one process of three, however many are left over on all of them."""
    pools = [PoolLimit(state.pool, 12.0) for state in planning().core.ledger.fleet.pools]
    request = replace(roles_job(1, {"trainer": "b:1", "rollout": "a:3"}, count=count), cpus_per_accelerator=cpus)
    found = infeasibility(request, pools, over_pools=True)
    assert (found is None) == fits
    assert found is None or f"wants {count if not cpus else 1} times" in found.detail


def test_roles_take_nothing_that_another_project_owns_and_uses() -> None:
    """As no gang of the same class does; what is lent they take back."""
    fleet = planning("aab")
    owns = (ev.EntityShare("one", owned=(ev.ShareLimit("a", 4),)),)
    fleet.tell(ev.SharesDeclared(fleet.at, owns))
    sits(fleet, 2, "a", 4, project="one")
    fleet.at = 1000.0
    wants = replace(roles_job(1, {"trainer": "b:2", "rollout": "a:4"}, count=2), project="two", value_usd_per_h=9.0)
    assert not revoked(submit(fleet, fleet.at, wants))


def test_roles_of_a_project_at_its_limit_take_the_place_of_its_lesser_jobs() -> None:
    """As one gang does: what leaves for them counts no more."""
    fleet = planning("ab")
    fleet.tell(ev.SharesDeclared(fleet.at, (ev.EntityShare("one", limits=(ev.ShareLimit("fleet", 6),)),)))
    sits(fleet, 2, "a", 4, project="one", priority=20)
    fleet.at = 1000.0
    wants = replace(roles_job(1, {"trainer": "b:2", "rollout": "a:4"}), project="one", priority=90)
    assert set(revoked(submit(fleet, fleet.at, wants))) == {2}


def test_two_jobs_leave_one_machine_for_two_processes() -> None:
    fleet = planning("ab")
    sits(fleet, 2, "a", 2, priority=20)
    sits(fleet, 3, "a", 2, priority=20)
    fleet.at = 1000.0
    wants = replace(roles_job(1, {"trainer": "a:3", "rollout": "a:1"}), priority=90)
    assert set(revoked(submit(fleet, fleet.at, wants))) == {2, 3}
    fleet.end(J2, 85)
    fleet.end(J3, 85)
    carried_out(fleet)
    assert parts(fleet, J1) == [("a1", 4)]


def test_roles_of_one_pool_are_in_one_rack() -> None:
    """As one gang is, though another machine has just what one process needs."""
    fleet = planning("aaa")
    pool = fleet.core.ledger.fleet.pools[0].pool
    racks = Topology((("machine", 8e9), ("rack", 1e9)), (("r1", "a1,a2"), ("r2", "a3")))
    fleet.tell(ev.PoolDeclared(fleet.at, replace(pool, topology=racks)))
    sits(fleet, 2, "a", 2)
    assert parts(fleet, J2) == [("a3", 2)]
    submit(fleet, fleet.at, roles_job(1, {"trainer": "a:1", "rollout": "a:2"}))
    assert {node for node, _ in parts(fleet, J1)} <= {"a1", "a2"}


def test_a_role_whose_pool_was_removed_is_told() -> None:
    fleet = planning("ab")
    sits(fleet, 2, "a", 4, preemptible=False)
    submit(fleet, fleet.at, roles_job())
    pool = fleet.core.ledger.fleet.pools[1].pool
    fleet.lose(NodeId("b2"))
    fleet.tell(ev.PoolDeclared(fleet.at, replace(pool, removed=True)))
    assert "trainer" in pending_reasons(fleet.core, J1)[0].detail


def test_under_a_policy_that_places_no_roles_they_run_on_and_those_that_wait_are_told() -> None:
    fleet = planning("ab")
    submit(fleet, fleet.at, roles_job())
    fleet.run(J1)
    submit(fleet, fleet.at, roles_job(2, {"trainer": "a:4", "rollout": "b:2"}))
    fleet.tell(ev.PolicyChanged(fleet.at, PolicySpec("fifo"), QUICK))
    carried_out(fleet)
    assert fleet.core.ledger.jobs[J1].state is JobState.RUNNING
    (told,) = pending_reasons(fleet.core, J2)
    assert told.reason is Reason.CONFIG_EXCEEDS_FLEET
    assert "the policy in force" in told.detail
    assert "`walras`" in told.fix
