"""Rules of the source tree that neither the linter nor the import contracts can state."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "presage"
MODULES = sorted(SRC.rglob("*.py"))
MAX_LINES = 600

# Time is an argument here, and a random number comes from a seeded generator that was handed in.
TIMELESS = ("core", "foresee", "model", "observe", "policy", "provision")
COLLECTORS = "telemetry"  # they read the clock, so that nothing else has to

THIRD_PARTIES = {"model": set[str](), "core": {"numpy"}}

# Whoever needs a path of the data directory asks layout.py for it.
ASKS_FOR_PATHS = ("control", "executors", "server")
JOINS = ("Path", "PurePath", "glob", "joinpath", "rglob", "with_name")

CLOCKS = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    *(
        f"time.{name}{suffix}"
        for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time")
        for suffix in ("", "_ns")
    ),
    "time.gmtime",
    "time.localtime",
    "time.sleep",
}
ENTROPY = {"os.urandom", "random.SystemRandom", "uuid.uuid1", "uuid.uuid4"}
SEEDED = {"numpy.random.default_rng", "random.Random"}

RUNS_CODE = {
    "eval",
    "exec",
    "joblib.load",
    "marshal.load",
    "marshal.loads",
    "os.popen",
    "os.system",
    "pickle.Unpickler",
    "pickle.load",
    "pickle.loads",
    "shelve.open",
    "yaml.full_load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
}
RUNS_CODE_KEYWORDS = {"allow_pickle", "shell"}
_Nodes: TypeAlias = tuple[ast.AST, ...]
MAY_RUN = {"plugins.py": frozenset({"exec"})}
"""The one file that runs somebody's Python: of a name that was given on the command line."""


def test_there_is_something_to_check() -> None:
    assert MODULES


def test_every_package_has_an_init_file() -> None:
    """Without one, the import contracts do not see what is inside."""
    bare = {path.parent for path in MODULES if not (path.parent / "__init__.py").exists()}
    assert not bare


def test_no_two_classes_have_one_name() -> None:
    """One noun, one meaning."""
    sources = {path.relative_to(SRC).as_posix(): path.read_text("utf-8") for path in MODULES}
    shared = shared_names(sources)
    assert not shared


@pytest.mark.parametrize(
    "other", ["class Run: ...", "class _Run: ...", "def f():\n class Run: ..."]
)
def test_classes_of_one_name_are_found(other: str) -> None:
    sources = {"core/x.py": "class Run: ...\nclass Runs: ...", "sim/x.py": other}
    assert shared_names(sources) == {"Run": ["core/x.py", "sim/x.py"]}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(SRC).as_posix())
