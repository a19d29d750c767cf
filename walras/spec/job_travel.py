"""The fields of a job spec about what a machine brings or makes before the job's ranks start.

Each is checked before anything is sent: names and paths stay inside, lists are bounded, a URL says how it is read.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from walras.job_needs import GitNeed, InputNeed, JobNeeds, PythonNeed
from walras.spec.field_types import checked_text, inner_path
from walras.spec.file_model import FieldMistake, FileModel

#: Schemes that every machine can read; others go through fsspec, on machines that have it.
PLAIN_SCHEMES = ("https", "http", "file")
_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]{0,31}):", re.ASCII)
_TEXT_MOST, _URL_MOST = 65_536, 4096

_Text = Annotated[str, Field(min_length=1, max_length=_TEXT_MOST), AfterValidator(checked_text)]
#: A name that is one harmless part of a path.
InputName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]


#: A name in a registry, with `docker://` or without, or the path of a file.
ImageName = Annotated[str, Field(max_length=512, pattern=r"^(docker://)?[A-Za-z0-9/][A-Za-z0-9._:/@-]*$")]


def _url(text: str) -> str:
    """Returns a URL that a machine may be able to read; raises ValueError for another."""
    checked_text(text)
    found = _SCHEME.match(text)
    if found is None:
        raise ValueError(f"{text[:60]!r} names no scheme; write such as s3://bucket/data or file:/shared/data")
    if found[1] == "file" and not re.match(r"^file:(//)?/(?!/)", text):
        raise ValueError(f"{text[:60]!r} is no absolute path; write such as file:/shared/data")
    return text


class InputSpec(FileModel):
    """Data that the ranks read: what a URL names, or what a command puts into the folder `$WALRAS_INPUT`."""

    url: Annotated[str, Field(max_length=_URL_MOST), AfterValidator(lambda text: _url(text) if text else text)] = ""
    command: Annotated[str, Field(max_length=_TEXT_MOST), AfterValidator(checked_text)] = ""
    #: The hash of the one file that the URL names; empty: it is not verified.
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""

    other_words: ClassVar[Mapping[str, str]] = {"source": "url", "uri": "url", "path": "url", "run": "command"}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        return {"url": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _is_one(self) -> "InputSpec":
        if bool(self.url) == bool(self.command):
            raise FieldMistake("url", "give one of url and command")
        if self.sha256 and not self.url:
            raise FieldMistake("sha256", "stands for the file of a url; leave it out beside a command")
        return self


class PythonSpec(FileModel):
    """The Python environment of the ranks, made by uv once for each machine and content, and kept."""

    #: A file of requirements, below the working folder.
    requirements: Annotated[str, AfterValidator(lambda text: inner_path(text) if text else text)] = ""
    #: Requirements, each as pip takes it.
    packages: Annotated[tuple[_Text, ...], Field(max_length=1000), BeforeValidator(lambda given: _tuple(given))] = ()
    #: A `uv.lock`, below the working folder, beside its `pyproject.toml`.
    lock: Annotated[str, AfterValidator(lambda text: inner_path(text) if text else text)] = ""
    #: A Python version such as 3.12. Empty: the one on which the machine's agent runs.
    version: Annotated[str, Field(pattern=r"^(3\.[0-9]{1,2}(\.[0-9]{1,2})?)?$")] = ""
    #: Whether packages of the agent's Python are visible too, such as a torch that is built for the machine.
    system_packages: bool = True

    other_words: ClassVar[Mapping[str, str]] = {"pip": "packages", "dependencies": "packages", "python": "version"}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: object) -> object:
        """Returns a file's name alone."""
        if isinstance(given, str):
            return {"lock" if given.endswith("uv.lock") else "requirements": given}
        return given

    @model_validator(mode="after")
    def _has_a_source(self) -> "PythonSpec":
        if self.lock and (self.requirements or self.packages):
            raise FieldMistake("python.lock", "stands beside requirements; give one of them")
        if self.lock and not self.lock.endswith("uv.lock"):
            raise FieldMistake("python.lock", "is no uv.lock; `requirements` takes other files")
        if not (self.lock or self.requirements or self.packages):
            raise FieldMistake("python", "names nothing to install; give requirements, packages or lock")
        return self


def _tuple(given: object) -> object:
    return (given,) if isinstance(given, str) else given


class GitSpec(FileModel):
    """A commit of a repository. Its full name is its hash, so it is the same code on every machine."""

    url: Annotated[str, Field(max_length=_URL_MOST, pattern=r"^[^-\s][^\s]*$"), AfterValidator(checked_text)]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


def plain_workdir(given: object) -> object:
    """Returns a spec in which `workdir: {git: URL, commit: …}` is the field `git`, and `{path: …}` the path alone."""
    if not isinstance(given, Mapping) or not isinstance(given.get("workdir"), Mapping):
        return given
    spec: dict[str, Any] = dict(given)
    folder = dict(spec.pop("workdir"))
    if set(folder) == {"path"}:
        return {**spec, "workdir": folder["path"]}
    if set(folder) != {"git", "commit"}:
        raise FieldMistake("workdir", "is neither a path, `{path: …}` nor `{git: URL, commit: FULL_HASH}`")
    return {**spec, "git": {"url": folder["git"], "commit": folder["commit"]}}


class NeedfulSpec(Protocol):
    """The fields of a job that its machines are told in one."""

    @property
    def outputs(self) -> tuple[str, ...]: ...
    @property
    def git(self) -> GitSpec | None: ...
    @property
    def inputs(self) -> Mapping[str, InputSpec]: ...
    @property
    def python(self) -> PythonSpec | None: ...
    @property
    def setup(self) -> str | None: ...
    @property
    def image(self) -> str | None: ...


def needs_of(spec: NeedfulSpec) -> JobNeeds:
    """Returns what the job's machines must prepare before they run its command."""
    return JobNeeds(
        outputs=spec.outputs,
        git=None if spec.git is None else GitNeed(**spec.git.model_dump()),
        inputs={name: InputNeed(**each.model_dump()) for name, each in spec.inputs.items()},
        python=None if spec.python is None else PythonNeed(**spec.python.model_dump()),
        setup=spec.setup or "",
        image=spec.image or "",
    )
