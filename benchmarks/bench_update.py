"""One job comes or goes in a solved market: how long until a certified answer, how tight it is, and how to tighten it.

Jobs leave at random and as many come, so the market keeps its size and changes its members. An event is `arrive` or
`leave` and reading the certificate. Whenever the gap passes 1e-3 the market is certified again.
"""

from time import perf_counter

import numpy as np

from benchmarks.instances import Drawn, Instance, draw
from benchmarks.seeds.incremental_dual import (
    ArrivingMember,
    ClassMembers,
    IncrementalSolver,
    proportional_level,
)
from benchmarks.tables import Measured
from optimizer.classes.class_problem import MaxSum, NashWelfare, Objective

_EVENTS = 1200
_GAPS = (50, 200, 1200)
_TOO_WIDE = 1e-3


def _objectives(drawn: Drawn) -> dict[str, Objective]:
    market = drawn.market
    owner = market.owner
    worth = drawn.speed / drawn.equal_speed[owner]
    best = np.maximum.reduceat(worth, market.first[:-1])
    floor = np.where(np.arange(market.classes) % 5 == 0, 0.05 * best, 0.0)
    return {
        "max-min": proportional_level(market, worth, drawn.weight / drawn.gang),
        "throughput": MaxSum(worth, worth, np.zeros(market.classes)),
        "throughput with floors": MaxSum(worth, worth, floor),
        "proportional fairness": NashWelfare(worth, drawn.weight),
    }


def _newcomers(instance: Instance, name: str, count: int) -> list[ArrivingMember]:
    drawn = draw(Instance(max(count, 1000), instance.pools, instance.load, seed=instance.seed + 1))
    roster = ClassMembers(drawn.market, _objectives(drawn)[name])
    return [roster.entrant(handle) for handle in range(count)]


def _measure(instance: Instance, name: str, measured: Measured, *, judged: bool) -> None:
    drawn = draw(instance)
    newcomers = _newcomers(instance, name, _EVENTS // 2)
    began = perf_counter()
    standing = IncrementalSolver(drawn.market, _objectives(drawn)[name])
    measured.add(f"{name}: first solve with its probes", perf_counter() - began, "s")

    rng = np.random.default_rng(0)
    present = list(range(drawn.market.classes))
    event_ms, again_ms, gaps = [], [], []
    for event in range(_EVENTS):
        leaver = int(rng.integers(len(present)))
        began = perf_counter()
        if event % 2:
            standing.leave(present[leaver])
        else:
            present.append(standing.arrive(newcomers[event // 2]))
        gap = standing.certificate.gap
        event_ms.append(1e3 * (perf_counter() - began))
        if event % 2:
            present[leaver] = present[-1]
            present.pop()
        gaps.append(gap)
        if gap > _TOO_WIDE or event == _EVENTS - 1:
            began = perf_counter()
            gap = standing.recertify().gap
            again_ms.append(1e3 * (perf_counter() - began))
    measured.add(f"{name}: event, median", float(np.median(event_ms)), "ms", at_most=2.0)
    measured.add(f"{name}: event, 99 of 100", float(np.quantile(event_ms, 0.99)), "ms")
    for after in _GAPS:
        measured.add(
            f"{name}: gap after {after} events", gaps[after - 1], "", at_most=_TOO_WIDE if after == 50 else None
        )
    measured.add(f"{name}: solves in {_EVENTS} events because the gap was above 1e-3", len(again_ms) - 1, "")
    measured.add(f"{name}: certified again, median", float(np.median(again_ms)), "ms", at_most=50.0 if judged else None)
    measured.add(f"{name}: gap then", gap, "", at_most=1e-4)


def measure(scale: float = 1.0) -> list[Measured]:
    """The daily size, for which the targets hold, and a large one."""
    results = []
    for jobs, pools, judged in ((10_000, 8, True), (100_000, 16, False)):
        instance = Instance(max(int(jobs * scale), 500), pools)
        names = list(_objectives(draw(Instance(500, pools))))
        _measure(Instance(500, pools), names[0], Measured("", ""), judged=False)  # compiles
        measured = Measured("one job comes or goes", f"{instance.jobs} jobs x {pools} pools, one column each, seed 0")
        for name in names if judged else names[:2]:
            _measure(instance, name, measured, judged=judged)
        results.append(measured)
    return results
