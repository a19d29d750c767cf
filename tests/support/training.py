"""An application whose laws can be computed in the head."""

from dataclasses import dataclass

from simulator.goodput import AcceleratorProfile, Application, GangLayout, GradientStatistics, StepTimes


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """So long per sample, and once more for a synchronisation if there is anybody to synchronise with."""

    sample_s: float
    sync_s: float = 0.0

    def times(self, placement: GangLayout, local: int) -> StepTimes:
        sync_s = self.sync_s if placement.accelerators > 1 else 0.0
        return StepTimes(local * self.sample_s + sync_s, sync_s)


@dataclass(frozen=True, slots=True)
class SteadyLearning:
    """Epochs of equal work and noise. With noise above 0, a larger batch needs fewer updates."""

    epochs: int
    steps: float
    initial: int
    grad_var: float = 0.0

    @property
    def work(self) -> tuple[float, ...]:
        return tuple(epoch * self.steps for epoch in range(self.epochs + 1))

    def noise(self, batch: int, epoch: int) -> GradientStatistics:
        return GradientStatistics(1.0, self.grad_var)

    def updates(self, batch: int, epochs: int) -> float:
        return epochs * self.steps * self.initial / batch


def steady(
    name: str = "net",
    *,
    epochs: int = 2,
    steps: float = 50.0,
    sample_s: float = 0.125,
    sync_s: float = 0.0,
    grad_var: float = 0.0,
) -> Application:
    """Designed for a batch of 8 of which an accelerator holds 1 to 16, trained with at most 64."""
    profile = AcceleratorProfile(SteadySteps(sample_s, sync_s), 1, 16)
    return Application(name, 8, 64, SteadyLearning(epochs, steps, 8, grad_var), {"t4": profile})
