"""How a policy is found by its name, validates, and answers."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from problems import Setting, build

from optimizer import registry
from optimizer.answer import answer_problem
from optimizer.policies.fairness import MaxMinFairness
from optimizer.policies.queue_orders import Fifo
from optimizer.policy import Newcomer, OrderPolicy, PolicySpec, SharePolicy, best_configuration_at
from optimizer.registry import describe, make, names
from walras.errors import ConfigError, UnknownPolicyError


def test_every_name_makes_a_policy():
    """All registered names can be made without parameters."""
    assert {"fifo", "isolated", "max_min_fairness", "throughput"} <= set(names())
    for name in names():
        assert isinstance(make(PolicySpec(name)), OrderPolicy | SharePolicy)


def test_parameters_reach_the_policy():
    """A spec with the same parameters makes an equal policy."""
    assert make(PolicySpec("max_min_fairness", {"aware": False})) == MaxMinFairness(aware=False)
    assert make(PolicySpec("fifo", {"strict": False})) == Fifo(strict=False)


def test_making_a_policy_imports_no_solver():
    """The process that makes policies in its event loop never waits for cvxpy or scipy."""
    code = (
        "import sys; from optimizer.registry import make, names; from optimizer.policy import PolicySpec;"
        "import optimizer.answer, optimizer.policy, optimizer.check.certificate;"
        "[make(PolicySpec(name)) for name in names()];"
        "sys.exit(any(m.split('.')[0] in ('cvxpy', 'scipy', 'highspy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_an_unknown_policy_is_told_what_exists():
    """The message lists the known names and guesses which was meant."""
    with pytest.raises(UnknownPolicyError, match=r"known: .*fifo, .*max_min_fairness") as caught:
        make(PolicySpec("max_min_fairnes"))
    assert caught.value.field == "policy.name"
    assert "max_min_fairness" in caught.value.fix


def test_an_unknown_parameter_is_named():
    """A misspelt parameter is refused with its name and the likely one."""
    with pytest.raises(ConfigError, match="no parameter 'awre'") as caught:
        make(PolicySpec("max_min_fairness", {"awre": True}))
    assert caught.value.field == "policy.parameters.awre"
    assert caught.value.fix == "did you mean 'aware'?"
    with pytest.raises(ConfigError, match="it takes none"):
        make(PolicySpec("isolated", {"aware": True}))


@pytest.mark.parametrize("value", [1, "yes", None])
def test_a_parameter_of_the_wrong_type_is_named(value: object):
    """Nothing is coerced."""
    with pytest.raises(ConfigError, match="parameter aware") as caught:
        make(PolicySpec("fifo", {"aware": value}))
    assert caught.value.field == "policy.parameters.aware"


def _outside(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    points = EntryPoints([EntryPoint("theirs", value, registry.ENTRY_POINTS)])
    monkeypatch.setattr(registry, "entry_points", lambda **select: points.select(**select))


def test_outsiders_register_by_entry_point(monkeypatch: pytest.MonkeyPatch):
    """A policy of another package is listed and made like one of ours."""
    _outside(monkeypatch, "optimizer.policies.queue_orders:Fifo")
    assert "theirs" in names()
    assert make(PolicySpec("theirs", {"aware": False})) == Fifo(aware=False)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_module:Policy", "cannot be loaded"),
        ("optimizer.policies.queue_orders:Nothing", "cannot be loaded"),
        ("optimizer.registry:make", "is no dataclass"),
        ("optimizer.policy:PolicySpec", "missing 1 required"),
        ("optimizer.problem:Entities", "answers neither"),
    ],
)
def test_a_broken_outsider_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch, value: str, message: str):
    """A plug-in that cannot be loaded, or is no policy, is the configuration's fault."""
    _outside(monkeypatch, value)
    with pytest.raises(ConfigError, match=f"theirs.*{message}"):
        make(PolicySpec("theirs"))


@pytest.mark.parametrize("name", names())
def test_every_policy_says_what_it_does(name: str):
    """A sentence for the policy, where it comes from, and a description for every parameter."""
    described = describe(name)
    assert described.source
    assert described.summary.endswith(".")
    assert len(described.summary) <= 120
    assert [each.name for each in described.parameters if not each.description] == []
    assert (described.family in ("shares", "plan")) == bool(described.price_unit)


