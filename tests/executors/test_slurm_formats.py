"""What Slurm prints, as values."""

from __future__ import annotations

from typing import Any

import pytest

from presage.executors.slurm import formats


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-2,5]", ("n1", "n2", "n5")),
        (
            "n[08-11],gpu[1,3]-ib,login",
            (*(f"n{n:02}" for n in range(8, 12)), *("gpu1-ib", "gpu3-ib", "login")),
        ),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, names: tuple[str, ...]) -> None:
    assert formats.expand_hosts(text) == names


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:v100:4", [("v100", 4)]),
        ("gpu:4(S:0-1)", [("", 4)]),
        ("gpu:a100:2(S:0),gpu:1g.5gb:7,nic:2", [("a100", 2), ("1g.5gb", 7)]),
        ("cpu=2,mem=200M,node=2,billing=2,gres/gpu=4", [("", 4)]),
        ("cpu=2,gres/gpu=4,gres/gpu:a100=4", [("a100", 4)]),
        ("gres:gpu:2", [("", 2)]),
        ("gres/gpu:h100:1", [("h100", 1)]),
        ("(null)", []),
        ("mps:100", []),
    ],
)
def test_gpus_are_found_in_gres_and_tres(text: str, gpus: list[tuple[str, int]]) -> None:
    assert formats.gpus_of(text) == gpus


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800.0),
        ("03:04", 184.0),
        ("02:03:04", 7384.0),
        ("1-02", 93600.0),
        ("1-02:03:04", 93784.0),
        ("UNLIMITED", None),
        ("NONE", None),
    ],
)
def test_time_limits_are_seconds(text: str, seconds: float | None) -> None:
    assert formats.limit_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "mib"), [("200M", 200), ("62.50G", 64000), ("1T", 1 << 20), ("512", 512), ("", 0)]
)
def test_memory_is_mib(text: str, mib: int) -> None:
    assert formats.memory_mib(text) == mib


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (5, 5.0),
        ({"set": True, "infinite": False, "number": 7}, 7.0),
        ({"set": False, "infinite": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None),
        (None, None),
        ("7", None),
    ],
)
def test_numbers_of_all_versions_are_read(value: Any, known: float | None) -> None:
    assert formats.number(value) == known


def test_values_of_a_line_may_hold_spaces() -> None:
    line = "NodeName=n1 Arch=x86_64 OS=Linux 6.1 #1 SMP @0  State=DOWN+DRAIN Reason=bad fan [root]"
    assert formats.pairs(line) == {
        "NodeName": "n1",
        "Arch": "x86_64",
        "OS": "Linux 6.1 #1 SMP @0",
        "State": "DOWN+DRAIN",
        "Reason": "bad fan [root]",
    }
