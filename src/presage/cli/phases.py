"""`presage phases`: find phases in telemetry, show them, and say which comes next.

The commands compose; `observe` does the work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from presage._api.telemetry import METHODS
from presage._api.telemetry import phases as find_phases
from presage.cli._input import listed, seconds
from presage.cli._output import check_file, print_json, progress, say
from presage.cli._telemetry import (
    FromPrometheus,
    Select,
    Since,
    Telemetry,
    TelemetrySource,
    TokenFile,
)
from presage.learn.bundle import load_bundle
from presage.model.errors import UserError
from presage.observe.phases import PhaseForecast, PhaseModel
from presage.observe.phases.phasing import Phasing
from presage.observe.phases.report import (
    graph_page,
    graphs_to_json,
    names_to_show,
    show_page,
    unit_of_name,
)
from presage.observe.phases.sequences import run_lengths
from presage.page import counted, duration_text, readable_unit, write_page
from presage.telemetry.series import Series

__all__ = ["phases"]

Ints = npt.NDArray[np.int64]

phases = typer.Typer(
    help="Find phases in telemetry, show them, and say which comes next.", no_args_is_help=True
)

_MOST_PHASES = 100
_PODS_SHOWN = 10
_NAMES_SHOWN = 4
_HORIZON_ROWS = 8

Bundle = Annotated[Path, typer.Argument(help="A bundle that `presage phases fit` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write one HTML page.")]


@phases.command()
def fit(
    out: Annotated[Path, typer.Option(help="The bundle to write.")],
    telemetry: Telemetry = None,
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    token_file: TokenFile = None,
    k: Annotated[str, typer.Option("--k", help="How many phases: auto, or a number.")] = "auto",
    features: Annotated[
        str | None,
        typer.Option(
            help="Features or resources, with commas between.",
            show_default="those that all pods have",
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="The time from row to row: 15s, 1m.",
            show_default="the median time between samples",
        ),
    ] = None,
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "changepoints",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same phases.")] = 0,
    json: AsJson = False,
) -> None:
    """Find the phases in TELEMETRY, without labels, and keep them in a bundle."""
    source = TelemetrySource(telemetry, prometheus, select, since, token_file)
    number = _phase_count(k)
    row_s = None if every is None else seconds(every, "--every")
    names = None if features is None else listed(features, "--features")
    check_file(out, "--out")
    series = source.read(row_s)
    with progress(f"finding phases in {len(series):,} pods"):
        model = find_phases(
            series, features=names, every=row_s, k=number, method=method, seed=seed
        ).model
    samples = sum(map(len, series))
    data = f"{source.name}: {counted(len(series), 'pod')}, {samples:,} samples"
    model.save(out, date=_today(), data=data)
    if json:
        print_json(_without_nan({"written": str(out), **_described(model, series)}))
        return
    row = duration_text(model.every)
    typer.echo(f"{model.n_phases} phases by {model.method}, a row every {row}; {data}")
    _print(_phase_table(model, series, None))
    if model.forecaster is not None:
        say(f"forecast by {model.forecaster.choice}, the better one on the pods kept aside")
    say(f"written to {out}")


@phases.command()
def show(
    bundle: Bundle,
    telemetry: Telemetry = None,
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    token_file: TokenFile = None,
    json: AsJson = False,
    html: Html = None,
) -> None:
    """Say which phase each sample of TELEMETRY is in."""
    source = TelemetrySource(telemetry, prometheus, select, since, token_file)
    if html is not None:
        check_file(html, "--html")
    seen = _read(bundle, source)
    model, series, labels = seen.model, seen.series, seen.labels
    if html is not None:
        write_page(html, show_page(f"Phases of {source.name}", model, series, labels))
        say(f"page written to {html}")
    if json:
        # One line: a file of telemetry can have a million rows.
        typer.echo(
            dumps({pod.pod: _by_row(pod, each) for pod, each in zip(series, labels, strict=True)})
        )
    elif html is None:
        _print(_phase_table(model, series, labels))
        _print_runs(series, labels)
        say(str(model.drift(series)))


@phases.command()
def expand(
    bundle: Bundle,
    phase: Annotated[int, typer.Option(min=0, help="The phase to split.")],
    telemetry: Telemetry = None,
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    token_file: TokenFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The bundle to write.", show_default="the same bundle"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed splits alike.")] = 0,
    json: AsJson = False,
) -> None:
    """Split a phase by how it looks in TELEMETRY; all other phases keep their numbers."""
    source = TelemetrySource(telemetry, prometheus, select, since, token_file)
    target = out or bundle
    check_file(target, "--out")
    before = PhaseModel.load(bundle)
    _, card = load_bundle(bundle)
    series = source.read(before.every)
    with progress(f"splitting phase {phase}"):
        model = before.expand(series, phase, seed=seed)
    data = f"{card['data']}; phase {phase} split on {source.name}"
    model.save(target, date=_today(), data=data, licence=str(card["licence"]))
    parts = list(range(before.n_phases, model.n_phases))
    if json:
        described = _described(model, series)
        print_json(
            _without_nan({"written": str(target), "phase": phase, "parts": parts, **described})
        )
        return
    typer.echo(f"phase {phase} is now split into {', '.join(map(str, parts))}")
    _print(_phase_table(model, series, model.predict_many(series)))
    say(f"written to {target}")


@phases.command()
def graph(
    bundle: Bundle,
    telemetry: Telemetry = None,
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    token_file: TokenFile = None,
    html: Html = None,
    memory: Annotated[
        int, typer.Option(min=1, max=4, help="How many phases a state remembers.")
    ] = 1,
    json: AsJson = False,
) -> None:
    """Draw how executions go: which phase follows which, and the prototypes."""
    source = TelemetrySource(telemetry, prometheus, select, since, token_file)
    if html is None and not json:
        raise UserError("give --html FILE for a page, or --json for the numbers")
    if html is not None:
        check_file(html, "--html")
    seen = _read(bundle, source)
    model, series, labels = seen.model, seen.series, seen.labels
    if html is not None:
        title = f"How the pods of {source.name} go"
        write_page(html, graph_page(title, model, series, labels, memory))
        say(f"page written to {html}")
    if json:
        print_json(graphs_to_json(labels, memory))


@phases.command()
def forecast(
    bundle: Bundle,
    telemetry: Telemetry = None,
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    token_file: TokenFile = None,
    horizon: Annotated[
        str | None,
        typer.Option(
            help="How far ahead: 2m, 1h.", show_default=f"{_HORIZON_ROWS} rows of the bundle"
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Say, for each pod as TELEMETRY ends, which phase comes next and when."""
    source = TelemetrySource(telemetry, prometheus, select, since, token_file)
    ahead_s = None if horizon is None else seconds(horizon, "--horizon")
    seen = _read(bundle, source)
    series = seen.series
    coming = seen.model.forecast_many(series, ahead_s or _HORIZON_ROWS * seen.model.every)
    expected = [_expected(*each) for each in zip(seen.labels, coming, strict=True)]
    if json:
        print_json({pod.pod: ahead for pod, ahead in zip(series, expected, strict=True)})
    else:
        _print_forecast(series, expected)


