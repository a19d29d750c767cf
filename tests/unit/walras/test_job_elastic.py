"""Jobs that may change their size: what a spec may say, and what the scheduler hears of it."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from walras.cluster import Pool, PoolId, Shape
from walras.errors import ConfigError, JobSpecError
from walras.job_request import (
    ANY_ACCELERATOR,
    Demand,
    DeviceShare,
    GangPlan,
    GangRequest,
    JobId,
    JobIdentity,
    JobLimits,
    JobRequest,
    Kind,
    group_fields,
)
from walras.spec.catalog import catalog_memory_bytes
from walras.spec.cluster_file import PoolEntry
from walras.spec.job_groups import PLANS_MOST
from walras.spec.job_spec import JobSpec, gang_sizes_of, parse_spec, spec_mapping
from walras.spec.spec_request import argv_of, env_of, is_launcher, kind_of, launcher_in, launcher_note, to_request
from walras.spec.sweeps import array_indices, indices_text, is_sweep, parse_array, shown_name_of
from walras.spec.text_formats import dump_yaml
from walras.training import batch_per_rank, whole_batch


def sizes_of(text: str) -> tuple[int, ...]:
    return gang_sizes_of(parse_spec(f"run: x\n{text}"))


def test_the_sizes_of_an_elastic_job_are_those_that_make_sense() -> None:
    """Within the range, even over its machines, dividing its batch; doublings where there would be very many."""
    assert sizes_of("resources: {accelerators: 'a100:2'}") == ()
    assert sizes_of("resources: {accelerators: 'a100:2'}\nelastic: {min: 1, max: 6}") == (1, 2, 3, 4, 5, 6)
    assert sizes_of("resources: {accelerators: 'a100:4'}\nelastic: {min: 1, max: 6}\nnum_nodes: 2") == (2, 4, 6)
    assert sizes_of("resources: {accelerators: 'any:2'}\nelastic: {min: 1, max: 8}\nbatch: {global: 12}") == (
        1, 2, 3, 4, 6,
    )  # fmt: skip
    assert sizes_of("resources: {accelerators: {a100: 3, v100: 5}}\nelastic: {min: 1, max: 20}") == (
        1, 2, 3, 4, 5, 8, 16, 20,
    )  # fmt: skip


def test_a_job_says_whether_it_may_be_spread() -> None:
    """The scheduler hears how many parts there may be, or that a gang may be mixed, and shares its batches; else that
    it is neither."""
    told = {"": (1, False, False), "fork: {max: 3}": (3, False, False), "mixed: true": (1, True, False),
            "mixed: shares": (1, True, True)}  # fmt: skip
    for text, says in told.items():
        request = to_request(parse_spec(f"run: x\n{text}"), JobId(1), user="a", project="p", at=0.0)
        assert (request.fork_max, request.mixed, request.shares, request.spreads) == (*says, bool(text))


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("fork: {max: 1}", "fork.max", "greater"),
        ("fork: {max: 2}\nmixed: true", "fork", "beside mixed"),
        ("fork: {max: 2}\nelastic: {min: 1, max: 2}", "fork", "beside elastic"),
        ("mixed: fast", "mixed", "shares"),
        ("mixed: true\nnum_nodes: 2\nresources: {accelerators: 'a100:2'}", "mixed", "num_nodes 2"),
        ("mixed: true\nresources: {accelerators: {a100: 2, v100: 4}}", "mixed", "another size"),
        ("fork: {max: 2}\nresources: {accelerators: 'a100:2'}", "fork", "one accelerator"),
        ("elastic: {min: 4, max: 2}", "elastic", "above"),
        ("elastic: {min: 2, max: 4}", "elastic", "asked for"),
        ("elastic: {min: 1}", "elastic.max", "max"),
        ("elastic: {min: 1, max: 4}\nnproc_per_node: 2", "nproc_per_node", "2 ranks"),
        ("resources: {accelerators: 'a100:3'}\nelastic: {min: 1, max: 4}\nbatch: {global: 512}", "elastic", "evenly"),
        ("batch: {global: 0}", "batch.global", "global"),
        ("batch: {global: 64, adaptive: true}", "batch.max", "largest"),
        ("batch: {global: 64, max: 128}\nfork: {max: 2}", "batch.adaptive", "parts of a fork"),
        ("batch: {global: 64, max_per_rank: 32}", "batch.max_per_rank", "fixed"),
        ("batch: {global: 64, max: 32}", "batch.max", "below global"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(text: str, field: str, says: str) -> None:
    """The field is named, and so is what is wrong with it."""
    with pytest.raises(JobSpecError, match=says) as refused:
        parse_spec(f"run: x\n{text}")
    assert refused.value.field == field


def test_the_scheduler_hears_the_sizes_and_the_ranks_the_batch() -> None:
    """Jobs of other batches are of another kind: a step of theirs is another step."""
    text = "run: python t.py\nresources: {accelerators: 'a100:2'}\nelastic: {min: 1, max: 4}\nbatch: {global: 8}"
    spec, other = parse_spec(text), parse_spec(text.replace("8}", "16}"))
    request = to_request(spec, JobId(1), user="u", project="p", at=0.0)
    assert (request.sizes, request.demands[0].count) == ((1, 2, 4), 2)
    assert env_of(spec) == {"WALRAS_BATCH": "8"}
    chooses = parse_spec(text.replace("8}", "8, adaptive: true, max: 64, max_per_rank: 16}"))
    assert env_of(chooses) == {"WALRAS_BATCH": "8", "WALRAS_BATCH_MAX": "64", "WALRAS_BATCH_PER_RANK": "16"}
    assert env_of(chooses, keeps_batch=True) == {"WALRAS_BATCH": "8"}  # under a profiler, or a search
    assert env_of(parse_spec("run: x\ncheckpoint: {keep: 5}")) == {"WALRAS_CHECKPOINT_KEEP": "5"}
    assert kind_of(spec) != kind_of(chooses)
    assert kind_of(spec) != kind_of(other)


def test_ranks_share_the_whole_batch_evenly() -> None:
    """What the job file states comes first; alone, on a laptop, one rank has all of it."""
    assert batch_per_rank(512, {}) == 512
    assert [whole_batch(512, {}), whole_batch(512, {"WALRAS_BATCH": "64", "WORLD_SIZE": "3"})] == [512, 64]
    assert batch_per_rank(512, {"WORLD_SIZE": "4"}) == 128
    assert batch_per_rank(512, {"WORLD_SIZE": "4", "WALRAS_BATCH": "64"}) == 16
    with pytest.raises(ValueError, match="3 ranks cannot share a batch of 64"):
        batch_per_rank(64, {"WORLD_SIZE": "3"})


MENU = """
run: python train.py
plans:
- {accelerators: {V100: 96, A100: 32}, steps_per_s: .19}
- {accelerators: "a100:32", steps_per_s: .11}
- {accelerators: {a100: 16}, steps_per_s: .06}
- {accelerators: [v100:64], steps_per_s: 0.05}
"""


def request_of(text: str) -> JobRequest:
    return to_request(parse_spec(text), JobId(1), user="a", project="p", at=0.0)


def test_a_menu_becomes_the_ways_of_the_gang() -> None:
    """Types are canonical and in order; as one gang the job is the first plan of each single type."""
    request = request_of(MENU)
    assert request.plans[0] == GangPlan((Demand("a100", 32), Demand("v100", 96)), 0.19)
    assert request.demands == (Demand("a100", 32), Demand("v100", 64))
    assert request.declared == (("a100", 0.11), ("v100", 0.05))
    assert request.spreads
    assert request.plan_of({"v100": 96, "a100": 32}) == request.plans[0]
    assert request.plan_of({"a100": 31}) is None
    assert request.text == "32 x a100 + 96 x v100 or 32 x a100 or 16 x a100 or 64 x v100"


def test_a_long_menu_is_told_in_short() -> None:
    """People read the first few plans, and how many more there are."""
    menu = "".join(f"\n- {{accelerators: 'a100:{count}', steps_per_s: {count}}}" for count in range(1, 8))
    assert request_of(f"run: x\nplans:{menu}").text.endswith("4 x a100 or 3 plans more")


def test_a_menu_survives_its_file() -> None:
    """Written and read again it is the same; jobs with other mixes are of other kinds, with other speeds of one."""
    spec = parse_spec(MENU)
    assert parse_spec(dump_yaml(spec_mapping(spec))) == spec
    assert kind_of(parse_spec(MENU.replace(".19", ".2"))) == kind_of(spec)
    assert kind_of(parse_spec(MENU.replace("96", "88"))) != kind_of(spec)


A100 = "plans: [{accelerators: 'a100:2', steps_per_s: 2}"


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("plans: {a100: 2}", "plans", "no list"),
        ("plans: a100", "plans", "no list"),
        ("plans: [7]", "plans[0]", ""),
        ("plan: [{accelerators: 'a100:2', steps_per_s: 2}]", "plan", "recommend"),
        ("plans: [{accelerators: 'a100:2'}]", "plans[0].steps_per_s", "missing"),
        ("plans: [{steps_per_s: 2}]", "plans[0].accelerators", "missing"),
        *(
            (f"plans: [{{accelerators: 'a100:2', steps_per_s: {rate}}}]", "plans[0].steps_per_s", "")
            for rate in ("0", "-1", ".nan", ".inf", "1e300", "true", "fast")
        ),
        *(
            (f"plans: [{{accelerators: {uses}, steps_per_s: 1}}]", "plans[0].accelerators", "")
            for uses in ("{}", "[]", "any:2", "{a100: 0}", "{a100: -3}", "{a100: 1e9}", "{a100: 5000}", "{a100: true}")
        ),
        (
            f"plans: [{{accelerators: {{{', '.join(f't{row}: 1' for row in range(9))}}}, steps_per_s: 1}}]",
            "plans[0].accelerators",
            "mixes 9 types",
        ),
        (f"{A100}, {{accelerators: {{a100: 2}}, steps_per_s: 3}}]", "plans[1].accelerators", "plans[0] again"),
        ("plans: [{accelerators: {a100: 2, v100: 2}, steps_per_s: 3}]", "plans", "several types"),
        (f"{A100}]\nresources: {{accelerators: 'a100:2'}}", "resources.accelerators", "beside `plans`"),
        (f"{A100}]\nelastic: {{min: 1, max: 2}}", "elastic", ""),
        (f"{A100}]\nfork: {{max: 2}}", "fork", "beside `plans`"),
        (f"{A100}]\nmixed: true", "mixed", "beside `plans`"),
        (f"{A100}]\nthroughput: {{a100: 3}}", "throughput", "beside `plans`"),
        (f"{A100}]\nnproc_per_node: 2", "nproc_per_node", ""),
        (f"{A100}]\nbatch: {{global: 8, max: 64}}", "batch", "hold for one"),
        ("plans: [{accelerators: 'a100:2', speed: 2}]", "plans[0].speed", ""),
    ],
)
def test_a_menu_that_means_nothing_is_refused_by_its_field(text: str, field: str, says: str) -> None:
    """Empty, endless, unbounded, doubled or contradicted: the refusal names the field."""
    with pytest.raises(JobSpecError) as refusal:
        parse_spec(f"run: x\n{text}")
    assert refusal.value.field == field
    assert says in str(refusal.value)


def test_a_menu_is_bounded() -> None:
    """A menu of as many plans as may be is read, one more is refused."""
    plans = [{"accelerators": {"a100": count + 1}, "steps_per_s": 1.0} for count in range(PLANS_MOST + 1)]
    assert len(parse_spec({"run": "x", "plans": plans[:-1]}).plans) == PLANS_MOST
    with pytest.raises(JobSpecError) as refusal:
        parse_spec({"run": "x", "plans": plans})
    assert refusal.value.field == "plans"


SHARED = {
    "run": "python train.py",
    "resources": {"accelerators": "a100-40gb:1", "shared": {"memory": "12GB", "busy": 0.5}},
}


def test_the_scheduler_reads_what_the_job_takes_of_the_device() -> None:
    spec = parse_spec(SHARED)
    assert to_request(spec, JobId(1), user="", project="p", at=0.0).shared == DeviceShare(12 * 10**9, 0.5)
    assert parse_spec(dump_yaml(spec_mapping(spec))) == spec
    alone = parse_spec({"run": "python train.py"})
    assert to_request(alone, JobId(1), user="", project="p", at=0.0).shared is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resources": {"accelerators": "a100:2", "shared": {"memory": "1GB"}}}, "one accelerator"),
        ({"fork": {"max": 2}}, "one accelerator"),
        ({"elastic": {"min": 1, "max": 2}}, "one accelerator"),
        ({"deadline": "+1h"}, "deadline"),
        ({"resources": {"shared": {"busy": 0.5}}}, "memory"),
        ({"resources": {"shared": {"memory": "1GB", "busy": 1.5}}}, "busy"),
        ({"resources": {"shared": {"memory": 0}}}, "memory"),
        ({"packable": True}, "resources.shared"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(change: dict[str, object], said: str) -> None:
    with pytest.raises(JobSpecError) as refused:
        parse_spec(SHARED | change)
    assert said in f"{refused.value} {refused.value.field} {refused.value.fix}"


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("a100-40gb", 40), ("a100-40gb-1g.5gb", 5), ("v100", 16), ("my-card-11gb", 11), ("unheard-of", 0), ("cpu", 0)],
)
def test_the_memory_of_a_device_is_as_its_name_or_the_catalog_says(name: str, gigabytes: int) -> None:
    assert catalog_memory_bytes(name) == gigabytes * 10**9


def test_a_cluster_file_says_what_nothing_else_does() -> None:
    entry = {"shape": "x", "accelerator": "unheard-of", "accelerators": 1, "cpus": 1, "memory": "1GB"}
    assert PoolEntry.model_validate(entry).pool().shape.accelerator_memory_bytes == 0
    told = PoolEntry.model_validate(entry | {"accelerator_memory": "24GB"})
    assert told.pool().shape.accelerator_memory_bytes == 24 * 10**9


def test_a_policy_with_listed_pairs_is_refused_where_nobody_lists_any() -> None:
    from scheduler.core.rules import parse_policy, refuse_listed_pairs

    spec, _ = parse_policy({"policy": {"name": "max_min_fairness", "parameters": {"packed": True}}})
    with pytest.raises(ConfigError, match="packed"):
        refuse_listed_pairs(spec)


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
    [("1-5", (1, 2, 3, 4, 5), 0), ("0-15:5%8", (0, 5, 10, 15), 8), ("7, 1,3-4%2", (7, 1, 3, 4), 2), ("%3", (), 3)],
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
    assert parse_spec(dump_yaml(spec_mapping(job))) == job
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


@pytest.mark.parametrize(
    ("run", "launcher"),
    [
        ("torchrun train.py", "torchrun"),
        ("cd src && OMP_NUM_THREADS=1 /opt/bin/torchrun --nproc_per_node 4 train.py", "torchrun"),
        ("pip install deepspeed\nuv run accelerate launch \\\n  train.py", "accelerate launch"),
        ("python3 -u -m torch.distributed.run train.py", "torch.distributed.run"),
        ("bash -c 'deepspeed train.py'", "deepspeed"),
        (("bash", "-c", "exec torchrun train.py"), "torchrun"),
        ("python train.py  # not torchrun", None),
        ("pip install deepspeed accelerate && python deepspeed_train.py", None),
        ("echo torchrun; accelerate env; python -m torch.utils.collect_env", None),
    ],
)
def test_a_launcher_is_seen_where_it_is_started(run: str, launcher: str | None) -> None:
    """In scripts and lists of arguments, below a path, after other commands; not where it is only named."""
    assert launcher_in(run) == launcher


def test_one_launcher_for_each_accelerator_is_warned_of() -> None:
    """Two complete trainings on the same two devices both succeed: only the warning tells."""
    twice = {"run": "torchrun train.py", "resources": {"accelerators": "a100:2"}}
    assert "once for each of its 2 accelerators" in launcher_note(parse_spec(twice))
    assert "nproc_per_node: 1" in launcher_note(parse_spec(twice))
    for change in ({"nproc_per_node": 1}, {"num_nodes": 2}, {"run": "python train.py"}):
        assert launcher_note(parse_spec(twice | change)) == "", change
    grows = {"run": "torchrun train.py", "elastic": {"min": 1, "max": 4}}
    assert "4 accelerators" in launcher_note(parse_spec(grows))
    assert launcher_note(parse_spec(grows | {"nproc_per_node": 1})) == ""


def test_deepspeed_is_warned_of_as_torchrun_is_and_where_no_shell_starts_it() -> None:
    two = {"run": "deepspeed --zero 3 train.py", "resources": {"accelerators": "a100:2"}}
    assert "starts deepspeed once for each of its 2 accelerators" in launcher_note(parse_spec(two))
    assert launcher_note(parse_spec(two | {"nproc_per_node": 1})) == ""
    alone = two | {"nproc_per_node": 1, "run": ["/opt/bin/deepspeed", "train.py"]}
    assert "without a shell" in launcher_note(parse_spec(alone))


def test_one_process_per_machine_is_what_several_devices_make_of_it() -> None:
    """`nproc_per_node: 1` with one accelerator on each machine is a rank as any other."""
    one = {"run": "x", "nproc_per_node": 1}
    assert not is_launcher(parse_spec(one))
    assert not is_launcher(parse_spec(one | {"num_nodes": 2, "resources": {"accelerators": "a100:2"}}))
    assert is_launcher(parse_spec(one | {"num_nodes": 2, "resources": {"accelerators": "a100:4"}}))
    assert is_launcher(parse_spec(one | {"elastic": {"min": 1, "max": 4}}))


def a_pool(accelerator: str, each: int) -> Pool:
    return Pool(PoolId(accelerator), Shape(accelerator, accelerator, each, 8.0, 2**34))


@pytest.mark.parametrize(
    ("demands", "nodes", "size"),
    [
        ((Demand("a100", 4),), 1, 4), ((Demand("v100", 4),), 1, 0), ((Demand(ANY_ACCELERATOR, 2),), 1, 2),
        ((Demand(ANY_ACCELERATOR, 2), Demand("a100", 3)), 1, 3), ((Demand("a100", 8),), 2, 8),
        ((Demand("a100", 9),), 2, 0), ((Demand("a100", 16),), 2, 0), ((), 1, 0),
    ],
)  # fmt: skip
def test_the_size_of_a_gang_on_a_pool(demands: tuple[Demand, ...], nodes: int, size: int) -> None:
    """A type that is named comes before `any`; machines share the gang evenly; 0 where it cannot run."""
    assert GangRequest(demands=demands, nodes=nodes).size_on(a_pool("a100", 4)) == size


def test_jobs_with_equal_gangs_are_alike_whoever_they_belong_to() -> None:
    """Job classes are keyed by the gang alone."""
    first = JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 2),), user="ann", deadline_at=5.0)
    second = JobRequest(JobId(2), Kind("l"), demands=(Demand("a100", 2),), user="bob", priority=80)
    assert first.gang_request == second.gang_request
    assert hash(first.gang_request) == hash(second.gang_request)


def test_a_request_is_stored_flat() -> None:
    """The groups are no levels of the JSON, so that requests stored before they existed read as they always did."""
    adapter = TypeAdapter(JobRequest)
    request = JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 2),), project="p", max_runtime_s=9.0)
    stored = json.loads(json.dumps(adapter.dump_python(request, mode="json")))
    assert stored["project"] == "p"
    assert stored["demands"] == [{"accelerator": "a100", "count": 2}]
    assert adapter.validate_python(stored) == request
    old = {"job_id": 1, "kind": "k", "demands": [{"accelerator": "a100", "count": 2}]}
    assert adapter.validate_python(old) == JobRequest(JobId(1), Kind("k"), demands=(Demand("a100", 2),))


def test_groups_share_no_field() -> None:
    """Each field of a request belongs to one group or to the request alone."""
    request = JobRequest(JobId(1), Kind("k"), demands=())
    names = [field.name for group in (JobIdentity, JobLimits, GangRequest) for field in fields(group)]
    assert len(names) == len(set(names))
    assert group_fields(request, JobIdentity, JobLimits, GangRequest).keys() == set(names)
    assert not hasattr(request, "__dict__")


def test_only_the_named_pools_hold_the_gang() -> None:
    """Whatever is in the others; without names every pool does."""
    here, there = a_pool("a100", 4), replace(a_pool("a100", 4), pool_id=PoolId("there"))
    request = GangRequest(demands=(Demand("a100", 2),), pools=("there",))
    assert (request.size_on(here), request.size_on(there)) == (0, 2)
    assert replace(request, pools=()).size_on(here) == 2
    assert request.text == "2 x a100 of there"
