"""The policy in force and the versions before it, as the server reports them, and the calls of
`walras.client.Client`.
"""

from collections.abc import Mapping
from typing import Any

from walras.connection.body import Body
from walras.resources.endpoint import API, Calls, Endpoint

#: Longest reason for a change, characters.
REASON_LENGTH = 400


class PolicyView(Body):
    """A policy that is or was in force, and its place in the history (`GET /policy`, `GET /policy/versions`)."""

    version: int
    name: str
    parameters: dict[str, Any]
    #: All rules, and the names of those that are not at their defaults; null: an older server does not say.
    rules: dict[str, Any]
    changed_rules: list[str] | None = None
    changed_at: str
    changed_by: str
    #: Why the policy before it was replaced: it failed, and this is the last good one. Empty: a user set this one.
    put_back: str = ""
    #: The user's reason for setting it.
    reason: str = ""


class PolicyCalls(Calls):
    """The client's calls about the policy."""

    @Endpoint("GET", f"{API}/policy")
    async def policy(self) -> PolicyView:
        """The policy in force."""

    @Endpoint("GET", f"{API}/policy/versions")
    async def policy_versions(self) -> list[PolicyView]:
        """The policies that were in force, newest first. The last hundred, with author and reason."""

    @Endpoint("PUT", f"{API}/policy", who="admin", query=("dry_run", "reason", "if_version"), body_values=5000)
    async def set_policy(
        self, policy: Mapping[str, Any], *, dry_run: bool = False, reason: str = "", if_version: int | None = None
    ) -> PolicyView:
        """Change the policy, or only check it (`dry_run`). The body: a policy file; validated, versioned, at once;
        409 where another version than `if_version` is in force.

        Parameters:
            reason: kept in the history, at most `REASON_LENGTH` characters.
            if_version: the version that it is to replace; None: whichever is in force.

        Raises ConfigError for a policy that means nothing here, or fails its trial.
        """
