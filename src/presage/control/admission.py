"""Advice when a pod is made: what it should ask for, from what is foreseen of it.

A pod says what it trains by annotations (`presage.dev/model: hf:…`, `presage.dev/model.batch: "8"`
and so on, as a manifest does), or is known by its command. From that, memory and GPUs of its first
container are reported, filled in where they are missing, or corrected. Memory is never set below
what own runs needed, and only own runs may lower it: an estimate from a model alone may not.

Pure but for `foresee`, which is handed in. No HTTP here, and no error: who asks for advice and
gets none makes the pod as it is.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from presage.executors.kubernetes.amounts import amount, mib
from presage.executors.kubernetes.gangs import alone, job_of
from presage.executors.kubernetes.reading import Json, ask_of_pod
from presage.manifest import ModelReference
from presage.model.job import JobSpec

__all__ = ["ADVICE", "MODEL", "AdmissionMode", "Advice", "PodNeeds", "advise", "review"]

MODEL, ADVICE = "presage.dev/model", "presage.dev/advice"
MODE = "presage.dev/advise"
"""An annotation with which a pod chooses another mode for itself, or `off`."""
_GPU = "nvidia.com/gpu"
_SPARE = 1.15
_ROUND_MIB = 64
_TOO_MUCH = 1.5
"""What asks for less than so many times what it needs is left alone."""


class AdmissionMode(StrEnum):
    """What may be changed of a pod."""

    REPORT = "report"
    """Nothing: an annotation says what would be."""
    FILL = "fill"
    """What the pod does not ask for."""
    CORRECT = "correct"
    """Also what it asks for wrongly."""


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What is foreseen of a pod; None for what is not."""

    memory_mib: float | None = None
    """Of the machine, at the 90 % quantile."""
    memory_source: str = ""
    own_runs: bool = False
    """Whether own runs say so."""
    least_mib: float = 0.0
    """What own runs needed or ran out of: never less than that."""
    gpu_memory_mib: float | None = None
    gpu_room_mib: float | None = None
    """Memory of the largest GPU that it may get."""
    gpu_source: str = ""


