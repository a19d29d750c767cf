"""The page of benches' results: order, published rows, equal runs once, and files that strangers wrote."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from page_tags import assert_page_stands_alone
from typer.testing import CliRunner

from simulator.reports.leaderboard import leaderboard_html, read_bench_file
from simulator.reports.policy_bench import BENCH_SCHEMA
from walras.cli.main import app
from walras.errors import ConfigError

EVIL = "<script>alert(1)</script>"
HASH = "0123456789abcdef" * 2


def policy(jct_s: float | None, inputs: str = HASH, outcome: str = "complete") -> dict[str, Any]:
    spread = {"low": None, "high": None} if jct_s is None else {"low": jct_s - 1, "high": jct_s + 1}
    return {"inputs": [inputs], "outcomes": [outcome], "runs": [], "metrics": {"avg_jct_s": {"mean": jct_s, **spread}}}


def bench(**policies: dict[str, Any]) -> dict[str, Any]:
    published = [{"policy": "theirs", "source": f"a paper {EVIL}", "metrics": {"avg_jct_s": 150.0}}]
    ground = {"name": "g", "about": EVIL, "seeds": [0], "policies": policies, "published": published}
    return {"schema": BENCH_SCHEMA, "grounds": [ground]}


def written(folder: Path, name: str, body: object) -> Path:
    path = folder / name
    path.write_text(json.dumps(body))
    return path


def first_cells(html: str) -> list[str]:
    return re.findall(r"<tr><td>([^<]*)</td>", html)


def test_rows_are_in_order_and_published_ones_among_them(tmp_path: Path) -> None:
    """One that has no mean comes last; one that did not end says so."""
    body = bench(slow=policy(200.0), fast=policy(100.0), never=policy(None, outcome="time_limit"))
    html = leaderboard_html([read_bench_file(written(tmp_path, "a.json", body))])
    assert first_cells(html) == ["fast", "theirs, published", "slow", "never (not all runs ended)"]
    assert "100 ± 1" in html
    assert HASH[:8] in html


def test_the_same_run_in_two_files_is_one_row_and_another_is_another(tmp_path: Path) -> None:
    other = "f" * 32
    paths = [
        written(tmp_path, "a.json", bench(fifo=policy(100.0))),
        written(tmp_path, "b.json", bench(fifo=policy(100.0))),
        written(tmp_path, "c.json", bench(fifo=policy(90.0, other))),
    ]
    html = leaderboard_html([read_bench_file(path) for path in paths])
    assert first_cells(html) == ["fifo", "fifo", "theirs, published"]
    assert "c.json" in html.split("<td>fifo")[1]


def test_the_command_writes_a_page_that_stands_alone(tmp_path: Path) -> None:
    """Names of grounds, policies and sources are text; the same files give the same bytes."""
    path = written(tmp_path, "a.json", bench(**{EVIL: policy(100.0)}))
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        done = CliRunner().invoke(app, ["simulate", "leaderboard", str(path), "--out", str(page)])
        assert done.exit_code == 0, done.output
    tags = assert_page_stands_alone(pages[0].read_text())
    assert "".join(tags.text).count(EVIL) == 3
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        "", "[1]", "{}", json.dumps({"schema": BENCH_SCHEMA}), json.dumps({"schema": 1, "grounds": []}),
        json.dumps(bench(fifo={**policy(1.0), "inputs": ["../../etc"]})),
        json.dumps(bench(fifo={**policy(1.0), "metrics": {"avg_jct_s": {"mean": "1e999x"}}})), "[" * 100_000,
        json.dumps(bench(fifo=policy(float("inf")))),
    ],
)  # fmt: skip
def test_a_file_that_is_no_result_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"bad\.json"):
        read_bench_file(path)
    with pytest.raises(ConfigError, match=r"gone\.json"):
        read_bench_file(tmp_path / "gone.json")
