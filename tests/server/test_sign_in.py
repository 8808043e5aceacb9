"""Sign-in with an identity provider: the dashboard, `presage login`, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey

from presage.control.people.access_config import OidcConfig
from presage.control.people.accounts import Accounts
from presage.control.people.oidc import SignIns
from presage.control.site.config import ServerFile, effective
from presage.model.errors import (
    ConfigError,
    Denied,
    PresageError,
    StoreUnavailable,
    Unauthorized,
    UserError,
)
from presage.store import open_store
from tests.server.identity import CLIENT, SECRET, Provider
from tests.server.kit import PATIENCE_S, Server, Zygote, eventually

ADA = {"sub": "u-1", "preferred_username": "Ada", "groups": ["ml", "staff"]}
ROOT = {"sub": "u-0", "preferred_username": "boss", "groups": ["admins", "staff"]}
HERE = "http://127.0.0.1:1/callback"
MAPPING: dict[str, Any] = {
    "roles": {"admin": ["admins"], "user": ["staff"]},
    "teams": {"red": ["ml"], "blue": ["ops", "ml"]},
}


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider that signs ada in."""
    running = Provider()
    running.person = dict(ADA)
    yield running
    running.close()


@pytest.fixture
def config(provider: Provider, tmp_path: Path) -> OidcConfig:
    """How a server is to ask it."""
    secret = tmp_path / "client-secret"
    secret.write_text(f"{SECRET}\n")
    return OidcConfig(issuer=provider.issuer, client_id=CLIENT, secret_file=secret, **MAPPING)


def _answered(sign_ins: SignIns) -> tuple[str, str, str]:
    """Ticket, state and code of a sign-in, as a browser brings them back."""
    url, ticket = sign_ins.begin(HERE)
    location = httpx.get(url).headers["location"]
    assert location.startswith(HERE)
    query = parse_qs(urlsplit(location).query)
    return ticket, query["state"][0], query["code"][0]


def test_groups_give_role_and_team(provider: Provider, config: OidcConfig) -> None:
    sign_ins = SignIns(config)
    user = sign_ins.finish(*_answered(sign_ins))
    assert (user.name, user.role, user.team) == ("ada", "user", "red")
    assert user.subject == f"{provider.issuer} u-1"
    provider.person = dict(ROOT)
    assert sign_ins.finish(*_answered(sign_ins)).role == "admin"
    provider.person = {**ADA, "groups": "staff"}
    assert sign_ins.finish(*_answered(sign_ins)).team == ""
    provider.person = {**ADA, "groups": ["others"]}
    with pytest.raises(Denied, match=r"none of the groups of ada \(others\) gives a role"):
        sign_ins.finish(*_answered(sign_ins))
    provider.person = {**ADA, "preferred_username": "../x"}
    with pytest.raises(Denied, match=r"cannot be a user's name.*oidc\.name_claim"):
        sign_ins.finish(*_answered(sign_ins))
    guests = SignIns(config.model_copy(update={"default_role": "viewer"}))
    provider.person = {"sub": "u-2", "preferred_username": "guest"}
    assert guests.finish(*_answered(guests)).role == "viewer"


@pytest.mark.parametrize(
    "spoilt",
    [
        {"iss": "https://elsewhere.example"},
        {"aud": "another-client"},
        {"nonce": "of-another-sign-in"},
        {"nonce": None},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"azp": "another-client"},
    ],
    ids=lambda spoilt: "-".join(map(str, *spoilt.items())),
)
def test_an_id_token_for_somebody_else_is_refused(
    provider: Provider, config: OidcConfig, spoilt: dict[str, Any]
) -> None:
    def spoil(claims: dict[str, Any]) -> None:
        claims.update(spoilt)
        for name, value in spoilt.items():
            if value is None:
                del claims[name]

    provider.spoil = spoil
    sign_ins = SignIns(config)
    with pytest.raises(Unauthorized, match="the ID token is not valid"):
        sign_ins.finish(*_answered(sign_ins))


