"""Owned machines, rented ones, deadlines, users and classes beside each other: nobody is moved without need, and nobody
waits beside a place that it may have.

Each test is a small situation as a person would write it down: a cluster, a workload, and what becomes of the market.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scheduler.core import commands as cmd
from scheduler.core.events import Event
from simulator.metrics import JobMetrics
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import CompletedRun, EventRecorder, RunSpec, WorkloadSource, execute_run
from walras.states import JobState

HOUR_S = 3600.0
COSTS = {"start": "60s", "warm_up": "30s", "checkpoint": "30s"}


def pool(name: str, speed: float, **more: Any) -> dict[str, Any]:
    count = more.pop("accelerators", 1)
    return {"shape": f"{name}x{count}", "accelerator": name, "accelerators": count, "cpus": 16, "memory": "64GB",
            "nominal_speed": speed, **more}  # fmt: skip


def rented(name: str, speed: float, usd_per_h: float, **more: Any) -> dict[str, Any]:
    return pool(name, speed, market=more.pop("market", "on_demand"), provider="simulated", usd_per_h=usd_per_h,
                quota=more.pop("quota", 4), boot="2m", **more)  # fmt: skip


def job(at: str, hours: float, user: str, **more: Any) -> dict[str, Any]:
    """A job that takes so many hours at ten steps a second."""
    wants = {"accelerators": more.pop("accelerators", "any:1")}
    spec = {"name": "j", "run": "python x.py", "profile": "k", "steps": int(hours * 36_000), "resources": wants, **more}
    return {"at": at, "user": user, "project": f"p-{user}", "job": spec}


class Situation:
    """A cluster and its conditions, in which workloads are run under `walras`."""

    def __init__(self, folder: Path, pools: list[dict[str, Any]], speeds: dict[str, float], **conditions: Any) -> None:
        self._folder = folder
        self._write("cluster.yaml", {"pools": pools, "speeds": {"k": speeds}})
        self._write("conditions.yaml", {"costs": COSTS, **conditions})

    def _write(self, name: str, data: Any) -> str:
        path = self._folder / name
        path.write_text(json.dumps(data))
        return str(path)

    def run(self, *jobs: dict[str, Any], recorder: EventRecorder | None = None) -> CompletedRun:
        workload = WorkloadSource(self._write("a.workload.yaml", {"jobs": list(jobs)}))
        cluster, conditions = str(self._folder / "cluster.yaml"), str(self._folder / "conditions.yaml")
        spec = RunSpec(workload, cluster, "walras", conditions=conditions, bounds=BoundsChoice.NONE)
        ran = execute_run(spec, recorder)
        assert ran.result.violations == []
        return ran


def by_number(ran: CompletedRun) -> list[JobMetrics]:
    return sorted(ran.result.jobs, key=lambda each: each.job_id)


def stops(ran: CompletedRun) -> int:
    return sum(each.preemptions for each in ran.result.jobs)


# ------------------------------------------------------------------------------------------------ money and rank


@pytest.mark.parametrize("speeds", [{"big": 10.0, "small": 8.0}, {"big": 10.0, "small": 10.0}])
def test_payers_rent_beside_riders_and_keep_what_they_rent(tmp_path: Path, speeds: dict[str, float]) -> None:
    """Two long jobs without a value have the owned machines. Two worth five times the price come later: each rents a
    machine once and keeps it, and the riders stay where they are, though the payers are shorter.
    """
    fleet = [pool("big", 4, accelerators=2, machines=1), rented("small", 2, 1.0)]
    ran = Situation(tmp_path, fleet, speeds).run(
        job("0s", 30, "rita"), job("0s", 30, "rita"),
        job("10m", 8, "paul", value_usd_per_h=5), job("20m", 6, "paul", value_usd_per_h=5),
    )  # fmt: skip
    assert stops(ran) <= 1
    riders, payers = by_number(ran)[:2], by_number(ran)[2:]
    assert max(each.ended_at for each in riders) <= 30.2 * HOUR_S
    for each, hours in zip(payers, (8, 6), strict=True):
        assert each.jct_s <= (hours * 10.0 / speeds["small"] + 0.3) * HOUR_S


def test_a_payer_hardly_above_the_price_takes_an_owned_place_by_its_rank(tmp_path: Path) -> None:
    """Renting would leave it a tenth of its value, and the short job outranks the long one."""
    fleet = [pool("gpu", 4, machines=1), rented("gpu", 4, 1.0)]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 30, "rita"), job("10m", 1, "paul", value_usd_per_h=1.1)
    )
    assert sum(ran.result.bills.values()) == 0.0
    assert by_number(ran)[1].jct_s <= 1.2 * HOUR_S


def test_a_bill_is_never_above_what_a_job_gains(tmp_path: Path) -> None:
    """A machine of four is rented for one payer. Beside it ride a job worth a third of the price and one worth
    nothing, and are billed their value at most; the slower a job is there, the less.
    """
    fleet = [rented("gpu", 4, 12.0, accelerators=4, quota=1)]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 2, "u1", value_usd_per_h=20), job("60s", 1, "u2", value_usd_per_h=1), job("60s", 1, "u3")
    )
    pays, below, rides = by_number(ran)
    assert pays.usd == pytest.approx(3.0 * 2, rel=0.05)
    assert 0.95 <= below.usd <= 1.05
    assert rides.usd == 0.0


@pytest.mark.parametrize(("priority", "between_s"), [(50, (2400, 3600)), (80, (420, 560))])
def test_a_payer_keeps_the_owned_place_that_it_has_just_taken(
    tmp_path: Path, priority: int, between_s: tuple[float, float]
) -> None:
    """A rider that comes seven minutes later has it once a restart is a twentieth of the payer's run; a rider of a
    higher class has it at once.
    """
    fleet = [pool("big", 4, machines=1), rented("small", 2, 1.0)]
    ran = Situation(tmp_path, fleet, {"big": 10.0, "small": 8.0}).run(
        job("0s", 2, "paul", value_usd_per_h=5), job("7m", 1, "rita", priority=priority)
    )
    assert between_s[0] <= by_number(ran)[1].first_run_at <= between_s[1]


def test_who_waits_for_its_own_machine_leaves_a_free_place_to_others(tmp_path: Path) -> None:
    """The owned machine becomes free while one is on its way for a payer: the rider that waits has it, and nobody is
    moved.
    """
    fleet = [pool("big", 4, machines=1), rented("small", 2, 1.0)]
    ran = Situation(tmp_path, fleet, {"big": 10.0, "small": 8.0}).run(
        job("0s", 1, "rita"), job("10m", 3, "rita"), job("1h", 2, "paul", value_usd_per_h=5)
    )
    assert stops(ran) == 0
    assert by_number(ran)[1].first_run_at <= 1.1 * HOUR_S


def test_a_payer_rents_though_a_higher_class_has_the_place_that_money_would_give_it(tmp_path: Path) -> None:
    """Two jobs of a higher class, of which one is worth less than any machine, come for the payer's four owned
    accelerators: it has four rented ones within minutes.
    """
    fleet = [pool("gpu", 4, accelerators=4, machines=1), rented("gpu", 4, 1.3)]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 1.3, "paul", accelerators="any:4", value_usd_per_h=18),
        job("0s", 2, "rita", accelerators="any:2", value_usd_per_h=2, priority=80),
        job("0s", 3, "rita", value_usd_per_h=1.2, priority=80),
    )  # fmt: skip
    assert by_number(ran)[0].jct_s <= 1.5 * HOUR_S


def test_a_payer_keeps_its_machine_beside_one_that_a_deadline_holds(tmp_path: Path) -> None:
    """One of the two machines that are worth their price is held by a job without a value, for its deadline: a third
    is rented, and no payer waits.
    """
    fleet = [pool("gpu", 4, machines=1), rented("gpu", 4, 1.0)]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 9, "rita", preemptible=False), job("0s", 4, "rita", deadline="+4h20m"),
        job("10m", 4, "paul", value_usd_per_h=3), job("20m", 4, "paul", value_usd_per_h=3),
    )  # fmt: skip
    assert max(each.jct_s for each in by_number(ran)[2:]) <= 4.2 * HOUR_S
    assert stops(ran) == 0


def two_projects(seed: int) -> tuple[list[dict[str, Any]], list[float | None]]:
    """Sixteen jobs of two projects, and what those of the second are worth: two to six times the price to rent."""
    random, jobs, worth, at = Random(seed), list[dict[str, Any]](), list[float | None](), 0
    for number in range(16):
        at += random.randint(0, 1200)
        value = round(random.uniform(2, 6), 1) if number % 2 else None
        more = {} if value is None else {"value_usd_per_h": value}
        worth.append(value)
        jobs.append(job(f"{at}s", random.uniform(0.5, 5), "rita" if value is None else "paul", **more))
    return jobs, worth


#: Four owned accelerators, and eight to rent.
SOME_TO_RENT = [pool("big", 4, accelerators=2, machines=2), rented("small", 2, 1.0, quota=8)]


@pytest.mark.parametrize("seed", range(3))
def test_two_projects_with_some_to_rent_do_not_churn(tmp_path: Path, seed: int) -> None:
    """No payer loses its machine within a quarter of an hour of its start, jobs are stopped at most once each on
    average, and every bill is at most what the job gains.
    """
    jobs, worth = two_projects(seed)
    ran = Situation(tmp_path, SOME_TO_RENT, {"big": 10.0, "small": 8.0}).run(*jobs)
    assert stops(ran) <= 12
    assert max(each.preemptions for each in ran.result.jobs) <= 4
    for each, value in zip(by_number(ran), worth, strict=True):
        held_h = sum(each.accelerator_s.values()) / HOUR_S
        assert each.usd <= (value or 0.0) * held_h + 0.01


@pytest.mark.parametrize("seed", [7, 10, 15])
def test_no_payer_leaves_the_machine_that_it_rents_within_minutes(tmp_path: Path, seed: int) -> None:
    """Not for a place that another leaves just then and that is hardly better, nor to change places with a payer."""
    jobs, worth = two_projects(seed)
    placed, leaves = dict[int, tuple[float, str]](), list[str]()

    def note(event: Event, commands: list[cmd.Command]) -> None:
        for each in commands:
            if isinstance(each, cmd.AttemptTransitioned) and each.placement is not None:
                placed[each.job_id] = event.at, each.placement.pool_id
            elif isinstance(each, cmd.Revoke):
                at, pool_id = placed[each.job_id]
                if worth[each.job_id - 1] is not None and "on_demand" in pool_id and event.at - at < 900.0:
                    leaves.append(f"job {each.job_id} leaves {pool_id} at {event.at:.0f}, {event.at - at:.0f} s after")

    Situation(tmp_path, SOME_TO_RENT, {"big": 10.0, "small": 8.0}).run(*jobs, recorder=note)
    assert leaves == []


@pytest.mark.parametrize("seed", range(3))
def test_payers_are_as_fast_beside_riders_as_alone_where_machines_are(tmp_path: Path, seed: int) -> None:
    """Riders have the owned places of their rank; what payers rent instead costs them its pace, and little else."""
    jobs, worth = two_projects(seed)
    situation = Situation(tmp_path, SOME_TO_RENT, {"big": 10.0, "small": 10.0})
    pays = [value is not None for value in worth]
    beside_s = sum(each.jct_s for each, is_payer in zip(by_number(situation.run(*jobs)), pays, strict=True) if is_payer)
    alone = situation.run(*(each for each, is_payer in zip(jobs, pays, strict=True) if is_payer))
    assert beside_s <= 1.05 * sum(each.jct_s for each in alone.result.jobs)


# ------------------------------------------------------------------------------------------------ users


@pytest.mark.parametrize(("hours", "most"), [(2.0, 4), (10.0, 16)])
def test_two_users_take_turns_that_repay_their_restarts(tmp_path: Path, hours: float, most: int) -> None:
    """One accelerator, two equal jobs: whoever waits gets it for spans of more than an hour, not every round."""
    ran = Situation(tmp_path, [pool("gpu", 4, machines=1)], {"gpu": 10.0}).run(
        job("0s", hours, "u1"), job("0s", hours, "u2")
    )
    assert stops(ran) <= most
    first, second = sorted(each.ended_at for each in ran.result.jobs)
    assert second <= (2 * hours * 1.02 + 0.3) * HOUR_S
    assert first < second


@pytest.mark.parametrize(("accelerators", "hours"), [(1, (6, 10)), (4, (6, 10)), (4, (10, 6))])
def test_turns_hold_between_unequal_jobs(tmp_path: Path, accelerators: int, hours: tuple[float, float]) -> None:
    """Each takes the whole fleet. Who is owed a turn keeps it until that is made up, though the other is shorter."""
    fleet, gang = [pool("gpu", 4, accelerators=accelerators, machines=1)], f"any:{accelerators}"
    jobs = [job(f"{number}h", hours[number], f"u{number}", accelerators=gang) for number in range(2)]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(*jobs)
    assert stops(ran) <= 12
    assert max(each.ended_at for each in ran.result.jobs) <= (16 * 1.02 + 0.3) * HOUR_S


def test_a_half_place_moves_one_job_at_a_time(tmp_path: Path) -> None:
    """Nine accelerators, two users with six jobs of five hours: each has four, and the ninth changes hands seldom."""
    jobs = [job(f"{number % 2}s", 5.0, f"u{number // 6}") for number in range(12)]
    ran = Situation(tmp_path, [pool("gpu", 4, machines=9)], {"gpu": 10.0}).run(*jobs)
    assert stops(ran) <= 8


def test_a_few_jobs_get_their_share_beside_a_flood_at_once(tmp_path: Path) -> None:
    """Six machines full of one user's jobs: another user's three start within a round of their arrival."""
    flood = [job("0s", 3.0, "u1") for _ in range(20)]
    few = [job("1h", 3.0, "u2") for _ in range(3)]
    ran = Situation(tmp_path, [pool("gpu", 4, machines=6)], {"gpu": 10.0}).run(*flood, *few)
    starts = [each.first_run_at - HOUR_S for each in by_number(ran)[20:]]
    assert max(starts) <= 1800.0


# ------------------------------------------------------------------------------------------------ deadlines


def test_a_job_on_spot_leaves_a_zone_whose_price_has_risen_for_a_cheaper_one(tmp_path: Path) -> None:
    """At 1 h the zone it is in costs twenty times as much; the other zone costs less than on demand."""
    fleet = [
        rented("gpu", 2, 3.0),
        rented("gpu", 2, 1.0, market="spot", zone="a", notice="2m"),
        rented("gpu", 2, 1.2, market="spot", zone="b", notice="2m"),
    ]
    jump = [{"at": "1h", "market": "gpux1/spot/a", "usd_per_h": 20}]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}, incidents=jump).run(job("0s", 8, "u", deadline="+20h"))
    assert sum(ran.result.bills.values()) <= 1.0 + 7.3 * 1.2 + 0.7
    assert stops(ran) == 1


def test_a_small_difference_of_prices_moves_nobody(tmp_path: Path) -> None:
    """The other zone is cheaper by a twentieth from the second hour on, which a restart does not repay."""
    fleet = [
        rented("gpu", 2, 3.0),
        rented("gpu", 2, 1.0, market="spot", zone="a", notice="2m"),
        rented("gpu", 2, 1.2, market="spot", zone="b", notice="2m"),
    ]
    change = [{"at": "1h", "market": "gpux1/spot/b", "usd_per_h": 0.96}]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}, incidents=change).run(job("0s", 8, "u", deadline="+20h"))
    assert stops(ran) == 0


def test_a_job_promised_a_machine_that_does_not_come_takes_a_free_one(tmp_path: Path) -> None:
    """The cloud gives nothing; the owned machine becomes free at 1 h. The next job of the same user is not held up."""
    fleet = [pool("gpu", 4, machines=1), rented("gpu", 4, 4.0, quota=1)]
    nothing = [{"at": "0s", "market": "gpux1/on_demand/default", "capacity": 0}]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}, incidents=nothing, end="4d").run(
        job("0s", 1, "u1", preemptible=False), job("60s", 0.5, "u1", deadline="+50m"), job("2h", 0.5, "u1")
    )
    assert [each.state for each in by_number(ran)] == [JobState.SUCCEEDED] * 3
    assert by_number(ran)[1].ended_at <= 1.65 * HOUR_S


def test_a_full_quota_is_no_reason_to_wait_beside_a_free_machine(tmp_path: Path) -> None:
    fleet = [pool("gpu", 4, machines=1), rented("gpu", 4, 4.0, quota=1)]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 1, "u1", preemptible=False), job("30s", 5, "u1", deadline="+5h20m"),
        job("60s", 0.83, "u1", deadline="+110m"), job("90s", 0.17, "u1"),
    )  # fmt: skip
    assert by_number(ran)[2].ended_at <= 60 + 110 * 60 + 300


def test_a_deadline_that_only_spot_machines_meet_is_met_on_spot(tmp_path: Path) -> None:
    """On demand there is only a type four times slower. A tighter deadline makes the job neither later nor dearer."""
    fleet = [rented("slow", 1, 1.2), rented("fast", 4, 1.5, market="spot", zone="a", notice="2m")]
    situation = Situation(tmp_path, fleet, {"fast": 10.0, "slow": 2.5})
    for deadline in ("+3h", "+5h"):
        ran = situation.run(job("0s", 1, "u", deadline=deadline))
        assert by_number(ran)[0].ended_at <= 1.2 * HOUR_S
        assert sum(ran.result.bills.values()) <= 1.65


# ------------------------------------------------------------------------------------------------ classes


def test_a_gang_of_a_higher_class_comes_before_later_jobs_of_a_lower_one(tmp_path: Path) -> None:
    ran = Situation(tmp_path, [pool("gpu", 4, accelerators=2, machines=1)], {"gpu": 10.0}).run(
        job("0s", 2, "u2", accelerators="any:2", preemptible=False),
        job("10m", 1.5, "u3", accelerators="any:2", priority=80),
        job("20m", 1, "u1", accelerators="any:2"), job("20m", 0.5, "u1"),
    )  # fmt: skip
    assert by_number(ran)[1].first_run_at <= 2.1 * HOUR_S


def test_a_place_that_becomes_free_goes_to_a_higher_class_before_a_deadline(tmp_path: Path) -> None:
    """The cloud gives nothing; who is late in a lower class has waited for the owned machine longer."""
    fleet = [pool("gpu", 4, machines=1), rented("gpu", 4, 4.0, quota=1)]
    nothing = [{"at": "0s", "market": "gpux1/on_demand/default", "capacity": 0}]
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}, incidents=nothing).run(
        job("0s", 1, "u1", preemptible=False), job("60s", 0.5, "u1", deadline="+50m"), job("30m", 1, "u2", priority=80)
    )
    assert by_number(ran)[2].first_run_at <= 1.1 * HOUR_S


def test_an_owned_place_is_taken_by_a_job_whose_deadline_pool_is_full(tmp_path: Path) -> None:
    """The one spot machine is taken by payers. A job of a higher class has the owned place that it is planned on."""
    fleet = [
        pool("gpu", 4, machines=1),
        rented("gpu", 4, 1.0, market="spot", zone="a", notice="2m", quota=1),
    ]  # fmt: skip
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 6, "rita"), job("0s", 6, "paul", value_usd_per_h=5),
        job("1h", 0.5, "u2", priority=80, deadline="+3h"),
    )  # fmt: skip
    assert by_number(ran)[2].first_run_at <= 1.2 * HOUR_S


@pytest.mark.parametrize("minutes", [6, 25])
def test_restarts_take_a_twentieth_of_the_time_of_jobs_at_most(tmp_path: Path, minutes: int) -> None:
    """Jobs as short as a few restarts, of three users on two types: few are stopped for others of their class."""
    random, jobs = Random(minutes), []
    for number in range(14):
        hours, gang = minutes / 60 * random.uniform(0.5, 2), random.choice([1, 1, 2])
        jobs.append(job(f"{number * 40}s", hours, f"u{number % 3}", accelerators=f"any:{gang}"))
    fleet = [pool("big", 4, machines=2), pool("small", 2, accelerators=4, machines=1)]
    ran = Situation(tmp_path, fleet, {"big": 10.0, "small": 5.0}).run(*jobs)
    held_s = sum(sum(each.accelerator_s.values()) for each in ran.result.jobs)
    assert 120.0 * sum(each.preemptions * max(1, int(spec["job"]["resources"]["accelerators"][-1]))
                       for each, spec in zip(by_number(ran), jobs, strict=True)) <= 0.05 * held_s  # fmt: skip


def test_a_free_place_is_free_though_two_jobs_share_another(tmp_path: Path) -> None:
    """Two jobs on one accelerator count as two in a plan; the other accelerator becomes free at 1 h."""
    fleet = [pool("gpu", 4, machines=2, accelerator_memory="16GB")]
    shared = {"resources": {"accelerators": "any:1", "shared": {"memory": "4GB", "busy": 0.3}}}
    ran = Situation(tmp_path, fleet, {"gpu": 10.0}).run(
        job("0s", 2, "u1", **shared), job("0s", 1, "u1", preemptible=False),
        job("60s", 2, "u1", **shared), job("30m", 6, "u1"),
    )  # fmt: skip
    assert by_number(ran)[2].first_run_at <= 300.0
    assert by_number(ran)[3].first_run_at <= 1.1 * HOUR_S
