"""Arrays and matrices: which jobs a sweep becomes, and what each of them runs."""

from typing import Any

import pytest

from walras.errors import JobSpecError
from walras.job_request import JobId
from walras.spec.job_spec import JobSpec, dump_spec, parse_spec, spec_mapping
from walras.spec.spec_request import argv_of, env_of, kind_of, to_request
from walras.spec.sweeps import array_indices, indices_text, is_sweep, parse_array, shown_name_of

GRID = """
name: cnn-{lr}
run: "python train.py --lr {lr} --seed=${seed} --out '{out}' {\\"lr\\": 1}"
envs: {SEED: "{seed}", NOTE: "${lr}"}
array: "%4"
matrix: {lr: [1e-3, 0.10], seed: 0-4}
"""


def member(spec: JobSpec, index: int) -> JobSpec:
    return spec.model_copy(update={"array_index": index})


@pytest.mark.parametrize(
    ("text", "indices", "at_most"),
    [
        ("1-5", (1, 2, 3, 4, 5), 0),
        ("0-15:5%8", (0, 5, 10, 15), 8),
        ("7, 1,3-4%2", (7, 1, 3, 4), 2),
        ("%3", (), 3),
    ],
)
def test_an_array_is_written_as_slurm_does(text: str, indices: tuple[int, ...], at_most: int) -> None:
    choice = parse_array(text)
    assert (choice.indices, choice.at_most) == (indices, at_most)


@pytest.mark.parametrize(
    ("fields", "field", "word"),
    [
        ({"array": 10}, "array", "'0-9' for 10 jobs"),
        ({"array": "5-1"}, "array", "ascends"),
        ({"array": "1-2000"}, "array", "more than 1000"),
        ({"array": "1-3%0"}, "array", "the limit"),
        ({"array": "1,1"}, "array", "twice"),
        ({"array": "%3"}, "array", "names no job"),
        ({"array": "a-b"}, "array", "no range"),
        ({"array": "0-4", "matrix": {"lr": [1, 2]}}, "array", "has 2 combinations"),
        ({"matrix": {"a": "0-99", "b": "0-99"}}, "matrix", "10,000 combinations"),
        ({"matrix": {"lr": 0.1}}, "matrix.lr", "neither a list"),
        ({"matrix": {"lr": [1, [2]]}}, "matrix.lr", "neither text nor a number"),
        ({"matrix": {"lr": [1, 1]}}, "matrix.lr", "twice"),
        ({"matrix": {"index": [1, 2]}}, "matrix", "another name"),
        ({"array": "1-3", "array_index": 9}, "array_index", "no index"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_by_field(fields: dict[str, Any], field: str, word: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        parse_spec({"run": "x", **fields})
    assert refused.value.field == field
    assert word in f"{refused.value}; {refused.value.fix}"


def test_each_job_has_its_values_where_they_are_named() -> None:
    """`{lr}` as the file writes it; the shell's `${lr}`, other braces and unknown names stay."""
    spec = parse_spec(GRID)
    assert is_sweep(spec)
    assert array_indices(spec) == tuple(range(10))
    job = member(spec, 7)
    assert argv_of(job)[-1] == "python train.py --lr 0.10 --seed=${seed} --out '{out}' {\"lr\": 1}"
    env = env_of(job)
    assert (env["SEED"], env["NOTE"], env["WALRAS_MATRIX_LR"]) == ("2", "${lr}", "0.10")
    assert {name: env[f"WALRAS_ARRAY_{name}"] for name in ("INDEX", "COUNT", "MIN", "MAX")} == {
        "INDEX": "7", "COUNT": "10", "MIN": "0", "MAX": "9",
    }  # fmt: skip
    assert [shown_name_of(member(spec, index)) for index in (0, 5)] == ["cnn-1e-3", "cnn-0.10"]
    assert not is_sweep(job)
    assert parse_spec(dump_spec(job)) == job
    assert parse_spec(spec_mapping(spec)) == spec


def test_jobs_of_a_sweep_share_what_is_measured() -> None:
    """One kind for all learning rates; another for each batch size, which changes the speed."""
    spec = parse_spec(GRID)
    assert kind_of(member(spec, 0)) == kind_of(member(spec, 9))
    sizes = parse_spec({"run": "python train.py --b {batch_size}", "matrix": {"batch_size": [32, 64]}})
    assert kind_of(member(sizes, 0)) != kind_of(member(sizes, 1))


def test_many_jobs_are_no_request_of_one() -> None:
    """A simulation, or a profile, takes one job of it."""
    spec = parse_spec({"run": "x", "array": "1-3"})
    with pytest.raises(JobSpecError, match="a sweep is many jobs"):
        to_request(spec, JobId(1), user="ada", project="p", at=0.0)
    assert to_request(member(spec, 2), JobId(1), user="ada", project="p", at=0.0).job_id == 1


def test_chosen_indices_are_written_short() -> None:
    assert indices_text([9, 1, 2, 3, 7, 8]) == "1-3,7-9"
    assert parse_array(indices_text(range(0, 100, 7))).indices == tuple(range(0, 100, 7))
