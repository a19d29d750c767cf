"""`walras admin list`, `add`, `remove` of reservations: what is typed is what the server is asked, and shown."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.walras.conftest import answers_from
from walras.cli import resource_commands
from walras.cli.arguments import local_time
from walras.cli.main import app
from walras.resources.fleet import NewReservation, ReservationView

STARTS, ENDS = "2026-12-01T08:00:00.000+00:00", "2026-12-01T18:00:00.000+00:00"


class Fake:
    """Stands for the client: checks what it is asked as the server does, and keeps it."""

    def __init__(self) -> None:
        self.asked: list[NewReservation] = []
        self.cancelled: list[int] = []

    async def reserve(self, asked: Mapping[str, Any]) -> ReservationView:
        self.asked.append(NewReservation.model_validate(asked))
        return view(1)

    async def cancel_reservation(self, reservation_id: int) -> ReservationView:
        self.cancelled.append(reservation_id)
        return view(reservation_id, state="cancelled")

    async def reservations(self, *, everything: bool = False) -> list[ReservationView]:
        return [view(1), view(2, project="", maintenance=True)] if everything else [view(1)]


def view(number: int, **more: Any) -> ReservationView:
    told: dict[str, Any] = {"id": number, "project": "vision", "maintenance": False, "nodes": ["n1"], "reserved": 8}
    told |= {"starts": STARTS, "ends": ENDS, "state": "coming", "notes": ["job 7 may lose work that was not saved"]}
    return ReservationView.model_validate(told | more)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    answers_from(monkeypatch, found, resource_commands)
    return found


def typed(words: str) -> Any:
    return CliRunner().invoke(app, words.split())


def test_a_type_and_a_number_are_reserved_for_a_project(fake: Fake) -> None:
    """Who would lose work by it is said, beside the answer."""
    result = typed("admin add reservation A100:8 starts=+2h ends=+10h project=vision reason=demo")
    assert result.exit_code == 0, result.output
    (asked,) = fake.asked
    assert (asked.accelerator, asked.accelerators, asked.project, asked.starts, asked.ends) == (
        "a100", 8, "vision", "+2h", "+10h",
    )  # fmt: skip
    assert (
        f"reservation 1 for project vision: 8 accelerators on n1, from {local_time(STARTS)} until {local_time(ENDS)}"
        in result.output
    )
    assert "job 7 may lose work" in result.output


def test_machines_by_name_are_reserved_for_maintenance_as_the_release_before_wrote_it(fake: Fake) -> None:
    assert typed("admin reserve --node n1 --node n2 --maintenance --until +4h").exit_code == 0
    (asked,) = fake.asked
    assert (asked.nodes, asked.maintenance, asked.project, asked.starts) == (["n1", "n2"], True, None, "+0s")


@pytest.mark.parametrize(
    "words",
    [
        "add reservation ends=+1h project=p",
        "add reservation a100:8 nodes=n1 ends=+1h project=p",
        "add reservation a100:8 project=p",
        "add reservation a100 ends=+1h project=p",
        "add reservation a100:0 ends=+1h project=p",
        "add reservation a100:x ends=+1h project=p",
        "add reservation a100:8 ends=+1h",
        "add reservation a100:8 ends=+1h project=p maintenance=true",
        "add reservation starts=+2h",
        "add reservation maintenance=true",
        "add reservation",
        "remove reservation x",
        "set reservation 1 ends=+1h",
        "list reservations al=true",
    ],
)
def test_what_says_too_little_or_too_much_is_refused_before_the_server_is_asked(fake: Fake, words: str) -> None:
    assert typed(f"admin {words}").exit_code == 2
    assert not fake.asked
    assert not fake.cancelled


@pytest.mark.parametrize(("field", "words"), [("starts", "starts=10m ends=+2h"), ("ends", "ends=tomorrow")])
def test_an_instant_that_is_none_is_named_by_its_field(fake: Fake, field: str, words: str) -> None:
    result = typed(f"admin add reservation a100:8 project=p {words}")
    assert result.exit_code == 2
    assert f"{field}: " in result.output
    assert "is not an instant" in result.output
    assert not fake.asked


def test_reservations_are_listed_and_cancelled(fake: Fake) -> None:
    table = typed("admin list reservations all=true").output
    assert "maintenance" in table
    assert "vision" in table
    assert [each["id"] for each in json.loads(typed("admin list reservations -o json").output)] == [1]
    assert "is cancelled" in typed("admin remove reservation 4").output
    assert fake.cancelled == [4]
