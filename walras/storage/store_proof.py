"""Whether a machine reads and writes the store of checkpoints: it answers a secret that the server has left there.

PLACE/NONCE holds a secret that the server draws at each start. A machine reads it and writes the SHA-256 of the secret
and its own name to PLACE/NONCE-NAME, which the server reads back. So a folder of the same name that is not shared, a
mount that is missing, and credentials that may read alone are all told from a store that works.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from walras.errors import NotFound, WalrasError
from walras.storage.checkpoint_store import StoreAccess, is_object_store

#: The most characters of a problem's text.
PROBLEM_MOST = 200
_NONCE = r"^[0-9a-f]{32}$"


class StoreChallenge(BaseModel):
    """What the answers to a machine's heartbeats ask of it, until it has proved access."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    #: A folder in the store, as a URL.
    place: str = Field(max_length=4096)
    nonce: str = Field(pattern=_NONCE)


class StoreProof(BaseModel):
    """The machine's statement: that its answer lies in the store, or why it does not."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    nonce: str = Field(pattern=_NONCE)
    #: Empty: the answer lies there.
    problem: str = Field(default="", max_length=PROBLEM_MOST)


class _Notes(Protocol):
    def note(self, name: str) -> bytes: ...

    def put_note(self, name: str, content: bytes) -> None: ...

    def clear(self) -> None: ...


class _FolderNotes:
    """Notes in a folder of a file system."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def put_note(self, name: str, content: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / name).write_bytes(content)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _notes_at(place: str, access: StoreAccess | None = None) -> _Notes:
    if not is_object_store(place):
        return _FolderNotes(Path(urlsplit(place).path))
    from walras.storage.object_store import ObjectFolder

    return ObjectFolder(place, access)


def _answer(secret: bytes, node_id: str) -> bytes:
    return hashlib.sha256(secret + b"\0" + node_id.encode()).hexdigest().encode()


def place_challenge(challenge: StoreChallenge, secret: bytes) -> None:
    """Leave the secret in the store, in the place of earlier ones. Raises OSError, WalrasError."""
    notes = _notes_at(challenge.place)
    notes.clear()
    notes.put_note(challenge.nonce, secret)


def answer_challenge(challenge: StoreChallenge, node_id: str, access: StoreAccess | None = None) -> StoreProof:
    """Read the secret and leave this machine's answer; a failure is told in the proof.

    `access`: what opens both; None: what the machine's own environment has.
    """
    problem = ""
    try:
        notes = _notes_at(challenge.place, access)
        secret = notes.note(challenge.nonce)
        notes.put_note(f"{challenge.nonce}-{node_id}", _answer(secret, node_id))
    except (FileNotFoundError, NotFound):
        problem = f"{challenge.place} is not here what it is for the server: mount the same disk, or use the same store"
    except (OSError, WalrasError) as error:
        problem = f"cannot read and write {challenge.place}: {error}"
    return StoreProof(nonce=challenge.nonce, problem=problem[:PROBLEM_MOST])


def check_answer(challenge: StoreChallenge, secret: bytes, node_id: str) -> str:
    """Returns why the machine's answer is not what it has to be; empty if it is. Raises OSError, WalrasError where the
    store does not tell.
    """
    try:
        found = _notes_at(challenge.place).note(f"{challenge.nonce}-{node_id}")
    except (FileNotFoundError, NotFound):
        found = b""
    right = _answer(secret, node_id)
    return "" if found == right else f"what it wrote to {challenge.place} does not arrive there"[:PROBLEM_MOST]