Foresee = Callable[[JobSpec, ModelReference | None], PodNeeds]


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change of a pod, as a JSON patch, and why."""

    patch: tuple[Mapping[str, Any], ...] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class _ResourceChange:
    """One resource of the first container."""

    name: str
    value: str
    had: str
    why: str


def advise(pod: Json, mode: AdmissionMode, foresee: Foresee) -> Advice:
    """What a pod should ask for. Raises ValueError when its annotations make no sense."""
    meta = pod["metadata"]
    notes = meta.get("annotations") or {}
    said = notes.get(MODE, mode)
    if said == "off" or not pod["spec"].get("containers"):
        return Advice()
    if said not in list(AdmissionMode):
        raise ValueError(f"{MODE} is {said!r}; write off, report, fill or correct")
    mode = AdmissionMode(said)
    model = model_of(notes)
    known = {"uid": "", "name": meta.get("generateName", "pod"), "namespace": "default"}
    whole = {**pod, "metadata": {**known, **meta}}
    spec = job_of(alone(whole), [whole])
    needs = foresee(replace(spec, model=model.ref if model else None), model)
    changes, remarks = _changes(pod, mode, needs)
    texts = [f"{c.name}: {c.value} instead of {c.had}, {c.why}" for c in changes] + remarks
    if not texts:
        return Advice()
    verb = {"report": "would set", "fill": "filled in", "correct": "set"}[mode]
    text = f"{verb} {'; '.join(texts)}" if changes else "; ".join(remarks)
    patch = [] if mode is AdmissionMode.REPORT else _patch(pod, changes)
    return Advice((*patch, *_note(meta, text)), text)


def model_of(notes: Mapping[str, str]) -> ModelReference | None:
    """The model that annotations describe."""
    if MODEL not in notes:
        return None
    about: dict[str, Any] = {"ref": notes[MODEL]}
    for name, value in notes.items():
        if name.startswith(f"{MODEL}."):
            about[name.removeprefix(f"{MODEL}.")] = value
    try:
        return ModelReference.model_validate(about, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([MODEL, *(str(part) for part in first["loc"])])
        raise ValueError(f"annotation {where}: {first['msg']}") from None


def _changes(
    pod: Json, mode: AdmissionMode, needs: PodNeeds
) -> tuple[list[_ResourceChange], list[str]]:
    changes: list[_ResourceChange] = []
    remarks: list[str] = []
    resources = pod["spec"]["containers"][0].get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    memory = _memory(asked.get("memory"), mode, needs)
    if memory is not None:
        changes.append(memory)
    if needs.gpu_memory_mib is not None:
        wanted = needs.gpu_memory_mib * _SPARE
        room = needs.gpu_room_mib
        if room is not None and wanted > room:
            remarks.append(
                f"it needs {_gib(wanted)} on a GPU and the largest here has {_gib(room)} "
                f"({needs.gpu_source}): a smaller batch, or parallel across GPUs"
            )
        elif not ask_of_pod(pod).gpu_milli:
            why = f"{_gib(wanted)} of GPU memory foreseen ({needs.gpu_source})"
            changes.append(_ResourceChange(_GPU, "1", "nothing", why))
    return changes, remarks


def _memory(asked: str | None, mode: AdmissionMode, needs: PodNeeds) -> _ResourceChange | None:
    if needs.memory_mib is None and not needs.least_mib:
        return None
    wanted = max((needs.memory_mib or 0.0) * _SPARE, needs.least_mib)
    value = _ROUND_MIB * math.ceil(wanted / _ROUND_MIB)
    why = needs.memory_source or "own runs"
    if asked is None:
        return _ResourceChange("memory", f"{value}Mi", "nothing", why)
    if mode is AdmissionMode.FILL:
        return None
    had = mib(amount(asked))
    too_little = had < max(needs.memory_mib or 0.0, needs.least_mib)
    too_much = needs.own_runs and had > _TOO_MUCH * value
    return _ResourceChange("memory", f"{value}Mi", asked, why) if too_little or too_much else None


def _patch(pod: Json, changes: Sequence[_ResourceChange]) -> list[Mapping[str, Any]]:
    """Requests, and limits where these must follow: a limit below a request is refused, and a GPU
    is asked for as a limit."""
    if not changes:
        return []
    resources = pod["spec"]["containers"][0].get("resources") or {}
    requests = dict(resources.get("requests") or {})
    limits = dict(resources.get("limits") or {})
    for change in changes:
        old = limits.get(change.name)
        same = old is not None and old == requests.get(change.name, old)
        requests[change.name] = change.value
        below = old is not None and amount(old) < amount(change.value)
        if change.name == _GPU or same or below:
            limits[change.name] = change.value
    made = {**resources, "requests": requests}
    if limits:
        made["limits"] = limits
    return [{"op": "add", "path": "/spec/containers/0/resources", "value": made}]


def _note(meta: Json, text: str) -> list[Mapping[str, Any]]:
    if meta.get("annotations") is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {ADVICE: text}}]
    key = ADVICE.replace("~", "~0").replace("/", "~1")
    return [{"op": "add", "path": f"/metadata/annotations/{key}", "value": text}]


def _gib(value_mib: float) -> str:
    return f"{value_mib / 1024:.3g} GiB"


def review(body: Mapping[str, Any], mode: AdmissionMode, foresee: Foresee) -> dict[str, Any]:
    """The answer to an AdmissionReview: always allowed, with a patch where there is advice."""
    asked = body.get("request")
    if not isinstance(asked, Mapping) or not asked.get("uid"):
        raise ValueError("this is no AdmissionReview with a request and its uid")
    answer: dict[str, Any] = {}
    item = asked.get("object")
    if (asked.get("kind") or {}).get("kind") == "Pod" and isinstance(item, Mapping):
        try:
            advice = advise(item, mode, foresee)
        except ValueError as error:
            answer["warnings"] = [f"presage: {error}"]
        else:
            if advice.patch:
                text = json.dumps(advice.patch)
                answer |= {"patchType": "JSONPatch", "patch": b64encode(text.encode()).decode()}
            if advice.text:
                answer["warnings"] = [f"presage {advice.text}"[:250]]
    return allowed(body, answer)


def allowed(body: Mapping[str, Any], advice: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The answer that lets a pod pass as it is, but for advice."""
    return {
        "apiVersion": str(body.get("apiVersion") or "admission.k8s.io/v1"),
        "kind": "AdmissionReview",
        "response": {"uid": body["request"]["uid"], "allowed": True, **(advice or {})},
    }
