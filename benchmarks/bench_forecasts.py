"""How often the told intervals of starts and ends hold, and how wide they are beside the mean of recent waits.

    python -m benchmarks forecasts --row philly/fifo/known

Each row is a workload under a policy, with lengths stated or unknown, over several seeds, on a fleet so small that jobs
wait. Forecasts of waiting jobs are made while the second eighth of the jobs arrives. What is told of an interval is its
cover (a four-in-five interval should hold 75 to 85 times in a hundred; counted is what comes, or should have come,
while jobs arrive, for without newcomers what waits comes sooner than can be known, unless newcomers never go first) and
its median width over that about the mean of recent waits that would have held as often: in each seed, and over all
seeds together, for in one seed the naive width knows in hindsight how long the one job was that all waited for. Where
most intervals are as narrow as any is told, as of stated lengths where newcomers never go first, nothing is unknown:
they may hold always. Forecasts of a run have a budget of
processor time, so that a row ends within minutes whatever the policy: how many were made is told, and how many jobs
have no interval, because most futures did not reach their end; it is told after which instant they come in nine futures
of ten.
Seeds below 40 have served to look at; `--seeds` takes your own. Below a scale of 1 there are fewer looks, and less time
for their forecasts; as many jobs arrive.
The row `look` is the time of a server's look at 5 and at 1,000 active jobs, and of how many it tells something. The row
`week/POLICY` is a week of 2,000 jobs of unknown lengths with four restarts: what a screen tells half-way between two
looks.
"""

from dataclasses import replace
from itertools import islice, product
from math import inf
from statistics import mean
from time import process_time

from benchmarks.forecast_runs import ForecastLooks, ForecastRun, Tally, forecast_run, generated_run, life_run
from benchmarks.needs import reference_data
from benchmarks.tables import Measured
from scheduler.core.commands import Command
from scheduler.core.core import SchedulerCore
from scheduler.core.events import Event, JobSubmitted
from scheduler.forecast.core_copy import snapshot_at_once
from scheduler.forecast.job_forecasts import ForecastQuestion, forecast_jobs
from scheduler.forecast.past_jobs import PastJobs
from scheduler.live.services.start_forecasts import DRAWS, refresh_cpu_s
from scheduler.world.attempts import AttemptCosts, SimulatedJob
from scheduler.world.engine import RunLimits
from scheduler.world.machines import PoolModel
from simulator.ground_truth import GroundTruth, LengthEstimates
from simulator.reports.baselines import BoundsChoice
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.shipped_configs import load_named_policy
from simulator.simulation import Scenario, Simulation
from simulator.workloads.formats import read_trace
from simulator.workloads.trace_binding import TraceBinding
from walras.cluster import Pool, PoolId, Shape

SEEDS, _LOOKS, _DRAWS, _JOBS = (40, 41, 42, 43, 44, 45), 12, 10, 100
#: So many times as many jobs arrive as are looked at: whoever is overtaken is overtaken to the end.
_ARRIVE = 4
#: Processor time for the forecasts of one run, seconds.
_FORECASTS_S = 90.0
_POLICIES = ("fifo", "srtf", "las", "walras")
_WORKLOADS = ("gavel", "poisson", "philly")
_LENGTHS = ("known", "unknown")
ROWS = (*map("/".join, product(_WORKLOADS, _POLICIES, _LENGTHS)), "week/fifo", "week/walras", "look")
#: Of generators: jobs an hour and what their lengths are multiplied by; the fleet is a third of the cluster's.
_MADE = {"gavel": (12.0, 0.1), "poisson": (10.0, 0.05)}
#: Jobs an hour of Gavel's generator where newcomers overtake: few enough that not ever more jobs wait.
_OVERTAKEN_PER_H = 10.0
#: Machines of eight that make a slice of Philly's trace wait; slices begin at jobs of their own.
_PHILLY_MACHINES = 3
_SLICES, _APART = 60, 1200
_COVER_LOW, _COVER_HIGH, _NARROWER = 0.75, 0.85, 0.5
#: A week: its jobs, how many come an hour, looks, and processor time for these, seconds.
_WEEK_JOBS, _WEEK_PER_H, _WEEK_LOOKS, _WEEK_S = 2000, 11.9, 168, 300.0


