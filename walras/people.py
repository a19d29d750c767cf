"""Users, projects and roles as people write and read them: caps on what jobs may ask for, defaults, shares.

A cap of None limits nothing. The caps of a role and of a project both hold, so the narrower one counts;
administrators have none. What a job does not state comes from its project (`JobDefaults`), and never beyond a cap.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from walras.spec.field_types import ShownName

_Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=400)]
#: Fields of a job that can be capped, with the words for such a cap.
CAPPED_FIELDS = {
    "priority": "max_priority",
    "preemptible": "may_pin",
    "weight": "max_weight",
    "value_usd_per_h": "max_value_usd_per_h",
}


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Caps(_Settings):
    """The most that jobs may ask for; None: no cap."""

    max_priority: Annotated[int, Field(ge=0, le=100)] | None = None
    #: Whether `preemptible: false` may be asked for.
    may_pin: bool | None = None
    max_weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    max_value_usd_per_h: _Amount | None = None


class JobDefaults(_Settings):
    """Values for fields that jobs of a project do not state; None: the default of Walras."""

    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    #: USD; it takes precedence over the values of the policy file.
    value_usd_per_h: _Amount | None = None


class ShareTerms(_Settings):
    """What a project, or a user inside a project, may have of the fleet."""

    #: Part of the parent's share against its siblings that have work.
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    #: Fraction of all accelerators that it gets before anybody gets more than that.
    guaranteed: Annotated[float, Field(ge=0, le=1)] = 0.0
    #: Accelerators held at once at most: by `fleet`, by accelerator type, or by pool id. Never exceeded.
    limits: Annotated[dict[_Text, Annotated[int, Field(ge=0, le=10_000_000)]], Field(max_length=1000)] = Field(
        default_factory=dict
    )


class UserSettings(_Settings):
    """The role and projects of a user."""

    role: str = "user"
    #: Projects that it may use, the first being its default; "*" is every project.
    projects: Annotated[list[ShownName], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda: ["default"]
    )


class ProjectSettings(_Settings):
    """The settings for the jobs of a project."""

    caps: Caps = Caps()
    defaults: JobDefaults = JobDefaults()
    share: ShareTerms = ShareTerms()
    #: The terms of its users relative to each other, by name.
    users: Annotated[dict[ShownName, ShareTerms], Field(max_length=10_000)] = Field(default_factory=dict)


class RoleSettings(_Settings):
    """The caps (priority, weight, preemptibility) of jobs that users with a role may submit."""

    caps: Caps = Caps()


#: What a role may ask for in a new cluster. A high priority stops other people's jobs, and `preemptible: false` keeps
#: a place whatever others need: both are an operator's to give. Viewers submit nothing.
FIRST_ROLES: dict[str, RoleSettings] = {
    "user": RoleSettings(caps=Caps(max_priority=66, may_pin=False, max_weight=10.0)),
    "operator": RoleSettings(caps=Caps(max_priority=90, max_weight=100.0)),
}


class DefaultView(BaseModel):
    """A field that a job did not state (`field` of its spec), the value it has, and whose default that is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    field: str
    value: str | float | int
    #: `project NAME`, `your token`, `your cap`, or `default`: Walras's own.
    by: str


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    #: When the settings were made; empty where they are still the initial ones.
    changed_at: str = ""
    changed_by: str = ""


class UserView(_View):
    """A user (`GET /users`)."""

    role: str
    projects: list[str]
    #: The number of tokens of the user that are valid now.
    tokens: int = 0
    #: Whether the user was removed: its tokens are invalid; jobs that it submitted run on.
    removed: bool = False


class ProjectView(_View, ProjectSettings):
    """A project (`GET /projects`)."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    #: Users who may use it by name; those of every project are not listed.
    members: list[str] = []


class RoleView(_View, RoleSettings):
    """A role (`GET /roles`)."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class NewPerson(BaseModel):
    """`POST /users` and `POST /projects`: a name, and settings as `PATCH` takes them."""

    model_config = ConfigDict(extra="forbid")

    name: ShownName
    settings: dict[str, Any] = Field(default_factory=dict)


class NewToken(BaseModel):
    """`POST /tokens`."""

    model_config = ConfigDict(extra="forbid")

    user: ShownName
    role: str = "user"
    #: Projects that it gives access to; "*" is every project.
    projects: list[ShownName] = Field(default=["default"], min_length=1, max_length=1000)
    #: None: it does not expire.
    expires_in_s: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)


class TokenView(BaseModel):
    """A token without its secret."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prefix: str
    user: str
    role: str
    projects: list[str]
    created_by: str
    is_expired_or_revoked: bool


class TokenList(BaseModel):
    """`GET /tokens`."""

    items: list[TokenView]


class _Answer(BaseModel):
    """Unknown fields are ignored, so that a client understands a server one release newer."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class TokenCreated(_Answer):
    """`POST /tokens`: the secret is shown once."""

    token: str
    prefix: str
    user: str
    role: str


class WhoAmI(_Answer):
    """`GET /whoami`: whose token the caller showed."""

    user: str
    role: str
    #: `*` stands for all projects.
    projects: list[str]


class AuditView(_Answer):
    """One write through the API (`GET /audit`), without secrets and variables of jobs."""

    at: str
    user: str
    role: str
    #: The address from which the request came.
    address: str
    #: Method and path of the endpoint.
    action: str
    #: The object that was changed, such as "job 12".
    subject: str
    #: Empty for objects that belong to no project.
    project: str
    before: Any
    after: Any


class ShareLoan(BaseModel):
    """Accelerators that a sibling lends to another entity now."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    accelerators: float


class EntityPriceView(BaseModel):
    """A project ("vision") or user ("vision/ada") whose limit or guarantee binds at the last solve.

    Prices are those of an accelerator held all the time, in the unit of the prices of pools.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    #: What its limit adds to the price of a pool: one accelerator more would be worth this to its jobs.
    limit: float
    #: What its guarantee takes off the price: what others would pay for an accelerator that it keeps.
    guarantee: float


class ShareView(BaseModel):
    """Where a project ("vision") or a user inside it ("vision/ada") stands (`GET /share`), in accelerators."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    weight: float
    guaranteed: float
    limits: dict[str, int]
    #: The accelerators that its active jobs ask for.
    demand: float
    #: Its part by weight among those with work, and its part if all had work.
    entitled: float
    nominal: float
    #: Held now, by type; and in fair-share units: accelerators of the fleet's average speed for its jobs.
    held: dict[str, float]
    held_units: float
    #: Accelerator-hours used, with old ones halved every `half_life_s` and spot at its factor; and
    #: fair-share-unit-hours.
    used_h: float
    used_unit_h: float
    #: Its part of what it and its siblings have used.
    used_part: float
    half_life_s: float
    #: The accelerators that it holds above its nominal part, by the sibling that lends them.
    borrowed: list[ShareLoan]
    #: Why its units are not its accelerators; empty where it holds nothing.
    because: str = ""


def merged(settings: Any, changes: Any) -> Any:
    """Returns JSON data changed as RFC 7396 has it: mappings field by field, null takes a field out."""
    if not isinstance(changes, dict):
        return changes
    result = dict(settings) if isinstance(settings, dict) else {}
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
