"""The zoo: every entry can be found, and built it has the parameters and MACs others publish."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.foresee.graph import precomputed, zoo
from presage.model.errors import GraphError

TIMM = {
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "resnet152": "resnet152",
    "vgg11": "vgg11",
    "vgg13": "vgg13",
    "vgg16": "vgg16",
    "vgg16-bn": "vgg16_bn",
    "vgg19": "vgg19",
    "densenet121": "densenet121",
    "densenet161": "densenet161",
    "densenet169": "densenet169",
    "densenet201": "densenet201",
    "mobilenetv2": "mobilenetv2_100",
    "mobilenetv3-small": "mobilenetv3_small_100",
    "mobilenetv3-large": "mobilenetv3_large_100",
    "efficientnet-b0": "efficientnet_b0",
    "convnext-tiny": "convnext_tiny",
    "vit-b-16": "vit_base_patch16_224",
}


def test_names_and_aliases_lead_to_one_entry_each() -> None:
    seen: dict[str, str] = {}
    for name in zoo.names():
        entry = zoo.find(name)
        assert entry.name == name
        for alias in (name, *entry.aliases):
            assert seen.setdefault(zoo._plain(alias), name) == name
            assert zoo.find(alias) is entry


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ResNet-50", "resnet50"),
        ("gavel:ResNet-18 (batch size 16)", "resnet18-cifar10"),
        ("gavel:LM (batch size 10)", "lstm-wikitext2"),
        ("lucid:VGG/CIFAR-10", "vgg16-cifar10"),
        ("Transformer", "transformer-base"),
    ],
)
def test_the_names_of_traces_are_known(written: str, name: str) -> None:
    assert zoo.find(written).name == name


def test_every_model_of_the_profiles_is_known(shared_data: Path) -> None:
    tables = {
        "gavel": ("colocation/gavel_isolated", "model"),
        "muri": ("profiles/muri_stage_times_v100", "model_name"),
        "sia": ("profiles/sia_step_sync_times", "model"),
        "zeus": ("profiles/zeus_power_time", "network"),
    }
    for source, (file, column) in tables.items():
        for name in pl.read_parquet(shared_data / f"{file}.parquet")[column].unique():
            assert zoo.find(f"{source}:{name}")
    lucid = pl.read_parquet(shared_data / "profiles/lucid_single_rtx3090.parquet")
    for model, data in lucid.select("model", "dataset").unique().iter_rows():
        assert zoo.find(f"lucid:{model}/{data}")


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(GraphError, match="did you mean resnet50"):
        zoo.find("resnet5")
    with pytest.raises(GraphError, match="there are: resnet18"):
        zoo.find("zzqqzzqq")


def test_at_least_20_models_have_the_published_macs_and_parameters() -> None:
    macs = []
    for name in zoo.names():
        entry = zoo.find(name)
        graph = precomputed.read(entry, inference=True)
        assert graph is not None
        if entry.published.params is not None and name != "transformer-base":
            assert graph.params == pytest.approx(entry.published.params, rel=0.01), name
        if entry.published.macs is not None and name != "pointnet":
            assert graph.forward_macs() == pytest.approx(entry.published.macs, rel=0.01), name
            macs.append(name)
    assert len(macs) >= 20


def test_activations_are_those_of_timm(shared_data: Path) -> None:
    table = pl.read_parquet(shared_data / "profiles/timm_infer_multi_gpu.parquet")
    table = table.with_columns(pl.col("model").str.split(".").list.first().alias("plain"))
    compared = 0
    for name, theirs in TIMM.items():
        rows = table.filter((pl.col("plain") == theirs) & (pl.col("img_size") == 224))
        graph = precomputed.read(zoo.find(name), inference=True)
        assert graph is not None
        assert rows.height, name
        expected = float(np.nanmedian(rows["macts"].to_numpy()))
        assert graph.activations() / 1e6 == pytest.approx(expected, rel=0.03), name
        compared += 1
    assert compared == len(TIMM)
