"""Sends notifications in a process of its own; this module runs there and does not import the server.

Whatever a receiver does slows only that process: a send ends after `SEND_S`, no redirect is followed, no answer is
read, and no proxy of the environment is used. A connection to an address that is not public is refused when it is made,
hence after the name is resolved, and in every library: an audit hook sees each connection of the process. No address of
a receiver leaves the process: failures are described in fixed words.
"""

import asyncio
import ipaddress
import json
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import aiohttp

import walras
from walras.clocks import SYSTEM_CLOCKS
from walras.resources.notifications import sign_notification

#: A send that takes longer, seconds, is given up.
SEND_S = 10.0
#: The process runs at this nice value, and its memory is limited.
_NICE, _MEMORY_BYTES = 10, 4 << 30
#: HTTP statuses below 500 after which a notification is sent again; after any other it would be refused again.
_AGAIN = frozenset({408, 409, 425, 429})
_REFUSED = "the address is not public"
#: Addresses of these end in the IPv4 address that they reach: compatible, mapped, and behind NAT64.
_CARRIERS = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96")))
#: Public IPv6 addresses lie in this network alone.
_UNICAST = ipaddress.IPv6Network("2000::/3")
#: Clouds answer their own machines here, at addresses that count as public: Oracle's, and Azure's.
_OF_CLOUDS = tuple(map(ipaddress.IPv4Network, ("192.0.0.0/24", "168.63.129.16/32")))
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class NotPublic(OSError):
    """A connection that the cluster does not allow."""


@dataclass(frozen=True, slots=True)
class Sending:
    """One notification for one receiver."""

    seq: int
    notification_id: str
    url: str = field(repr=False)
    #: The signing key of a webhook; empty for a chat or mail service.
    key: str = field(repr=False)
    body: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SendingBatch:
    sendings: tuple[Sending, ...]
    #: Networks that are not public and to which sending is allowed.
    networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SendingOutcome:
    seq: int
    #: Why it failed, in words; empty: the receiver has it.
    problem: str = ""
    #: It would fail again, so it is not repeated.
    is_final: bool = False
    #: A thread of the process may still be sending it.
    is_hung: bool = False


