"""What a pod is advised to ask for when it is made."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from presage.control.admission import ADVICE, AdmissionMode, PodNeeds, advise, review
from presage.manifest import ModelReference
from presage.model.job import JobSpec

OWN = PodNeeds(10_000, "own runs of it", own_runs=True, least_mib=10_000)
GUESS = PodNeeds(10_000, "the graph of hf:x")


def pod(annotations: dict[str, str] | None = None, **resources: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"generateName": "train-"}
    if annotations is not None:
        meta["annotations"] = annotations
    first = {"name": "main", "image": "x", "command": ["python"], "resources": resources}
    return {"metadata": meta, "spec": {"containers": [first, {"name": "sidecar"}]}}


def applied(item: dict[str, Any], needs: PodNeeds, mode: str = "correct") -> dict[str, Any]:
    """The pod after the advice, as the API server would make it (we only ever `add`)."""
    item = json.loads(json.dumps(item))
    for step in advise(item, AdmissionMode(mode), lambda spec, model: needs).patch:
        assert step["op"] == "add"
        *way, last = [p.replace("~1", "/").replace("~0", "~") for p in step["path"][1:].split("/")]
        place: Any = item
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[last] = step["value"]
    return item


def resources(item: dict[str, Any]) -> Any:
    return item["spec"]["containers"][0]["resources"]


def test_missing_memory_is_filled_in_and_the_pod_says_why() -> None:
    made = applied(pod(), GUESS, "fill")
    assert resources(made) == {"requests": {"memory": "11520Mi"}}
    said = made["metadata"]["annotations"][ADVICE]
    assert said == "filled in memory: 11520Mi instead of nothing, the graph of hf:x"


@pytest.mark.parametrize("asked", ["1Gi", "64Gi"])
def test_fill_leaves_what_the_pod_asks_for(asked: str) -> None:
    assert applied(pod(requests={"memory": asked}), OWN, "fill") == pod(requests={"memory": asked})


@pytest.mark.parametrize(
    ("asked", "needs", "memory"),
    [
        ("1Gi", GUESS, "11520Mi"),  # too little
        ("64Gi", GUESS, "64Gi"),  # a guess from a model does not lower anything
        ("64Gi", OWN, "11520Mi"),  # own runs do
        ("12Gi", OWN, "12Gi"),  # near enough
        ("64Gi", PodNeeds(1000, "own runs", own_runs=True, least_mib=40_000), "40000Mi"),
        ("1Gi", PodNeeds(least_mib=3000), "3008Mi"),  # it ran out before, and that is all we know
    ],
)
def test_correct_raises_and_lowers_but_never_below_history(
    asked: str, needs: PodNeeds, memory: str
) -> None:
    made = applied(pod(requests={"memory": asked}), needs)
    assert resources(made)["requests"]["memory"] == memory


def test_a_limit_follows_where_it_must() -> None:
    both = pod(requests={"memory": "1Gi", "cpu": "2"}, limits={"memory": "1Gi"})
    assert resources(applied(both, GUESS)) == {
        "requests": {"memory": "11520Mi", "cpu": "2"},
        "limits": {"memory": "11520Mi"},
    }
    roomy = pod(requests={"memory": "1Gi"}, limits={"memory": "90Gi"})
    assert resources(applied(roomy, GUESS))["limits"] == {"memory": "90Gi"}


def test_a_report_changes_nothing_but_the_annotation() -> None:
    item = pod({"mine": "1"}, requests={"memory": "1Gi"})
    made = applied(item, GUESS, "report")
    assert made["metadata"]["annotations"].pop(ADVICE).startswith("would set memory: 11520Mi")
    assert made == item


def test_a_gpu_is_filled_in_for_a_model_and_a_model_too_large_is_told() -> None:
    fits = PodNeeds(gpu_memory_mib=20_000, gpu_room_mib=40_960, gpu_source="graph")
    assert resources(applied(pod(), fits, "fill")) == {
        "requests": {"nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    asked = pod(limits={"nvidia.com/gpu": "2"})
    assert applied(asked, fits) == asked
    large = PodNeeds(gpu_memory_mib=90_000, gpu_room_mib=40_960, gpu_source="graph")
    made = applied(pod(), large)
    assert resources(made) == {}
    assert made["metadata"]["annotations"][ADVICE] == (
        "it needs 101 GiB on a GPU and the largest here has 40 GiB (graph): a smaller batch, or "
        "parallel across GPUs"
    )


def test_the_model_is_read_from_annotations() -> None:
    seen: list[Any] = []

    def foresee(spec: JobSpec, model: ModelReference | None) -> PodNeeds:
        seen.append((spec.model, model and (model.batch, model.precision, model.compile)))
        return PodNeeds()

    notes = {"presage.dev/model": "hf:bert-base-uncased", "presage.dev/model.batch": "8"}
    notes |= {"presage.dev/model.precision": "bf16", "presage.dev/model.compile": "true"}
    assert advise(pod(notes), AdmissionMode.FILL, foresee).patch == ()
    assert seen == [("hf:bert-base-uncased", (8, "bf16", True))]


@pytest.mark.parametrize(
    ("notes", "text"),
    [
        ({"presage.dev/model": "zoo:x", "presage.dev/model.batch": "many"}, "model.batch: Input"),
        ({"presage.dev/model": "zoo:x", "presage.dev/model.bach": "8"}, "model.bach: Extra"),
        ({"presage.dev/advise": "loudly"}, "write off, report, fill or correct"),
    ],
)
def test_annotations_that_make_no_sense_are_a_warning_and_the_pod_is_allowed(
    notes: dict[str, str], text: str
) -> None:
    answer = _review(pod(notes))
    assert answer["allowed"]
    assert "patch" not in answer
    (warning,) = answer["warnings"]
    assert text in warning
    assert "\n" not in warning


def _review(item: Any, kind: str = "Pod") -> Any:
    request = {"uid": "u", "kind": {"kind": kind}, "object": item}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    made = review(body, AdmissionMode.FILL, lambda spec, model: GUESS)
    assert (made["apiVersion"], made["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return made["response"]


def test_a_review_is_answered_with_a_patch_in_base64() -> None:
    answer = _review(pod())
    assert (answer["uid"], answer["allowed"], answer["patchType"]) == ("u", True, "JSONPatch")
    steps = json.loads(base64.b64decode(answer["patch"]))
    assert [step["path"] for step in steps] == [
        "/spec/containers/0/resources",
        "/metadata/annotations",
    ]


def test_a_pod_may_say_off_and_other_kinds_are_left_alone() -> None:
    assert _review(pod({"presage.dev/advise": "off"})) == {"uid": "u", "allowed": True}
    assert _review(pod(), "Node") == {"uid": "u", "allowed": True}
    with pytest.raises(ValueError, match="no AdmissionReview"):
        review({}, AdmissionMode.FILL, lambda spec, model: GUESS)
