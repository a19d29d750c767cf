"""What would be if something else were so: the question, its answer, and the calls of `walras.client.Client`.

Every difference is (p10, p50, p90) over futures that were rolled forward with and without the change under the same
luck; negative is sooner, or less.
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
    #: Machines, pools or accelerator types.
    remove: Annotated[list[_Name], Field(max_length=16)] = []
    #: A policy file: `{"policy": ..., "rules": ...}`.
    policy: dict[str, Any] | None = None
    #: Jobs, as they would be submitted.
    submit: Annotated[list[dict[str, Any]], Field(max_length=4)] = []
    #: Projects, or users inside one, whose limits are lifted.
    no_limit: Annotated[list[_Name], Field(max_length=16)] = []


class DifferenceView(Body):
    """Of the jobs of a project that are active now."""

    #: Empty: those of projects that the caller does not see.
    project: str
    jobs: int
    #: Of the mean time of completion, seconds.
    completion_s: Triple
    #: Of the mean time until those start that wait now, seconds; null: none waits.
    waiting_s: Triple | None = None
    #: Of what their machines cost from now on, in all.
    usd: Triple


class JobDifferenceView(Body):
    id: JobId
    name: str
    project: str
    #: Null if it runs.
    start_s: Triple | None = None
    end_s: Triple


class WayView(Body):
    """One way to run a job that is tried: when it would start and end, what it costs, and whom it would delay."""

    #: Its accelerators: "4 x a100"; empty: as the job asks.
    way: str = ""
    #: Null: it does not end within the time that is looked ahead.
    forecast: ForecastView | None = None
    #: The end that whoever takes this way is promised, Unix seconds: 19 futures in 20 keep it. Null: none can be.
    promised_by: float | None = None
    usd: Triple
    #: Jobs that would end more than a minute later in half of the futures, and by how much together, seconds.
    delayed_jobs: int
    delay_s: float


class WhatIfView(Body):
    """What would become different."""

    as_of: float
    #: Futures that were compared.
    draws: int
    #: What was changed, in words.
    changes: list[str]
    total: DifferenceView
    projects: list[DifferenceView]
    #: Those of the caller's that change most, the largest change first.
    jobs: list[JobDifferenceView]
    #: The jobs of `submit`, in that order.
    submitted: list[WayView]
    #: Jobs that do not end within the time that is looked ahead, mean: as things are, and with the changes.
    unfinished: tuple[float, float]


class QuoteView(Body):
    """The ways to run a job, those that end first before the others."""

    as_of: float
    draws: int
    ways: list[WayView]


class WhatIfCalls:
    """What a client may ask about futures. Nothing is changed, or stored."""

    _transport: Transport

    async def what_if(self, changes: WhatIfRequest) -> WhatIfView:
        """Compare the cluster's future with and without the changes. Raises NotFound for what the cluster lacks."""
        body = changes.model_dump(mode="json", exclude_defaults=True)
        return WhatIfView.model_validate(await self._transport.json(ApiCall("POST", f"{_API}/whatif", body=body)))

    async def quote(self, spec: Mapping[str, Any]) -> QuoteView:
        """The ways to run a job: when it would start and end on each, what it costs, and whom it delays."""
        found = await self._transport.json(ApiCall("POST", f"{_API}/jobs:quote", body=dict(spec)))
        return QuoteView.model_validate(found)
