"""`walras policy solve`, `walras policy list|show NAME`: no server, files in, tables or JSON out."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import walras
from walras.cli import terminal_output
from walras.cli.main import app

ROOT = Path(walras.__file__).resolve().parent.parent
PROBLEMS = sorted((ROOT / "configs" / "problems").glob("*.json"))
#: Share policies and orders that all example problems are solved with.
POLICIES = ("max_min_fairness", "cost_with_slos", "proportional_fairness", "isolated", "srtf", "allox")


def run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def data(*args: object) -> Any:
    result = run(*args, "-o", "json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def schema(name: str) -> Any:
    return json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_examples_are_solved_checked_and_checked_again(tmp_path: Path, path: Path, policy: str) -> None:
    """Every example is of the published format, and so is its answer, which holds when it comes back as a file."""
    from jsonschema import validate  # parses grammars for two seconds, which nobody who only collects tests need take

    validate(json.loads(path.read_text()), schema("problem"))
    answer = data("policy", "solve", path, "--policy", policy, "--check")
    validate(answer, schema("answer"))
    assert answer["check"]["holds"]
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(answer))
    again = run("policy", "solve", path, "--answer", file)
    assert again.exit_code == 0, again.stdout
    assert "checked: it holds" in again.stdout


@pytest.mark.parametrize("name", ["problem", "answer"])
def test_published_schemas_are_the_models(name: str) -> None:
    """The files below docs/schemas are what `walras policy solve --schema` prints."""
    from jsonschema import Draft202012Validator

    published = schema(name)
    assert json.loads(run("policy", "solve", "--schema", name).stdout) == published, (
        f"policy solve --schema {name} > docs/..."
    )
    Draft202012Validator.check_schema(published)


def test_the_table_tells_who_gets_what_at_which_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares by configuration, speeds, surplus, prices with their unit, the bound and every stage."""
    told = run("policy", "solve", PROBLEMS[-1], "--policy", "max_min_fairness", "--check").stdout
    assert PROBLEMS[-1].stem == "three_pools"
    for word in ("resnet50", "2 a100", "1 v100 + 1 k80", "OF BEST", "SURPLUS", "at best, gap ", "level"):
        assert word in told
    assert "unit of prices: fair-share units per accelerator" in told
    assert "checked: it holds" in told


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda path: path.stem)
def test_tables_fit_a_terminal(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """At 80 columns no line is wider and no number is cut."""
    wide = run("policy", "solve", path, "--policy", "max_min_fairness", "--check").stdout
    monkeypatch.setattr(terminal_output, "_PIPE_WIDTH", 80)
    told = run("policy", "solve", path, "--policy", "max_min_fairness", "--check").stdout
    assert max(len(line) for line in told.splitlines()) <= 80
    assert "…" not in told
    assert [line.split() for line in told.splitlines()] == [line.split() for line in wide.splitlines()]


def test_the_integral_bound_stands_beside_the_gap() -> None:
    """Two gangs of three on four accelerators: no gap, and a quarter that no schedule of whole gangs can have."""
    threes = ROOT / "configs" / "problems" / "gangs_of_three.json"
    certificate = data("policy", "solve", threes)["shares"]["certificate"]
    assert certificate["gap"] < 1e-6
    assert certificate["integral_bound"] == pytest.approx(0.75 * certificate["bound"])
    shown = run("policy", "solve", threes).stdout
    assert "gap 0.00%" in shown
    assert "integral bound of the round, for whole gangs: at most 1.5, 25.00% below\n" in shown
    slower = run("policy", "solve", threes, "--policy", "makespan").stdout
    assert "integral bound of the round, for whole gangs: at least 7200, 33.33% above\n" in slower


def test_the_example_of_the_document_is_true(tmp_path: Path) -> None:
    """The problem that docs/solve.md shows has the answer that it shows."""
    problem, shown = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "solve.md").read_text(), re.DOTALL)
    file = tmp_path / "problem.json"
    file.write_text(problem)
    assert_contains(data("policy", "solve", file), json.loads(shown))


