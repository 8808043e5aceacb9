"""Learned policies: a bundle is arrays, whatever is wrong with one is one line, and what it
decides is the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from presage.core.guard import GuardedPolicy
from presage.learn.bundle import load_bundle, save_bundle
from presage.model.errors import ConfigError, UserError
from presage.model.event import JobSubmitted
from presage.policy import registry
from presage.policy.config import ConfigFile, PolicyConfig
from presage.policy.learned.levels import Levels
from presage.policy.learned.net import Net, read_bundle, write_bundle
from presage.policy.learned.order import ORDER_RULES, order_layout
from presage.policy.learned.serve import refuse_bundles
from presage.sim.clusters import Cluster
from presage.sim.generate import make_trace
from presage.sim.run import simulate
from presage.sim.whatif import replay
from presage.sim.world import WorldRules
from presage.store.memory import MemoryStore
from tests.scenario import Known

LAYOUT = order_layout(8)
CARD = {"name": "mine", "version": "3", "date": "", "data": "", "licence": ""}
CARD |= {"splits": "", "errors": ""}
CLUSTER = Cluster("2x4")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "mine.npz"
    net = Net.random(LAYOUT, 6, np.random.default_rng(4))
    write_bundle(path, "order", net, LAYOUT, ORDER_RULES, CARD)
    return path


def test_a_bundle_is_what_was_written(bundle: Path) -> None:
    read = read_bundle(bundle)
    assert (read.task, read.name, read.version) == ("order", "mine", "3")
    assert read.layout == LAYOUT
    assert read.rules == ORDER_RULES
    net = Net.random(LAYOUT, 6, np.random.default_rng(4))
    assert (read.net.flat() == net.flat()).all()


def test_the_configuration_says_which_bundle(bundle: Path) -> None:
    config = registry.policy_config(f"learned:{bundle}")
    assert config.learned is not None
    assert (config.learned.name, config.learned.version) == ("mine", "3")
    assert config.learned.digest == read_bundle(bundle).digest
    assert PolicyConfig.model_validate_json(config.model_dump_json()) == config
    other = Net.random(LAYOUT, 6, np.random.default_rng(5))
    write_bundle(bundle, "order", other, LAYOUT, ORDER_RULES, CARD)
    registry.build(registry.policy_config(f"learned:{bundle}"))
    with pytest.raises(ConfigError, match="another bundle than the one that was chosen"):
        registry.build(config)


def test_it_decides_the_same_every_time_and_a_journal_again(bundle: Path) -> None:
    config = registry.policy_config(f"learned:{bundle}")
    trace = make_trace("diurnal", 120, 1, CLUSTER.gpus, 1.5)
    rules = WorldRules(restart_cost_s=40.0)
    journals = []
    for _ in range(2):
        store = MemoryStore()
        policy = registry.build(config)
        result = simulate(
            trace, CLUSTER, policy, name="it", store=store, rules=rules, check_every=10
        )
        assert set(result.jobs["status"]) == {"finished"}
        journals.append(list(store.steps()))
    assert journals[0] == journals[1]
    assert result.summary["preemptions"]
    submitted = [
        one for _, facts, _ in journals[0] for one in facts if isinstance(one, JobSubmitted)
    ]
    assert len(submitted) == 120
    assert all(one.estimates for one in submitted)  # it goes by these, not by the trace
    assert replay(iter(journals[0]), registry.build(config), Known()).difference is None


def test_without_leave_to_stop_it_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "gentle.npz"
    net = Net.random(LAYOUT, 6, np.random.default_rng(4))
    write_bundle(path, "order", net, LAYOUT, {**ORDER_RULES, "stops": 0.0}, CARD)
    trace = make_trace("diurnal", 80, 1, CLUSTER.gpus, 1.5)
    policy = registry.build(registry.policy_config(f"learned:{path}"))
    assert simulate(trace, CLUSTER, policy, name="it").summary["preemptions"] == 0


def test_what_is_wrong_with_a_bundle_is_one_line(bundle: Path, tmp_path: Path) -> None:
    arrays, card = load_bundle(bundle)
    card = {key: value for key, value in card.items() if key not in ("digest", "format")}

    def kept(name: str, **changed: object) -> Path:
        path = tmp_path / name
        given = {key: changed.pop(key) for key in list(changed) if key in arrays}
        save_bundle(path, {**arrays, **given}, {**card, **changed})  # type: ignore[dict-item]
        return path

    learned = card["learned"]
    infinite = arrays["bias"].copy()
    infinite[0] = np.inf
    wrong = {
        "is no learned policy": kept("a.npz", learned=None),
        "was made for another version": kept("b.npz", learned={**learned, "form": 99}),
        "was made for another version of": kept("b2.npz", learned={**learned, "task": "fly"}),
        "is damaged: its arrays do not fit": kept("c.npz", bias=arrays["bias"][:2]),
        "is damaged: its": kept("d.npz", bias=infinite),
        "is damaged": kept("e.npz", learned={**learned, "slots": 10**9}),
        "there is no bundle": tmp_path / "nowhere.npz",
        "is damaged or is no bundle": tmp_path / "text.npz",
        "cannot be read": tmp_path,
        "has rules that": kept("f.npz", learned={**learned, "rules": {"stops": 1.0}}),
        "has fields that": kept(
            "g.npz",
            features={**card["features"], "slot": [*card["features"]["slot"][:-1], "luck"]},
        ),
    }
    (tmp_path / "text.npz").write_text("import os")
    for says, path in wrong.items():
        with pytest.raises(UserError) as refused:
            registry.build(registry.policy_config(f"learned:{path}"))
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match="say which bundle"):
        registry.policy_config("learned:")


def test_no_bundle_runs_code(tmp_path: Path) -> None:
    """An array of Python objects would be unpickled: it is refused, unread."""

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    card = np.frombuffer(json.dumps({}).encode(), dtype=np.uint8)
    path = tmp_path / "evil.npz"
    np.savez(path, card=card, bias=np.array([Evil()], dtype=object))
    with pytest.raises(UserError, match="is damaged or is no bundle"):
        read_bundle(path)
    assert not (tmp_path / "ran").exists()


def test_live_it_has_a_guard(bundle: Path) -> None:
    name = f"learned:{bundle}"
    live = registry.live(name, registry.policy_config(name))
    assert live.guard is not None
    assert (live.guard.candidate, live.guard.name) == (name, "fifo")
    named = registry.policy_config(f"{name}@sjf")
    assert registry.live(name, named) == named
    policy = registry.build(named)
    assert isinstance(policy, GuardedPolicy)
    assert policy.needs_history
    assert registry.live("sjf", registry.NAMED["sjf"]) == registry.NAMED["sjf"]


def test_nobody_elsewhere_names_a_bundle(bundle: Path) -> None:
    config = registry.policy_config(f"learned:{bundle}")
    backwards = registry.policy_config("mine@back", {"mine": PolicyConfig(), "back": config})
    for name, one in ((f"learned:{bundle}", None), ("mine", config), ("mine", backwards)):
        with pytest.raises(ConfigError, match="bundles are read only by the server's own"):
            refuse_bundles(name, one)
    refuse_bundles("mine", PolicyConfig())
    assert ConfigFile(policies={"mine": config}).policies["mine"].learned == config.learned


def test_levels_grow_by_a_factor() -> None:
    levels = Levels(100.0, 4.0)
    assert [levels.of(gpu_s) for gpu_s in (0, 99, 100, 399, 400, 1600)] == [0, 0, 1, 1, 2, 3]


def test_a_choice_is_one_that_can_be_made() -> None:
    net = Net.random(LAYOUT, 6, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for _ in range(50):
        seen = rng.random(LAYOUT.size)
        width = len(LAYOUT.slot_fields)
        seen[1 : LAYOUT.slots * width : width] = rng.random(LAYOUT.slots) < 0.3
        action = net.choose(seen, LAYOUT)
        assert LAYOUT.mask(seen)[action]
        assert net.choose(seen.copy(), LAYOUT) == action
