"""`walras cloud spot`: policies on markets whose answer is known, the shipped example, and input that will not do."""

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from walras.cli.main import app

EXAMPLE = Path(__file__).resolve().parents[3] / "configs" / "markets" / "two-zones.csv"
JOB = ("--work", "4h", "--deadline", "6h", "--spot", 1, "--on-demand", 3)
POLICIES = {"ours", "Uniform Progress", "greedy", "on demand alone"}


def _run(*args: object) -> Any:
    return CliRunner().invoke(app, ["cloud", "spot", *(str(arg) for arg in args)])


def _told(*args: object) -> Any:
    result = _run(*args, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def always(tmp_path: Path) -> Path:
    """A zone that has a machine for two days."""
    path = tmp_path / "always.csv"
    path.write_text("end_s,available_nodes\n172800,1\n")
    return path


def test_the_example_is_made_by_its_rule() -> None:
    """Random(7), four weeks, spells of whole slots with exponential lengths: 6 h and 4 h in one zone, 2 h and 1.5 h."""
    random, rows = Random(7), ["trace_id,start_s,end_s,available_nodes"]
    for zone, there_h, gone_h in (("zone-a", 6.0, 4.0), ("zone-b", 2.0, 1.5)):
        at, there = 0, True
        while at < 28 * 86_400:
            spell = 600 * round(random.expovariate(1 / (6 * (there_h if there else gone_h))))
            until = min(at + max(600, spell), 28 * 86_400)
            rows.append(f"{zone},{at},{until},{int(there)}")
            at, there = until, not there
    assert EXAMPLE.read_text().splitlines() == rows


def test_two_zones_of_the_example_are_judged_against_their_bound() -> None:
    """No policy is late or below the bound, the first is the cheapest, and the integer program proves no less."""
    told = _told(EXAMPLE, *JOB, "--set", "starts=6", "--set", "check=true")
    policies = {policy["name"]: policy for policy in told["policies"]}
    assert (set(policies), told["traces"], told["starts"]) == (POLICIES, ["zone-a", "zone-b"], 6)
    usd = [policy["usd"] for policy in told["policies"]]
    assert usd == sorted(usd)
    assert all(policy["late"] == 0 and policy["above_bound"] >= -1e-9 for policy in told["policies"])
    assert policies["on demand alone"]["usd"] == pytest.approx(3 * 4.2)
    assert all(policy["spot_h"] + policy["on_demand_h"] == pytest.approx(4) for policy in told["policies"])
    checked = told["checked"]
    assert checked["starts"] == 4
    assert checked["bound_usd"] <= checked["program_usd"] + 1e-9
    assert checked["at_least_usd"] <= checked["program_usd"]


@pytest.mark.parametrize("only", [("--set", "zone=zone-b"), ()])
def test_the_bound_is_the_integer_program_s(only: tuple[str, ...]) -> None:
    """Which counts whole slots: never below, and at most one slot on demand above, in one zone or two."""
    checked = _told(EXAMPLE, *JOB, *only, "--set", "starts=4", "--set", "check=true")["checked"]
    assert 0 <= checked["program_usd"] - checked["bound_usd"] + 1e-9 <= 3 / 6
    assert checked["at_least_usd"] <= checked["bound_usd"] + 1e-9


def test_a_market_that_is_always_there_costs_spot_alone(always: Path) -> None:
    """One start and the work, from every start, for all but who never looks."""
    told = _told(always, *JOB, "--set", "starts=3")
    assert told["bound"]["usd"] == pytest.approx(4.2)
    for policy in told["policies"][:3]:
        assert (policy["usd"], policy["machine_starts"]) == (pytest.approx(4.2), 1)
        assert policy["with_spot"] == "spot"


def test_a_restart_may_cost_nothing(always: Path) -> None:
    """Then the work is all that is paid."""
    assert _told(always, *JOB, "--set", "restart=0s", "--set", "starts=1")["bound"]["usd"] == pytest.approx(4)


def test_what_to_do_now_follows_from_what_is_left(always: Path) -> None:
    """With slack it waits for a spot machine, no longer than its threshold; without it goes on demand at once."""
    patient = {each["name"]: each for each in _told(always, *JOB, "--set", "starts=2")["policies"]}
    greedy = patient["greedy"]
    # Two hours of slack, less the twenty-two minutes that another slot and the change could take, in whole slots.
    assert (greedy["without_spot"], greedy["waits_h"]) == ("wait", pytest.approx(10 / 6))
    late = _told(
        always, *JOB, "--set", "starts=2", "--set", "work_left=2h", "--set", "time_left=130m", "--set", "held=on-demand"
    )
    assert {(each["without_spot"], each["waits_h"]) for each in late["policies"]} == {("on demand", 0)}
    choices = {(each["spot"], each["does"]): each["usd"] for each in late["choices"]}
    assert choices[False, "on demand"] == pytest.approx(6.0, rel=1e-3)
    assert choices[False, "wait"] is None, "the deadline would be lost"


def test_ours_learns_from_earlier_traces(always: Path, tmp_path: Path) -> None:
    """With a history the starts are spread over the whole trace; packed files are read as plain ones."""
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(always.read_bytes()))
    told = _told(always, *JOB, "--set", "starts=2", "--set", f"history={packed}")
    assert (told["learnt_from"], told["zones"]) == ("history", 1)


