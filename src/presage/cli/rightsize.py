"""`presage rightsize`: how much each policy would have given, how well that served, and what to
give next. The command composes; `provision` does the work.
"""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from presage._api.telemetry import rightsize as replay
from presage._api.telemetry import usual_policies
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
from presage.model.cluster import Resources
from presage.model.errors import ProvisionError, UserError
from presage.observe.phases import PhaseModel
from presage.page import readable_unit, write_page
from presage.provision.recommend import Recommendation, kubernetes_patch, recommend
from presage.provision.report import gap_closed, rightsize_page
from presage.provision.rightsize import POLICIES, RightsizeResult
from presage.provision.usage import MEMORY, resources_in
from presage.telemetry.series import Series

__all__ = ["rightsize"]

_LEAST_SAMPLES = 4
"""Of a window, unless somebody asks for samples less often."""


def rightsize(
    telemetry: Telemetry = None,
    prometheus: FromPrometheus = None,
    select: Select = None,
    since: Since = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="Of Prometheus, a sample so often: 15s.", show_default="what suits the range"
        ),
    ] = None,
    token_file: TokenFile = None,
    watch: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --prometheus: what pods of the cluster watched into DIR asked for, beside "
            "what they need; the argument names one of them.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Phases; `presage phases fit` makes a bundle.")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help=f"Names with commas between: {', '.join(POLICIES)}.",
            show_default=f"{','.join(usual_policies(bundle=False))}; with a bundle phase and "
            "forecast, too",
        ),
    ] = None,
    window: Annotated[str, typer.Option(help="How often a pod is resized: 1m, 10m.")] = "10m",
    margin: Annotated[
        float, typer.Option(help="Give this share more than the policy wants: 0.05.")
    ] = 0.0,
    target_fulfilment: Annotated[
        float | None,
        typer.Option(
            help="Per cent of samples: each policy gets the smallest margin that reaches it on "
            "the training of the bundle."
        ),
    ] = None,
    value: Annotated[
        str, typer.Option(help="What a window or a phase stands for: mean+2sd, max or e.g. p95.")
    ] = "mean+2sd",
    slow_reduction: Annotated[
        float | None,
        typer.Option(help="The most an allocation may fall from window to window: 0.1."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write one HTML page.")] = None,
    patch: Annotated[
        bool,
        typer.Option(
            "--patch", help="Print Kubernetes patches for the next window, by the first policy."
        ),
    ] = False,
    container: Annotated[
        str, typer.Option(help="With --patch: the container to resize in each pod.")
    ] = "main",
) -> None:
    """Compare right-sizing policies on TELEMETRY, or say what to give each pod next."""
    asked: dict[str, Resources] = {}
    if watch is not None:
        if prometheus is None or select is not None or patch or html is not None:
            raise UserError("--watch goes with --prometheus, without --select, --patch and --html")
        from presage.cli._watched_sizes import asked_there, select_pods, show_beside

        asked = asked_there(watch, None if telemetry is None else str(telemetry))
        telemetry, select = None, select_pods(list(asked))
    source = TelemetrySource(telemetry, prometheus, select, since, token_file)
    window_s = seconds(window, "--window")
    step_s = None if every is None else seconds(every, "--every")
    usual = usual_policies(bundle=bundle is not None)
    names = usual if policies is None else listed(policies, "--policies")
    if html is not None:
        if patch:
            raise UserError("--patch and --html are two things; ask for them one after the other")
        check_file(html, "--html")
    if target_fulfilment is not None and margin:
        say("note: --target-fulfilment sets the margins; --margin is not used")
    model = None if bundle is None else PhaseModel.load(bundle)
    often_s = window_s / _LEAST_SAMPLES if model is None else model.every
    series = source.read(step_s, often_s)
    settings: dict[str, Any] = {
        "margin": margin,
        "value": value,
        "slow_reduction": slow_reduction,
    }
    if patch or asked:
        policy = next((name for name in names if name != "dynamic"), "dynamic")
        settings |= {"model": model, "target_pct": target_fulfilment}
        with progress(f"sizing {len(series):,} pods"):
            recommended = recommend(series, policy, window_s, **settings)
        if asked:
            show_beside(asked, recommended, json)
        else:
            _patch(recommended, policy, container, json)
        return
    settings |= {"bundle": model, "target_fulfilment": target_fulfilment}
    with progress(f"replaying {len(series):,} pods") as report:
        outcome = replay(series, names, window=window_s, progress=report, **settings)
    _note_left_out(series, outcome)
    if html is not None:
        write_page(html, rightsize_page(f"Right-sizing {source.name}", outcome))
        say(f"page written to {html}")
    if json:
        print_json(outcome.to_json())
    elif html is None:
        _show(outcome)


def _note_left_out(series: Sequence[Series], outcome: RightsizeResult) -> None:
    sized = next(iter(outcome.sized.values()))
    if missing := [name for name in resources_in(series) if name not in sized]:
        say(
            f"note: left out: {', '.join(missing)} (the bundle was not fitted on it, or no pod is "
            "longer than a window)"
        )


def _show(outcome: RightsizeResult) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    table.add_column("resource", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for head in ("given ÷\nused", "met\n%", "worst\npods %", "OOM\nwindows", "throt-\ntled"):
        table.add_column(head, justify="right", no_wrap=True)
    for head in ("resizes", "margin\n%"):
        table.add_column(head, justify="right", no_wrap=True)
    resources = list(next(iter(outcome.sized.values())))
    for resource in resources:
        for at, (policy, by_resource) in enumerate(outcome.sized.items()):
            one = by_resource[resource].score
            is_memory = resource in MEMORY
            table.add_row(
                resource if at == 0 else "",
                policy,
                "–" if one.alloc_over_use is None else f"{one.alloc_over_use:.3f}",
                f"{one.fulfilment_pct:.2f}",
                f"{one.worst_pod_pct:.1f}",
                f"{one.oom:,}" if is_memory else "",
                "" if is_memory else f"{one.throttled:,}",
                f"{one.resizes:,}",
                f"{100 * one.margin:+.1f}",
            )
        table.add_section()
    Console(highlight=False).print(table)
    if outcome.target_pct is not None:
        for resource in resources:
            if (gap := gap_closed(outcome, resource)) is not None:
                say(gap)


def _patch(
    recommended: Sequence[Recommendation], policy: str, container: str, as_json: bool
) -> None:
    """A patch for each pod that can have one; an error if none can."""
    patches: dict[str, tuple[dict[str, Any], list[Recommendation]]] = {}
    refused: ProvisionError | None = None
    for pod, mine in _by_pod(recommended).items():
        try:
            patch = kubernetes_patch(mine, pod, container)
        except ProvisionError as wrong:
            refused = refused or wrong
            continue
        # Requests and limits are one object; written out they are two.
        patches[pod] = jsonlib.loads(jsonlib.dumps(patch)), mine
    if not patches:
        raise refused or ProvisionError("no pod has a window to size; choose a shorter --window")
    if refused is not None:
        say(f"note: some pods have no patch: {refused}")
    if as_json:
        print_json(
            {
                pod: {"patch": patch, "reasons": {one.resource: one.reason for one in mine}}
                for pod, (patch, mine) in patches.items()
            }
        )
        return
    for pod, (patch, mine) in patches.items():
        typer.echo(f"---\n# pod {_one_line(pod)}, by the policy {policy}")
        for one in mine:
            typer.echo(f"# {one.resource} {_amount(one)}:")
            for part in one.reason.split("; "):
                typer.echo(f"#   {_one_line(part)}")
        typer.echo(yaml.safe_dump(patch, sort_keys=False), nl=False)


def _by_pod(recommended: Sequence[Recommendation]) -> dict[str, list[Recommendation]]:
    pods: dict[str, list[Recommendation]] = {}
    for one in recommended:
        pods.setdefault(one.pod, []).append(one)
    return pods


def _amount(one: Recommendation) -> str:
    size, unit = readable_unit(one.unit, one.amount)
    return f"{one.amount / size:.4g} {unit}".rstrip()


def _one_line(text: str) -> str:
    return " ".join(text.split())
