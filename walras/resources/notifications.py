"""Notifications and their receivers: the kinds, the signature of a webhook, and what users see of an address.

A webhook is signed as Standard Webhooks has it, so that a receiver may use any library for that. Headers: `webhook-id`
(the same for every try of one notification, so that a receiver can drop duplicates), `webhook-timestamp` (Unix
seconds), and `webhook-signature`: `v1,` and the base64 of HMAC-SHA256, under the key of the channel, over
`webhook-id.webhook-timestamp.body`.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from walras.connection.body import Body, RequestBody
from walras.resources.endpoint import API, Calls, Endpoint

#: The prefix of the base64 of a key.
KEY_PREFIX = "whsec_"
#: Seconds by which a signature may be older or newer than now.
SIGNED_WITHIN_S = 300.0
_LONGEST_URL = 2000


class NotificationKind(StrEnum):
    """The kinds of events of which users may be notified."""

    FAILED = "failed"
    FINISHED = "finished"
    AT_RISK = "at_risk"
    BUDGET = "budget"
    STUCK = "stuck"
    IDLE = "idle"
    MACHINE_LOST = "machine_lost"
    #: A test, which a user requested.
    TEST = "test"


#: The kinds that a user may choose.
CHOICES = tuple(kind for kind in NotificationKind if kind is not NotificationKind.TEST)


class NewChannel(RequestBody):
    """Asks to be told of events at an address (`POST /notify`)."""

    #: `https://...`, or the address of a chat or mail service as Apprise writes it. It is kept sealed.
    url: Annotated[str, Field(min_length=1, max_length=_LONGEST_URL)]
    kinds: Annotated[list[NotificationKind], Field(min_length=1, max_length=len(NotificationKind))]


class ChannelView(Body):
    """Where a user is told of events, and what came of that so far (`GET /notify`)."""

    id: int
    #: The address without its secret parts.
    shown: str
    kinds: list[str]
    added_at: str
    #: The number of notifications that are still to be sent.
    waiting: int = 0
    delivered: int = 0
    #: The number given up after all tries, or because the receiver refused them.
    failed: int = 0
    #: The number dropped because newer ones needed their place.
    dropped: int = 0
    delivered_at: str | None = None
    #: Why the last try failed, in words; empty where it did not.
    problem: str = ""


class ChannelCreated(ChannelView):
    """The answer to `POST /notify`."""

    #: The key that signs a webhook's notifications; it is shown only once. Empty: the service has no signatures.
    key: str = ""


def sign_notification(key: str, notification_id: str, unix_s: int, body: bytes) -> str:
    """Returns the value of `webhook-signature`. Raises ValueError for a key that is none."""
    secret = base64.b64decode(key.removeprefix(KEY_PREFIX), validate=True)
    signed = f"{notification_id}.{unix_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def is_signed(key: str, headers: Mapping[str, str], body: bytes, unix_s: float) -> bool:
    """Returns whether a request of these headers (names in lower case) and body was signed with the key lately: for
    receivers in Python that have no library for it. `unix_s`: now.
    """
    at = headers.get("webhook-timestamp", "")
    if not (at.isascii() and at.isdigit()) or len(at) > 12 or abs(unix_s - int(at)) > SIGNED_WITHIN_S:
        return False
    expected = sign_notification(key, headers.get("webhook-id", ""), int(at), body)
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(each.encode(), expected.encode()) for each in given)


class NotificationCalls(Calls):
    """The client's calls about notifications."""

    @Endpoint("GET", f"{API}/notify", who="user")
    async def channels(self) -> list[ChannelView]:
        """Where you are told of events. Your notifications."""

    @Endpoint("POST", f"{API}/notify", who="user", body=NewChannel, status=201)
    async def add_channel(self, url: str, kinds: Sequence[str]) -> ChannelCreated:
        """Be told of events at an address. The answer shows the key of its signatures, once."""

    @Endpoint("DELETE", API + "/notify/{channel_id:[0-9]+}", who="user")
    async def remove_channel(self, channel_id: int) -> ChannelView:
        """Remove an address. It is told of nothing any more."""

    @Endpoint("POST", API + "/notify/{channel_id:[0-9]+}/test", who="user", waits=True)
    async def test_channel(self, channel_id: int) -> ChannelView:
        """Send a test to an address. The answer says what came of it."""