def test_an_id_token_of_somebody_else_is_refused(provider: Provider, config: OidcConfig) -> None:
    sign_ins = SignIns(config)
    for key in (RSAKey.generate_key(2048, {"kid": "1"}), RSAKey.generate_key(2048, {"kid": "9"})):
        provider.signed_with = key
        provider.header = {"alg": "RS256", "kid": str(key.kid)}
        with pytest.raises(Unauthorized, match="the ID token is not valid"):
            sign_ins.finish(*_answered(sign_ins))
    provider.shared_secret()
    with pytest.raises(Unauthorized, match="the ID token is not valid"):
        sign_ins.finish(*_answered(sign_ins))


def test_a_provider_may_change_its_keys(provider: Provider, config: OidcConfig) -> None:
    sign_ins = SignIns(config)
    sign_ins.finish(*_answered(sign_ins))
    provider.keys = [RSAKey.generate_key(2048, {"kid": "2"})]
    provider.signed_with, provider.header = provider.keys[0], {"alg": "RS256", "kid": "2"}
    assert sign_ins.finish(*_answered(sign_ins)).name == "ada"


def test_a_ticket_is_good_once_and_for_its_own_answer(
    provider: Provider, config: OidcConfig, tmp_path: Path
) -> None:
    sign_ins = SignIns(config)
    ticket, state, code = _answered(sign_ins)
    other, _, _ = _answered(sign_ins)
    with pytest.raises(Unauthorized, match="another sign-in"):
        sign_ins.finish(other, state, code)
    assert sign_ins.finish(ticket, state, code).name == "ada"
    for given in (ticket, other, "made-up"):
        with pytest.raises(Unauthorized, match="not known"):
            sign_ins.finish(given, state, code)
    ticket, state, _ = _answered(sign_ins)
    with pytest.raises(Unauthorized, match="refused: invalid_grant"):
        sign_ins.finish(ticket, state, "made-up")
    for address in (
        "https://evil.example/callback",
        "http://evil.example/ui/x",
        "ftp://127.0.0.1/",
    ):
        with pytest.raises(UserError, match="ends at the dashboard"):
            sign_ins.begin(address)
    (tmp_path / "client-secret").write_text("wrong")
    with pytest.raises(Unauthorized, match="invalid_client"):
        sign_ins.finish(*_answered(sign_ins))


def test_a_provider_that_is_not_what_it_should_be(config: OidcConfig, tmp_path: Path) -> None:
    def broken(**changes: Any) -> PresageError:
        with pytest.raises(PresageError) as raised:
            SignIns(config.model_copy(update=changes)).begin(HERE)
        return raised.value

    said = broken(issuer=config.issuer + "/")
    assert isinstance(said, StoreUnavailable)
    assert "it calls itself" in str(said)
    assert "cannot be asked" in str(broken(issuer="http://127.0.0.1:9"))
    assert "cannot be read" in str(broken(secret_file=tmp_path / "none"))
    with pytest.raises(ConfigError, match="an issuer is an https address"):
        effective(ServerFile(), {"oidc_issuer": "http://example.org", "oidc_client_id": "x"})
    with pytest.raises(ConfigError, match="client_id"):
        effective(ServerFile(), {"oidc_issuer": "https://example.org"})


def test_a_user_of_this_server_is_never_taken_over(
    provider: Provider, config: OidcConfig, tmp_path: Path
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'presage.db'}")
    accounts, sign_ins = Accounts(store.users, closed=True), SignIns(config)
    assert not accounts.open()
    with pytest.raises(Unauthorized, match="wants a token"):
        accounts.whose(None)
    accounts.add("ada", "admin", "", by="test")
    with pytest.raises(Denied, match="another user ada"):
        accounts.sign_in(sign_ins.finish(*_answered(sign_ins)), 60)
    assert len(store.users.tokens("ada")) == 1
    provider.person = dict(ROOT)
    accounts.sign_in(sign_ins.finish(*_answered(sign_ins)), 60)
    accounts.remove("ada", by="test")
    provider.person = dict(ADA)
    token = accounts.sign_in(sign_ins.finish(*_answered(sign_ins)), 60)
    assert accounts.whose(f"Bearer {token}").role == "user"
    # What the provider says next time holds, under the name that was given first.
    provider.person = {**ADA, "preferred_username": "Lovelace", "groups": ["admins"]}
    again = accounts.sign_in(sign_ins.finish(*_answered(sign_ins)), -1)
    me = accounts.whose(f"Bearer {token}")
    assert (me.name, me.role, me.team) == ("ada", "admin", "")
    with pytest.raises(Unauthorized, match="has expired"):
        accounts.whose(f"Bearer {again}")
    with pytest.raises(PresageError, match="come from its groups"):
        accounts.set("ada", "viewer", None, by="test")
    store.close()


