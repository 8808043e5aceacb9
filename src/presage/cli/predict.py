"""`presage predict` and `presage fit`: what a job will need, and estimators of one's own.

The commands compose; `presage.predict` and `foresee` do the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from presage._api import foresight
from presage.cli import _setup_options as options
from presage.cli._output import check_file, print_json, say
from presage.foresee.gpus import find
from presage.foresee.graph.load import load_graph
from presage.foresee.graph.summary import short
from presage.model.errors import UserError
from presage.page import write_page

if TYPE_CHECKING:
    import polars as pl

    from presage.foresee.answer import OnGpu, Prediction

__all__ = ["fit", "predict"]

_DEVICES = "a100-40g,rtx3090"
_WIDEST = 400

Target = Annotated[
    str | None,
    typer.Argument(
        help="zoo:resnet50, hf:meta-llama/Llama-3.1-8B, file.py:function, package.module:function,"
        " model.onnx or config.json."
    ),
]
Batch = Annotated[int, typer.Option(min=1, max=options.MOST, help="Samples in a step.")]
Inputs = Annotated[
    str | None,
    typer.Option("--input", help="One sample without the batch: 3x224x224, or 128:int64."),
]
Devices = Annotated[str, typer.Option(help="GPUs with commas between; `presage gpus` lists them.")]
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


Loader = Annotated[
    str | None,
    typer.Option(help="file.py:make_loader: time your input pipeline on this machine's CPU."),
]


SettingName = Annotated[
    str | None,
    typer.Option(help="Of a distributed training: W2/1gbit, P2W2/100mbit; adds its bursts."),
]


WhatIf = Annotated[
    Path | None,
    typer.Option("--html", help="With --setting: a page of what would change with what."),
]


def predict(
    target: Target = None,
    batch: Batch = 32,
    input: Inputs = None,
    device: Devices = _DEVICES,
    optimizer: options.Optimizer = "sgd",
    precision: options.Precision = "fp32",
    inference: Inference = False,
    seq: options.Seq = None,
    accumulate: options.Accumulate = 1,
    gpus: options.Gpus = 1,
    parallel: options.Parallel = None,
    lora: options.Lora = None,
    quant: options.Quant = None,
    checkpoint: options.Checkpoint = None,
    loss: options.Loss = None,
    attention: options.AttentionKind = None,
    layout: options.LayoutKind = None,
    compile: options.Compile = False,
    cudnn_benchmark: options.CudnnBenchmark = False,
    offload: options.OffloadKind = None,
    interconnect: options.Interconnect = None,
    kv_len: options.KvLen = None,
    concurrency: options.Concurrency = 1,
    loader: Loader = None,
    setting: SettingName = None,
    html: WhatIf = None,
    json: AsJson = False,
    table: TablePath = None,
    what: What = None,
    out: Out = None,
    pair: Pair = None,
) -> None:
    """Foresee GPU memory, utilization, time and cost of a model before it runs."""
    asked = [
        name for name, value in (("TARGET", target), ("--table", table), ("--pair", pair)) if value
    ]
    if len(asked) != 1:
        raise UserError("give one of: a target like zoo:resnet50, --table FILE, or --pair A B")
    if table is not None:
        _table(table, what, out)
        return
    names = [name.strip() for name in device.split(",") if name.strip()]
    if not names:
        raise UserError("--device names no GPU; `presage gpus` lists them")
    if pair is not None:
        _pair(pair, batch, names, json, inputs=input, optimizer=optimizer, precision=precision)
        return
    if inference and optimizer not in ("sgd", "none"):
        raise UserError(f"inference has no optimizer: leave --optimizer {optimizer} out")
    if html is not None and setting is None:
        raise UserError("--html is about distributed trainings: say --setting P2W2/1gbit, too")
    asked_for = partial(
        foresight.predict,
        target,
        input,
        gpu=names,
        optimizer=optimizer,
        precision=precision,
        inference=inference,
        seq=seq,
        accumulate=accumulate,
        gpus=gpus,
        parallel=parallel,
        lora=lora,
        quant=quant,
        checkpoint=checkpoint,
        loss=loss,
        attention=attention,
        layout=layout,
        compile=compile,
        cudnn_benchmark=cudnn_benchmark,
        offload=offload,
        interconnect=interconnect,
        kv_len=kv_len,
        concurrency=concurrency,
        loader=loader,
    )
    prediction = asked_for(batch=batch, setting=setting)
    if html is not None:
        _burst_page(html, prediction, asked_for)
    if json:
        print_json(prediction.to_dict())
    else:
        _show(prediction)


def _show(prediction: Prediction) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{_asked(prediction)}: {short(prediction.macs)} MACs, "
        f"{short(prediction.params)} parameters"
    )
    grid = Table(box=None, pad_edge=False, header_style="bold")
    most = "most at once" if "kv_len" in prediction.options else "max batch"
    for name in ("GPU", "memory MiB", "10–90 %", "GPU use", "step ms", "10–90 %", most):
        grid.add_column(name, justify="left" if name == "GPU" else "right", no_wrap=True)
    for name, on in prediction.gpus.items():
        memory, step = on.memory_mib, on.step_ms
        grid.add_row(
            name,
            f"{memory.p50:,.0f}",
            f"{memory.p10:,.0f}–{memory.p90:,.0f}",
            f"{on.gpu_util_pct.p50:.0f} %",
            _number(step.p50),
            f"{_number(step.p10)}–{_number(step.p90)}",
            f"{on.max_batch:,}",
        )
    wide = Console(highlight=False, width=_WIDEST)
    wide.width = max(console.width, Measurement.get(wide, wide.options, grid).maximum)
    wide.print(grid)  # a number that is cut is none
    for name, on in prediction.gpus.items():
        console.print(f"{name}: {on.reason}")
        console.print(f"  {_speed(on)}")
    _show_bursts(console, prediction)
    parts = next(iter(prediction.gpus.values())).breakdown
    listed = ", ".join(f"{name} {size:,.0f}" for name, size in parts.items() if size >= 0.5)
    console.print(f"memory in MiB: {listed}")
    for name, on in prediction.gpus.items():
        say(f"  {name}: {on.domain.distance:.0%} from what was measured: {on.domain.words}")
    if prediction.assumptions:
        say(f"  assumed: {'; '.join(prediction.assumptions)}")
    for line in prediction.evidence:
        say(f"  {line}")


def _show_bursts(console: Console, prediction: Prediction) -> None:
    """How the training pulses where it is distributed."""
    if (there := prediction.distributed) is not None:
        q = there.step_ms
        console.print(
            f"in {prediction.setting}: step {_number(q.p50)} ms ({_number(q.p10)}–"
            f"{_number(q.p90)}), {_number(there.compute_ms)} computing, "
            f"{_number(there.exposed_ms)} talking"
        )
        brings = f"  adding a worker brings {there.adding_a_worker_pct:+.0f} % samples a second"
        if there.adding_a_server_pct is not None:
            brings += f", a server {there.adding_a_server_pct:+.0f} %"
        console.print(brings)
        for other, step in there.other.items():
            console.print(f"  as {other} a step would take {_number(step)} ms")
    if prediction.bursts is None:
        return
    console.print(f"bursts in {prediction.setting}, 10–90 %:")
    for resource, numbers in prediction.bursts.items():
        units = ("%" if "burst_pct" in numbers else "MiB/s", "ms", "ms")
        height, burst, idle = (
            f"{_number(q.p50)} {unit} ({_number(q.p10)}–{_number(q.p90)})"
            for q, unit in zip(numbers.values(), units, strict=True)
        )
        console.print(f"  {resource}: {height} for {burst}, idle for {idle}")


def _burst_page(path: Path, here: Prediction, ask: Callable[..., Prediction]) -> None:
    """Ask again for other batches and settings, and write the page."""
    from presage.foresee.bursts.use import known_settings
    from presage.foresee.bursts.whatif import BATCHES, burst_page

    check_file(path, "--html")
    sizes = dict.fromkeys(max(1, round(here.batch * times)) for times in BATCHES)
    batches = [ask(batch=size, setting=here.setting) for size in sizes]
    settings = [ask(batch=here.batch, setting=str(one)) for one in known_settings()]
    write_page(path, burst_page(here, batches, settings))
    say(f"page written to {path}")


def _asked(prediction: Prediction) -> str:
    """What was asked, in one line."""
    said = prediction.options
    if "kv_len" in said:
        served = f"serving {said['concurrency']:,} sequences of {said['kv_len']:,} tokens"
        return f"{prediction.name}, {served}, {said['precision']}"
    batch = f"batch {prediction.batch:,}"
    if said.get("accumulate", 1) > 1:
        batch += f" × {said['accumulate']}"
    parts = [prediction.name, batch]
    if said.get("seq"):
        parts.append(f"{said['seq']:,} tokens")
    parts.append("inference" if said["inference"] else f"training with {said['optimizer']}")
    parts.append(str(said["precision"]))
    if said.get("gpus", 1) > 1:
        parts.append(f"{said['gpus']} GPUs ({said.get('parallel', 'ddp')})")
    return ", ".join(parts)


def _number(value: float) -> str:
    """With a decimal where it tells something."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"


