"""Seals the secrets of jobs under the server's key: what lies in the tables says nothing to whoever reads a backup.

AES-256-GCM under a key of its own, derived from `secret.key`; the job's number is bound into it, so that a sealed value
moved to another job's row does not open there.
"""

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from walras.job_request import JobId

log = logging.getLogger(__name__)

_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class SecretBox:
    """Seals and opens the values of a job's secrets, by name."""

    secret: bytes = field(repr=False)

    def seal(self, job_id: JobId, values: Mapping[str, str]) -> bytes:
        """Returns the values, readable with the server's key alone."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher().encrypt(nonce, json.dumps(dict(values)).encode(), _bound_to(job_id))

    def open(self, job_id: JobId, sealed: bytes) -> dict[str, str]:
        """Returns the values; none (and a line in the log) where they were sealed with another key, or changed."""
        try:
            text = self._cipher().decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound_to(job_id))
        except (InvalidTag, ValueError):
            log.error("the secrets of job %d do not open: is secret.key another one?", job_id)
            return {}
        return dict(json.loads(text))

    def _cipher(self) -> AESGCM:
        return AESGCM(hmac.new(self.secret, b"secrets of jobs", hashlib.sha256).digest())


def _bound_to(job_id: JobId) -> bytes:
    return b"job %d" % job_id
