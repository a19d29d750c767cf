"""A job's results: files below its working folder, copied, and sent to the server's content store.

They are collected when the job commits a checkpoint, and once more when no process of the attempt is alive; its end is
reported after that, so that a job that has succeeded has its results. What ranks write is untrusted: paths are opened
component by component without following links, only regular files are read, up to the size that they had when they were
opened, and everything is bounded. The copy is hashed and sent, so that the original may change meanwhile.
"""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

from walras.contract import FILES_MOST
from walras.errors import ClusterError, Forbidden, ServerUnreachable, UserError
from walras.job_needs import OUTPUTS_BYTES, PATH_MOST, PROBLEM_MOST, OutputsCollected
from walras.storage.content import ContentTree, check_sizes, hash_folder
from walras.storage.content_transfer import ContentTransfer
from workers.accounts import files_as
from workers.agent.launch import MIN_FREE_BYTES
from workers.agent.server_client import ServerClient
from workers.devices import AttemptKey
from workers.preparation.launcher import read_needs
from workers.supervisor_protocol import AttemptPlan

log = logging.getLogger(__name__)

#: Seconds between two collections while a job runs.
PACE_S = 30.0
#: Seconds for which the end of an attempt waits for its results, and fewer where the job was asked to leave.
FINISH_S, HURRIED_S = 900.0, 60.0
_RETRY_S = 2.0
_DEPTH_MOST = 64
_COPY_BYTES = 1024 * 1024
_NAMED_IN_PROBLEMS = 5
#: A file with holes of more bytes than this, and more than half of it, is not sent.
_HOLES_BYTES = 64 * 1024 * 1024
_GONE = "is gone, or no regular file any more"


# ------------------------------------------------------------------------------------------------ the copy


@dataclass
class CopiedOutputs:
    """The copied files, and those that were left out."""

    paths: list[str] = field(default_factory=list)
    #: Named in the results so that the job's owner sees what is missing.
    left_out: list[str] = field(default_factory=list)

    @property
    def problem(self) -> str:
        """Returns what was left out, as text; empty if nothing was."""
        named = "; ".join(self.left_out[:_NAMED_IN_PROBLEMS])
        more = len(self.left_out) - _NAMED_IN_PROBLEMS
        return (named + (f"; and {more} more" if more > 0 else ""))[:PROBLEM_MOST]


def copy_outputs(
    workdir: Path,
    wanted: Sequence[str],
    target: Path,
    account: tuple[int, int] = (0, 0),
    is_left: Callable[[], bool] = lambda: False,
) -> CopiedOutputs:
    """Copies files and folders below a working folder to `target`, which is created anew, until `is_left` says that
    nobody waits for the copy any more.

    Only files that an account (uid, gid) can read are copied. A sparse file counts with its length, and is left out.
    Raises ConfigError naming the largest files where they are too large or too many, OSError for a full disk.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True, mode=0o700)
    copied = CopiedOutputs()
    sizes = {}
    with files_as(*account):
        for path, found in _regular_files(workdir, wanted, copied.left_out):
            sizes[path] = found.st_size
            if len(sizes) > FILES_MOST:
                raise UserError(f"the outputs have more than {FILES_MOST:,} files", field="outputs")
    check_sizes(sizes, OUTPUTS_BYTES, "the job's outputs")
    if shutil.disk_usage(target).free - sum(sizes.values()) < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, f"no room to copy {sum(sizes.values()):,} bytes of outputs")
    for path in sizes:
        if problem := _copy_file(workdir, (path, sizes[path]), target, account, is_left):
            copied.left_out.append(f"{_shown(path)} {problem}")
        else:
            copied.paths.append(path)
    return copied


def _regular_files(workdir: Path, wanted: Sequence[str], left_out: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yields path and status of every regular file, without following links; names the others in `left_out`."""
    pending = [(path, 0) for path in reversed(wanted)]
    while pending:
        path, depth = pending.pop()
        try:
            with _opened(workdir, path, os.O_PATH) as file:
                found = os.fstat(file)
            names = []
            if stat.S_ISDIR(found.st_mode):
                with _opened(workdir, path, os.O_RDONLY | os.O_DIRECTORY) as folder:
                    names = sorted(os.listdir(folder), reverse=True)
        except OSError as error:
            left_out.append(f"{_shown(path)}: {error.strerror}")
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, found
        elif not stat.S_ISDIR(found.st_mode):
            left_out.append(f"{_shown(path)} is no regular file")
        elif depth >= _DEPTH_MOST:
            left_out.append(f"{_shown(path)} is too deep")
        elif len(pending) + len(names) > FILES_MOST:
            raise UserError(f"the outputs have more than {FILES_MOST:,} files", field="outputs")
        for name in names if depth < _DEPTH_MOST else ():
            if _is_sendable(inner := f"{path}/{name}"):
                pending.append((inner, depth + 1))
            else:
                left_out.append(f"{_shown(inner)} has no name that can be sent")


def _is_sendable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return len(path) <= PATH_MOST


def _shown(path: str) -> str:
    return path[:200].encode(errors="replace").decode()


@contextlib.contextmanager
def _opened(workdir: Path, path: str, flags: int) -> Iterator[int]:
    """Opens a path below the working folder component by component: a link on the way is an error."""
    here = os.open(workdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, last = path.split("/")
        for name in folders:
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = inner
        file = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)
    try:
        yield file
    finally:
        os.close(file)


