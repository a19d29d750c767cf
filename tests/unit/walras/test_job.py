"""The job spec: what it accepts, what it refuses and in which words, and what the scheduler makes of it."""

import json
import re
from math import inf
from typing import Any

import pytest

from walras.errors import JobSpecError
from walras.job_request import Demand, JobId, RetryRule
from walras.spec.job_groups import CheckpointSpec, LimitsSpec, ResourcesSpec, RetrySpec, TargetSpec
from walras.spec.job_spec import JobSpec, json_schema, parse_spec, spec_mapping
from walras.spec.shell_scripts import script_mapping
from walras.spec.spec_request import argv_of, env_of, kind_of, missing_envs, to_request
from walras.spec.text_formats import apply_overrides, dump_yaml

FULL = """\
schema_version: 1
name: resnet sweep 3
run: python train.py --lr 0.1
workdir: /data/ada
envs: {SEED: 007, LR: 1e-3, FLAG: no, WANDB_KEY: null}
secrets: {HF_TOKEN: {env: HF}, DB_KEY: {file: db.key}}
project: vision
priority: high
preemptible: false
num_nodes: 2
nproc_per_node: 1
resources: {accelerators: [A100-SXM4-40GB:2, v100:2], cpus: 4+, memory: 24GB+, pools: vx1/spot/eu}
elastic: {min: 1, max: 4}
batch: {global: 64}
steps: 1e4
target: {value: loss, at_most: 0.35}
estimated_duration: 1h30m
profile: resnet50
facts: {gradient_bytes: 102e6, layers: 50}
throughput: {A100-40GB: 12.0}
retry: {max_restarts: 2, on_exit_codes: 3}
limits: {max_runtime: 2d, max_queue_time: 12h}
grace_period: 2m
deadline: +12h
not_before: 2026-11-05T18:00:00Z
depends_on: [12, prepare]
condition: finished
checkpoint: {dir: resnet, keep: 5, interval: 10m}
labels: {paper: 3, team: vision}
notify: failed, At-Risk
value_usd_per_h: 4.5
weight: 2
hold: true
array: 0-1%1
matrix: {lr: [0.1, 0.2]}
array_index: 1
outputs: [out]
inputs: {data: s3://bucket/digits}
setup: make
image: ada/torch:2
plan:
  {pool: vx1/spot/eu, machines: 2, accelerator: v100, accelerators: 2, steps_per_s: 12, low: 10, high: 14, hours: 2,
   usd: 8, goal: deadline=6h, made_at: '2026-11-05T18:00:00Z'}
quoted: {way: 2 x v100, start_by: 1793898000, end_by: 1793941200, usd_most: 3.5, quoted_at: 1793897000}
"""


def test_every_field_is_read() -> None:
    """A file with every field means what it says; the example above leaves out only what others exclude."""
    spec = parse_spec(FULL)
    assert set(spec_mapping(spec)) | {
        "schema_version",
        "fork",
        "mixed",
        "plans",
        "roles",
        "code",
        "git",
        "python",
    } == set(JobSpec.model_fields)
    assert spec.resources == ResourcesSpec(
        accelerators=(Demand("a100-40gb", 2), Demand("v100", 2)), cpus=4.0, memory=24 * 10**9, pools=("vx1/spot/eu",)
    )
    assert spec.envs == {"SEED": "007", "LR": "1e-3", "FLAG": "no", "WANDB_KEY": None}
    assert spec.priority == 80
    assert spec.steps == 10_000
    assert spec.retry == RetrySpec(max_restarts=2, on_exit_codes=(3,))
    assert spec.limits == LimitsSpec(max_runtime=172_800, max_queue_time=43_200)
    assert spec.checkpoint == CheckpointSpec(dir="resnet", keep=5, interval=600)
    assert spec.depends_on == (12, "prepare")
    assert spec.target == TargetSpec(value="loss", at_most=0.35)
    assert spec.labels == {"paper": "3", "team": "vision"}
    assert spec.notify == ("failed", "at_risk")
    assert spec.throughput == {"a100-40gb": 12.0}


