"""The schema of a manifest: what a job is, as its owner wrote it, checked.

Unknown keys are refused and everything is bounded. Amounts are kept in one form (MiB, seconds,
`2..8`), so that a manifest written out is read back as the same. Reads no file and no clock.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from presage.edge import check, misplaced
from presage.manifest import quantities
from presage.manifest.fields import (
    LONGEST_TEXT,
    URLS,
    Command,
    Gpus,
    Memory,
    MemoryOrAuto,
    Name,
    Patterns,
    Seconds,
    Text,
    Types,
    Url,
    Variable,
    VariableText,
    Workers,
    below_results,
    image_name,
    inside,
    one_or_more,
    webhook,
)
from presage.manifest.quantities import MOST_WORKERS, shown, worker_span
from presage.model.errors import ConfigError, ManifestError
from presage.model.setup import (
    Attention,
    Checkpointing,
    Layout,
    LossMemory,
    Offload,
    Parallelism,
    Quantization,
    Setup,
    TrainingPrecision,
)

__all__ = [
    "After",
    "Manifest",
    "Objective",
    "Parameter",
    "RoleManifest",
    "Setting",
    "WorkerResources",
    "parameter",
]


class _ManifestPart(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, str_max_length=LONGEST_TEXT, allow_inf_nan=False
    )


ShareGuarantee = Literal["request", "limit", "memory", "isolation", "live"]


class GpuShareManifest(_ManifestPart):
    """A part of one GPU, enforced: what a worker gets of its time whenever it wants it, what it
    never passes, and what it may hold of its memory. A queue may say what is left out."""

    request: Annotated[float, Field(ge=0.01, le=1.0)] | None = None
    limit: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """1 if the queue does not say it either."""
    memory: Memory | None = None
    guarantee: Annotated[
        list[ShareGuarantee],
        BeforeValidator(one_or_more),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}]}),
    ] = []
    """What a server that runs it must be able to guarantee."""

    @model_validator(mode="after")
    def _request_within_limit(self) -> Self:
        if self.request is not None and self.limit is not None and self.request > self.limit:
            raise misplaced(f"is below the request of {self.request:g}", "limit")
        return self


class WorkerResources(_ManifestPart):
    """What each worker needs; what is not given is not limited."""

    cpus: Annotated[float, Field(ge=0.001, le=100_000)] | None = None
    memory: MemoryOrAuto | None = None
    gpus: Gpus | None = None
    gpu: GpuShareManifest | None = None
    """An enforced share; its request is `gpus`, its memory `gpu_memory`."""
    gpu_memory: MemoryOrAuto | None = None
    gpu_type: (
        Annotated[
            Types,
            BeforeValidator(one_or_more),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}]}),
        ]
        | None
    ) = None

    @model_validator(mode="before")
    @classmethod
    def _share_is_a_request(cls, data: Any) -> Any:
        """The scheduler counts the request of a share as it counts `gpus: 0.5`."""
        share = data.get("gpu") if isinstance(data, dict) else None
        if not isinstance(share, dict):
            return data
        made = dict(data)
        for key, part in (("gpus", "request"), ("gpu_memory", "memory")):
            if share.get(part) is not None:
                if made.get(key) not in (None, share[part]):
                    raise misplaced(f"is said in gpu: {part} already", key)
                made[key] = share[part]
        return made

    @model_validator(mode="after")
    def _gpus_go_together(self) -> Self:
        for key, value in (("gpu_memory", self.gpu_memory), ("gpu_type", self.gpu_type)):
            if self.gpus == 0 and value is not None:
                raise misplaced("makes no sense with gpus: 0", key)
        if self.gpu_type is not None and self.gpus is None and self.gpu_memory is None:
            raise misplaced("needs gpus, such as gpus: 1", "gpu_type")
        return self


class RoleManifest(_ManifestPart):
    """One kind of worker."""

    workers: Workers = 1
    command: Command | None = None
    resources: WorkerResources = WorkerResources()


class Checkpoint(_ManifestPart):
    """Where a job keeps its checkpoints, how often, and how it continues from one."""

    dir: Annotated[str, Field(max_length=1024), AfterValidator(inside)] = "checkpoints"
    every: Seconds = 600.0
    resume: Command | None = None


def _results(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class ResultsManifest(_ManifestPart):
    """What is kept of what a job writes to its working directory, and where it is copied, too."""

    url: Url | None = None
    keep: Patterns = []
    """Only these; without it, all that is new or changed."""
    ignore: Patterns = []
    limit: Memory | None = None
    """At most so much in all; never more than the server allows."""

    @model_serializer(mode="wrap")
    def _as_written(self, write: Any) -> Any:
        """An address alone stays what it was before there was more to say."""
        if self.url and not (self.keep or self.ignore or self.limit):
            return self.url
        return write(self)


def _git(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


class GitSource(_ManifestPart):
    """A Git repository as the work folder, at a branch, tag or commit."""

    url: Annotated[str, Field(max_length=2048), AfterValidator(quantities.git_url)]
    ref: Annotated[str, Field(max_length=250), AfterValidator(quantities.git_ref)] = "HEAD"


class Tracking(_ManifestPart):
    """Where metrics go besides the server: an MLflow tracking server, or TensorBoard's event files
    in a directory of the job's results."""

    mlflow: Annotated[str, AfterValidator(webhook)] | None = None
    tensorboard: Annotated[str, Field(max_length=1024), AfterValidator(below_results)] | None = (
        None
    )

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.mlflow is None and self.tensorboard is None:
            raise ValueError("give mlflow: URL, or tensorboard: DIR")
        return self


