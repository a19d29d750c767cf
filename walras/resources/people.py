"""Users, projects and roles as people write and read them: caps on what jobs may ask for, defaults, shares.

A cap of None limits nothing. The caps of a role and of a project both hold, so the narrower one counts;
administrators have none. What a job does not state comes from its project (`JobDefaults`), and never beyond a cap.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, field_validator

from walras.connection.body import Body, RequestBody
from walras.resources.endpoint import API, Call, Calls, Endpoint
from walras.spec.field_types import ShownName

ALL_PROJECTS = "*"
#: Each may do what those before it may.
ROLES = ("viewer", "user", "operator", "admin")
_Amount = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=400)]
#: Fields of a job that can be capped, with the words for such a cap.
CAPPED_FIELDS = {
    "priority": "max_priority",
    "preemptible": "may_pin",
    "weight": "max_weight",
    "value_usd_per_h": "max_value_usd_per_h",
}


class Caps(RequestBody):
    """The most that jobs may ask for; None: no cap."""

    max_priority: Annotated[int, Field(ge=0, le=100)] | None = None
    #: Whether `preemptible: false` may be asked for.
    may_pin: bool | None = None
    max_weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    max_value_usd_per_h: _Amount | None = None

    @classmethod
    def lowest(cls, *given: "Caps") -> "Caps":
        """Returns the caps that hold where all of these do."""
        found: dict[str, Any] = {}
        for name in cls.model_fields:
            said = [value for caps in given if (value := getattr(caps, name)) is not None]
            found[name] = min(said) if said else None
        return cls(**found)


class _CappedSettings(RequestBody):
    """Settings with caps."""

    caps: Caps = Caps()

    def without_what(self, later: Self) -> Self:
        """Returns these settings without what the later ones do not allow: the lower caps."""
        return self.model_copy(update={"caps": Caps.lowest(self.caps, later.caps)})


class JobDefaults(RequestBody):
    """Values for fields that jobs of a project do not state; None: the default of Walras."""

    priority: Annotated[int, Field(ge=0, le=100)] | None = None
    #: USD; it takes precedence over the values of the policy file.
    value_usd_per_h: _Amount | None = None


class ShareTerms(RequestBody):
    """What a project, or a user inside a project, may have of the fleet."""

    #: Part of the parent's share against its siblings that have work.
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    #: Fraction of all accelerators that it gets before anybody gets more than that.
    guaranteed: Annotated[float, Field(ge=0, le=1)] = 0.0
    #: Accelerators held at once at most: by `fleet`, by accelerator type, or by pool id. Never exceeded.
    limits: Annotated[dict[_Text, Annotated[int, Field(ge=0, le=10_000_000)]], Field(max_length=1000)] = Field(
        default_factory=dict
    )

    def without_what(self, later: Self) -> Self:
        """Returns these terms without what the later ones do not give: the lower of each."""
        named = self.limits.keys() | later.limits.keys()
        limits = {name: min(each.limits[name] for each in (self, later) if name in each.limits) for name in named}
        weight, guaranteed = min(self.weight, later.weight), min(self.guaranteed, later.guaranteed)
        return self.model_copy(update={"weight": weight, "guaranteed": guaranteed, "limits": limits})


class ProjectShare(ShareTerms):
    """What a project may have of the fleet, and what of it is its own."""

    #: Accelerators that it owns, by type or pool id, on owned machines: kept for its jobs, lent while they leave them.
    owned: Annotated[dict[_Text, Annotated[int, Field(ge=1, le=10_000_000)]], Field(max_length=100)] = Field(
        default_factory=dict
    )

    @field_validator("owned")
    @classmethod
    def _of_types(cls, owned: dict[str, int]) -> dict[str, int]:
        if "fleet" in owned:
            raise ValueError("`fleet` is no type: a part of the whole fleet is `guaranteed`")
        return owned

    def without_what(self, later: Self) -> Self:
        owned = {name: min(count, later.owned[name]) for name, count in self.owned.items() if name in later.owned}
        return super().without_what(later).model_copy(update={"owned": owned})


class UserSettings(RequestBody):
    """The role and projects of a user."""

    role: str = "user"
    #: Projects that it may use, the first being its default; "*" is every project.
    projects: Annotated[list[ShownName], Field(min_length=1, max_length=1000)] = Field(
        default_factory=lambda: ["default"]
    )

    def without_what(self, later: Self) -> Self:
        """Returns these settings without what the later ones do not give: the lower role, and the projects of both.

        Where they have no project in common, the later ones'. Raises ValueError for a role that is not known.
        """
        common = common_projects(tuple(self.projects), tuple(later.projects))
        role = min(self.role, later.role, key=lambda role: ROLES.index(role.lower()))
        return type(self)(role=role, projects=list(common) or later.projects)


def common_projects(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the projects that both have, in the order of the first, where "*" is every project."""
    if ALL_PROJECTS in second:
        return first
    return second if ALL_PROJECTS in first else tuple(project for project in first if project in second)