def assert_contains(found: Any, shown: Any) -> None:
    """What is shown is there, numbers to a part in a thousand; what is not shown may be anything."""
    if isinstance(shown, dict):
        for key, value in shown.items():
            assert_contains(found[key], value)
    elif isinstance(shown, list):
        for one, other in zip(found, shown, strict=False):
            assert_contains(one, other)
    else:
        assert found == (pytest.approx(shown, rel=1e-3, abs=1e-6) if isinstance(shown, float | int) else shown)


def test_a_doctored_answer_does_not_hold(tmp_path: Path) -> None:
    """Exit code 1 and what is wrong, for numbers that the shares do not make and for shares that are not possible."""
    answer = data("policy", "solve", PROBLEMS[-1], "--policy", "throughput")
    file = tmp_path / "answer.json"

    def told(document: Any) -> str:
        file.write_text(json.dumps(document))
        result = run("policy", "solve", PROBLEMS[-1], "--answer", file)
        assert result.exit_code == 1
        return result.stdout

    slower = json.loads(json.dumps(answer))
    slower["shares"]["jobs"][0]["steps_per_s"] += 1
    assert "job 1: " in told(slower)
    assert "does not hold (1 complaint)" in told(slower)
    more = json.loads(json.dumps(answer))
    more["shares"]["jobs"][0]["shares"][0]["share"] = 2
    assert "a constraint is violated by" in told(more)
    unused = json.loads(json.dumps(answer))
    unused["shares"]["used"]["a100"] = 1
    assert "pool a100: 1 accelerators are stated as used" in told(unused)
    whole = json.loads(json.dumps(answer))
    whole["shares"]["certificate"]["integral_bound"] *= 0.999
    assert "integral bound: stated " in told(whole)
    missing = json.loads(json.dumps(answer))
    del missing["shares"]["jobs"][0]
    assert "surplus of job 1" in told(missing)
    assert json.loads(run("policy", "solve", PROBLEMS[-1], "--answer", file, "-o", "json").stdout)["holds"] is False


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda answer: answer.update(problem="0" * 64), "the answer is to another problem"),
        (lambda answer: answer.update(shares=None), "either shares, an order or a plan"),
        (lambda answer: answer["shares"]["jobs"][0].update(id=77), "shares.jobs[0].id: the problem has no job 77"),
        (lambda answer: answer["shares"]["rent"].update(b200=1), "the problem has no pool 'b200'"),
        (lambda answer: answer["shares"]["jobs"][0]["shares"][0].update(configuration=9), "no configuration 9"),
        (lambda answer: answer["shares"]["jobs"][0]["shares"][0].update(uses={"a100": 1}), "uses something else"),
        (
            lambda answer: answer["shares"].update(packed=[{"first": 1, "second": 2, "pool": "a100", "share": 1}]),
            "pair",
        ),
        (lambda answer: answer["policy"].update(name="mine"), "no measure for policy 'mine'"),
        (lambda answer: answer["shares"].update(extra=1), "shares.extra: unknown field"),
    ],
)
def test_what_is_no_answer_to_this_problem_is_refused(tmp_path: Path, change: Any, told: str) -> None:
    """Exit code 2, with the place in the answer."""
    answer = data("policy", "solve", PROBLEMS[-1], "--policy", "throughput")
    change(answer)
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(answer))
    result = run("policy", "solve", PROBLEMS[-1], "--answer", file)
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "line 1, column 2"),
        ('{"jobs": [], "jobs": []}', "the key 'jobs' is given twice"),
        ('{"pools": {"a": {"capacity": NaN}}, "jobs": []}', "NaN is no number"),
        ('{"pools": {"a": {"capacity": 1' + "0" * 5000 + '}}, "jobs": []}', "a number of 5001 digits"),
        ("[" * 100_000, "nested too deeply"),
        ('{"pools": {}, "jobs": [], "at": "now"}', "at: is text where a number is expected"),
        ('{"pools": {}}', "jobs: is missing"),
        ("\ufeff[]", "a list where fields are expected"),
    ],
)
def test_a_problem_file_from_outside_is_refused_by_name(tmp_path: Path, content: str, told: str) -> None:
    """Exit code 2 and the place; never a traceback."""
    file = tmp_path / "problem.json"
    file.write_text(content, encoding="utf-8")
    result = run("policy", "solve", file)
    assert result.exit_code == 2
    assert told in result.stderr
    file.write_bytes(b"\xff\n")
    assert "not UTF-8" in run("policy", "solve", file).stderr
    assert "No such file" in run("policy", "solve", tmp_path / "none.json").stderr
    assert "no problem is given" in run("policy", "solve").stderr


