"""Where checkpoints are kept, so that a job can go on anywhere: the setting, and what a store of checkpoints can do.

    server              on the server's disk, through its own port; works everywhere with nothing to set up
    s3://bucket/prefix  in an object store (also gs:// and az://), which machines reach with credentials of their own or
                        with what the server hands out for one job's place
    file:///shared/...  in a folder that all machines share; ranks write to it, and nothing is sent

With the first two the ranks of a job write to a folder of their own machine, and its agent sends what they commit. A
checkpoint counts once it is whole in the store.

The server hands machines credentials for one place in an object store, for a short time. A machine asks with the number
of an attempt that it runs, and may then read and write the place of that job alone; or without one, for its proof of
the store. What it may do is bounded by a document that goes along with the server's request for the credentials (a
session policy of AWS STS). Nobody writes them down: they are in no table, journal, log or file, and reprs leave them
out.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from walras.errors import ConfigError
from walras.storage.content import ContentTree

#: The setting that keeps checkpoints with the server.
SERVER_STORE = "server"
_FILE = "file"
#: Schemes of object stores (`walras.storage.object_store`).
_OBJECT_SCHEMES = frozenset({"s3", "gs", "gcs", "az", "abfs", "abfss"})
#: Characters of a setting.
_SETTING_MOST = 1000


class CheckpointStore(Protocol):
    """A store that holds checkpoints as trees of content. A transfer that was cut begins again and sends what is
    missing.
    """

    #: Bytes that went to the store and came from it.
    sent_bytes: int
    fetched_bytes: int

    async def send(self, folder: Path, tree: ContentTree) -> str:
        """Make the files of a folder durable in the store; returns the tree's name.

        Raises DamagedContent where a file changes meanwhile, ServerUnreachable or ClusterError where trying again may
        help, and another UserError where the store refuses.
        """
        ...

    async def fetch(self, name: str, folder: Path, check: Callable[[ContentTree], None] = ...) -> ContentTree:
        """Make `folder` with the files of a tree, whole or not at all. `check` may raise before its chunks are fetched.

        Raises NotFound or DamagedContent where the store does not have them, FileExistsError, and as `send`.
        """
        ...


def check_store(setting: str) -> str:
    """Returns the setting as it is kept. Raises ConfigError for one that names no store."""
    text, fix = setting.strip().rstrip("/"), "write server, s3://bucket/prefix, or file:///shared/folder"
    if text == SERVER_STORE:
        return text
    parts = urlsplit(text)
    if len(text) <= _SETTING_MOST and is_object_store(text):
        if not parts.netloc or parts.password or parts.query or parts.fragment or ".." in parts.path.split("/"):
            fix = "write s3://bucket/prefix; credentials are in the environment, or handed out (checkpoint_access)"
            raise ConfigError(f"{setting[:100]!r} is no place in an object store", field="checkpoints", fix=fix)
        return text
    if len(text) > _SETTING_MOST or parts.scheme != _FILE or parts.query or parts.fragment:
        raise ConfigError(f"{setting[:100]!r} names no store of checkpoints", field="checkpoints", fix=fix)
    if parts.netloc or not PurePosixPath(parts.path).is_absolute():
        raise ConfigError(f"{setting[:100]!r} is no absolute path", field="checkpoints", fix="write file:///shared")
    return text


def is_object_store(setting: str) -> bool:
    """Returns whether checkpoints are sent to an object store under this setting."""
    return urlsplit(setting).scheme in _OBJECT_SCHEMES


def shared_folder(setting: str) -> Path | None:
    """Returns the folder that all machines share under this setting; None where checkpoints are sent to a store."""
    parts = urlsplit(setting)
    return Path(parts.path) if parts.scheme == _FILE else None


#: Schemes of addresses for which such credentials exist.
_SCHEME = "s3"
_PLACE_MOST, _KEY_MOST, _TOKEN_MOST, _PROBLEM_MOST = 4096, 256, 16_384, 300
#: Characters that a policy reads as wildcards or variables. A place with one of them would give access to others, too.
_WILD = frozenset("*?$")


class StoreAccessRequest(BaseModel):
    """`POST /agent/v1/store-access`, authorised by the machine's credential."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    #: The place to be opened, as a URL.
    place: str = Field(max_length=_PLACE_MOST)
    #: The attempt that reads or writes there; 0: none, for the proof that the machine reaches the store.
    job_id: int = Field(default=0, ge=0, le=2**53)
    attempt: int = Field(default=0, ge=0, le=2**53)


class StoreAccess(BaseModel):
    """Credentials for the place and how long they last; or why there are none now. Another try may succeed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str = Field(default="", max_length=_KEY_MOST, repr=False)
    secret: str = Field(default="", max_length=_KEY_MOST, repr=False)
    token: str = Field(default="", max_length=_TOKEN_MOST, repr=False)
    #: Seconds from the moment the request was sent.
    lasts_s: float = Field(default=0.0, ge=0, le=1e6)
    problem: str = Field(default="", max_length=_PROBLEM_MOST)


def is_handed_out(place: str) -> bool:
    """Returns whether there are credentials for a single place in stores of this kind."""
    return urlsplit(place).scheme == _SCHEME


def job_policy(place: str, partition: str = "aws") -> dict[str, Any]:
    """Returns the document that opens one job's place: its objects to read and write, and their list. Nothing can be
    deleted.

    `partition`: the second word of the store's ARNs. Raises ConfigError for a place that no document can name alone.
    """
    bucket, inner = _parts(place, partition)
    listed = {"StringLike": {"s3:prefix": f"{inner}/*"}}
    return _document(
        _allow(["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"], f"{bucket}/{inner}/*"),
        {**_allow(["s3:ListBucket"], bucket), "Condition": listed},
    )


def proof_policy(place: str, nonce: str, node_id: str, partition: str = "aws") -> dict[str, Any]:
    """Returns the document that lets a machine read the server's secret and write its own answer. Raises as
    `job_policy`.
    """
    bucket, inner = _parts(f"{place}/{nonce}-{node_id}", partition)
    secret = inner.removesuffix(f"-{node_id}")
    return _document(
        _allow(["s3:GetObject"], f"{bucket}/{secret}"),
        _allow(["s3:PutObject"], f"{bucket}/{inner}"),
    )


def _parts(place: str, partition: str) -> tuple[str, str]:
    """Returns the bucket as a policy names it, and the path in it."""
    parts = urlsplit(place)
    inner = parts.path.strip("/")
    if parts.scheme != _SCHEME or not parts.netloc or not inner or _WILD & set(place):
        raise ConfigError(f"no credentials can be limited to {place[:100]!r}", field="checkpoint_access")
    return f"arn:{partition}:s3:::{parts.netloc}", inner


def _document(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


def _allow(actions: list[str], resource: str) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resource}
