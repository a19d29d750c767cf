"""Tokens for what runs inside a job: made when they are sent, never stored, good while the attempt is alive.

A token is the job's number, the attempt and a keyed hash of both. It opens the job's own record, attempts and logs.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

from walras.ids import JobId

_FORM = re.compile(r"wlr_j_(\d{1,18})_(\d{1,9})_([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobTokens:
    """Issues and checks job tokens under the server's secret."""

    secret: bytes

    def issue(self, job_id: JobId, attempt: int) -> str:
        return f"wlr_j_{job_id}_{attempt}_{self._mac(job_id, attempt)}"

    def check(self, token: str) -> tuple[JobId, int] | None:
        """(job, attempt) of a genuine token; whether that attempt is still alive is for the caller to see."""
        match = _FORM.fullmatch(token)
        if match is None:
            return None
        job_id, attempt = JobId(int(match[1])), int(match[2])
        return (job_id, attempt) if hmac.compare_digest(match[3], self._mac(job_id, attempt)) else None

    def _mac(self, job_id: int, attempt: int) -> str:
        return hmac.new(self.secret, f"{job_id}/{attempt}".encode(), hashlib.sha256).hexdigest()
