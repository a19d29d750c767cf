"""Jobs of a recorded trace on machines that are rented: who pays what, and how long jobs take.

Machines are those of `configs/catalog` at its typical prices. Jobs are every hundredth of the Philly trace (of the
reference data)
with at most eight accelerators and between ten minutes and a day and a half of work, on types that each kind is fast
on in its own way (seeded). Spot machines live eight hours on average; nobody tells the scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.needs import reference_data
from optimizer.policy import PolicySpec
from scheduler.core.rules import RoundRules
from scheduler.providers.simulated_cloud import RentalTerms
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RandomStreams
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.reports.baselines import JobBaselines
from simulator.reports.run_summary import RunSummary, SummaryContext, summarise_run
from simulator.simulation import Scenario, simulate
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding, with_seeded_speeds
from walras.cluster import Market, Pool, PoolId, Shape
from walras.spec.catalog import CatalogInstance, load_catalog

#: Speed of one accelerator against the others.
NOMINAL = {"t4": 1.0, "a10g": 2.2, "a100-40gb": 6.0}
INSTANCES = ("g4dn.xlarge", "g4dn.12xlarge", "g5.xlarge", "g5.12xlarge", "g5.48xlarge", "p4d.24xlarge")
_BOOT_S, _NOTICE_S, _LEAST_S, _LIFE_S = 240.0, 120.0, 60.0, 8 * 3600.0
_QUOTA = 40
_SLACK = (1.2, 3.0)
_SKIPPED, _EVERY = 2000, 100
_SHORTEST_S, _LONGEST_S, _LARGEST = 600.0, 36 * 3600.0, 8
#: A start, a warm-up, a checkpoint on demand and every ten minutes, fetching the state elsewhere.
_COSTS = AttemptCosts(start_s=30, checkpoint_s=15, checkpoint_every_s=600, warm_up_s=20, exit_s=1, migrate_s=20)


@dataclass(frozen=True, slots=True)
class Jobs:
    """A workload, and how fast its kinds run."""

    jobs: tuple[SimulatedJob, ...]
    speeds: dict[SpeedKey, float]


def trace(jobs: int) -> Jobs:
    """The first so many."""
    read = read_trace(reference_data() / "jobs" / "philly_2017.csv.gz")
    usable = [
        row
        for row in read.jobs
        if row.gang <= _LARGEST and row.duration_s and _SHORTEST_S <= row.duration_s <= _LONGEST_S
    ]
    chosen = usable[_SKIPPED : _SKIPPED + jobs * _EVERY : _EVERY]
    rows = with_seeded_speeds([replace(row, at=row.at - chosen[0].at) for row in chosen], NOMINAL)
    placing = TraceBinding(NOMINAL)
    placed = tuple(placing.jobs(rows))
    return Jobs(placed, placing.speeds)


def with_deadlines(work: Jobs) -> Jobs:
    """Each job wanted by a time that it can keep alone on the fastest machine let on demand, booted for it, started
    once and started again, times a slack of 1.2 to 3 (seeded).
    """
    slack = RandomStreams(0).stream("slack")
    once_s = _BOOT_S + 2 * _COSTS.restart_s

    def wanted(job: SimulatedJob) -> SimulatedJob:
        request = job.request
        fastest = max(work.speeds[SpeedKey(request.kind, each.accelerator, each.count)] for each in request.demands)
        at = job.at + slack.uniform(*_SLACK) * (job.steps / fastest + once_s)
        return replace(job, request=replace(request, deadline_at=at))

    return replace(work, jobs=tuple(wanted(job) for job in work.jobs))


def instances() -> dict[str, CatalogInstance]:
    """The machines that are let here, by name."""
    found = {entry.instance: entry for entry in load_catalog().offers("aws") if entry.instance in INSTANCES}
    assert len(found) == len(INSTANCES), "the catalog has all of them"
    return found


def rented(*, spot: bool) -> tuple[PoolModel, ...]:
    """On demand without end; with `spot` besides, in two zones."""
    pools = []
    for entry in instances().values():
        assert entry.on_demand_usd_per_h is not None, "chosen for having a price"
        pools.append(_let(entry, Market.ON_DEMAND, "a", entry.on_demand_usd_per_h))
        for zone in "ab" if spot and entry.spot_usd_per_h is not None else "":
            assert entry.spot_usd_per_h is not None, "asked above"
            pools.append(_let(entry, Market.SPOT, zone, entry.spot_usd_per_h))
    return tuple(pools)


def _let(entry: CatalogInstance, market: Market, zone: str, usd_per_h: float) -> PoolModel:
    pool = Pool(
        PoolId(f"{entry.instance}/{market}/{zone}"),
        _shape(entry),
        market,
        zone,
        usd_per_h,
        _QUOTA,
        notice_s=_NOTICE_S if market is Market.SPOT else 0.0,
        boot_s=_BOOT_S,
        minimum_billing_s=_LEAST_S,
    )
    terms = RentalTerms(_BOOT_S, _LEAST_S)
    return PoolModel(pool, terms=terms, mean_life_s=_LIFE_S) if market is Market.SPOT else PoolModel(pool, terms=terms)


def fixed(counts: dict[str, int]) -> tuple[PoolModel, ...]:
    """So many machines, paid on demand from the first job to the end of the last."""
    known = instances()
    return tuple(
        PoolModel(
            Pool(PoolId(f"{name}/fixed"), _shape(known[name]), usd_per_h=known[name].on_demand_usd_per_h or 0.0), count
        )
        for name, count in counts.items()
    )


def _shape(entry: CatalogInstance) -> Shape:
    nominal = NOMINAL[entry.accelerator]
    return Shape(entry.instance, entry.accelerator, entry.accelerators, entry.cpus, entry.memory, nominal)


def run(work: Jobs, pools: Sequence[PoolModel], delay_usd_per_h: float) -> RunSummary:
    """Under the default policy, an hour of a job being worth so much."""
    rules = RoundRules(resolve_min_s=1.0, delay_usd_per_h=delay_usd_per_h)
    truth = GroundTruth(work.speeds, default_costs=_COSTS)
    scenario = Scenario(tuple(pools), truth, PolicySpec("walras"), rules)
    roster = JobBaselines(scenario.pools, truth)
    return summarise_run(simulate(roster.recorded(work.jobs), scenario), SummaryContext(roster))
