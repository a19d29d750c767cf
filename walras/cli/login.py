"""`walras whoami --login`: signs in at the server's provider in a browser, and keeps the token that comes of it.

The browser comes back to a port of this machine's loopback; the code that it brings is of use only with the verifier,
which stays here.
"""

import base64
import hashlib
import json
import os
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import typer

from walras.cli.terminal_output import show_line, warn
from walras.errors import UserError
from walras.server_access import server_access

_PATH, _WITHIN_S, _ANSWER_BYTES = "/web/sign-on", 300.0, 1 << 16


def sign_in() -> None:
    """Sign in, write the token to a file that only its owner reads, and say where. Raises UserError."""
    url = server_access({**os.environ, "WALRAS_TOKEN": "none yet"}).url.rstrip("/")
    trust = trusted_context(url)
    facts = _call(url + _PATH, trust)
    if not facts:
        raise UserError(f"{url} knows no provider at which to sign in", fix="ask an administrator for a token")
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    server = HTTPServer(("127.0.0.1", 0), _Landing)
    back = f"http://127.0.0.1:{server.server_address[1]}/"
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code", "client_id": facts["client_id"], "scope": facts["scope"], "redirect_uri": back,
        "state": state, "nonce": nonce, "code_challenge": challenge, "code_challenge_method": "S256",
    }  # fmt: skip
    address = f"{facts['authorization_endpoint']}?{urlencode(query)}"
    show_line(f"sign in at {address}")
    webbrowser.open(address)
    with server:
        code = _code_that_came(server, state)
    answer = {"code": code, "verifier": verifier, "nonce": nonce, "redirect_uri": back, "token": True}
    made = _call(url + _PATH, trust, answer)
    path = Path(os.environ.get("WALRAS_TOKEN_FILE") or Path.home() / ".config/walras/token").expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"{made['token']}\n")
    show_line(f"signed in as {made['user']} for twelve hours; export WALRAS_TOKEN_FILE={path}")


class _Landing(BaseHTTPRequestHandler):
    """Takes what the browser brings; `server.came` has it."""

    timeout = 10.0

    def do_GET(self) -> None:
        self.server.came = parse_qs(urlsplit(self.path).query)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"Back to the terminal; this window may be closed.\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address holds the code."""


def _code_that_came(server: HTTPServer, state: str) -> str:
    """Returns the code of the browser that was sent from here; others are ignored. Raises UserError after minutes."""
    until_s = time.monotonic() + _WITHIN_S
    while (left_s := until_s - time.monotonic()) > 0:
        server.timeout, server.came = left_s, {}  # type: ignore[attr-defined]
        server.handle_request()
        came: dict[str, list[str]] = server.came  # type: ignore[attr-defined]
        if not secrets.compare_digest(came.get("state", [""])[0].encode(), state.encode()):
            continue
        if code := came.get("code", [""])[0]:
            return code
        raise UserError(f"the provider refused: {came.get('error', ['no code'])[0][:200]}")
    raise UserError(f"nobody signed in within {_WITHIN_S:.0f} s", fix="walras whoami --login")


def trusted_context(url: str) -> ssl.SSLContext | None:
    """Returns the context that trusts the server: None where an authority vouches for it, or a person does by looking
    at its fingerprint. Raises UserError for an address that others could read, and where nobody vouches.
    """
    parts = urlsplit(url)
    if parts.scheme != "https":
        if parts.hostname in ("127.0.0.1", "::1", "localhost"):
            return None
        raise UserError("signing in needs TLS or loopback", field="WALRAS_SERVER", fix="use an https:// address")
    try:
        urllib.request.urlopen(url + _PATH, timeout=30).close()
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLCertVerificationError):
            return None  # the call itself says what is wrong
    else:
        return None
    certificate = ssl.get_server_certificate((parts.hostname or "", parts.port or 443), timeout=30)
    found = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    show_line(f"no authority vouches for {url}; the fingerprint of its certificate is\n  {found}")
    question = "Does every token of that server end in `.sha256=` and these characters (ask its administrator)?"
    if not (sys.stdin.isatty() and typer.confirm(question)):
        raise UserError(
            "nobody vouches for the server", field="WALRAS_SERVER", fix="run this in a terminal, and compare"
        )
    context = ssl.create_default_context(cadata=certificate)
    context.check_hostname = False  # it is this certificate or none
    return context


def _call(url: str, trust: ssl.SSLContext | None, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns what the server answers. Raises UserError with its words."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"X-Walras-Page": "1", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30, context=trust) as answer:
            found: dict[str, Any] = json.loads(answer.read(_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            told = json.loads(error.read(_ANSWER_BYTES) or b"{}")
        raise UserError(str(told.get("detail", error.reason)), fix=str(told.get("fix", ""))) from None
    except (OSError, ValueError) as error:
        warn(str(error))
        raise UserError(f"{url} does not answer as a server does", field="WALRAS_SERVER") from None
    return found