class ProjectSettings(_CappedSettings):
    """The settings for the jobs of a project."""

    defaults: JobDefaults = JobDefaults()
    share: ProjectShare = ProjectShare()
    #: The terms of its users relative to each other, by name.
    users: Annotated[dict[ShownName, ShareTerms], Field(max_length=10_000)] = Field(default_factory=dict)

    def without_what(self, later: Self) -> Self:
        """Returns these settings with the lower caps, and the lower terms of the project and of its users."""
        usual, names = ShareTerms(), self.users | later.users
        lower = {n: self.users.get(n, usual).without_what(later.users.get(n, usual)) for n in names}
        users = {name: terms for name, terms in lower.items() if name in self.users or terms != usual}
        shares = {"share": self.share.without_what(later.share), "users": users}
        return super().without_what(later).model_copy(update=shares)


class RoleSettings(_CappedSettings):
    """The caps (priority, weight, preemptibility) of jobs that users with a role may submit."""


#: What a role may ask for in a new cluster. A high priority stops other people's jobs, and `preemptible: false` keeps
#: a place whatever others need: both are an operator's to give. Viewers submit nothing.
FIRST_ROLES: dict[str, RoleSettings] = {
    "user": RoleSettings(caps=Caps(max_priority=66, may_pin=False, max_weight=10.0)),
    "operator": RoleSettings(caps=Caps(max_priority=90, max_weight=100.0)),
}


class DefaultView(Body):
    """A field that a job did not state (`field` of its spec), the value it has, and whose default that is."""

    field: str
    value: str | float | int
    #: `project NAME`, `your token`, `your cap`, or `default`: Walras's own.
    by: str


class _View(Body):
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


class ProjectView(_View, ProjectSettings, extra="ignore"):
    """A project (`GET /projects`)."""

    #: Users who may use it by name; those of every project are not listed.
    members: list[str] = Field(default=[])


class RoleView(_View, RoleSettings, extra="ignore"):
    """A role (`GET /roles`)."""


class NewPerson(RequestBody):
    """`POST /users` and `POST /projects`: a name, and settings as `PATCH` takes them."""

    name: ShownName
    settings: dict[str, Any] = Field(default_factory=dict)


class NewToken(RequestBody):
    """`POST /tokens`."""

    user: ShownName
    role: str = "user"
    #: Projects that it gives access to; "*" is every project.
    projects: list[ShownName] = Field(default=["default"], min_length=1, max_length=1000)
    #: None: it does not expire.
    expires_in_s: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)


class TokenView(Body):
    """A token without its secret."""

    prefix: str
    user: str
    role: str
    projects: list[str]
    created_by: str
    is_expired_or_revoked: bool


class TokenList(Body):
    """`GET /tokens`."""

    items: list[TokenView]


class TokenCreated(Body):
    """`POST /tokens`: the secret is shown once."""

    token: str
    prefix: str
    user: str
    role: str


class WhoAmI(Body):
    """`GET /whoami`: whose token the caller showed."""

    user: str
    role: str
    #: `*` stands for all projects.
    projects: list[str]


class AuditView(Body):
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


class ShareLoan(Body):
    """Accelerators that a sibling lends to another entity now."""

    name: str
    accelerators: float


class EntityPriceView(Body):
    """A project ("vision") or user ("vision/ada") whose limit or guarantee binds at the last solve.

    Prices are those of an accelerator held all the time, in the unit of the prices of pools.
    """

    name: str
    #: What its limit adds to the price of a pool: one accelerator more would be worth this to its jobs.
    limit: float
    #: What its guarantee takes off the price: what others would pay for an accelerator that it keeps.
    guarantee: float


