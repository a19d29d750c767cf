"""Tiresias: queues by attained service, in order of submission in each; the Gittins variant knows past lengths.

    key: queue, the number of thresholds passed by the accelerator-seconds received; or its Gittins rank

Source: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019, sections 3.2 and 3.3.
"""

from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from optimizer.orders.gittins import gittins_rank
from optimizer.parameters import FastestFirst, Strict
from optimizer.policy import OrderFacts
from optimizer.problem import BoolArray, FloatArray

Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Tiresias:
    """Discretised two-dimensional LAS or Gittins index: queues by accelerator-seconds received, FIFO in each.

    A job begins in the first queue and goes down as it receives service; jobs of the same queue never displace each
    other. With `index: gittins`, queues are ranked by what a job that has come so far is expected to need per
    completion, from the services of past jobs. Preempts at round ends.
    """

    thresholds_s: Annotated[
        tuple[Amount, ...],
        Field(
            strict=False,
            min_length=1,
            description="Accelerator-seconds at which a job goes down a queue, ascending.",
        ),
    ] = (57_600.0,)
    index: Annotated[
        Literal["las", "gittins"],
        Field(description="las: the queue with less service first. gittins: by the rank at each queue's lower edge."),
    ] = "las"
    service_s: Annotated[
        tuple[Amount, ...],
        Field(strict=False, description="For gittins: accelerator-seconds that past jobs needed, one entry per job."),
    ] = ()
    promote: Annotated[
        float | None,
        Field(
            gt=0,
            description="A job that has waited this many times as long as it has run goes back to the first queue and "
            "its service is counted anew (PROMOTEKNOB). None: never, as in the paper's runs.",
        ),
    ] = None
    aware: FastestFirst = True
    strict: Strict = False

    @model_validator(mode="after")
    def _holds_together(self) -> "Tiresias":
        if list(self.thresholds_s) != sorted(set(self.thresholds_s)):
            raise ValueError("thresholds_s must ascend, none twice")
        if self.index == "gittins" and not self.service_s:
            raise ValueError("index 'gittins' needs service_s, what past jobs needed")
        return self

    @property
    def preemptive(self) -> bool:
        """Whoever has gone down a queue makes room for those above."""
        return True

    def key(self, jobs: OrderFacts) -> tuple[FloatArray, ...]:
        """Rank of the job's queue."""
        queue = self._queue(jobs)
        if self.index == "las":
            return (queue.astype(np.float64),)
        return (_queue_ranks(self.thresholds_s, self.service_s)[queue],)

    def renews(self, jobs: OrderFacts) -> BoolArray:
        """Jobs below the first queue that have waited `promote` times as long as they ran."""
        if self.promote is None:
            return np.zeros(len(jobs.served_s), dtype=np.bool_)
        ran_s = jobs.served_s / np.maximum(jobs.gang, 1.0)
        return (self._queue(jobs) > 0) & (jobs.waited_s >= self.promote * ran_s)

    def _queue(self, jobs: OrderFacts) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.searchsorted(np.array(self.thresholds_s), jobs.served_s, side="right")


@lru_cache(maxsize=8)
def _queue_ranks(thresholds_s: tuple[float, ...], service_s: tuple[float, ...]) -> FloatArray:
    """Gittins rank of a job that has just come into each queue."""
    return gittins_rank(np.array(service_s), np.array([0.0, *thresholds_s]))
