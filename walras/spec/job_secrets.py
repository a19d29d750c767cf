"""`secrets:` of a job: variables whose values the submitter has, the server keeps sealed, and only a running job sees.

    secrets:
      HF_TOKEN: {env: HF_TOKEN}        # of the submitter's own environment
      DB_PASSWORD: {file: db.password} # of a file of the submitter's; a final line break is left out

The client puts the values in when it submits (`with_secret_values`); the server takes them out before anything else
looks at the job and stores the names alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from walras.errors import JobSpecError
from walras.spec.field_types import EnvName, checked_text
from walras.spec.file_model import FileModel

_MOST_BYTES = 16 * 1024
_MAX_SECRETS = 64


def _secret_text(value: object) -> object:
    """Returns the text; raises ValueError with words that do not repeat it."""
    if not isinstance(value, str):
        raise ValueError("is no text; quote it")
    checked_text(value)
    if len(value.encode()) > _MOST_BYTES:
        raise ValueError(f"is longer than {_MOST_BYTES:,} bytes; let the job read a file")
    return value


def _checked_source(value: object) -> object:
    if not isinstance(value, Mapping | SecretSource):
        raise ValueError("says not where the value comes from; write {env: NAME} or {file: PATH}, not the value itself")
    return value


class SecretSource(FileModel):
    """Where the value of one secret comes from. On its way to the server: the value; kept by the server: nothing."""

    #: The name of a variable of the submitter's environment.
    env: EnvName | None = None
    #: The path of a file of the submitter.
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    #: The value, filled in by the client.
    value: Annotated[str, BeforeValidator(_secret_text)] | None = Field(default=None, repr=False)

    @model_validator(mode="after")
    def _is_one(self) -> "SecretSource":
        if sum(each is not None for each in (self.env, self.file, self.value)) > 1:
            raise ValueError("has several sources; write {env: NAME} or {file: PATH}")
        return self


JobSecrets = Annotated[
    dict[EnvName, Annotated[SecretSource, BeforeValidator(_checked_source)]], Field(max_length=_MAX_SECRETS)
]


def with_secret_values(mapping: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns a job (JSON data) with the values of its secrets in the place of their sources.

    Relative files start from the current folder. Raises JobSpecError naming the secret, never its value.
    """
    sources = mapping.get("secrets")
    if not isinstance(sources, Mapping) or not sources:
        return dict(mapping)
    found = {str(name): {"value": _value_of(str(name), source, environ)} for name, source in sources.items()}
    return {**mapping, "secrets": found}


def _value_of(name: str, source: Any, environ: Mapping[str, str]) -> str:
    field = f"secrets.{name}"
    given = source if isinstance(source, Mapping) else {}
    if isinstance(given.get("value"), str):
        return str(given["value"])
    if isinstance(variable := given.get("env"), str):
        if variable not in environ:
            raise JobSpecError(
                f"{field}: you have no variable {variable[:80]}", field=field, fix=f"export {variable[:80]}=..."
            )
        return environ[variable]
    if isinstance(path := given.get("file"), str):
        try:
            with Path(path).expanduser().open("rb") as file:
                text = file.read(_MOST_BYTES + 2).decode()
        except OSError as error:
            raise JobSpecError(f"{field}: {path[:200]}: {error.strerror}", field=field, fix="check the path") from None
        except UnicodeDecodeError:
            raise JobSpecError(f"{field}: {path[:200]} is not UTF-8", field=field, fix="encode it as text") from None
        return text.removesuffix("\n").removesuffix("\r")
    raise JobSpecError(f"{field}: says not where its value comes from", field=field, fix="{env: NAME} or {file: PATH}")


def secret_values(secrets: Mapping[str, SecretSource], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of a job's secrets by name, for a run on this very machine. Raises JobSpecError."""
    return {name: _value_of(name, source.model_dump(exclude_none=True), environ) for name, source in secrets.items()}