def is_allowed(host: str, networks: Iterable[str] = ()) -> bool:
    """Returns whether an address (text, IPv4 or IPv6) is public, or in one of the networks."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if any(address.version == network.version and address in network for network in map(_network, networks)):
        return True
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast and not any(address in each for each in _OF_CLOUDS)
    within = address.sixtofour
    if any(address in each for each in _CARRIERS):
        within = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if within is not None:
        return is_allowed(str(within), networks)
    return address.is_global and address in _UNICAST


def _network(written: str) -> _Network:
    return ipaddress.ip_network(written)


_guarded = False


def guard_process(networks: Sequence[str]) -> None:
    """Restrict this process, for good, to connections to allowed addresses, to little memory, and to a low priority."""
    global _guarded
    if _guarded:
        return
    _guarded = True

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            address = args[1]
            if not isinstance(address, tuple) or not is_allowed(str(address[0]), networks):
                raise NotPublic(_REFUSED)

    sys.addaudithook(hook)
    logging.disable(logging.CRITICAL)
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        del os.environ[name]
    os.nice(_NICE)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    if hard == resource.RLIM_INFINITY or hard > _MEMORY_BYTES:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))


def send_all(batch: SendingBatch) -> list[SendingOutcome]:
    """Send all notifications at once; returns within a second or two of `SEND_S`."""
    guard_process(batch.networks)
    # `asyncio.run` would wait for threads that hang in a service or over a name.
    loop = asyncio.new_event_loop()
    threads, lookups = ThreadPoolExecutor(max(1, len(batch.sendings))), ThreadPoolExecutor(max(1, len(batch.sendings)))
    loop.set_default_executor(lookups)
    try:
        return loop.run_until_complete(_send_all(batch.sendings, threads))
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        loop.close()


async def _send_all(sendings: Sequence[Sending], threads: ThreadPoolExecutor) -> list[SendingOutcome]:
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    timeout = aiohttp.ClientTimeout(total=SEND_S)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        work = (_post(session, each) if each.key else _tell_service(threads, each) for each in sendings)
        return list(await asyncio.gather(*work))


# ------------------------------------------------------------------------------------------ webhooks


async def _post(session: aiohttp.ClientSession, sending: Sending) -> SendingOutcome:
    body, unix_s = sending.body.encode(), int(SYSTEM_CLOCKS.wall())
    headers = {
        "content-type": "application/json",
        "user-agent": f"walras/{walras.__version__}",
        "webhook-id": sending.notification_id,
        "webhook-timestamp": str(unix_s),
        "webhook-signature": sign_notification(sending.key, sending.notification_id, unix_s, body),
    }
    try:
        async with session.post(sending.url, data=body, headers=headers, allow_redirects=False) as answer:
            status = answer.status
    except TimeoutError:
        return SendingOutcome(sending.seq, f"no answer within {SEND_S:g} s")
    except Exception as error:  # outermost handler: a receiver may answer anything
        return _failed_connection(sending.seq, error)
    if 200 <= status < 300:
        return SendingOutcome(sending.seq)
    told = f"it redirects (HTTP {status}), which is not followed" if 300 <= status < 400 else f"HTTP {status}"
    return SendingOutcome(sending.seq, told, is_final=status < 500 and status not in _AGAIN)


def _failed_connection(seq: int, error: Exception) -> SendingOutcome:
    """Returns the failure without the words of libraries, which name addresses."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, NotPublic) or _REFUSED in str(cause):  # a name with several addresses has several causes
        return SendingOutcome(seq, _REFUSED, is_final=True)
    if isinstance(error, aiohttp.ClientConnectorDNSError) or isinstance(cause, socket.gaierror):
        return SendingOutcome(seq, "its name is not known")
    if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError) or isinstance(cause, ssl.SSLError):
        return SendingOutcome(seq, "no TLS connection: check its certificate")
    if isinstance(error, aiohttp.InvalidURL | ValueError):
        return SendingOutcome(seq, "the address is none", is_final=True)
    if isinstance(cause, OSError) and cause.errno:
        return SendingOutcome(seq, f"no connection: {os.strerror(cause.errno)}")
    return SendingOutcome(seq, "the connection broke")


# ------------------------------------------------------------------------------------------ chat and mail services


async def _tell_service(threads: ThreadPoolExecutor, sending: Sending) -> SendingOutcome:
    work = asyncio.get_running_loop().run_in_executor(threads, _notify_service, sending)
    try:
        is_sent = await asyncio.wait_for(work, SEND_S)
    except TimeoutError:
        return SendingOutcome(sending.seq, f"no answer within {SEND_S:g} s", is_hung=True)
    except ModuleNotFoundError:
        return SendingOutcome(sending.seq, "the server has no apprise: pip install 'walras[notify]'")
    except Exception as error:  # outermost handler: plugins of other people's services
        return _failed_connection(sending.seq, error)
    return SendingOutcome(sending.seq, "" if is_sent else "the service did not take it")


def _notify_service(sending: Sending) -> bool:
    import apprise

    channel = apprise.Apprise(asset=_service_rules())
    told = json.loads(sending.body)
    if not channel.add(sending.url):
        return False
    plain = apprise.NotifyFormat.TEXT
    return bool(channel.notify(title=_unmarked(told["title"]), body=_unmarked(told["text"]), body_format=plain))


def _service_rules() -> Any:
    import apprise

    return apprise.AppriseAsset(
        app_id="Walras",
        app_desc="Walras",
        async_mode=False,
        secure_logging=True,
        storage_mode=apprise.PersistentStoreMode.MEMORY,
        http_redirects=False,
        allow_templates=False,
    )


def _unmarked(text: str) -> str:
    """Returns the text without marks by which a job's name could address a whole channel, or be a link."""
    return text.translate({ord("@"): "(at)", ord("<"): "‹", ord(">"): "›", ord("["): "(", ord("]"): ")", ord("`"): "'"})


def is_known_service(url: str) -> bool:
    """Returns whether Apprise accepts an address; for a process of its own too. Raises ModuleNotFoundError."""
    import apprise

    guard_process(())
    return bool(apprise.Apprise(asset=_service_rules()).add(url))
