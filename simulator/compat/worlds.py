"""The worlds that a run may happen in, by name: `walras`, exact and event-driven, and those of other simulators.

The one place that knows all of them. What a world is, is in its own package; here a trace, a cluster and a policy
become a run in it, or a ConfigError says what does not fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.registry import make
from optimizer.registry import names as registered
from simulator.compat.foreign import Asked, ForeignRun, only_pool, owned_pools, refuse_strange_rows, speeds_needed
from simulator.compat.gavel import profile as gavel
from simulator.compat.gavel.rounds import TYPE_ORDER
from simulator.compat.pollux import adaptive as pollux_ours
from simulator.compat.pollux import applications as pollux_applications
from simulator.compat.pollux import profile as pollux
from simulator.compat.shockwave import planned as shockwave_ours
from simulator.compat.shockwave import profile as shockwave
from simulator.compat.shockwave.fairness import alone_s as shockwave_alone_s
from simulator.compat.sia import adaptive as sia_ours
from simulator.compat.sia import profile as sia
from simulator.compat.sia import workload as sia_workload
from simulator.gavel import read_pairs, read_throughputs
from simulator.goodput.placement import packed
from simulator.machines import PoolModel
from simulator.truth import Truth
from simulator.workload import table_of, trace_experiment
from simulator.workloads.placing import Placing, nominal_speeds
from walras.checking import nearest
from walras.errors import ConfigError
from walras.ids import JobId

#: The world that is no other simulator's.
WALRAS = "walras"
#: Sia's names of the types that it measured, by ours.
_SIA_TYPES = {"t4": "aws", "a100-40gb": "dgx-ext", "rtx-2080ti": "rtx"}
_T4 = "t4"


def _gavel(asked: Asked) -> ForeignRun:
    pools = owned_pools(asked)
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types) or not set(types) <= set(TYPE_ORDER):
        raise ConfigError(
            f"world 'gavel' has one pool each of {', '.join(TYPE_ORDER)}, the cluster has {', '.join(types)}",
            field="cluster",
            fix="choose a cluster such as gavel-12-12-12",
        )
    experiment = trace_experiment(asked.trace, asked.cluster, asked.speeds)
    if experiment.truth.laws:
        raise ConfigError(
            "world 'gavel' has speeds that never change, and --speeds gives laws",
            field="speeds",
            fix="give a throughput table",
        )
    table = table_of(asked.trace, asked.speeds)
    truth = experiment.truth if table is None else replace(experiment.truth, pairs=read_pairs(table, types))
    return ForeignRun(experiment.jobs, gavel.gavel_scenario(pools, truth, asked.policy.name, seed=asked.seed))


def _pollux(asked: Asked) -> ForeignRun:
    pool = only_pool(asked)
    shape = pool.pool.shape
    if shape.accelerator != _T4:
        raise ConfigError(
            f"world 'pollux' was measured on {_T4}, the cluster has {shape.accelerator}",
            field="cluster",
            fix="choose a cluster such as pollux-64",
        )
    known = pollux_applications.read_applications(speeds_needed(asked, "a folder of the artifact's profiles"))
    made = pollux_applications.workload_of(asked.trace.jobs, known, pool.pool, pool.machines)
    alone_s = {}
    for job in made.jobs:
        training = made.trainings[job.request.kind]
        place = packed(job.request.demands[0].count, shape.accelerators)
        alone_s[job.request.job_id] = job.steps / training.mean_steps_per_s(place)
    if asked.is_own:
        return ForeignRun(made.jobs, pollux.pollux_scenario(made, asked.policy.name, pool=pool), alone_s)
    return ForeignRun(made.jobs, pollux_ours.planned_scenario(made, asked.policy, pool=pool), alone_s)


def _sia(asked: Asked) -> ForeignRun:
    pools = tuple(sorted(map(_by_sias_name, owned_pools(asked)), key=lambda model: model.pool.shape.accelerator))
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types):
        raise ConfigError("world 'sia' has one pool of each type", field="cluster", fix="choose sia-64")
    steps = speeds_needed(asked, "a folder of Sia's profiles")
    made = sia_workload.workload_of(
        asked.trace.jobs, sia_workload.read_applications(asked.learning or steps, steps, types), pools
    )
    alone_s = {job.request.job_id: _sia_alone_s(made, job.request.job_id, pools) for job in made.jobs}
    if asked.is_own:
        return ForeignRun(made.jobs, sia.sia_scenario(made, asked.policy.name, pools=pools), alone_s)
    return ForeignRun(made.jobs, sia_ours.planned_scenario(made, asked.policy, pools=pools), alone_s)


def _by_sias_name(model: PoolModel) -> PoolModel:
    shape = model.pool.shape
    name = _SIA_TYPES.get(shape.accelerator)
    if name is None:
        raise ConfigError(
            f"world 'sia' was measured on {', '.join(_SIA_TYPES)}, the cluster has {shape.accelerator}",
            field="cluster",
            fix="choose a cluster such as sia-64",
        )
    return replace(model, pool=replace(model.pool, shape=replace(shape, accelerator=name)))


def _sia_alone_s(made: sia_workload.SiaWorkload, job_id: JobId, pools: tuple[PoolModel, ...]) -> float:
    """On the fastest type, with the gang and the batch of the workload."""
    job = made.jobs[job_id - 1]  # numbered from 1 in their order
    gang, speeds = job.request.demands[0].count, []
    for model in pools:
        shape = model.pool.shape
        if gang <= shape.accelerators * model.machines:
            training = made.trainings[job.request.kind][shape.accelerator]
            speeds.append(training.mean_steps_per_s(packed(gang, shape.accelerators)))
    return job.steps / max(speeds)


def _shockwave(asked: Asked) -> ForeignRun:
    pool = only_pool(asked)
    accelerator = pool.pool.shape.accelerator
    truth = Truth(read_throughputs(speeds_needed(asked, "a throughput table")))
    rows = asked.trace.jobs
    batchings = shockwave.batchings_of(rows)
    jobs = list(Placing(nominal_speeds(asked.cluster), table=truth.speeds, source=asked.trace.source).jobs(rows))
    alone_s = {
        job.request.job_id: shockwave_alone_s(batchings[job.request.job_id], int(job.steps), truth, accelerator)
        for job in jobs
    }
    # The profile's check of gangs holds for both.
    if asked.is_own:
        return ForeignRun(jobs, shockwave.shockwave_scenario(pool, truth, asked.policy.name, batchings), alone_s)
    return ForeignRun(jobs, shockwave_ours.planned_scenario(pool, truth, asked.policy, batchings), alone_s)


# ------------------------------------------------------------------------------------------------- the registry


@dataclass(frozen=True, slots=True)
class OtherWorld:
    """Another simulator's world."""

    name: str
    #: What it is, in one line.
    told: str
    #: Its own policies, by its own names.
    policies: tuple[str, ...]
    #: Plan policies of ours run there too.
    takes_plans: bool
    #: Speeds and steps say how long a job takes, so lower bounds hold.
    is_bounded: bool
    #: It may be told apart from the speeds how applications learn.
    learns: bool
    run_of: Callable[[Asked], ForeignRun]


