"""Parses the messages of ranks to their supervisor as untrusted input.

A rank is any program of any user. A line that is no JSON object ends its connection; a field that is no finite number
within its bounds is left out; a message without its required field is ignored. Each such decision adds a note to the
job's own log, because the job's owner can correct the script. Every accepted message can be written as strict JSON and
read back. Standard library only.
"""

import json
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

SocketMessage = dict[str, Any]

#: Limit of all counts: what SQLite and every reader of our JSON can represent.
COUNT_MOST = 2**63 - 1
#: Limits of a speed, steps per second, and of a length, seconds: beyond them arithmetic itself overflows.
SPEED_LEAST, SPEED_MOST = 1e-12, 1e12
SECONDS_MOST = 1e9
#: Largest number of named values and facts in one message, and of characters in a name.
VALUES_MOST = 32
NAME_MOST = 200
#: Largest number of characters of a path, and of a note.
PATH_MOST = 4096
NOTE_MOST = 2000
#: Largest number of different notes in a job's log.
NOTES_TOLD_MOST = 20
_DIGEST_CHARACTERS = 64


def parse_object(line: bytes) -> SocketMessage | None:
    """Returns the JSON object of a line; None for anything else, however deep or long it is."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError, MemoryError):  # a number of too many digits and bad UTF-8 are ValueErrors
        return None
    return parsed if isinstance(parsed, dict) else None


@dataclass
class CheckedMessage:
    """The accepted part of a message, or None; the notes say what was left out, and why."""

    message: SocketMessage | None = None
    notes: list[str] = field(default_factory=list)


def check_rank_message(message: SocketMessage) -> CheckedMessage:
    """Checks a message of a rank. Unknown types are accepted silently, because a newer client may send them."""
    match message.get("type"):
        case "hello" | "saving" | "saved" | "finished" as kind:
            return CheckedMessage({"type": kind})
        case "progress":
            return _checked_progress(message)
        case "commit":
            return _checked_commit(message)
        case "note":
            text = _text(message.get("text"), NOTE_MOST, cut=True)
            return CheckedMessage(None if text is None else {"type": "note", "text": text})
    return CheckedMessage()


def _checked_progress(message: SocketMessage) -> CheckedMessage:
    checked = CheckedMessage()
    steps = finite_number(message.get("steps"))
    if steps is None or not 0 <= steps <= COUNT_MOST:
        checked.notes.append(f"progress ignored: steps {_why_not(message.get('steps'))}")
        return checked
    kept: SocketMessage = {"type": "progress", "steps": steps}
    for name in ("steps_per_s", "pace"):
        given = message.get(name)
        number = finite_number(given)
        if number is not None and SPEED_LEAST <= number <= SPEED_MOST:
            kept[name] = number
        elif given is not None:
            checked.notes.append(f"{name} ignored: it {_why_not(given)}")
    samples = message.get("samples", 0)
    if type(samples) is int and 0 <= samples <= COUNT_MOST:
        kept["samples"] = samples
    else:
        checked.notes.append("samples ignored: it is not a whole number from 0 to 2^63 - 1")
    for name in ("values", "first_values", "facts"):
        kept[name] = _named_numbers(name, message.get(name), checked.notes)
    checked.message = kept
    return checked


def _named_numbers(what: str, given: object, notes: list[str]) -> dict[str, float]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        notes.append(f"{what} ignored: they are not named numbers")
        return {}
    kept: dict[str, float] = {}
    for name, value in given.items():
        number = finite_number(value)
        known_name = _text(name, NAME_MOST)
        if len(kept) == VALUES_MOST:
            notes.append(f"{what} cut off after {VALUES_MOST}")
            break
        if known_name is None:
            notes.append(f"a name in {what} ignored: it is no text of at most {NAME_MOST} characters")
        elif number is None:
            notes.append(f"{what}[{known_name!r}] ignored: it {_why_not(value)}")
        else:
            kept[known_name] = number
    return kept


def _checked_commit(message: SocketMessage) -> CheckedMessage:
    step, took_s = finite_number(message.get("step")), finite_number(message.get("took_s"))
    path, digest = _text(message.get("path"), PATH_MOST), _text(message.get("digest"), _DIGEST_CHARACTERS)
    why = ""
    if step is None or not 0 <= step <= COUNT_MOST:
        why = f"its step {_why_not(message.get('step'))}"
    elif path is None:
        why = f"its path is no text of at most {PATH_MOST} characters"
    elif digest is None or len(digest) != _DIGEST_CHARACTERS or not set(digest) <= set("0123456789abcdef"):
        why = "its digest is no SHA-256"
    if why:
        return CheckedMessage(None, [f"checkpoint does not count: {why}"])
    took_s = 0.0 if took_s is None else min(max(took_s, 0.0), SECONDS_MOST)
    return CheckedMessage({"type": "commit", "step": step, "path": path, "digest": digest, "took_s": took_s})


def finite_number(given: object) -> float | None:
    """Returns a finite number; None for text, booleans, NaN, infinities and numbers that no float can hold."""
    if type(given) not in (int, float):
        return None
    try:
        number = float(given)  # type: ignore[arg-type]
    except OverflowError:
        return None
    return number if isfinite(number) else None


def _why_not(given: object) -> str:
    number = finite_number(given)
    if number is None:
        return "is missing" if given is None else "is not a finite number"
    return "is out of bounds"


def _text(given: object, most: int, *, cut: bool = False) -> str | None:
    """Returns the text; None if it is no text, too long (unless it may be cut), or not encodable in UTF-8."""
    if not isinstance(given, str) or (len(given) > most and not cut):
        return None
    try:
        given[:most].encode()
    except UnicodeEncodeError:
        return None
    return given[:most]


class NotesOfJob:
    """Selects the notes for a job's log: each text once, and a limited number of them."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def lines(self, notes: list[str]) -> bytes:
        """Returns the bytes to append to the log; empty for notes that it has already."""
        told = b""
        for note in notes:
            if note in self._told or len(self._told) > NOTES_TOLD_MOST:
                continue
            self._told.add(note)
            text = note if len(self._told) <= NOTES_TOLD_MOST else "further notes are left out"
            told += f"[walras] {text}\n".encode(errors="replace")
        return told
