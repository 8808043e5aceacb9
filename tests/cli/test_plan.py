"""`presage plan` and `presage.plan`: the table fits a terminal, JSON holds all, and a wrong wish
is one line with what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import presage
from presage.cli.main import app
from presage.foresee import predict
from presage.foresee.answer import Prediction
from presage.foresee.gpus import Gpu
from presage.foresee.graph.named import NamedModel
from presage.foresee.graph.opgraph import OpGraph
from presage.model.errors import UserError
from presage.model.setup import Setup
from tests.trainings import SHAPE, World


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.delenv("PRESAGE_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "80")
    made = World()

    def answer(
        model: NamedModel, batch: int, gpus: Sequence[Gpu], setup: Setup, *, largest: bool
    ) -> Prediction:
        assert not largest  # it would take most of the time
        return made(batch, gpus, setup)

    monkeypatch.setattr(predict, "predict_model", answer)
    return made


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["plan", *(str(word) for word in words)])


def never(setup: Setup) -> OpGraph:
    raise AssertionError("nobody needs the graph")


EIGHT = NamedModel("8b", never, SHAPE)


def test_the_table_fits_80_columns_and_names_the_choices(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = run("zoo:bert-base", "--samples", "1M", "--max-gpus", 16, "--deadline", "10d",
               "--budget", 5000, "--html", page)  # fmt: skip
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines[:-2])) <= 80  # sentences may go on
    assert "…" not in done.stdout
    assert lines[1].split()[:4] == ["GPUs", "spread", "ckpt", "batch"]
    assert lines[-2].startswith("cheapest within 10 d: ")
    assert lines[-1].startswith("fastest for at most $5,000: ")
    assert "left out: " in done.stderr
    assert "typical list prices" in done.stderr
    text = page.read_text()
    assert "Ways that no other beats" in text
    assert "http" not in text.split("<script>")[0]


def test_json_holds_everything() -> None:
    done = run("zoo:bert-base", "--epochs", 2, "--samples-per-epoch", "500k", "--json",
               "--devices", "h100-80g,A100-SXM4-80GB", "--max-gpus", 32)  # fmt: skip
    said = json.loads(done.stdout)
    assert said["goal"]["samples"] == 1_000_000
    assert said["best"] in said["options"]
    assert {option["gpu"] for option in said["options"]} == {"h100-80g", "a100-80g"}
    assert any(option["on_front"] for option in said["options"])
    assert sum(said["left_out"].values()) > 100


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "say how much"),
        (("--tokens", "2B", "--samples", "1M"), "in one way"),
        (("--tokens", "two"), "2B, 300M"),
        (("--epochs", "3"), "samples per epoch"),
        (("--samples", "1M", "--samples-per-epoch", "5"), "go with epochs"),
        (("--samples", "1M", "--deadline", "soon"), "deadline"),
        (("--samples", "1M", "--budget", "-1"), "budget"),
        (("--samples", "1M", "--devices", "h1000"), "unknown GPU"),
        (("--samples", "1M", "--devices", ","), "no GPU"),
        (("--samples", "1M", "--optimizer", "adamm"), "adam"),
        (("--samples", "1M", "--precision", "fp7"), "fp8"),
        (("--samples", "1M", "--quant", "nf4"), "--lora"),
        (("--samples", "10", "--global-batch", "11"), "1 to 10 samples"),
        (("--samples", "1M", "--html", "/nowhere/x.html"), "does not exist"),
        (("--samples", "1M", "--deadline", "1m"), "comes closest to 60 s"),
    ],
)
def test_a_wrong_wish_is_one_line(words: tuple[str, ...], says: str) -> None:
    done = run("zoo:bert-base", *words)
    assert done.exit_code == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_tokens_of_images_are_refused_and_those_of_texts_counted() -> None:
    done = run("zoo:resnet50", "--tokens", "1B")
    assert "does not read tokens" in done.stderr
    goal = presage.plan("zoo:bert-base", tokens="128M", max_gpus=8).goal
    assert (goal.seq, goal.amount) == (128, 128_000_000)


def test_from_python() -> None:
    plan = presage.plan(EIGHT, tokens="2B", deadline="3d", max_gpus=16)
    assert plan.goal.seq == SHAPE.longest
    assert plan.best is not None
    assert plan.best.setup.precision == "amp-bf16"
    assert plan.best.time_s.p90 <= 3 * 86_400
    with pytest.raises(UserError, match="LoRA"):
        presage.plan(EIGHT, tokens="2B", lora="r=16:nowhere")
