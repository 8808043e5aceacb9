"""Sign-in with an identity provider (OpenID Connect): authorization code flow with PKCE.

A sign-in is begun and finished by whoever shows a person the provider's page: the dashboard, or
`presage login` with a listener on loopback. What proves that both are the same (the ticket) never
goes through a browser's address line. What comes back is an ID token, whose signature, issuer,
audience, nonce and expiry are checked; its groups give role and team.

Needs the extra `presage[oidc]`. Keeps no password and no token of the provider's.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Lock
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from presage.control.people.access_config import OidcConfig
from presage.control.people.accounts import UserRole
from presage.control.site.settings import is_loopback
from presage.model.errors import Denied, MissingExtra, StoreUnavailable, Unauthorized, UserError
from presage.store.records import User

__all__ = ["SignIns"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
"""None that uses a shared secret, and not `none`."""
_PATIENCE_S = 600.0
"""How long a person may take at the provider's page."""
_MOST_PENDING = 10_000
_KNOWN_S = 3600.0
"""How long the provider's addresses and keys are used without asking again."""
_LEEWAY_S = 30
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class _PendingSignIn:
    """A sign-in that was begun."""

    redirect: str
    state: str
    nonce: str
    verifier: str
    until: float


@dataclass(slots=True)
class _KnownProvider:
    """What a provider says about itself."""

    about: dict[str, Any]
    keys: Any
    until: float = field(default_factory=lambda: time.monotonic() + _KNOWN_S)


