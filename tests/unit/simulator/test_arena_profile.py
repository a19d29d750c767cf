"""Arena's places, rounds and tuning on cases small enough to follow by hand: rounds of 300 s on two types."""

from pathlib import Path

import pytest

from optimizer.policy import PolicySpec
from scheduler.world.engine import RunOutcome
from scheduler.world.machines import PoolModel
from simulator.reports.timeline import Timeline
from simulator.simulation import Scenario, SimulationResult, simulate
from simulator.workloads.trace_source import TraceJob
from simulator.worlds.arena.arena_scenario import (
    ARENA_TUNING,
    TUNING,
    ArenaConfigurations,
    ArenaModel,
    ArenaPlace,
    ArenaWorkload,
    PlaceTable,
    arena_plan_scenario,
    arena_scenario,
    arena_workload,
    pack_evenly,
    read_places,
)
from tests.support.arena_rounds import round_throughputs
from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError

HEADER = "model,params,batch_size,gpu_type,nodes,gpus_per_node,num_gpus,seconds_per_iteration,status\n"
#: A small bert is profiled on 1, 2 and 4 A100, a larger one on 8; neither fits one V100.
PLACES = HEADER + (
    "bert,760M,100,a100,1,1,1,10,ok\n"
    "bert,760M,100,a100,1,2,2,5,ok\n"
    "bert,760M,100,a100,1,4,4,2.5,ok\n"
    "bert,760M,100,a100,2,2,4,,absent\n"
    "bert,760M,100,a100,2,4,8,,absent\n"
    "bert,2.6B,100,a100,2,4,8,4,ok\n"
    "bert,760M,100,v100,1,1,1,,oom\n"
    "bert,760M,100,v100,1,2,2,400,over_300s\n"
    "bert,760M,100,v100,1,4,4,20,ok\n"
)
SIZES = {"a100": 4, "v100": 8}
SMALL = ArenaModel("bert", "760M", 100)


def _pool(name: str, machines: int) -> PoolModel:
    return PoolModel(Pool(PoolId(name), Shape(name, name, SIZES[name], 1.0, 1)), machines=machines)


#: Two machines of 4 A100 and one of 8 V100.
POOLS = (_pool("a100", 2), _pool("v100", 1))


@pytest.fixture
def places(tmp_path: Path) -> PlaceTable:
    path = tmp_path / "places.csv"
    path.write_text(PLACES)
    return read_places(path, SIZES)


def _row(at: float, gang: int, iterations: int, type_: str = "a100", name: str = "") -> TraceJob:
    """A job that has this many iterations to do."""
    return TraceJob(
        at, name or f"{at}-{gang}-{iterations}-{type_}", SMALL.kind, gang, (type_,), steps=5.0 * iterations + 4, line=1
    )


def _ends(result: SimulationResult) -> dict[int, float]:
    assert result.outcome is RunOutcome.COMPLETE
    assert result.violations == []
    return {int(job.job_id): job.ended_at for job in result.jobs}


def _fcfs(places: PlaceTable, *rows: TraceJob) -> dict[int, float]:
    made = arena_workload(rows, places)
    return _ends(simulate(made.jobs, arena_scenario(made, pools=POOLS)))


# ------------------------------------------------------------------------------------------------ places


@pytest.mark.parametrize(
    ("place", "samples_per_s"),
    [
        (ArenaPlace("a100", 1, 4), 40.0),
        (ArenaPlace("a100", 2, 2), 36.0),  # a tenth less than on one machine
        (ArenaPlace("a100", 4, 1), 32.4),
        (ArenaPlace("a100", 2, 4), 25.0 * 1.8**2),  # two steps below the model that was measured
        (ArenaPlace("v100", 1, 1), 0.0),
        (ArenaPlace("v100", 1, 2), 0.0),
        (ArenaPlace("v100", 1, 8), 0.0),  # nobody knows
    ],
)
def test_the_speed_of_a_place(places: PlaceTable, place: ArenaPlace, samples_per_s: float) -> None:
    """Measured, or by Arena's rules for what is absent."""
    assert places.throughput(SMALL, place) == pytest.approx(samples_per_s, abs=1e-9)


def test_uneven_parts_count_as_spread_over_more_machines(places: PlaceTable) -> None:
    """By the smallest part."""
    assert places.place_of("a100", (2, 2)) == ArenaPlace("a100", 2, 2)
    assert places.place_of("a100", (3, 1)) == ArenaPlace("a100", 4, 1)
    assert places.best_place("a100", 8) == ArenaPlace("a100", 2, 4)