def test_a_problem_may_be_yaml_and_a_policy_a_file(tmp_path: Path) -> None:
    """By their endings; parameters on the command line replace those of the file."""
    file = tmp_path / "problem.yaml"
    file.write_text("pools: {a: {capacity: 1}}\njobs: [{configurations: [{pool: a, steps_per_s: 2}]}]\n")
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: {name: max_min_fairness, parameters: {aware: false, then: sum}}\n")
    answer = data("policy", "solve", file, "--policy", policy, "-s", "aware=true")
    assert answer["policy"] == {"name": "max_min_fairness", "parameters": {"aware": True, "then": "sum"}}
    assert answer["shares"]["jobs"][0]["of_best"] == 1
    assert "did you mean 'aware'?" in run("policy", "solve", file, "-s", "awre=true").stderr
    assert "no policy is called 'max_min'" in run("policy", "solve", file, "--policy", "max_min").stderr


def test_memory_goes_from_answer_to_answer(tmp_path: Path) -> None:
    """The next solve, and its check, take what the last answer left."""
    first = tmp_path / "first.json"
    first.write_text(json.dumps(data("policy", "solve", PROBLEMS[-1], "--policy", "finish_time_fairness")))
    question = json.loads(PROBLEMS[-1].read_text()) | {"at": 7200}
    question["jobs"][0]["remaining_steps"] /= 2
    later = tmp_path / "later.json"
    later.write_text(json.dumps(question))
    second = tmp_path / "second.json"
    second.write_text(
        json.dumps(data("policy", "solve", later, "--policy", "finish_time_fairness", "--memory", first, "--check"))
    )
    assert run("policy", "solve", later, "--answer", second, "--memory", first).exit_code == 0
    assert run("policy", "solve", later, "--answer", second).exit_code == 1


@pytest.mark.parametrize("more", [("--policy", "max_min_fairness"), ("-s", "aware=true"), ("--check",)])
def test_an_answer_is_checked_and_nothing_is_solved_beside_it(tmp_path: Path, more: tuple[str, ...]) -> None:
    """An option of a solve is refused there: it would do nothing."""
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(data("policy", "solve", PROBLEMS[-1], "--policy", "throughput")))
    refused = run("policy", "solve", PROBLEMS[-1], "--answer", file, *more)
    assert refused.exit_code == 2
    assert "nothing is solved" in refused.stderr


def test_renting_is_part_of_the_answer(tmp_path: Path) -> None:
    """Where an hour of waiting costs money, machines are counted as rented, and the answer holds."""
    file = tmp_path / "problem.json"
    pools = {"own": {"capacity": 1}, "cloud": {"capacity": 0, "rentable": 2, "usd_per_h": 1}}
    jobs = [{"configurations": [{"pool": pool, "steps_per_s": 2} for pool in pools]}] * 2
    file.write_text(json.dumps({"pools": pools, "jobs": jobs}))
    assert data("policy", "solve", file, "--check")["shares"]["rent"] == {}
    answer = data("policy", "solve", file, "--check", "--delay-usd-per-h", 5)
    assert answer["shares"]["rent"] == {"cloud": 1}
    assert "1 (1 rented)" in run("policy", "solve", file, "--delay-usd-per-h", 5).stdout


