"""Single sign-on: whoever signs in at an OpenID Connect provider is the user of that name here, with its role and
projects.

The page, or `walras whoami --login`, sends its user to the provider with a state that it keeps, a nonce and a PKCE
challenge, and hands the code that comes back to this server, which exchanges it and verifies the ID token: signature by
a key that the provider publishes (asymmetric algorithms alone), issuer, audience, expiry and nonce. Nobody is added: a
user whom no administrator has made is refused. Addresses are TLS or loopback, answers bounded, redirects not followed.
"""

import asyncio
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from walras.clocks import Clocks
from walras.errors import UserError
from walras.spec.cluster_file import SignInEntry

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_REQUIRED = ["iss", "sub", "aud", "exp", "iat", "nonce"]
_ANSWER_BYTES, _WITHIN_S, _KEPT_S, _LEEWAY_S, _AT_ONCE = 1 << 20, 10.0, 300.0, 60.0, 8
_Secret = Field(min_length=16, max_length=512)


class SignInRefused(UserError):
    """The provider, or what it says of the user, does not open this server."""


class SignInCode(BaseModel):
    """What came back from the provider, and what the page or the command sent there."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(min_length=1, max_length=4096)
    verifier: str = _Secret
    nonce: str = _Secret
    redirect_uri: str = Field(max_length=2048)
    #: Whether the answer is a token, for commands, and no cookie.
    token: bool = False


def is_safe(url: str) -> bool:
    """Returns whether nobody on the way can read or change what is said to this address: TLS, or loopback."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return True
    try:
        return parts.scheme == "http" and (host == "localhost" or ip_address(host).is_loopback)
    except ValueError:
        return False


@dataclass(slots=True)
class SingleSignOn:
    """The provider of one server."""

    settings: SignInEntry
    clocks: Clocks
    _facts: dict[str, Any] = field(default_factory=dict)
    _keys: dict[str, Any] = field(default_factory=dict)
    _known_until: float = -1.0
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def start(self) -> dict[str, str]:
        """Returns where a user is sent, and as which client. Raises SignInRefused."""
        async with self._session() as session:
            await self._look(session)
        endpoint, client = str(self._facts["authorization_endpoint"]), self.settings.client_id
        return {"authorization_endpoint": endpoint, "client_id": client, "scope": self.settings.scope}

    async def user_name(self, asked: SignInCode) -> str:
        """Returns the name of the user who signed in. Raises SignInRefused."""
        if not is_safe(asked.redirect_uri):
            raise SignInRefused("signing in needs TLS or loopback", field="redirect_uri", fix="open the page over TLS")
        form = {
            "grant_type": "authorization_code",
            "code": asked.code,
            "redirect_uri": asked.redirect_uri,
            "client_id": self.settings.client_id,
            "code_verifier": asked.verifier,
        }
        if secret := self.settings.client_secret():
            form["client_secret"] = secret
        async with self._turns, self._session() as session:
            await self._look(session)
            answer = await _asked(session, str(self._facts["token_endpoint"]), form)
        return self._name(self._claims(str(answer.get("id_token", "")), asked.nonce))

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WITHIN_S), trust_env=False)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        """Read what the provider publishes of itself, and its keys, unless that was done a moment ago."""
        if self.clocks.monotonic() < self._known_until:
            return
        issuer = self.settings.issuer
        facts = await _asked(session, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if facts.get("issuer") != issuer:
            raise SignInRefused(f"{issuer} says that it is {str(facts.get('issuer'))[:200]!r}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not is_safe(str(facts.get(name, ""))):
                raise SignInRefused(f"{issuer}: its {name} is neither TLS nor loopback")
        self._keys = await _asked(session, str(facts["jwks_uri"]))
        self._facts, self._known_until = facts, self.clocks.monotonic() + _KEPT_S

    def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        import jwt

        client = self.settings.client_id
        try:
            name = jwt.get_unverified_header(token).get("kid")
            keys = [key for key in jwt.PyJWKSet.from_dict(self._keys).keys if name is None or key.key_id == name]
            if len(keys) != 1:
                raise SignInRefused("the ID token is signed by no key of the provider")
            claims: dict[str, Any] = jwt.decode(
                token,
                keys[0],
                algorithms=_ALGORITHMS,
                audience=client,
                issuer=self.settings.issuer,
                leeway=_LEEWAY_S,
                options={"require": _REQUIRED},
            )
        except jwt.PyJWTError as error:
            raise SignInRefused(f"the ID token is not valid: {error}") from None
        parties = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if claims.get("azp", client) != client or (len(parties) > 1 and "azp" not in claims):
            raise SignInRefused("the ID token is for another client")
        if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
            raise SignInRefused("the ID token answers another sign-in")
        return claims

    def _name(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self.settings.user_claim)
        if not isinstance(name, str) or not name or len(name) > 200:
            raise SignInRefused(f"the ID token has no claim {self.settings.user_claim!r} that is a name")
        if self.settings.user_claim == "email" and claims.get("email_verified") is not True:
            raise SignInRefused(f"the provider has not verified the address {name[:100]!r}")
        return name


async def _asked(session: aiohttp.ClientSession, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the JSON object at an address, or the answer to a form. Raises SignInRefused."""
    try:
        async with session.request(
            "GET" if form is None else "POST", url, data=form, allow_redirects=False
        ) as response:
            content = await response.content.read(_ANSWER_BYTES + 1)
            while len(content) <= _ANSWER_BYTES and (more := await response.content.read(_ANSWER_BYTES)):
                content += more
            data = json.loads(content) if response.status == 200 and len(content) <= _ANSWER_BYTES else None
    except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise SignInRefused(f"{urlsplit(url).hostname} does not answer as a provider does, or refuses the code")
    return data
