"""`walras rerun`: jobs are made again from themselves, all that are named or none."""

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


def submitted(fake: Any) -> list[Any]:
    return [body for verb, path, body in fake.requests if (verb, path) == ("POST", "/api/v1/jobs")]


def test_what_depends_on_a_job_made_again_waits_for_the_new_one(run: Run, fake: Any) -> None:
    """By number or by name, whatever the order of the words; what is not made again stays as it is."""
    fake.add(name="prep", state="FAILED", spec={"name": "prep", "run": "a"})
    fake.add(state="CANCELLED", spec={"run": "b", "depends_on": [1, 3]})
    fake.add(state="SUCCEEDED", spec={"run": "c"})
    fake.add(state="CANCELLED", spec={"run": "d", "depends_on": ["prep", 2]})
    result = run("rerun", "4", "2", "1")
    assert result.exit_code == 0, result.output
    assert [spec.get("depends_on") for spec in submitted(fake)] == [None, [5, 3], [5, 6]]


def test_a_sweep_made_again_is_waited_for(run: Run, fake: Any) -> None:
    """As a whole, or one job of it."""
    for index in (0, 1):
        spec = {"run": "t", "array": "0-1", "array_index": index}
        fake.add(name="grid", state="FAILED", sweep=1, sweep_index=index, spec=spec)
    fake.add(state="CANCELLED", spec={"run": "b", "depends_on": [1]})
    fake.add(state="CANCELLED", spec={"run": "c", "depends_on": [2]})
    assert run("rerun", "3", "1", "4").exit_code == 0
    assert [spec.get("depends_on") for spec in submitted(fake)] == [None, [5], [6]]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"run": "b", "depends_on": [1]}, "job 2: job 1, which it depends on, has ended FAILED"),
        ({"run": "b", "depends_on": [99]}, "job 2: no job 99 to depend on"),
        ({"run": "b", "secrets": {"KEY_A": {}, "KEY_B": {}}}, "no variable KEY_B"),
        ({"run": "b", "envs": {"LR": "(hidden)"}}, "job 2: you may not see the values of LR"),
        ({"run": "b", "resources": {"accelerators": {"h900": 1}}}, "job 2: no pool has h900"),
    ],
)
def test_one_that_cannot_run_again_keeps_all_from_being_submitted(run: Run, fake: Any, spec: Any, told: str) -> None:
    """Everything that is wrong is named at once."""
    fake.add(state="FAILED", spec={"run": "a"})
    fake.add(state="FAILED", spec=spec)
    fake.add(state="FAILED", spec={"run": "c"})
    fake.add(state="FAILED", spec={"run": "d", "secrets": {"KEY_D": {}}})
    result = run("rerun", "2", "3", "4")
    assert result.exit_code == 2
    words = " ".join(result.output.split())
    assert told in words
    assert "no variable KEY_D" in words
    assert submitted(fake) == []


def test_one_that_is_refused_after_all_takes_the_others_back(run: Run, fake: Any) -> None:
    fake.add(state="FAILED", spec={"run": "a"})
    fake.add(state="FAILED", spec={"run": "b"})

    def refuse_the_second(number: int) -> None:
        if fake.requests[-1][:2] == ("POST", "/api/v1/jobs") and len(submitted(fake)) == 2:
            fake.script.append(400)

    fake.on_request = refuse_the_second
    result = run("rerun", "1", "2")
    assert result.exit_code == 2
    assert fake.jobs[3]["state"] == "CANCELLED"
    assert "taken back, as not all could be submitted: 3" in result.output


def test_a_secret_comes_from_the_variable_of_its_name(run: Run, fake: Any) -> None:
    """The server keeps names alone."""
    fake.add(state="FAILED", spec={"run": "a", "secrets": {"KEY_A": {}}})
    assert run("rerun", "1", env={"KEY_A": "open sesame"}).exit_code == 0
    assert submitted(fake)[0]["secrets"] == {"KEY_A": {"value": "open sesame"}}
