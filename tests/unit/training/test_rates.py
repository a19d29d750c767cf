"""What the loop measures: rate, pace, and the noise of the gradient."""

import pytest
import torch

from walras.training import Checkpoint, Loop
from walras.training.measurements import NoiseScaleMeter, StepPacer, ThroughputMeter


def run(meter: ThroughputMeter, at: float, steps: int, step_s: float) -> float:
    for _ in range(steps):
        at += step_s
        meter.step(at)
    return at


def test_the_rate_is_that_of_undisturbed_windows() -> None:
    """None before a window has passed; a job of one step in ten seconds has a rate too."""
    meter = ThroughputMeter()
    at = run(meter, 0.0, 2, 5.0)
    at = run(meter, at, 50, 0.1)
    at = run(meter, at + 60.0, 50, 0.1)
    meter.disturb()
    run(meter, at + 3.0, 50, 0.1)
    assert meter.steps_per_s == pytest.approx(10.0)
    assert meter.samples >= 20
    meter = ThroughputMeter()
    run(meter, 0.0, 3, 0.1)
    assert meter.steps_per_s is None
    meter = ThroughputMeter()
    run(meter, 0.0, 6, 10.0)
    assert meter.steps_per_s == pytest.approx(0.1)


def paced(pacer: StepPacer, at: float, steps: int, work_s: float) -> float:
    for _ in range(steps):
        at += work_s
        at += pacer.wait_s(at)
    return at


def test_steps_keep_the_pace_on_average_whatever_they_take() -> None:
    """Though some are late; a suspension is not made up for; a part of the work takes that part of the time."""
    pacer = StepPacer(50.0)
    at = paced(pacer, 0.0, 1, 0.005)
    begun_at = at
    for _ in range(10):
        at = paced(pacer, at, 9, 0.005)
        at = paced(pacer, at, 1, 0.060)
    at = paced(pacer, at, 5, 0.0)
    assert at - begun_at == pytest.approx(105 / 50)
    pacer = StepPacer(50.0)
    at = paced(pacer, 0.0, 10, 0.001)
    at = paced(pacer, at + 10.0, 1, 0.001)
    after = paced(pacer, at, 100, 0.001)
    assert after - at == pytest.approx(100 / 50, abs=0.3)
    pacer = StepPacer(50.0)
    pacer.begin(10.0)
    assert pacer.wait_s(10.0, 1 / 3) == pytest.approx(0.02 / 3)
    assert pacer.wait_s(10.02) == pytest.approx(0.02 / 3)


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


@pytest.mark.parametrize(("batches", "is_resized", "scale"), [(3, False, 3 * BATCH * 0.5), (1, True, None)])
def test_two_updates_tell_the_noise_of_their_batch(batches: int, is_resized: bool, scale: float | None) -> None:
    """All that was taken since the one before it; nothing where the batch changes between them."""
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weights], lr=0.0)
    gauge = NoiseScaleMeter(optimizer, 2)
    gauge.samples = BATCH
    for gradient in (torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])):
        weights.grad = gradient
        gauge.batches += batches
        optimizer.step()
        if is_resized:
            gauge.resize(2 * BATCH)
    assert (gauge.scale, gauge.samples) == (scale and pytest.approx(scale), 2 * BATCH if is_resized else BATCH)


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
