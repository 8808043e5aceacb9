"""`presage diagnose`: what is wrong with a job, a node or the cluster, and what speaks for it; of
a running server, of a file of telemetry, or of a Prometheus. Thin: `observe.health` finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from presage.cli._input import seconds
from presage.cli._output import print_json, progress, say
from presage.cli._telemetry import FromPrometheus, Select, Since, TelemetrySource, TokenFile
from presage.client import Client, to_json
from presage.manifest.quantities import memory, memory_mib
from presage.model.errors import TelemetryError, UserError
from presage.model.server_answers import AlertStatus, Diagnosis
from presage.model.words import moment, sure

__all__ = ["diagnose"]

_SUFFIXES = (".csv", ".parquet", ".jsonl")
_BARS = "▁▂▃▄▅▆▇█"


def diagnose(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ID|NODE|cluster|FILE",
            help="A job, a node, everything (cluster), or a file of telemetry.",
            show_default=False,
        ),
    ] = "",
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    every: Annotated[
        str | None,
        typer.Option(help="Of Prometheus, a sample so often: 15s.", show_default="60s at most"),
    ] = None,
    token_file: TokenFile = None,
    memory_limit: Annotated[
        str | None,
        typer.Option("--memory", help="Of files and Prometheus: what each may hold, as 16Gi."),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-memory", help="The same for the memory of its GPU: 40Gi."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Say what is wrong with a job, a node or the cluster, how likely, and what to do.

    Of telemetry in a file or in a Prometheus, no Presage server is needed.
    """
    file = (
        Path(what) if what.endswith(_SUFFIXES) or ("/" in what and Path(what).exists()) else None
    )
    if prometheus is None and file is None:
        for name, given in (("--memory", memory_limit), ("--gpu-memory", gpu_memory)):
            if given is not None:
                raise UserError(f"{name} belongs to files and --prometheus; a server knows limits")
        if not what:
            raise UserError("name a job, a node, cluster, a file, or give --prometheus URL")
        with Client() as client:
            answer = client.diagnose(what)
        print_json(to_json(answer)) if json else _show(answer)
        return
    if prometheus is not None and what:
        raise UserError("give a file or --prometheus URL, one of the two; --select names pods")
    source = TelemetrySource(file, prometheus, select, since, token_file)
    limits = _mib("--memory", memory_limit), _mib("--gpu-memory", gpu_memory)
    troubles, series = _past(source, seconds(every, "--every") if every else None, limits)
    if json:
        print_json({"source": source.name, "series": series, "troubles": troubles})
    else:
        _show_past(troubles, series)
        if not limits[0]:
            say("whether memory leaks is told against a limit: give --memory 16Gi or the like")


def _mib(option: str, text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        return float(memory_mib(memory(text)))
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


# -- of a server ----------------------------------------------------------------------------------


def _show(answer: Diagnosis) -> None:
    if not answer.alerts:
        runs = "1 run was" if answer.runs == 1 else f"{answer.runs} runs were"
        typer.echo(f"{answer.subject}: nothing stands out ({runs} looked at)")
    for alert in answer.alerts:
        _show_alert(alert, "")
    for one in answer.suspected[:3]:
        typer.echo(f"perhaps ({sure(one.probability)}): {one.subject}: {one.text}")
    for alert in answer.over[:5]:
        typer.echo(f"over ({alert.cleared}): {alert.kind} of {alert.subject}: {alert.text}")
    if answer.failure is not None:
        typer.echo(f"may fail: {answer.failure.text}")
    if answer.alerts:
        say("the numbers are probabilities; --json has all of the evidence")


def _show_alert(alert: AlertStatus, when: str) -> None:
    head = f"{alert.kind.replace('_', ' ')} ({sure(alert.probability)})"
    typer.echo(f"{head}: {alert.subject}{when}")
    typer.echo(f"  {alert.text}")
    for one in alert.evidence[:4]:
        typer.echo(f"  {one.series}: {one.text}{_curve(one.values)}")
    for words in alert.done:
        typer.echo(f"  done: {words}")
    typer.echo(f"  to do: {alert.action}")


def _curve(values: Sequence[float]) -> str:
    """A series of values as a line of bars."""
    if len(values) < 3:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    bars = "".join(_BARS[round(7 * (value - low) / span)] for value in values[-24:])
    return f"  {bars} {low:.4g} to {high:.4g}"


# -- of telemetry that was kept -------------------------------------------------------------------


def _past(
    source: TelemetrySource, every_s: float | None, limits: tuple[float, float]
) -> tuple[list[dict[str, Any]], int]:
    from presage._api.diagnosing import diagnose_rows, diagnose_series, rows_of_file
    from presage.model.codec import encode
    from presage.observe.health.trouble import TroubleRules, WorkerPlace

    place = WorkerPlace("", 0, (0,), 0.0, *limits)
    rules = TroubleRules()
    listed = rows_of_file(source.files) if source.files is not None else None
    if listed is not None:
        assert source.files is not None
        past = diagnose_rows(source.files.stem, listed, place, rules)
        count = len({row.worker for row in listed})
    else:
        series = source.read(every_s, 60.0)
        if not series:
            raise TelemetryError(f"{source.name} has no series")
        with progress("looking") as report:
            past = diagnose_series(series, place, rules, report)
        count = len(series)
    shown = []
    for one in past:
        trouble = one.trouble
        subject = str(trouble.subject) if listed is not None else f"pod {trouble.job}"
        about = {"kind": trouble.kind.value, "subject": subject}
        about |= {"text": trouble.text, "action": trouble.action}
        times = {"first": one.first, "last": one.last, "to_the_end": one.to_the_end}
        evidence = [encode(item) for item in trouble.evidence]
        chance = round(trouble.probability, 4)
        shown.append({**about, "probability": chance, **times, "evidence": evidence})
    return shown, count


def _show_past(troubles: list[dict[str, Any]], series: int) -> None:
    if not troubles:
        typer.echo(f"nothing stands out ({series} series)")
    for one in troubles:
        still = "to the end" if one["to_the_end"] else f"until {moment(one['last'])}"
        typer.echo(
            f"{one['kind'].replace('_', ' ')} ({sure(one['probability'])}): {one['subject']}, "
            f"from {moment(one['first'])} {still}"
        )
        typer.echo(f"  {one['text']}")
        for item in one["evidence"][:3]:
            values = item.get("values", ())
            typer.echo(f"  {item['series']}: {item['text']}{_curve(values)}")
