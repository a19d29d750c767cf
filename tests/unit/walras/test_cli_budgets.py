"""`walras admin credit` and `walras money --budgets`: what is typed is what the server is asked, and shown."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from walras.budgets import BudgetView, CreditView, NewCredit
from walras.cli import budget_commands
from walras.cli.main import app

WEEKLY = BudgetView(
    whose="group students", group="students", unit="accelerator_h", every="week", used=12.5, limit=40.0, per_h=2.0,
    refills="2026-11-30T00:00:00Z",
)  # fmt: skip
SPENT = BudgetView(whose="vision", project="vision", unit="usd", used=5.0, limit=5.0, credited=5.0, closed=True)


class Fake:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def add_credit(self, body: dict[str, Any]) -> CreditView:
        checked = NewCredit.model_validate(body)
        self.asked.append(body)
        amount = checked.usd or checked.accelerator_h or checked.fair_share_h or 0.0
        unit = next(unit for unit in ("usd", "accelerator_h", "fair_share_h") if unit in body)
        return CreditView(id=1, at="2026-11-24T10:00:00Z", whose="vision", unit=unit, amount=amount, created_by="root")

    def credits(self) -> list[CreditView]:
        return [CreditView(id=2, at="2026-11-24T10:00:00Z", whose="", unit="usd", amount=7.0, created_by="root")]

    def budgets(self) -> list[BudgetView]:
        return [WEEKLY, SPENT]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(budget_commands, "with_client", lambda work: work(found))
    return found


def typed(line: str) -> Result:
    return CliRunner().invoke(app, line.split(), env={"COLUMNS": "200"})


def test_a_credit_is_asked_for_as_it_is_typed(fake: Fake) -> None:
    shown = typed("admin credit --project vision --usd 5 --reason paid")
    assert shown.exit_code == 0, shown.output
    assert fake.asked == [{"usd": 5.0, "project": "vision", "reason": "paid"}]
    assert "credit 1: 5 USD for vision" in shown.output
    typed("admin credit --group students --accelerator-hours 40")
    assert fake.asked[1] == {"accelerator_h": 40.0, "group": "students", "reason": ""}
    assert "7 USD" in typed("admin credit --list").output


@pytest.mark.parametrize("line", ["admin credit -p vision", "admin credit --usd 5 --fair-share-hours 3"])
def test_a_credit_is_of_one_amount(fake: Fake, line: str) -> None:
    shown = typed(line)
    assert shown.exit_code == 2
    assert "give one of --usd, --accelerator-hours and --fair-share-hours" in shown.output
    assert not fake.asked


def test_budgets_are_shown_with_what_is_left_and_when_they_are_filled(fake: Fake) -> None:
    shown = typed("money --budgets").output
    assert all(word in shown for word in ("group students", "27.50 acc-h", "2026-11-30T00:00:00Z", "closed"))
    told = json.loads(typed("money --budgets -o json").output)
    assert [each["whose"] for each in told] == ["group students", "vision"]
    refused = typed("money --budgets --month 2026-11")
    assert refused.exit_code == 2
    assert "--month says nothing of budgets" in refused.output
    line = budget_commands.budget_line(SPENT)
    assert line == "budget of vision: 5.00 of 5 USD used; no job of it starts"
