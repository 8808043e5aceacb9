"""A server with users, and a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from presage.foresee.champions import Champions
from presage.layout import Layout
from presage.model.estimate import Estimate
from presage.store import open_store
from tests.server.kit import PATIENCE_S, Server, Zygote

ROOT_TOKEN = "presage_root-of-the-pages"
PEOPLE = {"ada": ("user", "red"), "eve": ("user", "blue"), "victor": ("viewer", "")}
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    "--disable-features=PreloadTopChromeWebUI",  # pages of the browser itself, for each window
]

expect.set_options(timeout=1000 * PATIENCE_S)


@pytest.fixture(scope="session")
def guarded(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that wants a token, and whose estimates have been far off."""
    data = tmp_path_factory.mktemp("pages") / "data"
    data.mkdir()
    store = open_store(f"sqlite:///{Layout(data).database}")
    for _ in range(6):
        said = Estimate(90.0, 100.0, 110.0, "MiB", "")
        Champions(store.knowledge).judge("memory", said, 250.0)
    store.close()
    server = Server(zygote, data, nodes="3x4", env={"PRESAGE_TOKEN": ROOT_TOKEN}, token=ROOT_TOKEN)
    yield server.start()
    server.close()


@pytest.fixture(scope="session")
def tokens(guarded: Server) -> dict[str, str]:
    """A token of each person."""
    with guarded.client() as client:
        made = {name: client.add_user(name, *about).token for name, about in PEOPLE.items()}
    return {**made, "admin": ROOT_TOKEN}


@pytest.fixture(scope="session")
def browser(program: Callable[..., str]) -> Iterator[Browser]:
    """The system's Chromium; best the one without windows, which draws no tabs and menus."""
    chromium = program("chromium-headless-shell", "chromium", "chromium-browser")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium, args=FLAGS, timeout=1000 * PATIENCE_S
        )
        yield started
        started.close()


def new_window(browser: Browser, **options: Any) -> BrowserContext:
    """A window that is empty. Clicks and pages have as long as everything else: 30 s of the
    browser's own are too few where many wait for a core."""
    made = browser.new_context(**options)
    made.set_default_timeout(1000 * PATIENCE_S)
    return made


@pytest.fixture(scope="session")
def signed_in(
    browser: Browser, guarded: Server, tokens: dict[str, str]
) -> Callable[[str], BrowserContext]:
    """The browser of each person, with what it has loaded before: a new one would read and compile
    half a megabyte of scripts again."""

    @cache
    def context(who: str) -> BrowserContext:
        made = new_window(browser, reduced_motion="reduce")
        name, token = "presage_token", tokens[who]
        made.add_cookies([{"name": name, "value": token, "domain": "127.0.0.1", "path": "/ui"}])
        return made

    return context


Visitor = Callable[..., Page]


@pytest.fixture
def visit(
    browser: Browser, guarded: Server, signed_in: Callable[[str], BrowserContext]
) -> Iterator[Visitor]:
    """Opens a page as somebody who has signed in, or in a new browser. The test fails when a
    script of the page did, or when it asked another host for something."""
    opened: list[Page | BrowserContext] = []
    broken: list[str] = []

    def open_page(path: str, who: str | None = "ada", *, width: int = 1280) -> Page:
        context = new_window(browser) if who is None else signed_in(who)
        page = context.new_page()
        opened.append(context if who is None else page)
        page.set_viewport_size({"width": width, "height": 844})
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith((guarded.url, "data:", "blob:"))
                else broken.append(asked.url)
            ),
        )
        page.goto(guarded.url + path)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert not broken