def test_only_run_is_required() -> None:
    """Everything else has a default, and a dumped spec shows only what was asked for."""
    spec = parse_spec("run: hostname")
    assert spec_mapping(spec) == {"run": "hostname"}
    assert (spec.priority, spec.resources.accelerators, spec.grace_period) == (50, (Demand("*", 1),), 30.0)


@pytest.mark.parametrize(
    ("written", "demands"),
    [
        ("A100", (("a100", 1),)),
        ("A100:2", (("a100", 2),)),
        ("any:2", (("*", 2),)),
        ({"a100": 1, "v100": "2"}, (("a100", 1), ("v100", 2))),
        (["NVIDIA A100 80GB PCIe:1", "k80"], (("a100-80gb", 1), ("k80", 1))),
        ({"Tesla V100-SXM2-16GB": 4}, (("v100-16gb", 4),)),
    ],
)
def test_forms_of_accelerators(written: Any, demands: tuple[tuple[str, int], ...]) -> None:
    """One type, several acceptable types with their counts, or any type; names become canonical."""
    spec = parse_spec({"run": "x", "resources": {"accelerators": written}})
    assert tuple((demand.accelerator, demand.count) for demand in spec.resources.accelerators) == demands


BAD = [
    # what is written, the field named, a word of the message or of the fix
    ("runn: x", "runn", "did you mean `run`"),
    ("run: x\nresources: {acelerators: a100}", "resources.acelerators", "did you mean `resources.accelerators`"),
    ("run: x\ncheckpoint: {directory: a}", "checkpoint.directory", "`checkpoint.dir`"),
    ("run: x\ngpus: 2", "gpus", "`resources.accelerators`"),
    ("run: x\nacelerators: 2", "acelerators", "did you mean `resources.accelerators`?"),
    ("run: x\npackges: [numpy]", "packges", "did you mean `python.packages`?"),
    ("run: x\nbudget_usd: 2", "budget_usd", "did you mean `limits.budget_usd`?"),
    ("run: x\npools: [vx1]", "pools", "did you mean `resources.pools`?"),
    ("run: x\nbusy: 0.5", "busy", "did you mean `resources.shared.busy`?"),
    ("run: x\nurl: a", "url", "did you mean `git.url` or `inputs.url`?"),
    ("run: x\nresources: {num_nodes: 2}", "resources.num_nodes", "did you mean `num_nodes`?"),
    ("run: x\nresources: {pirority: 2}", "resources.pirority", "did you mean `priority`?"),
    ("run: x\ntarget: {metric: loss, at_most: 1}", "target.metric", "`target.value`"),
    ("run: x\ntarget: {value: loss}", "target.at_most", "add `target.at_most:`"),
    ("run: x\ntarget: {value: loss, at_most: 0}", "target.at_most", "a number above 0"),
    ("run: x\ntarget: {value: loss, at_most: .nan}", "target.at_most", "a finite number"),
    ("run: x\ntarget: {value: '', at_most: 1}", "target.value", "must not be empty"),
    ('run: x\ntarget: {value: "a\\eb", at_most: 1}', "target.value", "control and formatting"),
    ("run: x\ntarget: {value: accuracy, at_least: 0.9}", "target.at_least", "`1 - accuracy`"),
    ("run: x\ntarget: loss", "target", "write its fields below it: value, at_most"),
    ("run: x\nenvs: [A=1]", "envs", "write lines `NAME: value` below it"),
    ("run: x\ncolour: red", "colour", "known fields"),
    ("run: x\ngang: mixed", "gang", "this version does not carry it out"),
    ("run: x\nnotify: {A: b}", "notify", "such as `[failed, finished]`"),
    ("run: x\nnotify: [failed, machine_lost]", "notify", "'machine_lost' is nothing to be told of"),
    ("run: x\nnotify: [1]", "notify", "'1' is nothing to be told of"),
    ("run: x\nsecrets: {A: b}", "secrets.A", "says not where the value comes from"),
    ("run: x\nsecrets: {A: {env: B, file: c}}", "secrets.A", "has several sources"),
    ("run: x\nresources: {pools: [vx1]}", "resources.pools[0]", "vx1"),
    ("run: x\nresources: {spot: only}", "resources.spot", "this version does not carry it out"),
    ("name: x", "run", "add `run:`"),
    ("run: ''", "run", "is empty"),
    ("run: []", "run", "0 arguments"),
    ("run: [true]", "run", "quote it"),
    ("run: {a: b}", "run", "neither text nor a list"),
    ('run: "a\\0b"', "run", "zero byte"),
    ("run: x\nsteps: -1", "steps", "above 0"),
    ("run: x\nsteps: 0", "steps", "above 0"),
    ("run: x\nsteps: .nan", "steps", "finite"),
    ("run: x\nsteps: .inf", "steps", "finite"),
    ("run: x\nsteps: true", "steps", "write a number"),
    ("run: x\nweight: -2", "weight", "above 0"),
    ("run: x\nvalue_usd_per_h: -1", "value_usd_per_h", "0 or more"),
    ("run: x\npriority: 101", "priority", "100 or less"),
    ("run: x\npriority: -1", "priority", "0 or more"),
    ("run: x\npriority: urgent", "priority", "low, normal, high"),
    ("run: x\nnum_nodes: 0", "num_nodes", "1 or more"),
    ("run: x\nnum_nodes: 100000", "num_nodes", "1024 or less"),
    ("run: x\nnum_nodes: 2", "num_nodes", "multiple of num_nodes"),
    ("run: x\nnproc_per_node: 3\nresources: {accelerators: a100:2}", "nproc_per_node", "write auto"),
    ("run: x\nnproc_per_node: many", "nproc_per_node", "write auto"),
    ("run: x\nresources: {accelerators: a100:0}", "resources.accelerators", "1 to 4096"),
    ("run: x\nresources: {accelerators: a100:-1}", "resources.accelerators", "1 to 4096"),
    ("run: x\nresources: {accelerators: a100:99999999999}", "resources.accelerators", "1 to 4096"),
    ("run: x\nresources: {accelerators: a100:two}", "resources.accelerators", "no whole number"),
    ("run: x\nresources: {accelerators: 'a 💥:1'}", "resources.accelerators", "is not an accelerator type"),
    ("run: x\nresources: {accelerators: [a100:1, A100:2]}", "resources.accelerators", "twice"),
    ("run: x\nresources: {accelerators: {any: 1, a100: 1}}", "resources.accelerators", "beside other types"),
    ("run: x\nresources: {accelerators: []}", "resources.accelerators", "any:1"),
    ("run: x\nresources: {accelerators: 3}", "resources.accelerators", "a100:1"),
    ("run: x\nresources: {memory: 32}", "resources.memory", "32GB"),
    ("run: x\nresources: {memory: much}", "resources.memory", "24GB"),
    ("run: x\nresources: {cpus: -4}", "resources.cpus", "write '4'"),
    ("run: x\nresources: 5", "resources", "accelerators, cpus, memory"),
    ("run: x\nlimits: {max_runtime: 0}", "limits.max_runtime", "above 0"),
    ("run: x\nlimits: {max_runtime: -5m}", "limits.max_runtime", "'10m'"),
    ("run: x\ngrace_period: 2d", "grace_period", "86400 or less"),
    ("run: x\nretry: {max_restarts: -1}", "retry.max_restarts", "0 or more"),
    ("run: x\nretry: {on_exit_codes: [0]}", "retry.on_exit_codes[0]", "1 or more"),
    ("run: x\nthroughput: {a100: 0}", "throughput.a100", "above 0"),
    ("run: x\nthroughput: {'': 1}", "throughput.", "an accelerator type"),
    ("run: x\ndeadline: tomorrow", "deadline", "'+12h'"),
    ("run: x\ndeadline: 2026-13-01T00:00:00Z", "deadline", "'+12h'"),
    ("run: x\ndeadline: 2026-11-05T18:00:00", "deadline", "'+12h'"),
    ("run: x\ndepends_on: [0]", "depends_on[0]", "begin at 1"),
    ("run: x\ndepends_on: [[1]]", "depends_on[0]", "job number"),
    ("run: x\ncondition: maybe", "condition", "'succeeded' or 'finished'"),
    ("run: x\ncheckpoint: {dir: /etc}", "checkpoint.dir", "relative path"),
    ("run: x\ncheckpoint: {dir: a/../../b}", "checkpoint.dir", "'..'"),
    ("run: x\ncheckpoint: {dir: ~/x}", "checkpoint.dir", "relative path"),
    ("run: x\ncheckpoint: {dir: 'a\\..\\b'}", "checkpoint.dir", "relative path"),
    ("run: x\nworkdir: /data/../etc", "workdir", "'..'"),
    ("run: x\nworkdir: ~ada", "workdir", "write the path out"),
    ('run: x\nname: "a\\e[31m"', "name", "control and formatting"),
    ('run: x\nname: "a\\u202eb"', "name", "control and formatting"),
    ("run: x\nname: ''", "name", "must not be empty"),
    (f"run: x\nname: {'a' * 201}", "name", "at most 200"),
    ("run: x\nproject: 5", "project", "quote it"),
    ("run: x\nenvs: {A-B: 1}", "envs.A-B", "letters, digits"),
    ("run: x\nenvs: {WALRAS_JOB_ID: 1}", "envs.WALRAS_JOB_ID", "choose another name"),
    ("run: x\nenvs: {A: true}", "envs.A", 'quote it: "true"'),
    ("run: x\nenvs: {A: [1]}", "envs.A", "write text"),
    (f"run: x\nenvs: {{{', '.join(f'A{i}: 1' for i in range(1001))}}}", "envs", "at most 1000"),
    ("run: x\nhold: perhaps", "hold", "true or false"),
    ("run: x\nschema_version: 2", "schema_version", "1"),
    ("run: x\nrun: y", "line 2", "given twice"),
    ("run: x\n y: [", "line 2", "correct the YAML"),
    ("run: 'x", "line 1", "correct the YAML"),
    ("run: \x07", "", "remove that character"),
    (b"name: a\nrun: \xff", "line 2", "save the file as UTF-8"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nrun: *b", "line 2", "write the value out"),
    ("run: &r [*r]", "line 1", "write the value out"),
    ("run: " + "[" * 40 + "]" * 40, "line 1", "flatter"),
    ("[" * 100_000, "line 1", "flatter"),
    ("run: !!python/object/apply:os.system [id]", "line 1", "remove the tag"),
    ("? [a, b]\n: c", "line 1", "correct the YAML"),
    ("run: x\n---\nrun: y", "line 2", "one document"),
    ("", "", "`run: python train.py`"),
    ("- run: x", "", "`run: python train.py`"),
    ("just text", "", "`run: python train.py`"),
]


@pytest.mark.parametrize(("written", "field", "said"), BAD, ids=[str(row[0])[:40] for row in BAD])
def test_bad_input_is_refused_with_the_field_and_the_fix(written: str | bytes, field: str, said: str) -> None:
    """Every refusal names where and what to do, in a message of bounded length without control characters."""
    with pytest.raises(JobSpecError) as refusal:
        parse_spec(written, source="job.yaml")
    error = refusal.value
    assert error.field == field
    assert said in f"{error}\n{error.fix}"
    assert error.fix
    assert str(error).startswith("job.yaml: ")
    assert len(str(error)) < 2000
    assert "\x1b" not in str(error)


def test_ten_megabytes_are_refused_at_once() -> None:
    """A file over the limit is refused by its size, as text and as data, before anything is built from it."""
    for given in ("run: " + "x" * 10_000_000, {"run": "x", "labels": {"a": "x" * 10_000_000}}, {"run": ["x"] * 10**6}):
        with pytest.raises(JobSpecError, match=r"larger than|at most") as refusal:
            parse_spec(given)
        assert "name them in `run`" in refusal.value.fix


def test_deep_data_is_refused_without_recursion() -> None:
    """Data nested a million deep (from JSON) is refused like any other."""
    deep: list[Any] = []
    for _ in range(1_000_000):
        deep = [deep]
    with pytest.raises(JobSpecError, match="levels"):
        parse_spec({"run": "x", "labels": deep})
    while deep:  # taken apart by hand: destroying it recursively would overflow
        deep = deep[0]


def test_several_mistakes_are_told_together() -> None:
    """The first mistake decides the field; the others are listed, so that one round of mending is enough."""
    with pytest.raises(JobSpecError) as refusal:
        parse_spec("run: x\nsteps: -1\nnme: y\npriority: 400")
    assert refusal.value.field == "nme"
    assert "also priority" in str(refusal.value)
    assert "also steps" in str(refusal.value)


def test_a_written_file_is_short_and_reads_back() -> None:
    """A spec dumped as YAML reads back to the same spec, from JSON data too."""
    spec = parse_spec(FULL)
    assert parse_spec(dump_yaml(spec_mapping(spec))) == spec
    assert parse_spec(json.loads(json.dumps(spec_mapping(spec)))) == spec


def test_what_the_scheduler_sees() -> None:
    """Every decision-relevant field arrives in the request, calendar dates as seconds since the cluster's epoch."""
    spec = parse_spec(FULL).model_copy(update={"envs": {}})
    # 2026-11-05T17:00:00Z, an hour before `not_before`; the cluster's clock shows 500 s.
    request = to_request(
        spec, JobId(7), user="ada", project="vision", at=500.0, now_wall=1_793_898_000.0, depends_on=(JobId(3),)
    )
    assert request.demands == (Demand("a100-40gb", 2), Demand("v100", 2))
    assert (request.job_id, request.kind, request.user, request.project) == (7, "resnet50", "ada", "vision")
    assert request.not_before_at == pytest.approx(500 + 3600)
    assert request.deadline_at == pytest.approx(500 + 12 * 3600)
    assert (request.priority, request.priority_class, request.weight, request.nodes) == (80, 2, 2.0, 2)
    assert (request.steps, request.duration_s) == (10_000, 5400)
    assert (request.cpus_per_accelerator, request.memory_bytes_per_accelerator) == (4.0, 24 * 10**9)
    assert request.retry == RetryRule(2, (3,))
    assert (request.max_runtime_s, request.max_queue_s, request.grace_s) == (172_800, 43_200, 120)
    assert request.checkpoint_every_s == 600
    assert (request.preemptible, request.held, request.depends_on_any_end) == (False, True, True)
    assert (request.value_usd_per_h, request.declared, request.depends_on) == (4.5, (("a100-40gb", 12.0),), (3,))


def test_what_is_not_said_is_unlimited() -> None:
    """Without limits, deadline or declared facts the request carries infinities and None, never zero."""
    request = to_request(parse_spec("run: x"), JobId(1), user="u", project="p", at=9.0)
    assert (request.deadline_at, request.not_before_at) == (inf, -inf)
    assert (request.max_runtime_s, request.max_queue_s) == (inf, inf)
    assert (request.steps, request.duration_s, request.value_usd_per_h, request.declared) == (None, None, None, ())


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ("deadline: 2020-01-01T00:00:00Z", "deadline"),
        ("deadline: +1h\nnot_before: +2h", "deadline"),
        ("envs: {TOKEN: null}", "envs.TOKEN"),
    ],
)
def test_what_only_shows_at_submission(more: str, field: str) -> None:
    """A deadline that has passed, and a variable without a value, are refused when the job is admitted."""
    spec = parse_spec(f"run: x\n{more}")
    with pytest.raises(JobSpecError) as refusal:
        to_request(spec, JobId(1), user="u", project="p", at=0.0, now_wall=1_793_898_000.0)
    assert refusal.value.field == field
    assert refusal.value.fix


