"""`walras plan moves`: a price that falls elsewhere by hand, the shipped example, and files that will not do."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from optimizer.planning.price_moves import (
    MoveCost,
    PricedPlace,
    StepFunction,
    bill_of_following,
    bill_of_staying,
    least_usd,
)
from walras.cli.main import app

MARKETS = Path(__file__).resolve().parents[3] / "configs" / "markets"
EXAMPLE = MARKETS / "moves.yaml", MARKETS / "prices.csv"
#: Ten hours' work here, as fast there.
JOB = (
    "steps: 36000\nmoving: {usd: 1, pause: 0}\nplaces: [{name: here, steps_per_s: 1}, {name: there, steps_per_s: 1}]\n"
)
#: There the price falls to a tenth after five hours; the record is ten hours and a second long, so there is one start.
PRICES = "place,at_s,usd_per_h\nhere,0,1\nhere,36001,1\nthere,0,2\nthere,18000,0.1\n"


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["plan", "moves", *(str(arg) for arg in args)])


def _told(*args: object) -> Any:
    result = _run(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    job, prices = tmp_path / "job.yaml", tmp_path / "prices.csv"
    job.write_text(JOB)
    prices.write_text(PRICES)
    return job, prices


def test_a_price_that_falls_is_followed(files: tuple[Path, Path]) -> None:
    """Staying costs ten dollars; following half of them, a tenth of the rest and the move."""
    told = _told(*files, "--starts", 1, "--at", "here")
    ways = {way["name"]: way for way in told["ways"]}
    assert ways["stay at here"]["usd"] == pytest.approx(10)
    assert ways["cheapest at the start"]["usd"] == pytest.approx(10)
    follows = told["ways"][0]
    assert (follows["name"], follows["moves"]) == ("follow prices", 1)
    assert follows["usd"] == pytest.approx(5 + 0.5 + 1, abs=1e-3)
    assert told["bound_usd"] == pytest.approx(5.5, abs=1e-3)
    assert told["now"] == {"place": "there", "usd": pytest.approx(1), "stay_usd": pytest.approx(10), "move": True}


def test_a_move_that_does_not_pay_is_not_made(files: tuple[Path, Path]) -> None:
    """Sending the data costs more than would be saved."""
    files[0].write_text(JOB.replace("usd: 1", "usd: 50"))
    told = _told(*files, "--starts", 1, "--at", "here")
    assert {way["moves"] for way in told["ways"]} == {0}
    assert told["now"]["move"] is False
    assert "stay: less would be saved" in _run(*files, "--at", "here").stdout


def test_the_example_is_made_by_its_rule_and_above_its_bound() -> None:
    """Random(11), eight weeks, a change every four days in the mean, .7 to 1.4 of the usual price."""
    random, rows = Random(11), ["place,at_s,usd_per_h"]
    for place, usual in (("west/one", 1.2), ("west/eight", 9.0), ("east/one", 1.1), ("east/eight", 10.0)):
        at = 0
        while at < 56 * 86_400:
            rows.append(f"{place},{at},{usual * random.uniform(0.7, 1.4):.3f}")
            at += 3600 * max(1, round(random.expovariate(1 / 96)))
    assert EXAMPLE[1].read_text().splitlines() == rows
    told = _told(*EXAMPLE)
    assert all(way["above_bound"] >= 0 for way in told["ways"])
    assert told["ways"][0]["name"] == "follow prices"


@pytest.mark.parametrize("seed", range(20))
def test_no_way_is_below_the_bound(seed: int) -> None:
    """Whatever prices and speeds are, from any start."""
    random = Random(seed)
    places = [
        PricedPlace(
            str(number), StepFunction.of([(random.uniform(0, 9e4), random.uniform(0.1, 3)) for _ in range(8)]), speed
        )
        for number, speed in enumerate((1.0, 2.5, 0.7))
    ]
    bills = [
        bill_of_staying(places[:1], 5e4, 0.0),
        bill_of_staying(places, 5e4, 0.0),
        bill_of_following(places, 5e4, 0.0, MoveCost(0.1, 300.0)),
    ]
    bound = least_usd(places, 5e4, 0.0, max(bill.took_s for bill in bills))
    assert bound <= min(bill.usd for bill in bills) + 1e-9


def test_people_are_told_what_to_do(files: tuple[Path, Path]) -> None:
    """A line per way, the best marked, and the present."""
    shown = _run(*files, "--at", "here").stdout
    assert ">  follow prices" in shown
    assert "Now the cheapest is there: $1.00 at its present price, $10.00 where the job is: move." in shown
    assert "The job is there." in _run(*files, "--at", "there").stdout
    assert "at its present price.\n" in _run(*files).stdout


@pytest.mark.parametrize(
    ("job", "prices", "told"),
    [
        (JOB.replace("name: there", "name: here"), PRICES, "places[1].name"),
        (JOB.replace("steps_per_s: 1}]", "steps_per_s: 0}]"), PRICES, "places[1].steps_per_s"),
        (JOB.replace("pause: 0", "pause: soon"), PRICES, "moving.pause"),
        (JOB.replace("name: there", "name: nowhere"), PRICES, "no price of nowhere"),
        (JOB, PRICES.replace("2\n", "dear\n"), ":4: usd_per_h is 'dear'"),
        (JOB, PRICES.replace("2\n", "-2\n"), ":4: usd_per_h is '-2'"),
        (JOB, PRICES.replace("usd_per_h", "price"), "no column usd_per_h"),
        (JOB.replace("36000", "360000"), PRICES, "the job takes up to"),
    ],
)
def test_files_that_will_not_do_are_named(files: tuple[Path, Path], job: str, prices: str, told: str) -> None:
    """File and field or line, exit code 2."""
    files[0].write_text(job)
    files[1].write_text(prices)
    result = _run(*files)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "fix:" in result.stderr


def test_a_place_that_is_not_in_the_file_is_named(files: tuple[Path, Path]) -> None:
    """With one that is."""
    result = _run(*files, "--at", "x")
    assert (result.exit_code, "such as here" in result.stderr) == (2, True)
