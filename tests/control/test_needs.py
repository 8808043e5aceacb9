"""What is foreseen of a job when it is submitted, and what own runs change about it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from presage.control.advisors.needs import NeedsEstimator, workload
from presage.foresee.champions import Champions
from presage.foresee.own import OwnRun
from presage.manifest import Manifest, parse_manifest, resolved, to_spec
from presage.model.cluster import Device, Node
from presage.model.errors import UserError
from presage.model.estimate import Estimate
from presage.store.memory import MemoryKnowledge

NODES = (Node("n", (Device("a100-40g", memory_mib=40_000),)),)


def manifest(text: str) -> Manifest:
    return parse_manifest(f"name: t\ncommand: python train.py\n{text}")


@pytest.fixture
def estimator(tmp_path: Path) -> NeedsEstimator:
    champions = Champions(MemoryKnowledge())
    return NeedsEstimator(champions, lambda: NODES, lambda d: tmp_path / f"{d}.tar.gz")


def test_a_model_reference_gives_memory_utilization_step_and_run_time(
    estimator: NeedsEstimator,
) -> None:
    asked = manifest("resources: {gpus: 1}\nmodel: {ref: zoo:resnet18, batch: 32, steps: 1000}")
    found = estimator.of(to_spec(asked, "j", "me"), asked.model, None)
    assert found is not None
    assert found.version == "memory 0, step_time 0, utilization 0"
    assert found.memory_mib is not None
    assert found.utilization is not None
    assert found.step_s is not None
    assert found.runtime_s is not None
    assert 500 < found.memory_mib.p50 < 20_000
    assert 0 < found.utilization.p50 <= 1
    assert found.runtime_s.p50 == pytest.approx(1000 * found.step_s.p50)
    assert "a100-40g" in found.memory_mib.source


def test_without_a_model_the_history_answers_and_else_nobody() -> None:
    asked = manifest("resources: {gpus: 1}")
    spec = to_spec(asked, "j", "me")
    champions = Champions(MemoryKnowledge())
    assert NeedsEstimator(champions, lambda: NODES, Path).of(spec, asked.model, None) is None
    hour = Estimate.exact(3600.0, "s", "history of 5 runs")
    found = NeedsEstimator(champions, lambda: NODES, Path, lambda spec: hour).of(
        spec, asked.model, None
    )
    assert found is not None
    assert found.runtime_s == hour


def test_what_its_owner_says_of_links_is_what_policies_are_told(
    estimator: NeedsEstimator,
) -> None:
    asked = manifest("workers: 4\nlink_share: 0.25")
    found = estimator.of(to_spec(asked, "j", "me"), None, None)
    assert found is not None
    assert found.link_share == Estimate.exact(0.25, "share", "manifest")
    assert found.runtime_s is None
    with pytest.raises(UserError, match="link_share"):
        manifest("link_share: 1")


def test_models_that_are_code_or_not_there_tell_nothing(estimator: NeedsEstimator) -> None:
    for ref in ("train.py:build", "zoo:nonsense", "model.onnx"):
        asked = manifest(f"resources: {{gpus: 1}}\nmodel: {ref}")
        assert estimator.of(to_spec(asked, "j", "me"), asked.model, None) is None


def test_a_config_in_the_uploaded_folder_is_read_as_data(
    estimator: NeedsEstimator, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    config = {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 1000,
        "max_position_embeddings": 128,
    }
    body = json.dumps(config).encode()
    with tarfile.open(tmp_path / "abc.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("./config.json")
        info.size = len(body)
        tar.addfile(info, io.BytesIO(body))
    asked = manifest("resources: {gpus: 1}\nmodel: config.json")
    found = estimator.of(to_spec(asked, "j", "me"), asked.model, "abc")
    assert found is not None
    assert found.memory_mib is not None


def test_own_runs_answer_for_cpus_and_for_auto(tmp_path: Path) -> None:
    champions = Champions(MemoryKnowledge())
    estimator = NeedsEstimator(champions, lambda: NODES, lambda d: tmp_path)
    asked = manifest(
        "resources: {cpus: 1, memory: auto}\nmodel: {ref: zoo:mlp, batch: 8, steps: 9}"
    )
    spec = to_spec(asked, "j", "me")
    assert estimator.of(spec, asked.model, None) is None  # nothing is known of this machine yet
    assert estimator.needs(spec, asked.model, None).memory_mib is None
    alone = estimator.alone(spec, asked.model, None)
    assert alone.elsewhere
    assert alone.step_s is not None
    assert alone.memory_mib is not None
    name = workload(spec, asked.model)
    for k in range(20):
        ms = OwnRun(name, "cpu", float(k), 50.0 + k % 3, 1e3 * alone.step_s.p50, alone.sizes)
        mib = OwnRun(name, "cpu", float(k), 300.0, alone.memory_mib.p50, alone.sizes)
        champions.add("step_time", ms)
        champions.add("memory", mib)
    for quantity in ("step_time", "memory"):
        assert champions.challenge(quantity, champions.runs(quantity), 20.0) is not None
    estimator.refresh()
    found = estimator.of(spec, asked.model, None)
    assert found is not None
    assert found.step_s is not None
    assert found.step_s.p50 == pytest.approx(0.051, rel=0.05)
    assert found.runtime_s is not None
    assert found.runtime_s.p50 == pytest.approx(9 * found.step_s.p50)
    needs = estimator.needs(spec, asked.model, None)
    assert needs.memory_mib == pytest.approx(300, rel=0.05)
    assert found.version == "memory 1, step_time 1, utilization 0"


def test_a_workload_keeps_its_name_when_there_is_more_to_say_of_models() -> None:
    asked = manifest("model: {ref: zoo:resnet18, batch: 16, steps: 10, optimizer: adam}")
    assert asked.model is not None
    said = '{"ref":"zoo:resnet18","batch":16,"optimizer":"adam","precision":"fp32"}'
    assert asked.model.described() == said
    longer = manifest("model: {ref: zoo:resnet18, batch: 16, checkpoint: full}")
    spec = to_spec(asked, "j", "me")
    assert workload(spec, asked.model) != workload(spec, longer.model)


def test_a_language_model_is_foreseen_on_all_gpus_of_its_job(estimator: NeedsEstimator) -> None:
    text = (
        "workers: {workers}\nresources: {{gpus: 2}}\n"
        "model: {{target: hf:gpt2, batch: 4, seq: 512, precision: bf16, optimizer: adamw, "
        "parallel: {parallel}}}"
    )
    several = []
    for workers, parallel in ((4, "fsdp"), (1, "none")):
        asked = manifest(text.format(workers=workers, parallel=parallel))
        answer = estimator.of(to_spec(asked, "j", "me"), asked.model, None)
        assert answer is not None
        assert answer.memory_mib is not None
        several.append(answer.memory_mib.p50)
    assert several[0] < several[1], "weights and state are divided among eight"


def test_memory_auto_of_a_repeated_task_is_what_its_history_costs_least_with() -> None:
    champions = Champions(MemoryKnowledge())
    estimator = NeedsEstimator(champions, lambda: NODES, Path)
    asked = manifest("resources: {cpus: 1, memory: auto}")
    spec = to_spec(asked, "j", "me")
    name = workload(spec, None)
    champions.add("memory", OwnRun(name, "cpu", 1.0, 20_000.0))
    assert estimator.needs(spec, None, None).sized_mib is None  # one run is not enough
    second = OwnRun(name, "cpu", 2.0, 20_010.0)
    champions.add("memory", second)
    estimator.remember(second)
    sized = estimator.needs(spec, None, None).sized_mib
    assert sized is not None
    assert sized > 20_010
    given = resolved(asked, estimator.needs(spec, None, None))
    assert given.resources is not None
    assert given.resources.memory == f"{64 * -(-sized // 64):.0f}Mi"
    champions.ran_out(name, 2 * sized)
    assert estimator.needs(spec, None, None).sized_mib == pytest.approx(4 * sized)