class SignIns:
    """The sign-ins of one server; from any thread."""

    def __init__(self, config: OidcConfig) -> None:
        if find_spec("authlib") is None or find_spec("joserfc") is None:
            raise MissingExtra("oidc", "sign-in with an identity provider")
        config.client_secret()  # a file that cannot be read is told at the start
        self._config = config
        self._pending: dict[str, _PendingSignIn] = {}
        self._provider: _KnownProvider | None = None
        self._lock = Lock()

    def begin(self, redirect: str) -> tuple[str, str]:
        """The provider's address to open, and the ticket that finishes the sign-in."""
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        _check_redirect(redirect)
        about = self._known().about
        ticket, state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(4))
        now = time.monotonic()
        with self._lock:
            self._pending = {k: p for k, p in self._pending.items() if p.until > now}
            if len(self._pending) >= _MOST_PENDING:
                raise StoreUnavailable("too many sign-ins were begun; try again in ten minutes")
            self._pending[ticket] = _PendingSignIn(
                redirect, state, nonce, verifier, now + _PATIENCE_S
            )
        url = prepare_grant_uri(
            about["authorization_endpoint"],
            self._config.client_id,
            "code",
            redirect_uri=redirect,
            scope=" ".join(self._config.scopes),
            state=state,
            nonce=nonce,
            code_challenge=create_s256_code_challenge(verifier),
            code_challenge_method="S256",
        )
        return str(url), ticket

    def finish(self, ticket: str, state: str, code: str) -> User:
        """Who signed in, with the role and team that the provider's groups give. A ticket is good
        once."""
        with self._lock:
            pending = self._pending.pop(ticket, None)
        if pending is None or pending.until < time.monotonic():
            raise Unauthorized("this sign-in is not known or took too long: begin again")
        if not hmac.compare_digest(pending.state.encode(), state.encode()):
            raise Unauthorized("the answer belongs to another sign-in: begin again")
        return self._mapped(self._claims(self._id_token(pending, code), pending.nonce))

    # -- the provider ---------------------------------------------------------------------------

    def _id_token(self, pending: _PendingSignIn, code: str) -> str:
        config = self._config
        form = {
            "grant_type": "authorization_code",
            "client_id": config.client_id,
            "code": code,
            "code_verifier": pending.verifier,
            "redirect_uri": pending.redirect,
        }
        secret = config.client_secret()
        basic = None
        if secret is not None:  # RFC 6749, 2.3.1: both parts are form-encoded
            basic = httpx.BasicAuth(quote(config.client_id, safe=""), quote(secret, safe=""))
        try:
            with httpx.Client(timeout=_ANSWER_S, auth=basic) as client:
                answer = client.post(self._known().about["token_endpoint"], data=form)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._silent(error) from None
        if not isinstance(body, dict) or not answer.is_success:
            said = body.get("error") if isinstance(body, dict) else answer.status_code
            raise Unauthorized(f"the identity provider refused: {str(said)[:100]}")
        token = body.get("id_token")
        if not isinstance(token, str):
            raise Unauthorized("the identity provider gave no ID token: is scope openid allowed?")
        return token

    def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        """What an ID token says, once it is proved to be the provider's, for us, for this sign-in
        and of now."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        config = self._config
        must = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": config.issuer},
            aud={"essential": True, "value": config.client_id},
            sub={"essential": True},
            exp={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            claims: Mapping[str, Any] = self._decoded(token).claims
            must.validate(dict(claims))
        except (JoseError, ValueError) as error:
            raise Unauthorized(f"the ID token is not valid: {error}") from None
        if claims.get("azp", config.client_id) != config.client_id:
            raise Unauthorized("the ID token is not valid: it was made for another program")
        return claims

    def _decoded(self, token: str) -> Any:
        """The token, verified with the provider's keys; asked for again if it is of a new one."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            return jwt.decode(token, self._known().keys, algorithms=_ALGORITHMS)
        except (JoseError, ValueError):
            return jwt.decode(token, self._known(anew=True).keys, algorithms=_ALGORITHMS)

    def _known(self, *, anew: bool = False) -> _KnownProvider:
        known = self._provider
        if known is not None and known.until > time.monotonic() and not anew:
            return known
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        issuer = self._config.issuer
        try:
            with httpx.Client(timeout=_ANSWER_S) as client:
                about = _json(client, issuer.rstrip("/") + "/.well-known/openid-configuration")
                if about.get("issuer") != issuer:
                    raise ValueError(f"it calls itself {about.get('issuer')!r}")
                for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                    _check_address(str(about.get(name)), name)
                given: Any = _json(client, about["jwks_uri"])
                keys = KeySet.import_key_set(given)
        except (httpx.HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
            raise self._silent(error) from None
        self._provider = _KnownProvider(about, keys)
        return self._provider

    def _silent(self, error: Exception) -> StoreUnavailable:
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        return StoreUnavailable(
            f"the identity provider {self._config.issuer} cannot be asked: {said}"
        )

    # -- who that is ----------------------------------------------------------------------------

    def _mapped(self, claims: Mapping[str, Any]) -> User:
        config = self._config
        name = str(claims.get(config.name_claim, "")).lower()
        if not _NAME.fullmatch(name):
            raise Denied(
                f"claim {config.name_claim} of the identity provider ({name[:80]!r}) cannot be a "
                "user's name here; an operator can choose another claim: oidc.name_claim"
            )
        given = claims.get(config.groups_claim) or []
        groups = {given} if isinstance(given, str) else {str(group) for group in given}
        giving = {role for role, of in config.roles.items() if groups & set(of)}
        roles = [role for role in UserRole if role in giving]
        role = roles[-1] if roles else config.default_role
        if role is None:
            raise Denied(
                f"none of the groups of {name} ({', '.join(sorted(groups)) or 'none'}) gives a "
                "role here; an operator maps them under oidc.roles"
            )
        team = next((team for team, of in config.teams.items() if groups & set(of)), "")
        return User(name, role, team, 0.0, f"{config.issuer} {claims['sub']}")


def _json(client: httpx.Client, url: str) -> dict[str, Any]:
    answer = client.get(url)
    answer.raise_for_status()
    body = answer.json()
    if not isinstance(body, dict):
        raise ValueError(f"{url} is no JSON object")
    return body


def _check_address(url: str, what: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname)):
        raise ValueError(f"{what} is not https")


def _check_redirect(redirect: str) -> None:
    """Answers go to the dashboard or to a program on the person's own machine; which addresses
    those are is registered with the provider, too."""
    parts = urlsplit(redirect)
    to_dashboard = parts.path == "/ui/session/callback" and not parts.query
    to_program = parts.scheme == "http" and _is_here(parts.hostname)
    if parts.scheme not in ("http", "https") or not (to_dashboard or to_program):
        raise UserError("a sign-in ends at the dashboard, or at a listener on loopback")


def _is_here(host: str | None) -> bool:
    return host is not None and is_loopback(host)
