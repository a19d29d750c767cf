"""The digits CNN as a job to be moved: how it is started, and how it goes from start to end in one configuration."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from walras.configuration_search import TrialConfiguration
from walras.job_request import Kind
from workers.trials.local_ranks import TrialProgress
from workers.trials.moving_job import MovingJob

_SCRIPTS = Path(__file__).parents[1] / "configs/jobs/training"
#: Where it ends.
LOSS = 0.1
_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Truth:
    """Of one configuration from start to end."""

    configuration: TrialConfiguration
    steps: int
    iteration_s: float
    time_s: float

    @property
    def start_s(self) -> float:
        """What is not steps: starting and ending."""
        return max(0.0, self.time_s - self.steps * self.iteration_s)

    def told_s(self, steps: int) -> float:
        """Of an attempt with so many steps."""
        return self.start_s + steps * self.iteration_s

    def usd(self, usd_per_h: float) -> float:
        """For all its workers, as long as it runs."""
        return self.time_s / 3600.0 * self.configuration.workers * usd_per_h


def digits_job(folder: Path, rate: float) -> MovingJob:
    """`rate`: of learning, with a batch of 64."""
    argv = (sys.executable, "digits_cnn.py", "--until-loss", str(LOSS), "--rate", str(rate), "--epochs", "1000000")
    return MovingJob("digits_cnn", Kind("digits_cnn"), argv, {}, str(_SCRIPTS), folder, os.environ)


def whole(
    job: MovingJob, configuration: TrialConfiguration, see: Callable[[TrialProgress], None] | None = None
) -> Truth:
    """Trained to the end. `see` is shown what it tells on the way."""

    def enough(progress: TrialProgress) -> bool:
        if see is not None:
            see(progress)
        return False

    with job.begin() as moves:
        has_ended = moves.train(configuration, lambda done: None, enough, _TIMEOUT_S)
        assert has_ended, "nothing is enough"
        part = moves.parts[-1]
    assert part.iteration_s is not None, "the job is too short to be timed: --scale"
    return Truth(configuration, part.steps, part.iteration_s, part.wall_s)


def timed(job: MovingJob, configuration: TrialConfiguration, steps: int, windows: int = 8) -> Truth:
    """As if trained to the end by so many steps: a few seconds of it are."""
    with job.begin() as moves:
        moves.train(configuration, lambda done: None, lambda progress: progress.windows >= windows, _TIMEOUT_S)
        part = moves.parts[-1]
    assert part.iteration_s is not None, "it was timed"
    return Truth(configuration, steps, part.iteration_s, part.move_s + steps * part.iteration_s)
