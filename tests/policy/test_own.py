"""Policies of one's own: from a file or a package, what may be one, and what follows a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from presage import plugins
from presage._api.simulation import simulate
from presage.control.mistakes import PolicyMistakes
from presage.control.replay import answer
from presage.core.engine import Engine
from presage.model import event as ev
from presage.model.errors import ConfigError
from presage.policy.config import QueueConfig
from presage.policy.own import GROUP, Guarded, OwnPolicy, find_own
from presage.policy.pipeline import Pipeline
from presage.policy.registry import NAMED, build
from presage.sim.whatif import Step, replay
from tests.scenario import Known, job, nodes

FILE = """
from dataclasses import dataclass
from presage.policy.config import PolicyConfig
from presage.policy.registry import build

def smallest(job, plan, predict):
    return (job.spec.min_gpu_milli, job.seq)

@dataclass
class Mine:
    calls: int = 0
    def schedule(self, plan, predict):
        self.calls += 1
        build("fifo").schedule(plan, predict)

made = Mine()
chosen = PolicyConfig(order="sjf")

def factory():
    return build("srtf")

def broken():
    raise RuntimeError("no luck\\nat all")

def order_with_mistake(job, plan, predict):
    return (1 / (job.seq - 1), job.seq)

class Careless:
    def schedule(self, plan, predict):
        build("fifo").schedule(plan, predict)
        if len(plan.state.jobs) == 2:
            raise KeyError("two")

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def own(file: Path, name: str) -> OwnPolicy:
    found = find_own(f"{file}:{name}", NAMED, {"q": QueueConfig(limit_gpus=2)})
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["smallest", "Mine", "made", "chosen", "factory"])
def test_what_may_be_a_policy(file: Path, name: str) -> None:
    policy = own(file, name).make()
    engine = Engine(policy, Known())
    engine.handle(0.0, [ev.NodeUp(node) for node in nodes(4)])
    made = engine.handle(1.0, [ev.JobSubmitted(job("a", 4)), ev.JobSubmitted(job("b", 1))])
    launched = [one.job for one in made if isinstance(one, ev.Launch)]
    assert launched == (["b"] if name == "smallest" else ["a"])
    waiting = engine.explain("a" if name == "smallest" else "b")
    assert waiting is not None
    assert waiting.text


def test_every_one_that_is_made_is_new(file: Path) -> None:
    one = own(file, "made")
    assert one.make().schedule.__self__ is not one.make().schedule.__self__  # type: ignore[attr-defined]


