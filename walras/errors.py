"""Errors, by whose fault they are.

    WalrasError
    ├─ UserError              fix your input: CLI exit 2, HTTP 4xx, no traceback
    │  ├─ ConfigError         a file a person wrote
    │  │  └─ JobSpecError     ... a job spec
    │  ├─ UnknownPolicyError
    │  ├─ NotFound            no such job, node, policy
    │  ├─ Conflict            the thing exists and differs, or its state forbids this
    │  └─ Forbidden           the token does not allow this
    └─ ClusterError           the world failed
       └─ ServerUnreachable   CLI exit 75

Mistakes of our own are assertions and end the process; a solve that went badly is data (`Certificate.status`).
"""


class WalrasError(Exception):
    """Base of every error of ours that a caller may want to catch."""


class UserError(WalrasError):
    """Something the person can mend. `field` names where, `fix` says how."""

    def __init__(self, message: str, *, field: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.fix = fix


class ConfigError(UserError):
    """A configuration file does not parse or does not hold together."""


class JobSpecError(ConfigError):
    """A job spec does not parse or cannot be run by this fleet."""


class UnknownPolicyError(ConfigError):
    """No policy is registered under that name."""


class NotFound(UserError):
    """No such job, node or policy."""


class Conflict(UserError):
    """The thing is in a state, or exists in a form, that forbids the request."""


class Forbidden(UserError):
    """The token is valid but does not allow this."""


class ClusterError(WalrasError):
    """The world failed: a machine, a network, a provider."""


class ServerUnreachable(ClusterError):
    """No server answers at that address."""
