"""`presage fit bursts` and `presage predict --setting`: from runs to twelve numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from presage.cli.main import app
from presage.foresee.bursts.models import ModelKind
from presage.foresee.bursts.training import TrainOptions
from presage.foresee.bursts.use import base_for
from presage.telemetry.bursts import TARGETS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def runs(folder: Path) -> None:
    """Made-up runs of three families in one setting."""
    folder.mkdir()
    lines = []
    for model, level in (("mlp", 10.0), ("td3", 12.0), ("neumf", 14.0)):
        for batch in (8, 16, 32, 64):
            labels = {name: level + at + batch / 64 for at, name in enumerate(TARGETS)}
            work: dict[str, Any] = {"model": model, "batch": batch, "optimizer": "sgd"}
            lines.append({"workload": work, "setting": "W2/1gbit", "repeat": 0, "labels": labels})
    (folder / "runs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


def test_from_runs_to_twelve_numbers(tmp_path: Path, home: Path) -> None:
    runs(tmp_path / "runs")
    words = ("--profiles", "runs", "--setting", "W2/1gbit", "--kinds", "forest,trees", "--json")
    fitted = run("fit", "bursts", *words)
    assert fitted.exit_code == 0, fitted.stderr
    card = json.loads(fitted.stdout)
    assert card["written"] == str(home / "models" / "bursts" / "W2-1gbit.npz")
    assert set(card["errors"]) == {"constant", "forest", "trees"}
    assert len(list((tmp_path / "runs" / "graphs").glob("*.npz"))) == 3

    asked = ("predict", "zoo:mlp", "--batch", "16", "--device", "a100-40g", "--setting")
    done = run(*asked, "W2/1gbit", "--json")
    bursts = json.loads(done.stdout)["bursts"]
    numbers = [quantiles for each in bursts.values() for quantiles in each.values()]
    assert list(bursts) == ["util", "memory", "sent", "received"]
    assert list(bursts["sent"]) == ["burst_mib_s", "burst_ms", "idle_ms"]
    assert len(numbers) == 12
    assert all(0 <= q["p10"] <= q["p50"] <= q["p90"] for q in numbers)
    assert 8 < bursts["util"]["burst_pct"]["p50"] < 15
    shown = run(*asked, "W2/1gbit").stdout.split("bursts in W2/1gbit, 10–90 %:\n")[1]
    height = bursts["sent"]["burst_mib_s"]["p50"]
    assert f"  sent: {height:.1f} MiB/s (" in shown

    other = run(*asked, "W4/1gbit", "--json")
    told = json.loads(other.stdout)
    assert told["bursts"] is None
    assert any("no bundle knows the bursts of W4/1gbit" in line for line in told["evidence"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--setting", "W2/1gbit"), "has no runs.jsonl"),
        (("--from", "x.npz"), "--setting P2W2/1gbit"),
        ((), "has no runs.jsonl"),
        (("--setting", "nonsense"), "'nonsense' is no setting"),
        (
            ("--setting", "W2/1gbit", "--kinds", "mlp"),
            "there are forest, trees, gcn, gin, gat, mpnn",
        ),
        (("--setting", "W2/1gbit", "--from", "x.npz"), "there is no bundle x.npz"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("fit", "bursts", "--profiles", "empty", *words)
    assert done.exit_code == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_fitted_is_said_once(tmp_path: Path) -> None:
    assert "say once" in run("fit", "--profiles", str(tmp_path)).stderr
    both = run("fit", "memory", "--target", "step_time", "--profiles", str(tmp_path))
    assert "say once" in both.stderr
    only = run("fit", "memory", "--setting", "W2/1gbit", "--profiles", str(tmp_path))
    assert "for bursts" in only.stderr


def test_what_is_shipped_answers_at_once() -> None:
    asked = ("predict", "zoo:mlp", "--batch", "16", "--device", "a100-40g", "--setting")
    for setting in ("P2W2/1gbit", "W2/100mbit"):
        told = json.loads(run(*asked, setting, "--json").stdout)
        numbers = [q for each in told["bursts"].values() for q in each.values()]
        assert len(numbers) == 12
        assert all(0 <= q["p10"] <= q["p50"] <= q["p90"] for q in numbers)
        assert told["distributed"]["step_ms"]["p50"] > 0
        assert told["distributed"]["slopes_mib"] == pytest.approx(669_706 * 4 / 2**20, rel=0.01)
    slow = json.loads(run(*asked, "W2/100mbit", "--json").stdout)["bursts"]
    fast = json.loads(run(*asked, "W2/1gbit", "--json").stdout)["bursts"]
    assert slow["sent"]["burst_ms"]["p50"] > fast["sent"]["burst_ms"]["p50"]
    assert slow["sent"]["burst_mib_s"]["p50"] < fast["sent"]["burst_mib_s"]["p50"]
    elsewhere = run(*asked, "W3/10gbit")
    assert "no bundle knows the bursts of W3/10gbit" in elsewhere.stderr
    assert "there are P1W2/1gbit" in elsewhere.stderr


def test_a_page_of_what_would_change(tmp_path: Path) -> None:
    words = ("predict", "zoo:mlp", "--device", "a100-40g,v100", "--html", "bursts.html")
    done = run(*words, "--setting", "P2W2/1gbit")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "bursts.html").read_text()
    for title in ("Another GPU", "Servers and workers", "Batch and network", "How it pulses"):
        assert f"<h2>{title}</h2>" in text
    figures = json.loads(
        text.split('<script id="figures" type="application/json">')[1].split("</script>")[0]
    )["charts"]
    assert set(figures) == {"gpus", "roles", "batches", "pulse"}
    computing, talking = figures["gpus"]["data"]
    assert computing["x"] == ["a100-40g", "v100-16g"]
    assert min(computing["y"]) > 0
    assert min(talking["y"]) > 0
    rates = {line["name"]: line["y"] for line in figures["batches"]["data"]}
    assert all(slow <= fast for slow, fast in zip(rates["100mbit"], rates["10gbit"], strict=True))
    refused = run(*words)
    assert refused.exit_code == 2
    assert "say --setting" in refused.stderr


def test_a_transfer_starts_from_a_setting_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = partial(TrainOptions, epochs=4)
    monkeypatch.setattr("presage.foresee.bursts.models.TrainOptions", short)
    assert base_for("W2/1gbit").model.kind is ModelKind.GCN
    runs(tmp_path / "runs")
    words = ("--profiles", "runs", "--setting", "W2/1gbit", "--json", "--from")
    moved = run("fit", "bursts", *words, "W2/1gbit")
    assert moved.exit_code == 0, moved.stderr
    card = json.loads(moved.stdout)
    assert (card["model"], card["transferred_from"]) == ("gcn", "W2/1gbit")
    none = run("fit", "bursts", *words, "W9/none")
    assert none.exit_code == 2
    assert "there is no bundle W9/none" in none.stderr