def test_an_order_keeps_to_the_queues(file: Path) -> None:
    policy = own(file, "smallest").make()
    assert isinstance(policy, Pipeline)
    assert policy.rules.queues["q"].limit_gpus == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (":number", "mine.py: number is no policy"),
        (":broken", "mine.py: broken cannot be made: RuntimeError: no luck (line "),
        (":nobody", "mine.py has no 'nobody'; it has: "),
        ("", "say which object of the file: "),
        (":", "say which object of the file: "),
    ],
)
def test_what_is_none_is_one_line(file: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_own(f"{file}{name}", NAMED, {})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "x = (",
            "mine.py cannot be loaded: SyntaxError: '(' was never closed (line 1 of mine.py)",
        ),
        ("\n1 / 0", "ZeroDivisionError: division by zero (line 2 of mine.py)"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_run_is_one_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        find_own(f"{file}:x", NAMED, {})
    assert says in str(refused.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        find_own(f"{file}:x", NAMED, {})
    file.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        find_own(f"{file}:x", NAMED, {})


def test_names_that_are_nobodys_or_known(file: Path) -> None:
    assert find_own("fifo", NAMED, {}) is None
    assert find_own("nobody", NAMED, {}) is None


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package that offers a policy."""
    (tmp_path / "ours_pkg.py").write_text(FILE)
    info = tmp_path / "ours-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ours\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nours-smallest = ours_pkg:smallest\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "ours-smallest"


def test_a_package_offers_policies(package: str, tmp_path: Path) -> None:
    found = find_own(package, NAMED, {})
    assert found is not None
    told = json.loads(found.described())["own"]
    assert (told["name"], told["origin"]) == ("ours-smallest", "ours 1.2")
    assert OwnPolicy.unpacked(found.packed()).described() == found.described()
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_s,duration_s,gpus\n1,0,9,4\n2,0,9,2\n")
    result = simulate(jobs, "1x4", package)
    assert result.policy == "ours-smallest"
    assert result.jobs["start_s"].to_list() == [9.0, 0.0]


def test_what_is_journaled_has_no_folder_and_names_the_text(file: Path) -> None:
    text = own(file, "smallest").described()
    assert str(file.parent) not in text
    assert json.loads(text)["own"] == {
        "name": "smallest",
        "origin": "mine.py",
        "sha256": plugins.load(f"{file}:smallest", GROUP).digest,
    }
    file.write_text(FILE + "\n# changed\n")
    assert own(file, "smallest").described() != text


# -- mistakes ------------------------------------------------------------------------------------


def lived(policy: OwnPolicy, mistakes: PolicyMistakes) -> list[Step]:
    """Facts and what was decided of them; the policy raises in some of the passes."""
    engine = Engine(Guarded(policy, build(policy.base()), mistakes.note), Known(), check_every=1)
    steps: list[Step] = []

    def go(now: float, *facts: ev.Fact) -> None:
        decisions = engine.handle(now, facts)
        steps.append((now, facts, tuple(decisions)))
        for one in decisions:
            if isinstance(one, ev.Launch):
                go(now, ev.JobStarted(one.job, one.attempt))

    go(0.0, ev.RulesChanged(policy.described(), "test"), *(ev.NodeUp(n) for n in nodes(4)))
    go(1.0, ev.JobSubmitted(job("a", 4)))
    go(2.0, ev.JobSubmitted(job("b", 2)), ev.JobSubmitted(job("huge", 99)))
    go(3.0, ev.JobExited("a", 1, ev.Outcome.SUCCEEDED))
    go(4.0, ev.JobSubmitted(job("c", 2)))
    go(9.0, ev.JobExited("b", 1, ev.Outcome.SUCCEEDED))
    go(9.5, ev.JobExited("c", 1, ev.Outcome.SUCCEEDED))
    assert not engine.state.jobs
    return steps


@pytest.mark.parametrize("name", ["order_with_mistake", "Careless"])
def test_a_pass_that_raises_is_decided_by_fifo_and_every_time_the_same(
    file: Path, name: str
) -> None:
    policy, mistakes = own(file, name), PolicyMistakes()
    steps = lived(policy, mistakes)
    assert mistakes.count >= 1
    plain = lived(own(file, "chosen"), PolicyMistakes())
    assert [made for _, _, made in steps] == [made for _, _, made in plain]
    guarded = Guarded(policy, build(policy.base()))
    assert replay(steps, guarded, Known()).difference is None
    (alert,) = mistakes.alerts()
    assert f"policy {name} raised" in alert
    assert "of mine.py" in alert


def test_an_alert_ends_and_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    mistakes = PolicyMistakes(lambda: now[0])
    for _ in range(50):
        mistakes.note("policy x raised KeyError")
    assert len(caplog.records) == 1
    assert "50 times" in mistakes.alerts()[0]
    now[0] = 3601.0
    assert mistakes.alerts() == []


def test_an_audit_says_what_decided(file: Path) -> None:
    policy = own(file, "Careless")
    steps = lived(policy, PolicyMistakes())
    asked = {"since": None, "policies": {"mine": {"own": policy.packed()}}, "own_names": ["mine"]}
    told = answer({**asked, "own": {"own": policy.packed()}}, steps, steps)
    assert told["own"] == ["mine"]
    assert told["audit"]["same"]
    assert any("policy Careless raised KeyError: 'two'" in note for note in told["notes"])
    file.write_text(FILE + "# other\n")
    other = answer({**asked, "own": {"own": own(file, "Careless").packed()}}, steps, steps)
    assert any("decided by Careless of mine.py (sha256 " in note for note in other["notes"])


def test_a_simulation_says_that_it_raised_in_one_line(file: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job_id,submit_s,duration_s,gpus\n1,0,9,4\n2,0,9,2\n")
    with pytest.raises(ConfigError) as refused:
        simulate(jobs, "1x4", f"{file}:order_with_mistake")
    assert str(refused.value).startswith("policy order_with_mistake raised ZeroDivisionError")
