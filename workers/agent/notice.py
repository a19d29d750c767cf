"""The notice that this machine is taken away: a file with the seconds left, written by whoever learns of it."""

import asyncio
import hashlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

NOTICE_FILE = "notice"
LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class Notice:
    gone_in_s: float
    #: Tells one notice from the next.
    digest: str


def read_notice(state: Path) -> Notice | None:
    """What the file says, less the time since it was written. None without a file, or while it is being written."""
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
    # The file's time is wall time, so this is too: no other clock was there when it was written.
    age_s = max(0.0, time.time() - written_at)
    digest = hashlib.sha256(f"{text} {written_at}".encode()).hexdigest()
    return Notice(gone_in_s=max(0.0, stated_s - age_s), digest=digest)


async def next_notice(state: Path, seen: str) -> Notice:
    """Wait for a notice other than the one seen."""
    while True:
        notice = read_notice(state)
        if notice is not None and notice.digest != seen:
            return notice
        await asyncio.sleep(LOOK_EVERY_S)


def write_notice(state: Path, gone_in_s: float) -> None:
    """Say that this machine goes; whoever reads it sees the whole file or none."""
    draft = state / f".{NOTICE_FILE}.draft"
    draft.write_text(f"{gone_in_s:.1f}\n")
    draft.replace(state / NOTICE_FILE)