def test_a_date_needs_a_calendar() -> None:
    """Virtual time has no calendar: there, only lengths after submission are accepted."""
    spec = parse_spec("run: x\ndeadline: 2026-11-05T18:00:00Z")
    with pytest.raises(JobSpecError, match="calendar"):
        to_request(spec, JobId(1), user="u", project="p", at=0.0)


def test_commands() -> None:
    """Text runs under a strict bash; a list runs as it is, without a shell."""
    assert argv_of(parse_spec("run: a | b")) == ("bash", "-euo", "pipefail", "-c", "a | b")
    assert argv_of(parse_spec("run: [python, train.py, 3]")) == ("python", "train.py", "3")


def test_variables_without_a_value() -> None:
    """A null variable is accepted in a file and has to be given before the job runs."""
    spec = parse_spec("run: x\nenvs: {A: 1, B: }")
    assert missing_envs(spec) == ("B",)
    with pytest.raises(JobSpecError, match="B has no value"):
        env_of(spec)


def test_kinds() -> None:
    """The profile names the kind; else what decides the speed does, and nothing else."""
    base = "run: python train.py --batch 32\n"
    kind = kind_of(parse_spec(base))
    assert re.fullmatch(r"train-[0-9a-f]{10}", kind)
    same = ["name: b", "priority: 9", "envs: {SEED: 3}", "labels: {a: b}", "steps: 5"]
    assert {kind_of(parse_spec(base + more)) for more in same} == {kind}
    other = ["workdir: /b", "envs: {BATCH_SIZE: 64}", "resources: {accelerators: any:2}"]
    others = {kind_of(parse_spec(base + more)) for more in other} | {kind_of(parse_spec("run: python train.py"))}
    assert len(others) == 4
    assert kind not in others
    assert kind_of(parse_spec(base + "profile: resnet50")) == "resnet50"


