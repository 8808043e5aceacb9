"""The roofline: arithmetic, traffic and launches by hand; what fits say; how sure and how far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from presage.foresee.gpus import Gpu, find
from presage.foresee.graph import precomputed, zoo
from presage.foresee.graph.architectures import find_architecture
from presage.foresee.graph.decoder_graph import decoder_graph
from presage.foresee.graph.decoders import DecoderShape
from presage.foresee.graph.opgraph import KINDS
from presage.foresee.roofline import (
    RATES,
    Roofline,
    host_launches,
    joined_ms,
    kernel_ms,
    matrix_peak,
    only_forward,
    shipped_roofline,
    step_ms,
    without_optimizer,
    work_of,
)
from presage.foresee.roofline_fitting import fit_roofline, foreseen
from presage.foresee.roofline_slopes import Doubt, Observation
from presage.foresee.roofline_steps import RooflineSteps, shipped_steps
from presage.foresee.steptime import Operators, StepTimeEstimator
from presage.foresee.throughput import llm_step
from presage.learn.groups import GroupConformal
from presage.model.setup import Setup

PLAIN = Roofline({"launch": float(np.log(0.004)), "fill": -50.0, "host": -50.0, "fixed": -50.0})


def product(macs: float = 1e9, kind: str = "linear", side: float = 0) -> Operators:
    row = np.zeros((1, 14))
    row[0, 0] = KINDS.index(kind)
    row[0, 3], row[0, 6], row[0, 9] = macs, 1e6, 2e6  # macs, read, written for each sample
    row[0, 11:] = [1024, side, 3]  # channels, side, count
    return Operators.from_rows(row, 1e6)


def operators(name: str) -> Operators:
    graph = precomputed.read(zoo.find(name), optimizer="momentum")
    assert graph is not None
    return Operators.of(graph)


# -- by hand


def test_one_product_by_hand() -> None:
    gpu, setup = find("v100"), Setup(precision="amp")
    compute = 2 * 1e9 * 16 / (gpu.tflops("fp16") * 1e12) * 1e3
    traffic = 3e6 * 16 * 2 / (gpu.bandwidth_gbs * 1e9) * 1e3
    once = kernel_ms(product(), 16, gpu, setup, PLAIN)
    assert once == pytest.approx([np.hypot(compute, traffic) + 0.004])
    assert step_ms(product(), 16, gpu, setup, PLAIN) == pytest.approx(3 * once[0])


@pytest.mark.parametrize(
    ("precision", "kind", "rate"),
    [
        ("fp32", "linear", "simt"),
        ("fp32", "conv", "tf32"),  # what PyTorch does unasked
        ("tf32", "linear", "tf32"),
        ("amp", "linear", "half"),
        ("amp_bf16", "conv", "half"),
        ("fp8", "linear", "half"),  # an A100 has none
    ],
)
def test_precisions_as_pytorch_runs_them(precision: str, kind: str, rate: str) -> None:
    setup = Setup(precision=precision)  # type: ignore[arg-type]
    work = work_of(product(kind=kind), 8, find("a100"), setup)
    assert [RATES[n] for n in work.rate] == [rate]


def test_what_a_gpu_does_not_have_runs_slower() -> None:
    ops = product(1e11)
    pascal, turing = find("titanxp"), find("titanrtx")
    half = {g.name: step_ms(ops, 64, g, Setup(precision="fp16"), PLAIN) for g in (pascal, turing)}
    assert half["titanxp"] > 8 * half["titanrtx"]
    assert RATES[work_of(ops, 64, pascal, Setup(precision="fp16")).rate[0]] == "emulated"
    assert matrix_peak(find("h100"), "tf32") < find("h100").tflops("tf32") * 1e12  # power
    eight = [step_ms(ops, 64, find("h100"), Setup(precision=p), PLAIN) for p in ("fp8", "bf16")]
    assert eight[0] < 0.6 * eight[1]


def test_a_product_that_does_not_fill_the_gpu_loses() -> None:
    gpu, setup = find("a100"), Setup(precision="amp")
    lossy = Roofline(PLAIN.effects | {"fill": 0.0})
    for batch, least, most in ((0.01, 1.5, 1e3), (4096, 1.0, 1.01)):
        ratio = step_ms(product(1e12), batch, gpu, setup, lossy) / step_ms(
            product(1e12), batch, gpu, setup, PLAIN
        )
        assert least <= ratio <= most


def test_a_step_is_not_shorter_than_its_launches() -> None:
    ops, gpu, setup = operators("mobilenetv2"), find("h100"), Setup(precision="amp")
    slow = Roofline(PLAIN.effects | {"host": float(np.log(0.04))})
    launches = host_launches(ops, setup)
    assert step_ms(ops, 1, gpu, setup, slow) == pytest.approx(0.04 * launches, rel=0.05)
    assert joined_ms(3.0, 3.0) == pytest.approx(3 * 2**0.25)
    assert joined_ms(0.0, 5.0) == joined_ms(5.0, 0.0) == 5.0


def test_eager_attention_moves_its_scores() -> None:
    ops, gpu = operators("bert-base-squad"), find("a100")
    eager, fused = (
        work_of(ops, 32, gpu, Setup(precision="amp", attention=kind)) for kind in ("eager", "sdpa")
    )
    more = float((eager.traffic_ms * eager.count).sum() - (fused.traffic_ms * fused.count).sum())
    scores = 12 * 12 * 384**2 * 32  # layers, heads, length², batch
    passes = more * gpu.bandwidth_gbs * 1e6 / 2 / scores
    assert 12 < passes < 30  # forward and backward, read and written
    done = [float((w.compute_ms * w.count).sum()) for w in (eager, fused)]
    assert 0.9 < done[0] / done[1] < 1.001  # nothing is computed again
    assert host_launches(ops, Setup(attention="eager")) > host_launches(ops, Setup())


# -- what fits say


@pytest.mark.parametrize("name", ["resnet50", "bert-large-squad", "gpt2"])
def test_shipped_efficiencies_are_plausible(name: str) -> None:
    ops, setup = operators(name), Setup(precision="amp", attention="sdpa")
    macs = (ops.macs @ np.array([1.0, 64.0, 64.0**2])) @ ops.count
    for gpu in map(find, ("v100", "a100", "h100")):
        share = 2e3 * macs / step_ms(ops, 64, gpu, setup) / (gpu.tflops("fp16") * 1e12)
        assert 0.05 < share < 0.75


def test_newer_gpus_are_faster_and_unknown_ones_inherit() -> None:
    ops, setup = operators("resnet50"), Setup(precision="amp")
    times = [step_ms(ops, 128, find(name), setup) for name in ("v100", "a100", "h100")]
    assert times == sorted(times, reverse=True)
    gpu = find("rtx3090")
    other = replace(gpu, name="nobody's")
    assert step_ms(ops, 128, other, setup) == pytest.approx(step_ms(ops, 128, gpu, setup), rel=0.3)


def observed(names: tuple[str, ...], gpus: tuple[str, ...], truth: Roofline) -> list[Observation]:
    out, rng = [], np.random.default_rng(0)
    for name in names:
        ops = without_optimizer(operators(name))
        for gpu in map(find, gpus):
            for batch in (8, 64):
                setup = Setup(precision="amp")
                ms = step_ms(ops, batch, gpu, setup, truth) * float(np.exp(rng.normal(0, 0.02)))
                work, launches = work_of(ops, batch, gpu, setup), host_launches(ops, setup)
                out.append(Observation(work, launches, gpu, setup, ms, "lab", name, name))
    return out


def test_a_fit_finds_what_made_the_times() -> None:
    truth = Roofline(
        PLAIN.effects
        | {"compute": 0.7, "memory": 0.5, "host": float(np.log(0.03)), "fixed": 3.0, "fill": -2.0}
    )
    rows = observed(("resnet18", "vgg11", "mlp", "vit-b-16"), ("v100", "a100", "t4"), truth)
    fitted = fit_roofline(rows)
    off = [np.log(foreseen(fitted, row)[0] / row.ms) for row in rows]
    assert np.sqrt(np.mean(np.square(off))) < 0.06
    new = observed(("resnet34",), ("rtx2080ti",), truth)  # another model, another GPU
    for row in new:
        assert foreseen(fitted, row)[0] == pytest.approx(row.ms, rel=0.25)
    again = fit_roofline(rows, begin=fitted)
    assert foreseen(again, rows[0])[0] == pytest.approx(foreseen(fitted, rows[0])[0], rel=0.02)


# -- how sure, how far


def test_far_from_the_data_is_wide() -> None:
    steps, ops = shipped_steps(), operators("resnet50")
    near, far = find("v100-16g"), replace(find("v100-16g"), name="new", architecture="rubin")
    setup = Setup(precision="amp")
    widths = {}
    for gpu in (near, far):
        low, middle, high = steps.quantiles(ops, 64, gpu, setup)
        assert low < middle < high
        widths[gpu.name] = float(np.log(high / low))
    assert widths["new"] > 1.3 * widths["v100-16g"]
    known, new = (steps.distance(ops, 64, gpu, setup) for gpu in (near, far))
    assert known.value < 0.2 < 0.5 < new.value <= 1
    assert "rubin" in new.words
    assert "gpu" in new.unseen
    assert "gpu" not in known.unseen


def test_what_was_not_measured_is_less_sure() -> None:
    steps, ops, setup = shipped_steps(), operators("resnet50"), Setup(precision="amp")
    near = find("v100-16g")
    known, kin, new = (
        float(steps.doubt.deviation([asked(ops, gpu, setup)], steps.roofline.effects)[0])
        for gpu in (
            near,
            replace(near, name="another volta"),
            replace(near, name="new", architecture="rubin"),
        )
    )
    assert 0 < known < kin < new


def asked(ops: Operators, gpu: Gpu, setup: Setup) -> Observation:
    work, launches = work_of(ops, 64, gpu, setup), host_launches(ops, setup)
    return Observation(work, launches, gpu, setup, 1.0, "", "", "")


def test_doubt_is_what_the_measurements_leave() -> None:
    names, size = ("compute", "memory"), np.array([1.0, 1.0])  # their spreads
    open_one = Doubt.of(names, np.diag([3.0, 0.0]))
    left = (size**2)[0] - open_one.directions[0] ** 2 @ open_one.told
    assert left == pytest.approx(1 / (1 + 3.0))
    again = Doubt.from_arrays(open_one.to_arrays())
    assert again.names == names
    assert again.told == pytest.approx(open_one.told)
    assert open_one.without(("memory",)).names == ("compute",)


def test_compiled_models_are_quicker_and_less_sure() -> None:
    steps, ops, gpu = shipped_steps(), operators("resnet50"), find("rtx4090")
    eager = Setup(precision="amp", inference=True)
    compiled = replace(eager, compile=True)
    times = [steps.quantiles(ops, 128, gpu, how) for how in (eager, compiled)]
    assert 0.3 < times[1][1] / times[0][1] < 0.95
    assert "compiled inference" in steps.distance(ops, 128, gpu, compiled).words
    trained = [
        steps.quantiles(ops, 128, gpu, replace(how, inference=False)) for how in (eager, compiled)
    ]
    narrow, wide = (float(np.log(high / low)) for low, _, high in trained)
    assert wide > 1.1 * narrow


@pytest.mark.parametrize(
    ("name", "seq", "batch"),
    [("meta-llama/Llama-3.2-1B", 2048, 4), ("meta-llama/Llama-3.1-8B", 4096, 1)],
)
@pytest.mark.parametrize("gpu", ["a100-80g", "h100-80g"])
def test_a_decoder_by_its_operators_is_as_fast_as_by_its_name(
    name: str, seq: int, batch: int, gpu: str
) -> None:
    setup = Setup(precision="bf16", optimizer="adamw", seq=seq)
    shape = DecoderShape.from_config(find_architecture(name).config, name)
    ops = Operators.of(decoder_graph(shape, setup))
    by_operators = shipped_steps().parts(ops, batch, find(gpu), setup).step_ms
    by_name = 1e3 * llm_step(shape, setup, batch, find(gpu)).step_s[1]
    assert 0.7 < by_operators / by_name < 1.4


def test_micro_batches_and_checkpoints_add_up() -> None:
    steps, ops, gpu = shipped_steps(), operators("resnet50"), find("a100")
    setup = Setup(precision="amp")
    once = steps.parts(ops, 32, gpu, setup).step_ms
    inner = steps.parts(without_optimizer(ops), 32, gpu, setup).step_ms
    four = steps.parts(ops, 32, gpu, replace(setup, accumulate=4)).step_ms
    assert four == pytest.approx(once + 3 * inner, rel=0.05)
    forward = steps.parts(only_forward(ops), 32, gpu, setup).step_ms
    assert forward == steps.parts(ops, 32, gpu, replace(setup, inference=True)).step_ms
    full = steps.parts(ops, 32, gpu, replace(setup, checkpoint="full")).step_ms
    assert full == pytest.approx(once + forward, rel=0.05)


def test_steps_survive_a_round_trip() -> None:
    steps = shipped_steps()
    again = RooflineSteps.from_arrays(steps.to_arrays())
    assert again.roofline.effects == shipped_roofline().effects == steps.roofline.effects
    assert isinstance(again.intervals, GroupConformal)
    assert again.intervals == steps.intervals


@pytest.fixture(scope="module")
def estimator() -> StepTimeEstimator:
    from presage.foresee import estimators

    return estimators.step_time().graph


def inside(estimator: StepTimeEstimator, name: str, gpu: Gpu, setup: Setup) -> float:
    return estimator.inside(operators(name), 128, gpu, setup)


def test_trees_are_asked_only_where_they_know(estimator: StepTimeEstimator) -> None:
    amp = Setup(precision="amp")
    home = find("rtx3090")
    assert inside(estimator, "resnet50", home, amp) > 0.9
    for setup in (
        Setup(precision="fp32"),
        Setup(precision="tf32"),
        replace(amp, inference=True),
        replace(amp, attention="eager"),
        replace(amp, compile=True),
    ):
        assert inside(estimator, "resnet50", home, setup) == 0
    for name in ("v100", "a100", "h100", "rtx4090"):
        assert inside(estimator, "resnet50", find(name), amp) < 0.05
    assert inside(estimator, "resnet50", find("rtx3080"), amp) > 0.8  # alike
    assert inside(estimator, "lstm-ptb-large", home, amp) < 0.1
    assert estimator.inside(operators("resnet50"), 1, home, amp) < 0.1


def test_one_answer_fades_into_the_other(estimator: StepTimeEstimator) -> None:
    ops, amp, home = operators("resnet50"), Setup(precision="amp"), find("rtx3090")
    plain = shipped_steps().quantiles(ops, 128, find("v100"), amp)
    assert estimator.quantiles(ops, 128, find("v100"), amp) == pytest.approx(plain)
    near, words = estimator.domain(ops, 128, home, amp)
    assert near < 0.1
    assert "hundreds" in words
    narrow = np.log(estimator.quantiles(ops, 128, home, amp))
    wide = np.log(shipped_steps().quantiles(ops, 128, home, amp))
    assert narrow[2] - narrow[0] < wide[2] - wide[0]
    graph = precomputed.read(zoo.find("resnet50"), optimizer="momentum", precision="amp")
    assert graph is not None
    assert estimator.quantiles(graph, 128, home, amp) == pytest.approx(np.exp(narrow), rel=0.05)
