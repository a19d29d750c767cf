"""Sia's sense of time: Pollux's, on several types, where what moves without changing its shape moves for nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simulator.attempts import Run, WorldModel
from simulator.compat.pollux.pace import SteppedTraining
from simulator.compat.pollux.training import Training
from simulator.compat.sia.training import SiaTraining
from simulator.engine import Engine
from simulator.machines import Machines
from simulator.streams import Streams
from walras.ids import JobId, Kind, PoolId


@dataclass(frozen=True, slots=True)
class _Left:
    """Where a job was stopped, in which shape, and when its restart there was or would have been through."""

    at: float
    pool_id: PoolId
    shape: tuple[int, ...]
    up_at: float


class SiaSteps(SteppedTraining):
    """Lets attempts live by steps; a job that goes on in the same shape on the same type pays no restart."""

    def __init__(
        self,
        engine: Engine,
        machines: Machines,
        model: WorldModel,
        streams: Streams,
        *,
        trainings: Mapping[Kind, Mapping[str, SiaTraining]],
        step_s: float,
    ) -> None:
        super().__init__(engine, machines, model, streams, trainings={}, step_s=step_s)
        self._by_type = trainings
        self._left: dict[JobId, _Left] = {}

    def begin(self, now: float, run: Run) -> None:
        left = self._left.pop(run.job.plan.request.job_id, None)
        if left is not None and (left.at, left.pool_id, left.shape) == (now, run.parts[0][0].pool_id, _shape(run)):
            run.costs = replace(run.costs, start_s=max(0.0, left.up_at - now))
        super().begin(now, run)

    def stop(self, now: float, run: Run, grace_s: float) -> None:
        self._left[run.job.plan.request.job_id] = _Left(now, run.parts[0][0].pool_id, _shape(run), run.up_at)
        super().stop(now, run, grace_s)

    def _training(self, run: Run) -> Training:
        accelerator = self._machines.pools[run.parts[0][0].pool_id].pool.shape.accelerator
        return self._by_type[run.job.plan.request.kind][accelerator]


def _shape(run: Run) -> tuple[int, ...]:
    return tuple(len(devices) for _, devices in run.parts)