def measure(scale: float, row: str, seeds: tuple[int, ...]) -> list[Measured]:
    """One table of a row."""
    if row == "look":
        return [_look(scale)]
    if row.startswith("week/"):
        return [_week(scale, row.removeprefix("week/"), seeds[0])]
    workload, policy, lengths = row.split("/")
    many = max(100, round(_JOBS * scale))
    measured = Measured(
        f"forecasts of {workload} under `{policy}`, lengths {lengths}", f"{_ARRIVE * many} jobs, seeds {seeds}"
    )
    runs = []
    for seed in seeds:
        scenario, jobs = _prepare(workload, policy, seed, _ARRIVE * many)
        scenario = replace(scenario, lengths=LengthEstimates(known=lengths == "known"))
        looks, cpu_s = max(6, round(_LOOKS * scale)), _FORECASTS_S * scale
        chosen = ForecastLooks(looks, _DRAWS, cpu_s, seed, 1.0 / _ARRIVE, newcomers_wait=policy == "fifo")
        runs.append(forecast_run(scenario, jobs, chosen))
    _tell(measured, runs)
    return [measured]


def _tell(measured: Measured, runs: list[ForecastRun]) -> None:
    for what in ("starts", "ends"):
        tallies = [tally for tally in (getattr(run, what) for run in runs) if tally.done]
        if not tallies:
            continue
        covers = [tally.cover() for tally in tallies]
        widths = [tally.width_s() / max(tally.naive_width_s(), 1.0) for tally in tallies]
        many = sum(len(tally.done) for tally in tallies)
        together = Tally(done=[each for tally in tallies for each in tally.done])
        most = None if together.certain() > 0.5 else _COVER_HIGH
        measured.add(f"{what}: held, mean of {many}", mean(covers), "", at_least=_COVER_LOW, at_most=most)
        measured.add(f"{what}: as narrow as any is told", together.certain(), "")
        measured.add(f"{what}: held, worst seed", max(covers, key=lambda cover: abs(cover - 0.8)), "")
        measured.add(f"{what}: came before the interval, mean", mean(tally.early() for tally in tallies), "")
        measured.add(f"{what}: came after the interval, mean", mean(tally.late() for tally in tallies), "")
        measured.add(f"{what}: width over naive, mean", mean(widths), "", at_most=_NARROWER)
        measured.add(f"{what}: width over naive, worst seed", max(widths), "")
        measured.add(f"{what}: width, median", together.width_s(), "s")
        measured.add(
            f"{what}: width over naive of all seeds", together.width_s() / max(together.naive_width_s(), 1.0), ""
        )
    draws = sum(run.draws for run in runs)
    measured.add("jobs without an interval", sum(run.untold for run in runs), "")
    measured.add("intervals beyond the last arrival, not counted", sum(run.beyond for run in runs), "")
    floors = sum(run.floors for run in runs)
    measured.add("of these told to start or end after an instant", floors, "")
    if floors:
        measured.add("after it: held, of nine in ten", sum(run.floors_held for run in runs) / floors, "", at_least=0.9)
    measured.add("looks", sum(run.looks for run in runs), "")
    measured.add("a draw", 1e3 * sum(run.cpu_s for run in runs) / max(draws, 1), "ms")


def _prepare(workload: str, policy: str, seed: int, jobs: int) -> tuple[Scenario, list[SimulatedJob]]:
    if workload == "philly":
        return _philly(policy, seed, jobs)
    rate, stretch = _MADE[workload]
    if workload == "gavel" and policy != "fifo":
        rate = _OVERTAKEN_PER_H
    return generated_run(workload, policy, seed, jobs, (rate, stretch))


