"""Taking a way of the menu, and what came of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from walras.cli.forecast_text import show_ways
from walras.errors import JobSpecError, UserError
from walras.resources.jobs import ForecastView
from walras.resources.what_if import QuoteView, WayView, quoted_outcome, take_way, without_quote
from walras.spec.field_types import parse_instant
from walras.spec.job_spec import JobSpec, parse_spec, spec_mapping

NOW = 1_800_000_000.0


def way(name: str, end_s: float | None, usd: float = 3.0, start_s: float = 60.0) -> WayView:
    forecast, promised_by = None, None
    if end_s is not None:
        start, end = NOW + start_s, NOW + end_s
        forecast = ForecastView(as_of=NOW, start=(start, start, start + 30), end=(end - 100, end, end + 400))
        promised_by = end + 500
    return WayView(
        way=name, forecast=forecast, promised_by=promised_by, usd=(usd - 1, usd, usd + 1), delayed_jobs=0, delay_s=0.0
    )


MENU = QuoteView(as_of=NOW, draws=20, ways=[way("4 x a100", 3600.0), way("8 x v100", 7200.0, 2.0), way("", 3600.0)])
JOB: dict[str, Any] = {
    "run": "python train.py",
    "resources": {"accelerators": ["a100:4", "v100:8"], "cpus": 3},
    "secrets": {"KEY": {"env": "KEY"}},
}


def taken(wanted: str, menu: QuoteView = MENU, **changes: Any) -> JobSpec:
    return take_way(parse_spec({**JOB, **changes}), menu, wanted)


@pytest.mark.parametrize("wanted", ["a100", "a100:4", "4 x a100", " A100:4 "])
def test_the_way_and_its_latest_end_become_the_jobs(wanted: str) -> None:
    """The job may run on that type alone, its deadline is the end that was promised, all else is as it was."""
    spec = taken(wanted)
    assert [(each.accelerator, each.count) for each in spec.resources.accelerators] == [("a100", 4)]
    assert spec.resources.cpus == 3
    assert spec.deadline is not None
    assert parse_instant(spec.deadline, now=0.0) == NOW + 3600 + 500
    assert spec.quoted is not None
    assert (spec.quoted.way, spec.quoted.start_by, spec.quoted.usd_most) == ("4 x a100", NOW + 90, 4.0)
    assert spec.secrets == parse_spec(JOB).secrets


def test_the_job_as_it_asks_to_be_run_keeps_its_types() -> None:
    spec = taken("any")
    assert spec.resources == parse_spec(JOB).resources
    assert spec.quoted is not None
    assert spec.quoted.way == "as asked"
    one = QuoteView(as_of=NOW, draws=20, ways=[way("4 x a100", 3600.0)])
    assert taken("any", one).quoted.way == "4 x a100"  # type: ignore[union-attr]


@pytest.mark.parametrize(("stated", "kept"), [("+30m", "+30m"), ("+10h", None)])
def test_an_earlier_deadline_of_the_job_stays(stated: str, kept: str | None) -> None:
    assert (taken("a100", deadline=stated).deadline == stated) is (kept is not None)


@pytest.mark.parametrize(
    ("wanted", "ways", "words"),
    [
        ("h100", MENU.ways, "no way of the menu"),
        ("", MENU.ways, "no way of the menu"),
        ("a100", [way("4 x a100", 10.0), way("8 x a100", 5.0)], "no way of the menu"),
        ("a100", [way("4 x a100", None)], "nobody can tell when"),
        ("a100", [way("4 x a100", 60.0).model_copy(update={"promised_by": None})], "no end can be promised"),
    ],
    ids=["another type", "nothing", "two ways of a type", "no forecast", "no promise"],
)
def test_what_cannot_be_taken_is_named(wanted: str, ways: list[WayView], words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        taken(wanted, QuoteView(as_of=NOW, draws=20, ways=ways))
    assert refused.value.fix


def test_a_way_without_a_promise_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the menu, and when somebody takes it; of an older server, that it does not say why."""
    why = "in one future of 20 or more nothing tells when it would end"
    told = [way("4 x a100", 60.0), way("8 x v100", 90.0), way("", 90.0)]
    told[1:] = [each.model_copy(update={"promised_by": None, "no_promise": why}) for each in told[1:]]
    told[2] = told[2].model_copy(update={"no_promise": ""})
    menu = QuoteView(as_of=NOW, draws=20, ways=told)
    show_ways(menu)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"8 x v100: no end is promised: {why}." in shown
    assert "as it asks: no end is promised: the server does not say why." in shown
    assert "4 x a100: no end" not in shown
    with pytest.raises(UserError, match=why):
        taken("v100", menu)


def test_what_came_of_it_is_told() -> None:
    """Kept, late by so much, dearer than told, or not over; a job that took none has no outcome."""
    spec = spec_mapping(taken("a100"))
    end_by = NOW + 4100
    told = [
        quoted_outcome(spec, ended_at=ended_at, usd=usd, now_unix_s=now)
        for ended_at, usd, now in [
            (end_by - 5, 4.0, end_by + 999), (end_by + 120, 1.0, end_by + 999), (end_by - 5, 4.5, end_by),
            (None, 9.0, end_by - 1), (None, 0.0, end_by + 60),
        ]
    ]  # fmt: skip
    assert [each.outcome for each in told if each] == ["kept", "late", "dearer", "open", "late"]
    assert [each.text for each in told if each][1] == "2m00s late"
    assert told[4] is not None
    assert told[4].late_s == 60
    assert quoted_outcome(spec_mapping(parse_spec(JOB)), ended_at=1.0, usd=0.0, now_unix_s=2.0) is None


def test_a_job_that_runs_again_later_has_no_old_promise() -> None:
    """Its deadline came of what was told then, unless the job itself stated it."""
    again = without_quote(spec_mapping(taken("a100")))
    assert "quoted" not in again
    assert "deadline" not in again
    assert without_quote(spec_mapping(taken("a100", deadline="+30m")))["deadline"] == "+30m"
    assert without_quote({"run": "true"}) == {"run": "true"}


@given(
    st.dictionaries(
        st.sampled_from(["way", "start_by", "end_by", "usd_most", "quoted_at"]),
        st.one_of(st.floats(), st.text(max_size=5), st.none(), st.integers()),
    )
)
def test_a_hostile_job_file_is_refused_or_has_an_outcome(quoted: dict[str, Any]) -> None:
    """Nobody writes it by hand, but somebody may: no text that passes breaks whoever shows the job."""
    try:
        spec = parse_spec({**JOB, "quoted": quoted})
    except JobSpecError:
        return
    outcome = quoted_outcome(spec_mapping(spec), ended_at=None, usd=0.0, now_unix_s=NOW)
    assert outcome is not None
    assert outcome.text
