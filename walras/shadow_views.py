"""A second policy beside the one in force: what would have happened under it, and the calls of `walras.client.Client`.

Everything is compared three times: `live` is what happened, `own` is the policy in force and `shadow` the other policy,
both run through the same recorded period. What `live` and `own` differ in is the model's error; what `own` and `shadow`
differ in is the policy.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from walras.api import Body
from walras.job_request import JobId
from walras.transport import ApiCall, Transport

_PATH = "/api/v1/policy/shadow"


class ShadowFigures(Body):
    """Figures of the jobs of a group whose length is known, because they have ended by themselves."""

    #: Time from submission to the end, seconds.
    mean_s: float
    median_s: float
    p95_s: float
    #: Mean seconds until the first start of jobs that waited when the shadow began or came later; null: none did.
    waiting_s: float | None
    preemptions: float
    #: The cost of the machines that they held since the shadow began.
    usd: float


class ShadowGroup(Body):
    """The jobs of a project that were active when the shadow began, or came since."""

    #: The project; empty: all projects that the caller sees.
    project: str
    jobs: int
    #: Jobs whose length is not known yet: only `difference_s` counts them.
    unknown: int
    #: Cancelled jobs: no figure counts them.
    cancelled: int
    #: Jobs of known length that never end in a run: no figure counts them.
    never_end: int
    #: Null: no job of known length is there.
    live: ShadowFigures | None = None
    own: ShadowFigures | None = None
    shadow: ShadowFigures | None = None
    #: Mean end under the other policy less that under the own, seconds: p10, p50, p90 over the drawn lengths of the
    #: jobs that have not ended, which are counted here too.
    difference_s: tuple[float, float, float] | None = None


class ShadowJobView(Body):
    """A job that would have ended at another time."""

    id: JobId
    project: str
    #: End under the other policy less that under the own, seconds; the median over the draws.
    difference_s: float
    is_known: bool


class ShadowView(Body):
    """`GET /policy/shadow`."""

    #: none, waiting (nothing has been worked out yet), ready, or failed.
    state: str
    policy: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    started_at: str = ""
    started_by: str = ""
    #: When the period begins and ends, in Unix seconds.
    since: float | None = None
    as_of: float | None = None
    #: How the policy failed, or why nothing could be computed.
    fault: str = ""
    draws: int = 0
    #: Processor seconds of the last run, and the part of one core that runs may take.
    cpu_s: float = 0.0
    core_share: float = 0.0
    total: ShadowGroup | None = None
    projects: list[ShadowGroup] = Field(default_factory=list)
    sooner_jobs: int = 0
    later_jobs: int = 0
    #: The jobs that change most.
    sooner: list[ShadowJobView] = Field(default_factory=list)
    later: list[ShadowJobView] = Field(default_factory=list)


class ShadowCalls:
    """The client's calls about a shadow policy."""

    _transport: Transport

    async def shadow(self) -> ShadowView:
        """Returns what would have happened since it was started."""
        return ShadowView.model_validate(await self._transport.json(ApiCall("GET", _PATH)))

    async def start_shadow(self, policy: Mapping[str, Any]) -> ShadowView:
        """Run the policy of a policy file beside the one in force, with the same rules unless it states others.

        Raises Conflict where one is run already, ConfigError for a policy that means nothing.
        """
        call = ApiCall("PUT", _PATH, body=dict(policy))
        return ShadowView.model_validate(await self._transport.json(call))

    async def stop_shadow(self) -> ShadowView:
        """Run it no longer. Returns what was last worked out; raises NotFound where none is run."""
        return ShadowView.model_validate(await self._transport.json(ApiCall("DELETE", _PATH)))