def _phase_count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_PHASES:
        raise UserError(f"--k is auto or a number from 1 to {_MOST_PHASES}, not {text!r}")
    return int(text)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _read(bundle: Path, source: TelemetrySource) -> Phasing:
    model = PhaseModel.load(bundle)
    return find_phases(source.read(model.every), model=model)


def _by_row(pod: Series, labels: Ints) -> list[int | None]:
    return [None if phase < 0 else phase for phase in pod.by_input_row(labels)]


def _described(model: PhaseModel, series: Sequence[Series]) -> dict[str, Any]:
    chosen = model.forecaster
    return {
        "phases": model.n_phases,
        "method": model.method,
        "features": list(model.features),
        "every_s": model.every,
        "pods": len(series),
        "samples": sum(map(len, series)),
        "cohesion": {str(number): value for number, value in model.curve.items()},
        "forecast": chosen and {"by": chosen.choice, "log_loss": dict(chosen.losses)},
        "statistics": model.statistics.to_json(),
    }


def _without_nan(value: Any) -> Any:
    """JSON has no word for what was not measured but null."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _phase_table(
    model: PhaseModel, series: Sequence[Series], labels: Sequence[Ints] | None
) -> Table:
    """What each phase uses, as measured when it was fitted, and how much of it there is: in the
    training, or where `found` has been seen."""
    statistics = model.statistics
    names = [name for name in names_to_show(series, model.features) if name in statistics.names]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("phase", justify="right", no_wrap=True)
    for head in ("share" if labels is None else "share\nhere", "stays"):
        table.add_column(head, justify="right", no_wrap=True)
    sizes = []
    for name in names[:_NAMES_SHOWN]:
        column = statistics.names.index(name)
        usual = np.nanmax(statistics.mean[:, column] + statistics.sd[:, column])
        size, unit = readable_unit(unit_of_name(series, name), float(usual))
        sizes.append((name, size))
        table.add_column(f"{name}\n{unit}" if unit else name, justify="right", no_wrap=True)
    counts = statistics.samples
    if labels is not None:
        label = np.concatenate(labels)
        counts = np.bincount(label[label >= 0], minlength=model.n_phases)
    for phase in np.flatnonzero(counts + statistics.samples):
        cells = [f"{counts[phase] / max(1, counts.sum()):.1%}"]
        cells.append(duration_text(statistics.dwell_s[phase, 2]))
        for name, size in sizes:
            use = statistics.of(int(phase), name)
            cells.append(f"{use['mean'] / size:.3g} ± {use['sd'] / size:.2g}")
        table.add_row(str(phase), *cells)
    return table


def _print(table: Table) -> None:
    Console(highlight=False).print(table)


def _print_runs(series: Sequence[Series], labels: Sequence[Ints]) -> None:
    """How the first pods went: each phase with the number of samples it lasted."""
    console = Console(highlight=False)
    console.print()
    for pod, each in list(zip(series, labels, strict=True))[:_PODS_SHOWN]:
        runs = ", ".join(f"{run.phase} ×{run.length}" for run in run_lengths(each))
        line = Text(f"{pod.pod}: {runs or 'too short for a phase'}")
        console.print(line, no_wrap=True, overflow="ellipsis")
    if len(series) > _PODS_SHOWN:
        console.print(f"… and {len(series) - _PODS_SHOWN:,} more pods")


def _expected(now: Ints, coming: PhaseForecast) -> dict[str, Any]:
    """What is expected at the end of a pod's telemetry; nothing if it has no phase there."""
    here = int(now[-1]) if len(now) else -1
    if here < 0:
        nothing = dict.fromkeys(("phase", "wait_s", "change", "then"))
        return nothing | {"next": {}, "at": {}, "horizon_s": coming.horizon_s}
    wait = float(coming.wait_s[-1])
    return {
        "phase": here,
        "wait_s": wait if math.isfinite(wait) else None,
        "next": _chances(coming.next[-1]),
        "horizon_s": coming.horizon_s,
        "change": float(coming.change[-1]),
        "then": int(coming.phase[-1]),
        "at": _chances(coming.at[-1]),
    }


