"""No number that a machine sends is beyond what the server can hold: each field is tried with what is not."""

import json
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from walras.wire import AnyReport, Heartbeat, ProgressReport, Register, ShapeFacts

REPORT: TypeAdapter[AnyReport] = TypeAdapter(AnyReport)
MANIFEST = {"step": 1, "path": "/c/1", "digest": "a" * 64}
FACTS = {"shape": "s", "accelerator": "a", "accelerators": 1, "cpus": 1, "memory_bytes": 1}
OF_ATTEMPT = {"report_id": 1, "job_id": 1, "attempt": 1}
REPORTS: list[dict[str, Any]] = [
    {"type": "prepared", "port": 1, **OF_ATTEMPT},
    {"type": "refused", **OF_ATTEMPT},
    {"type": "started", **OF_ATTEMPT},
    {"type": "progress", "steps": 1, "steps_per_s": 1, "samples": 1, "start_s": 1, "pace_steps_per_s": 1, **OF_ATTEMPT},
    {"type": "committed", "manifest": MANIFEST, "took_s": 1, **OF_ATTEMPT},
    {"type": "ended", "cause": "exited", "exit_code": 1, "signal": 1, "failed_rank": 1, "steps": 1, **OF_ATTEMPT},
    {"type": "ended", "cause": "exited", "cpu_s": 1, **OF_ATTEMPT},
    {"type": "notice", "gone_in_s": 1, "report_id": 1},
    {"type": "hint", "detail": "d", "report_id": 1},
    {"type": "command_refused", "command_id": 1, "report_id": 1},
    {"type": "unknown", "told": "of-tomorrow", "report_id": 1},
]
HEARTBEAT = {"node_id": "n", "acks": [1], "wait_s": 1, "here": [{"job_id": 1, "attempt": 1}], "reports": REPORTS}
IMPOSSIBLE = (10**30, -(10**30), 10**400, float("nan"), float("inf"), -float("inf"))


def with_each_number_replaced(value: Any, number: Any) -> list[Any]:
    """The same value as often as it has numbers, each time with another one of them replaced."""
    if isinstance(value, dict):
        return [{**value, key: new} for key, old in value.items() for new in with_each_number_replaced(old, number)]
    if isinstance(value, list):
        changed = ((at, new) for at, old in enumerate(value) for new in with_each_number_replaced(old, number))
        return [[*value[:at], new, *value[at + 1 :]] for at, new in changed]
    return [number] if isinstance(value, int) else []


def test_every_type_of_report_is_tried() -> None:
    """A report that is added is added here."""
    (union, *_) = get_args(AnyReport)
    assert {report["type"] for report in REPORTS} == {each.model_fields["type"].default for each in get_args(union)}


@pytest.mark.parametrize("number", IMPOSSIBLE, ids=["1e30", "-1e30", "400 digits", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("model", "body"), [(Heartbeat, HEARTBEAT), (ShapeFacts, FACTS), (Register, {"node_id": "n", "facts": FACTS})]
)
def test_an_impossible_number_is_refused_wherever_it_stands(
    model: type[BaseModel], body: dict[str, Any], number: Any
) -> None:
    """Refused as an invalid message, both as the server reads it and as an agent reads it back: never an overflow."""
    assert model.model_validate(body)
    tried = with_each_number_replaced(body, number)
    assert len(tried) >= 3
    for changed in tried:
        text = json.dumps(changed)
        with pytest.raises(ValidationError):
            model.model_validate(json.loads(text))
        with pytest.raises(ValidationError):
            model.model_validate_json(text)


@pytest.mark.parametrize("number", IMPOSSIBLE[2:], ids=["400 digits", "NaN", "Infinity", "-Infinity"])
def test_a_value_that_is_no_finite_number_is_left_out(number: Any) -> None:
    """A loss may be large, and is a number; what is none does not cost the job its steps."""
    sent = {"odd": number, "loss": 1e300}
    report = REPORT.validate_json(
        json.dumps({"type": "progress", "steps": 1, "values": sent, "first_values": sent, "facts": sent, **OF_ATTEMPT})
    )
    assert isinstance(report, ProgressReport)
    assert report.values == report.first_values == {"loss": 1e300}
    assert report.facts == {"odd": -1e30, "loss": -1e30}, "as facts they are nothing that the server believes"


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: str(report["type"]))
def test_what_is_written_is_read_back(report: dict[str, Any]) -> None:
    """The agent's store writes JSON and reads it strictly."""
    made = REPORT.validate_python(report)
    assert REPORT.validate_json(made.model_dump_json()) == made
