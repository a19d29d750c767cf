"""Policies in a file of one's own: the page that tells how, what errors name, and that a server runs none."""

import re
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from optimizer.policy import PolicySpec
from optimizer.registry import make
from scheduler.live.services.policy_service import PolicyService
from simulator.shipped_configs import load_named_policy
from walras.cli.main import app
from walras.errors import ConfigError
from walras.lab import compare

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-policy.md"
GROUND = {"on": "generate:hadar-60", "cluster": "hadar-60", "jobs": 12, "rate_per_h": 0.0}

_ORDER = "class A(Order):\n    def key(self, jobs):\n        return jobs.gang"
BROKEN = {
    f"{_ORDER} / jobs.nothing\n": r"A\.key\(\) failed at own.py:5",
    "class A(Shares):\n    def shares(self, market):\n        return np.ones(3)\n": r"shape \(\d+, 3\)",
    "class A(Shares):\n    def shares(self, market):\n        return np.ones(market.steps_per_s.shape)\n": "at most 1",
    "class A(Plan):\n    def plan(self, state):\n        return np.zeros(len(state.jobs), dtype=int)\n": "its own job",
    "class A(Plan):\n    def plan(self, state):\n        return 1 / 0\n": "A.plan.. failed at own.py:5: ZeroDivision",
    "x = 1 +\n": "own.py:3: SyntaxError",
    "raise RuntimeError('no')\n": "own.py:3: RuntimeError: no",
    "x = 1\n": "own.py has no policy",
    f"{_ORDER}\n\nclass B(A):\n    pass\n": "own.py has 2 policies",
}


def saved(folder: Path, text: str) -> str:
    """A file of policies."""
    path = folder / "own.py"
    path.write_text("import numpy as np\nfrom walras.lab import Order, Plan, Shares\n" + text)
    return str(path)


def page_example() -> str:
    """The file that the page tells one to write."""
    (block,) = re.findall(r"```python\n# new file: my_policies.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(block)


@pytest.mark.slow
def test_the_page_leads_from_an_empty_file_to_a_comparison(tmp_path: Path) -> None:
    """Its file, at most forty lines, beside a policy that is built in: every class runs, and they differ."""
    text = page_example()
    assert len(text.splitlines()) <= 40
    path = tmp_path / "my_policies.py"
    path.write_text(text)
    names = re.findall(r"^class (\w+)\(", text, re.MULTILINE)
    assert len(names) == 3
    found = compare([*(f"{path}:{name}" for name in names), "las"], seeds=(0,), **GROUND | {"jobs": 60})  # type: ignore[arg-type]
    means = found.mean("avg_jct_s")
    assert list(means) == [*names, "las"]
    assert len({round(mean) for mean in means.values()}) == 4
    assert len(found.records()) == 4
    for name in names:
        assert name in str(found)


@pytest.mark.parametrize("made", ["", "from dataclasses import dataclass\n@dataclass(frozen=True)\n"])
def test_a_class_given_from_python_is_the_one_in_its_file(tmp_path: Path, made: str) -> None:
    """Its parameters are checked and stay, as those of a policy that is built in, whoever made it a dataclass."""
    text = (
        made
        + "class Own(Order):\n    sign: float = 1.0\n    def key(self, jobs):\n        return self.sign * jobs.gang\n"
    )
    spec, _ = load_named_policy(saved(tmp_path, text))
    assert spec.name == f"file:{tmp_path}/own.py:Own"
    policy = make(PolicySpec(spec.name, {"sign": -1.0}))
    assert policy.sign == -1.0  # type: ignore[union-attr]
    with pytest.raises(FrozenInstanceError):
        policy.sign = 1.0  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="sign"):
        make(PolicySpec(spec.name, {"sign": "much"}))
    with pytest.raises(ConfigError, match="no parameter 'sing'"):
        make(PolicySpec(spec.name, {"sing": 1.0}))


def test_a_notebook_shows_a_comparison_as_text(tmp_path: Path) -> None:
    """Its names are text, whoever chose them, and its records are a pandas table where pandas is installed."""
    pytest.importorskip("pandas", reason="pandas is an extra: walras[pandas]")
    found = compare(["fifo"], **GROUND)  # type: ignore[arg-type]
    page = replace(found, labels={"fifo": "<script>x</script>"})._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    table = found.to_pandas()
    assert list(table.policy) == ["fifo"]
    assert table.avg_jct_s[0] == found.mean("avg_jct_s")["fifo"]


@pytest.mark.slow
def test_a_comparison_leaves_the_page_that_the_command_would_write(tmp_path: Path) -> None:
    """Byte for byte, with its charts."""
    compare(["fifo", "las"], seeds=(0,), out=tmp_path / "ours", **GROUND)  # type: ignore[arg-type]
    command = ["simulate", "compare", "generate:hadar-60", "--cluster", "hadar-60", "--set", "rate=0"]
    command += [
        "--trace-jobs", "12", "--policy", "fifo", "--policy", "las", "--seeds", "0", "--out", str(tmp_path / "theirs"),
    ]  # fmt: skip
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    ours, theirs = ((tmp_path / name / "compare.html").read_text() for name in ("ours", "theirs"))
    assert ours == theirs
    assert "<svg" in ours


@pytest.mark.parametrize("text", BROKEN)
def test_an_error_names_the_method_and_the_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=BROKEN[text]):
        compare([saved(tmp_path, text)], **GROUND)  # type: ignore[arg-type]


def test_a_server_runs_no_file(tmp_path: Path) -> None:
    """It is not even read: what it would do when it is imported does not happen."""
    path = saved(tmp_path, f"open({str(tmp_path / 'was_run')!r}, 'w')\nclass A(Order):\n    def key(self, jobs): ...\n")
    service = PolicyService.__new__(PolicyService)
    for policy in (f"file:{path}:A", {"name": f"file:{path}:A"}):
        with pytest.raises(ConfigError, match="runs no policy out of a file"):
            service.check({"policy": policy})
    assert not (tmp_path / "was_run").exists()
