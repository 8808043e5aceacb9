"""What the page *Foresee* takes and says, and the process that it asks."""

from __future__ import annotations

from typing import Any

import pytest

from presage.foresee.desk import answer, check_name
from presage.manifest import parse_manifest
from presage.model.errors import GraphError, UserError
from presage.web import asking
from presage.web.asking import Desk, Desks
from presage.web.foreseen import bar_rows
from presage.web.questions import ForeseeQuestion, manifest_text, read_question
from tests.waiting import run_apart

LOOK: dict[str, Any] = {
    "model": "smollm2-135m",
    "gpus": ["a100-40g"],
    "batch": 2,
    "options": {"seq": 512},
}


def test_an_address_becomes_a_question() -> None:
    given = {"model": "llama", "batch": "4", "seq": "", "gpus": "8", "lora": "16", "x": "y"}
    question = read_question(given)
    assert question.options() == {
        **{"optimizer": "adamw", "lora": "r=16:all", "quant": "none", "seq": None},
        **{"accumulate": 1, "gpus": 8, "parallel": "fsdp", "checkpoint": "full"},
    }
    alone = read_question({"gpus": "1", "sharding": "fsdp", "tp": "2"})
    assert alone.options()["parallel"] is None
    split = read_question({"gpus": 8, "sharding": "none", "tp": 2, "pp": 4})
    assert split.parallel() == "tp=2,pp=4"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"batch": "0"}, "batch"),
        ({"batch": "many"}, "batch"),
        ({"gpus": 10**9}, "gpus"),
        ({"seq": -1}, "seq"),
        ({"precision": "fp7"}, "precision"),
        ({"optimizer": "adam;rm"}, "optimizer"),
        ({"budget": "nan"}, "budget"),
        ({"model": "x" * 300}, "model"),
        ({"kinds": "<b>"}, "kinds"),
        ({"global_batch": 0}, "global batch"),
        ({"model": {"a": 1}}, "model"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        read_question(given)


def test_wishes() -> None:
    question = read_question({"model": "zoo:vgg16", "amount": "2B", "deadline": "1d", "gpus": 8})
    wish = question.wish()
    assert wish["wish"]["tokens"] == "2B"
    assert wish["wish"]["deadline_s"] == 86_400
    assert "parallel" not in wish["options"]  # that is for the plan to choose
    with pytest.raises(UserError, match="how much"):
        read_question({}).wish()
    with pytest.raises(UserError, match="deadline"):
        read_question({"amount": "2B", "deadline": "soon"}).wish()


@pytest.mark.parametrize(
    "given",
    [
        {"model": "zoo:resnet50", "gpus": "1"},
        {"gpus": "8", "tp": "2", "pp": "2", "sharding": "zero1", "seq": "4096"},
        {"gpus": "2", "lora": "16", "quant": "nf4", "optimizer": "paged-adamw-8bit"},
    ],
)
def test_the_manifest_can_be_submitted(given: dict[str, str]) -> None:
    question = read_question(given)
    manifest = parse_manifest(manifest_text(question, "h100-80g", "bf16"))
    assert manifest.model is not None
    assert manifest.model.batch == 1
    assert manifest.model.precision == "bf16"
    assert (manifest.workers or 1) == question.gpus


def test_names_are_names() -> None:
    assert check_name("resnet50") == "zoo:resnet50"
    assert check_name(" meta-llama/Llama-3.1-8B ") == "hf:meta-llama/Llama-3.1-8B"
    assert check_name("llama-3.1-8b") == "hf:llama-3.1-8b"
    for wrong in ("", "a.py:f", "/x", "hf:../x", "hf:a/b/c", "zoo:", "file:x", "hf:a/..", "a b"):
        with pytest.raises(GraphError, match="name a model"):
            check_name(wrong)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "/etc/passwd"}, "name a model"),
        ({"model": "train.py:make"}, "name a model"),
        ({"model": "os:getcwd"}, "name a model"),
        ({"model": "config.json"}, "no configuration"),
        ({"model": "zoo:resnet5000"}, "the zoo has no"),
        ({"model": "zoo:mlp", "kinds": "h1000"}, "unknown GPU"),
        ({"model": "zoo:mlp", "kinds": ","}, "one to 6 kinds"),
        ({"model": "zoo:mlp", "gpus": "8", "tp": "3"}, "cannot be divided"),
        ({"model": "zoo:mlp", "gpus": "1", "optimizer": "adamm"}, "adam"),
    ],
)
def test_questions_that_make_no_sense_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        refused(given)


def refused(given: dict[str, str]) -> None:
    """Ask, and raise what is said instead of an answer."""
    look = read_question(given).look(largest=False)
    said = answer({"kind": "look", "question": look})
    if "error" in said:
        raise UserError(said["error"])


def test_an_answer_or_a_line() -> None:
    said = answer({"kind": "look", "question": {**LOOK, "largest": True}})["value"]
    (on,) = said["gpus"]
    assert on["max_batch"] > 2
    assert on["unit"] == "tokens"
    assert said["precision"] == "amp-bf16"
    refused = answer({"kind": "look", "question": {**LOOK, "gpus": ["x1"]}})
    assert "unknown GPU" in refused["error"]
    rows, legend = bar_rows(said["gpus"])
    assert rows[0]["verdict"] == "yes"
    assert sum(part["gib"] for part in rows[0]["parts"]) <= rows[0]["p90"]
    assert {part["name"] for part in rows[0]["parts"]} == {part["name"] for part in legend}


def test_a_desk_answers_again_after_it_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk() -> None:
        desks = Desks()
        assert "zoo:resnet50" in (await desks.names())["models"]
        process = desks.look._process
        assert process is not None
        process.kill()
        await process.wait()
        assert (await desks.look.ask("look", LOOK))["name"] == "HuggingFaceTB/SmolLM2-135M"
        with pytest.raises(UserError, match="unknown GPU"):
            await desks.look.ask("look", {**LOOK, "gpus": ["x1"]})
        await desks.close()
        slow = Desk(0.01)
        with pytest.raises(UserError, match="longer than"):
            await slow.ask("names", {})
        assert slow._process is None
        await slow.close()

    run_apart(talk())


def test_a_desk_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_IDLE_S", 0.0)

    async def wait() -> None:
        desk = Desk(60.0)
        await desk.ask("names", {})
        assert desk._process is not None
        desk._end_idle()
        assert await desk._process.wait() != 0
        await desk.close()

    run_apart(wait())


def test_the_usual_question_is_one() -> None:
    assert read_question(ForeseeQuestion().model_dump()) == ForeseeQuestion()
