"""Jobs that may change their size: what a spec may say, and what the scheduler hears of it."""

import pytest

from walras.errors import JobSpecError
from walras.job_request import JobId
from walras.spec.job_spec import gang_sizes_of, parse_spec
from walras.spec.spec_request import env_of, kind_of, to_request
from walras.training import batch_per_rank, whole_batch


def sizes_of(text: str) -> tuple[int, ...]:
    return gang_sizes_of(parse_spec(f"run: x\n{text}"))


def test_the_sizes_of_an_elastic_job_are_those_that_make_sense() -> None:
    """Within the range, even over its machines, dividing its batch; doublings where there would be very many."""
    assert sizes_of("resources: {accelerators: 'a100:2'}") == ()
    assert sizes_of("resources: {accelerators: 'a100:2'}\nelastic: {min: 1, max: 6}") == (1, 2, 3, 4, 5, 6)
    assert sizes_of("resources: {accelerators: 'a100:4'}\nelastic: {min: 1, max: 6}\nnum_nodes: 2") == (2, 4, 6)
    assert sizes_of("resources: {accelerators: 'any:2'}\nelastic: {min: 1, max: 8}\nbatch: {global: 12}") == (
        1,
        2,
        3,
        4,
        6,
    )
    assert sizes_of("resources: {accelerators: {a100: 3, v100: 5}}\nelastic: {min: 1, max: 20}") == (
        1,
        2,
        3,
        4,
        5,
        8,
        16,
        20,
    )


def test_a_job_says_whether_it_may_be_spread() -> None:
    """The scheduler hears how many parts there may be, or that a gang may be mixed; else that it is neither."""
    for text, says in (("", (1, False)), ("fork: {max: 3}", (3, False)), ("mixed: true", (1, True))):
        request = to_request(parse_spec(f"run: x\n{text}"), JobId(1), user="a", project="p", at=0.0)
        assert (request.fork_max, request.mixed, request.spreads) == (*says, says != (1, False))


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("fork: {max: 1}", "fork.max", "greater"),
        ("fork: {max: 2}\nmixed: true", "fork", "beside mixed"),
        ("fork: {max: 2}\nelastic: {min: 1, max: 2}", "fork", "beside elastic"),
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
