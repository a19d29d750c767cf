"""`walras money`: tables, CSV, budgets and credit; what is typed is what the server is asked, and shown."""

import csv
import io
import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.unit.walras.conftest import answers_from
from walras.cli import money_commands, resource_commands
from walras.cli.main import app
from walras.resources.money import BudgetView, CreditView, MoneyReport, MoneyRow, NewCredit

REPORT = MoneyReport(
    by="project",
    items=[
        MoneyRow(key="vision", accelerator_s=7200.0, usd=12.345678, on_demand_usd=30.0),
        MoneyRow(key="=cmd|' /C calc'!A0\x1b[2J", accelerator_s=90.0, usd=0.5),
    ],
    rest=MoneyRow(key="", accelerator_s=36.0, usd=0.25),
    rest_of=3,
    used_usd=13.1,
    idle_usd=0.0,
    total_usd=13.1,
    on_demand_usd=30.0,
)


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(money_commands, "with_client", lambda work: REPORT)


def _shown(*words: str) -> str:
    done = CliRunner().invoke(app, ["money", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_table_says_what_was_saved() -> None:
    shown = _shown()
    assert "vision" in shown
    assert "3 others" in shown
    assert "all on demand $30.00, 56% saved" in shown


def test_csv_has_numbers_as_they_are_and_no_formula() -> None:
    """A spreadsheet runs what begins with `=`: names are of strangers."""
    header, vision, strange, rest = csv.reader(io.StringIO(_shown("--csv")))
    assert header == ["project", "accelerator_hours", "usd", "idle_usd", "on_demand_usd"]
    assert vision == ["vision", "2.0", "12.345678", "0.0", "30.0"]
    assert strange[0].startswith("'=")
    assert "\x1b" not in strange[0]
    assert rest[:2] == ["3 others", "0.01"]
    assert len(list(csv.reader(io.StringIO(_shown("--csv", "--no-header"))))) == 3


WEEKLY = BudgetView(
    whose="group students", group="students", unit="accelerator_h", every="week", used=12.5, limit=40.0, per_h=2.0,
    refills="2026-11-30T00:00:00Z",
)  # fmt: skip
SPENT = BudgetView(whose="vision", project="vision", unit="usd", used=5.0, limit=5.0, credited=5.0, closed=True)


class Fake:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def add_credit(self, body: dict[str, Any]) -> CreditView:
        checked = NewCredit.model_validate(body)
        self.asked.append(body)
        amount = checked.usd or checked.accelerator_h or checked.fair_share_h or 0.0
        unit = next(unit for unit in ("usd", "accelerator_h", "fair_share_h") if unit in body)
        return CreditView(id=1, at="2026-11-24T10:00:00Z", whose="vision", unit=unit, amount=amount, created_by="root")

    async def credits(self) -> list[CreditView]:
        return [CreditView(id=2, at="2026-11-24T10:00:00Z", whose="", unit="usd", amount=7.0, created_by="root")]

    async def budgets(self) -> list[BudgetView]:
        return [WEEKLY, SPENT]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    answers_from(monkeypatch, found, money_commands, resource_commands)
    return found


def typed(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"})


def test_a_credit_is_asked_for_as_it_is_typed(fake: Fake) -> None:
    shown = typed("admin add credit project=vision usd=5 reason=paid")
    assert shown.exit_code == 0, shown.output
    assert fake.asked == [{"usd": 5.0, "project": "vision", "reason": "paid"}]
    assert "credit 1: 5 USD for vision" in shown.output
    typed("admin credit --group students --accelerator-hours 40")
    assert fake.asked[1] == {"accelerator_h": 40.0, "group": "students", "reason": ""}
    assert "7 USD" in typed("admin list credits").output


@pytest.mark.parametrize("line", ["admin add credit project=vision", "admin add credit usd=5 fair_share_h=3"])
def test_a_credit_is_of_one_amount(fake: Fake, line: str) -> None:
    shown = typed(line)
    assert shown.exit_code == 2
    assert "give one of usd, accelerator_h and fair_share_h" in shown.output
    assert not fake.asked


def test_budgets_are_shown_with_what_is_left_and_when_they_are_filled(fake: Fake) -> None:
    shown = typed("money --budgets").output
    assert all(word in shown for word in ("group students", "27.50 acc-h", "2026-11-30T00:00:00Z", "closed"))
    told = json.loads(typed("money --budgets -o json").output)
    assert [each["whose"] for each in told] == ["group students", "vision"]
    refused = typed("money --budgets --month 2026-11")
    assert refused.exit_code == 2
    assert "--month says nothing of budgets" in refused.output
    line = money_commands.budget_line(SPENT)
    assert line == "budget of vision: 5.00 of 5 USD used; no job of it starts"
    small = SPENT.model_copy(update={"used": 0.0012, "limit": 0.001})
    assert money_commands.budget_line(small) == "budget of vision: 0.0012 of 0.001 USD used; no job of it starts"
    assert money_commands._budget_row(small)[2:5] == ["0.0012 USD", "0.001 USD", "0.00 USD"]
