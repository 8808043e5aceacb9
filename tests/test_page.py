"""HTML pages: they hold what they are given, and nothing in it can break out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from presage.model.errors import UserError
from presage.page import (
    choice,
    counted,
    duration_text,
    embedded,
    page,
    readable_unit,
    section,
    short,
    write_page,
)

HOSTILE = "</script><script>alert('x')</script>"


def test_a_page_holds_its_figures_and_escapes_texts() -> None:
    figures = {"charts": {"one": {"data": [{"name": HOSTILE}], "layout": {}}}, "choices": {}}
    body = section(HOSTILE, "words", choice("many", "Pod", {"": [HOSTILE], "group": ["a"]}))
    text = page(HOSTILE, {HOSTILE: HOSTILE}, body, figures)
    assert "<script>alert" not in text
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', text)
    assert found
    assert json.loads(found[1]) == figures
    assert '<select data-chart="many">' in text
    assert '<optgroup label="group"><option>a</option></optgroup>' in text


def test_json_cannot_end_its_script() -> None:
    assert "<" not in embedded({"a": HOSTILE})
    assert json.loads(embedded({"a": HOSTILE, "b": "\u2028"})) == {"a": HOSTILE, "b": "\u2028"}


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
