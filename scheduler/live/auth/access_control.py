"""Authenticates callers by their tokens and says what they may do: roles, projects, four kinds of tokens.

    user token       a person or a program: role viewer | user | operator | admin, limited to projects
    agent token      a machine: the join token admits it, its own credential speaks for it alone
    job token        what runs inside a job: its own record, attempts and logs, while the attempt is alive
    enrolment token  admits the machines of one request for machines, while that request is young

User tokens and credentials are random and long; only their hashes are stored. Job and enrolment tokens are keyed hashes
(HMAC under the server's secret) of what they open: they are made when they are sent and never stored. The route table
says which token opens which endpoint.

A rented machine finds its enrolment token in its user-data, where jobs on it could read it later. So that token admits
only machines of that request and pool, no more of them than were asked for, and not for long (`AgentGateway` checks
this). Launching again after a crash repeats the very same call, because the token is derived from the request's own.
"""

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from enum import IntEnum
from random import Random

from scheduler.live.store.table_rows import TokenRow
from walras.clocks import SYSTEM_CLOCKS, Clocks, random_token
from walras.cluster import NodeId
from walras.contract import pinned_token
from walras.errors import Forbidden, UserError
from walras.job_request import JobId

#: Characters of a token that are shown and that revoke it.
PREFIX_LENGTH = 14
ALL_PROJECTS = "*"
#: Who made a token beside a stopped server, where every other was lost.
RECOVERED = "recovered"


class UserRole(IntEnum):
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
    role: UserRole
    projects: tuple[str, ...]

    def sees(self, project: str) -> bool:
        """Admins see all; others their projects."""
        return self.role is UserRole.ADMIN or ALL_PROJECTS in self.projects or project in self.projects

    @property
    def visible_projects(self) -> tuple[str, ...] | None:
        """For a query; None: all."""
        return None if self.role is UserRole.ADMIN or ALL_PROJECTS in self.projects else self.projects

    def may_change(self, owner: str, project: str) -> bool:
        """Users change their own jobs, operators every job of their projects, admins every job."""
        if not self.sees(project):
            return False
        return self.role >= UserRole.OPERATOR or (self.role is UserRole.USER and owner == self.name)


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


def equal_in_constant_time(one: str, other: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))


def new_user_token(
    user: str,
    role: UserRole,
    projects: tuple[str, ...],
    created_by: str,
    expires_in_s: float | None = None,
    clocks: Clocks = SYSTEM_CLOCKS,
    chance: Random | None = None,
) -> tuple[str, TokenRow]:
    """A token and the row that is kept of it."""
    token = f"wlr_u_{random_token(chance)}"
    now = clocks.wall()
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


def caller_of_token(row: TokenRow, unix_s: float) -> UserCaller | None:
    """The user behind a stored token; None if it is revoked or has expired by then."""
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= unix_s):
        return None
    return UserCaller(row.user, UserRole[row.role.upper()], tuple(json.loads(row.projects)))


def parse_role(word: str) -> UserRole:
    """Raises UserError naming the roles."""
    try:
        return UserRole[word.upper()]
    except KeyError:
        roles = ", ".join(role.word for role in UserRole)
        raise UserError(f"no role {word[:40]!r}", field="role", fix=f"choose one of {roles}") from None


def check_grant(granter: UserCaller, role: UserRole, projects: tuple[str, ...]) -> None:
    """Raise Forbidden unless the granter stands above the role (admins may make admins) and holds the projects."""
    if granter.role is not UserRole.ADMIN and role >= granter.role:
        raise Forbidden(f"a token of role {granter.role.word} cannot grant {role.word}", field="role")
    if not all(granter.sees(project) for project in projects):
        raise Forbidden("a token cannot grant projects it does not have", field="projects")


_ENROLMENT_TOKEN = re.compile(r"wlr_e_([0-9a-f]{1,400})_([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class EnrolmentTokens:
    """Issues and checks enrolment tokens under the server's secret."""

    secret: bytes
    #: Fingerprint of the server's certificate, which the token carries to the machine; empty: none is pinned.
    pin: str = ""

    def issue(self, rent_token: str) -> str:
        return pinned_token(f"wlr_e_{rent_token.encode().hex()}_{self._mac(rent_token)}", self.pin)

    def check(self, token: str) -> str | None:
        """The request's token behind a genuine one; whether it may still enrol is for the caller to see."""
        match = _ENROLMENT_TOKEN.fullmatch(token)
        if match is None or len(match[1]) % 2:
            return None
        rent_token = bytes.fromhex(match[1]).decode(errors="replace")
        return rent_token if hmac.compare_digest(match[2], self._mac(rent_token)) else None

    def _mac(self, rent_token: str) -> str:
        return hmac.new(self.secret, f"enrol/{rent_token}".encode(), hashlib.sha256).hexdigest()


_JOB_TOKEN = re.compile(r"wlr_j_(\d{1,18})_(\d{1,9})_([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobTokens:
    """Issues and checks job tokens under the server's secret."""

    secret: bytes

    def issue(self, job_id: JobId, attempt: int) -> str:
        return f"wlr_j_{job_id}_{attempt}_{self._mac(job_id, attempt)}"

    def check(self, token: str) -> tuple[JobId, int] | None:
        """(job, attempt) of a genuine token; whether that attempt is still alive is for the caller to see."""
        match = _JOB_TOKEN.fullmatch(token)
        if match is None:
            return None
        job_id, attempt = JobId(int(match[1])), int(match[2])
        return (job_id, attempt) if hmac.compare_digest(match[3], self._mac(job_id, attempt)) else None

    def _mac(self, job_id: int, attempt: int) -> str:
        return hmac.new(self.secret, f"{job_id}/{attempt}".encode(), hashlib.sha256).hexdigest()
