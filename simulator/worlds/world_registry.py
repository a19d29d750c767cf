"""The registry of worlds in which a run can happen: `walras`, exact and event-driven, and other simulators' worlds.

Only this module knows all of them. `WORLDS` describes each world and the policies that run there. The package of a
world is imported when a run in it is made, so a native run imports none of them. It turns a trace, a cluster and a
policy into a run, or raises a ConfigError that says what does not fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from optimizer.policy import PlanPolicy, PolicySpec
from optimizer.registry import make
from optimizer.registry import names as registered
from simulator.worlds.world_run import WorldRequest, WorldRun, reject_unsupported_jobs
from walras.errors import ConfigError
from walras.spec.file_model import nearest_word

#: The name of Walras's own world.
WALRAS = "walras"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWorld:
    """Another simulator's world."""

    name: str
    #: Description in one line.
    about: str
    #: The simulator's own policies, by its own names (a test compares them with those of its package).
    policies: tuple[str, ...]
    #: Whether Walras's plan policies run there too.
    takes_plans: bool = False
    #: Whether lower bounds are known.
    is_bounded: bool = False
    #: Whether the world takes a second folder that says how applications learn.
    learns: bool = False
    #: Imports the world's package and makes the run. Raises ConfigError if the request does not fit the world.
    make_run: Callable[[WorldRequest], WorldRun]


def _gavel(request: WorldRequest) -> WorldRun:
    from simulator.worlds.gavel.gavel_scenario import gavel_world_run

    return gavel_world_run(request)


def _pollux(request: WorldRequest) -> WorldRun:
    from simulator.worlds.pollux.pollux_scenario import pollux_world_run

    return pollux_world_run(request)


def _sia(request: WorldRequest) -> WorldRun:
    from simulator.worlds.sia.sia_scenario import sia_world_run

    return sia_world_run(request)


def _shockwave(request: WorldRequest) -> WorldRun:
    from simulator.worlds.shockwave.shockwave_scenario import shockwave_world_run

    return shockwave_world_run(request)


def _arena(request: WorldRequest) -> WorldRun:
    from simulator.worlds.arena.arena_scenario import arena_world_run

    return arena_world_run(request)


_FOREIGN_WORLDS = (
    ForeignWorld(
        name="gavel",
        about="Gavel's simulator (OSDI 2020): rounds of 360 s, solves 1,920 s apart, nothing costs time",
        policies=(
            "isolated", "fifo", "fifo_fixed", "fifo_perf", "fifo_packed", "allox", "max_min_fairness",
            "max_min_fairness_perf", "max_min_fairness_packed", "max_min_fairness_water_filling_perf",
            "finish_time_fairness", "finish_time_fairness_perf", "min_total_duration", "min_total_duration_perf",
            "min_total_duration_packed", "max_sum_throughput_perf", "max_sum_throughput_normalized_by_cost_perf",
            "max_sum_throughput_normalized_by_cost_perf_SLOs", "gandiva",
        ),
        is_bounded=True,
        make_run=_gavel,
    ),
    ForeignWorld(
        name="pollux",
        about="the Pollux artifact's (OSDI 2021): steps of 60 s, 30 s for every start, batches and gangs that adapt",
        policies=("tiresias", "optimus"),
        takes_plans=True,
        make_run=_pollux,
    ),
    ForeignWorld(
        name="sia",
        about="Sia's (SOSP 2023): the same on three types, restarts by application; its Gavel decides every 360 s",
        policies=("gavel",),
        takes_plans=True,
        learns=True,
        make_run=_sia,
    ),
    ForeignWorld(
        name="shockwave",
        about="Shockwave's (NSDI 2023): rounds of 120 s, 20 s lost by a start, batches that change as jobs train",
        policies=("gandiva_fair", "max_min_fairness", "max_sum_throughput_perf", "min_total_duration"),
        takes_plans=True,
        make_run=_shockwave,
    ),
    ForeignWorld(
        name="arena",
        about="Arena's (EuroSys 2026): rounds of 300 s on four types, gangs change type and size and are tuned then",
        policies=("fcfs",),
        takes_plans=True,
        is_bounded=True,
        make_run=_arena,
    ),
)  # fmt: skip
WORLDS: Mapping[str, ForeignWorld] = {world.name: world for world in _FOREIGN_WORLDS}


def find_world(name: str) -> ForeignWorld:
    """Returns another simulator's world. Raises ConfigError that suggests the nearest name."""
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
    """Returns the names of our policies that answer with a plan."""
    return tuple(name for name in registered() if isinstance(make(PolicySpec(name)), PlanPolicy))


def resolve_world_policy(world: ForeignWorld, name: str, spec: PolicySpec | None) -> tuple[PolicySpec, bool]:
    """Returns the policy of that name in the world, and whether it is the world's own.

    `spec` is our policy of that name, None if we have none. A bare name means the world's own policy before ours.
    Raises ConfigError where the world cannot run it.
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


def make_world_run(world: ForeignWorld, request: WorldRequest) -> WorldRun:
    """Makes the run. Raises ConfigError for a workload or a cluster that does not fit the world."""
    reject_unsupported_jobs(request)
    return world.make_run(request)
