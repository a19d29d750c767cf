"""What jobs of one project report of speeds, networks and pairs moves no job of another."""

from random import Random

import pytest
from fake_fleet import FakeFleet, cluster, job
from planned_fleet import carried_out

from scheduler.core import events as ev
from scheduler.core.rules import RoundRules
from scheduler.core.speed_events import NetworkMeasured
from scheduler.core.state.shared_accelerators import beside_kind, pair_gain
from tests.support.core_invariants import check_invariants
from walras.job_request import DeviceShare, JobId, Kind, kind_within

OURS, THEIRS = kind_within("ours", Kind("k")), kind_within("theirs", Kind("k"))
RULES = RoundRules(round_s=20.0, resolve_min_s=0, restart_default_s=2, profiling_share=0)


def settled(fleet: FakeFleet) -> None:
    for _ in range(8):
        if fleet.wake_at < float("inf"):
            fleet.wake()
        if fleet.solves:
            carried_out(fleet)
        for job_id in list(fleet.attempts):
            if not fleet.attempts[job_id].started:
                fleet.prepare_all(job_id)


def their_jobs(fleet: FakeFleet, chance: Random, rounds: int, first: int, *, lie: bool) -> None:
    """Single jobs on all machines of pool c and a gang over pool a, each round new ones, which say what they like."""
    paces = {f"c{number}": chance.choice((1e-3, 0.5, 1.0, 1e3)) for number in range(1, 5)}
    for turn in range(rounds):
        numbers = [first + 10 * turn + place for place in range(5)]
        for number in numbers[1:]:
            fleet.tell(ev.JobSubmitted(fleet.at, job(number, "c", kind=THEIRS, project="theirs", steps=1e6)))
        fleet.tell(
            ev.JobSubmitted(fleet.at, job(numbers[0], "a", 4, nodes=2, kind=THEIRS, project="theirs", steps=1e6))
        )
        settled(fleet)
        for number in filter(lambda each: each in fleet.attempts, map(JobId, numbers)):
            attempt = fleet.attempts[number]
            fleet.tell(ev.AttemptStarted(fleet.at, number, attempt.number))
            if lie and len(attempt.placement.parts) > 1:
                fleet.tell(NetworkMeasured(fleet.at, number, attempt.number, 10.0 ** chance.uniform(0, 15)))
            for report in range(8):
                node = str(attempt.placement.parts[0].node_id)
                said = 8.0 * paces.get(node, 1.0) * chance.lognormvariate(0.0, 0.02) if lie else None
                fleet.tell(ev.AttemptProgressed(fleet.at, number, attempt.number, float(report), said, 20))
        for number in filter(lambda each: each in fleet.attempts, map(JobId, numbers)):
            fleet.end(number)


@pytest.mark.parametrize("policy", ["fifo", "walras"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_another_project_reports_of_machines_and_networks_moves_no_job(policy: str, seed: int) -> None:
    """Our jobs are where they are on a cluster whose other project says nothing, and are believed to be as fast."""
    found = []
    for lie in (True, False):
        chance, fleet = Random(seed), cluster(policy, machines="aacccc", rules=RULES)
        their_jobs(fleet, chance, 4, 100, lie=lie)
        if lie:
            assert any("theirs" in by for by in fleet.core.ledger.slow_machines.slow.values()) or seed not in (0, 1)
        for number, pool, count, nodes in ((4, "a", 4, 2), (3, "c", 3, 3), (1, "c", 1, 1)):
            ours = job(number, pool, count, nodes=nodes, kind=OURS, project="ours", steps=1e6)
            fleet.tell(ev.JobSubmitted(fleet.at, ours))
        settled(fleet)
        fleet.tell(ev.AttemptStarted(fleet.at, JobId(4), 1))
        for bytes_per_s in (1e9, 1.1e9):
            fleet.tell(NetworkMeasured(fleet.at, JobId(4), 1, bytes_per_s))
        settled(fleet)
        check_invariants(fleet.core)
        ledger = fleet.core.ledger
        places = {number: fleet.attempts[JobId(number)].placement for number in (1, 3, 4)}
        rates = [round(ledger.rate_of(ledger.jobs[JobId(number)]), 6) for number in places]
        found.append((places, rates, str(ledger.kind_of(ledger.jobs[JobId(4)]))))
    assert found[0] == found[1]


@pytest.mark.parametrize("claims", [1e-9, 0.4, 1.0, 1e9])
def test_a_pair_over_two_projects_is_kept_as_its_slower_job_says(claims: float) -> None:
    """Whatever a guest of another project claims, its host stays in a pair only while it keeps half itself."""
    fleet = cluster("fifo", machines="c", rules=RULES)
    ledger, share = fleet.core.ledger, DeviceShare(1 << 30)
    host, guest = (
        ledger.add(job(number, "c", kind=kind, project=name, shared=share), 0.0)
        for number, kind, name in ((1, OURS, "ours"), (2, THEIRS, "theirs"))
    )
    for kind, other, together in ((OURS, THEIRS, 4.0), (THEIRS, OURS, 10.0 * claims)):
        ledger.table.measure(kind, "c", 1, 10.0)
        ledger.table.measure(beside_kind(kind, other), "c", 1, together)
    for one, other in ((host, guest), (guest, host)):
        gain = pair_gain(ledger, "c", one, other)
        assert gain is not None
        assert gain <= 0.8
