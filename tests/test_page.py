"""HTML pages: they hold what they are given, and nothing in it can break out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from jinja2 import UndefinedError

from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.picture import page as graph_page
from presage.model.errors import UserError
from presage.observe.phases import PhaseModel
from presage.observe.phases import report as phases
from presage.page import counted, duration_text, readable_unit, render, short, write_page
from presage.provision.report import rightsize_page
from presage.provision.rightsize import rightsize
from presage.reproduce.result import Chart, ReproducedFigure, Reproduction, reproduction_page
from presage.sim._html import page as simulation_page
from presage.sim.clusters import read_cluster
from presage.telemetry.readers import read_telemetry
from tests.cli.telemetry import made, written
from tests.sim.results import made_up, trace_of

HOSTILE = "</script><evil x='\">&amp;"


def simulation(folder: Path) -> str:
    trace = trace_of([(0, 60, 1), (5, 60, 2), (9, 60, 1)])
    jobs = trace.jobs.with_columns(job_id=pl.col("job_id") + pl.lit(HOSTILE))
    trace = replace(trace, name=HOSTILE, notes=(HOSTILE,), jobs=jobs)
    result = made_up(HOSTILE, trace, rejected=1, held=True)
    reason = pl.when(pl.col("status") == "rejected").then(pl.lit(HOSTILE))
    where = pl.lit([HOSTILE])
    jobs = result.jobs.with_columns(reason=reason, nodes=where)
    return simulation_page([replace(result, jobs=jobs)], trace, read_cluster("2x4"))


def telemetry(folder: Path, columns: dict[str, str]) -> Path:
    table = made(pods=2, samples=80).with_columns(pod=pl.col("pod") + HOSTILE).rename(columns)
    return written(table, folder / "pods.csv")


def phases_show(folder: Path) -> str:
    names = {"cpu_cores": HOSTILE, "memory_bytes": f"{HOSTILE}_bytes"}
    series = read_telemetry(telemetry(folder, names))
    model = PhaseModel.fit(series, features=list(names.values()), every=15.0, k=2)
    return phases.show_page(HOSTILE, model, series, model.predict_many(series))


def phases_graph(folder: Path) -> str:
    series = read_telemetry(telemetry(folder, {"cpu_cores": HOSTILE}))
    model = PhaseModel.fit(series, features=[HOSTILE], every=15.0, k=2)
    return phases.graph_page(HOSTILE, model, series, model.predict_many(series), 2)


def right_sizing(folder: Path) -> str:
    return rightsize_page(HOSTILE, rightsize(read_telemetry(telemetry(folder, {})), ["vpa"], 60))


def model_graph(folder: Path) -> str:
    graph = precomputed.read(zoo.find("mlp"))
    assert graph is not None
    return graph_page(replace(graph, name=HOSTILE, notes=(HOSTILE,)))


def reproduction(folder: Path) -> str:
    chart = Chart(HOSTILE, HOSTILE, {"data": [{"name": HOSTILE}], "layout": {}})
    lines = (ReproducedFigure(HOSTILE, 1.0, unit=HOSTILE, target=HOSTILE),)
    return reproduction_page(Reproduction(HOSTILE, HOSTILE, HOSTILE, lines, (HOSTILE,), (chart,)))


def header(folder: Path) -> str:
    me = {"name": HOSTILE, "role": HOSTILE, "created_at": "today"}
    shown = {"home": HOSTILE, "links": [(HOSTILE, HOSTILE)], "here": HOSTILE, "theme": HOSTILE}
    return render("header.html", me=me, **shown)


class Reader(HTMLParser):
    """The elements of a page, which of them hold a hostile text, and the figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.holding, self.figures = [""], set[str](), "{}"
        self._figures = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._figures = ("id", "figures") in attrs
        self.holding |= {f"{tag} {key}" for key, value in attrs if HOSTILE in (value or "")}

    def handle_data(self, data: str) -> None:
        if HOSTILE in data:
            self.holding.add(self.tags[-1])
        if self._figures:
            self.figures, self._figures = data, False


@pytest.mark.parametrize(
    ("make", "holding", "drawn"),
    [
        (simulation, "title h1 dd th option p li", 8),
        (phases_show, "title h1 dd th option", 4),
        (phases_graph, "title h1 dd", 0),
        (right_sizing, "title h1 option", 0),
        (model_graph, "title h1 dd", 0),
        (reproduction, "title h1 h2 dd th td p li", 1),
        (header, "a,a href,button,button data-theme-choice,form action,span", 0),
    ],
)
def test_hostile_names_are_text_on_every_page(
    tmp_path: Path, make: Callable[[Path], str], holding: str, drawn: int
) -> None:
    """Names of jobs, policies, files, columns … are where they belong, letter by letter, and make
    no element; in figures, Plotly is given no tag either."""
    page = Reader(make(tmp_path))
    assert "evil" not in page.tags
    assert page.holding == set(holding.split("," if "," in holding else " "))
    texts = json.dumps(json.loads(page.figures), ensure_ascii=False)
    assert "<evil" not in texts
    assert unescape(texts).count("<evil") >= drawn


def test_a_page_that_is_not_given_what_it_needs_is_none() -> None:
    with pytest.raises(UndefinedError, match="'facts' is undefined"):
        render("page.html", title="x", figures={})


@pytest.mark.parametrize(
    ("unit", "most", "answer"),
    [
        ("bytes", 3.0 * (1 << 30), (1 << 30, "GiB")),
        ("bytes", 900.0, (1, "bytes")),
        ("kB", 5000.0, (1 << 10, "MiB")),
        ("MiB", 100.0, (1, "MiB")),
        ("cores", 1e6, (1, "cores")),
        ("bytes/s", float("nan"), (1, "bytes/s")),
    ],
)
def test_units_that_people_read(unit: str, most: float, answer: tuple[float, str]) -> None:
    assert readable_unit(unit, most) == answer


def test_times_and_numbers_that_people_read() -> None:
    texts = [duration_text(seconds) for seconds in (5, 60, 90, 5400, 200_000)]
    assert texts == ["5 s", "60 s", "1.5 min", "1.5 h", "2.31 d"]
    assert (counted(1, "pod"), counted(9578, "pod")) == ("1 pod", "9,578 pods")
    assert short([1 / 3, float("nan"), float("inf")]) == [0.333333, None, None]


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "text")
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(UserError, match="cannot write"):
        write_page(tmp_path / "nowhere" / "page.html", "text")
