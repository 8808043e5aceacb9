"""The catalogue of GPUs: its figures hang together, names lead to devices, additions work."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.foresee.gpus import Gpu, catalogue, find, user_file
from presage.model.errors import ConfigError

MINE = """
gpus:
  mygpu:
    {memory_mib: 10000, sms: 10, bandwidth_gbs: 100, tflops: {fp32: 5, fp16: 20}, aliases: [mine]}
  a100-40g:
    {memory_mib: 20000, usable_mib: 19000, sms: 108, bandwidth_gbs: 1555, tflops: {fp32: 19.5}}
"""


@pytest.fixture(autouse=True)
def _no_files_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRESAGE_GPUS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("gpu", catalogue().values(), ids=lambda gpu: gpu.name)
def test_figures_hang_together(gpu: Gpu) -> None:
    assert 0.9 * gpu.memory_mib <= gpu.usable_mib <= gpu.memory_mib
    assert 0 < gpu.fp32_tflops <= gpu.tflops("tf32") <= gpu.tflops("fp16")
    assert gpu.tflops("bf16") in (gpu.fp32_tflops, gpu.fp16_tflops, 92.3)  # MI100: half of fp16
    assert 2012 <= gpu.year <= 2026
    # Cores of all these do 128 to 512 operations a clock and unit, at 0.8 to 2.8 GHz.
    per_unit = gpu.fp32_tflops * 1e12 / gpu.sms
    assert 0.8e9 * 128 <= per_unit <= 2.8e9 * 256
    if gpu.tf32_tflops is not None and gpu.fp16_tflops is not None:
        assert gpu.fp16_tflops / gpu.tf32_tflops == pytest.approx(2, abs=0.06)


@pytest.mark.parametrize(
    ("architecture", "ratio"),
    [("pascal", 2), ("volta", 8), ("turing", (4, 8)), ("hopper", (13.9, 14.8))],
)
def test_matrix_units_give_what_their_generation_gives(
    architecture: str, ratio: float | tuple[float, ...]
) -> None:
    found = [gpu for gpu in catalogue().values() if gpu.architecture == architecture]
    ratios = ratio if isinstance(ratio, tuple) else (ratio,)
    assert found
    for gpu in found:
        if gpu.fp16_tflops is not None:
            factor = gpu.fp16_tflops / gpu.fp32_tflops
            assert any(factor == pytest.approx(known, rel=0.02) for known in ratios), gpu.name


@pytest.mark.parametrize(
    ("name", "usable_mib", "bandwidth_gbs", "fp16"),
    [("a100", 40339, 1555, 312), ("rtx3090", 24259, 936, 71), ("h100", 81082, 3350, 989)],
)
def test_known_devices(name: str, usable_mib: int, bandwidth_gbs: float, fp16: float) -> None:
    gpu = find(name)
    assert (gpu.usable_mib, gpu.bandwidth_gbs, gpu.fp16_tflops) == (
        usable_mib,
        bandwidth_gbs,
        fp16,
    )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA_A100_80GB_PCIe", "a100-pcie-80g"),
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("Tesla_V100-PCIE-32GB", "v100-pcie-32g"),
        ("Tesla V100-SXM2-16GB", "v100-16g"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("3090", "rtx3090"),
        ("V100", "v100-16g"),
        ("pro6000maxq", "rtx-pro-6000-max-q"),
        ("Quadro RTX 6000", "rtx6000"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_device_has_many_names(name: str, found: str) -> None:
    assert find(name).name == found


def test_a_precision_without_matrix_units_runs_at_the_fp32_rate() -> None:
    assert find("k80").fp16_tflops is None
    assert find("k80").tflops("fp16") == find("k80").fp32_tflops


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"unknown GPU 'a1000'; did you mean a100-40g"):
        find("a1000")
    with pytest.raises(ConfigError, match=r"unknown GPU 'voodoo'; `presage gpus` lists"):
        find("voodoo")
    with pytest.raises(ConfigError, match="unknown GPU ''"):
        find("")


def test_additions_join_and_replace(mine: Path) -> None:
    assert find("Mine", mine).name == "mygpu"
    assert find("mygpu", mine).usable_mib == 9200  # nobody looked: the least that is left
    assert find("a100", mine).name == "a100-40g"  # its other names stay
    assert find("a100-40g", mine).memory_mib == 20000
    assert find("a100-40g").memory_mib == 40960
    assert list(catalogue(mine))[-1] == "mygpu"


def test_the_files_of_a_user_are_found(
    mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert user_file() is None
    home = tmp_path / "config" / "presage" / "gpus.yaml"
    home.parent.mkdir(parents=True)
    home.write_text(MINE)
    assert user_file() == home
    assert find("mygpu").sms == 10
    monkeypatch.setenv("PRESAGE_GPUS", str(mine))
    assert user_file() == mine
    monkeypatch.setenv("PRESAGE_GPUS", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read"):
        find("a100")


ENTRY = "{memory_mib: 1000, sms: 1, bandwidth_gbs: 1, tflops: {fp32: 1}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gpus:\n  x: {sms: 1}\n", "line 2: gpus.x.memory_mib"),
        (f"gpus:\n  x: {ENTRY}, smz: 2}}\n", r"unknown key; did you mean 'sms'"),
        (f"gpus:\n  x: {ENTRY.replace('fp32: 1', 'fp32: -1')}}}\n", r"tflops\.fp32"),
        (f"gpus:\n  x: {ENTRY.replace('fp32: 1', 'fp32: .nan')}}}\n", r"tflops\.fp32"),
        (f"gpus:\n  x: {ENTRY}, usable_mib: 2000}}\n", "usable_mib is more than memory_mib"),
        (f"gpus:\n  x: {ENTRY}}}\n  y: {ENTRY}, aliases: [X]}}\n", "'X' names both x and y"),
        (f"gpus:\n  '--': {ENTRY}}}\n", "is no name"),
        ("- x\n", "write a mapping with the key gpus"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        catalogue(path)
    assert str(path) in str(caught.value)
