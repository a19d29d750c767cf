"""The policy in force and the versions before it, as the server reports them, and the calls of
`walras.client.Client`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from walras.api import Body
from walras.transport import ApiCall, Transport

_API = "/api/v1"
#: Longest reason for a change, characters.
REASON_LENGTH = 400


class PolicyView(Body):
    """A policy that is or was in force, and its place in the history (`GET /policy`, `GET /policy/versions`)."""

    version: int
    name: str
    parameters: dict[str, Any]
    rules: dict[str, Any]
    changed_at: str
    changed_by: str
    #: Why the policy before it was replaced: it failed, and this is the last good one. Empty: a user set this one.
    put_back: str = ""
    #: The user's reason for setting it.
    reason: str = ""


_versions: TypeAdapter[list[PolicyView]] = TypeAdapter(list[PolicyView])


class PolicyCalls:
    """The client's calls about the policy."""

    _transport: Transport

    async def policy(self) -> PolicyView:
        """Returns the policy in force."""
        return PolicyView.model_validate(await self._transport.json(ApiCall("GET", f"{_API}/policy")))

    async def policy_versions(self) -> list[PolicyView]:
        """Returns the versions that were in force, the newest first: at most the last hundred."""
        return _versions.validate_python(await self._transport.json(ApiCall("GET", f"{_API}/policy/versions")))

    async def set_policy(
        self, policy: Mapping[str, Any], *, dry_run: bool = False, reason: str = "", if_version: int | None = None
    ) -> PolicyView:
        """Put the policy of a policy file (`{"policy": ..., "rules": ...}`) in force, or only check it.

        Parameters:
            reason: kept in the history, at most `REASON_LENGTH` characters.
            if_version: the version that it is to replace; None: whichever is in force.

        Raises Conflict where another version is in force, ConfigError for a policy that
        means nothing here, or fails its trial.
        """
        query = {"dry_run": "true"} if dry_run else {}
        query |= {"reason": reason} if reason else {}
        query |= {} if if_version is None else {"if_version": str(if_version)}
        call = ApiCall("PUT", f"{_API}/policy", query=query, body=dict(policy))
        return PolicyView.model_validate(await self._transport.json(call))
