"""Slurm's commands as calls: bounded in time and output, with every failure as a `ProviderProblem` of a kind.

`sbatch`, `squeue` and `scancel` are the stable interface of every release, so only these are used. The output of
`squeue` is text of fixed columns; a row that cannot be parsed is left out, and a listing of implausible length is
refused.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.providers.provider import MachineState, ProviderProblem, ProviderProblemKind, RentedMachine
from walras.cluster import NodeId, PoolId
from walras.errors import ClusterError
from walras.spec.provider_settings import SlurmSettings

log = logging.getLogger(__name__)

#: Seconds after which a command counts as unanswered.
CALL_S = 30.0
_MOST_BYTES = 32 << 20
#: Seconds to wait for a killed command's pipes to close; a process that it left behind may keep them open.
_LET_GO_S = 1.0
#: Characters of a problem that are kept, since it becomes part of a reason.
_LONGEST = 500
#: The variables of the server's environment that the commands, and later the pilots, need; never its tokens.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "SLURM_CLUSTERS")
#: Columns of `squeue -O` and their widths. The comment says for which request of which pool a job was submitted.
_COLUMNS = {"JobID": 24, "State": 20, "Reason": 80, "RestartCnt": 12, "PendingTime": 16, "Comment": 700}
#: Longer numbers cannot be counts here.
_MOST_DIGITS = 12

_PROBLEM_KINDS: tuple[tuple[str, ProviderProblemKind], ...] = (
    ("unable to contact slurm controller", ProviderProblemKind.UNAVAILABLE),
    ("socket timed out", ProviderProblemKind.UNAVAILABLE),
    ("connection refused", ProviderProblemKind.UNAVAILABLE),
    ("communication connection failure", ProviderProblemKind.UNAVAILABLE),
    ("zero bytes were transmitted", ProviderProblemKind.UNAVAILABLE),
    ("temporarily unable to accept job", ProviderProblemKind.THROTTLED),
    ("resource temporarily unavailable", ProviderProblemKind.THROTTLED),
    ("accounting/qos policy", ProviderProblemKind.QUOTA),
    ("submitlimit", ProviderProblemKind.QUOTA),
    ("limit", ProviderProblemKind.QUOTA),
)

_COMING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "RESIZING"})
_HERE = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_LEAVING = frozenset({"COMPLETING"})


def classify_slurm_error(told: str) -> ProviderProblemKind:
    """Returns the kind of problem that a command's error text states."""
    text = told.lower()
    return next((kind for words, kind in _PROBLEM_KINDS if words in text), ProviderProblemKind.REFUSED)


@dataclass(frozen=True, slots=True)
class Allocation:
    """One pilot job, as Slurm reports it."""

    job: int
    #: In upper case; unknown states count as ended.
    state: str
    #: Why it waits, in Slurm's words.
    reason: str
    #: How often Slurm has requeued it.
    restarts: int
    #: How long it has waited, or waited before it started, seconds.
    waited_s: float
    pool_id: PoolId
    #: The token of its request.
    token: str

    @property
    def machine_state(self) -> MachineState:
        if self.state in _COMING:
            return MachineState.BOOTING
        if self.state in _HERE:
            return MachineState.RUNNING
        return MachineState.LEAVING if self.state in _LEAVING else MachineState.GONE

    @property
    def node_id(self) -> NodeId:
        """The machine's name, a new one after each requeue, because nothing of the earlier machine is left."""
        again = f"-r{self.restarts}" if self.restarts else ""
        return NodeId(f"slurm-{request_serial(self.token)}-{self.job}{again}")

    @property
    def machine(self) -> RentedMachine:
        return RentedMachine(self.node_id, self.pool_id, self.token, self.machine_state)


def request_serial(token: str) -> str:
    """Returns a short name for a request's token.

    It is part of machines' names, which must never repeat, while a reinstalled Slurm counts its jobs from 1 again.
    """
    return hashlib.sha256(token.encode()).hexdigest()[:8]


