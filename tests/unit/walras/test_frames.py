"""Answers as tables, and as what a notebook shows."""

import sys
from typing import Any

import pytest

import walras
from walras.client import BlockingClient
from walras.errors import ConfigError
from walras.resources.fleet import NodeView
from walras.resources.jobs import JobDetail, JobView
from walras.resources.money import MoneyReport, MoneyRow
from walras.resources.overview import Overview, PolicyView

pd = pytest.importorskip("pandas", reason="pandas is an extra: walras[pandas]")
HOSTILE = "<script>alert('x')</script>"
TOKEN = "walras_user_secret"


def job(job_id: int = 7, **fields: Any) -> JobView:
    body = {"project": "vision", "user": "ada", "kind": "cnn", "state": "PENDING", "priority": 50, "accelerators": 1}
    return JobView.model_validate({"id": job_id, "name": "n", "submitted_at": "2026-11-05T18:00:00Z", **body, **fields})


def test_jobs_are_rows(fake: Any) -> None:
    """Instants are times of pandas in UTC, whether all, some or none are there; states and mappings stay what they
    are."""
    table = walras.frame(
        [job(1, started_at="2026-11-05T18:00:01.5Z", usd=0.5), job(2, state="RUNNING", accelerator_s={"a100": 3.0})]
    )
    assert list(table.id) == [1, 2]
    assert list(table.state) == ["PENDING", "RUNNING"]
    assert table.submitted_at[0] == pd.Timestamp("2026-11-05T18:00:00Z")
    assert table.started_at[0] == pd.Timestamp("2026-11-05T18:00:01.5Z")
    assert pd.isna(table.started_at[1])
    assert str(table.ended_at.dtype) == str(table.submitted_at.dtype)
    assert table.usd.sum() == 0.5
    assert table.accelerator_s[1] == {"a100": 3.0}
    with BlockingClient(fake.url, TOKEN) as client:
        for _ in range(5):
            client.submit({"run": "x"})
        assert len(walras.frame(client.jobs())) == 5
        assert list(walras.frame(client.nodes()).node_id) == ["n1"]
        assert list(walras.frame(client.prices()).market_usd_per_h) == [0.9]
    assert len(walras.frame([])) == 0


def test_money_keeps_its_sum() -> None:
    """What a listing left out is a row with a name of its own; a single answer is one row."""
    rows = [MoneyRow(key="vision", accelerator_s=1.0, usd=3.0)]
    report = MoneyReport(
        by="project", items=rows, rest=MoneyRow(key="", accelerator_s=2.0, usd=4.0), rest_of=2, used_usd=7.0,
        idle_usd=0.0, total_usd=7.0, on_demand_usd=9.0,
    )  # fmt: skip
    table = walras.frame(report)
    assert list(table.key) == ["vision", "(2 others)"]
    assert table.usd.sum() == report.total_usd
    assert len(walras.frame(report.model_copy(update={"rest": None, "rest_of": 0}))) == 1
    assert list(walras.frame(job(3)).id) == [3]


def test_what_is_no_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a call without pandas, with the way to get it."""
    with pytest.raises(TypeError, match="a int is no answer"):
        walras.frame([3])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas is not installed") as caught:
        walras.frame([])
    assert caught.value.fix == "pip install 'walras[pandas]'"


def test_a_notebook_shows_a_job_as_text() -> None:
    """Names, labels, reasons and commands of strangers are text; what is empty is left out."""
    detail = JobDetail.model_validate(
        job(name=HOSTILE, detail=HOSTILE, labels={HOSTILE: HOSTILE}).model_dump() | {
            "spec": {"run": HOSTILE, "envs": {HOSTILE: [HOSTILE]}},
            "attempt_list": [
                {"job_id": 7, "attempt": 1, "state": "RUNNING", "pool": HOSTILE, "accelerator": "a100",
                 "placement": [HOSTILE], "accelerators": 1, "leased_at": "2026-11-05T18:00:00Z"}
            ],
        }
    )  # fmt: skip
    page = detail._repr_html_()
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;") >= 8
    assert page.startswith("<section><h2>job 7: &lt;script&gt;")
    assert "<h2>attempt list</h2>" in page
    assert "started at" not in page


def test_a_notebook_shows_the_cluster() -> None:
    """With a table for each of its lists, cut to fifty rows, and nested answers as tables of their own."""
    machines = [
        {"node_id": f"n{n}", "pool": "p", "accelerator": "a100", "state": "up", "cells": [0, n]} for n in range(60)
    ]
    page = Overview.model_validate(
        {"as_of": "2026-11-05T18:00:00Z", "policy": HOSTILE, "counts": {"RUNNING": 3}, "types": [], "pools": [],
         "machines": machines, "history": [], "queue": [job(9).model_dump()], "waiting": 1, "names": {}, "alerts": [],
         "money": {"month": "2026-11", "spent_usd": 1234567.891, "on_demand_usd": 2.0, "usd_per_h": 0.0}}
    )._repr_html_()  # fmt: skip
    assert "<script" not in page
    assert "<h2>overview</h2>" in page
    assert "<td>RUNNING: 3</td>" in page
    assert "n49" in page
    assert "n50" not in page
    assert "<p>and 10 more</p>" in page
    assert "<td>0, 7</td>" in page
    assert "<td>1.23457e+06</td>" in page


def test_long_texts_are_cut() -> None:
    """A hostile answer cannot fill a notebook."""
    node = NodeView(
        node_id="n" * 5000, pool="p", accelerator="a", emulated=False, market="owned", zone="z", state="up",
        accelerators=1, free=0, jobs=list(range(5000)),
    )  # fmt: skip
    page = node._repr_html_()
    assert len(page) < 3000
    assert "…" in page
    assert "<td>no</td>" in page


def test_every_answer_shows_itself() -> None:
    """Also one that is no job and no listing."""
    policy = PolicyView.model_validate(
        {
            "version": 2, "name": "fifo", "parameters": {}, "rules": {"round_s": 12.0}, "changed_at": "",
            "changed_by": "r",
        }
    )  # fmt: skip
    assert "<h2>policy</h2>" in policy._repr_html_()
    assert "<td>round_s: 12</td>" in policy._repr_html_()