_OTHERS = (
    OtherWorld(
        "gavel",
        "Gavel's simulator (OSDI 2020): rounds of 360 s, solves 1,920 s apart, nothing costs time",
        gavel.policy_names(),
        False,
        True,
        False,
        _gavel,
    ),
    OtherWorld(
        "pollux",
        "the Pollux artifact's (OSDI 2021): steps of 60 s, 30 s for every start, batches and gangs that adapt",
        pollux.policy_names(),
        True,
        False,
        False,
        _pollux,
    ),
    OtherWorld(
        "sia",
        "Sia's (SOSP 2023): the same on three types, restarts by application; its Gavel decides every 360 s",
        sia.policy_names(),
        True,
        False,
        True,
        _sia,
    ),
    OtherWorld(
        "shockwave",
        "Shockwave's (NSDI 2023): rounds of 120 s, 20 s lost by a start, batches that change as jobs train",
        shockwave.policy_names(),
        True,
        False,
        False,
        _shockwave,
    ),
)
WORLDS: Mapping[str, OtherWorld] = {world.name: world for world in _OTHERS}


def world_named(name: str) -> OtherWorld:
    """Another simulator's world. Raises ConfigError naming the nearest."""
    if name not in WORLDS:
        known = (WALRAS, *WORLDS)
        meant = nearest(name, known)
        raise ConfigError(
            f"no world is called {name!r}",
            field="world",
            fix=f"did you mean {meant!r}?" if meant else f"name one of {', '.join(known)}",
        )
    return WORLDS[name]


def plan_policies() -> tuple[str, ...]:
    """Policies of ours that answer a plan."""
    return tuple(name for name in registered() if isinstance(make(PolicySpec(name)), PlanPolicy))


def fitting(world: OtherWorld, name: str, spec: PolicySpec | None) -> tuple[PolicySpec, bool]:
    """The policy of that name in the world, and whether it is the world's own.

    `spec`: what the name means among ours; None: nothing. A bare name is the world's own before it is ours. Raises
    ConfigError where the world cannot run it.
    """
    if name in world.policies:
        return PolicySpec(name), True
    if spec is not None and world.takes_plans and isinstance(make(spec), PlanPolicy):
        return spec, False
    known = (*world.policies, *(plan_policies() if world.takes_plans else ()))
    meant = nearest(name, known)
    why = ", which answers no plan" if world.takes_plans else ": only its own policies run there"
    raise ConfigError(
        f"world {world.name!r} cannot run policy {name!r}" + (why if spec is not None else ""),
        field="policy",
        fix=f"did you mean {meant!r}?" if meant else f"name one of {', '.join(dict.fromkeys(known))}",
    )


def foreign_run(world: OtherWorld, asked: Asked) -> ForeignRun:
    """The run. Raises ConfigError for a workload or a cluster that does not fit the world."""
    refuse_strange_rows(asked)
    return world.run_of(asked)
