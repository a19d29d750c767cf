"""Hides from others what a job keeps private: its secrets, sealed under the server's key, and its variables' values.

A backup of the tables reveals no secret: they are encrypted with AES-256-GCM under a key of their own, derived from
`secret.key`. The job's number is bound into the sealed value, which therefore does not open in another job's row.
"""

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from scheduler.live.auth.access_control import Caller, JobCaller, UserCaller, UserRole
from walras.contract import HIDDEN
from walras.spec.job_groups import SecretSource
from walras.spec.job_spec import JobSpec

log = logging.getLogger(__name__)

_NONCE_BYTES = 12


def spec_shown_to(caller: Caller, owner: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Returns a job's spec (JSON data) as the caller may see it.

    Variables often hold what others should not know, so their values are shown to the owner, the job itself and
    administrators only.
    """
    match caller:
        case UserCaller(name=name, role=role):
            sees_all = role is UserRole.ADMIN or name == owner
        case JobCaller():
            sees_all = True  # the middleware admits a job's token for that job alone
        case _:
            sees_all = False
    return spec if sees_all or not spec.get("envs") else {**spec, "envs": dict.fromkeys(spec["envs"], HIDDEN)}


def without_secret_values(spec: JobSpec) -> tuple[JobSpec, dict[str, str]]:
    """Returns the spec with the names of its secrets only, as it may be stored and shown, and the values by name."""
    if not spec.secrets:
        return spec, {}
    values = {name: source.value for name, source in spec.secrets.items() if source.value is not None}
    return spec.model_copy(update={"secrets": {name: SecretSource() for name in spec.secrets}}), values


@dataclass(frozen=True, slots=True)
class SecretBox:
    """Seals and opens the values of a job's secrets, by name, or those of another numbered thing (`purpose`)."""

    secret: bytes = field(repr=False)
    #: What the number is of; each purpose has its own key.
    purpose: str = "job"

    def seal(self, job_id: int, values: Mapping[str, str]) -> bytes:
        """Returns the values encrypted, so that only the server's key opens them."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher().encrypt(nonce, json.dumps(dict(values)).encode(), self._bound_to(job_id))

    def open(self, job_id: int, sealed: bytes) -> dict[str, str] | None:
        """Returns the values; None, and a line in the log, where another key sealed them or they were changed."""
        try:
            text = self._cipher().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], self._bound_to(job_id))
        except (InvalidTag, ValueError):
            log.error("the secrets of %s %d do not open: is secret.key another one?", self.purpose, job_id)
            return None
        return dict(json.loads(text))

    def _cipher(self) -> AESGCM:
        return AESGCM(hmac.new(self.secret, f"secrets of {self.purpose}s".encode(), hashlib.sha256).digest())

    def _bound_to(self, number: int) -> bytes:
        return f"{self.purpose} {number}".encode()
