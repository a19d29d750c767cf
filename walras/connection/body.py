"""A request to the REST API, what all its bodies share, and the body of a refusal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request. `path` is below the server's address; `repeatable` says that repeating it does nothing twice."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    #: Bytes to send as they are, instead of `body`.
    data: bytes | None = None
    #: Bytes that the answer may have, where it may be large: it is waited for accordingly.
    answer_bytes: int = 0


class Body(BaseModel):
    """Unknown fields are ignored: a release understands its neighbours."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def _repr_html_(self) -> str:
        from walras.output.html_page import answer_html

        return answer_html(self)


class RequestBody(BaseModel):
    """Unknown fields in a request are refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ProblemDetail(Body):
    """RFC 9457. `code` is stable; `field` and `fix` tell a person what to change."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str = ""
    field: str = ""
    fix: str = ""
    #: The cluster's id and its incarnation, for agents (with `other_incarnation`).
    cluster: dict[str, str] | None = None
