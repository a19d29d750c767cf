"""The tables about people, one dataclass for each: accounts, tokens, notifications, and the log of changes.

Instants are seconds since the cluster's epoch; those of people and tokens, which outlive clocks, are Unix seconds.
"""

from dataclasses import dataclass

from walras.job_request import JobId


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One change that somebody made through the API: who, what, when, before and after. Never changed."""

    at: float
    user: str
    role: str
    address: str
    #: Method and path of the endpoint.
    action: str
    #: What was changed: "job 12", "node n1", "policy".
    subject: str
    #: The project whose operators may see it; empty: administrators alone.
    project: str
    #: JSON of bounded length; "null" where there was nothing.
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class PeopleRow:
    """A user, a project or a role, as last set: one row for each (kind, name)."""

    #: user, project or role.
    kind: str
    name: str
    #: JSON of its settings (`walras.people`).
    body: str
    #: Unix seconds.
    changed_at: float
    changed_by: str
    removed: bool = False


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """Where a user is notified of events, and the outcome so far."""

    channel_id: int
    user: str
    #: The address without its secret parts, as it may be shown.
    shown: str
    #: The address and the key that signs its notifications, sealed under the server's key.
    sealed: bytes
    #: JSON list of the kinds of events.
    kinds: str
    added_at: float
    delivered: int = 0
    #: Notifications that were given up, after all tries or because the receiver refused them.
    failed: int = 0
    #: Notifications that were dropped for newer ones before they could be sent.
    dropped: int = 0
    delivered_at: float | None = None
    #: Why the last try failed, in words; empty: it did not.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NotificationRow:
    """A notification that a channel has not received yet."""

    seq: int
    #: The id by which receivers recognise a repeated notification.
    notification_id: str
    channel_id: int
    #: JSON, as webhooks send it.
    body: str
    tries: int
    #: The instant of the next try.
    due_at: float


@dataclass(frozen=True, slots=True)
class ToldRow:
    """The owner of an active job was notified of this, and is not notified of it again."""

    job_id: JobId
    kind: str


@dataclass(slots=True)
class TokenRow:
    """A user's token: only its hash is kept."""

    sha256: str
    prefix: str
    user: str
    role: str
    #: JSON list; ["*"] is every project.
    projects: str
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
