"""How jobs get on in Sia's simulator: Pollux's training, by type of accelerator, slowed down and with other limits.

The largest batch per accelerator depends on the placement. And where any placement of as many accelerators was
measured, no placement of so many trains with more than was measured there.
"""

from dataclasses import dataclass, replace

from simulator.compat.pollux.training import Training
from simulator.goodput.application import Application, Profile, Split, goodput, split_batch, step_time
from simulator.goodput.placement import Placement, packed
from simulator.goodput.step_tables import MeasuredSteps
from walras.errors import ConfigError

#: Speed of a job that wants more accelerators than the type has, as the policy sees it: updates per second.
_TOO_LARGE = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class SiaApplication:
    """An application with its step times by type, and what Sia's simulator adds to it."""

    application: Application
    steps: dict[str, MeasuredSteps]
    #: Every speed is divided by this; what a start or a change costs.
    slow_down: float
    restart_s: float


class SiaTraining(Training):
    """A `SiaApplication` trained with one batch size on one type."""

    def __init__(self, sia: SiaApplication, accelerator: str, batch: int) -> None:
        super().__init__(sia.application, accelerator, batch)
        self.sia = sia
        self._steps = sia.steps[accelerator]
        self._type = accelerator
        self._slow_down = sia.slow_down
        self._limits: dict[int, int | None] = {}
        self._applications: dict[Placement, Application] = {}

    def _steps_per_s(self, placement: Placement, epoch: int) -> float:
        found = self._goodput.get((placement, epoch))
        if found is None:
            application, count = self._within(placement), placement.accelerators
            least = 1 if count == 1 and self.batch > application.batch_initial else 0
            split = split_batch(application, self._type, count, self.batch, accumulated_least=least)
            split = self._limited(split, count)
            found = goodput(application, self._type, placement, split, epoch) / self._slow_down
            self._goodput[placement, epoch] = found
        return found

    def _limited(self, split: Split, count: int) -> Split:
        """No more samples per accelerator than any placement of so many was measured with."""
        if count not in self._limits:
            curves = self._steps.curves.items()
            self._limits[count] = min(
                (curve.local[-1] for known, curve in curves if known.accelerators == count), default=None
            )
        most = self._limits[count]
        return split if most is None or split.local <= most else replace(split, local=most)

    def updates_per_s(self, count: int, accelerators: int, machine_size: int) -> float:
        """What Sia's Gavel takes for the speed of a gang of so many on a type that has `accelerators` in all."""
        if count > accelerators:
            return _TOO_LARGE
        placement = packed(count, machine_size)
        application = self._within(placement)
        least = 1 if count == 1 else 0
        split = split_batch(application, self._type, count, self.batch, accumulated_least=least)
        return 1.0 / step_time(application, self._type, placement, split) / self._slow_down

    def _within(self, placement: Placement) -> Application:
        """The application with the largest batch per accelerator that this placement has."""
        found = self._applications.get(placement)
        if found is None:
            profile = self.application.on[self._type]
            most = local_most(self._steps, placement)
            found = replace(self.application, on={self._type: Profile(profile.law, profile.local_least, most)})
            self._applications[placement] = found
        return found


def local_most(steps: MeasuredSteps, placement: Placement) -> int:
    """Largest batch per accelerator that was measured there, or else on as many machines and accelerators, or more.

    Raises ConfigError where nothing that large was measured.
    """
    curve = steps.curves.get(placement.in_ring())
    if curve is not None:
        return curve.local[-1]
    found = [
        local
        for (machines, accelerators, local), _ in steps.scaling
        if machines >= placement.machines and accelerators >= placement.accelerators
    ]
    if not found:
        raise ConfigError(
            f"no placement of {placement.accelerators} accelerators on {placement.machines} machines was measured",
            field="num_replicas",
            fix="choose a smaller gang",
        )
    return max(found)
