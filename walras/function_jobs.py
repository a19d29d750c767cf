"""Python functions as jobs: `walras.submit` and `walras.map_jobs`.

    future = walras.submit(train, 0.1, epochs=3, resources={"accelerators": "a100:1"})
    print(future.result())

The function and its arguments are pickled by cloudpickle and travel as files of the job's own code; the result is a
file of its `outputs`. A call is unpickled in the job's process alone (`walras.function_runner`), a result here, in the
process that asks for it; the server and the agents carry bytes. Unpickling runs code: what comes back was written by
the job.
"""

import asyncio
import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from os import getpid
from pathlib import Path
from typing import Any, Generic, TypeVar

from walras import function_runner
from walras.client import BlockingClient, Client, fetch_outputs
from walras.connection.transport import Outage
from walras.errors import ConfigError, NotFound, UserError, WalrasError
from walras.function_runner import ABOUT, FOLDER, FUNCTION, RAISED, REFUSED, RESULTS, RETURNED, arguments_file
from walras.resources.jobs import JobDetail
from walras.states import JobState
from walras.storage.code_snapshot import SNAPSHOT_BYTES, code_fields, snapshot_folder
from walras.storage.content import ContentTree, hash_folder

T = TypeVar("T")
#: The most bytes that a function may return, pickled; and the most bytes before them in a result's file.
RESULT_BYTES = 256 * 1024 * 1024
_HEAD_BYTES = 1024 * 1024
#: The most calls of one map, which are jobs of one sweep.
_CALLS_MOST = 1000
_LONGEST_PAUSE_S = 5.0
_NAME_MOST = 100
#: Fields of a job that say what runs; this module sets them.
_OWN_FIELDS = ("run", "code", "git", "array", "matrix", "array_index", "resources")


class NoResult(WalrasError):
    """The job ended, and its function neither returned nor raised; the message names the job's state and reason."""

    def __init__(self, message: str, job: JobDetail) -> None:
        super().__init__(message)
        self.job_id = job.id
        self.state = job.state
        self.reason = job.reason


@dataclass(frozen=True)
class _Outcome:
    """The end of a call: `value` if it returned, else `error`."""

    value: Any = None
    error: BaseException | None = None


class FunctionFuture(Generic[T]):
    """The call of a function in a job. It lives on the server: another process may look at the job meanwhile."""

    def __init__(self, client: BlockingClient, job_id: int) -> None:
        self._client = client
        self.job_id = job_id
        self._outcome: _Outcome | None = None

    def __repr__(self) -> str:
        return f"<FunctionFuture of job {self.job_id} at {self._client.url}>"

    @property
    def job(self) -> JobDetail:
        """Returns the job as it is now."""
        return self._client.job(self.job_id)

    def done(self) -> bool:
        """Returns whether the job has ended, in whatever way."""
        return self._outcome is not None or self.job.state.is_final

    def result(self, timeout: float | None = None) -> T:
        """Returns what the function returned: on a gang, what it returned on rank 0.

        Waits for the job to end, at most `timeout` seconds, and then raises TimeoutError. An exception of the function
        is raised as itself, with the traceback of the job as a note. Raises NoResult for a job that ended without one.
        """
        outcome = self._ended(timeout)
        if outcome.error is not None:
            raise outcome.error
        found: T = outcome.value
        return found

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Returns the exception that `result` would raise; None if the function returned. Waits as `result` does."""
        return self._ended(timeout).error

    def cancel(self) -> JobState:
        """Requests the job's end; returns its present state. Does nothing if it has ended already."""
        return self._client.cancel(self.job_id)

    def logs(self) -> str:
        """Returns what the job has written so far, of its newest attempt. Text of the job: it may hold anything."""
        return b"".join(self._client.logs(self.job_id)).decode(errors="replace")

    def _ended(self, timeout: float | None) -> _Outcome:
        if self._outcome is None:
            job = self._client.run(lambda client: _until_final(client, self.job_id, timeout))
            self._outcome = _outcome_of(self._client, job)
        return self._outcome


