"""Machines that die, are cut off, are rented, taken back and given back."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import pytest

from scheduler.core.commands import NodeCordoned, ReleaseNode, Rent
from scheduler.core.events import (
    AttemptEnded,
    AttemptProgressed,
    AttemptStarted,
    CheckpointRecorded,
    NodeBack,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    NodeUncordoned,
    NodeUnreachable,
    PoolDeclared,
    RentFailed,
)
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, WorldParameters
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel, SimulatedMachines
from simulator.faults import (
    FaultInjector,
    FaultModel,
    MarketChange,
    NodeDeath,
    NodeSlowdown,
    PoolRevocation,
    SlowPeriods,
)
from walras.cluster import Market, NodeId, Pool, PoolId, Shape
from walras.states import JobState, Reason

Make = Callable[..., Any]
OWN, SPOT = PoolId("own"), PoolId("spot")
SLOW = FaultModel(notice_silence_s=5.0, lease_s=30.0, repair_s=100.0)


def test_a_machine_that_dies_is_silent_then_lost_then_repaired(bench: Make, job: Make) -> None:
    """Nobody hears of the death itself; what was not saved is lost; after the repair it joins again, empty."""
    b = bench(AttemptCosts(checkpoint_s=0.0, checkpoint_every_s=4.0), faults=SLOW).started(job(steps=1000.0))
    b.faults.script([NodeDeath(10.0, OWN, 0)])
    b.start(50.0, 1, 2, {"own-2": (0,)}, steps=16.0)
    b.run()
    fates = b.told(NodeUnreachable, NodeLost)
    assert [(type(e), e.at) for e in fates] == [(NodeUnreachable, 15.0), (NodeLost, 40.0)]
    assert b.told(NodeJoined)[-1] == NodeJoined(140.0, NodeId("own-1"), OWN)
    assert [e.at for e in b.told(CheckpointRecorded)][:2] == [4.0, 8.0]
    assert b.world.jobs[1].lost_steps == pytest.approx(4.0)
    assert [e.at for e in b.told(AttemptEnded)] == [pytest.approx(50.0 + 984.0 / 2)]


def test_what_is_started_on_a_dead_machine_never_comes_up(bench: Make, job: Make) -> None:
    """Until the machine is declared lost the scheduler waits in vain."""
    b = bench(faults=SLOW)
    b.submit(job())
    b.faults.script([NodeDeath(1.0, OWN, 0)])
    b.start(2.0, 1, 1, {"own-1": (0,)})
    b.revoke(3.0, 1, 1, Reason.POLICY_PREEMPTED)
    b.run()
    assert not b.told(AttemptStarted, AttemptEnded)
    assert b.world.jobs[1].attempt is None


def test_a_gang_ends_when_one_of_its_machines_dies(bench: Make, job: Make) -> None:
    """The other machine tells so once the loss is known, and its accelerators are free."""
    b = bench(faults=SLOW)
    b.submit(job(steps=1000.0))
    b.start(0.0, 1, 1, {"own-1": (0, 1), "own-2": (0, 1)})
    b.faults.script([NodeDeath(10.0, OWN, 1)])
    b.run()
    lost, ended = b.told(NodeLost, AttemptEnded)
    assert (lost.at, ended.at) == (40.0, 40.0)
    assert isinstance(ended, AttemptEnded)
    assert (ended.signal, ended.steps) == (15, 20.0)
    assert b.machines.nodes[NodeId("own-1")].devices == [None, None]


def test_a_machine_that_was_cut_off_tells_everything_when_it_is_back(bench: Make, job: Make) -> None:
    """The end that happened meanwhile is told at the return; what was commanded meanwhile is heard then."""
    b = bench()
    b.submit(job(1, steps=40.0), job(2, steps=1000.0))
    b.start(1.0, 1, 1, {"own-1": (0,)})
    b.start(1.0, 2, 1, {"own-1": (1,)})

    def cut(at: float, _: object) -> tuple[NodeUnreachable]:
        b.world.cut_off(b.machines.nodes["own-1"])
        return (NodeUnreachable(at, NodeId("own-1")),)

    b.engine.schedule(10.0, cut)
    b.revoke(15.0, 2, 1, Reason.POLICY_PREEMPTED)
    b.engine.schedule(30.0, lambda at, _: b.faults._back(at, b.machines.nodes["own-1"]))
    b.run()
    story = b.told(NodeUnreachable, NodeBack, AttemptEnded, CheckpointRecorded)
    assert [(type(e), e.at) for e in story] == [
        (NodeUnreachable, 10.0), (NodeBack, 30.0), (AttemptEnded, 30.0), (CheckpointRecorded, 30.0),
        (AttemptEnded, 30.0),
    ]  # fmt: skip
    assert story[3].steps == 58.0


def test_a_machine_out_of_contact_longer_than_its_lease_is_lost(bench: Make, job: Make) -> None:
    """Its ranks end with the lease, and it joins again later."""
    faults = FaultModel(cut_off_every_s=100.0, cut_off_s=1e12, lease_s=30.0, repair_s=10.0, until_at=1000.0)
    b = bench(faults=faults).started(job(steps=1e6))
    b.run()
    silent, lost = (next(e for e in b.told(kind) if e.node_id == "own-1") for kind in (NodeUnreachable, NodeLost))
    assert lost.at == pytest.approx(silent.at + 30.0)
    assert not b.told(AttemptEnded)


def test_rented_machines_come_after_their_boot_time_once_per_token(bench: Make, job: Make) -> None:
    """A repeated request changes nothing; one above the quota fails with its token."""
    b = bench()
    b.submit(job())
    b.at(10.0, Rent("spot-1", SPOT, 2), Rent("spot-1", SPOT, 2), Rent("spot-2", SPOT, 1), Rent("own-3", OWN, 1))
    b.run()
    joined = [e for e in b.told(NodeJoined) if e.pool_id == SPOT]
    assert [(e.at, e.token) for e in joined] == [(15.0, "spot-1"), (15.0, "spot-1")]
    assert [e.token for e in b.told(RentFailed)] == ["spot-2", "own-3"]


def test_a_released_machine_is_gone_and_makes_room_in_the_quota(bench: Make, job: Make) -> None:
    """And is paid until then."""
    b = bench()
    b.submit(job())
    b.at(0.0, Rent("spot-1", SPOT, 2))
    b.at(100.0, ReleaseNode(NodeId("spot-1-0")))
    b.at(101.0, Rent("spot-2", SPOT, 1))
    b.at(1000.0, ReleaseNode(NodeId("spot-1-1")), ReleaseNode(NodeId("spot-2-0")))
    b.run()
    assert not b.told(RentFailed)
    assert [e.at for e in b.told(NodeLost)] == [100.0, 1000.0, 1000.0]
    usd = pytest.approx(3.6 / 3600 * (95.0 + 995.0 + 894.0))
    assert b.metrics.pools[SPOT].usd == usd
    assert b.machines.usd(SPOT, 1000.0) == usd


def test_a_revocation_gives_notice_and_takes_the_oldest_machine(bench: Make, job: Make) -> None:
    """With notice there is time to checkpoint; at the deadline the machine is gone, whatever runs there."""
    b = bench(AttemptCosts(checkpoint_s=2.0))
    b.submit(job(1, steps=1000.0), job(2, steps=1000.0))
    b.at(0.0, Rent("spot", SPOT, 2))
    b.start(6.0, 1, 1, {"spot-0": (0,)})
    b.start(6.0, 2, 1, {"spot-1": (0,)})
    b.faults.script([PoolRevocation(20.0, SPOT, 1), PoolRevocation(21.0, SPOT, 1), PoolRevocation(22.0, SPOT)])
    b.revoke(20.0, 1, 1, Reason.INFRA_SPOT_RECLAIM, grace_s=9.0)
    b.run()
    assert [(e.at, e.node_id, e.gone_at) for e in b.told(NodeLeaving)] == [
        (20.0, "spot-0", 30.0),
        (21.0, "spot-1", 31.0),
    ]
    assert [(e.at, e.job_id, e.exit_code) for e in b.told(AttemptEnded)] == [(22.0, 1, 85)]
    assert [(e.at, e.reason) for e in b.told(NodeLost)] == [
        (30.0, Reason.INFRA_SPOT_RECLAIM),
        (31.0, Reason.INFRA_SPOT_RECLAIM),
    ]


def test_a_revocation_of_the_pool_takes_every_machine_that_is_ready(bench: Make, job: Make) -> None:
    """And one that is given back meanwhile is not taken a second time."""
    b = bench()
    b.submit(job())
    b.at(0.0, Rent("spot", SPOT, 2))
    b.faults.script([PoolRevocation(20.0, SPOT)])
    b.at(25.0, ReleaseNode(NodeId("spot-0")))
    b.run()
    assert [(e.at, e.node_id) for e in b.told(NodeLeaving)] == [(20.0, "spot-0"), (20.0, "spot-1")]
    assert [(e.at, e.node_id) for e in b.told(NodeLost)] == [(25.0, "spot-0"), (30.0, "spot-1")]


def test_an_administrator_puts_a_cordoned_machine_back(bench: Make, job: Make) -> None:
    b = bench(faults=FaultModel(uncordon_s=50.0))
    b.submit(job())
    b.at(10.0, NodeCordoned(NodeId("own-2"), "three jobs failed"))
    b.run()
    assert b.told(NodeUncordoned) == [NodeUncordoned(60.0, NodeId("own-2"))]


def test_no_fault_begins_after_the_faults_have_stopped(bench: Make, job: Make) -> None:
    """So that a run can be asked to finish every job."""
    b = bench(faults=FaultModel(death_every_s=50.0, cut_off_every_s=50.0, lease_s=30.0, repair_s=5.0, until_at=500.0))
    b.submit(job())
    b.run()
    assert max(e.at for e in b.told(NodeUnreachable)) < 500.0 + 61.0
    assert len(b.machines.nodes) == 2


def test_a_slow_machine_holds_up_every_gang_that_it_is_part_of(bench: Make, job: Make) -> None:
    """At half its pace a gang makes half the steps, wherever its other ranks are; what it measures says so."""
    b = bench(model=WorldParameters(report_s=10.0))
    b.submit(job(1, steps=100.0), job(2, steps=100.0))
    b.prepare(0.0, 1, 1, {"own-1": (0,), "own-2": (0,)})
    b.start(0.0, 1, 1, {"own-1": (0,), "own-2": (0,)})
    b.start(0.0, 2, 1, {"own-2": (1,)})
    b.faults.script([NodeSlowdown(10.0, OWN, 0, pace=0.5), NodeSlowdown(30.0, OWN, 0, pace=1.0)])
    b.run()
    # 20 steps by 10 s, 20 more at half the pace by 30 s, the other 60 by 60 s.
    assert [(e.job_id, e.at) for e in b.told(AttemptEnded)] == [(2, 50.0), (1, 60.0)]
    assert [r.steps_per_s for r in b.told(AttemptProgressed) if r.job_id == 1 and r.at == 20.0] == [1.0]


def test_slow_spells_come_and_go_by_a_stream_of_their_own(bench: Make, job: Make) -> None:
    """So much of the time as their lengths say, and no death is moved by them."""
    model = FaultModel(slow=SlowPeriods(100.0, 100.0, 0.5), death_every_s=1e6, until_at=1e6)
    b = bench(faults=model).started(job(steps=2e5))
    b.transition(1e7, 1, JobState.SUCCEEDED)
    b.run()
    (end,) = b.told(AttemptEnded)
    assert end.at == pytest.approx(2e5 / 1.5, rel=0.1)  # half of the time at half the pace
    calm = bench(faults=replace(model, slow=SlowPeriods()))
    calm.run()
    deaths = [[e.at for e in each.told(NodeUnreachable)] for each in (b, calm)]
    assert deaths[0][:1] == deaths[1][:1]


def test_a_market_moves_its_price_and_what_it_has(bench: Make, job: Make) -> None:
    """The scheduler hears the price; the bill is its integral; machines beyond what there is leave with notice."""
    b = bench()
    b.at(0.0, Rent("a", SPOT, 2))
    b.faults.script([MarketChange(1005.0, SPOT, usd_per_h=7.2), MarketChange(2005.0, SPOT, capacity=1)])
    b.at(3000.0, Rent("b", SPOT, 1))
    b.run()
    assert b.told(PoolDeclared)[-1].pool.usd_per_h == 7.2
    assert [(e.at, e.gone_at) for e in b.told(NodeLeaving)] == [(2005.0, 2015.0)]
    assert [e.token for e in b.told(RentFailed)] == ["b"]
    # 1,000 s of two at 3.6 USD/h, then 7.2: one until 2,015 s, one until now.
    assert b.machines.usd(SPOT, 3005.0) == pytest.approx(2 * 1.0 + 1010 * 0.002 + 2000 * 0.002)
    assert b.machines.price_x_time(SPOT, 3005.0) == pytest.approx(b.machines.usd(SPOT, 3005.0))


# ------------------------------------------------------------------------------------------------ attempts and markets


def test_an_attempt_can_be_slow_on_machines_that_are_well(bench: Make, job: Make) -> None:
    """Only it, in spells that end; the work that it makes is speed x pace x time."""
    faults = FaultModel(attempt_slow=SlowPeriods(5.0, 5.0, 0.25))
    b = bench(faults=faults).started(job(1, steps=1000.0))
    b.run()
    (ended,) = b.told(AttemptEnded)
    assert 500.0 < ended.at < 2000.0  # 500 s at full speed, 2000 s at a quarter
    assert ended.at == pytest.approx(500.0 / 0.625, rel=0.3)
    assert {node.pace for node in b.machines.nodes.values()} == {1.0}


def test_slow_spells_of_an_attempt_end_with_it(bench: Make, job: Make) -> None:
    """Nothing is left to happen when the last attempt is over, so a run that has nothing to do ends."""
    b = bench(faults=FaultModel(attempt_slow=SlowPeriods(1.0, 1.0))).started(job(steps=50.0))
    b.run()
    (ended,) = b.told(AttemptEnded)
    assert b.engine.now - ended.at < 20.0


def test_prices_move_around_the_pools_own(bench: Make) -> None:
    """At every so many seconds the scheduler hears another; none after the instant at which chance ends."""
    b = bench()
    machines = SimulatedMachines(b.engine, [PoolModel(market_pool(), reprice_every_s=10.0, price_noise=0.5)])
    FaultInjector(machines, b.world, FaultModel(until_at=1000.0), RandomStreams(3))
    b.run()
    prices = [event.pool.usd_per_h for event in b.told(PoolDeclared) if event.at > 0]
    assert len(prices) == 100
    assert len(set(prices)) == 100
    assert median(prices) == pytest.approx(3.6, rel=0.3)


def test_boots_vary_and_are_paid_from_when_the_machine_is_there(bench: Make) -> None:
    b = bench()
    pool = PoolModel(market_pool(), terms=RentalTerms(boot_s=100.0), boot_noise=0.5)
    machines = SimulatedMachines(b.engine, [pool], Random(1))
    for number in range(2):
        b.at(float(number), Rent(f"token-{number}", SPOT, 1))
    b.engine.run()
    joined = [event.at for event in b.told(NodeJoined) if event.pool_id == SPOT]
    assert len(set(joined)) == 2
    assert all(20.0 < at < 500.0 and at not in (100.0, 101.0) for at in joined)
    assert machines.cloud.usd(1000.0, SPOT) == pytest.approx(sum(1000.0 - at for at in joined) * 3.6 / 3600)


def market_pool() -> Pool:
    return Pool(SPOT, Shape("spot", "v100", 1, 8.0, 2**30), Market.SPOT, usd_per_h=3.6, quota=2, notice_s=10.0)
