"""`walras cloud capacity`: published figures, small traces by hand, input that will not do, and `--live`."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli import money_commands
from walras.cli.main import app
from walras.resources.money import TypePrice, UsageReport, UsageRow

PHILLY = "job_id,user,submit_time_s,num_gpus,duration_s,status,gpu_type,cluster\n"
PUBLISHED = ("--set", "arrivals_per_h=0.2", "--set", "job_length=500h", "--reserved-price", 0.4)


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["cloud", "capacity", *(str(arg) for arg in args)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Ada's long job, and four short ones of Bob's while it runs."""
    rows = ["1,ada,0,1,360000,Pass,v100,c", *(f"{at},bob,{at * 3600},1,360,Pass,v100,c" for at in range(2, 6))]
    path = tmp_path / "trace.csv"
    path.write_text(PHILLY + "\n".join(rows) + "\n")
    return path


def test_the_waiting_game_s_own_example_is_exact() -> None:
    """Arrivals .2, services .002, reserved at .4: 108 servers, price .467, .035 on demand; .432 where all wait."""
    told = json.loads(_run(*PUBLISHED, "-o", "json").stdout)
    plans = {plan["name"]: plan for plan in told["plans"]}
    best = plans["nobody waits"]
    assert (best["accelerators"], round(best["price"], 3), round(best["on_demand"], 3)) == (108, 0.467, 0.035)
    waiting = plans["all wait"]
    assert (waiting["accelerators"], round(waiting["price"], 3)) == (108, 0.432)
    assert waiting["mean_wait_h"] == pytest.approx(20.5, abs=0.05)
    assert plans["all on demand"]["price"] == 1.0
    assert told["bounds"][-1] == {"name": "every reserved hour used", "price": 0.4}


def test_a_trace_is_planned_with_who_would_leave(trace: Path) -> None:
    """Waiting behind a job of 100 h saves Bob nothing: he leaves, and is told of."""
    shown = _run(
        trace, "--reserved-price", 0.4, "--set", "longest_wait=200h", "--on-demand", 2, "--set", "leave_above=15"
    )
    assert shown.exit_code == 0, shown.output
    assert "1 of 2 users would leave" in shown.stdout
    assert "bound: nobody waits, gangs split" in shown.stdout
    assert "USD/H OF WORK" in shown.stdout
    told = json.loads(_run(trace, "--on-demand", 2, "--reserved", 0.8, "--set", "accelerators=2", "-o", "json").stdout)
    given = told["plans"][-1]
    assert (told["reserved_price"], given["accelerators"], given["on_demand"]) == (0.4, 2, 0.0)
    assert given["price"] == pytest.approx(80 / 100.4)


def test_no_plan_is_cheaper_than_its_bound(trace: Path) -> None:
    """What nobody waits for is held to the first bound, everything to the second."""
    told = json.loads(_run(trace, "--reserved-price", 0.3, "-o", "json").stdout)
    split, used = (bound["price"] for bound in told["bounds"])
    plans = {plan["name"]: plan["price"] for plan in told["plans"]}
    assert plans["nobody waits"] >= split - 1e-9
    assert min(plans.values()) >= used - 1e-9


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ((), "price of a reserved hour"),
        (("--reserved-price", 0.4), "nothing to plan for"),
        (("--reserved-price", 0.4, "--set", "arrivals_per_h=-1", "--set", "job_length=1h"), "arrivals_per_h"),
        (("--reserved-price", 1.4), "at most 1"),
        (("--on-demand", 1, "--reserved", 0), "above 0"),
        (("--reserved-price", 0.4, "--reserved", 1), "two prices"),
        ((*PUBLISHED, "--set", "accelerators=3"), "on a trace"),
        ((*PUBLISHED, "--set", "longest_wait=long"), "longest_wait"),
        (("--reserved-price", 0.4, "--set", "arrivals_per_h=1e9", "--set", "job_length=1h"), "too many"),
        (("no-such-file.csv", "--reserved-price", 0.4), "no-such-file.csv"),
        (("no-such-file.csv", *PUBLISHED), "its own arrivals"),
    ],
)
def test_what_cannot_be_planned_is_told_with_a_fix(args: tuple[object, ...], told: str) -> None:
    """Exit 2, and words that name the field."""
    result = _run(*args)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_job_without_a_length_is_named(tmp_path: Path) -> None:
    """Reserving for it would be guessing."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": 0, "name": "j1", "kind": "k", "gang": 1, "steps": 10}\n')
    result = _run(path, "--reserved-price", 0.4)
    assert (result.exit_code, "j1" in result.stderr) == (2, True)


HOUR = 3600.0


def row(job: int, user: str, at_h: float, hours: float, **more: Any) -> UsageRow:
    whose = {"project": {"ada": "vision"}.get(user, "speech"), "accelerator": "a100", "accelerators": 1} | more
    held_s = hours * HOUR * whose["accelerators"]
    usd = more.pop("usd", held_s / HOUR)
    return UsageRow(job=job, user=user, arrived_at=at_h * HOUR, accelerator_s=held_s, on_demand_usd=0.0,
                    **whose | {"usd": usd})  # fmt: skip


#: The case by hand of `test_reservation_bills`: one is used all the time, a second for a tenth of it.
STEADY = [row(1, "ada", 0.0, 100.0), row(2, "bob", 50.0, 10.0, running=True)]
PRICED = [TypePrice(accelerator="a100", usd_per_h=2.0)]


def served(monkeypatch: pytest.MonkeyPatch, rows: list[UsageRow], **more: Any) -> None:
    told = {"since": 0.0, "until": 100 * HOUR, "on_demand": PRICED} | more
    report = UsageReport(items=rows, **told)
    monkeypatch.setattr(money_commands, "with_client", lambda work: report)


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def told(*words: object) -> Any:
    done = run(*words, "-o", "json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_what_to_reserve_from_the_servers_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a100, at .4 of the price that the pools ask on demand; the second job goes on demand."""
    served(monkeypatch, STEADY)
    found = told("cloud", "capacity", "--live", "--reserved", 0.8, "--longest-wait", "0s")
    (a100,) = found["types"]
    assert (a100["accelerator"], a100["on_demand_usd_per_h"], a100["reserved_price"]) == ("a100", 2.0, 0.4)
    plans = {plan["name"]: plan for plan in a100["plans"]}
    assert plans["nobody waits"]["accelerators"] == 1
    assert plans["nobody waits"]["price"] == pytest.approx(50 / 110)
    shown = run("cloud", "capacity", "--live", "--since", "100h", "--reserved-price", 0.4).stdout
    assert "a100: $2.00/h on demand, $0.8000/h reserved" in shown
    assert "From 2 jobs of the last 4d04h" in shown
    assert "1 of them run still" in shown