def test_module_keeps_the_rules(path: Path) -> None:
    problems = list(check(path.relative_to(SRC).as_posix(), path.read_text(encoding="utf-8")))
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("name", "source", "problem"),
    [
        ("cli/x.py", "", "no docstring"),
        ("cli/x.py", "x = 1\n" * 600, "601 lines"),
        ("core/x.py", "import time\ntime.time()", "time.time"),
        ("core/x.py", "from time import sleep as rest\nrest(1)", "time.sleep"),
        ("policy/x.py", "from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("model/x.py", "import random\nrandom.shuffle([])", "random.shuffle"),
        ("model/x.py", "from random import Random\nRandom()", "random.Random without a seed"),
        ("core/x.py", "import numpy as np\nnp.random.rand()", "numpy.random.rand"),
        ("core/x.py", "import numpy as np\nnp.random.default_rng()", "without a seed"),
        ("observe/phases/x.py", "import time\nclock = time.monotonic", "time.monotonic"),
        ("core/x.py", "import polars", "polars"),
        ("model/x.py", "from numpy import array", "numpy"),
        ("core/x.py", "def f(is_simulation): ...", "is_simulation"),
        ("core/x.py", "world.simulated", "simulated"),
        ("executors/x.py", "data / 'jobs' / job", "'jobs'"),
        ("control/x.py", "file = data / f'folders/{name}'", "'folders'"),
        ("server/x.py", "data.joinpath('telemetry', '1.jsonl')", "'telemetry'"),
        ("executors/ray/x.py", "base.glob('*/runs/*')", "'runs'"),
        ("executors/x.py", "from pathlib import Path\nPath(f'{data}/secrets/key')", "'secrets'"),
        ("executors/x.py", "place = data / 'job.json'", "'job.json'"),
        ("cli/x.py", "eval('1')", "eval"),
        ("cli/x.py", "import pickle\npickle.load(f)", "pickle.load"),
        ("cli/x.py", "import yaml\nyaml.load(f)", "yaml.load"),
        ("cli/x.py", "import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
    ],
)
def test_a_broken_rule_is_found(name: str, source: str, problem: str) -> None:
    if "docstring" not in problem:
        source = f'"""x"""\n{source}'
    assert any(problem in found for found in check(name, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core/x.py", "from random import Random\nrng = Random(0)"),
        (
            "core/x.py",
            "import numpy as np\ndef f(g: np.random.Generator): np.random.default_rng(0)",
        ),
        ("core/x.py", "def f(now, time): return time + now  # also in simulated time"),
        ("telemetry/x.py", "import time\ntime.time()"),
        ("executors/x.py", "layout.run(job, 1) / 'work'\nurl = f'{server}/api/v1/jobs/{job}'"),
        ("cli/x.py", "Path('runs') / 'jobs'"),
        ("sim/x.py", "import time\nsimulated = time.process_time()"),
        ("cli/x.py", "import yaml\nyaml.safe_load(f)"),
    ],
)
def test_what_is_allowed_passes(name: str, source: str) -> None:
    assert list(check(name, f'"""x"""\n{source}')) == []


def shared_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that more than one class has, a leading underscore aside, with where these are."""
    homes: dict[str, list[str]] = {}
    for place, source in sources.items():
        for node in _nodes(source):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(place)
    return {name: places for name, places in homes.items() if len(places) > 1}


def check(name: str, source: str) -> Iterator[str]:
    """What is wrong with a module; `name` is its path under src/presage."""
    nodes = _nodes(source)
    tree = nodes[0]
    assert isinstance(tree, ast.Module)
    package = name.split("/")[0]
    if (count := len(source.splitlines())) > MAX_LINES:
        yield f"{count} lines; {MAX_LINES} is the limit"
    if ast.get_docstring(tree) is None:
        yield "no docstring"
    if package in TIMELESS and not name.startswith(COLLECTORS):
        yield from _time_and_chance(nodes)
    if package in THIRD_PARTIES:
        yield from _third_parties(nodes, THIRD_PARTIES[package])
    if package == "core":
        for line, word in _identifiers(nodes):
            if "simulat" in word.lower():
                yield f"line {line}: the core cannot know of {word}"
    if package in ASKS_FOR_PATHS:
        yield from _joins(nodes, _data_names())
    yield from _runs_code(nodes, MAY_RUN.get(name, frozenset()))


@cache
def _nodes(source: str) -> _Nodes:
    """All there is in a module, itself first. Most of the time went into finding them again."""
    return tuple(ast.walk(ast.parse(source)))


def _joins(nodes: _Nodes, names: frozenset[str]) -> Iterator[str]:
    """Where one of these names becomes a part of a path."""
    for node in nodes:
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            parts = [node.right]
        elif isinstance(node, ast.Call) and _dotted(node.func)[-1] in JOINS:
            parts = node.args
        for part in parts:
            words = part.values if isinstance(part, ast.JoinedStr) else [part]
            for word in words:
                said = str(word.value).split("/") if isinstance(word, ast.Constant) else ()
                for name in names.intersection(said):
                    yield f"line {part.lineno}: {name!r} in a path; layout.py knows where that is"


@cache
def _data_names() -> frozenset[str]:
    """What layout.py joins."""
    tree = ast.parse((SRC / "layout.py").read_text(encoding="utf-8"))
    joined = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
    return frozenset(str(part.value) for part in joined if isinstance(part, ast.Constant))


def _time_and_chance(nodes: _Nodes) -> Iterator[str]:
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node, target in _references(nodes):
        module, _, last = target.rpartition(".")
        if target in CLOCKS | ENTROPY:
            yield f"line {node.lineno}: {target}"
        elif target in SEEDED:
            call = calls.get(id(node))
            if call and not call.args and not call.keywords:
                yield f"line {node.lineno}: {target} without a seed"
        elif module in ("random", "numpy.random") and (last.islower() or last == "RandomState"):
            yield f"line {node.lineno}: {target} uses the global generator"


def _third_parties(nodes: _Nodes, allowed: set[str]) -> Iterator[str]:
    known = sys.stdlib_module_names | allowed | {"presage"}
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.split(".")[0] not in known:
                yield f"line {node.lineno}: imports {name}"


def _runs_code(nodes: _Nodes, may: frozenset[str]) -> Iterator[str]:
    for node, target in _references(nodes):
        if target in RUNS_CODE - may:
            yield f"line {node.lineno}: {target} can run what it reads"
    for keyword in nodes:
        if isinstance(keyword, ast.keyword) and keyword.arg in RUNS_CODE_KEYWORDS:
            value = ast.unparse(keyword.value)
            if value != "False":
                yield f"line {keyword.lineno}: {keyword.arg}={value}"


def _references(nodes: _Nodes) -> Iterator[tuple[ast.expr, str]]:
    """Names and attribute chains that are read, spelled from the module they come from."""
    origin = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                origin[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                origin[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Name) and (node.id in origin or node.id in ("eval", "exec")):
            yield node, origin.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):
            base, *rest = _dotted(node)
            if base in origin:
                yield node, ".".join([origin[base], *rest])


def _dotted(node: ast.expr) -> list[str]:
    """`a.b.c` as words; what is no name counts as an empty one."""
    words = []
    while isinstance(node, ast.Attribute):
        words.append(node.attr)
        node = node.value
    words.append(node.id if isinstance(node, ast.Name) else "")
    return words[::-1]


def _identifiers(nodes: _Nodes) -> Iterator[tuple[int, str]]:
    for node in nodes:
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word):
                yield node.lineno, word
            case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word):
                yield node.lineno, word
            case ast.ClassDef(name=word) | ast.keyword(arg=str(word)):
                yield node.lineno, word
            case ast.alias(name=word, asname=other):
                yield node.lineno, f"{word} {other or ''}"
