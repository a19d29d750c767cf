"""Addresses of notifications: what kind an address is, what of it may be shown, and what is refused at once.

`https://` and `http://` are webhooks in Walras's own format. Other addresses are chat and mail services as Apprise
writes them, of which those are accepted that do nothing on the server's machine. Their addresses are secrets as a whole
(a token often stands in the place of a host), so only the kind of service is ever shown; of a webhook its host.
"""

import importlib.util
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

from scheduler.live.services.notification_sending import is_allowed
from walras.errors import UserError

WEBHOOKS = ("https", "http")
#: Services of Apprise that reach another machine over the network and need no file of this one.
SERVICES = frozenset(
    {
        "discord", "gchat", "gotify", "gotifys", "mailto", "mailtos", "matrix", "matrixs", "mmost", "mmosts", "msteams",
        "ntfy", "ntfys", "opsgenie", "pagerduty", "pover", "rocket", "rockets", "slack", "tgram", "webex", "workflows",
        "wxteams", "zulip",
    }
)  # fmt: skip
#: Parameters that name files or other addresses, or that change how requests are made.
_REFUSED_PARAMETERS = re.compile(r"template|pgp|key|attach|redirect|cto|rto|retry|wait|avatar_url|image_url|thumbnail")
_FIELD = "url"


@dataclass(frozen=True, slots=True)
class NotificationAddress:
    """A validated address."""

    url: str = field(repr=False)
    #: The part of it that others may see.
    shown: str
    is_webhook: bool


def read_address(url: str, networks: Sequence[str] = ()) -> NotificationAddress:
    """Returns a validated address, as far as that needs no network. Raises UserError, which does not repeat it."""
    url = url.strip()
    if not url.isascii() or not url.isprintable() or " " in url:
        raise UserError("the address has characters that none may have", field=_FIELD, fix="percent-encode them")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise UserError("the address is none", field=_FIELD, fix="write https://HOST/PATH") from None
    scheme = parts.scheme.lower()
    if scheme in WEBHOOKS:
        return _webhook(url, scheme, host, parts.username is not None, networks)
    if scheme not in SERVICES:
        known = ", ".join(sorted(SERVICES))
        raise UserError("this kind of address is not sent to", field=_FIELD, fix=f"https://..., or one of {known}")
    _check_parameters(parts.query)
    if importlib.util.find_spec("apprise") is None:
        fix = "have the server's owner install it: pip install 'walras[notify]'; webhooks need nothing"
        raise UserError("the server has no apprise, which chat and mail need", field=_FIELD, fix=fix)
    return NotificationAddress(url, f"{scheme}://…", is_webhook=False)


def _webhook(url: str, scheme: str, host: str, has_user: bool, networks: Sequence[str]) -> NotificationAddress:
    if not host:
        raise UserError("the address names no host", field=_FIELD, fix="write https://HOST/PATH")
    if has_user:
        fix = "leave it out: notifications are signed, and the path may hold a token"
        raise UserError("the address holds a user or a password", field=_FIELD, fix=fix)
    named = "127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host
    if _is_number(named) and not is_allowed(named, networks):
        fix = "have the server's owner allow its network: `notify: {private_networks: [...]}` in the cluster file"
        raise UserError(f"{host} is not a public address", field=_FIELD, fix=fix)
    return NotificationAddress(url, f"{scheme}://{host}/…", is_webhook=True)


def _is_number(host: str) -> bool:
    """Returns whether the host is a numeric address, in whichever notation, so that no name is resolved."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # Some resolvers read `127.1`, `2130706433` and `0x7f.1` as addresses; `is_allowed` refuses all of these.
        return re.fullmatch(r"(0x[0-9a-f]*|\d+)(\.(0x[0-9a-f]*|\d+))*", host) is not None
    return True


def _check_parameters(query: str) -> None:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if _REFUSED_PARAMETERS.search(name.lower()) or "/" in value or "\\" in value:
            told = f"the parameter {name[:40]!r} is not taken: it may name files, or another address"
            raise UserError(told, field=_FIELD, fix="leave it out")
