"""Plans of one job over two types of accelerator: every useful pair, as an enumeration of all plans has it."""

from itertools import product
from math import ceil, inf, log2

import pytest

from optimizer.planning.mixed_plans import MixedPlan, plan_mixes, thinned
from tests.support.layer_profiles import FAST, LAYERS, SLOW, small_profile
from walras.cli.plan_mixes_commands import model_profile
from walras.spec.file_model import check_model
from walras.spec.layer_profile_file import LayerProfileFile

NAMES = (FAST, SLOW)
MOST = (5, 6)
_CUTS = {1: [(0, 3)], 2: [(0, 1), (1, 3)], 3: [(0, 1), (1, 2), (2, 3)]}


def _menu(data: dict, names: tuple[str, ...] = NAMES, most: tuple[int, int] = MOST) -> list[MixedPlan]:
    return plan_mixes(model_profile(check_model(LayerProfileFile, data, source="test"), list(names)), most)


class _Definition:
    """The time of a plan, written out once more from the file."""

    def __init__(self, data: dict) -> None:
        self.data = data

    def link_s(self, sender: int, has: int, receiver: int, there: int, size: float) -> float:
        high, low = self.data["links"][NAMES[sender]][str(has)][NAMES[receiver]][str(there)]["polynomial"]
        return size / 1e9 / (high * log2(size / 1e6) + low)

    def fits(self, kind: int, degree: int, samples: int, stages: int, stage: int) -> bool:
        held = 0.0
        for layer in range(*_CUTS[stages][stage]):
            size = self.data["layer_sizes"][str(degree)][layer]
            held += 6 * size["params_bytes"] + samples * (stages - stage) * size["act_mem_bytes"]
        return held + (2e9 if degree == 1 else 3e9) <= self.data["gpu_memory_gb"][NAMES[kind]] * 2**30

    def exchange_s(self, kind: int, has: int, size: float, replicas: int) -> float:
        total = 0.0
        while replicas > 1 and size > 0:
            bucket = min(size, 5e8)
            total += 2 * (replicas - 1) * self.link_s(kind, has, kind, has, bucket // replicas)
            size -= bucket
        return total

    def step_s(self, samples: int, held: list[list[tuple[int, int]]]) -> float:
        """By the (type, degree) of each stage's replicas, in order."""
        stages, replicas = len(held), len(held[0])
        own, sent, exchange = [], [], 0.0
        for stage, cut in enumerate(_CUTS[stages]):
            ways = sorted(set(held[stage]))
            rows = {
                way: self.data["profiles"][NAMES[way[0]]][str(samples)][str(way[1])][cut[0] : cut[1]] for way in ways
            }
            own.append(max(sum(row[0] + row[1] for row in rows[way]) for way in ways))
            size = sum(self.data["layer_sizes"]["1"][layer]["params_bytes"] for layer in range(*cut))
            slow = min(ways, key=lambda way: self.data["links"][NAMES[way[0]]][str(way[1])][NAMES[way[0]]][str(way[1])]
                       ["max_bytes_per_s"])[0]  # fmt: skip
            exchange = max(exchange, self.exchange_s(slow, min(way[1] for way in ways), size, replicas))
            if stage + 1 < stages:
                output = samples * self.data["layer_sizes"]["1"][cut[1] - 1]["act_output_bytes"]
                ends = zip(held[stage], held[stage + 1], strict=True)
                sent.append(max(self.link_s(*one, *other, output) for one, other in ends))
        pace = [own[s] + (sent[s] if s < stages - 1 else 0) + (sent[s - 1] if s else 0) for s in range(stages)]
        waves = ceil(self.data["model"]["global_batch_size"] / (samples * replicas))
        update = 0.01 * LAYERS if stages == 1 else 0.0
        return sum(own) + 2 * sum(sent) + (waves - 1) * max(pace) + exchange + update

    def fastest(self) -> dict[tuple[int, int], float]:
        """Least seconds of a step by the counts that are there."""
        best = {(first, second): inf for first in range(MOST[0] + 1) for second in range(MOST[1] + 1)}
        for samples, stages, least in product((1, 2), (1, 2, 3), product((1, 2), repeat=2)):
            degree = [
                [next((d for d in (1, 2) if d >= least[k] and self.fits(k, d, samples, stages, s)), 0) for k in (0, 1)]
                for s in range(stages)
            ]
            for replicas in range(1, sum(MOST) // stages + 1):
                for on_first in product(range(replicas + 1), repeat=stages):
                    if sum(0 < count < replicas for count in on_first) > 1:
                        continue
                    held = [
                        [(0, degree[s][0])] * count + [(1, degree[s][1])] * (replicas - count)
                        for s, count in enumerate(on_first)
                    ]
                    if any(not each for stage in held for _, each in stage):
                        continue
                    use = tuple(sum(d for stage in held for kind, d in stage if kind == k) for k in (0, 1))
                    if use in best:
                        best[use] = min(best[use], self.step_s(samples, held))
        return best


@pytest.mark.parametrize("seed", [1, 2])
def test_every_useful_pair_has_the_fastest_plan_of_all(seed: int) -> None:
    """Each count that helps is in the menu, none besides, at the time that an enumeration of all plans finds."""
    data = small_profile(seed)
    best = _Definition(data).fastest()
    useful = {
        pair: 1 / seconds
        for pair, seconds in best.items()
        if seconds < inf
        and all(
            seconds < best[other] for other in best if other != pair and other[0] <= pair[0] and other[1] <= pair[1]
        )
    }
    menu = {plan.accelerators: plan.steps_per_s for plan in _menu(data)}
    assert menu == pytest.approx(useful)
    assert any(first and second for first, second in menu)


def test_a_plan_holds_the_accelerators_it_says_and_every_layer_once() -> None:
    """Replicas times their accelerators, over all stages."""
    for plan in _menu(small_profile(3)):
        for kind in (0, 1):
            assert plan.accelerators[kind] == sum(each.replicas[kind] * each.degrees[kind] for each in plan.stages)
        assert sum(each.layers for each in plan.stages) == LAYERS
        assert len({sum(each.replicas) for each in plan.stages}) == 1


def test_one_type_alone_is_the_edge_of_the_mix() -> None:
    """With the other type, or without knowing of it, the plans on one type are the same."""
    data = small_profile(4)
    mixed = {plan.accelerators[1]: plan.steps_per_s for plan in _menu(data) if not plan.accelerators[0]}
    alone = {plan.accelerators[0]: plan.steps_per_s for plan in _menu(data, (SLOW,), (MOST[1], 0))}
    assert alone == mixed
    assert len(alone) > 2


@pytest.mark.parametrize(("multiple", "part"), [(1, 0.0), (1, 0.1), (2, 0.0), (2, 0.2)])
def test_a_thinned_menu_serves_every_pair_within_its_part(multiple: int, part: float) -> None:
    """For any counts in such multiples it has a plan that fits and is nearly as fast as the whole menu's."""
    menu = _menu(small_profile(5))
    kept = thinned(menu, multiple, part)

    def fastest(plans: list[MixedPlan], first: int, second: int) -> float:
        rates = [p.steps_per_s for p in plans if p.accelerators[0] <= first and p.accelerators[1] <= second]
        return max(rates, default=0.0)

    for first, second in product(range(0, MOST[0] + 1, multiple), range(0, MOST[1] + 1, multiple)):
        assert fastest(kept, first, second) >= (1 - part) * fastest(menu, first, second)
    assert all(count % multiple == 0 for plan in kept for count in plan.accelerators)
    assert len(kept) <= len(menu)
    if (multiple, part) == (1, 0.0):
        assert kept == menu
