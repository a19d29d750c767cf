"""`walras money --report`: what a person reads of how the cluster did, as text, JSON and a page."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.walras.conftest import answers_from
from walras.cli import money_commands
from walras.cli.main import app
from walras.resources.money import ClusterReport, RegretView, ReportRow, TypeUse

MONDAY = 1_700_438_400.0


def row(project: str, regret: RegretView | None, **more: Any) -> ReportRow:
    told = {
        "submitted": 3, "ended": 2, "succeeded": 2, "completion_s": 9000.0, "waiting_s": 3600.0, "preemptions": 1,
        "losses": 1, "lost_h": 0.5, "accelerator_h": 6.0, "usd": 4.0, "on_demand_usd": 10.0,
    }  # fmt: skip
    return ReportRow(project=project, regret=regret, **(told | more))


class Fake:
    """Stands for the client: keeps what it was asked."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        regret = RegretView(jobs=2, achieved_s=9000.0, bound_s=7200.0, alone_s=5400.0, assumed=1)
        self.told = ClusterReport(
            since=MONDAY,
            until=MONDAY + 86_400.0,
            total=row("", regret),
            projects=[row("<b>vision", regret), row("speech", None, completion_s=None, waiting_s=None)],
            types=[TypeUse(accelerator="a100", most=2.0, there_h=8.0, held_h=6.0)],
            left_out={"elastic": 1},
        )

    async def report(self, *, since_s: float) -> ClusterReport:
        self.asked_s.append(since_s)
        return self.told


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake()
    answers_from(monkeypatch, fake, money_commands)
    return fake


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["money", "--report", *(str(word) for word in words)], env={"COLUMNS": "160"})


def test_a_week_is_told_by_project_and_in_all(client: Fake) -> None:
    """The bound and the distance to it; what has none has a dash; what is not in it is said."""
    shown = run().output
    rows = [line.split() for line in shown.splitlines()]
    assert ["all", "3", "2", "2h30m", "1h00m", "2h00m", "25%", "2", "0.5", "h", "$4.00", "$6.00"] in rows, shown
    assert any(line[:1] == ["speech"] and line.count("-") == 4 for line in rows), shown
    assert any(line[:1] == ["a100"] and line[-1] == "75%" for line in rows), shown
    assert "could have come below 2h00m" in shown
    assert "For 1 of them" in shown
    assert "Not in the bound: 1 elastic." in shown
    assert client.asked_s == [7 * 86_400.0]


def test_other_times_are_asked_for(client: Fake) -> None:
    assert run("--since", "24h").exit_code == 0
    assert client.asked_s == [86_400.0]


@pytest.mark.parametrize(
    "words",
    [
        ("--report", "--month", "2026-11"), ("--report", "--by", "user"), ("--report", "--model", "one-price"),
        ("--report", "--csv"), ("--budgets", "--report"), ("--html", "report.html"),
    ],
)  # fmt: skip
def test_options_of_another_listing_are_refused(client: Fake, words: tuple[str, ...]) -> None:
    """Before anything is asked."""
    assert CliRunner().invoke(app, ["money", *words]).exit_code == 2
    assert client.asked_s == []


def test_json_is_the_servers_answer(client: Fake) -> None:
    """With everything in it."""
    assert ClusterReport.model_validate(json.loads(run("-o", "json").output)) == client.told


def test_a_page_has_the_same_and_no_markup_of_strangers(client: Fake, tmp_path: Path) -> None:
    """A project's name is text; a file that cannot be written is named."""
    assert run("--html", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert "<h1>How the cluster did, 2023-11-20 00:00 to 2023-11-21 00:00 UTC</h1>" in page
    assert "&lt;b&gt;vision" in page
    assert "<b>" not in page
    assert "Not in the bound: 1 elastic." in page
    refused = run("--html", tmp_path / "no" / "report.html")
    assert refused.exit_code != 0


def test_where_nothing_is_bounded_it_says_so(client: Fake) -> None:
    """And who sees some projects alone is told."""
    client.told = client.told.model_copy(update={"total": row("", None), "partial": True, "types": []})
    shown = run().output
    assert "No job could be bounded" in shown
    assert "The report covers only your projects." in shown
    assert "TYPE" not in shown
