"""How much a job talks: foreseen from its model and the server's network, said by its owner, or
left out."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from presage.control.advisors.needs import NeedsEstimator
from presage.control.advisors.talk import settings_for
from presage.control.requests import shown_estimates
from presage.control.site.config import NodeNetwork
from presage.control.views.jobs import estimates_view
from presage.foresee.bursts.settings import NETWORKS
from presage.foresee.champions import Champions
from presage.manifest import Manifest, parse_manifest, to_spec
from presage.model.cluster import Device, Node
from presage.model.codec import decode, encode
from presage.model.estimate import Estimate, Estimates
from presage.model.job import Role
from presage.store.memory import MemoryKnowledge
from presage.store.records import JobRow

NODES = (Node("n", (Device("a100-40g", memory_mib=40_000),)),)
ROLES = (
    "roles:\n  worker: {{workers: {workers}, resources: {{gpus: 1}}}}\n"
    "  {other}: {{workers: 1, resources: {{cpus: 1}}}}"
)


GPT2 = "{{target: hf:gpt2, batch: 1, seq: 64, {}}}"


def estimates(text: str, network: str = "1gbit", model: str = "zoo:mlp") -> Estimates | None:
    """What is foreseen of a job that names a model, on a server with such a network."""
    estimator = NeedsEstimator(Champions(MemoryKnowledge()), lambda: NODES, Path, network=network)
    asked = manifest(text, model)
    return estimator.of(to_spec(asked, "j", "me"), asked.model, None)


def manifest(text: str, model: str = "zoo:mlp") -> Manifest:
    more = "" if "{" in model else f"{{target: {model}, batch: 32}}"
    gpus = "" if "resources" in text else "\nresources: {gpus: 1}"
    return parse_manifest(f"name: t\ncommand: x\n{text}{gpus}\nmodel: {more or model}")


def talk(text: str, network: str = "1gbit", model: str = "zoo:mlp") -> Estimate | None:
    found = estimates(text, network, model)
    assert found is not None
    return found.link_share


def test_several_workers_of_a_model_are_foreseen_to_talk_on_the_network_there_is() -> None:
    slow, fast = (talk("workers: 2", network) for network in ("100mbit", "10gbit"))
    assert slow is not None
    assert fast is not None
    assert 0 < fast.p10 < fast.p50 < fast.p90 < slow.p50 < 0.99
    assert fast.source == "bytes ÷ link ÷ step in W2/10gbit, not measured, on a100-40g"
    assert slow.source == "bytes ÷ link ÷ step in W2/100mbit, on a100-40g"
    assert slow.unit == "share"


def test_a_larger_batch_computes_longer_for_the_same_bytes() -> None:
    small, large = (
        talk("workers: 2", "10gbit", f"{{target: zoo:resnet18, batch: {batch}}}")
        for batch in (4, 256)
    )
    assert small is not None
    assert large is not None
    assert large.p50 < 0.7 * small.p50


def test_without_a_network_nothing_changes() -> None:
    before, after = estimates("workers: 2", "none"), estimates("workers: 2")
    assert before is not None
    assert after is not None
    assert before.link_share is None
    assert "link_share" not in encode(before)
    assert encode(after) == encode(before) | {"link_share": encode(after.link_share)}
    assert decode(Estimates, encode(after)) == after


def test_what_its_owner_says_goes_before() -> None:
    assert talk("workers: 2\nlink_share: 0.25") == Estimate.exact(0.25, "share", "manifest")
    assert talk("workers: 2\nlink_share: 0") == Estimate.exact(0, "share", "manifest")


def test_roles_of_servers_and_workers_are_a_setting_of_their_own() -> None:
    served, shared = talk(ROLES.format(workers=2, other="ps")), talk("workers: 2")
    assert served is not None
    assert shared is not None
    assert "P1W2/1gbit, on" in served.source
    assert served.p50 < shared.p50  # there, and then back
    assert talk(ROLES.format(workers=2, other="evaluator")) is None


def test_an_elastic_job_is_told_as_widely_as_its_sizes() -> None:
    least, most = talk("workers: 2"), talk("workers: 4")
    both = talk("workers: 1..4")
    assert least is not None
    assert most is not None
    assert both is not None
    assert both.p50 == least.p50
    assert both.p10 == min(least.p10, most.p10)
    assert both.p90 == max(least.p90, most.p90)
    assert "W2/1gbit to W4/1gbit, not measured" in both.source


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("workers: 1", "zoo:mlp"),
        ("workers: 7", "zoo:mlp"),  # three were measured at most
        ("workers: 2..7", "zoo:mlp"),
        ("workers: 2\nresources: {gpus: 2}", "zoo:mlp"),
        ("workers: 2", GPT2.format("precision: bf16")),  # slopes of two bytes
        ("workers: 2", GPT2.format("parallel: fsdp")),
        ("workers: 2", GPT2.format("inference: true")),
    ],
)
def test_what_nobody_measured_is_left_out(text: str, model: str) -> None:
    assert talk(text, model=model) is None


@pytest.mark.parametrize("how", ["precision: tf32", "parallel: ddp"])
def test_replicas_of_a_language_model_are_foreseen(how: str) -> None:
    assert talk("workers: 2", model=GPT2.format(how)) is not None


def test_of_processors_nothing_is_said() -> None:
    assert estimates("workers: 2\nresources: {cpus: 1}") is None


def test_settings_follow_from_roles() -> None:
    ps, worker = Role("ps", min=1, max=2), Role("worker", min=2, max=3)
    found = [str(each) for each in settings_for((ps, worker), "1gbit")]
    assert found == ["P1W2/1gbit", "P2W2/1gbit", "P1W3/1gbit", "P2W3/1gbit"]
    assert settings_for((worker, Role("a"), Role("ps")), "1gbit") == ()


def test_it_is_told_where_other_estimates_are() -> None:
    asked = manifest("workers: 2")
    spec = to_spec(asked, "j", "me")
    made = shown_estimates(estimates("workers: 2"), spec)
    assert made is not None
    told = estimates_view(
        JobRow(id="j", name="t", owner="me", submitted_at=0.0, manifest={}, estimates=made)
    )
    assert told is not None
    assert told["link_share"]["source"].startswith("bytes ÷ link")
    assert "of a step if on several nodes" in told["text"]


def test_networks_of_a_server_are_those_of_settings() -> None:
    assert set(get_args(NodeNetwork)) == set(NETWORKS)
