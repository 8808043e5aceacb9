"""Manifests: what is accepted, what it becomes, and that every mistake is one clear line."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from presage.cli.manifest import init, lint
from presage.edge import read_yaml
from presage.manifest import (
    EXAMPLE,
    LIMITS,
    Manifest,
    Needs,
    advice,
    parse_manifest,
    read_manifest,
    resolved,
    says_auto,
    to_spec,
)
from presage.model.cluster import Resources
from presage.model.errors import ManifestError
from presage.model.job import OomRetry, Placement, Role

MINIMAL = """\
name: hello
command: python train.py --epochs 3
workers: 2..4
resources: {cpus: 1, memory: 512Mi, gpus: 1}
checkpoint: {dir: ckpt, every: 60s}
"""


def parse(text: str) -> Manifest:
    return parse_manifest(text)


def with_keys(text: str) -> Manifest:
    return parse_manifest(f"name: a\ncommand: x\n{text}")


def test_the_manifest_of_the_reference_becomes_a_job() -> None:
    spec = to_spec(parse(MINIMAL), "job-1", "ada")
    assert (spec.id, spec.owner, spec.queue) == ("job-1", "ada", "default")
    assert spec.roles == (Role("worker", Resources(1000, 512, 1000), 2, 4),)
    assert spec.entrypoint == ("sh", "-c", "python train.py --epochs 3")
    assert spec.elastic
    assert spec.checkpointable


def test_every_key_that_concerns_the_scheduler_reaches_it() -> None:
    manifest = with_keys(
        """\
