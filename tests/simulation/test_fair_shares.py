"""Projects and users under `walras`: a flood of one does not keep the few of another waiting; one alone is as ever."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.bench_fairness import POLICIES, flood_of, flooded_fleet, waits_and_times
from optimizer.assignment.fair_standing import FairnessTerms, fair_standing
from optimizer.policies.walras import Walras
from optimizer.policy import PolicySpec
from optimizer.problem import Entities, FloatArray, Problem
from simulator.simulation import simulate
from tests.support.problems import Setting, build

HOUR_S = 3600.0


def shared(jobs_of_ada: int, jobs_of_bob: int, capacity: float = 4.0, at: float = 0.0) -> Problem:
    """Jobs of one accelerator each, of two users of one project, on one pool."""
    n = jobs_of_ada + jobs_of_bob
    problem = build(Setting([[1.0]] * n, [capacity]))
    entity = np.array([1] * jobs_of_ada + [2] * jobs_of_bob, dtype=np.int64)
    tree = Entities(("lab", "lab/ada", "lab/bob"), np.ones(3), np.array([-1, 0, 0], dtype=np.int64))
    return replace(problem, at=at, jobs=replace(problem.jobs, entity=entity), entities=tree)


def lengths(jobs: int) -> FloatArray:
    """An hour each."""
    return np.full(jobs, HOUR_S)


@pytest.mark.parametrize("seed", range(3))
def test_a_flood_does_not_keep_the_few_waiting(seed: int) -> None:
    """Bob's first jobs start within a round or so of being due; without fairness they wait for the flood."""
    flood = 100
    waits, mean_s = waits_and_times(seed, POLICIES["walras"], flood)
    without, mean_without_s = waits_and_times(seed, POLICIES["walras, no users"], flood)
    even, _ = waits_and_times(seed, POLICIES["max-min"], flood)
    assert waits <= 2 * 360.0
    assert waits <= 1.5 * even
    assert waits < without / 3
    assert mean_s <= 1.06 * mean_without_s  # a third of the flood: six jobs weigh three times as much


def test_one_user_alone_is_decided_for_as_without_users() -> None:
    """The same starts at the same instants, and the same memory, digit by digit."""
    jobs = [replace(job, request=replace(job.request, user="ada")) for job in flood_of(1, 40)]
    plain = simulate(jobs, flooded_fleet(PolicySpec("walras", {"fairness": 0.0})))
    fair = simulate(jobs, flooded_fleet(PolicySpec("walras")))
    assert fair.jobs == plain.jobs
    alone = shared(5, 0)
    assert fair_standing(alone, None, lengths(5), np.ones(5), FairnessTerms(60.0, HOUR_S)) is None
    told, memory = Walras().decide(alone, None)
    assert memory == {"overdue": []}
    assert told.column.tolist() == Walras(fairness=0.0).decide(alone, None)[0].column.tolist()


def test_who_is_behind_its_share_gains_worth_by_the_second_and_loses_it_when_served() -> None:
    before = {"fair": {"at": 0.0, "deficit": {"lab/bob": 0.0}, "rate": {"lab/bob": 2.0, "lab/ada": -2.0}}}
    length_s = np.array([HOUR_S] * 5 + [2 * HOUR_S] * 3)
    standing = fair_standing(
        shared(4, 4, at=1800.0), before, length_s, np.arange(8.0, 0.0, -1.0), FairnessTerms(8.0, 1e9)
    )
    assert standing is not None
    # Two accelerators are his share: an hour's half without them is half an hour behind, half the length of his first
    # job and a quarter of the others'. Half a turn behind, half as much again is due to him: three places.
    assert standing.factor.tolist() == pytest.approx(
        [1.0, 1.0, 1.0 / 1.1, 1.0 / 1.1, 1.0 + 8.0 / 2, 1.0 + 8.0 / 4, 1.0 + 8.0 / 4, 1.0 / 1.1]
    )
    served = standing.remembered(shared(4, 4), np.array([0, -1, -1, -1, 4, 5, 6, -1]))
    assert served["rate"] == {"lab/ada": 1.0, "lab/bob": -1.0}  # of two for each, one and three


def test_old_deficits_fade_and_entitlements_follow_demand() -> None:
    before = {"fair": {"at": 0.0, "deficit": {"lab/bob": 800.0}, "rate": {}}}
    standing = fair_standing(shared(9, 1, at=HOUR_S), before, lengths(10), np.ones(10), FairnessTerms(8.0, HOUR_S))
    assert standing is not None
    assert standing.deficit.tolist() == pytest.approx([0.0, 0.0, 400.0])
    # Bob asks for one of four; the rest of his share is Ada's.
    assert standing.entitled.tolist() == pytest.approx([4.0, 3.0, 1.0])


def test_a_part_of_a_place_is_due_once_it_has_added_up_to_one_for_a_turn() -> None:
    """Shares of 1.5 accelerators: who has one gains nothing for a second job until half a place is owed for an hour,
    and then for one job alone; and who has two asks for a third with less worth than a running job has.
    """
    problem = shared(3, 3, capacity=3.0)
    problem = replace(problem, columns=replace(problem.columns, running=np.array([1, 1, 0, 1, 0, 0], dtype=bool)))
    worth = np.array([3.0, 2.0, 1.0] * 2)
    standing = fair_standing(problem, None, lengths(6), worth, FairnessTerms(8.0, HOUR_S))
    assert standing is not None
    memory = {"fair": standing.remembered(problem, np.array([0, 1, -1, 3, -1, -1]))}
    assert memory["fair"]["rate"] == {"lab/bob": 0.5}
    more = 1.0 / 1.1
    for hours, gains in ((0.9, [True, False, False]), (1.1, [True, True, False]), (2.9, [True, True, False])):
        later = fair_standing(replace(problem, at=hours * HOUR_S), memory, lengths(6), worth, FairnessTerms(8.0, 1e9))
        assert later is not None
        behind = 1.0 + 8.0 * hours * 0.5 / 1.5
        assert later.factor[:3].tolist() == pytest.approx([1.0, 1.0, more])
        waiting = [more if at else 1.0 for at in range(3)]
        assert later.factor[3:].tolist() == pytest.approx(
            [behind if gain else plain for gain, plain in zip(gains, waiting, strict=True)]
        )
    assert standing.remembered(problem, np.array([0, 1, 2, -1, -1, -1]))["rate"]["lab/bob"] == 1.5


def test_a_user_behind_takes_from_its_project_alone() -> None:
    """Two projects, both with what is theirs; in one a user has nothing: only among its jobs does that change worth."""
    more = build(Setting([[1.0]] * 6, [4.0]))
    entity = np.array([1, 1, 2, 2, 4, 4], dtype=np.int64)
    tree = Entities(
        ("lab", "lab/ada", "lab/bob", "x", "x/eve"), np.ones(5), np.array([-1, 0, 0, -1, 3], dtype=np.int64)
    )
    problem = replace(more, at=HOUR_S, jobs=replace(more.jobs, entity=entity), entities=tree)
    before = {"fair": {"at": HOUR_S, "deficit": {"lab/bob": HOUR_S}, "rate": {}}}
    standing = fair_standing(problem, before, lengths(6), np.ones(6), FairnessTerms(8.0, 1e9))
    assert standing is not None
    assert standing.factor.tolist() == pytest.approx([1.0 / 9.9] * 2 + [1.0] * 4)
