"""`presage predict` and `presage fit` as people call them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import presage
from presage.cli.main import app
from presage.foresee.table import predict_table
from presage.model.errors import UserError
from tests.counting import opcodes


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def answer(*words: str) -> Any:
    done = run("predict", *words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path / "home"))


def test_a_zoo_model_has_every_number() -> None:
    found = answer("zoo:resnet50", "--batch", "64", "--device", "a100-40g,rtx3090")
    assert found["macs"] == pytest.approx(4.089e9, rel=0.01)
    assert found["flops"] == 2 * found["macs"]
    assert found["params"] == 25_557_032
    assert found["activations"] == pytest.approx(11.11e6, rel=0.01)
    assert set(found["gpus"]) == {"a100-40g", "rtx3090"}
    for gpu in found["gpus"].values():
        memory = gpu["memory_mib"]
        assert memory["p10"] <= memory["p50"] <= memory["p90"]
        assert sum(memory["breakdown"].values()) == pytest.approx(memory["p50"], abs=2)
        assert gpu["step_ms"]["p10"] < gpu["step_ms"]["p50"] < gpu["step_ms"]["p90"]
        assert 0 <= gpu["gpu_util_pct"]["p50"] <= 100
        assert gpu["fits"] == (gpu["headroom_mib"] >= 0)
    assert found["evidence"]


def test_more_of_everything_needs_more() -> None:
    def need(*words: str) -> Any:
        return answer("zoo:resnet50", "--device", "rtx3090", *words)["gpus"]["rtx3090"]

    small, large = need("--batch", "16"), need("--batch", "128")
    assert large["memory_mib"]["p50"] > 2 * small["memory_mib"]["p50"]
    assert large["step_ms"]["p50"] > 4 * small["step_ms"]["p50"]
    adam, sgd = need("--optimizer", "adamw"), need("--optimizer", "sgd")
    assert adam["memory_mib"]["p50"] > sgd["memory_mib"]["p50"] + 150
    infer, train = need("--inference"), need()
    assert infer["memory_mib"]["p50"] < train["memory_mib"]["p50"]
    assert infer["step_ms"]["p50"] < train["step_ms"]["p50"]


def test_the_largest_batch_fits_and_a_larger_one_does_not() -> None:
    def gpu(batch: int) -> Any:
        found = answer("zoo:vgg16", "--batch", str(batch), "--device", "t4")
        return found["gpus"]["t4"]

    most = gpu(8)["max_batch"]
    assert gpu(most)["fits"]
    beyond = gpu(most + max(2, most // 50))
    assert not beyond["fits"]
    assert "fit" in beyond["reason"]


def test_a_pair_slows_down() -> None:
    done = run(
        "predict", "--pair", "zoo:resnet50", "zoo:resnet50", "--device", "v100-16g", "--json"
    )
    found = json.loads(done.stdout)["v100-16g"]
    assert all(0 < speed["p50"] < 1 for speed in found["speed"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["zoo:resnet50", "--device", "a1000"], "a100"),
        (["zoo:resnet51"], "resnet50"),
        (["zoo:resnet50", "--precision", "fp7"], "fp32"),
        ([], "give one of"),
        (["zoo:resnet50", "--batch", "0"], "'--batch'"),
        (["zoo:resnet50", "--batch", "1" + 20 * "0"], "'--batch'"),
        (["zoo:resnet50", "--bananas"], "predict -h"),
        (["zoo:resnet50", "--inference", "--optimizer", "adamw"], "leave --optimizer adamw out"),
        (["--table", "nowhere.parquet", "--target", "memory", "--out", "x.parquet"], "no file"),
        (["nowhere.py:f"], "nowhere.py"),
        (["hf:gpt2", "--layout", "nhwc", "--device", "l4"], "reads no images"),
        (["zoo:resnet18", "--attention", "eager", "--device", "l4"], "has no attention"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str) -> None:
    done = run("predict", *words)
    assert done.exit_code == 2
    line = done.stderr.strip()
    assert line.startswith("error: ")
    assert "\n" not in line
    assert says in line


def test_no_number_is_cut_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    done = run("predict", "hf:gpt2", "--batch", "512", "--device", "a100-40g")
    assert done.exit_code == 0, done.output
    assert "…" not in done.stdout
    assert "max batch" in done.stdout


def test_serving_says_what_it_assumed_of_the_cache() -> None:
    told = answer("hf:gpt2", "--inference", "--device", "l4")
    assert "1,024 tokens that a served sequence holds" in told["assumptions"]
    assert not any("a sample" in line for line in told["assumptions"])
    told = answer("hf:gpt2", "--inference", "--kv-len", "512", "--quant", "nf4", "--device", "l4")
    assert not any("forward pass" in line for line in told["assumptions"])


def test_a_module_in_python() -> None:
    torch = pytest.importorskip("torch")
    found = presage.predict(torch.nn.Linear(512, 512), "512", batch=32, device="a100-40g")
    assert found.params == 512 * 512 + 512
    assert found.macs == 512 * 512
    assert found.gpus["a100-40g"].fits


def test_rows_keep_their_order_and_measured_columns_are_not_read() -> None:
    table = pl.DataFrame(
        {
            "model": ["resnet50", "stranger", "resnet18.a1_in1k"],
            "batch_size": [64, 64, 8],
            "gmacs": [4.1, 4.1, 1.8],
            "macts": [11.1, 11.1, 2.5],
            "param_count": [25.6, 25.6, 11.7],
            "max_gpu_mem_mib": [1, 1, 1],
        }
    )
    found = predict_table(table, "memory")
    assert found["model"].to_list() == table["model"].to_list()
    other = predict_table(table.with_columns(max_gpu_mem_mib=pl.lit(90_000)), "memory")
    assert found["p50"].to_list() == other["p50"].to_list()
    widths = (found["p90"] / found["p10"]).log().to_list()
    assert widths[1] > widths[0]
    assert found["p50"][2] < found["p50"][0]


@pytest.mark.parametrize("target", ["memory", "step_time", "utilization"])
def test_a_table_without_usable_columns_is_refused(target: str) -> None:
    with pytest.raises(UserError):
        predict_table(pl.DataFrame({"colour": ["red"]}), target)


@pytest.mark.parametrize("value", [0, -3])
def test_sizes_are_positive(value: int) -> None:
    with pytest.raises(UserError, match="batch_size"):
        predict_table(pl.DataFrame({"model": ["resnet50"], "batch_size": [value]}), "memory")


def test_a_model_nobody_knows_leaves_the_others(shared_data: Path) -> None:
    found = predict_table(
        pl.read_parquet(shared_data / "profiles/miso_util_a100.parquet"), "utilization"
    )
    unknown = found.filter(pl.col("p50").is_nan())["model"].unique().to_list()
    assert unknown == ["dummy"]


def test_many_rows_take_little_longer_than_few() -> None:
    """Counted in bytecodes: what a row costs does not grow with the number of rows."""
    table = pl.DataFrame(
        {
            "model": ["resnet50", "stranger"] * 150,
            "batch_size": list(range(1, 301)),
            "gmacs": 4.1,
        }
    )
    predict_table(table.head(2), "step_time")
    few, many = (
        opcodes(partial(predict_table, rows, "step_time")) for rows in (table.head(30), table)
    )
    assert many < 15 * few
