"""The tree of errors, divided by whose fault they are.

    WalrasError
    ├─ UserError              fix your input: CLI exit 2, HTTP 4xx, no traceback
    │  ├─ ConfigError         a file a person wrote
    │  │  └─ JobSpecError     ... a job spec
    │  ├─ UnknownPolicyError
    │  ├─ NotFound            no such job, node, policy
    │  ├─ Conflict            the thing exists and differs, or its state forbids this
    │  │  └─ OtherCluster, OtherIncarnation, OtherProtocol, NameHeld    ... said to agents
    │  └─ Forbidden           the token does not allow this
    └─ ClusterError           the world failed
       └─ ServerUnreachable   CLI exit 75

Mistakes of our own are assertions and end the process; a solve that went badly is data (`Certificate.status`).
"""

from collections.abc import Iterator
from contextlib import contextmanager


class WalrasError(Exception):
    """Base of every error of Walras that a caller may want to catch."""


class UserError(WalrasError):
    """The person's input is at fault. `field` names the place, `fix` says how to mend it."""

    def __init__(self, message: str, *, field: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.fix = fix


class ConfigError(UserError):
    """A configuration file does not parse, or its fields contradict each other."""


class JobSpecError(ConfigError):
    """A job spec does not parse or cannot be run by this fleet."""


class UnknownPolicyError(ConfigError):
    """No policy is registered under that name."""


class NotFound(UserError):
    """No such job, node or policy."""


class Conflict(UserError):
    """The object exists with other properties, or its state forbids the request."""


class OtherCluster(Conflict):
    """The server refuses a machine that belongs to another cluster; neither may act on the other's messages."""


class OtherIncarnation(Conflict):
    """The caller knows another life of this cluster's database, and has to say anew what it has.

    `identity` names this life, as `walras.wire.ClusterIdentity` does.
    """

    def __init__(self, message: str, *, identity: dict[str, str], field: str = "", fix: str = "") -> None:
        super().__init__(message, field=field, fix=fix)
        self.identity = identity


class OtherProtocol(Conflict):
    """The releases of the two sides are too far apart."""


class NameHeld(Conflict):
    """Another agent speaks for this machine, or may have ranks alive there: to be tried again later."""


class Forbidden(UserError):
    """The token is valid but does not permit the request."""


class ClusterError(WalrasError):
    """A machine, a network or a provider failed."""


class ServerUnreachable(ClusterError):
    """No server answers at the address."""


@contextmanager
def system_refusals(path: object, fix: str, field: str = "") -> Iterator[None]:
    """Raises ConfigError that names the path where the system refuses to read or write inside."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", field=field, fix=fix) from None