def submit(
    function: Callable[..., T],
    /,
    *args: Any,
    client: BlockingClient | None = None,
    resources: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> FunctionFuture[T]:
    """Run `function(*args, **kwargs)` as a job; returns its future.

    Args:
        client: the server; None: the one that the command line uses.
        resources: as in a job file, such as `{"accelerators": "a100:1"}`.
        job: further fields of a job file, such as `name`, `project`, `python` or `limits`; a relative `workdir`
            travels, so that the function finds the modules and files there.

    A function that needs arguments of these names takes them by `functools.partial`. Every rank of a gang calls it.
    Raises ConfigError if cloudpickle is not installed, UserError for what cannot be pickled or is too large, and what
    the server refuses.
    """
    used = client or _default_client(getpid())
    spec = _send(used, function, [(args, kwargs)], resources, job)
    submitted = used.submit(spec)
    assert submitted.id is not None
    return FunctionFuture(used, submitted.id)


def map_jobs(
    function: Callable[..., T],
    /,
    *iterables: Iterable[Any],
    client: BlockingClient | None = None,
    resources: Mapping[str, Any] | None = None,
    job: Mapping[str, Any] | None = None,
    at_most: int | None = None,
) -> list[FunctionFuture[T]]:
    """Run `function(*each)` as a job for `each` of `zip(*iterables)`, as one sweep; returns their futures in order.

    `at_most`: how many may run at once. All else, and what is raised, is as with `submit`. Raises ValueError for
    iterables of unequal length, UserError for more than 1,000 calls.
    """
    calls = [(each, dict[str, Any]()) for each in zip(*iterables, strict=True)]
    if len(calls) > _CALLS_MOST:
        raise UserError(f"{len(calls):,} calls, and a sweep has at most {_CALLS_MOST:,} jobs", fix="map them in parts")
    if not calls:
        return []
    used = client or _default_client(getpid())
    spec = _send(used, function, calls, resources, job)
    limit = "" if at_most is None else f"%{at_most}"
    first = used.submit({**spec, "array": f"0-{len(calls) - 1}{limit}"})
    assert first.id is not None
    ids = {each.sweep_index: each.id for each in used.jobs(sweep=first.id)}
    return [FunctionFuture(used, ids[index]) for index in range(len(calls))]


@cache
def _default_client(process: int) -> BlockingClient:
    """Returns the command line's server, connected to once in each process."""
    return BlockingClient()


# ------------------------------------------------------------------------------------------------ on the way there


def _send(
    client: BlockingClient,
    function: Callable[..., Any],
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]],
    resources: Mapping[str, Any] | None,
    job: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Make the calls and the working folder durable with the server; returns the job to submit."""
    fields = dict(job or {})
    for name in _OWN_FIELDS:
        if name in fields:
            fix = "resources={...} is an argument of its own" if name == "resources" else "leave it out"
            raise ConfigError(f"job: `{name}` is said by the call itself", field=f"job.{name}", fix=fix)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    workdir = fields.pop("workdir", None)
    if workdir is not None and Path(workdir).is_absolute():
        raise ConfigError("job: a function starts in a folder that travels", field="job.workdir", fix="write '.'")
    with tempfile.TemporaryDirectory(prefix="walras-call-") as place:
        payload = _write_payload(Path(place), function, calls, name)
        parts = [(Path(place), payload)]
        if workdir is not None:
            parts.append((Path(workdir).absolute(), snapshot_folder(Path(workdir).absolute())))
        tree = client.run(lambda inner: _send_folders(inner, parts))
    outputs = fields.pop("outputs", ())
    outputs = [outputs] if isinstance(outputs, str) else list(outputs)
    code = code_fields(tree, Path("function") if workdir is None else parts[-1][0])
    spec = {
        "name": name.rpartition(".")[2][:_NAME_MOST] or "function",
        **fields,
        # The function's name distinguishes the kinds of jobs whose speeds are measured.
        "run": ["python", f"{FOLDER}/run.py", name[:_NAME_MOST]],
        "outputs": [*outputs, f"{FOLDER}/{RESULTS}"],
        "code": code,
    }
    return spec | ({} if resources is None else {"resources": dict(resources)})


def _write_payload(
    place: Path, function: Callable[..., Any], calls: list[tuple[tuple[Any, ...], dict[str, Any]]], name: str
) -> ContentTree:
    """Write the calls, what runs them, and cloudpickle itself into a folder; returns its tree."""
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise ConfigError("cloudpickle is not installed", fix="pip install 'walras[functions]'") from None
    folder = place / FOLDER
    (folder / "cloudpickle").mkdir(parents=True)
    (folder / "run.py").write_bytes(Path(function_runner.__file__).read_bytes())
    for source in Path(cloudpickle.__file__).parent.glob("*.py"):
        (folder / "cloudpickle" / source.name).write_bytes(source.read_bytes())
    about = {"python": list(sys.version_info[:2]), "result_bytes": RESULT_BYTES}
    (folder / ABOUT).write_text(json.dumps(about))
    pickled = {FUNCTION: function} | {arguments_file(index): call for index, call in enumerate(calls)}
    size = 0
    for file, content in pickled.items():
        try:
            written = cloudpickle.dumps(content)
        except Exception as error:  # whatever the objects' own methods raise
            what = "the function" if file == FUNCTION else "an argument"
            raise UserError(f"{name}: {what} cannot be pickled: {error}", fix="open it inside the function") from error
        size += len(written)
        if size > SNAPSHOT_BYTES:
            raise UserError(
                f"{name}: its arguments have more than {SNAPSHOT_BYTES:,} bytes",
                fix="let the function read them, from `inputs` of the job for instance",
            )
        (folder / file).write_bytes(written)
    return hash_folder(place, [path.relative_to(place).as_posix() for path in folder.rglob("*") if path.is_file()])


async def _send_folders(client: Client, parts: list[tuple[Path, ContentTree]]) -> ContentTree:
    """Send folders, and the tree that has the files of them all; returns it. Raises ConfigError where they clash."""
    for folder, tree in parts:
        await client.send_folder(folder, tree)
    if len(parts) == 1:
        return parts[0][1]
    if any(file.path.split("/")[0] == FOLDER for file in parts[-1][1].files):
        raise ConfigError(f"job: the working folder holds a {FOLDER} of its own", field="job.workdir", fix="remove it")
    files = sorted((file for _, tree in parts for file in tree.files), key=lambda file: file.path)
    whole = ContentTree(files=tuple(files))
    # The store has its chunks: only the list is sent.
    await client.send_folder(parts[0][0], whole)
    return whole


# ------------------------------------------------------------------------------------------------ on the way back


async def _until_final(client: Client, job_id: int, timeout: float | None) -> JobDetail:
    """Returns the job once it has ended. Raises TimeoutError."""
    job = None
    pause_s, outage = client.patience.poll_s, Outage(client.patience)
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            while True:
                with outage.borne():
                    job = await client.job(job_id)
                if job is not None and job.state.is_final:
                    break
                await asyncio.sleep(pause_s)
                pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
    if job is None or not job.state.is_final:
        state = "not known yet" if job is None else f"{job.state}{f': {job.reason.words}' if job.reason else ''}"
        raise TimeoutError(f"job {job_id} has not ended within {timeout} s: it is {state}")
    return job


def _outcome_of(client: BlockingClient, job: JobDetail) -> _Outcome:
    """Returns how the call of an ended job ended; reads what the job left, and nothing larger than the bounds."""
    try:
        found = _fetch_result(client, job)
    except NoResult as error:
        return _Outcome(error=error)
    outcome, text, content = found
    if outcome == REFUSED:
        return _Outcome(error=NoResult(f"job {job.id}: {text}", job))
    try:
        value = pickle.loads(content)
    except Exception as error:  # whatever the objects' own methods raise
        what = "its exception" if outcome == RAISED else "its result"
        lost = NoResult(f"job {job.id}: {what} cannot be unpickled here: {type(error).__name__}: {error}", job)
        return _Outcome(error=_with_traceback(lost, job, text))
    if outcome == RETURNED:
        return _Outcome(value)
    if not isinstance(value, Exception):
        return _Outcome(error=NoResult(f"job {job.id}: a {type(value).__name__} stands for its exception", job))
    return _Outcome(error=_with_traceback(value, job, text))


def _with_traceback(error: BaseException, job: JobDetail, text: str) -> BaseException:
    if text:
        error.add_note(f"in job {job.id}:\n{text.rstrip()}")
    return error


def _fetch_result(client: BlockingClient, job: JobDetail) -> tuple[str, str, bytes]:
    """Returns the outcome, its text and what was pickled: of the lowest rank that raised, or of rank 0.

    Raises NoResult.
    """
    if job.state not in (JobState.SUCCEEDED, JobState.FAILED):
        raise _no_result(job)
    with suppress(NotFound):
        kept = client.fetch_outputs(job.id)
        # The result of an earlier attempt does not belong to this end.
        left = [] if kept.attempt != job.attempts else sorted(filter(None, map(_rank_and_outcome, kept.files)))
        wanted = (RETURNED,) if job.state is JobState.SUCCEEDED else (RAISED, REFUSED)
        for _, outcome, path in left:
            if outcome not in wanted:
                continue
            size = kept.files[path].size
            if size > RESULT_BYTES + _HEAD_BYTES:
                raise _no_result(job, f"its result has {size:,} bytes, and at most {RESULT_BYTES:,} are fetched")
            head, _, content = _read_output(client, job.id, path).partition(b"\n")
            return outcome, _text_of(head, job), content
    raise _no_result(job)


def _rank_and_outcome(path: str) -> tuple[int, str, str] | None:
    """Returns the rank and the outcome that a file's name states, and the path; None for any other file."""
    folder, _, name = path.rpartition("/")
    rank, _, outcome = name.partition(".")
    is_one = folder.endswith(f"{FOLDER}/{RESULTS}") and rank.isascii() and rank.isdigit() and len(rank) < 10
    return (int(rank), outcome, path) if is_one else None


def _read_output(client: BlockingClient, job_id: int, path: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="walras-result-") as place:
        folder = Path(place) / "outputs"
        client.run(lambda inner: fetch_outputs(inner, job_id, path, folder))
        return (folder / path).read_bytes()


def _text_of(head: bytes, job: JobDetail) -> str:
    try:
        return str(json.loads(head[:_HEAD_BYTES])["text"])
    except (ValueError, KeyError, TypeError):
        raise _no_result(job, "its result is damaged") from None


def _no_result(job: JobDetail, why: str = "its function neither returned nor raised") -> NoResult:
    reason = f" ({job.reason.words}{f': {job.detail}' if job.detail else ''})" if job.reason else ""
    return NoResult(f"job {job.id} is {job.state}{reason}: {why}; `walras logs {job.id}` shows its output", job)
