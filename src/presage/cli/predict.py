"""`presage predict` and `presage fit`: what a job will need, and estimators of one's own.

The commands compose; `foresee` does the work, and the store of profiles is asked first. What
predicts is imported and read while a process of its own reads the user's model.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from presage.cli._output import check_file, print_json, say
from presage.foresee.gpus import Gpu, find
from presage.foresee.graph.load import load_graph
from presage.foresee.graph.opgraph import OpGraph
from presage.foresee.graph.summary import short
from presage.model.errors import PresageError, UserError

if TYPE_CHECKING:
    import polars as pl

    from presage.foresee.predict import Prediction
    from presage.model.profile import Profile

__all__ = ["fit", "predict"]

_DEVICES = "a100-40g,rtx3090"

Target = Annotated[
    str | None,
    typer.Argument(
        help="zoo:resnet50, file.py:function, package.module:function, model.onnx or config.json."
    ),
]
Batch = Annotated[int, typer.Option(min=1, help="Samples in a step.")]
Inputs = Annotated[
    str | None,
    typer.Option("--input", help="One sample without the batch: 3x224x224, or 128:int64."),
]
Devices = Annotated[str, typer.Option(help="GPUs with commas between; `presage gpus` lists them.")]
Optimizer = Annotated[str, typer.Option(help="none, sgd, momentum, adam or adamw.")]
Precision = Annotated[str, typer.Option(help="fp32, amp, bf16 or fp16.")]
Inference = Annotated[bool, typer.Option("--inference", help="The forward pass alone.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
TablePath = Annotated[
    Path | None, typer.Option("--table", help="Predict for the rows of a Parquet or CSV file.")
]
What = Annotated[
    str | None, typer.Option("--target", help="With --table: memory, step_time or utilization.")
]
Out = Annotated[
    Path | None, typer.Option("--out", help="With --table: the Parquet file to write.")
]
Pair = Annotated[
    tuple[str, str] | None, typer.Option("--pair", help="Two targets that would share a GPU.")
]


def predict(
    target: Target = None,
    batch: Batch = 32,
    input: Inputs = None,
    device: Devices = _DEVICES,
    optimizer: Optimizer = "sgd",
    precision: Precision = "fp32",
    inference: Inference = False,
    json: AsJson = False,
    table: TablePath = None,
    what: What = None,
    out: Out = None,
    pair: Pair = None,
) -> None:
    """Foresee GPU memory, utilization and step time of a model before it runs."""
    asked = [
        name for name, value in (("TARGET", target), ("--table", table), ("--pair", pair)) if value
    ]
    if len(asked) != 1:
        raise UserError("give one of: a target like zoo:resnet50, --table FILE, or --pair A B")
    if table is not None:
        _table(table, what, out)
        return
    gpus = list(dict.fromkeys(find(name.strip()) for name in device.split(",") if name.strip()))
    if not gpus:
        raise UserError("--device names no GPU; `presage gpus` lists them")
    options: dict[str, Any] = {"optimizer": optimizer, "precision": precision}
    if not all(name.startswith("zoo:") for name in pair or (target or "",)):
        Thread(target=_get_ready, daemon=True).start()
    if pair is not None:
        graphs = [load_graph(name, inputs=input, **options) for name in pair]
        _pair((graphs[0], graphs[1]), batch, gpus, json)
        return
    assert target is not None
    graph = load_graph(target, inputs=input, inference=inference, **options)
    from presage.foresee.predict import predict_graph

    found = predict_graph(graph, batch, gpus)
    answer = _with_history(found, graph, gpus)
    if json:
        print_json(answer)
    else:
        _show(answer)


def _get_ready() -> None:
    """Import what predicts, and read its models; what is wrong with them is told when they are
    asked."""
    from presage.foresee import estimators, predict  # noqa: F401

    with suppress(PresageError):
        for of in (estimators.memory, estimators.step_time, estimators.utilization):
            of()


def _with_history(found: Prediction, graph: OpGraph, gpus: list[Gpu]) -> dict[str, Any]:
    """The prediction; what the same job was seen to use before takes its place and says so."""
    from presage.observe.telemetry.store import ProfileStore

    answer = found.to_dict()
    signature = graph.signature()
    for profile in ProfileStore().read_all():
        if profile.graph_signature != signature or profile.batch != found.batch:
            continue
        gpu = _gpu_of(profile, gpus)
        if gpu is None or not profile.alone:
            continue
        _overlay(answer["gpus"][gpu.name], profile)
        day = datetime.fromtimestamp(profile.started_s, UTC).date()
        answer["evidence"].insert(0, f"history: this graph ran on {gpu.name} on {day}")
    return answer


def _gpu_of(profile: Profile, gpus: list[Gpu]) -> Gpu | None:
    try:
        device = find(profile.device)
    except UserError:
        return None
    return next((gpu for gpu in gpus if gpu.name == device.name), None)


def _overlay(row: dict[str, Any], profile: Profile) -> None:
    for name, seen in (("gpu_util_pct", profile.gpu_util_pct), ("step_ms", profile.step_ms)):
        if seen is not None:
            row[name] = {"p10": seen.p50, "p50": seen.p50, "p90": seen.p95}
    if profile.gpu_memory_mib is not None:
        most = profile.gpu_memory_mib.max
        row["memory_mib"] |= {"p10": most, "p50": most, "p90": most}


def _show(answer: dict[str, Any]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    options = answer["options"]
    kind = "inference" if options["inference"] else f"training with {options['optimizer']}"
    console.print(
        f"{answer['name']}, batch {answer['batch']:,}, {kind}, {options['precision']}: "
        f"{short(answer['macs'])} MACs, {short(answer['params'])} parameters"
    )
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("GPU", "memory MiB", "10–90 %", "GPU use", "step ms", "10–90 %", "max batch"):
        grid.add_column(name, justify="left" if name == "GPU" else "right")
    for name, row in answer["gpus"].items():
        memory, step, busy = row["memory_mib"], row["step_ms"], row["gpu_util_pct"]
        grid.add_row(
            name,
            f"{memory['p50']:,.0f}",
            f"{memory['p10']:,.0f}–{memory['p90']:,.0f}",
            f"{busy['p50']:.0f} %",
            f"{step['p50']:,.1f}",
            f"{step['p10']:,.1f}–{step['p90']:,.1f}",
            f"{row['max_batch']:,}",
        )
    console.print(grid)
    for name, row in answer["gpus"].items():
        console.print(f"{name}: {row['reason']}")
    parts = next(iter(answer["gpus"].values()))["memory_mib"]["breakdown"]
    listed = ", ".join(f"{name} {size:,.0f}" for name, size in parts.items() if abs(size) >= 0.5)
    console.print(f"memory in MiB: {listed}")
    for line in answer["evidence"]:
        say(f"  {line}")


def _pair(graphs: tuple[OpGraph, OpGraph], batch: int, gpus: list[Gpu], as_json: bool) -> None:
    from presage.foresee.predict import share

    found = {gpu.name: share(*graphs, (batch, batch), gpu) for gpu in gpus}
    if as_json:
        print_json(
            {
                name: {
                    "speed": [_numbers(one.first), _numbers(one.second)],
                    "cannot_share": one.cannot_share,
                    "reason": one.reason,
                }
                for name, one in found.items()
            }
        )
        return
    console = Console(highlight=False, soft_wrap=True)
    names = [graph.name for graph in graphs]
    for name, one in found.items():
        console.print(f"{name}: {one.reason}")
        for job, speed in zip(names, (one.first, one.second), strict=True):
            console.print(
                f"  {job}: {100 * speed.p50:.0f} % of its speed alone "
                f"({100 * speed.p10:.0f}–{100 * speed.p90:.0f} %)"
            )


def _numbers(quantiles: Any) -> dict[str, float]:
    return {"p10": quantiles.p10, "p50": quantiles.p50, "p90": quantiles.p90}


def _table(path: Path, what: str | None, out: Path | None) -> None:
    from presage.foresee.table import predict_table

    if what is None or out is None:
        raise UserError("--table needs --target memory|step_time|utilization and --out FILE")
    check_file(out, "--out")
    answered = predict_table(_read(path), what)
    answered.write_parquet(out)
    unknown = int(answered["p50"].is_nan().sum())
    note = f"; {unknown:,} of them could not be told and have no numbers" if unknown else ""
    say(f"{answered.height:,} rows written to {out}{note}")


def _read(path: Path) -> pl.DataFrame:
    import polars as pl

    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        return pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        line = str(error).splitlines()[0][:120]
        raise UserError(f"{path} cannot be read as a table: {line}") from None


FitTarget = Annotated[str, typer.Option("--target", help="memory, step_time or utilization.")]
Profiles = Annotated[Path, typer.Option(help="A directory of Parquet or CSV files.")]


def fit(target: FitTarget, profiles: Profiles, json: AsJson = False) -> None:
    """Fit an estimator on your own profiles; `presage predict` then uses it."""
    from presage.foresee import estimators
    from presage.foresee.fitting import fit_tables

    if not profiles.is_dir():
        raise UserError(f"{profiles} is not a directory")
    out = estimators.own_models() / f"{target}.npz"
    out.parent.mkdir(parents=True, exist_ok=True)
    card = fit_tables(target, profiles, out, datetime.now(UTC).date().isoformat())
    if json:
        print_json({"written": str(out), **card})
    else:
        say(f"{target}: {card['data']}; errors on families left out: {card['errors']}")
        say(f"written to {out}; remove the file to go back to the shipped one")