def test_a_table_that_cannot_be_read_is_refused_by_line(tmp_path: Path) -> None:
    """A place twice, a word that is no status, nothing measured, a time below nothing."""
    bad = {
        "has this place twice": PLACES + "bert,760M,100,a100,1,1,1,10,ok\n",
        "status is 'fast'": HEADER + "bert,760M,100,a100,1,1,1,10,fast\n",
        "no place was measured": HEADER + "bert,760M,100,a100,1,1,1,,absent\n",
        "seconds_per_iteration is '-1'": HEADER + "bert,760M,100,a100,1,1,1,-1,ok\n",
        "gpu_type names 2 types": HEADER + "bert,760M,100,a100|v100,1,1,1,10,ok\n",
        "gpu_type names 0 types": HEADER + "bert,760M,100,,1,1,1,10,ok\n",
    }
    for told, text in bad.items():
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(ConfigError, match=told):
            read_places(tmp_path / "bad.csv", SIZES)


# ------------------------------------------------------------------------------------------------ rounds


def test_short_tuning_costs_throughput_and_long_tuning_a_round(places: PlaceTable) -> None:
    """30 iterations on one A100 take a round, 120 on four a round more than their time."""
    for rows, ends, throughputs in (
        ([_row(0.0, 1, 30), _row(0.0, 4, 120)], {1: 300.0, 2: 600.0}, [5.0, 0.0, 0.0]),
        ([_row(0.0, 4, 240)], {1: 900.0}, [0.0, 0.0, 40.0, 0.0]),
    ):
        made, timeline = arena_workload(rows, places), Timeline()
        assert _ends(simulate(made.jobs, arena_scenario(made, pools=POOLS), recorder=timeline.record)) == ends
        assert round_throughputs(timeline, made, len(throughputs)) == throughputs


# ------------------------------------------------------------------------------------------------ our policies


def _planned(made: ArenaWorkload, scenario: Scenario) -> dict[int, float]:
    return _ends(simulate(made.jobs, scenario))


def test_our_policies_choose_among_all_places(places: PlaceTable) -> None:
    """600 iterations asked for on one A100 take 20 rounds; alone, they have all eight A100, after a round of tuning."""
    made = arena_workload([_row(0.0, 1, 600)], places)
    ways = ArenaConfigurations.of(made, POOLS).by_kind[made.jobs[0].request.kind]
    assert [(way.pool, way.count) for way in ways] == [(0, 1), (0, 2), (0, 4), (0, 8), (1, 4)]
    assert _fcfs(places, _row(0.0, 1, 600)) == {1: 6000.0}
    assert _planned(made, arena_plan_scenario(made, PolicySpec("walras"), pools=POOLS)) == {1: 1200.0}


def test_a_change_of_place_is_tuned_again(places: PlaceTable) -> None:
    """A second job takes part of the A100: who shrinks loses a round again, and nothing where tuning is cheap."""
    rows = [_row(0.0, 4, 2000), _row(301.0, 4, 2000)]
    made = arena_workload(rows, places)
    dear, cheap = (
        _planned(made, arena_plan_scenario(made, PolicySpec("walras"), pools=POOLS, tuning=tuning))
        for tuning in (TUNING, ARENA_TUNING)
    )
    assert max(dear.values()) >= max(cheap.values()) + 300.0


def test_parts_are_halved_where_no_machine_has_room() -> None:
    """The fullest machines that fit come first; what is uneven comes last."""
    assert pack_evenly({0: 4, 1: 2, 2: 3}, 2, 2) == ((1, 2),)
    assert pack_evenly({0: 2, 1: 2, 2: 3}, 4, 4) == ((0, 2), (1, 2))
    assert pack_evenly({0: 3, 1: 1}, 4, 4) == ((0, 3), (1, 1))


# ------------------------------------------------------------------------------------------------ what does not fit


def test_what_the_table_does_not_have_is_refused(places: PlaceTable) -> None:
    bad = {
        "no place of 'gpt 1T'": TraceJob(0.0, "a", "gpt 1T", 1, ("a100",), steps=10.0, line=7),
        "line 7: 'a' names no type": TraceJob(0.0, "a", SMALL.kind, 1, ("h100",), steps=10.0, line=7),
        "cannot run on 1 x v100": _row(0.0, 1, 10, "v100"),
        "cannot run on 3 x a100": _row(0.0, 3, 10),
        "has nothing to do": _row(0.0, 1, 0),
    }
    for told, row in bad.items():
        with pytest.raises(ConfigError, match=told):
            arena_workload([row], places)
