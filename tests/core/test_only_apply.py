"""Only `State` changes a state: nothing else in the project assigns to what one holds.

Names are followed through each function: from `state` and from parameters of the types below, over
attributes, items and loops, to assignments and to methods that change what they are called on.
What escapes that (an alias that is kept in an object, say) the state machine finds as it runs
(`presage.testing.machine.GuardedState`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import presage
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node
from presage.testing.machine import GuardedState
from tests.scenario import job

HOME = Path(presage.__file__).parent
ITSELF = {"core/state.py", "core/capacity.py", "core/gates.py", "model/speed.py"}
KINDS = {"State", "Job", "Capacity", "SpeedBook", "Plan", "Engine"}
CHANGES = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("add", "discard", "update", "setdefault", "popitem"),
    *("give", "shift", "set_open", "retire", "undo"),
}
"""Not `take` and `lend`: a policy tries out where workers go, and takes that back at once."""
ALLOWED = {"core/plan.py": {"undo"}}
FRESH = {"list", "sorted", "tuple", "set", "dict", "reversed", "enumerate", "filter"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Function:
    """One function: which names are of a state, or hold what is, and what is done to them."""

    def __init__(self, node: ast.AST) -> None:
        self.of: set[str] = {"state"}
        self.holds: set[str] = set()
        for arg in ast.walk(node.args) if isinstance(node, FUNCTIONS) else ():
            if isinstance(arg, ast.arg) and _kind(arg) in KINDS:
                self.of.add(arg.arg)
        self.body = list(_inside(node))
        for _ in range(3):  # a name may be used above where it is bound in a loop
            for inner in self.body:
                self._bind(inner)

    def changes(self) -> Iterator[tuple[int, str, str]]:
        """The line, what is done, and how it is written."""
        for node in self.body:
            if isinstance(node, ast.Assign | ast.Delete | ast.AugAssign | ast.AnnAssign):
                for target in _targets(node):
                    if isinstance(target, ast.Attribute | ast.Subscript) and self._is(
                        target.value
                    ):
                        yield node.lineno, "assigns", ast.unparse(node)
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and self._is(called.value):
                yield called.lineno, called.attr, ast.unparse(called)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._name(target, node.value)
        elif isinstance(node, ast.NamedExpr | ast.AnnAssign) and node.value is not None:
            self._name(node.target, node.value)
        elif isinstance(node, ast.For | ast.comprehension) and (
            self._is(node.iter) or self._holds(node.iter)
        ):
            names = [name for name in ast.walk(node.target) if isinstance(name, ast.Name)]
            self.of.update(name.id for name in names)

    def _name(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                self._name(one, its)
        elif isinstance(target, ast.Name) and self._is(value):
            self.of.add(target.id)
        elif isinstance(target, ast.Name) and self._holds(value):
            self.holds.add(target.id)

    def _is(self, node: ast.expr) -> bool:
        """Whether this is a state, or something that one has."""
        if isinstance(node, ast.Name):
            return node.id in self.of
        if isinstance(node, ast.Attribute):
            return node.attr == "state" or self._is(node.value)
        if isinstance(node, ast.Subscript):
            return self._is(node.value) or self._holds(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whole = node.func.value
            if node.func.attr == "copy":
                return ast.unparse(whole).endswith("state")
            return node.func.attr in ("get", "values", "items") and self._is(whole)
        if isinstance(node, ast.IfExp):
            return self._is(node.body) or self._is(node.orelse)
        return False

    def _holds(self, node: ast.expr) -> bool:
        """Whether this is new, and what is in it a state has."""
        if isinstance(node, ast.Name):
            return node.id in self.holds
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self._is(node.elt)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            made = node.func.id in FRESH
            return made and any(self._is(arg) or self._holds(arg) for arg in node.args)
        return False


def _targets(node: ast.Assign | ast.Delete | ast.AugAssign | ast.AnnAssign) -> Iterator[ast.expr]:
    for target in node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]:
        yield from target.elts if isinstance(target, ast.Tuple) else [target]


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """What a function or module does itself, not the functions in it."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, FUNCTIONS):
            yield inner
            yield from _inside(inner)


def _kind(arg: ast.arg) -> str:
    return "" if arg.annotation is None else ast.unparse(arg.annotation).split(" |")[0]


def changes(text: str, allowed: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """Where a module changes what a state holds."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, *FUNCTIONS)):
            for line, what, words in Function(node).changes():
                if what == "assigns" or what in CHANGES - allowed:
                    yield f"{line}: {words}"


def knows_states(text: str) -> bool:
    return "presage.core" in text or "presage.model.job" in text


def test_only_the_state_changes_a_state() -> None:
    found = []
    for path in sorted(HOME.rglob("*.py")):
        name, text = path.relative_to(HOME).as_posix(), path.read_text()
        if name not in ITSELF and knows_states(text):
            found += [f"{name}:{change}" for change in changes(text, ALLOWED.get(name, set()))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "state.moves.clear()",
        "state.moves = []",
        "engine.state.ended.clear()",
        "copy = state.copy(); copy.jobs[name].spec = spec",
        "changed = self.state.changes.jobs; changed.clear()",
        "for job in list(state.active.values()): job.progress = 1.0",
        "job = state.jobs.get(name); job.attempt += 1",
        "capacity, now = plan.state.capacity, 1.0; capacity.free_gpu[0][1] = 7",
        "del state.reservations[name]",
        "jobs = sorted(plan.state.pending.values()); jobs[0].wants = 3",
        "state.capacity.set_open(0, True)",
        "state.speeds.add(work, point)",
    ],
)
def test_a_change_is_found(line: str) -> None:
    assert list(changes(f"def f():\n    {line.replace('; ', chr(10) + '    ')}"))


def test_reading_is_no_change() -> None:
    text = """
def f(plan, state):
    jobs = list(state.active.values())
    jobs.append(1)
    seen = {job.id: job.allocation for job in jobs}
    seen["a"] = ()
    plan.stop(jobs[0], 1, 2)
    state.apply(1.0, 2)
    self.state = state
"""
    assert not list(changes(text))


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.changes.jobs.clear(),
        lambda state: setattr(state, "wake_at", 3.0),
        lambda state: setattr(state.jobs["a"], "wants", 3),
        lambda state: state.ended.append(state.jobs["a"]),
        lambda state: state.usage.update(default=1),
    ],
)
def test_a_guarded_state_notices_a_change(change: Callable[[State], object]) -> None:
    state = GuardedState()
    state.apply_all(0.0, [ev.NodeUp(Node("n", (Device(),))), ev.JobSubmitted(job("a"))])
    state.apply(1.0, ev.Woke())
    change(state)
    with pytest.raises(AssertionError, match="somebody changed"):
        state.apply(2.0, ev.Woke())
