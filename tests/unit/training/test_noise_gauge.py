"""The noise of the gradient, measured in the loop."""

import pytest
import torch

from walras.training import Checkpoint, Loop
from walras.training.measurements import NoiseScaleMeter

DIMENSIONS, SIGMA, BATCH = 20, 2.0, 8


def trained(updates: int, gauge_every: int) -> tuple[NoiseScaleMeter, list[torch.Tensor]]:
    """Of |w - x|^2 / 2 with x ~ N(0, sigma^2) and w = 1, which never moves: |G|^2 = n, S = n sigma^2."""
    torch.manual_seed(1)
    weights = torch.nn.Parameter(torch.ones(DIMENSIONS))
    optimizer = torch.optim.SGD([weights], lr=0.0)
    gauge = NoiseScaleMeter(optimizer, gauge_every)
    gauge.samples = BATCH
    gradients = []
    for _ in range(updates):
        optimizer.zero_grad()
        gradients.append((weights.detach() - SIGMA * torch.randn(BATCH, DIMENSIONS)).mean(dim=0))
        weights.grad = gradients[-1].clone()
        optimizer.step()
        gauge.batches += 1
    return gauge, gradients


def test_the_scale_is_that_of_the_data() -> None:
    """On a problem whose noise is known, the gauge finds it within a tenth."""
    gauge, _ = trained(8000, 4)
    assert gauge.scale == pytest.approx(SIGMA**2, rel=0.1)


def test_accumulated_passes_make_a_larger_batch() -> None:
    """The batch of an update is all that was taken since the one before it."""
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.0)
    gauge = NoiseScaleMeter(optimizer, 2)
    gauge.samples = BATCH
    for gradient in (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])):
        weights.grad = gradient
        gauge.batches += 3
        optimizer.step()
    assert gauge.scale == pytest.approx(3 * BATCH * 0.5)


def test_batches_of_two_sizes_are_not_compared() -> None:
    """Where the batch changes between two updates, nothing is told by them."""
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.0)
    gauge = NoiseScaleMeter(optimizer, 2)
    gauge.samples = BATCH
    for gradient in (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])):
        weights.grad = gradient
        gauge.batches += 1
        optimizer.step()
        gauge.resize(2 * BATCH)
    assert gauge.scale is None
    assert gauge.samples == 2 * BATCH


def test_the_loop_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    """With `noise_every` the loop reports `gradient_noise` beside the script's own values."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loop = Loop(Checkpoint(model=model, optimizer=optimizer), noise_every=5)
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(20)]
    for inputs, targets in loop.steps(data):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
    assert loop._values.message_fields()["values"]["gradient_noise"] > 0


def test_without_an_optimizer_it_is_an_error() -> None:
    """Nothing is measured silently not at all."""
    with pytest.raises(ValueError, match="no torch optimizer"):
        Loop(noise_every=10)
