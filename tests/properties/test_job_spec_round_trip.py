"""Any job spec survives being written down and read again."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from walras.errors import JobSpecError
from walras.spec.job_spec import parse_spec, spec_mapping
from walras.spec.spec_request import kind_of
from walras.spec.text_formats import dump_yaml, parse_yaml

NUMBERS = st.floats(min_value=1e-6, max_value=1e9)
LENGTHS = st.floats(min_value=0.001, max_value=1e8) | st.sampled_from(["10m", "1h30m", "2d"])
# No surrogates and no zero bytes: no process can be given those.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
TRICKY = st.sampled_from(
    ["yes", "no", "null", "~", "1e3", "007", "0x1f", "1:30", "2026-11-05", "a: b", "#c", "- d", "''"]
)
ENV_NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True).filter(lambda name: not name.startswith("WALRAS_"))
ACCELERATORS = st.dictionaries(st.sampled_from(["a100", "V100", "k80", "A100-40GB", "tpu-v5"]), st.just(4), min_size=1)

SPECS = st.fixed_dictionaries(
    {
        "run": TEXT.filter(str.strip) | TRICKY | st.lists(NAMES | TRICKY, min_size=1, max_size=4),
        "resources": st.fixed_dictionaries(
            {"accelerators": ACCELERATORS | st.just("any:4")},
            optional={"cpus": st.integers(0, 64), "memory": st.integers(2**20, 2**50)},
        ),
    },
    optional={
        "name": NAMES | TRICKY,
        "workdir": st.sampled_from(["/data", "a/b", "."]),
        "envs": st.dictionaries(ENV_NAMES, TEXT | TRICKY | st.none() | st.integers(), max_size=4),
        "project": NAMES | TRICKY,
        "priority": st.integers(0, 100) | st.sampled_from(["low", "normal", "high"]),
        "preemptible": st.booleans(),
        "num_nodes": st.sampled_from([1, 2, 4]),
        "elastic": st.sampled_from([{"min": 1, "max": 8}, {"min": 4, "max": 64}]),
        "batch": st.sampled_from([{"global": 64}, {"global": 512}]),
        "steps": NUMBERS,
        "estimated_duration": LENGTHS,
        "profile": NAMES,
        "throughput": st.dictionaries(st.sampled_from(["a100", "v100"]), NUMBERS),
        "retry": st.fixed_dictionaries(
            {"max_restarts": st.integers(0, 9), "on_exit_codes": st.lists(st.integers(1, 255))}
        ),
        "limits": st.fixed_dictionaries({}, optional={"max_runtime": LENGTHS, "max_queue_time": LENGTHS}),
        "grace_period": st.floats(min_value=0.1, max_value=86_400),
        "deadline": st.sampled_from(["+12h", "2026-11-05T18:00:00Z", "2026-11-05T18:00:00.5+01:00"]),
        "depends_on": st.lists(st.integers(1, 99) | NAMES.filter(lambda name: name.strip("0") != ""), max_size=3),
        "condition": st.sampled_from(["succeeded", "finished"]),
        "checkpoint": st.fixed_dictionaries(
            {}, optional={"dir": st.just("a/b"), "keep": st.integers(1, 9), "interval": LENGTHS}
        ),
        "labels": st.dictionaries(NAMES | TRICKY, TEXT | TRICKY, max_size=3),
        "notify": st.lists(st.sampled_from(["failed", "Finished", "at-risk", "stuck"]), max_size=5),
        "value_usd_per_h": NUMBERS,
        "weight": st.floats(min_value=1e-3, max_value=1e6),
        "hold": st.booleans(),
    },
)  # fmt: skip


@given(SPECS)
@settings(max_examples=150, deadline=None)
def test_any_spec_survives_yaml_and_json(mapping: dict[str, object]) -> None:
    """Written as a job file or as JSON, a spec reads back equal, of the same kind, and is written the same again."""
    spec = parse_spec(mapping)
    text = dump_yaml(spec_mapping(spec))
    again = parse_spec(text)
    assert again == spec
    assert dump_yaml(spec_mapping(again)) == text
    assert kind_of(again) == kind_of(spec)
    assert parse_spec(json.loads(json.dumps(spec_mapping(spec)))) == spec


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXT | TRICKY | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | TRICKY, inner, max_size=3),
    max_leaves=10,
)


@given(PLAIN)
@settings(max_examples=150, deadline=None)
def test_any_plain_data_survives_yaml(data: object) -> None:
    """What we write as YAML, we read back as the same data, whatever the strings look like."""
    assert parse_yaml(dump_yaml(data), source="x", max_bytes=10**6) == data


@given(st.text(max_size=60) | st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_spec_or_a_refusal(content: str | bytes) -> None:
    """Nothing a person can put into a file does anything but make a spec or raise JobSpecError with a fix."""
    fix = "nothing to mend"
    try:
        parse_spec(content)
    except JobSpecError as error:
        fix = error.fix
    assert fix
