"""What a scheduled job counts of its model in one of its first steps."""

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from walras.model_facts import believed_facts  # noqa: E402
from walras.training import Checkpoint, Loop  # noqa: E402

SAMPLES, INPUTS, OUTPUTS = 16, 100, 50
#: Forward, and the gradient of the weight.
FLOPS = 2 * 2 * SAMPLES * INPUTS * OUTPUTS
WEIGHTS = INPUTS * OUTPUTS * 4


@pytest.fixture(autouse=True)
def scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a supervisor that does not answer."""
    for name in ("WALRAS_RESUME", "WALRAS_CHECKPOINT_DIR", "WALRAS_STEPS", "WALRAS_PACE", "RANK", "WALRAS_COUNT_FACTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WALRAS_SOCKET", "/nonexistent/socket")


def train(batches: int = 6, *, every: int = 1, loop: Loop | None = None, fail_at: int = -1) -> tuple[Loop, Any]:
    model = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop = loop or Loop(Checkpoint(model=model, optimizer=optimizer))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(SAMPLES * batches, INPUTS)), SAMPLES)
    for number, (batch,) in enumerate(loop.steps(data)):
        if number == fail_at:
            raise RuntimeError("the script's own")
        model(batch).square().mean().backward()
        if (number + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return loop, model


def is_watched() -> bool:
    """Whether somebody still listens to torch's operations, its modules or its optimizers."""
    from torch.optim.optimizer import _global_optimizer_post_hooks
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return bool(_get_current_dispatch_mode_stack() or _global_optimizer_post_hooks)


def test_one_step_is_counted_and_reported() -> None:
    """Operations, samples, bytes exchanged and kept; four batches to an update are told as one. Nothing listens on."""
    loop, _ = train()
    assert loop._values.message_fields()["facts"] == {
        "flops": FLOPS, "layers": 1, "gradient_bytes": WEIGHTS, "resident_bytes": 3 * WEIGHTS, "samples": SAMPLES,
        "bits": 32, "exponent_bits": 8,
    }  # fmt: skip
    assert not is_watched()
    loop, _ = train(12, every=4)
    assert loop._values.facts["flops"] == FLOPS


@pytest.mark.parametrize(("dtype", "exponent_bits"), [(torch.bfloat16, 8), (torch.float16, 5)])
def test_the_arithmetic_is_what_autocast_makes_of_the_weights(dtype: Any, exponent_bits: int) -> None:
    """Most layers decide: they are called in the narrower type, whatever the weights are kept in."""
    with torch.autocast("cpu", dtype=dtype):
        loop, _ = train()
    assert (loop._values.facts["bits"], loop._values.facts["exponent_bits"]) == (16, exponent_bits)


def test_counting_changes_nothing_of_training() -> None:
    """The same weights, to the bit, with and without a scheduler."""
    weights = []
    for socket in ("/nonexistent/socket", ""):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WALRAS_SOCKET", socket)
            torch.manual_seed(1)
            weights.append(train()[1].weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", ["WALRAS_COUNT_FACTS", "RANK", "WALRAS_SOCKET"])
def test_others_do_not_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was told not to, ranks that do not report, and scripts without a scheduler."""
    monkeypatch.setenv(name, {"WALRAS_COUNT_FACTS": "0", "RANK": "1", "WALRAS_SOCKET": ""}[name])
    loop, _ = train()
    assert "facts" not in loop._values.message_fields()


def test_compiled_scripts_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter around it would have torch compile everything again."""
    import torch._dynamo.utils

    monkeypatch.setitem(torch._dynamo.utils.counters["frames"], "total", 1)
    loop, _ = train()
    assert loop._values.facts == {}


def test_a_script_that_fails_or_breaks_off_in_the_counted_step_leaves_nothing_behind() -> None:
    """What it catches, it may go on from."""
    with pytest.raises(RuntimeError, match="own"):
        train(fail_at=1)
    assert not is_watched()
    loop = Loop()
    for number, _ in enumerate(loop.steps(range(5))):
        if number == 1:
            break
    assert not is_watched()
    assert loop._values.facts == {}


def test_a_script_without_torch_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported for it."""
    monkeypatch.delitem(sys.modules, "torch")
    loop = Loop()
    assert list(loop.steps(range(4))) == [0, 1, 2, 3]
    assert loop._values.facts == {}


@pytest.mark.parametrize(
    ("counted", "family"),
    [
        ({"convolution_flops": 6e9}, "convolution"),
        ({"convolution_flops": 4e9, "attention_flops": 1e9}, "transformer"),
        ({"attention_flops": 0.0}, None),
        ({"convolution_flops": float("nan"), "attention_flops": -1.0}, None),
    ],
)
def test_the_family_of_a_model_is_told_by_its_operations(counted: dict[str, float], family: str | None) -> None:
    """Most of them convolutions, or any fused attention; counts that no rank can have are ignored."""
    facts = believed_facts({"flops": 1e10, "samples": 4.0, **counted}, 1, None).facts
    assert facts is not None
    assert facts.family == family
