"""Notices that this machine will be taken away: a file with the seconds left, and EC2's metadata service.

Whoever learns of the end writes the file; the agent watches it. On a spot machine of EC2 the metadata service (version
2: a session token first) tells of a notice two minutes ahead, and hints that one may come. A notice is written to the
file, a hint is passed on. Where no such service answers, it is asked less and less often.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import inf
from pathlib import Path

import aiohttp

from walras.clocks import SYSTEM_CLOCKS, Clocks

log = logging.getLogger(__name__)

NOTICE_FILE = "notice"
NOTICE_POLL_S = 0.25
#: What states more is no number of seconds from now.
_LONGEST_NOTICE_S = 1e9


@dataclass(frozen=True)
class Notice:
    gone_in_s: float
    #: Differs between notices.
    digest: str


def read_notice(state: Path, clocks: Clocks = SYSTEM_CLOCKS) -> Notice | None:
    """Returns the notice, less the seconds since it was written; None without a file or for one that makes no sense."""
    path = state / NOTICE_FILE
    try:
        text = path.read_text(errors="replace").strip()
        written_at = path.stat().st_mtime
    except OSError:
        return None
    try:
        stated_s = float(text)
    except ValueError:
        return None
    if not -inf < stated_s <= _LONGEST_NOTICE_S:
        return None
    # The file's time is wall time, so this is too: its writer had no other clock.
    age_s = max(0.0, clocks.wall() - written_at)
    digest = hashlib.sha256(f"{text} {written_at}".encode()).hexdigest()
    return Notice(gone_in_s=max(0.0, stated_s - age_s), digest=digest)


async def next_notice(state: Path, seen: str, clocks: Clocks = SYSTEM_CLOCKS) -> Notice:
    """Waits for a notice other than the one seen."""
    while True:
        notice = read_notice(state, clocks)
        if notice is not None and notice.digest != seen:
            return notice
        await asyncio.sleep(NOTICE_POLL_S)


def write_notice(state: Path, gone_in_s: float) -> None:
    """Writes a notice that this machine will be gone, atomically."""
    draft = state / f".{NOTICE_FILE}.draft"
    draft.write_text(f"{gone_in_s:.1f}\n")
    draft.replace(state / NOTICE_FILE)


#: Seconds between requests, as EC2 advises.
METADATA_POLL_S = 5.0
LONGEST_PAUSE_S = 60.0
_CALL_S = 2.0
_SESSION_S = 6 * 3600
_LONGEST_ANSWER = 4096
#: The same notice, read again after the agent was restarted.
_SAME_WITHIN_S = 2.0
_OURS = {"terminate", "stop", "hibernate"}


class SpotNoticeWatcher:
    """Polls one metadata service."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = f"{url.rstrip('/')}/latest"
        self._token = ""

    async def watch(self, state: Path, on_hint: Callable[[str], None]) -> None:
        """Polls forever: writes notices into the agent's folder and passes hints on (the same hint repeatedly)."""
        pause_s = METADATA_POLL_S
        while True:
            try:
                await self.look(state, on_hint)
                pause_s = METADATA_POLL_S
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.debug("no metadata service: %s", error or type(error).__name__)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            await asyncio.sleep(pause_s)

    async def look(self, state: Path, on_hint: Callable[[str], None]) -> None:
        """Polls once. Raises ClientError, TimeoutError or OSError if the service does not answer."""
        if (action := await self._get_metadata("spot/instance-action")) is not None:
            gone_in_s = _gone_in_s(action, SYSTEM_CLOCKS.wall())
            known = read_notice(state)
            if gone_in_s is not None and (known is None or abs(known.gone_in_s - gone_in_s) > _SAME_WITHIN_S):
                log.warning("EC2 takes this machine away in %.0f s", gone_in_s)
                write_notice(state, gone_in_s)
        if (hint := await self._get_metadata("events/recommendations/rebalance")) is not None:
            on_hint(f"EC2 may take it away (rebalance recommendation of {_hinted_at(hint)})")

    async def _get_metadata(self, path: str) -> bytes | None:
        """Returns the metadata at a path; None if the service has none."""
        for _ in range(2):
            headers = {"X-aws-ec2-metadata-token": self._token or await self._new_token()}
            status, body = await self._call("GET", f"meta-data/{path}", headers)
            if status != 401:
                return body if status == 200 else None
            self._token = ""  # the token has expired
        return None

    async def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_SESSION_S)}
        status, body = await self._call("PUT", "api/token", headers)
        self._token = body.decode("ascii", errors="replace").strip()
        if status != 200 or not self._token.isprintable() or not self._token:
            self._token = ""
            raise aiohttp.ClientError(f"no session: {status}")
        return self._token

    async def _call(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=_CALL_S)
        async with self._session.request(
            method, f"{self._url}/{path}", headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            return answer.status, await answer.content.read(_LONGEST_ANSWER)


def _gone_in_s(action: bytes, unix_s: float) -> float | None:
    """Returns the seconds until the end that an instance action states; None if it states none."""
    try:
        fields = json.loads(action)
        if fields["action"] not in _OURS:
            return None
        return max(0.0, datetime.fromisoformat(fields["time"]).timestamp() - unix_s)
    except (ValueError, KeyError, TypeError):
        log.warning("not understood: %.200r", action)
        return None


def _hinted_at(hint: bytes) -> str:
    """Returns the time of a hint, which differs between hints."""
    try:
        return datetime.fromisoformat(json.loads(hint)["noticeTime"]).isoformat(timespec="seconds")
    except (ValueError, KeyError, TypeError):
        return "unknown time"
