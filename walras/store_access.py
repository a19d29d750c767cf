"""Credentials for one place in an object store, which the server hands to machines for a short time.

A machine asks with the number of an attempt that it runs, and may then read and write the place of that job alone; or
without one, for its proof of the store. What it may do is bounded by a document that goes along with the server's
request for the credentials (a session policy of AWS STS). Nobody writes them down: they are in no table, journal, log
or file, and reprs leave them out.
"""

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from walras.errors import ConfigError

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
