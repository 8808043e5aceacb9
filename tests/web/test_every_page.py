"""Every page, as it looks: no page is wider than a phone or has a script that fails, and the first
one says what matters without scrolling.

With `PRESAGE_SCREENSHOTS=1` every page is also drawn at 1440 and 390 pixels, in light and dark
colours, into `build/screenshots`; with `PRESAGE_SCREENSHOTS=docs` those that the documents show go
to `docs/images`, too. Charts have more to show then, so that takes a minute longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from presage.web import pages
from tests.server.kit import Server, Zygote, eventually
from tests.web.conftest import ROOT_TOKEN, new_window

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
_PLACE = ROOT / "build" / "screenshots"
DRAWN = os.environ.get("PRESAGE_SCREENSHOTS", "")
PATHS = {
    "cluster": "/ui/",
    "jobs": "/ui/queue",
    "alerts": "/ui/alerts",
    "job": "/ui/jobs/trained",
    "job-waiting": "/ui/jobs/waits",
    "array": "/ui/arrays/sweep",
    "arrays": "/ui/arrays",
    "compare": "/ui/compare?jobs=lr-low,lr-high",
    "submit": "/ui/submit?again=trained",
    "queues": "/ui/queues",
    "utilization": "/ui/utilization",
    "usage": "/ui/usage",
    "policies": "/ui/policies",
    "foresee": "/ui/foresee?model=hf:meta-llama/Llama-3.1-8B",
    "users": "/ui/users",
    "audit": "/ui/audit",
    "no-job": "/ui/jobs/traned",
    "no-page": "/ui/nothing-here",
    "sign-in": "/ui/sign-in",
}
"""Of every page of the dashboard, one address."""
SIZES = ((1440, "light"), (1440, "dark"), (390, "light"), (390, "dark"))
IN_DOCS = {**dict.fromkeys(PATHS, SIZES), "front": SIZES[:1]}
_REPORT = (
    'printf \'{"done":0.%d,"step":%d,"metrics":{"loss":%s},"at":1}\' $i $i '
    '$(awk "BEGIN{print START/($i+1)}") > $PRESAGE_PROGRESS.new; '
    "mv $PRESAGE_PROGRESS.new $PRESAGE_PROGRESS; echo step $i; "
)
_TRAIN = f"i=0; while :; do i=$((i+1)); {_REPORT} sleep 3; done"
_DIVERGES = _TRAIN.replace('$(awk "BEGIN{print START/($i+1)}")', "NaN")
_MAKES = 'echo made; mkdir "$PRESAGE_RESULT_DIR/model"; echo x > "$PRESAGE_RESULT_DIR/model/w.bin"'
_SWEPT = 'printf \'{"done":1,"metrics":{"loss":%s},"at":1}\' ${lr} > $PRESAGE_PROGRESS; sleep 1'


@pytest.fixture(scope="module")
def busy(guarded: Server) -> Iterator[Server]:
    """A server with jobs of every kind."""
    guarded.stop_everything()
    for name, start in (("lr-low", "2"), ("lr-high", "3")):
        command = _TRAIN.replace("START", start)
        guarded.submit(command, name=name, env={"LR": start}, resources={"gpus": 1}, grace="1s")
    guarded.submit(_DIVERGES, name="diverges", grace="1s")
    guarded.wait(guarded.submit(_MAKES, name="trained", resources={"gpus": 1, "cpus": 1}))
    sweep = {"grid": {"lr": [0.1, 0.2, 0.3]}}
    objective = {"metric": "loss"}
    guarded.submit(_SWEPT, name="sweep", sweep=sweep, objective=objective)
    guarded.submit("sleep 600", name="holds", workers=2, resources={"gpus": 4}, grace="1s")
    guarded.submit("true", name="waits", workers=3, resources={"gpus": 4})
    points = 6 if DRAWN else 1

    def told() -> bool:
        asked = guarded.http.get("/api/v1/compare", params={"job": ["lr-low", "lr-high"]})
        curves = asked.json()["metrics"].get("loss", [])
        return len(curves) == 2 and all(len(one["values"]) >= points for one in curves)

    eventually(told)
    if DRAWN:
        eventually(lambda: guarded.http.get("/api/v1/health/alerts").json()["open"])
    yield guarded
    guarded.stop_everything()


def test_every_page_is_among_them() -> None:
    named = {module.__name__.rpartition(".")[2] for module in pages.PAGES}
    shown = {"queue": "jobs", "sign_in": "sign-in"}
    covered = {shown.get(name, name) for name in named}
    assert covered - {"arrays"} <= {*PATHS}


@pytest.mark.parametrize("name", PATHS)
def test_it_fits_a_phone_and_has_names_for_everything(
    busy: Server, signed_in: Callable[[str], BrowserContext], name: str
) -> None:
    page = signed_in("admin").new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(busy.url + PATHS[name])
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("main").count() == 1
    assert page.locator("html").get_attribute("lang")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('input, select, textarea')].filter(field =>
            field.type !== 'hidden' && !field.labels?.length && !field.ariaLabel).length"""
    )
    assert unnamed == 0
    if name == "no-page":
        wrong = [text for text in wrong if "404" not in text]  # the browser says so, too
    assert wrong == []
    page.close()