def test_people_are_told_what_to_take_and_why(always: Path) -> None:
    """The table marks the best, says why, and what to do now."""
    shown = _run(always, *JOB, "--set", "starts=2").stdout
    assert "Take ours: never late" in shown or "Take Uniform Progress: never late" in shown
    assert "Now, 4h00m of work and 6h00m left, holding nothing:" in shown
    assert "the bound is the optimum, the trace known beforehand" in shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("end_s\n600\n", "no column available_nodes"),
        ("end_s,available_nodes\n600,1\n300,1\n", ":3: end_s is '300'"),
        ("start_s,end_s,available_nodes\n0,600,1\n700,900,1\n", ":3: start_s is 700"),
        ("end_s,available_nodes\n600,maybe\n", ":2: available_nodes is 'maybe'"),
        ("end_s,available_nodes\n600,-1\n", ":2: available_nodes is '-1'"),
        ("end_s,available_nodes\n1e12,1\n", ":2: end_s is '1e12'"),
        ("end_s,available_nodes\n1e9,1\n", "more than 1,000,000 slots"),
        ("end_s,available_nodes\n", "no row"),
        ("end_s,available_nodes\n36000,1\n", "slots in common"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    """File, line and column, and exit code 2."""
    path = tmp_path / "market.csv"
    path.write_text(text)
    result = _run(path, *JOB)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "fix:" in result.stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--work", "6h"), "--deadline"),
        (("--spot", 3), "--spot"),
        (("--spot", 0), "--spot"),
        (("--spot", "nan"), "--spot"),
        (("--on-demand", "inf"), "--spot"),
        (("--work", "0"), "--work"),
        (("--set", "slot=soon"), "slot"),
        (("--set", "slot=1s"), "slot"),
        (("--set", "zone=zone-c"), "one of zone-a, zone-b"),
        (("--set", "work_left=5h"), "work_left"),
        (("--set", "time_left=7h"), "time_left"),
        (("--set", "time_left=3h"), "even on demand"),
        (("--set", "work_left=10m"), "work_left"),
        ((EXAMPLE,), "a second trace 'zone-a'"),
        (("--set", "history=no-such-file.csv"), "no-such-file.csv"),
        (("--set", "restart=6h"), "even on demand"),
    ],
)
def test_what_cannot_be_planned_is_told_with_a_fix(args: tuple[object, ...], told: str) -> None:
    """Exit code 2, and words that name the option."""
    result = _run(EXAMPLE, *JOB, *args)
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "fix:" in result.stderr
