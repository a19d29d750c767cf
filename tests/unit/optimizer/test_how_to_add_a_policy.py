"""The page docs/how-to/add-a-policy.md, followed literally."""

import ast
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from problems import Setting, build

from optimizer import registry
from optimizer.answer import answer_problem
from optimizer.check.certificate import check_decision
from optimizer.decision import Order, Plan, Shares, Status
from optimizer.policy import PolicySpec

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-policy.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.fixture(autouse=True)
def followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of the page is done: files are added, and lines to the files that it names."""
    for block in blocks():
        where, code = block.split("\n", 1)
        if found := re.match(r"# new file: (.*)\.py", where):
            name = found[1].replace("/", ".")
            module = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, module)
            exec(compile(code, name, "exec"), vars(module))
        elif where.startswith("# add to _BUILT_IN"):
            for name, target in ast.literal_eval(code).items():
                monkeypatch.setitem(registry._BUILT_IN, name, target)
        else:
            found = re.match(r"# add to: (.*)\.py", where)
            assert found is not None, where
            module = import_module(found[1].replace("/", "."))
            added = dict(vars(module))
            exec(compile(code, found[1], "exec"), added)
            for name in added.keys() - vars(module).keys():
                monkeypatch.setattr(module, name, added[name], raising=False)


PROBLEM = build(
    Setting([[2.0, 1.0], [3.0, 1.0], [1.0, 1.0]], [2.0, 2.0], gangs=[2, 1, 1], submitted_at=[0.0, 1.0, 2.0])
)


def test_an_order_ranks_jobs_by_its_key() -> None:
    """The two single accelerators come before the gang of two, in the order of submission."""
    order, _, _ = answer_problem(registry.make(PolicySpec("smallest_gang")), PROBLEM, None, 0.0)
    assert isinstance(order, Order)
    assert order.rows == (1, 2, 0)


@pytest.mark.parametrize("parameters", [{}, {"factor": 5.0}])
def test_a_share_policy_is_certified_and_checked(parameters: dict[str, float]) -> None:
    """Its answer is optimal, and the check agrees without sharing code with it."""
    spec = PolicySpec("urgent_throughput", parameters)
    shares, _, _ = answer_problem(registry.make(spec), PROBLEM, None, 0.0)
    assert isinstance(shares, Shares)
    assert shares.certificate.status is Status.OPTIMAL
    assert check_decision(PROBLEM, spec, shares).complaints == ()


def test_a_plan_gives_each_job_its_fastest_free_configuration() -> None:
    """The gang comes first and takes the fast pool; the others have what is left."""
    spec = PolicySpec("first_fit_plan")
    plan, _, _ = answer_problem(registry.make(spec), PROBLEM, None, 0.0)
    assert isinstance(plan, Plan)
    assert PROBLEM.columns.use_pool[plan.column].tolist() == [0, 1, 1]
    assert np.all(plan.column >= 0)
    assert check_decision(PROBLEM, spec, plan).complaints == ()


@pytest.mark.parametrize("name", ["smallest_gang", "urgent_throughput", "first_fit_plan"])
def test_each_describes_itself(name: str) -> None:
    """What `walras policy show` prints: a sentence, a source, and every parameter with its meaning."""
    described = registry.describe(name)
    assert described.summary.endswith(".")
    assert described.source == "an example of ours"
    assert all(each.description for each in described.parameters)