if DRAWN:  # a test that is skipped is a failure where everything must run

    @pytest.mark.parametrize("width", [1440, 390])
    @pytest.mark.parametrize("colours", ["light", "dark"])
    def test_screenshots(busy: Server, browser: Browser, width: int, colours: str) -> None:
        draw_every_page(busy, browser, width, colours)
        assert {*PATHS} <= {
            p.name.partition(f"-{width}-")[0] for p in _PLACE.glob(f"*-{colours}.png")
        }

    def test_picture_of_the_front_page(zygote: Zygote, browser: Browser, tmp_path: Path) -> None:
        server = Server(
            *(zygote, tmp_path / "data"),
            nodes="24x8",
            env={"PRESAGE_TOKEN": ROOT_TOKEN},
            token=ROOT_TOKEN,
        )
        context = _context(browser, 1440, "light")
        try:
            server.start()
            with server.client() as client:
                people = [client.add_user(name, "user", "lab").token for name in _PEOPLE]
            for number, (name, workers, gpus) in enumerate(_FRONT):
                with server.client(people[number % len(people)]) as client:
                    about = f"workers: {workers}\nresources: {{gpus: {gpus}}}\ngrace: 1s"
                    client.submit_text(f"name: {name}\ncommand: sleep 900\n{about}\n")
            running = sum(not name.startswith("next-") for name, _, _ in _FRONT)

            def all_there() -> bool:
                told = server.http.get("/api/v1/overview").json()
                return bool(told["jobs"]["running"] >= running and told["waiting"][0]["eta_s"])

            eventually(all_there)
            page = context.new_page()
            page.goto(server.url + "/ui/")
            expect(page.locator(".node")).to_have_count(24)
            page.wait_for_timeout(3000)
            _keep(page, "front", 1440, "light")
        finally:
            context.close()
            server.close()


_PEOPLE = ("ada", "grace", "katherine", "edsger")
_FRONT = (
    *(("llm-pretrain", 6, 8), ("vit-large", 2, 8), ("resnet-sweep", 1, 4), ("speech", 2, 4)),
    *(("diffusion", 3, 8), ("bert-finetune", 1, 2), ("ranking", 1, 8), ("segment", 1, 4)),
    *(("notebook", 1, 1), ("gnn", 2, 8), ("detector", 1, 8), ("moe", 5, 8)),
    *(("next-llm", 8, 8), ("next-vit", 7, 8), ("next-eval", 6, 8), ("next-tts", 9, 8)),
)
"""Jobs of the picture: name, workers, GPUs of each; the last ones wait."""


def draw_every_page(server: Server, browser: Browser, width: int, colours: str) -> None:
    """Pictures of all pages at one width, in one of the colours."""
    context = _context(browser, width, colours)
    page = context.new_page()
    for name, path in PATHS.items():
        page.goto(server.url + path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        if name == "foresee":
            expect(page.locator(".stack")).to_have_count(2)
        page.wait_for_timeout(1500)  # pictures for people: charts are drawn by now
        _keep(page, name, width, colours)
    context.close()


def _context(browser: Browser, width: int, colours: str) -> BrowserContext:
    """A browser of the admin."""
    context = new_window(
        browser,
        viewport={"width": width, "height": 900 if width > 1000 else 844},
        color_scheme="dark" if colours == "dark" else "light",
        reduced_motion="reduce",
    )
    cookie = {"name": "presage_token", "value": ROOT_TOKEN, "domain": "127.0.0.1", "path": "/ui"}
    context.add_cookies([cookie])  # type: ignore[list-item]
    return context


def _keep(page: Page, name: str, width: int, colours: str) -> None:
    from PIL import Image

    place = _PLACE / f"{name}-{width}-{colours}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=place)
    if DRAWN == "docs" and (width, colours) in IN_DOCS.get(name, ()):
        kept = "dashboard-cluster.png" if name == "front" else f"page-{place.name}"
        few = Image.open(place).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        few.save(ROOT / "docs" / "images" / kept, optimize=True)


# -- the first page -------------------------------------------------------------------------------


def bottom(page: Page, selector: str) -> float:
    """Where the last of these ends."""
    box = page.locator(selector).last.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


@pytest.mark.parametrize("nodes", ["1x7", "1000x8"])
def test_the_first_page_says_it_without_scrolling(
    zygote: Zygote, browser: Browser, tmp_path: Path, nodes: str
) -> None:
    server = Server(zygote, tmp_path / "data", nodes=nodes)
    context = new_window(browser, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    try:
        server.start()
        page.goto(server.url + "/ui/")
        expect(
            page.get_by_role("heading", name="No job yet: submit the first one")
        ).to_be_visible()
        gpus = 7 if nodes == "1x7" else 8
        job = server.submit("sleep 600", name="first", resources={"gpus": gpus}, grace="1s")
        expect(page.get_by_role("link", name=job)).to_be_visible()  # without a reload
        whole = {"workers": 1 if gpus == 7 else 1000, "resources": {"gpus": gpus}}
        for number in range(10):
            server.submit("true", name=f"waits-{number}", **whole)
        rows = page.get_by_role("table", name="Jobs that wait").locator("tbody tr")
        expect(rows).to_have_count(8)
        expect(rows.first).to_contain_text("needs")
        assert bottom(page, ".glance > .card") <= 900
        expect(page.locator(".node")).to_have_count(1 if gpus == 7 else 1000)
        if gpus == 8:
            assert bottom(page, ".map-grid") < 1400  # a thousand nodes are not a long way down
    finally:
        context.close()
        server.close()


def test_without_gpus_cores_come_first(zygote: Zygote, browser: Browser, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.yaml"
    nodes.write_text("nodes:\n  - {name: box, cpus: 16, memory_gib: 32, count: 2}\n")
    server = Server(zygote, tmp_path / "data", nodes=str(nodes))
    context = new_window(browser, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    try:
        server.start()
        server.wait(server.submit("sleep 600", resources={"cpus": 4}, grace="1s"), "PROCESSING")
        page.goto(server.url + "/ui/")
        tiles = page.locator(".tiles")
        expect(tiles).to_contain_text("Cores held")
        expect(tiles.locator("dd").first).to_have_text("4 of 32")
        expect(tiles).not_to_contain_text("GPU")
    finally:
        context.close()
        server.close()
