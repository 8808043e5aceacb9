"""Policies by name and from a file; every mistake is one line that says where and what."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from presage.edge import read_yaml
from presage.model.errors import ConfigError
from presage.policy.config import ConfigFile, PolicyConfig
from presage.policy.registry import NAMED, build, names, pipeline, placements, policy_config


def test_the_named_policies() -> None:
    wanted = {"fifo", "sjf", "srtf", "tiresias", "qssf", "priority", "fair_share", "backfill"}
    assert wanted <= set(names())
    assert NAMED["srtf"].preempt == NAMED["tiresias"].preempt == "rank"
    tiresias = NAMED["tiresias"]
    assert (tiresias.threshold_gpu_s, tiresias.round_s) == (18_000, 60)


def test_the_defaults_are_those_of_the_documentation() -> None:
    config = PolicyConfig()
    assert (config.mode, config.placement, config.gang) == ("strict", "pack", True)
    assert (config.preempt, config.backfill, config.elastic) == ("none", False, False)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("placement", placements())
def test_every_named_policy_can_be_built_with_every_placement(name: str, placement: str) -> None:
    built = pipeline(policy_config(name, placement=placement))
    assert built.rules.ranked == (policy_config(name).preempt == "rank")


def test_an_unknown_policy_lists_the_known() -> None:
    with pytest.raises(ConfigError) as error:
        policy_config("fife")
    assert "unknown policy 'fife'" in str(error.value)
    assert all(name in str(error.value) for name in names())


def test_an_unknown_placement_lists_the_known() -> None:
    with pytest.raises(ConfigError) as error:
        policy_config("fifo", placement="tetris")
    assert "unknown placement 'tetris'" in str(error.value)
    assert all(name in str(error.value) for name in placements())


@pytest.mark.parametrize("other", ["elastic", "backfill"])
def test_rank_goes_with_few_others(other: str) -> None:
    with pytest.raises(ValidationError, match="rank"):
        PolicyConfig.model_validate({"preempt": "rank", other: True})
    with pytest.raises(ValidationError, match="rank"):
        PolicyConfig(preempt="rank", gang=False)


def read(path: Path, text: str) -> ConfigFile:
    path.write_text(text)
    return read_yaml(path, ConfigFile, ConfigError)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml"


def test_a_file_composes_policies(path: Path) -> None:
    file = read(
        path,
        """\
policies:
  mine:
    order: sjf
    mode: greedy
    placement: {pack: 2, fgd: 1}
    queues:
      prod: {quota_gpus: 8, borrow: false}
queues:
  research: {limit_gpus: 4, weight: 2}
""",
    )
    mine = file.policies["mine"]
    assert (mine.order, mine.mode, mine.placement) == ("sjf", "greedy", {"pack": 2.0, "fgd": 1.0})
    assert mine.queues["prod"].quota_gpus == 8
    assert file.queues["research"].weight == 2
    build(mine)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("policies:\n  a:\n    ordr: sjf\n", 3, "did you mean 'order'?"),
        ("policies:\n  a:\n    zzz: 1\n", 3, "known keys: order"),
        ("policy:\n  a: {}\n", 1, "did you mean 'policies'?"),
        ("policies:\n  a:\n    order: fastest\n", 3, "'fifo'"),
        ("policies:\n  a: {}\n  b:\n    round_s: -1\n", 4, "greater than 0"),
        ("policies:\n  a:\n    round_s: .nan\n", 3, "finite"),
        ("policies:\n  a:\n    backfill_depth: 0\n", 3, "greater than or equal to 1"),
        ("policies:\n  a:\n    queues:\n      q:\n        quotas: 1\n", 5, "'quota_gpus'"),
        ("queues:\n  q:\n    weight: 0\n", 3, "greater than 0"),
        ("policies:\n  a:\n    preempt: rank\n    gang: false\n", 2, "rank goes with neither"),
        ("policies:\n  a:\n    order: [\n", 4, "broken YAML"),
        ("policies:\n  a: {}\n  a: {}\n", 3, "twice"),
        ("- fifo\n", 1, "mapping"),
    ],
)
def test_a_mistake_names_the_line_and_the_way_out(
    path: Path, text: str, line: int, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(path, text)
    message = str(error.value)
    assert message.startswith(f"{path} line {line}: ")
    assert words in message
    assert "\n" not in message


def test_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_yaml(path, ConfigFile, ConfigError)