class OomRetryManifest(_ManifestPart):
    """What happens when a worker runs out of memory: again, with more."""

    times: Annotated[int, Field(ge=1, le=20)] = 3
    factor: Annotated[float, Field(gt=1, le=10)] = 1.5
    ceiling: Memory | None = None


class Retry(_ManifestPart):
    """How often a job is started again."""

    failures: Annotated[int, Field(ge=0, le=1000)] = 0
    oom: OomRetryManifest | None = None


def _reference(value: object) -> object:
    return {"ref": value} if isinstance(value, str) else value


class ModelReference(_ManifestPart):
    """What a job trains, to foresee what it needs: zoo:resnet50, hf:meta-llama/Llama-3.1-8B, or a
    file of its folder that is data (model.onnx, config.json), and how it is run."""

    ref: Annotated[
        Text,
        Field(min_length=1, max_length=1024, validation_alias=AliasChoices("ref", "target")),
    ]
    batch: Annotated[int, Field(ge=1, le=1 << 20)] = 32
    """Of one GPU, in one go."""
    steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """How many training steps it will do in all."""
    optimizer: Annotated[Text, Field(min_length=1, max_length=40)] = "sgd"
    precision: TrainingPrecision = "fp32"
    seq: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    accumulate: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    parallel: Annotated[Text, Field(max_length=100)] | None = None
    lora: Annotated[Text, Field(max_length=100)] | None = None
    quant: Quantization = "none"
    checkpoint: Checkpointing = "none"
    loss: LossMemory = "full"
    attention: Attention = "sdpa"
    layout: Layout = "nchw"
    compile: bool = False
    cudnn_benchmark: bool = False
    offload: Offload = "none"
    interconnect: Annotated[Text, Field(max_length=40)] | None = None
    inference: bool = False
    kv_len: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    """With inference: tokens that a served sequence holds."""
    concurrency: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    """With inference: sequences that are served at once."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        try:
            parallel = Parallelism.parse(self.parallel or "")
            ranks = parallel.tensor * parallel.pipeline * parallel.context
            self.setup(ranks if parallel.sharding == "none" else 2 * ranks)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def setup(self, gpus: int = 1) -> Setup:
        """How it is run on so many GPUs."""
        said = self.model_dump(exclude={"ref", "batch", "steps"})
        return Setup.make(gpus=gpus, **said)

    def described(self) -> str:
        """All that changes what it needs, as text: what is left out stays left out, so that a
        workload keeps its name when there is more to say."""
        first = self.model_dump(include={"ref", "batch", "optimizer", "precision"})
        rest = self.model_dump(exclude={*first, "steps"}, exclude_defaults=True)
        return json.dumps(first | rest, separators=(",", ":"), ensure_ascii=False)


def parameter(value: str) -> str:
    """The name of a parameter: one that can stand in `${name}` and in a variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", value):
        raise ValueError(f"{shown(value)} is not a name: use letters, digits and '_'")
    return value


def _setting(value: object) -> object:
    good = isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    )
    if not good:
        raise ValueError(f"write a number, a text, true or false, not {shown(value)}")
    return value


Parameter = Annotated[str, AfterValidator(parameter)]
Setting = Annotated[
    bool | int | float | Annotated[Text, Field(max_length=1000)],
    BeforeValidator(_setting),
    WithJsonSchema({"type": ["boolean", "number", "string"]}),
]
"""What a parameter may be set to."""


class Objective(_ManifestPart):
    """What makes one member of a sweep better than another: a metric that jobs report."""

    metric: Annotated[Text, Field(min_length=1, max_length=200)]
    mode: Literal["min", "max"] = "min"


JobReference = Annotated[Text, Field(min_length=1, max_length=200)]
_References = Annotated[
    list[JobReference],
    Field(max_length=1000),
    BeforeValidator(one_or_more),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}]}),
]


class After(_ManifestPart):
    """Jobs and arrays that must end before a job starts, and how."""

    ok: _References = []
    any: _References = []
    failed: _References = []


def _after(value: object) -> object:
    return {"ok": value} if isinstance(value, str | list) else value


class ElasticStep(_ManifestPart):
    """From this epoch on, so many workers."""

    epoch: Annotated[int, Field(ge=1, le=1_000_000_000)]
    workers: Annotated[int, Field(ge=1, le=MOST_WORKERS)]