def _chances(probabilities: npt.NDArray[np.float64]) -> dict[str, float]:
    return {str(phase): float(chance) for phase, chance in enumerate(probabilities)}


def _print_forecast(series: Sequence[Series], expected: Sequence[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    ahead = duration_text(expected[0]["horizon_s"])
    table.add_column("pod", no_wrap=True, max_width=36)
    for head in ("phase\nnow", "ends\nin", "next", f"ends within\n{ahead}", f"phase in\n{ahead}"):
        table.add_column(head, justify="right", no_wrap=True)
    for pod, each in list(zip(series, expected, strict=True))[: 2 * _PODS_SHOWN]:
        if each["phase"] is None:
            table.add_row(Text(pod.pod), "no phase", "", "", "", "")
            continue
        likely = max(each["next"], key=lambda phase: each["next"][phase])
        table.add_row(
            Text(pod.pod),
            str(each["phase"]),
            "–" if each["wait_s"] is None else duration_text(each["wait_s"]),
            f"{likely} ({each['next'][likely]:.0%})",
            f"{each['change']:.0%}",
            f"{each['then']} ({each['at'][str(each['then'])]:.0%})",
        )
    _print(table)
    if len(series) > 2 * _PODS_SHOWN:
        say(f"… and {len(series) - 2 * _PODS_SHOWN:,} more pods; --json has them all")
