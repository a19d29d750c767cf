"""Who is asking, and what they may do: three kinds of tokens, four roles, projects.

    user token   a person or a program: role viewer | user | operator | admin, limited to projects
    agent token  a machine: the join token admits it, its own credential speaks for it alone
    job token    what runs inside a job: its own record, attempts and logs, while the attempt lives

Tokens are random and long; only hashes are stored. What each endpoint asks for stands in the route table.
"""

import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

from scheduler.live.records.rows import TokenRow
from walras.errors import Forbidden, UserError
from walras.ids import JobId, NodeId

#: Characters of a token that are shown and that revoke it.
PREFIX_LENGTH = 14
ALL_PROJECTS = "*"


class Role(IntEnum):
    """What a user may do; each includes the ones before."""

    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class UserCaller:
    name: str
    role: Role
    projects: tuple[str, ...]

    def sees(self, project: str) -> bool:
        """Admins see all; others their projects."""
        return self.role is Role.ADMIN or ALL_PROJECTS in self.projects or project in self.projects

    @property
    def visible_projects(self) -> tuple[str, ...] | None:
        """For a query; None: all."""
        return None if self.role is Role.ADMIN or ALL_PROJECTS in self.projects else self.projects

    def may_change(self, owner: str, project: str) -> bool:
        """Users change their own jobs, operators every job of their projects, admins every job."""
        if not self.sees(project):
            return False
        return self.role >= Role.OPERATOR or (self.role is Role.USER and owner == self.name)


@dataclass(frozen=True, slots=True)
class AgentCaller:
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class JoinCaller:
    """Whoever holds the join token, or an enrolment token: a machine that wants to be admitted."""

    #: The request that the machine must answer; None: the join token admits any machine.
    rent_token: str | None = None


@dataclass(frozen=True, slots=True)
class JobCaller:
    job_id: JobId


Caller = UserCaller | AgentCaller | JoinCaller | JobCaller


def token_hash(token: str) -> str:
    """What is kept of a token. Tokens are random and long: a plain hash cannot be guessed backwards."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def same(one: str, other: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))


def new_user_token(
    user: str, role: Role, projects: tuple[str, ...], created_by: str, expires_in_s: float | None = None
) -> tuple[str, TokenRow]:
    """A token and the row that is kept of it."""
    token = f"wlr_u_{secrets.token_urlsafe(32)}"
    now = time.time()
    row = TokenRow(
        sha256=token_hash(token),
        prefix=token[:PREFIX_LENGTH],
        user=user,
        role=role.word,
        projects=json.dumps(list(projects)),
        created_at=now,
        created_by=created_by,
        expires_at=None if expires_in_s is None else now + expires_in_s,
    )
    return token, row


def caller_of(row: TokenRow) -> UserCaller | None:
    """The user behind a stored token; None if it is revoked or has expired."""
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= time.time()):
        return None
    return UserCaller(row.user, Role[row.role.upper()], tuple(json.loads(row.projects)))


def parse_role(word: str) -> Role:
    """Raises UserError naming the roles."""
    try:
        return Role[word.upper()]
    except KeyError:
        roles = ", ".join(role.word for role in Role)
        raise UserError(f"no role {word[:40]!r}", field="role", fix=f"choose one of {roles}") from None


def check_grant(granter: UserCaller, role: Role, projects: tuple[str, ...]) -> None:
    """Raise Forbidden unless the granter stands above the role (admins may make admins) and holds the projects."""
    if granter.role is not Role.ADMIN and role >= granter.role:
        raise Forbidden(f"a token of role {granter.role.word} cannot grant {role.word}", field="role")
    if not all(granter.sees(project) for project in projects):
        raise Forbidden("a token cannot grant projects it does not have", field="projects")


class FailureLimit:
    """How many wrong tokens one address may try: a bucket that refills, per address, for a bounded number of them."""

    def __init__(self, burst: int = 30, per_s: float = 0.5, addresses: int = 4096) -> None:
        self._burst = float(burst)
        self._per_s = per_s
        self._addresses = addresses
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, address: str, now: float) -> bool:
        """Note a failure. False: this address has failed too often lately."""
        left, since = self._buckets.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s) - 1.0
        self._buckets[address] = (max(left, -1.0), now)
        while len(self._buckets) > self._addresses:
            self._buckets.popitem(last=False)
        return left >= 0.0
