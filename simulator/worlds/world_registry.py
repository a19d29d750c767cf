"""The worlds that a run may happen in, by name: `walras`, exact and event-driven, and those of other simulators.

The only module that knows all of them. Each world's own package turns a trace, a cluster and a policy into a run, or
raises a ConfigError that says what does not fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.registry import make
from optimizer.registry import names as registered
from simulator.experiment import speeds_path_of, trace_experiment
from simulator.goodput.application import packed_layout
from simulator.ground_truth import GroundTruth
from simulator.machines import PoolModel
from simulator.workloads.application_profiles import read_pollux_applications
from simulator.workloads.speed_tables import read_pair_speeds, read_throughput_table
from simulator.workloads.trace_binding import TraceBinding, nominal_speeds
from simulator.worlds.gavel import gavel_scenario as gavel
from simulator.worlds.gavel.gavel_rounds import TYPE_ORDER
from simulator.worlds.pollux import pollux_scenario as pollux
from simulator.worlds.pollux import pollux_scenario as pollux_ours
from simulator.worlds.pollux import pollux_training as pollux_applications
from simulator.worlds.shockwave import shockwave_scenario as shockwave
from simulator.worlds.shockwave import shockwave_scenario as shockwave_ours
from simulator.worlds.shockwave.shockwave_batches import shockwave_alone_s
from simulator.worlds.sia import sia_scenario as sia
from simulator.worlds.sia import sia_scenario as sia_ours
from simulator.worlds.sia import sia_training as sia_workload
from simulator.worlds.world_run import (
    WorldRequest,
    WorldRun,
    only_pool,
    owned_pools,
    reject_unsupported_jobs,
    required_speeds,
)
from walras.errors import ConfigError
from walras.job_request import JobId
from walras.spec.file_model import nearest_word

#: The world that is no other simulator's.
WALRAS = "walras"
#: Sia's names of the types that it measured, by ours.
_SIA_TYPES = {"t4": "aws", "a100-40gb": "dgx-ext", "rtx-2080ti": "rtx"}
_T4 = "t4"


def _gavel(asked: WorldRequest) -> WorldRun:
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
    table = speeds_path_of(asked.trace, asked.speeds)
    truth = experiment.truth if table is None else replace(experiment.truth, pairs=read_pair_speeds(table, types))
    return WorldRun(experiment.jobs, gavel.gavel_scenario(pools, truth, asked.policy.name, seed=asked.seed))


def _pollux(asked: WorldRequest) -> WorldRun:
    pool = only_pool(asked)
    shape = pool.pool.shape
    if shape.accelerator != _T4:
        raise ConfigError(
            f"world 'pollux' was measured on {_T4}, the cluster has {shape.accelerator}",
            field="cluster",
            fix="choose a cluster such as pollux-64",
        )
    known = read_pollux_applications(required_speeds(asked, "a folder of the artifact's profiles"))
    made = pollux_applications.pollux_workload(asked.trace.jobs, known, pool.pool, pool.machines)
    alone_s = {}
    for job in made.jobs:
        training = made.trainings[job.request.kind]
        place = packed_layout(job.request.demands[0].count, shape.accelerators)
        alone_s[job.request.job_id] = job.steps / training.mean_steps_per_s(place)
    if asked.is_own:
        return WorldRun(made.jobs, pollux.pollux_scenario(made, asked.policy.name, pool=pool), alone_s)
    return WorldRun(made.jobs, pollux_ours.pollux_plan_scenario(made, asked.policy, pool=pool), alone_s)


def _sia(asked: WorldRequest) -> WorldRun:
    pools = tuple(sorted(map(_with_sia_type, owned_pools(asked)), key=lambda model: model.pool.shape.accelerator))
    types = [model.pool.shape.accelerator for model in pools]
    if len(set(types)) < len(types):
        raise ConfigError("world 'sia' has one pool of each type", field="cluster", fix="choose sia-64")
    steps = required_speeds(asked, "a folder of Sia's profiles")
    made = sia_workload.sia_workload(
        asked.trace.jobs, sia_workload.read_sia_applications(asked.learning or steps, steps, types), pools
    )
    alone_s = {job.request.job_id: _sia_alone_s(made, job.request.job_id, pools) for job in made.jobs}
    if asked.is_own:
        return WorldRun(made.jobs, sia.sia_scenario(made, asked.policy.name, pools=pools), alone_s)
    return WorldRun(made.jobs, sia_ours.sia_plan_scenario(made, asked.policy, pools=pools), alone_s)


def _with_sia_type(model: PoolModel) -> PoolModel:
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
            speeds.append(training.mean_steps_per_s(packed_layout(gang, shape.accelerators)))
    return job.steps / max(speeds)


def _shockwave(asked: WorldRequest) -> WorldRun:
    pool = only_pool(asked)
    accelerator = pool.pool.shape.accelerator
    truth = GroundTruth(read_throughput_table(required_speeds(asked, "a throughput table")))
    rows = asked.trace.jobs
    batchings = shockwave.batch_schedules(rows)
    jobs = list(TraceBinding(nominal_speeds(asked.cluster), table=truth.speeds, source=asked.trace.source).jobs(rows))
    alone_s = {
        job.request.job_id: shockwave_alone_s(batchings[job.request.job_id], int(job.steps), truth, accelerator)
        for job in jobs
    }
    # The profile's check of gangs holds for both.
    if asked.is_own:
        return WorldRun(jobs, shockwave.shockwave_scenario(pool, truth, asked.policy.name, batchings), alone_s)
    return WorldRun(jobs, shockwave_ours.shockwave_plan_scenario(pool, truth, asked.policy, batchings), alone_s)


# ------------------------------------------------------------------------------------------------- the registry


@dataclass(frozen=True, slots=True)
class ForeignWorld:
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
    run_of: Callable[[WorldRequest], WorldRun]


_FOREIGN_WORLDS = (
    ForeignWorld(
        "gavel",
        "Gavel's simulator (OSDI 2020): rounds of 360 s, solves 1,920 s apart, nothing costs time",
        gavel.gavel_policy_names(),
        False,
        True,
        False,
        _gavel,
    ),
    ForeignWorld(
        "pollux",
        "the Pollux artifact's (OSDI 2021): steps of 60 s, 30 s for every start, batches and gangs that adapt",
        pollux.pollux_policy_names(),
        True,
        False,
        False,
        _pollux,
    ),
    ForeignWorld(
        "sia",
        "Sia's (SOSP 2023): the same on three types, restarts by application; its Gavel decides every 360 s",
        sia.sia_policy_names(),
        True,
        False,
        True,
        _sia,
    ),
    ForeignWorld(
        "shockwave",
        "Shockwave's (NSDI 2023): rounds of 120 s, 20 s lost by a start, batches that change as jobs train",
        shockwave.shockwave_policy_names(),
        True,
        False,
        False,
        _shockwave,
    ),
)
WORLDS: Mapping[str, ForeignWorld] = {world.name: world for world in _FOREIGN_WORLDS}


def find_world(name: str) -> ForeignWorld:
    """Another simulator's world. Raises ConfigError naming the nearest."""
    if name not in WORLDS:
        known = (WALRAS, *WORLDS)
        meant = nearest_word(name, known)
        raise ConfigError(
            f"no world is called {name!r}",
            field="world",
            fix=f"did you mean {meant!r}?" if meant else f"name one of {', '.join(known)}",
        )
    return WORLDS[name]


