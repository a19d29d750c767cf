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
from walras.resources.people import ALL_PROJECTS

#: The first characters of a token, by which it is shown and revoked.
PREFIX_LENGTH = 14
#: `created_by` of a token that `walras admin recover-token` makes beside the server, when all others were lost.
RECOVERED = "recovered"


class UserRole(IntEnum):
    """What a user may do; each role includes the roles before it."""

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
        """Returns whether the user may see the project: admins see all, others those of their token."""
        return self.role is UserRole.ADMIN or ALL_PROJECTS in self.projects or project in self.projects

    @property
    def visible_projects(self) -> tuple[str, ...] | None:
        """Returns the projects that a query may read; None for all."""
        return None if self.role is UserRole.ADMIN or ALL_PROJECTS in self.projects else self.projects

    @property
    def default_project(self) -> str:
        """Returns the project of what names none: the first that the token names, else "default"."""
        named = [project for project in self.projects if project != ALL_PROJECTS]
        return named[0] if named else "default"

    def may_change(self, owner: str, project: str) -> bool:
        """Returns whether the user may change a job: users their own, operators those of their projects, admins all."""
        if not self.sees(project):
            return False
        return self.role >= UserRole.OPERATOR or (self.role is UserRole.USER and owner == self.name)


@dataclass(frozen=True, slots=True)
class AgentCaller:
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class JoinCaller:
    """A machine that asks to be admitted, by the join token or an enrolment token."""

    #: The token of the request for machines that the machine must answer; None: the join token admits any machine.
    rent_token: str | None = None


@dataclass(frozen=True, slots=True)
class JobCaller:
    job_id: JobId


Caller = UserCaller | AgentCaller | JoinCaller | JobCaller


def token_hash(token: str) -> str:
    """Returns the hash that is stored of a token; a plain one is safe, because tokens are long and random."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def equal_in_constant_time(one: str, other: str) -> bool:
    """Returns whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one.encode(errors="surrogateescape"), other.encode(errors="surrogateescape"))


def new_user_token(
    user: UserCaller,
    created_by: str,
    expires_in_s: float | None = None,
    clocks: Clocks = SYSTEM_CLOCKS,
    chance: Random | None = None,
) -> tuple[str, TokenRow]:
    """Returns a new token that identifies this user, and the row that is stored of it."""
    token = f"wlr_u_{random_token(chance)}"
    now = clocks.wall()
    row = TokenRow(
        sha256=token_hash(token),
        prefix=token[:PREFIX_LENGTH],
        user=user.name,
        role=user.role.word,
        projects=json.dumps(list(user.projects)),
        created_at=now,
        created_by=created_by,
        expires_at=None if expires_in_s is None else now + expires_in_s,
    )
    return token, row


def caller_of_token(row: TokenRow, unix_s: float) -> UserCaller | None:
    """Returns the user of a stored token; None if the token is revoked or has expired at this Unix time."""
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= unix_s):
        return None
    return UserCaller(row.user, UserRole[row.role.upper()], tuple(json.loads(row.projects)))


def parse_role(word: str) -> UserRole:
    """Returns the role of this name. Raises UserError naming the roles."""
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
    #: The fingerprint of the server's certificate, which the token carries to the machine; empty: none is pinned.
    pin: str = ""

    def issue(self, rent_token: str) -> str:
        return pinned_token(f"wlr_e_{rent_token.encode().hex()}_{self._mac(rent_token)}", self.pin)

    def check(self, token: str) -> str | None:
        """Returns the token of the request that a genuine enrolment token names; None for any other text.

        The caller has to check whether machines of that request may still enrol.
        """
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
        """Returns (job, attempt) of a genuine token, else None. The caller must check that the attempt is alive."""
        match = _JOB_TOKEN.fullmatch(token)
        if match is None:
            return None
        job_id, attempt = JobId(int(match[1])), int(match[2])
        return (job_id, attempt) if hmac.compare_digest(match[3], self._mac(job_id, attempt)) else None

    def _mac(self, job_id: int, attempt: int) -> str:
        return hmac.new(self.secret, f"{job_id}/{attempt}".encode(), hashlib.sha256).hexdigest()