def test_a_reservation_is_paid_for_the_whole_time_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten busy hours of a hundred do not pay for one at .4."""
    served(monkeypatch, [row(1, "ada", 50.0, 10.0)])
    (a100,) = told("cloud", "capacity", "--live", "--reserved-price", 0.4)["types"]
    assert {plan["name"]: plan["accelerators"] for plan in a100["plans"]}["nobody waits"] == 0


def test_the_bills_under_both_models_and_who_would_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """In USD at 2 on demand: 100 in all. At one price ada pays 90.91 and would pay 80 alone; by place nobody leaves."""
    served(monkeypatch, STEADY)
    found = told("money", "--model", "one-price", "--by", "user", "--reserved", "a100=0.8")
    ada, bob = found["items"]
    assert (ada["name"], ada["charged_usd"], ada["work_h"]) == ("ada", pytest.approx(100.0), pytest.approx(100.0))
    assert (ada["one_price_usd"], ada["by_place_usd"], ada["alone_usd"]) == pytest.approx((1000 / 11, 80.0, 80.0))
    assert (bob["one_price_usd"], bob["by_place_usd"], bob["on_demand_h"]) == pytest.approx((100 / 11, 20.0, 10.0))
    assert found["leave"] == {"one-price": ["ada"], "by-place": []}
    assert found["types"][0]["total_usd"] == pytest.approx(100.0)
    shown = run("money", "--model", "one-price", "--reserved-price", 0.4).stdout
    assert [line.split()[0] for line in shown.splitlines()[1:3]] == ["vision", "speech"]
    assert "$10.91" in shown
    assert "1 x a100 reserved for 4d04h at $0.8000/h, an hour on demand being $2.00" in shown
    assert "Each model bills $100.00 in all; charged were $110.00." in shown
    assert "one-price: 1 of 2 would pay less" in shown
    assert "by-place: 0 of 2 would pay less" in shown


def test_what_is_left_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that no pool rents out, and the jobs of other projects."""
    served(monkeypatch, [*STEADY, row(3, "eve", 60.0, 5.0, accelerator="t4")], partial=True)
    done = run("money", "--model", "by-place", "--reserved-price", 0.4)
    assert "t4 is left out: no pool rents it on demand" in done.stderr
    assert "of your projects alone" in done.stderr
    assert told("money", "--model", "by-place", "--reserved-price", 0.4)["unpriced"] == ["t4"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("money", "--model", "fair", "--reserved-price", 0.4), "--model"),
        (("money", "--model", "one-price"), "--reserved-price"),
        (("money", "--model", "one-price", "--by", "pool", "--reserved-price", 0.4), "--by"),
        (("money", "--model", "one-price", "--month", "2026-11"), "--month"),
        (("money", "--since", "3d"), "--since"),
        (("money", "--model", "one-price", "--reserved", "a100=x"), "--reserved"),
        (("money", "--model", "one-price", "--reserved", "nan"), "--reserved"),
        (("money", "--model", "one-price", "--reserved", 5), "--reserved-price"),
        (("cloud", "capacity", "--since", "3d", "--reserved-price", 0.4, "--arrivals-per-h", 1), "--since"),
        (("cloud", "capacity", "--live", "--arrivals-per-h", 1, "--reserved-price", 0.4), "--arrivals-per-h"),
        (("cloud", "capacity", "--live", "x.csv", "--reserved-price", 0.4), "--live"),
        (("cloud", "capacity", "--live"), "--reserved-price"),
    ],
)
def test_options_that_do_not_fit_are_named(
    monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], field: str
) -> None:
    served(monkeypatch, STEADY)
    done = run(*words)
    assert done.exit_code != 0
    assert field in done.output + done.stderr


def test_a_cluster_without_jobs_or_prices_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one price of several types is refused, not taken for all of them."""
    served(monkeypatch, [])
    assert "no job held an accelerator in the last 30d" in run("cloud", "capacity", "--live").stderr
    served(monkeypatch, STEADY, on_demand=[])
    assert "no pool rents a100 on demand" in run("money", "--model", "by-place", "--reserved", 1).stderr
    assert told("money", "--model", "by-place", "--reserved", 1, "--on-demand", 2)["types"][0]["reserved"] == 1
    served(monkeypatch, [*STEADY, row(3, "eve", 60.0, 5.0, accelerator="t4")])
    assert "one reserved price for a100, t4" in run("cloud", "capacity", "--live", "--reserved", 1).stderr