def _philly(policy: str, seed: int, jobs: int) -> tuple[Scenario, list[SimulatedJob]]:
    """A slice of Philly's jobs on so few machines that they wait."""
    first = _APART * (seed % _SLICES)
    trace = read_trace(reference_data() / "jobs" / "philly_2017.csv.gz")
    rows = list(islice(trace.jobs, first, first + jobs))
    pool = Pool(PoolId("p100"), Shape("p100x8", "p100", 8, 64.0, 2**39, nominal_speed=1.0))
    placing = TraceBinding({"p100": 1.0})
    bound = list(placing.jobs(rows))
    begins_at = bound[0].at
    spec, rules = load_named_policy(policy)
    truth = GroundTruth(placing.speeds, default_costs=AttemptCosts(start_s=30.0))
    scenario = Scenario((PoolModel(pool, machines=_PHILLY_MACHINES),), truth, spec, rules, seed=seed)
    return scenario, [replace(job, at=job.at - begins_at) for job in bound]


def _week(scale: float, policy: str, seed: int) -> Measured:
    """A week in which 2,000 jobs arrive."""
    many = round(_WEEK_JOBS * scale)
    measured = Measured(f"a week under `{policy}`, lengths unknown", f"{many} jobs, four restarts, seed {seed}")
    scenario, jobs = generated_run("poisson", policy, seed, many, (_WEEK_PER_H, _MADE["poisson"][1]))
    scenario = replace(scenario, lengths=LengthEstimates(known=False))
    chosen = ForecastLooks(0, DRAWS, _WEEK_S, seed, look_cpu_s=refresh_cpu_s(1))
    run = life_run(scenario, jobs, max(round(_WEEK_LOOKS * scale), 8), chosen)
    together = Tally(done=run.starts.done + run.ends.done)
    measured.add("told instants", len(together.done), "")
    measured.add("outside the interval", 1.0 - together.cover(), "", at_most=0.2)
    measured.add("before the interval", together.early(), "")
    measured.add("contradicted by the state", run.contradicted, "", at_most=0)
    measured.add("looks", run.looks, "")
    return measured


def _look(scale: float) -> Measured:
    """Five submissions of 12 s on six accelerators, and 1,000 jobs on 36."""
    measured = Measured("looks", "a server's refresh, lengths unknown")
    for many, span_s, policies, most_s in ((5, 12.0, ("walras",), 0.5), (round(1000 * scale), 900.0, _POLICIES, 10.0)):
        for policy in policies:
            source = WorkloadSource(
                "generate:poisson", made=GeneratorOptions(jobs=many, rate_per_h=3600.0 * many / span_s)
            )
            ready = prepare_run(RunSpec(source, "gavel-12-12-12", policy, 0, BoundsChoice.NONE))
            part = 6 if many == 5 else 1
            pools = tuple(replace(model, machines=model.machines // part) for model in ready.scenario.pools)
            limits = RunLimits(until_at=2 * span_s)
            simulation = Simulation(
                replace(ready.scenario, pools=pools, lengths=LengthEstimates(known=False), limits=limits)
            )
            past = PastJobs()

            def note(event: Event, _: list[Command], past: PastJobs = past) -> None:
                if isinstance(event, JobSubmitted):
                    past.arrived(event.at, event.job)

            simulation.run(ready.jobs, note)
            assert isinstance(simulation.core, SchedulerCore)
            began = process_time()
            snapshot = snapshot_at_once(simulation.core, 2 * span_s)
            active = len(snapshot.jobs)
            answer = forecast_jobs(ForecastQuestion(snapshot, past, DRAWS, refresh_cpu_s(active)))
            name = f"`{policy}`, {many} jobs"
            measured.add(f"{name}, a look", process_time() - began, "s", at_most=most_s)
            told = sum((each.start or each.end).p50 < inf for each in answer.jobs.values())
            measured.add(f"{name}, told of", told, "")
    return measured