def test_the_dashboard_and_the_command_line(
    provider: Provider, config: OidcConfig, zygote: Zygote, tmp_path: Path
) -> None:
    access = tmp_path / "server.yaml"
    about = {"issuer": "https://x", "client_id": "x", "secret_file": "client-secret"}
    access.write_text(json.dumps({"oidc": MAPPING | about}))
    server = Server(
        zygote,
        tmp_path / "data",
        *("--config", str(access)),
        *("--oidc-issuer", config.issuer, "--oidc-client-id", CLIENT),
    )
    try:
        server.start()
        _through_the_dashboard(server)
        _through_the_command_line(server, zygote, tmp_path / "home")
        assert SECRET not in server.log()
    finally:
        server.close()


def _through_the_dashboard(server: Server) -> None:
    assert server.stranger.get("/api/v1/jobs").status_code == 401
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, verify=False) as browser:
        assert "Sign in with 127.0.0.1" in browser.get("/ui/sign-in").text
        begun = browser.post("/ui/session/provider", data={"next": "/ui/queue"})
        assert begun.status_code == 303
        back = browser.get(begun.headers["location"]).headers["location"]
        assert back.startswith(f"{server.url}/ui/session/callback?")
        # Another browser that is given the address is not signed in by it.
        stolen = server.stranger.get(back)
        assert "begun%20elsewhere" in stolen.headers["location"]
        assert "presage_token" not in stolen.headers.get("set-cookie", "")
        ended = browser.get(back)
        assert ended.headers["location"] == "/ui/queue"
        cookies = ended.headers.get_list("set-cookie")
        (kept,) = [cookie for cookie in cookies if cookie.startswith("presage_token=presage_")]
        assert "HttpOnly" in kept
        headers = {"Authorization": f"Bearer {browser.cookies['presage_token']}"}
        me = server.stranger.get("/api/v1/me", headers=headers).json()
        assert (me["name"], me["role"], me["team"]) == ("ada", "user", "red")
        again = browser.get(back)
        assert "/ui/sign-in?said=" in again.headers["location"]
        browser.post("/ui/session/end")
        assert server.stranger.get("/api/v1/me", headers=headers).status_code == 401


def _through_the_command_line(server: Server, zygote: Zygote, home: Path) -> None:
    env = {"PRESAGE_URL": server.url, "XDG_CONFIG_HOME": str(home)}
    command = zygote.start("login", "--no-browser", "--json", env=env)
    url = eventually(lambda: [w for w in command.said().split() if w.startswith("http://")])[0]
    assert "close this window" in httpx.get(url, follow_redirects=True).text
    done = command.done()
    assert (done.code, done.json["name"], done.json["role"]) == (0, "ada", "user")
    file = home / "presage" / "tokens.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert zygote.run("ps", "--json", env=env).code == 0
    token = json.loads(file.read_text())[server.url]
    assert token not in done.out + done.err
    wrong = zygote.run("ps", env={**env, "PRESAGE_TOKEN": "x"})
    assert (wrong.code, "presage login" in wrong.err) == (2, True)  # the variable comes first
    file.chmod(0o644)
    assert "chmod 600" in zygote.run("ps", env=env).err
    file.chmod(0o600)
    assert zygote.run("logout", "--json", env=env).json["revoked"] is True
    assert zygote.run("ps", env=env).code == 2
    headers = {"Authorization": f"Bearer {token}"}
    assert server.stranger.get("/api/v1/me", headers=headers).status_code == 401
    assert "no token is kept" in zygote.run("logout", env=env).err
    assert "no token was given" in zygote.run("login", "--with-token", env=env).err