def test_a_schema_is_published() -> None:
    """Editors get a JSON Schema with every field; unknown ones are errors there too."""
    schema = json_schema()
    assert set(schema["properties"]) == set(JobSpec.model_fields)
    assert schema["required"] == ["run"]
    assert schema["additionalProperties"] is False
    json.dumps(schema)


def test_settings_change_single_fields() -> None:
    """`--set` reaches nested fields, leaves the original alone, and reads values as YAML."""
    original = {"run": "x", "resources": {"cpus": 2}}
    changed = apply_overrides(
        original,
        [
            "resources.accelerators=a100:2", "priority=80", "envs.SEED=007", "envs.EMPTY=", "depends_on=[1, b]",
            "run=a: b: c",
        ],
        source="--set",
    )  # fmt: skip
    spec = parse_spec(changed)
    assert spec.resources == ResourcesSpec(accelerators=(Demand("a100", 2),), cpus=2.0)
    assert (spec.priority, spec.envs, spec.depends_on) == (80, {"SEED": "007", "EMPTY": ""}, (1, "b"))
    assert spec.run == "a: b: c"
    assert original == {"run": "x", "resources": {"cpus": 2}}


@pytest.mark.parametrize("setting", ["priority", "=5", "a..b=1", "run.x=1", "a b=1", "depends_on=[1"])
def test_bad_settings(setting: str) -> None:
    """A setting of another form, or one that leads through a plain value, is refused with an example."""
    with pytest.raises(JobSpecError) as refusal:
        apply_overrides({"run": "x"}, [setting], source="--set")
    assert str(refusal.value).startswith("--set")
    assert refusal.value.fix


def test_scripts_carry_their_fields() -> None:
    """`#WALRAS` lines before the first command set fields; the whole text travels with the job."""
    text = "#!/bin/bash\n#WALRAS name=night run\n# WALRAS resources.accelerators=any:2\n\nset -x\n#WALRAS priority=1\n"
    spec = parse_spec(script_mapping(text, name="night.sh"))
    assert (spec.name, spec.resources.accelerators, spec.priority) == ("night run", (Demand("*", 2),), 50)
    assert argv_of(spec) == ("/bin/bash", "-c", text, "night.sh")
    with pytest.raises(JobSpecError, match="is not a shell script"):
        script_mapping("#!/usr/bin/env python3\n", name="a.py")
    with pytest.raises(JobSpecError, match="unknown field") as refusal:
        parse_spec(script_mapping("#WALRAS prioritty=5\ntrue", name="a.sh"))
    assert refusal.value.field == "prioritty"