def plan_policy_names() -> tuple[str, ...]:
    """Policies of ours that answer a plan."""
    return tuple(name for name in registered() if isinstance(make(PolicySpec(name)), PlanPolicy))


def resolve_world_policy(world: ForeignWorld, name: str, spec: PolicySpec | None) -> tuple[PolicySpec, bool]:
    """The policy of that name in the world, and whether it is the world's own.

    `spec`: what the name means among ours; None: nothing. A bare name is the world's own before it is ours. Raises
    ConfigError where the world cannot run it.
    """
    if name in world.policies:
        return PolicySpec(name), True
    if spec is not None and world.takes_plans and isinstance(make(spec), PlanPolicy):
        return spec, False
    known = (*world.policies, *(plan_policy_names() if world.takes_plans else ()))
    meant = nearest_word(name, known)
    why = ", which answers no plan" if world.takes_plans else ": only its own policies run there"
    raise ConfigError(
        f"world {world.name!r} cannot run policy {name!r}" + (why if spec is not None else ""),
        field="policy",
        fix=f"did you mean {meant!r}?" if meant else f"name one of {', '.join(dict.fromkeys(known))}",
    )


def make_world_run(world: ForeignWorld, asked: WorldRequest) -> WorldRun:
    """The run. Raises ConfigError for a workload or a cluster that does not fit the world."""
    reject_unsupported_jobs(asked)
    return world.run_of(asked)