def parse_allocations(output: str) -> list[Allocation]:
    """Returns the pilots in a listing, without rows of other jobs, whose names may be the same."""
    found = []
    for line in output.splitlines():
        cells, start = {}, 0
        for column, width in _COLUMNS.items():
            cells[column] = line[start : start + width].strip()
            start += width
        words = cells["Comment"].split()
        numbers = [_count(cells[column]) for column in ("JobID", "RestartCnt", "PendingTime")]
        if len(words) != 3 or words[0] != "walras" or numbers[0] is None or numbers[1] is None:
            continue
        waited_s = float(numbers[2] or 0)
        state = cells["State"].upper()
        reason, pool_id, token = cells["Reason"], PoolId(words[1]), words[2]
        found.append(Allocation(numbers[0], state, reason, numbers[1], waited_s, pool_id, token))
    return found


def _count(cell: str) -> int | None:
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) <= _MOST_DIGITS else None


class SlurmCommands:
    """Slurm's commands, in the folder that the settings state, or else on the path."""

    def __init__(
        self, settings: SlurmSettings, job_name: str, environ: Mapping[str, str] | None = None, call_s: float = CALL_S
    ) -> None:
        self._settings = settings
        self._job_name = job_name
        given = os.environ if environ is None else environ
        self._environment = {name: given[name] for name in _INHERITED if name in given}
        self._call_s = call_s

    async def submit(self, options: Sequence[str], script: str) -> int:
        """Submit a batch script and return the number of its job. Raises ProviderProblem."""
        output = await self._run("sbatch", "--parsable", f"--job-name={self._job_name}", *options, stdin=script)
        job = _count(output.strip().partition(";")[0])
        if job is None:
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, f"sbatch: not understood: {output[:100]!r}")
        return job

    async def allocations(self) -> list[Allocation]:
        """Returns every pilot of this server that Slurm still knows, those that ended a short time ago included.

        Raises ProviderProblem.
        """
        columns = ",".join(f"{column}:{width}" for column, width in _COLUMNS.items())
        output = await self._run(
            "squeue", "--noheader", "--me", "--states=all", f"--name={self._job_name}", "-O", columns
        )
        return parse_allocations(output)

    async def cancel(self, jobs: Iterable[int]) -> None:
        """Cancels jobs; a job that has already ended is no error. Raises ProviderProblem."""
        numbers = [str(job) for job in jobs]
        if not numbers:
            return
        try:
            await self._run("scancel", *numbers)
        except ProviderProblem as problem:
            if "invalid job id" not in str(problem).lower() and "already" not in str(problem).lower():
                raise

    async def _run(self, command: str, *arguments: str, stdin: str = "") -> str:
        path = os.path.join(self._settings.commands, command) if self._settings.commands else command
        try:
            process = await asyncio.create_subprocess_exec(
                path, *arguments, env=self._environment, start_new_session=True,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise ProviderProblem(ProviderProblemKind.REFUSED, f"{command}: {error.strerror or error}") from None
        try:
            output, told = await asyncio.wait_for(_talk(process, stdin.encode()), self._call_s)
        except TimeoutError:
            problem = f"{command}: no answer within {self._call_s:g} s"
            raise ProviderProblem(ProviderProblemKind.UNAVAILABLE, problem) from None
        except _TooMuch:
            problem = f"{command}: more than {_MOST_BYTES >> 20} MiB of output"
            raise ProviderProblem(ProviderProblemKind.REFUSED, problem) from None
        finally:
            await _end(process)
        if process.returncode != 0:
            said = " ".join(told.split())[:_LONGEST] or f"exit code {process.returncode}"
            raise ProviderProblem(classify_slurm_error(said), f"{command}: {said}")
        return output


class _TooMuch(ClusterError):
    """The output is larger than a listing can be."""


async def _talk(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[str, str]:
    """Returns what a process prints on its standard output and its standard error. Raises _TooMuch."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(OSError):  # it may end without reading
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()
    readers = [asyncio.create_task(_read(stream)) for stream in (process.stdout, process.stderr)]
    try:
        done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_EXCEPTION)
        for reader in done:
            reader.result()  # raises the reader's error
        output, told = (reader.result() for reader in readers)
        await process.wait()
        return output, told
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of a command, close its pipes, and wait for its end, so that nothing of it stays behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        rest = _discard(process.stdout), _discard(process.stderr), process.wait()
        await asyncio.wait_for(asyncio.gather(*rest), _LET_GO_S)


async def _discard(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(1 << 16):
        pass


async def _read(stream: asyncio.StreamReader) -> str:
    content = bytearray()
    while chunk := await stream.read(1 << 16):
        content += chunk
        if len(content) > _MOST_BYTES:
            raise _TooMuch("too much output")
    return content.decode(errors="replace")