class OwnedView(Body, from_attributes=True):
    """What a project owns of an accelerator type or a pool (`scope`), in accelerators."""

    scope: str
    owned: int
    #: Those on machines that take jobs now; of these those that its jobs use, and those that others have on loan.
    here: int
    used: int
    lent: float
    #: Accelerator-hours lent and not had back.
    credit_h: float


class ShareView(Body):
    """Where a project ("vision") or a user inside it ("vision/ada") stands (`GET /share`), in accelerators."""

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
    owned: list[OwnedView] = Field(default_factory=list)
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


#: Values of one patch of settings.
_PATCH_VALUES = 1000
TOKENS = Endpoint("GET", f"{API}/tokens", "Tokens, without their secrets", TokenList, "operator")


class PeopleCalls(Calls):
    """The client's calls about people. Changes are merge patches: null removes a setting."""

    @Endpoint("GET", f"{API}/users", who="operator")
    async def users(self) -> list[UserView]:
        """Users of your projects."""

    @Endpoint("POST", f"{API}/users", who="operator", body=NewPerson, status=201)
    async def add_user(self, name: str, settings: Mapping[str, Any]) -> UserView:
        """Add a user. 409 for one who is there already."""

    @Endpoint("PATCH", API + "/users/{name}", who="operator", body=UserSettings, body_values=_PATCH_VALUES)
    async def change_user(self, name: str, changes: Mapping[str, Any]) -> UserView:
        """Change a user's role or projects. A merge patch."""

    @Endpoint("DELETE", API + "/users/{name}", who="operator")
    async def remove_user(self, name: str) -> UserView:
        """Remove a user and void their tokens."""

    @Endpoint("GET", f"{API}/projects")
    async def projects(self) -> list[ProjectView]:
        """Projects that you have, with their settings."""

    @Endpoint("POST", f"{API}/projects", who="operator", body=NewPerson, status=201)
    async def add_project(self, name: str, settings: Mapping[str, Any]) -> ProjectView:
        """Add a project. 409 for one that is there already."""

    @Endpoint("PATCH", API + "/projects/{name}", who="operator", body=ProjectSettings, body_values=_PATCH_VALUES)
    async def change_project(self, name: str, changes: Mapping[str, Any]) -> ProjectView:
        """Change a project's caps, defaults and shares. A merge patch."""

    @Endpoint("DELETE", API + "/projects/{name}", who="operator")
    async def remove_project(self, name: str) -> ProjectView:
        """Forget a project that nobody uses. 409 while somebody does."""

    @Endpoint("GET", f"{API}/roles")
    async def roles(self) -> list[RoleView]:
        """Roles and their caps, the least first."""

    @Endpoint("PATCH", API + "/roles/{name}", who="operator", body=RoleSettings, body_values=_PATCH_VALUES)
    async def change_role(self, name: str, changes: Mapping[str, Any]) -> RoleView:
        """Change the caps of a role. A merge patch."""

    @Endpoint("POST", f"{API}/tokens", who="operator", body=NewToken, status=201)
    async def create_token(
        self, user: str, role: str, projects: Sequence[str], *, expires_in_s: float | None = None
    ) -> TokenCreated:
        """Make a token of a user. Only this answer shows it."""

    @Call
    async def tokens(self) -> list[TokenView]:
        """Returns the tokens that the caller could have made, and its own, without their secrets."""
        found: TokenList = await TOKENS.ask(self, {})
        return found.items

    @Endpoint("DELETE", API + "/tokens/{prefix}", who="operator")
    async def revoke_token(self, prefix: str) -> TokenView:
        """Revoke a token. `prefix`: its first characters."""

    @Endpoint("GET", f"{API}/share")
    async def share(self, project: str = "") -> list[ShareView]:
        """Shares: entitled, held, used lately, borrowed. Of your projects and their users, by type and in units."""

    @Endpoint("GET", f"{API}/whoami")
    async def whoami(self) -> WhoAmI:
        """Whose token this is."""

    @Endpoint("GET", f"{API}/audit", who="operator")
    async def audit(self, *, user: str = "", since: str = "", limit: int = 100) -> list[AuditView]:
        """Who changed what. Newest first: user, role, address, endpoint, before and after; operators see the jobs of
        their projects, admins everything.
        """
