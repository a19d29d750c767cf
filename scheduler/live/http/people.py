"""Tokens over HTTP: who may come in."""

import json

from pydantic import BaseModel, ConfigDict, Field

from scheduler.live.access.auth import caller_of, check_grant, new_user_token, parse_role
from scheduler.live.http.routing import Call
from scheduler.live.records.rows import TokenRow
from scheduler.live.turns.turn import Turn
from walras.api import TokenCreated
from walras.errors import NotFound
from walras.names import ShownName


class NewToken(BaseModel):
    """`POST /tokens`."""

    model_config = ConfigDict(extra="forbid")
    user: ShownName
    role: str = "user"
    #: Projects it opens; "*" is every project.
    projects: list[ShownName] = Field(default=["default"], min_length=1, max_length=1000)
    #: None: does not expire.
    expires_in_s: float | None = Field(default=None, gt=0)


class TokenView(BaseModel):
    """A token without its secret."""

    prefix: str
    user: str
    role: str
    projects: list[str]
    created_by: str
    is_expired_or_revoked: bool


class TokenList(BaseModel):
    """`GET /tokens`."""

    items: list[TokenView]


async def create(call: Call) -> TokenCreated:
    asked = await call.model(NewToken)
    role, projects = parse_role(asked.role), tuple(dict.fromkeys(asked.projects))
    check_grant(call.user, role, projects)
    token, row = new_user_token(asked.user, role, projects, call.user.name, asked.expires_in_s)

    def step(turn: Turn) -> None:
        turn.batch.tokens.append(row)

    await call.server.daemon.perform(step)
    call.server.secrets.users[row.sha256] = row
    return TokenCreated(token=token, prefix=row.prefix, user=row.user, role=row.role)


async def listing(call: Call) -> TokenList:
    rows = await call.server.read(call.server.store.tokens)
    return TokenList(items=[_view(row) for row in rows])


async def revoke(call: Call) -> TokenView:
    prefix = call.request.match_info["prefix"]
    found = [row for row in call.server.secrets.users.values() if row.prefix == prefix]
    if not found:
        raise NotFound("no token with this prefix", field="prefix", fix="check `walras admin tokens`")

    def step(turn: Turn) -> None:
        for row in found:
            row.revoked_at = row.revoked_at or call.server.daemon.clock.unix(turn.at)
            turn.batch.tokens.append(row)

    await call.server.daemon.perform(step)
    return _view(found[0])


def _view(row: TokenRow) -> TokenView:
    return TokenView(
        prefix=row.prefix,
        user=row.user,
        role=row.role,
        projects=json.loads(row.projects),
        created_by=row.created_by,
        is_expired_or_revoked=caller_of(row) is None,
    )