def _speed(on: OnGpu) -> str:
    """Throughput and money."""
    rate, unit = (on.tokens_per_s, "tokens") if on.tokens_per_s else (on.samples_per_s, "samples")
    parts = []
    if rate is not None:
        low, middle, high = (_number(value) for value in (rate.p10, rate.p50, rate.p90))
        parts.append(f"{middle} {unit}/s ({low}–{high})")
    if on.cost is not None:
        parts.append(f"${on.cost.usd_per_hour:,.2f} an hour")
        parts.append(f"${on.cost.usd_per_million:,.3g} a million {on.cost.unit}")
    else:
        parts.append("no price is known for it")
    return "; ".join(parts)


def _pair(
    pair: tuple[str, str], batch: int, names: list[str], as_json: bool, **options: Any
) -> None:
    gpus = [find(name) for name in names]
    if not all(name.startswith("zoo:") for name in pair):
        foresight.get_ready()
    graphs = [load_graph(name, **options) for name in pair]
    from presage.foresee.predict import share

    pairs = {gpu.name: share(graphs[0], graphs[1], (batch, batch), gpu) for gpu in gpus}
    if as_json:
        print_json(
            {
                name: {
                    "speed": [asdict(one.first), asdict(one.second)],
                    "cannot_share": one.cannot_share,
                    "reason": one.reason,
                }
                for name, one in pairs.items()
            }
        )
        return
    console = Console(highlight=False, soft_wrap=True)
    for name, one in pairs.items():
        console.print(f"{name}: {one.reason}")
        for job, speed in zip(graphs, (one.first, one.second), strict=True):
            console.print(
                f"  {job.name}: {100 * speed.p50:.0f} % of its speed alone "
                f"({100 * speed.p10:.0f}–{100 * speed.p90:.0f} %)"
            )


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


