"""EC2 as this project calls it: through boto3, in threads, each call bounded in time, each error named.

boto3 blocks and comes with an extra (`pip install 'walras[aws]'`), so it is imported when the first client is made.
Throttling, errors of the service and broken connections are repeated by boto3 itself, ever later and a few times only;
what is left after that is a `ProviderProblem`.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from scheduler.cloud.provider import ProblemKind, ProviderProblem
from walras.errors import ConfigError

T = TypeVar("T")

_THREADS = 4
_CONNECT_S = 5.0
_READ_S = 20.0
_TRIES = 4
#: A call with all its repetitions; the thread ends soon after, by the limits above.
_CALL_S = 90.0

#: The whole code, or its first part before a dot. What is not here is told from the HTTP status.
_KINDS: Mapping[str, ProblemKind] = {
    "VcpuLimitExceeded": ProblemKind.QUOTA,
    "InstanceLimitExceeded": ProblemKind.QUOTA,
    "MaxSpotInstanceCountExceeded": ProblemKind.QUOTA,
    "VolumeLimitExceeded": ProblemKind.QUOTA,
    "InsufficientInstanceCapacity": ProblemKind.CAPACITY,
    "InsufficientHostCapacity": ProblemKind.CAPACITY,
    "InsufficientFreeAddressesInSubnet": ProblemKind.CAPACITY,
    "SpotMaxPriceTooLow": ProblemKind.CAPACITY,
    "RequestLimitExceeded": ProblemKind.THROTTLED,
    "Throttling": ProblemKind.THROTTLED,
    "ThrottlingException": ProblemKind.THROTTLED,
    "RequestThrottled": ProblemKind.THROTTLED,
    "EC2ThrottledException": ProblemKind.THROTTLED,
    "InternalError": ProblemKind.UNAVAILABLE,
    "InternalFailure": ProblemKind.UNAVAILABLE,
    "Unavailable": ProblemKind.UNAVAILABLE,
    "ServiceUnavailable": ProblemKind.UNAVAILABLE,
    "IdempotentInstanceTerminated": ProblemKind.GONE,
}
_FIRST_SERVER_ERROR = 500
#: Characters of a problem that are kept: they end up in reasons.
_LONGEST = 500


def classify(code: str, status: int) -> ProblemKind:
    """What kind of problem an answer of EC2 states: by its error code, else by its HTTP status."""
    known = _KINDS.get(code) or _KINDS.get(code.partition(".")[0])
    if known is not None:
        return known
    return ProblemKind.UNAVAILABLE if status >= _FIRST_SERVER_ERROR else ProblemKind.REFUSED


def make_client(region: str) -> Any:
    """A client of EC2. Credentials and endpoint are found as boto3 finds them. Raises ConfigError without boto3."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise ConfigError("pools of provider aws need boto3", field="pools", fix="pip install 'walras[aws]'") from None
    retries = {"mode": "standard", "total_max_attempts": _TRIES}
    config = Config(connect_timeout=_CONNECT_S, read_timeout=_READ_S, retries=retries, max_pool_connections=_THREADS)
    return boto3.client("ec2", region_name=region, config=config)


class Ec2Calls:
    """Calls in threads of their own. `close` when no more are to come."""

    def __init__(self, client_factory: Callable[[], Any], call_s: float = _CALL_S) -> None:
        self._factory = client_factory
        self._call_s = call_s
        self._threads = ThreadPoolExecutor(_THREADS, "aws")
        #: Made at the first call: finding credentials may call a network.
        self._client: Any = None
        self._lock = threading.Lock()

    async def call(self, operation: str, **arguments: Any) -> Any:
        """One operation. Raises ProviderProblem."""
        return await self._bounded(operation, lambda client: getattr(client, operation)(**arguments))

    async def pages(self, operation: str, key: str, most: int, **arguments: Any) -> list[Any]:
        """Everything that a paged operation lists under a key, at most so many. Raises ProviderProblem beyond it."""
        return await self._bounded(operation, lambda client: _listed(client, operation, key, most, arguments))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _bounded(self, operation: str, work: Callable[[Any], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._carried_out, operation, work)
        try:
            return await asyncio.wait_for(future, self._call_s)
        except TimeoutError:
            problem = f"{operation}: no answer within {self._call_s:g} s"
            raise ProviderProblem(ProblemKind.UNAVAILABLE, problem) from None

    def _carried_out(self, operation: str, work: Callable[[Any], T]) -> T:
        client = self._ready()
        # It is there, or there would be no client.
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            return work(client)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            raise ProviderProblem(classify(code, status), f"{operation}: {error}"[:_LONGEST]) from None
        except HTTPClientError as error:
            raise ProviderProblem(ProblemKind.UNAVAILABLE, f"{operation}: {error}"[:_LONGEST]) from None
        except BotoCoreError as error:
            raise ProviderProblem(ProblemKind.REFUSED, f"{operation}: {error}"[:_LONGEST]) from None

    def _ready(self) -> Any:
        with self._lock:
            if self._client is None:
                try:
                    self._client = self._factory()
                except ConfigError as error:
                    raise ProviderProblem(ProblemKind.REFUSED, f"{error}; {error.fix}") from None
        return self._client


def _listed(client: Any, operation: str, key: str, most: int, arguments: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for page in client.get_paginator(operation).paginate(**arguments):
        found += page[key]
        if len(found) > most:
            raise ProviderProblem(ProblemKind.REFUSED, f"{operation}: more than {most} answers")
    return found
