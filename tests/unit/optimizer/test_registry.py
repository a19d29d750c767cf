import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from optimizer import registry
from optimizer.policies.max_min_fairness import MaxMinFairness
from optimizer.policies.queue_orders import Fifo
from optimizer.policy import OrderPolicy, PolicySpec, SharePolicy
from optimizer.registry import make, names
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