FitWhat = Annotated[str | None, typer.Argument(help="memory, step_time, utilization or bursts.")]
FitTarget = Annotated[
    str | None, typer.Option("--target", help="The same: memory, step_time or utilization.")
]
Profiles = Annotated[
    Path, typer.Option(help="A directory of Parquet or CSV files; of bursts, that of runs.jsonl.")
]
FitSetting = Annotated[
    str | None, typer.Option(help="Of bursts: the setting, such as W2/1gbit; else all there are.")
]
FitOut = Annotated[
    Path | None, typer.Option(help="Of bursts: a directory for bundles instead of your own.")
]
FitFrom = Annotated[
    str | None,
    typer.Option("--from", help="Of bursts: a bundle of another setting, or a setting, to go on."),
]
FitKinds = Annotated[
    str, typer.Option(help="Of bursts: the kinds to try, of forest, trees, gcn, gin, gat, mpnn.")
]


def fit(
    profiles: Profiles,
    what: FitWhat = None,
    target: FitTarget = None,
    setting: FitSetting = None,
    base: FitFrom = None,
    kinds: FitKinds = "forest,trees,gcn",
    out: FitOut = None,
    json: AsJson = False,
) -> None:
    """Fit an estimator on your own profiles; `presage predict` then uses it."""
    from presage.foresee import estimators

    wanted = what or target
    if wanted is None or (what and target and what != target):
        raise UserError("say once what to fit: memory, step_time, utilization or bursts")
    if not profiles.is_dir():
        raise UserError(f"{profiles} is not a directory")
    if wanted == "bursts":
        _fit_bursts(profiles, setting, base, kinds, out, json)
        return
    if setting is not None or base is not None or out is not None:
        raise UserError("--setting, --from and --out are for bursts")
    from presage.foresee.fitting import fit_tables

    place = estimators.own_models() / f"{wanted}.npz"
    place.parent.mkdir(parents=True, exist_ok=True)
    card = fit_tables(wanted, profiles, place, datetime.now(UTC).date().isoformat())
    if json:
        print_json({"written": str(place), **card})
    else:
        say(f"{wanted}: {card['data']}; errors on families left out: {card['errors']}")
        say(f"written to {place}; remove the file to go back to the shipped one")


