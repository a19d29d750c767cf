"""Tokens that admit the machines of one request: derived from it, never stored, good while the request is young.

A machine of a cloud finds its token in its user-data, where jobs on it could read it later. So the token admits only
machines of that request and pool, no more of them than were asked for, and not for long (`AgentGateway`). It is a keyed
hash of the request's token: launching again after a crash repeats the very same call.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass

_FORM = re.compile(r"wlr_e_([0-9a-f]{1,400})_([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True)
class EnrolmentTokens:
    """Issues and checks enrolment tokens under the server's secret."""

    secret: bytes

    def issue(self, rent_token: str) -> str:
        return f"wlr_e_{rent_token.encode().hex()}_{self._mac(rent_token)}"

    def check(self, token: str) -> str | None:
        """The request's token behind a genuine one; whether it may still enrol is for the caller to see."""
        match = _FORM.fullmatch(token)
        if match is None or len(match[1]) % 2:
            return None
        rent_token = bytes.fromhex(match[1]).decode(errors="replace")
        return rent_token if hmac.compare_digest(match[2], self._mac(rent_token)) else None

    def _mac(self, rent_token: str) -> str:
        return hmac.new(self.secret, f"enrol/{rent_token}".encode(), hashlib.sha256).hexdigest()