ROOT = Path(__file__).parents[3]
#: Where ours lie: a virtual environment may lie in the checkout too.
OURS = tuple(f"{ROOT}/{package}/" for package in ("walras", "optimizer", "scheduler", "simulator"))


def walk_of(policy: str) -> tuple[set[str], set[tuple[str, str]]]:
    """The files and the functions of ours that a decision about five jobs on three pools passes through."""
    speeds = np.random.default_rng(3).uniform(1, 5, (5, 3)).tolist()
    problem, solver = build(Setting(speeds, [4, 3, 2])), make(PolicySpec(policy))
    answer_problem(solver, problem, None, 0.0)  # what is imported at first use is imported
    functions: set[tuple[str, str]] = set()

    def seen(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        answer_problem(solver, problem, None, 0.0)
    finally:
        sys.setprofile(before)
    return {file for file, _ in functions}, functions


def test_max_min_of_five_jobs_stays_within_eighteen_files() -> None:
    """It was 36 files and 174 functions, then 104: whoever makes this longer should say why."""
    files, functions = walk_of("max_min_fairness")
    assert len(files) <= 18, sorted(files)
    assert len(functions) <= 90, len(functions)


def test_an_order_passes_few_functions() -> None:
    """Nothing is solved, and nothing of the solvers is read."""
    files, _ = walk_of("fifo")
    assert not [file for file in files if "/optimizer/lp/" in file]


AWARE = MaxMinFairness()


def quote_of(setting: Setting):
    return AWARE.decide(build(setting), None)[0].quote


def newcomer(speeds, capacity, *, weight=1.0, count=1.0) -> Newcomer:
    pools = np.arange(len(speeds))
    return Newcomer(np.array(speeds, float), pools, np.full(len(speeds), count), weight, np.array(capacity, float))


def test_free_capacity_costs_nothing_so_the_fastest_place_wins():
    """On an idle fleet every price is 0 and a newcomer takes what is best for it."""
    index, surplus = best_configuration_at(AWARE, newcomer([1, 3], [4, 4]), quote_of(Setting([[1, 1]], [4, 4])))
    assert index == 1
    assert (surplus > 0).all()


def test_a_job_like_the_others_is_admitted_at_their_prices():
    """Worth exactly the price: surplus zero, and admitted to either pool."""
    index, surplus = best_configuration_at(AWARE, newcomer([3, 1], [1, 1]), quote_of(Setting([[3, 1]] * 4, [1, 1])))
    assert index == 0
    assert surplus == pytest.approx([0, 0], abs=1e-9)


def test_prices_send_a_job_where_it_has_the_advantage():
    """A job that gains little from the expensive pool goes to the cheap one, though it is slower there."""
    quote = quote_of(Setting([[9, 1]] * 6, [1, 2]))
    index, surplus = best_configuration_at(AWARE, newcomer([1.2, 1.0], [1, 2]), quote)
    assert index == 1
    assert surplus[0] < 0 < surplus[1]


def test_a_light_job_waits_where_heavy_ones_compete():
    """Worth less than the price everywhere: not admitted before the next solve. A heavy one is."""
    quote = quote_of(Setting([[1]] * 4, [1], weights=[1, 1, 1, 1]))
    assert best_configuration_at(AWARE, newcomer([1], [1], weight=0.5), quote)[0] is None
    assert best_configuration_at(AWARE, newcomer([1], [1], weight=3.0), quote)[0] == 0


def test_what_cannot_run_has_no_value():
    """No speed, or a gang larger than the pool: not chosen, even for free."""
    quote = quote_of(Setting([[1, 1]], [1, 4]))
    assert best_configuration_at(AWARE, newcomer([5, 1], [1, 4], count=2), quote)[0] == 1
    assert best_configuration_at(AWARE, newcomer([0, 0], [1, 4]), quote)[0] is None
    assert best_configuration_at(AWARE, newcomer([], []), quote)[0] is None


def test_an_agnostic_policy_values_accelerators_alike():
    """All places are worth the same to it; the cheaper pool wins."""
    quote = AWARE.decide(build(Setting([[3, 1]] * 4, [1, 1])), None)[0].quote
    index, _ = best_configuration_at(MaxMinFairness(aware=False), newcomer([3, 1], [1, 1]), quote)
    assert index == 1