def test_policies_are_listed_and_described() -> None:
    """Without a server: family, a sentence and the source; of one, its formula and parameters."""
    listed = {each["name"]: each for each in json.loads(run("policy", "list", "-o", "json").stdout)}
    assert listed["fifo"]["family"] == "order"
    assert listed["max_min_fairness"]["family"] == "shares"
    assert "NSDI 2019" in listed["tiresias"]["source"]
    assert "FAMILY" in run("policy", "list").stdout
    assert "FAMILY" not in run("policy", "list", "--no-header").stdout
    shown = run("policy", "show", "tiresias").stdout
    assert "index: string (las, gittins), default las" in shown
    assert "thresholds_s: list of number (> 0), default [57600.0] s" in shown
    described = json.loads(run("policy", "show", "makespan", "-o", "json").stdout)
    assert (described["seeks"], described["price_unit"]) == ("minimise", "fair-share units per accelerator")
    assert run("policy", "show", "mine").exit_code == 2


def test_reading_and_describing_load_no_solver(tmp_path: Path) -> None:
    """A schema, a description and an order come without cvxpy, numba and scipy."""
    code = (
        "import sys; from walras.cli.main import app\n"
        "for words in (['solve', '--schema', 'problem'], ['policy', 'list'], ['solve', {problem!r}, '-P', 'fifo']):\n"
        "    app(words, standalone_mode=False)\n"
        "print('LOADED', *{{name.split('.')[0] for name in sys.modules}})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.format(problem=str(PROBLEMS[-1]))], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {"cvxpy", "numba", "highspy", "aiohttp"} & set(done.stdout.split("LOADED")[1].split()) == set()


def test_gangs_over_several_pools_are_made_told_and_checked(tmp_path: Path) -> None:
    """A gang that no pool could hold runs over two; a check knows it again, and refuses one that nobody may make."""
    problem, stated = ROOT / "configs" / "problems" / "mixed_gangs.json", tmp_path / "answer.json"
    answer = data("policy", "solve", problem, "--policy", "max_min_fairness")
    made = {entry["id"] for entry in answer["mixtures"]}
    assert 2 in made
    assert 3 not in made
    answer["mixtures"][0]["steps_per_s"] *= 2
    stated.write_text(json.dumps(answer))
    refused = run("policy", "solve", problem, "--answer", stated)
    assert refused.exit_code == 2
    assert "the speed of its slowest pool" in refused.stderr


@pytest.mark.parametrize("policy", [*POLICIES, "walras", "hadar", "fifo"])
def test_a_job_that_makes_no_step_anywhere_is_named(tmp_path: Path, policy: str) -> None:
    """A speed of 0 means that it cannot run there: it is given nothing, which is said with the field and the fix."""
    jobs = [
        {
            "name": name,
            "remaining_steps": 10,
            "configurations": [{"pool": "a", "accelerators": 1, "steps_per_s": speed}],
        }
        for name, speed in (("stuck", 0), ("works", 2))
    ]
    path = tmp_path / "zero.json"
    path.write_text(json.dumps({"pools": {"a": {"capacity": 1, "usd_per_h": 1}}, "jobs": jobs}))
    result = run("policy", "solve", path, "--policy", policy)
    assert result.exit_code == 0, result.stderr
    assert "jobs[0].configurations (stuck): every steps_per_s is 0" in result.stderr
    assert "fix: write the speeds" in result.stderr
    assert "works" not in result.stderr


@pytest.mark.parametrize("policy", [*POLICIES, "walras", "hadar", "fifo"])
def test_a_problem_of_zero_rates_alone_is_answered(tmp_path: Path, policy: str) -> None:
    """Nobody is given anything; nothing is divided by it."""
    jobs = [{"configurations": [{"pool": "a", "accelerators": 1, "steps_per_s": 0}]} for _ in range(2)]
    path = tmp_path / "zero.json"
    path.write_text(json.dumps({"pools": {"a": {"capacity": 1, "usd_per_h": 1}}, "jobs": jobs}))
    result = run("policy", "solve", path, "--policy", policy, "--check")
    assert result.exit_code == 0, result.stdout + result.stderr
