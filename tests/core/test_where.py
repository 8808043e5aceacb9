"""Labels, taints and what others hold: which nodes a worker may be on, and what is left there."""

import pytest

from presage.core.capacity import Capacity
from presage.core.engine import Engine
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import (
    ANYWHERE,
    Device,
    LabelOperator,
    LabelRule,
    Node,
    Resources,
    Taken,
    Where,
)
from presage.model.job import JobSpec, ReasonCode, Role
from presage.policy import registry
from tests.scenario import Known


def rule(key: str, operator: str = "Exists", *values: str) -> LabelRule:
    return LabelRule(key, LabelOperator(operator), values)


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (rule("zone", "In", "a", "b"), True),
        (rule("zone", "In", "c"), False),
        (rule("none", "In", "c"), False),
        (rule("zone", "NotIn", "a"), False),
        (rule("none", "NotIn", "a"), True),
        (rule("zone"), True),
        (rule("none"), False),
        (rule("zone", "DoesNotExist"), False),
        (rule("none", "DoesNotExist"), True),
        (rule("cores", "Gt", "7"), True),
        (rule("cores", "Gt", "8"), False),
        (rule("cores", "Lt", "9"), True),
        (rule("zone", "Gt", "7"), False),
        (rule("none", "Lt", "7"), False),
    ],
)
def test_a_rule_looks_at_one_label(wanted: LabelRule, fits: bool) -> None:
    assert wanted.holds({"zone": "a", "cores": "8"}) is fits


@pytest.mark.parametrize(
    ("tolerates", "fits"),
    [
        ((), False),
        (("gpu=yes:NoSchedule",), True),
        (("gpu=no:NoSchedule",), False),
        (("gpu=*:*",), True),
        (("*=*:*",), True),
        (("gpu=*:NoExecute",), False),
    ],
)
def test_a_taint_keeps_off_who_does_not_tolerate_it(
    tolerates: tuple[str, ...], fits: bool
) -> None:
    node = Node("n", taints=("gpu=yes:NoSchedule",))
    assert Where(tolerates=tolerates).accepts(node) is fits
    capacity = Capacity()
    capacity.set_open(capacity.add(Node("other")), True)
    capacity.set_open(capacity.add(node), True)
    assert capacity.accepts((), Where(tolerates=tolerates)) == (0b11 if fits else 0b01)


def engine(*nodes: Node) -> Engine:
    made = Engine(registry.build("fifo"), Known(), check_every=1)
    made.handle(0.0, [ev.NodeUp(node) for node in nodes])
    return made


def launched(decisions: list[ev.Decision]) -> dict[str, list[str]]:
    return {d.job: [w.node for w in d.workers] for d in decisions if isinstance(d, ev.Launch)}


def job(name: str, gpus: int = 1, count: int = 1, where: Where = ANYWHERE) -> ev.JobSubmitted:
    role = Role(resources=Resources(1000, 0, gpus * 1000), min=count, max=count, where=where)
    return ev.JobSubmitted(JobSpec(name, (role,)))


A100 = Where(((rule("gpu", "In", "a100"),),))


def test_a_gang_goes_where_its_labels_are_and_says_when_no_node_has_them() -> None:
    nodes = [Node(f"n{i}", (Device(),) * 2, 8000, 8000, {"gpu": kind}) for i, kind in
             enumerate(("v100", "a100", "a100"))]  # fmt: skip
    made = engine(*nodes)
    assert launched(made.handle(1.0, [job("gang", 2, 2, A100)])) == {"gang": ["n1", "n2"]}
    assert launched(made.handle(2.0, [job("late", 1, 1, A100)])) == {}
    made.handle(3.0, [ev.NodeDown("n1"), ev.NodeDown("n2")])
    reason = made.explain("late")
    assert reason is not None
    assert reason.code is ReasonCode.NO_ROOM
    assert "labels" in reason.text


def test_a_taint_that_goes_away_lets_jobs_in_while_others_run_there() -> None:
    tainted = Node("n0", (Device(),) * 2, 8000, 8000, taints=("maintenance=:NoSchedule",))
    bears = Where(tolerates=("maintenance=*:*",))
    made = engine(tainted)
    asked = [job("bears", where=bears), job("plain")]
    assert launched(made.handle(1.0, asked)) == {"bears": ["n0"]}
    assert launched(made.handle(2.0, [ev.NodeChanged(Node("n0", (Device(),) * 2, 8000, 8000))])) \
        == {"plain": ["n0"]}  # fmt: skip


def test_what_others_hold_is_not_given_away_and_comes_back() -> None:
    node = Node("n0", (Device(),) * 4, 8000, 8000)
    made = engine(node)
    taken = Node("n0", (Device(),) * 4, 8000, 8000, taken=Taken(7000, 0, (1, 2, 3)))
    assert launched(made.handle(1.0, [ev.NodeChanged(taken), job("two", 2)])) == {}
    assert made.state.capacity.free_milli == 1000
    assert State.restore(made.state.snapshot()).snapshot() == made.state.snapshot()
    assert made.state.copy().snapshot() == made.state.snapshot()
    assert launched(made.handle(2.0, [job("one", 1)])) == {}  # fifo: behind the other
    half = Node("n0", (Device(),) * 4, 8000, 8000, taken=Taken(devices=(3,)))
    assert launched(made.handle(3.0, [ev.NodeChanged(half)])) == {"two": ["n0"], "one": ["n0"]}
    made.handle(4.0, [ev.NodeChanged(Node("n0")), ev.NodeChanged(Node("nowhere"))])
    assert made.state.capacity.nodes[0] == half  # another number of devices is another machine
