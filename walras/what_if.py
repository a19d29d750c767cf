"""What-if questions about the cluster's future: the question, its answer, and the calls of `walras.client.Client`.

Every difference is (p10, p50, p90) over futures that were simulated with and without the change under the same random
draws; negative is sooner, or less.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from walras.api import Body, ForecastView
from walras.cluster import Market
from walras.job_request import JobId
from walras.transport import ApiCall, Transport

_API = "/api/v1"
_Name = Annotated[str, Field(min_length=1, max_length=200)]
Triple = tuple[float, float, float]


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MachinesMore(_Asked):
    """Additional accelerators of a type, in whole machines of a pool that the cluster has."""

    accelerator: _Name
    accelerators: Annotated[int, Field(ge=1, le=4096)]
    #: Null: of any market, owned before rented.
    market: Market | None = None


class WhatIfRequest(_Asked):
    """`POST /whatif`: all of these at once."""

    add: Annotated[list[MachinesMore], Field(max_length=8)] = []
    #: Names of machines, pools or accelerator types to remove.
    remove: Annotated[list[_Name], Field(max_length=16)] = []
    #: A policy file: `{"policy": ..., "rules": ...}`.
    policy: dict[str, Any] | None = None
    #: Jobs to submit, as their specs.
    submit: Annotated[list[dict[str, Any]], Field(max_length=4)] = []
    #: Projects, or users inside one, whose limits are lifted.
    no_limit: Annotated[list[_Name], Field(max_length=16)] = []


class DifferenceView(Body):
    """The differences for the active jobs of a project."""

    #: The project; empty: all those that the caller does not see.
    project: str
    jobs: int
    #: Difference of the mean completion time, seconds.
    completion_s: Triple
    #: Difference of the mean time until waiting jobs start, seconds; null: none waits.
    waiting_s: Triple | None = None
    #: Difference of the cost of their machines from now on, in USD.
    usd: Triple


class JobDifferenceView(Body):
    id: JobId
    name: str
    project: str
    #: Null if the job runs.
    start_s: Triple | None = None
    end_s: Triple


class WayView(Body):
    """One way to run a job that was tried: when it would start and end, what it costs, and which jobs it
    would delay.
    """

    #: Its accelerators, such as "4 x a100"; empty: as the job asks.
    way: str = ""
    #: Null: it does not end within the time looked ahead.
    forecast: ForecastView | None = None
    #: The end that a job is promised on this way, in Unix seconds: 19 futures in 20 keep it. Null: none can be
    #: promised.
    promised_by: float | None = None
    #: Why none can be promised, in words; empty if one is.
    no_promise: str = ""
    usd: Triple
    #: Jobs that would end more than a minute later in half of the futures, and by how many seconds in all.
    delayed_jobs: int
    delay_s: float


class WhatIfView(Body):
    """The differences that a change would make."""

    as_of: float
    #: The number of futures compared.
    draws: int
    #: The change, in words.
    changes: list[str]
    total: DifferenceView
    projects: list[DifferenceView]
    #: The caller's jobs that change most, the largest change first.
    jobs: list[JobDifferenceView]
    #: The jobs of `submit`, in that order.
    submitted: list[WayView]
    #: The mean number of jobs that do not end within the time looked ahead: as things are, and with the changes.
    unfinished: tuple[float, float]


class QuoteView(Body):
    """The ways to run a job, ordered by when the job ends."""

    as_of: float
    draws: int
    ways: list[WayView]


class WhatIfCalls:
    """The client's calls about futures. They change and store nothing."""

    _transport: Transport

    async def what_if(self, changes: WhatIfRequest) -> WhatIfView:
        """Compare the cluster's future with and without the changes. Raises NotFound for what the cluster lacks."""
        body = changes.model_dump(mode="json", exclude_defaults=True)
        return WhatIfView.model_validate(await self._transport.json(ApiCall("POST", f"{_API}/whatif", body=body)))

    async def quote(self, spec: Mapping[str, Any]) -> QuoteView:
        """Returns the ways to run a job: when it would start and end on each, what it costs, and whom it delays."""
        found = await self._transport.json(ApiCall("POST", f"{_API}/jobs:quote", body=dict(spec)))
        return QuoteView.model_validate(found)
