"""The page *Foresee* in a real browser: in the dashboard, and without a cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from presage.manifest import parse_manifest
from tests.server.kit import PATIENCE_S, Server, free_port
from tests.waiting import eventually
from tests.web.conftest import new_window

pytestmark = [pytest.mark.engine, pytest.mark.slow]
Visitor = Callable[..., Page]

SMALL = "model=hf:HuggingFaceTB/SmolLM2-135M&seq=1024&gpus=1&kinds=a100-80g,l4"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `presage foresee serve`."""
    home, port = tmp_path_factory.mktemp("alone"), free_port()
    log = home / "log"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PRESAGE_")}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "presage", "foresee", "serve", "--port", str(port)],
            stdout=out,
            stderr=out,
            cwd=home,
            env={**clean, "HOME": str(home)},
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx.get(f"{url}/ui/foresee", timeout=PATIENCE_S).status_code == 200
        except httpx.TransportError:
            return False

    eventually(answers)
    assert sorted(Path(home).iterdir()) == [log]  # it keeps nothing
    yield url
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A window for all tests: what it loaded once stays loaded."""
    context = new_window(browser)
    yield context
    context.close()


@pytest.fixture
def look(window: BrowserContext, alone: str) -> Iterator[Visitor]:
    """Opens the page without a cluster; the test fails when a script of it did."""
    broken: list[str] = []
    pages = []

    def open_page(query: str = SMALL, *, width: int = 1440) -> Page:
        page = window.new_page()
        pages.append(page)
        page.set_viewport_size({"width": width, "height": 900})
        page.on("pageerror", lambda error: broken.append(str(error)))
        page.goto(f"{alone}/ui/foresee?{query}")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not broken


def gib(page: Page, gpu: str = "a100-80g") -> float:
    """What the bar of a GPU says."""
    label = page.get_by_role("img", name=re.compile(f"^{gpu}: ")).get_attribute("aria-label")
    found = re.search(r": ([\d.]+) of", label or "")
    assert found
    return float(found[1])


def test_memory_time_and_money_follow_what_is_moved(look: Visitor) -> None:
    page = look(f"{SMALL}&batch=8")
    expect(page.locator(".stack")).to_have_count(2)
    small = gib(page)
    expect(page.get_by_role("cell", name="1 × l4")).to_be_visible()
    expect(page.get_by_text(re.compile(r"a100-80g: fits: .* batch up to"))).to_be_visible()

    page.get_by_role("spinbutton", name="Batch of a replica").fill("256")
    expect(page).to_have_url(re.compile("batch=256"))
    eventually(lambda: gib(page) > 2 * small)
    shared = page.url

    text = page.locator(".copy-box pre").inner_text()
    manifest = parse_manifest(text)
    assert manifest.model is not None
    assert (manifest.model.ref, manifest.model.batch) == ("hf:HuggingFaceTB/SmolLM2-135M", 256)

    page.get_by_role("button", name="Remove l4").click()
    expect(page.locator(".stack")).to_have_count(1)
    page.get_by_role("combobox", name="Add a GPU").select_option("t4")
    expect(page.locator(".stack")).to_have_count(2)
    expect(page.get_by_text(re.compile("^t4: (fits|may not|does not)"))).to_be_visible()

    page.goto(shared)  # a link brings the whole state back
    expect(page.get_by_role("spinbutton", name="Batch of a replica")).to_have_value("256")
    expect(page.locator(".stack")).to_have_count(2)


def test_a_plan_on_request(look: Visitor) -> None:
    page = look(f"{SMALL}&amount=1B&max_gpus=2&global_batch=64")
    page.get_by_role("button", name="Plan", exact=True).click()
    heading = page.get_by_role("heading", name=re.compile("that no other beats"))
    expect(heading).to_be_visible()
    expect(page.get_by_text("The cheapest that likely fits:")).to_be_visible()
    chart = page.get_by_role("img", name=re.compile(r"^Time and money\. \d"))
    expect(chart).to_be_visible()
    expect(page.get_by_text(re.compile(r"^\d[\d,]* ways: another"))).to_be_visible()
    page.get_by_role("textbox", name="Deadline").fill("1s")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("comes closest to 1 s")


def test_a_model_that_is_served(look: Visitor) -> None:
    page = look(f"{SMALL}&concurrency=4&kv_len=1024")
    page.get_by_role("combobox", name="Use").select_option("serving")
    expect(page).to_have_url(re.compile("use=serving"))
    cache = re.compile("^a100-80g: .*cache of keys and values")
    expect(page.get_by_role("img", name=cache)).to_be_visible()
    expect(page.get_by_role("columnheader", name="Tokens a second")).to_be_visible()
    expect(page.get_by_role("combobox", name="Optimizer")).to_be_disabled()
    expect(page.get_by_role("button", name="Plan", exact=True)).to_have_count(0)
    few = gib(page)
    page.get_by_role("spinbutton", name="Sequences at once").fill("512")
    eventually(lambda: gib(page) > 2 * few)
    expect(page.get_by_text(re.compile("a100-80g: .*concurrency"))).to_be_visible()
    manifest = parse_manifest(page.locator(".copy-box pre").inner_text())
    assert manifest.model is not None
    assert (manifest.model.kv_len, manifest.model.concurrency) == (1024, 512)
    assert manifest.model.setup().inference
    page.get_by_role("combobox", name="Model").fill("zoo:resnet18")
    expect(page.get_by_role("alert")).to_contain_text("is no language model")


def test_what_makes_no_sense_is_said(look: Visitor) -> None:
    page = look("batch=%3Cscript%3E")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The link is not right: batch")
    page.get_by_role("combobox", name="Model").fill("train.py:make")
    expect(alert).to_contain_text("name a model")
    page.get_by_role("combobox", name="Model").fill("smollm2-135m")
    page.get_by_role("spinbutton", name="GPUs").fill("3")
    page.get_by_role("combobox", name="Tensor parallel").select_option("2")
    expect(alert).to_contain_text("3 GPUs cannot be divided")
    page.get_by_role("spinbutton", name="GPUs").fill("1")
    expect(alert).to_have_count(0)
    expect(page.locator(".stack")).to_have_count(2)


def test_it_fits_a_phone_and_has_names_for_everything(look: Visitor) -> None:
    page = look(f"{SMALL}&amount=1B", width=390)
    expect(page.locator(".stack")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('input, select, textarea')].filter(field =>
            field.type !== 'hidden' && !field.labels?.length && !field.ariaLabel).length"""
    )
    assert unnamed == 0
    expect(page.locator("#models option").first).to_be_attached()
    assert page.locator("#models option").count() > 100


def test_without_a_cluster_there_is_only_this_page(look: Visitor, alone: str) -> None:
    page = look()
    expect(page.locator("header nav a")).to_have_text(["Foresee"])
    first = httpx.get(alone, follow_redirects=True)
    assert str(first.url) == f"{alone}/ui/foresee"
    assert httpx.get(f"{alone}/api/v1/jobs").status_code == 404
    assert httpx.get(f"{alone}/ui/queue").status_code == 404
    other = httpx.get(f"{alone}/ui/foresee", headers={"Host": "evil.example"})
    assert other.status_code == 403


def test_in_the_dashboard_one_signs_in(visit: Visitor, guarded: Server) -> None:
    stranger = visit(f"/ui/foresee?{SMALL}", None)
    assert "/ui/sign-in?next=" in stranger.url
    page = visit(f"/ui/foresee?{SMALL}", "victor")
    expect(page.locator(".stack")).to_have_count(2)
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="Foresee").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value(re.compile("^hf:"))
