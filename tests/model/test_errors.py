"""The exception tree: one file has it whole, and people find every error in the documents."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import presage
from presage.model import errors
from presage.model.errors import PresageError
from presage.server.problems import status_of

pytestmark = pytest.mark.slow  # it imports everything

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
TREE = re.compile(r"^((?:[│ ]   )*(?:[├└]── )?)(\w+)  +\S")
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (\d+|–) \| (.+) \| (.+) \|$", re.MULTILINE)


def below(kind: type[PresageError]) -> Iterator[type[PresageError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from below(child)


@pytest.fixture(scope="module")
def kinds() -> list[type[PresageError]]:
    """Every error of the package."""
    for module in pkgutil.walk_packages(presage.__path__, "presage."):
        if not module.name.startswith(("presage.__main__", "presage.store.migrations.")):
            importlib.import_module(module.name)
    return [kind for kind in below(PresageError) if kind.__module__.startswith("presage.")]


def test_all_errors_are_in_one_file_with_a_sentence_and_a_code(
    kinds: list[type[PresageError]],
) -> None:
    assert {kind.__module__ for kind in kinds} == {errors.__name__}
    assert sorted(kind.__name__ for kind in kinds) == errors.__all__
    for kind in kinds:
        assert re.match(r"[A-Z`].*[.;]", (kind.__doc__ or "").replace("\n", " ")), kind
    codes = [vars(kind).get("code", f"none of {kind.__name__}'s own") for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes), codes


def test_the_tree_is_drawn_as_it_is(kinds: list[type[PresageError]]) -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := TREE.match(line):
            name, depth = found[2], len(found[1]) // 4
            path[depth:] = [name]
            drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in kinds}


def test_every_error_is_documented(kinds: list[type[PresageError]]) -> None:
    """With its code, its exit code, its HTTP status, and what to do; and nothing else is."""
    rows = ROW.findall(DOCS.read_text(encoding="utf-8"))
    documented = {name: (code, end, status) for name, code, end, status, _, _ in rows}
    assert documented == {
        kind.__name__: (kind.code, str(kind.exit_code), str(status_of(kind) or "–"))
        for kind in kinds
    }