class Manifest(_ManifestPart):
    """A job as its owner describes it."""

    name: Name
    image: Annotated[Text, Field(max_length=1024), AfterValidator(image_name)] | None = None
    environment: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    command: Command | None = None
    launcher: Literal["none", "torchrun"] = "none"
    workers: Workers | None = None
    resources: WorkerResources | None = None
    roles: Annotated[dict[Name, RoleManifest], Field(min_length=1, max_length=16)] | None = None
    queue: Name = "default"
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    placement: Literal["pack", "spread", "topology"] | None = None
    preemptible: bool = True
    share: bool = True
    data: Annotated[
        dict[Name, Url],
        Field(max_length=1000),
        BeforeValidator(quantities.named_urls),
        WithJsonSchema(URLS),
    ] = {}
    results: (
        Annotated[
            ResultsManifest,
            BeforeValidator(_results),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        ]
        | None
    ) = None
    git: (
        Annotated[
            GitSource,
            BeforeValidator(_git),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        ]
        | None
    ) = None
    track: Tracking | None = None
    secrets: Annotated[dict[Variable, Name], Field(max_length=100)] = {}
    env: Annotated[dict[Variable, VariableText], Field(max_length=1000)] = {}
    checkpoint: Checkpoint | None = None
    retry: Retry = Retry()
    time_limit: Seconds | None = None
    grace: Seconds = 30.0
    elastic: Annotated[
        list[ElasticStep],
        Field(max_length=1000),
        BeforeValidator(quantities.elastic_plan),
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "array"}, {"type": "string"}]}),
    ] = []
    model: (
        Annotated[
            ModelReference,
            BeforeValidator(_reference),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
        ]
        | None
    ) = None
    rightsize: bool = True
    params: Annotated[dict[Parameter, Setting], Field(max_length=100)] = {}
    objective: Objective | None = None
    after: (
        Annotated[
            After,
            BeforeValidator(_after),
            WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]}),
        ]
        | None
    ) = None
    labels: Annotated[dict[Name, VariableText], Field(max_length=64)] = {}
    webhooks: Annotated[list[Annotated[str, AfterValidator(webhook)]], Field(max_length=16)] = []
    ports: Annotated[list[Annotated[int, Field(ge=1, le=65_535)]], Field(max_length=16)] = []
    console: Literal["pipe", "tty"] | None = None
    heartbeat: Annotated[Seconds, Field(ge=1)] | None = None
    link_share: Annotated[float, Field(ge=0, le=0.99)] | None = None

    @property
    def all_roles(self) -> dict[str, RoleManifest]:
        """The roles, each with its command; a job without roles has one, `worker`."""
        if self.roles is not None:
            return {
                name: role
                if role.command is not None
                else role.model_copy(update={"command": self.command})
                for name, role in self.roles.items()
            }
        role = RoleManifest.model_construct(  # of parts that were checked
            workers=self.workers or 1,
            command=self.command,
            resources=self.resources or WorkerResources(),
        )
        return {"worker": role}

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON types, what was left out with its default; absent is not there."""
        return self.model_dump(mode="json", exclude_none=True)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """The manifest that `to_json` wrote, or any other JSON value that is one."""
        return check(data, cls, ManifestError, "manifest")

    @model_validator(mode="after")
    def _commands(self) -> Self:
        if self.roles is None:
            if self.command is None:
                raise misplaced("command is missing; write command: python train.py")
            return self
        for key, value in (("workers", self.workers), ("resources", self.resources)):
            if value is not None:
                raise misplaced("goes into each of the roles, not beside them", key)
        for name, role in self.roles.items():
            if role.command is None and self.command is None:
                raise misplaced("has no command", "roles", name)
        return self

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        if self.image is not None and self.environment is not None:
            raise misplaced("give image or environment, not both", "environment")
        if self.launcher == "torchrun" and self.roles is not None and len(self.roles) > 1:
            raise misplaced("torchrun starts one kind of worker, not several roles", "launcher")
        if both := self.env.keys() & self.secrets.keys():
            raise misplaced("is under env, too", "secrets", min(both))
        if self.time_limit == 0:
            raise misplaced("give more than 0", "time_limit")
        spans = [worker_span(role.workers) for role in self.all_roles.values()]
        if self.console and (spans != [(1, 1)] or self.launcher != "none"):
            raise misplaced("goes with one worker, and no launcher", "console")
        return self

    @model_validator(mode="after")
    def _sizes_go_together(self) -> Self:
        roles = self.all_roles
        spans = [worker_span(role.workers) for role in roles.values()]
        if (total := sum(most for _, most in spans)) > MOST_WORKERS:
            raise misplaced(f"{total:,} workers in all; at most {MOST_WORKERS:,}", "roles")
        if len({step.epoch for step in self.elastic}) < len(self.elastic):
            raise misplaced("an epoch is there twice", "elastic")
        least, most = spans[0]
        for step in self.elastic:
            if not least <= step.workers <= most:
                wanted = f"{min(least, step.workers)}..{max(most, step.workers)}"
                raise misplaced(
                    f"{step.workers} workers at epoch {step.epoch} need workers: {wanted}",
                    "elastic",
                )
        ceiling = quantities.memory_mib(self.retry.oom.ceiling) if self.retry.oom else 0
        for role in roles.values():
            if ceiling and ceiling < quantities.memory_mib(role.resources.memory):
                raise misplaced("is below the memory to start with", "retry", "oom", "ceiling")
        return self