workers: 4
resources: {cpus: 0.5, memory: 1.5G, gpus: 0.5, gpu_memory: 8Gi, gpu_type: [a100, h100]}
queue: research
priority: 7
placement: spread
preemptible: false
share: false
retry: {failures: 3, oom: {times: 2, factor: 2, ceiling: 8Gi}}
time_limit: 1h30m
model: zoo:resnet50
labels: {project: vision, year: 2031}
"""
    )
    spec = to_spec(manifest, "j", "o")
    assert spec.roles == (Role("worker", Resources(500, 1431, 500, 8192), 4, 4, ("a100", "h100")),)
    assert (spec.queue, spec.priority, spec.placement) == ("research", 7, Placement.SPREAD)
    assert (spec.preemptible, spec.shareable, spec.checkpointable) == (False, False, False)
    assert (spec.max_retries, spec.time_limit_s, spec.model) == (3, 5400, "zoo:resnet50")
    assert spec.oom == OomRetry(2, 2.0, 8192)
    assert spec.labels == {"project": "vision", "year": "2031"}
    assert not spec.elastic


def test_roles_share_the_command_they_do_not_give() -> None:
    manifest = parse(
        "name: a\ncommand: [python, t.py]\nroles:\n"
        "  worker: {workers: 1..3, resources: {gpus: 2}}\n"
        "  ps: {workers: 2, command: python ps.py, resources: {cpus: 4}}\n"
    )
    assert {name: role.command for name, role in manifest.all_roles.items()} == {
        "worker": ["python", "t.py"],
        "ps": "python ps.py",
    }
    spec = to_spec(manifest, "j", "o")
    assert [(role.name, role.min, role.max) for role in spec.roles] == [
        ("worker", 1, 3),
        ("ps", 2, 2),
    ]
    assert spec.entrypoint == ("python", "t.py")


def test_gpu_memory_alone_is_a_share_of_one_gpu() -> None:
    (role,) = to_spec(with_keys("resources: {gpu_memory: 8Gi}"), "j", "o").roles
    assert role.resources.devices == 1
    assert role.resources.shared
    assert role.resources.gpu_memory_mib == 8192


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512Mi", 512), ("2Gi", 2048), ("1.5G", 1431), ("1k", 1), ("2 GiB", 2048), ("1T", 953_675)],
)
def test_memory_is_rounded_up_to_mib(text: str, mib: int) -> None:
    (role,) = to_spec(with_keys(f"resources: {{memory: {text}}}"), "j", "o").roles
    assert role.resources.memory_mib == mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400), ("45", 45)],
)
def test_times(text: str, seconds: float) -> None:
    assert with_keys(f"time_limit: {text}").time_limit == seconds


@pytest.mark.parametrize(
    "text",
    [
        "elastic:\n  at epoch 60: 8 workers\n  at epoch 30: 4 workers\n",
        "elastic: [{epoch: 30, workers: 4}, {epoch: 60, workers: 8}]\n",
        "elastic:\n  - at epoch 30: 4 workers\n  - at epoch 60: 8\n",
        "elastic: ['at epoch 30: 4 workers', {epoch: 60, workers: 8}]\n",
    ],
)
def test_an_elastic_plan_has_several_spellings(text: str) -> None:
    plan = with_keys(f"workers: 2..8\n{text}").elastic
    assert [(step.epoch, step.workers) for step in plan] == [(30, 4), (60, 8)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("data: s3://bucket/Images/", {"images": "s3://bucket/Images/"}),
        ("data: [/a/x, 'https://h/y.zip?z=1']", {"x": "/a/x", "y.zip": "https://h/y.zip?z=1"}),
        ("data: {train: gs://b/t}", {"train": "gs://b/t"}),
    ],
)
def test_data_gets_names(text: str, named: dict[str, str]) -> None:
    assert with_keys(text).data == named


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("worker: 4\n", 3, "worker: unknown key; did you mean 'workers'?"),
        ("resources:\n  cpu: 1\n", 4, "resources.cpu: unknown key; did you mean 'cpus'?"),
        ("roles:\n  ps:\n    comand: x\n", 5, "did you mean 'command'?"),
        ("retry:\n  oom:\n    ceil: 1\n", 5, "did you mean 'ceiling'?"),
        ("workers: 8..2\n", 3, "workers: give 1 to 10,000 workers"),
        ("workers: 0\n", 3, "give 1 to 10,000 workers"),
        ("workers: true\n", 3, "a span such as 2..8"),
        ("workers: 10001\n", 3, "10,000"),
        ("resources:\n  memory: 512\n", 4, "resources.memory: write memory with its unit"),
        ("resources: {gpus: 1.5}\n", 3, "whole GPUs (2) or a part of one (0.5)"),
        ("resources: {gpus: .inf}\n", 3, "resources.gpus: "),
        ("resources: {gpus: 0, gpu_memory: 8Gi}\n", 3, "makes no sense with gpus: 0"),
        ("resources: {gpu_type: a100}\n", 3, "resources.gpu_type: needs gpus"),
        ("resources: {cpus: .nan}\n", 3, "resources.cpus: "),
        ("priority: 1.5\n", 3, "priority: "),
        ("preemptible: 1\n", 3, "boolean"),
        ("placement: tight\n", 3, "'pack', 'spread' or 'topology'"),
        ("time_limit: soon\n", 3, "write a time such as 90s"),
        ("time_limit: 0s\n", 3, "more than 0"),
        ("time_limit: 400d\n", 3, "366 days"),
        ("grace: -1\n", 3, "grace: give a time between"),
        ("env: {A: yes}\n", 3, "env.A: put the text in quotes"),
        ("env: {9A: x}\n", 3, "cannot be the name of an environment variable"),
        ("env: {PRESAGE_RANK: 1}\n", 3, "PRESAGE_RANK is set by Presage"),
        ("env: {T: a}\nsecrets: {T: a}\n", 4, "secrets.T: is under env, too"),
        ("secrets: {TOKEN: ../../etc/passwd}\n", 3, "is not a name"),
        ("queue: ../x\n", 3, "is not a name"),
        ("data: {../x: /y}\n", 3, "is not a name"),
        ("data: https://me:word@host/x\n", 3, "cannot hold a password"),
        ("data: [a/x, b/x]\n", 3, "two URLs would be called x"),
        ("webhooks: [ftp://x]\n", 3, "webhooks.0: write an http or https URL"),
        ("checkpoint: {dir: ../../x}\n", 3, "checkpoint.dir: write a directory without '..'"),
        ("image: a\nenvironment: b\n", 4, "image or environment, not both"),
        ("elastic: {at epoch 30: 4 workers}\n", 3, "4 workers at epoch 30 need workers: 1..4"),
        ("elastic: {at dawn: 4 workers}\n", 3, "write 'at epoch 30: 4 workers'"),
        ("workers: 2\nroles: {w: {}}\n", 3, "workers: goes into each of the roles"),
        ("roles: {w: {workers: 9000}, v: {workers: 9000}}\n", 3, "18,000 workers in all"),
        ("launcher: torchrun\nroles: {a: {}, b: {}}\n", 3, "one kind of worker"),
        ("resources: {memory: 4Gi}\nretry: {oom: {ceiling: 2Gi}}\n", 4, "below the memory"),
        ("queue: &q a\nqueue: *q\n", 4, "twice"),
        ("labels: {a: *nothing}\n", 3, "stands for nothing"),
        ("labels: &l\n  a: *l\n", 4, "stands for nothing"),
        ("labels: [\n", 4, "broken YAML"),
    ],
)  # fmt: skip
def test_a_mistake_names_the_line_and_the_way_out(text: str, line: int, words: str) -> None:
    with pytest.raises(ManifestError) as error:
        with_keys(text)
    message = str(error.value)
    assert message.startswith(f"manifest line {line}: ")
    assert words in message
    assert "\n" not in message
    assert error.value.code == "bad_manifest"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write a mapping with keys such as name"),
        ("- a\n", "write a mapping"),
        ("name: a\n", "command is missing"),
        ("command: x\n", "line 1: name: field required"),
        ("name: Hello World\ncommand: x\n", "lower-case letters"),
        ("name: a\ncommand: ''\n", "write a command such as"),
        ("name: a\ncommand: [1]\n", "write a command such as"),
        ('name: a\ncommand: "x\\0y"\n', "NUL"),
        ("name: a\nroles: {w: {}}\n", "roles.w: has no command"),
        ("name: !!python/object/apply:os.system [ls]\ncommand: x\n", "broken YAML"),
        ("name: 2031-13-45\ncommand: x\n", "broken YAML: bad value"),
        ("name: a\x1b[31m\ncommand: x\n", "broken YAML"),
        ("a: b\n---\nc: d\n", "broken YAML"),
    ],
)
def test_a_text_that_is_no_manifest(text: str, words: str) -> None:
    with pytest.raises(ManifestError) as error:
        parse(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


def test_json_is_checked_the_same_way() -> None:
    body = json.dumps(yaml.safe_load(MINIMAL))
    assert parse_manifest(body, "application/json; charset=utf-8") == parse(MINIMAL)
    for text, words in [
        ('{"name": "a", "command": "x", "worker": 1}', "worker: unknown key; did you mean"),
        ('{"name": "a", "command": "x", "env": {"A": true}}', "env.A: put the text in quotes"),
        ('{"name": "a", "name": "b"}', "key name is there twice"),
        ('{"name": "a", "command": "x", "priority": 1' + "0" * 5000 + "}", "broken JSON"),
        ('{"name": "a", "command": "\\ud800"}', "command: "),
        ('{"a\\ud800": 1}', "unable to parse"),
        ('{"a\\n\\u001b": 1}', "manifest: a : unknown key"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "line 1: broken JSON"),
        ("[]", "write a mapping"),
    ]:
        with pytest.raises(ManifestError) as error:
            parse_manifest(text, "application/json")
        assert words in str(error.value)
        str(error.value).encode()
        assert "\n" not in str(error.value)


def test_another_kind_of_body_is_refused() -> None:
    with pytest.raises(ManifestError, match="application/json or application/yaml"):
        parse_manifest(MINIMAL, "text/html")
    with pytest.raises(ManifestError, match="cannot be read"):
        parse_manifest(b"name: \xff\xfe")


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {x: 1, y: 2}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(LAUGHS, "more than 20,000 values", id="aliases"),
        pytest.param(MERGES, "more than 20,000 values", id="merged aliases"),
        pytest.param("[" * 500_000, "nested too deeply", id="deep flow"),
        pytest.param("- " * 400_000, "nested too deeply", id="deep blocks"),
        pytest.param("{a: " * 200_000, "nested too deeply", id="deep mappings"),
        pytest.param("? " * 400_000, "nested too deeply", id="deep keys"),
        pytest.param("[" + "x," * 400_000 + "]", "more than 20,000 values", id="many values"),
        pytest.param("x" * (LIMITS.bytes + 1), "larger than 1 MiB", id="large"),
        pytest.param("a: &x [1]\nb: &x [*x]", "nothing that is complete", id="anchors again"),
    ],
)
def test_a_bomb_is_refused_at_once(text: str, words: str) -> None:
    """Without its limits it would be read for hours, or fill the memory."""
    start = time.process_time()
    with pytest.raises(ManifestError, match=words):
        parse(text)
    assert time.process_time() - start < 60


def test_files_of_other_kinds_are_protected_too(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.yaml"
    bomb.write_text(LAUGHS)
    with pytest.raises(ManifestError, match=r"bomb.yaml cannot be read: it holds more than"):
        read_yaml(bomb, Manifest, ManifestError)


def test_an_alias_that_saves_writing_is_welcome() -> None:
    manifest = parse(
        "name: a\ncommand: x\nroles:\n"
        "  a: {resources: &r {gpus: 1}}\n"
        "  b: {resources: *r}\n"
        "  c: {resources: {<<: *r, cpus: 2}}\n"
    )
    asked = [role.resources for role in manifest.all_roles.values()]
    assert [(each.gpus, each.cpus) for each in asked] == [(1, None), (1, None), (1, 2)]


def test_a_model_is_a_name_or_says_more() -> None:
    short = parse("name: a\ncommand: x\nmodel: zoo:resnet50\n")
    assert short.model is not None
    assert (short.model.ref, short.model.batch, short.model.steps) == ("zoo:resnet50", 32, None)
    long = parse("name: a\ncommand: x\nmodel: {ref: zoo:bert, batch: 8, steps: 100}\n")
    assert long.model is not None
    assert (long.model.batch, long.model.steps) == (8, 100)
    assert to_spec(long, "j", "me").model == "zoo:bert"
    assert Manifest.from_json(long.to_json()) == long


def test_a_model_says_how_it_is_run() -> None:
    asked = parse(
        "name: a\ncommand: x\nmodel: {target: 'hf:meta-llama/Llama-3.1-8B', seq: 4096, "
        "batch: 1, lora: 'r=16:all', quant: nf4, precision: bf16, optimizer: adamw, "
        "checkpoint: full, parallel: fsdp}\n"
    )
    assert asked.model is not None
    setup = asked.model.setup(8)
    assert (setup.seq, setup.quant, setup.checkpoint, setup.gpus) == (4096, "nf4", "full", 8)
    assert setup.parallel.sharding == "fsdp"
    assert setup.lora is not None
    assert setup.lora.rank == 16
    assert parse(json.dumps(asked.to_json())) == asked


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("quant: nf4", "add --lora"),
        ("parallel: 'tp=x'", "whole number"),
        ("optimizer: adamv", "did you mean"),
        ("precision: fp7", "fp32"),
        ("attention: flash", "--precision bf16"),
    ],
)
def test_a_model_that_cannot_be_run_so_is_refused_with_the_fix(said: str, fix: str) -> None:
    with pytest.raises(ManifestError, match=re.escape(fix)):
        parse(f"name: a\ncommand: x\nmodel: {{ref: 'hf:gpt2', {said}}}\n")


def test_auto_becomes_a_number_from_what_is_foreseen() -> None:
    manifest = parse("name: a\ncommand: x\nresources: {memory: auto, gpus: auto}\n")
    assert says_auto(manifest)
    known = Needs(memory_mib=1000.0, gpu_memory_mib=6000.0, utilization=0.2, gpu_room_mib=16e3)
    done = resolved(manifest, known)
    assert not says_auto(done)
    assert done.resources is not None
    assert (done.resources.memory, done.resources.gpus) == ("1152Mi", 0.5)
    alone = resolved(manifest.model_copy(update={"share": False}), known)
    assert alone.resources is not None
    assert alone.resources.gpus == 1
    roles = parse("name: a\ncommand: x\nroles: {worker: {resources: {gpu_memory: auto}}}\n")
    worker = resolved(roles, known).all_roles["worker"].resources
    assert worker.gpu_memory == "6912Mi"


def test_auto_without_knowledge_says_what_to_do() -> None:
    manifest = parse("name: a\ncommand: x\nresources: {memory: auto}\n")
    with pytest.raises(ManifestError, match="nothing is known of this job yet"):
        resolved(manifest, Needs())
    gpus = parse("name: a\ncommand: x\nresources: {gpus: auto}\n")
    big = Needs(gpu_memory_mib=90e3, utilization=0.9, gpu_room_mib=40e3)
    with pytest.raises(ManifestError, match="use a smaller batch"):
        resolved(gpus, big)
    with pytest.raises(ManifestError, match="write memory with its unit"):
        parse("name: a\ncommand: x\nretry: {oom: {ceiling: auto}}\n")


def test_the_example_is_valid_and_names_every_key() -> None:
    manifest = parse(EXAMPLE)
    assert advice(manifest) == []
    plain = EXAMPLE.replace("# ", "")
    missing = [key for key in Manifest.model_fields if f"{key}:" not in plain]
    assert not missing


def test_what_is_commented_out_in_the_example_is_valid_too() -> None:
    """Each commented line that looks like a key, in place of the keys that exclude it."""
    text = EXAMPLE
    for line in EXAMPLE.splitlines():
        found = line.lstrip().removeprefix("# ")
        if line.lstrip().startswith("# ") and yaml_key(found) in Manifest.model_fields:
            text = text.replace(line, found)
    for line in ("  # gpus", "  # gpu_memory", "  # gpu_type", "  # resume", "  # oom"):
        text = text.replace(line, line.replace("# ", ""))
    text = text.replace("#   at epoch", "  at epoch").replace("workers: 1\n", "workers: 1..4\n")
    text = text.replace("environment:", "# environment:")
    start, end = text.index("roles:"), text.index("queue:")
    manifest = parse(text[:start] + text[end:])
    assert manifest.secrets == {"HF_TOKEN": "hf"}
    assert manifest.elastic[0].workers == 4
    assert manifest.resources is not None
    assert manifest.resources.gpu_type == ["a100", "h100"]


def yaml_key(line: str) -> str:
    return line.partition(":")[0] if ":" in line else ""


def test_the_schema_is_a_json_schema() -> None:
    schema = Manifest.model_json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Manifest.model_fields)


# What people get wrong, and what nobody would write.

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**30, max_value=10**40),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["2..8", "512Mi", "1h", "0..0", "-1", "at epoch 3: 2 workers", "..", "s3://"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
keys = st.one_of(st.sampled_from(sorted(Manifest.model_fields)), st.text(max_size=10))
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "workers": st.one_of(st.integers(1, 20), st.just("2..8")),
    "resources": st.fixed_dictionaries(
        {},
        optional={
            "cpus": st.floats(0.5, 64) | st.integers(1, 64),
            "memory": st.sampled_from(["1Mi", "1.5G", "2 TiB"]),
            "gpus": st.sampled_from([0.5, 1, 2, 0.001]),
            "gpu_memory": st.just("8Gi"),
        },
    ),
    "priority": st.integers(-5, 5),
    "placement": st.sampled_from(["pack", "spread", "topology"]),
    "data": st.sampled_from(["s3://a/b", ["/x", "/y"], {"n": "gs://u"}]),
    "env": st.dictionaries(
        st.from_regex(r"[A-Z]{1,5}", fullmatch=True),
        st.integers()
        | st.floats()
        | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
        max_size=3,
    ),
    "checkpoint": st.fixed_dictionaries({}, optional={"every": st.sampled_from([3, "2m", 0.5])}),
    "retry": st.fixed_dictionaries({}, optional={"failures": st.integers(0, 5)}),
    "time_limit": st.sampled_from(["90s", 12.5, "1h30m"]),
    "labels": st.dictionaries(st.just("project"), st.integers()),
}
right = st.fixed_dictionaries({}, optional=RIGHT)


def outcome(text: bytes | str, content_type: str) -> Manifest | None:
    """The manifest or None; anything but a ManifestError with one line is a failure."""
    try:
        manifest = parse_manifest(text, content_type)
    except ManifestError as error:
        message = str(error)
        message.encode()
        assert message.isprintable()
        return None
    check_round_trip(manifest)
    return manifest


def check_round_trip(manifest: Manifest) -> None:
    body = json.dumps(manifest.to_json(), allow_nan=False)
    assert Manifest.from_json(json.loads(body)) == manifest
    spec = to_spec(manifest, "j", "o")
    assert spec.entrypoint
    assert all(1 <= role.min <= role.max for role in spec.roles)


@given(right)
def test_what_is_right_is_accepted_and_comes_back(extra: dict[str, Any]) -> None:
    body = {"name": "a", "command": "python t.py", **extra}
    assert outcome(json.dumps(body), "application/json") is not None
    assert outcome(yaml.safe_dump(body), "application/yaml") is not None


@given(right, st.dictionaries(keys, values, max_size=5))
def test_wrong_values_are_refused_in_one_line(
    extra: dict[str, Any], wrong: dict[str, Any]
) -> None:
    body = {"name": "a", "command": "x", **extra, **wrong}
    outcome(json.dumps(body), "application/json")
    outcome(yaml.safe_dump(body, allow_unicode=True), "application/yaml")


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_noise_is_refused_in_one_line(text: bytes | str) -> None:
    outcome(text, "application/yaml")
    outcome(text, "application/json")


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*"{}[]:,-?&*!|>'\"%@`#~<\n\t ", "&a ", "*a", "<<: ", "!!int ", "- "]),
            st.sampled_from(["!!binary ", "!!timestamp ", "!!set ", "!!omap ", "!!bool ", "0x_"]),
            st.sampled_from(["name: a\n", "command: x\n", "resources: ", "workers: ", "env: "]),
        ),
        max_size=30,
    )
)
def test_yaml_out_of_its_own_signs_is_refused_in_one_line(parts: list[str]) -> None:
    outcome("".join(parts), "application/yaml")


# The commands.

app = typer.Typer()
app.command()(init)
app.command()(lint)


def presage(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_init_writes_a_manifest_that_lint_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert presage("init").exit_code == 0
    text = (tmp_path / "presage.yaml").read_text()
    assert text.splitlines()[-5:] == EXAMPLE.splitlines()[-5:]
    done = presage("lint", "presage.yaml")
    assert done.exit_code == 0
    assert done.stdout == (
        "presage.yaml is valid: hello, worker 1 × (cpus 1.0, memory 512Mi), queue default\n"
    )
    assert done.stderr.startswith("it sends 1 file, ")


def test_init_writes_what_runs_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("presage.cli.manifest._gpus", lambda: 0)
    assert presage("init", "a.yaml").exit_code == 0
    manifest = read_manifest(tmp_path / "a.yaml")
    assert manifest.resources is not None
    assert manifest.resources.gpus is None
    ran = subprocess.run(str(manifest.command), shell=True, capture_output=True, check=True)
    assert ran.stdout == b"hello from Presage\n"
    monkeypatch.setattr("presage.cli.manifest._gpus", lambda: 2)
    (tmp_path / "train.py").touch()
    assert presage("init", "b.yaml").exit_code == 0
    manifest = read_manifest(tmp_path / "b.yaml")
    assert manifest.resources is not None
    assert manifest.resources.gpus == 1
    assert str(manifest.command).endswith(" train.py")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine")
    done = presage("init", path)
    assert done.exit_code != 0
    assert "is there already" in str(done.exception)
    assert path.read_text() == "mine"
    done = presage("init", tmp_path / "nowhere" / "a.yaml")
    assert "cannot be written" in str(done.exception)


def test_lint_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ncommand: x\nworker: 2\n")
    done = presage("lint", path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    done = presage("lint", path, "--json")
    assert done.exit_code == 2
    answer = json.loads(done.stdout)
    assert answer["valid"] is False
    assert answer["error"]["code"] == "bad_manifest"
    assert "line 3: worker" in answer["error"]["text"]
    with pytest.raises(ManifestError, match="No such file"):
        read_manifest(tmp_path / "none.yaml")


def test_lint_lists_every_mistake_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(
        "nme: a\ncommand: x\nworkers: none\nresources: {cpus: -1, gpu: 3}\nmodel: {ref: 3}\n"
    )
    lines = presage("lint", path).stderr.splitlines()
    places = [line.removeprefix(f"error: {path} line ").partition(": ")[::2] for line in lines]
    wanted = ["name", "nme", "workers", "resources.cpus", "resources.gpu", "model.ref"]
    assert [text.partition(":")[0] for _, text in places] == wanted
    assert [line for line, _ in places] == ["1", "1", "3", "4", "4", "5"]
    answer = json.loads(presage("lint", path, "--json").stdout)
    assert [f"error: {text}" for text in answer["mistakes"]] == lines
    assert "unknown key" in answer["error"]["text"]


def test_lint_gives_advice(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ncommand: python nowhere.py\nretry: {oom: {}}\n")
    answer = json.loads(presage("lint", path, "--json").stdout)
    assert answer["valid"] is True
    assert [words in note for words, note in zip(
        ["without checkpoint", "no memory is given", "nowhere.py"], answer["notes"], strict=True
    )] == [True] * 3  # fmt: skip
    path.write_text("name: a\ncommand: cd x && python nowhere.py\nworkers: 1..2\n")
    (note,) = json.loads(presage("lint", path, "--json").stdout)["notes"]
    assert "a change of workers" in note