def _copy_file(
    workdir: Path, sized: tuple[str, int], target: Path, account: tuple[int, int], is_left: Callable[[], bool]
) -> str:
    """Copies a file below the working folder: path, and how many bytes at most. Returns why it cannot; empty: it is
    copied.
    """
    path, size = sized
    copied = target / path
    try:
        with contextlib.ExitStack() as stack:
            with files_as(*account):
                source = stack.enter_context(_opened(workdir, path, os.O_RDONLY))
            found = os.fstat(source)
            if not stat.S_ISREG(found.st_mode):
                return _GONE
            if (holes := _bytes_in_holes(source, found)) > max(_HOLES_BYTES, found.st_size // 2):
                return f"is sparse: {found.st_size:,} bytes, {holes:,} of them in holes; write it without, or packed"
            copied.parent.mkdir(parents=True, exist_ok=True)
            with open(copied, "xb") as copy:
                while size > 0 and not is_left() and (piece := os.read(source, min(size, _COPY_BYTES))):
                    copy.write(piece)
                    size -= len(piece)
            if found.st_mode & stat.S_IXUSR:
                copied.chmod(0o755)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        return _GONE
    return ""


def _bytes_in_holes(file: int, found: os.stat_result) -> int:
    """Returns how many bytes of an open file were never written; the disk may compress what was."""
    size, holes, at = found.st_size, 0, 0
    if size - found.st_blocks * 512 <= _HOLES_BYTES:
        return 0
    try:
        while at < size:
            data = os.lseek(file, at, os.SEEK_DATA)
            holes += data - at
            at = os.lseek(file, data, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data after this
            raise
        holes += size - at
    os.lseek(file, 0, os.SEEK_SET)
    return holes


# ------------------------------------------------------------------------------------------------ the attempt


class OutputCollector:
    """The results of one attempt on this machine."""

    def __init__(self, client: ServerClient, key: AttemptKey, folder: Path, plan: AttemptPlan) -> None:
        self._client = client
        self._key = key
        self._folder = folder
        self._workdir = Path(plan.workdir)
        self._account = (plan.uid, plan.gid)
        self._node_rank = plan.node_rank
        self._wanted = read_needs(folder).outputs
        self._is_due = asyncio.Event()
        self._told: OutputsCollected | None = None
        self._copying: asyncio.Future[CopiedOutputs] | None = None
        self._leave = threading.Event()

    def request(self) -> None:
        """Requests a collection soon: the job has committed a checkpoint."""
        self._is_due.set()

    async def run(self) -> None:
        """Collects whenever requested, until cancelled."""
        while self._wanted:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self._collect(is_last=False)
            except (ServerUnreachable, ClusterError, UserError, OSError, ValueError) as error:
                log.warning("job %d attempt %d: outputs not collected: %s", *self._key[:2], error)
            await asyncio.sleep(PACE_S)

    async def finish(self, is_hurried: Callable[[], bool]) -> str:
        """Collects for the last time, after everything has ended. Returns why that failed; empty on success.

        `is_hurried` returns whether the job was asked to leave: from then on this may not take long.
        """
        if not self._wanted:
            return ""
        work = asyncio.create_task(self._collect_patiently())
        until = finish_by = monotonic() + FINISH_S
        try:
            while not work.done() and (now := monotonic()) < until:
                if until == finish_by and is_hurried():
                    until = min(finish_by, now + HURRIED_S)
                await asyncio.wait({work}, timeout=1.0)
            return work.result() if work.done() else "the server did not take the job's outputs in time"
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await self._end_copy()
            await asyncio.to_thread(shutil.rmtree, self._draft, ignore_errors=True)

    async def _collect_patiently(self) -> str:
        while True:
            try:
                await self._collect(is_last=True)
                return ""
            except (ServerUnreachable, ClusterError) as error:
                log.warning("job %d attempt %d: outputs not sent yet: %s", *self._key[:2], error)
            except Forbidden as error:
                return f"the server refuses the job's outputs: {error}"
            except (UserError, OSError, ValueError) as error:
                await self._tell("", ContentTree(), str(error)[:PROBLEM_MOST])
                return f"the job's outputs cannot be kept: {error}"
            await asyncio.sleep(_RETRY_S)

    @property
    def _draft(self) -> Path:
        return self._folder / "outputs"

    async def _collect(self, *, is_last: bool) -> None:
        await self._end_copy()
        self._leave = threading.Event()
        work = partial(copy_outputs, account=self._account, is_left=self._leave.is_set)
        self._copying = asyncio.ensure_future(asyncio.to_thread(work, self._workdir, self._wanted, self._draft))
        copied = await asyncio.shield(self._copying)
        if not copied.paths and not is_last:
            return
        tree = await asyncio.to_thread(hash_folder, self._draft, copied.paths)
        if self._told is not None and (self._told.tree, self._told.problem) == (tree.name, copied.problem):
            return
        async with self._client.transport() as transport:
            await ContentTransfer(transport, job_id=self._key.job_id).send(self._draft, tree)
        await self._tell(tree.name, tree, copied.problem)

    async def _end_copy(self) -> None:
        """Returns once no thread copies: that of a collection that was cancelled would go on, and into the next."""
        self._leave.set()
        if self._copying is not None:
            await asyncio.wait({self._copying})
            self._copying.exception()  # nobody else may ask

    async def _tell(self, name: str, tree: ContentTree, problem: str) -> None:
        told = OutputsCollected(
            job_id=self._key.job_id,
            attempt=self._key.attempt,
            node_rank=self._node_rank,
            tree=name,
            files=len(tree.files),
            size_bytes=tree.size,
            problem=problem,
        )
        await self._client.tell_outputs(self._key, told)
        self._told = told
