"""`walras.lab.Env`: gymnasium's own checker, the shipped order reproduced by a rule, rewards and regret that add up."""

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from optimizer.policy import PolicySpec
from simulator.reports.run_spec import GeneratorOptions, RunSpec, WorkloadSource, prepare_run
from simulator.simulation import simulate
from walras import lab
from walras.errors import ConfigError

gymnasium = pytest.importorskip("gymnasium")

GROUND: dict[str, Any] = {"on": "generate:gavel", "cluster": "gavel-12-12-12", "jobs": 60, "rate_per_h": 30.0}
Rule = Callable[[dict[str, Any], dict[str, Any]], Any]


def shortest_first(observation: dict[str, Any], info: dict[str, Any]) -> int:
    """The job with the least time left on its best pool, on its fastest free pool. Never waits while one fits."""
    slots, pools = observation["seconds"].shape
    possible = info["action_mask"][:-1].reshape(slots, pools).astype(bool)
    left = np.where(possible.any(axis=1), observation["seconds"].min(axis=1), np.inf)
    slot = int(left.argmin())
    return slot * pools + int(np.where(possible[slot], observation["seconds"][slot], np.inf).argmin())


def episode(env: Any, rule: Rule, seed: int) -> tuple[float, list[dict[str, Any]]]:
    """The sum of the rewards, and the facts of every decision."""
    observation, info = env.reset(seed=seed)
    total, infos, over = 0.0, [info], False
    while not over:
        assert env.observation_space.contains(observation)
        observation, reward, over, _, info = env.step(rule(observation, info))
        total += reward
        infos.append(info)
    return total, infos


@pytest.mark.parametrize("actions", ["choice", "scores"])
def test_gymnasium_finds_no_fault(actions: Any) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(lab.Env(**GROUND | {"jobs": 8}, actions=actions), skip_render_check=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shortest_first_reproduces_the_shipped_order(seed: int) -> None:
    """The rule through the environment, and the policy `srtf` without preemption: the same mean completion time."""
    source = WorkloadSource(GROUND["on"], made=GeneratorOptions(jobs=GROUND["jobs"], rate_per_h=GROUND["rate_per_h"]))
    ready = prepare_run(RunSpec(source, GROUND["cluster"], "srtf", seed=seed))
    from dataclasses import replace

    spec = PolicySpec("srtf", {"preemptive": False, "margin": 0.0})
    wanted = simulate(ready.jobs, replace(ready.scenario, policy=spec)).jobs
    env = lab.Env(**GROUND)
    _, infos = episode(env, shortest_first, seed)
    assert max(info["action_mask"][:-1].sum() for info in infos) > 3, "the fleet is never crowded: nothing is shown"
    assert infos[-1]["ended"] == len(wanted) == 60
    assert infos[-1]["mean_jct_s"] == pytest.approx(sum(job.jct_s for job in wanted) / 60, rel=1e-9)


def test_rewards_add_up_to_the_mean_and_regret_never_falls_below_zero() -> None:
    env = lab.Env(**GROUND)
    env.action_space.seed(3)
    total, infos = episode(env, lambda seen, info: int(env.action_space.sample(info["action_mask"])), 3)
    last = infos[-1]
    assert last["spent_s"] == pytest.approx(last["mean_jct_s"])
    assert total == pytest.approx(-last["spent_s"] / last["bound_s"])
    assert total < -1
    regrets = [info["regret_s"] for info in infos]
    # A difference of two sums: their rounding may show.
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(regrets))
    assert regrets[0] >= 0
    assert regrets[-1] == pytest.approx(last["spent_s"] - last["bound_s"])


def test_equal_seeds_give_equal_episodes_and_others_do_not() -> None:
    env = lab.Env(**GROUND)
    means = [episode(env, shortest_first, seed)[1][-1]["mean_jct_s"] for seed in (4, 5, 4)]
    assert means[0] == means[2] != means[1]


def test_scores_start_the_best_first_and_none_below_zero() -> None:
    """Scores that fall with the time left are the rule shortest first, but for jobs of one instant."""

    def scores(observation: dict[str, Any], _: dict[str, Any]) -> Any:
        seconds = observation["seconds"].astype(np.float64)
        return 1 - seconds.min(axis=1, keepdims=True) - 1e-9 * seconds

    wanted = episode(lab.Env(**GROUND), shortest_first, 0)[1]
    found = episode(lab.Env(**GROUND, actions="scores"), scores, 0)[1]
    assert found[-1]["mean_jct_s"] == pytest.approx(wanted[-1]["mean_jct_s"], rel=1e-9)
    idle = episode(lab.Env(**GROUND, actions="scores"), lambda seen, _: -np.ones_like(seen["seconds"]), 0)[1]
    assert idle[-1]["ended"] == 60
    assert idle[-1]["mean_jct_s"] > 2 * found[-1]["mean_jct_s"], "who waits for ever is served one by one"


@pytest.mark.parametrize("choice", [-1, 10**9])
def test_an_action_outside_the_mask_waits_and_never_ends_in_a_deadlock(choice: int) -> None:
    _, infos = episode(lab.Env(**GROUND | {"jobs": 10}), lambda seen, info: choice, 0)
    assert infos[-1]["ended"] == 10


def test_with_rounds_decisions_fall_on_their_ends() -> None:
    _, infos = episode(lab.Env(**GROUND, round_s=360.0), shortest_first, 0)
    assert all(info["time_s"] % 360 == 0 for info in infos[:-1])


def test_more_jobs_than_slots_show_those_that_could_start() -> None:
    """A gang in front that does not fit hides nobody who does."""
    env = lab.Env(**GROUND | {"rate_per_h": 0.0}, slots=4)
    _, infos = episode(env, shortest_first, 0)
    assert infos[-1]["ended"] == 60


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cluster": "mixed-cloud"}, "rented"),
        ({"slots": 0}, "slots"),
        ({"round_s": -1.0}, "round"),
        ({"actions": "all"}, "actions"),
        ({"on": "generate:nothing"}, "nothing"),
    ],
)
def test_what_cannot_be_run_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        lab.Env(**GROUND | change).reset(seed=0)


def test_without_gymnasium_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "walras.lab.environment", raising=False)
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match="gymnasium") as caught:
        _ = lab.Env
    assert "walras[lab]" in caught.value.fix