def _fit_bursts(
    profiles: Path,
    setting: str | None,
    base: str | None,
    kinds: str,
    out: Path | None,
    as_json: bool,
) -> None:
    from presage.foresee.bursts.bundles import fit_bundle
    from presage.foresee.bursts.models import ModelKind
    from presage.foresee.bursts.rows import read_runs, settings_of, step_rows
    from presage.foresee.bursts.settings import Setting
    from presage.foresee.bursts.steps import fit_steps
    from presage.foresee.bursts.use import STEPS, base_for, own_bundle
    from presage.foresee.estimators import own_models

    try:
        tried = [ModelKind(name.strip()) for name in kinds.split(",")]
    except ValueError:
        known = ", ".join(kind for kind in ModelKind if kind is not ModelKind.CONSTANT)
        raise UserError(f"--kinds {kinds}: there are {known}") from None
    if setting is None and base is not None:
        raise UserError("a transfer is to one setting: --setting P2W2/1gbit")
    start = None if base is None else base_for(base)
    wanted = settings_of(profiles) if setting is None else [Setting.parse(setting)]
    today = datetime.now(UTC).date().isoformat()
    cards = []
    for each in wanted:
        rows = read_runs(profiles, each)
        inputs = rows.inputs(profiles / "graphs", say)
        bundle = fit_bundle(rows, inputs, today, tried, base=start, say=say)
        path = own_bundle(each) if out is None else out / f"{each.file}.npz"
        bundle.save(path)
        cards.append({"written": str(path), **bundle.card})
    if setting is None:
        steps = fit_steps(step_rows(profiles, profiles / "graphs", say), today)
        path = (own_models() / "bursts" if out is None else out) / STEPS
        steps.save(path)
        cards.append({"written": str(path), **dict(steps.card or {})})
    if as_json:
        print_json({"fitted": cards} if setting is None else cards[0])
        return
    for card in cards:
        if "setting" not in card:
            say(f"steps: {card['data']}; errors left out: {card['errors']}")
            continue
        scores = {kind: each["score"] for kind, each in card["errors"].items()}
        say(f"bursts in {card['setting']}: {card['data']}; {card['model']} answers")
        listed = ", ".join(f"{kind} {score:.2f}" for kind, score in scores.items())
        say(f"errors on families left out, in spreads: {listed}")
        say(f"written to {card['written']}")
