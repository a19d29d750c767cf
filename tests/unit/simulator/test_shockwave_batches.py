"""When jobs change their batch size, and what becomes of their count."""

import pytest

from simulator.ground_truth import GroundTruth, SpeedKey
from simulator.worlds.shockwave.shockwave_batches import (
    BatchRule,
    BatchSchedule,
    StepCount,
    batch_schedule_of,
    count_round,
    profiled_batch,
    shockwave_alone_s,
    shockwave_fairness,
)
from walras.errors import ConfigError
from walras.job_request import Kind

GNS = BatchSchedule("LM", 10, 1, BatchRule.GNS)
ACCORDION = BatchSchedule("ResNet-50", 64, 1, BatchRule.ACCORDION)


def _known(_: Kind) -> bool:
    return True


def _after(batching: BatchSchedule, epochs: int) -> StepCount:
    """The count of a job that made these epochs at its first batch in one round, of 200."""
    steps = batching.network.epoch_steps(batching.original)
    return count_round(batching, StepCount(batching.original, 0, 200 * steps), epochs * steps, _known)


def test_a_wish_is_fulfilled_at_the_end_of_the_next_round() -> None:
    """Epoch 10 sees the break at 11 coming: the batch doubles one round later, and the count is rewritten."""
    assert _after(GNS, 9).next_batch is None
    wishing = _after(GNS, 10)
    assert (wishing.batch, wishing.next_batch) == (10, 20)
    doubled = count_round(GNS, wishing, 5968, _known)
    assert doubled == StepCount(20, 11 * 2984, 200 * 2984, None)


def test_an_epoch_that_has_begun_counts_as_done() -> None:
    """One step into epoch 12 is twelve epochs; in the last epoch nothing is left."""
    wishing = _after(GNS, 10)
    assert count_round(GNS, wishing, 5968 + 1, _known).steps == 12 * 2984
    last = count_round(GNS, StepCount(10, 0, 11 * 5968, 20), 10 * 5968 + 1, _known)
    assert last.steps == last.total == 11 * 2984


def test_the_total_keeps_its_epochs() -> None:
    """A total that would begin another epoch at the new batch ends with the last one it had."""
    count = count_round(ACCORDION, StepCount(64, 0, 3126, 128), 1, _known)
    assert ACCORDION.network.epoch_steps(128) == 782
    assert count.total == 1563  # 2 epochs of 1,563 are 3,126 steps; at 128: 1,563 of 2 x 782
    # 14 epochs and a step are 15 epochs; half of the steps would be only 14.
    assert count_round(ACCORDION, StepCount(64, 0, 14 * 1563 + 1, 128), 1, _known).total == 15 * 782


def test_accordion_has_the_largest_batch_outside_critical_epochs() -> None:
    """ResNet-50 is critical for ten epochs of every thirty: up after 10, down again after 30."""
    assert _after(ACCORDION, 9).next_batch is None
    assert _after(ACCORDION, 10).next_batch == 128
    large = StepCount(128, 29 * 782, 200 * 782)
    assert count_round(ACCORDION, large, 0, _known).next_batch is None
    assert count_round(ACCORDION, large, 1, _known).next_batch == 64


@pytest.mark.parametrize(
    ("name", "batch", "epochs", "critical"),
    [
        ("LM", 5, 9, True),
        ("LM", 5, 10, False),
        ("Recommendation", 512, 29, True),
        ("Recommendation", 512, 30, False),
        ("Recommendation", 2048, 39, True),
        ("Recommendation", 4096, 10, False),
        ("ResNet-18", 16, 10, False),
        ("ResNet-18", 16, 155, True),
        ("ResNet-18", 16, 160, False),
        ("Transformer", 16, 50, True),
    ],
)
def test_critical_epochs_are_those_of_the_network(name: str, batch: int, epochs: int, critical: bool) -> None:
    """In a critical epoch the job keeps its original batch."""
    assert (_after(BatchSchedule(name, batch, 1, BatchRule.ACCORDION), epochs).next_batch is None) is critical


def test_a_batch_without_a_speed_is_not_taken() -> None:
    """The wish is dropped, and wished again."""
    wishing = _after(GNS, 10)
    assert count_round(GNS, wishing, 5968, lambda _: False) == StepCount(10, 11 * 5968, 200 * 5968, 20)


def test_static_jobs_and_those_without_breaks_never_change() -> None:
    """No rule, a network that no rule is for, and a gang that was not profiled."""
    for batching in (
        BatchSchedule("LM", 10, 1, BatchRule.STATIC),
        BatchSchedule("Transformer", 16, 1, BatchRule.GNS),
        BatchSchedule("Recommendation", 512, 2, BatchRule.GNS),
        BatchSchedule("LM", 80, 1, BatchRule.GNS),
    ):
        assert all(_after(batching, epochs).next_batch is None for epochs in range(120))


@pytest.mark.parametrize(
    ("kind", "rule", "word"),
    [
        ("LM", "static", "batch size"),
        ("BERT (batch size 8)", "static", "'BERT'"),
        ("LM (batch size 10)", "often", "'often'"),
        ("LM (batch size 160)", "gns", "160"),
    ],
)
def test_what_nobody_profiled_is_named(kind: str, rule: str, word: str) -> None:
    """A row that the rules do not cover is refused, not run in some other way."""
    with pytest.raises(ConfigError, match=word):
        batch_schedule_of(kind, 1, rule)


def test_the_profiled_batches_are_another_rule_than_the_one_that_jobs_follow() -> None:
    """Fairness is reckoned by a profile that doubles late, falls back at the end, holds on for 30 %."""
    gns = [profiled_batch(GNS, epoch, 50) for epoch in (10, 11, 20, 21, 49)]
    assert gns == [10, 20, 20, 40, 10]
    assert profiled_batch(GNS, 11, 12) == 20  # one break passed: no falling back
    assert {profiled_batch(GNS, epoch, 11) for epoch in range(11)} == {10}  # the first break is never reached
    held = [profiled_batch(ACCORDION, epoch, 100) for epoch in (9, 10, 30, 41, 60, 70)]
    assert held == [64, 64, 64, 128, 64, 128]
    late = BatchSchedule("Recommendation", 4096, 1, BatchRule.ACCORDION)
    assert [profiled_batch(late, epoch, 100) for epoch in (59, 65, 75, 85)] == [8192, 4096, 8192, 4096]


def test_fairness_is_the_completion_time_over_that_on_an_equal_share() -> None:
    """Two jobs on one accelerator: half of it for each; more accelerators than jobs are no more than one each."""
    static = BatchSchedule("Transformer", 100, 1, BatchRule.STATIC)
    truth = GroundTruth({SpeedKey(static.kind(100), "v100", 1): 2.0})
    assert (
        shockwave_alone_s(static, 250, truth, "v100") == 3 * 50.0
    )  # three epochs of 100 steps, the last one not whole
    assert shockwave_fairness([300.0, 100.0], [150.0, 150.0], 1) == [1.0, 0.33333]
    assert shockwave_fairness([300.0, 100.0], [150.0, 150.0], 4) == [2.0, 0.66667]
    with pytest.raises(ConfigError, match="no speed"):
        shockwave_alone_s(static, 250, GroundTruth({}), "v100")
