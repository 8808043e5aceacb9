"""What several GPUs tell each other: bytes, links and what computing hides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from presage.foresee.communication import (
    Exposure,
    RankLoad,
    bubble_share,
    communication,
    data_parallel,
    fabric,
    learned,
    links,
    traffic,
)
from presage.foresee.gpus import catalogue, find
from presage.model.errors import ConfigError
from presage.model.setup import Parallelism, Setup

A100 = find("a100-80g")
BERT = RankLoad(336e6, 336e6, gradient_bytes=2)
BLOCKS = RankLoad(1e9, 1e9, layers=24, width=4096, kv_width=2048, tokens=8192, routed=48)


def ddp(gpus: int, **more: object) -> Setup:
    return Setup(gpus=gpus, parallel=Parallelism("ddp"), **more)  # type: ignore[arg-type]


def seconds(load: RankLoad, setup: Setup, kind: str, link: str | None = None) -> float:
    return sum(traffic(load, setup, fabric(A100, link))[kind])


def test_every_gpu_has_links_and_every_link_a_name() -> None:
    for gpu in catalogue().values():
        joined = fabric(gpu)
        assert joined.near.gbs > 0
        assert joined.far.gbs > 0
        assert joined.machine >= 1
    for name in links():
        joined = fabric(A100, name, machine=2)
        assert name in ("nvlink", "pcie", joined.near.name, joined.far.name)


@pytest.mark.parametrize(
    ("gpu", "near", "machine"),
    [
        ("a100-80g", "nvlink3", 8),
        ("h100-80g", "nvlink4", 8),
        ("gb200", "nvl72", 72),
        ("v100-16g", "nvlink2", 8),
        ("rtx3090", "host4", 8),  # GeForce cards do not copy to each other
        ("a6000", "pcie4", 8),
        ("t4", "pcie3", 8),
    ],
)
def test_usual_links(gpu: str, near: str, machine: int) -> None:
    joined = fabric(find(gpu))
    assert (joined.near.name, joined.machine) == (near, machine)


def test_a_user_says_other_links() -> None:
    assert fabric(A100, "pcie").near.name == "pcie4"
    both = fabric(A100, "nvlink+4xib100")
    assert both.near.name == "nvlink3"
    assert both.far.gbs == pytest.approx(4 * 12.5 / 8)  # four cards for eight GPUs
    assert fabric(A100, "eth10").far.gbs == pytest.approx(1.25 / 8)


def test_pairs_of_bridged_cards_are_fast_only_as_a_pair() -> None:
    turing = find("rtx2080ti")
    assert fabric(turing, "nvlink", machine=2).near.gbs == 50
    assert fabric(turing, "nvlink", machine=8).near.name == "pcie3"


@pytest.mark.parametrize("word", ["nvlnk", "ib401", "4xpcie", "", "token ring"])
def test_an_unknown_link_is_one_line(word: str) -> None:
    if not word:
        assert fabric(A100, word) == fabric(A100)
        return
    with pytest.raises(ConfigError) as problem:
        fabric(A100, word)
    assert "\n" not in str(problem.value)


def test_gradients_take_a_rings_time() -> None:
    took = seconds(BERT, ddp(8), "gradients")
    ring = 2 * 7 / 8 * 336e6 * 2 / 300e9
    assert took == pytest.approx(ring + 14 * 4e-6)
    assert seconds(BERT, ddp(16), "gradients") > took  # 8 network cards of 25 GB/s
    assert seconds(BERT, ddp(1), "gradients") == 0


def test_full_sharding_sends_half_as_much_again() -> None:
    for steps in (1, 4):
        plain = Setup(gpus=8, accumulate=steps, parallel=Parallelism("zero1"))
        sharded = replace(plain, parallel=Parallelism("fsdp"))
        more = seconds(BERT, sharded, "gather") / seconds(BERT, plain, "gradients")
        assert more == pytest.approx(1.5 * steps, rel=0.02)  # and for every micro-batch


@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        (Parallelism(tensor=2), "tensor"),
        (Parallelism(pipeline=2), "pipeline"),
        (Parallelism(context=2), "context"),
        (Parallelism("zero1", expert=8), "experts"),
    ],
)
def test_each_way_to_divide_sends_its_own(cut: Parallelism, kind: str) -> None:
    setup = Setup(gpus=8, parallel=cut)
    said = traffic(BLOCKS, setup, fabric(A100))
    assert said[kind][0] > 0
    others = {k for k, (near, far) in said.items() if near + far > 0} - {kind}
    assert others <= {"gradients"}
    twice = traffic(replace(BLOCKS, tokens=2 * BLOCKS.tokens), setup, fabric(A100))
    assert 1.5 < sum(twice[kind]) / sum(said[kind]) <= 2.0


def test_tensor_ranks_of_two_machines_use_the_network() -> None:
    near, far = traffic(BLOCKS, Setup(gpus=16, parallel=Parallelism(tensor=16)), fabric(A100))[
        "tensor"
    ]
    assert near == 0
    assert far > 0
    rack = fabric(find("gb200"))
    assert traffic(BLOCKS, Setup(gpus=64, parallel=Parallelism(tensor=64)), rack)["tensor"][1] == 0


def test_bubbles_shrink_with_micro_batches_and_chunks() -> None:
    cut = Parallelism(pipeline=4)
    assert bubble_share(Setup(gpus=4, accumulate=8, parallel=cut)) == pytest.approx(3 / 8)
    chunks = replace(cut, interleave=2)
    assert bubble_share(Setup(gpus=4, accumulate=8, parallel=chunks)) == pytest.approx(3 / 16)
    lost = communication(
        BLOCKS, Setup(gpus=4, accumulate=8, parallel=cut), fabric(A100), 10, 20, Exposure()
    )
    assert lost.bubble_share == pytest.approx(3 / 11)


def test_computing_hides_what_is_sent() -> None:
    how = Exposure(least=0.1, waiting=0.0)
    short, long = (
        communication(BERT, ddp(8, interconnect="pcie"), fabric(A100, "pcie"), ms, 2 * ms, how)
        for ms in (1.0, 1000.0)
    )
    sent = seconds(BERT, ddp(8), "gradients", "pcie") * 1e3 / how.pcie
    assert long.exposed_ms == pytest.approx(0.1 * sent)
    assert short.exposed_ms == pytest.approx(sent - 0.8 * 2)


def test_any_model_by_its_parameters() -> None:
    """BERT-large loses more over PCIe than over NVLink, and most through the host."""
    setup = ddp(8, precision="amp")
    nvlink = data_parallel(336e6, setup, A100, 150, 300)
    pcie = data_parallel(336e6, replace(setup, interconnect="pcie"), A100, 150, 300)
    host = data_parallel(336e6, setup, find("rtx3090"), 150, 300)
    assert nvlink.exposed_ms < pcie.exposed_ms < host.exposed_ms
    assert 0.85 < 450 / (450 + nvlink.exposed_ms) < 0.97
    assert data_parallel(336e6, Setup(), A100, 150, 300).exposed_ms == 0


def test_what_was_learned_is_possible() -> None:
    how = learned()
    for share in ("nvlink", "pcie", "host", "gradients", "least"):
        assert 0 < getattr(how, share) <= 1
    assert how.host < how.pcie
    assert 0 < how.waiting < 0.2
