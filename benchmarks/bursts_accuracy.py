"""How well bursts and steps of distributed trainings are foreseen, for families nobody has seen.

    python -m benchmarks.bursts_accuracy [--data DIR] [--epochs 60] [--only families,transfer]

Parts: `families` (each kind of model by setting, beside the noise of repeats and the best
constant), `transfer` (to other settings, by data and by time), `ablations` (grouping, kind of
network, depth, readout), `steps` (time of a step), `shares` (of a step for which the busiest link
is loaded: by bytes, by talking that computing does not hide, by constants). Families are left out
by turns in five folds (in steps and shares, one after another); what a kind is chosen on are the
other folds. `error` is the mean of |error| over the mean of the truth, NRMSE the root of the mean
square over the same mean. CPU time, on one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.bursts_data import DATA
from presage.foresee.bursts._passes import Form, GnnKind
from presage.foresee.bursts.bundles import chosen_out_of_fold, errors_of, held_out, relative
from presage.foresee.bursts.graphs import GraphInput, graph_input, group_count
from presage.foresee.bursts.models import BurstModel, ModelKind, NetModel, make
from presage.foresee.bursts.rows import (
    MeasuredSetting,
    graphs_of,
    measured_runs,
    noise_of,
    read_runs,
    settings_of,
    step_rows,
)
from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.foresee.bursts.shares import MOST_SHARE
from presage.foresee.bursts.steps import (
    TERMS,
    DistributedSteps,
    MeasuredStep,
    SetupTimes,
    fit_steps,
    left_out,
    terms,
    wire_ms,
)
from presage.foresee.bursts.training import TrainOptions
from presage.learn import Floats, sklearn_ensemble
from presage.learn.evaluate import Indices, grouped_folds
from presage.learn.groups import GroupConformal
from presage.telemetry.bursts import METRICS, RESOURCES, TARGETS

PARTS = ("families", "transfer", "ablations", "steps", "shares")
BASE = "W2/1gbit"
"""Where networks that are transferred come from, and ablations are made."""
_FOLDS = 5


class Bench:
    """The data, and guesses that several parts share."""

    def __init__(self, data: Path, epochs: int) -> None:
        self.data, self.cache = data, data / "graphs"
        self.options = TrainOptions(epochs=epochs)
        self.rows: dict[str, MeasuredSetting] = {}
        self.inputs: dict[str, list[GraphInput]] = {}
        for setting in settings_of(data):
            name = str(setting)
            self.rows[name] = read_runs(data, name)
            self.inputs[name] = self.rows[name].inputs(self.cache)
        self._known: dict[tuple[str, ModelKind], Floats] = {}

    def guess(self, setting: str, kind: ModelKind) -> Floats:
        """Each workload of a setting by a model that saw nothing of its family."""
        if (setting, kind) not in self._known:
            rows = self.rows[setting]
            self._known[setting, kind] = held_out(
                lambda: make(kind, rows.setting, self.options),
                self.inputs[setting],
                rows.labels,
                rows.families,
                rows.step_ms,
            )
        return self._known[setting, kind]


def _by_resource(values: Floats) -> str:
    return " ".join(f"{100 * each:5.0f}" for each in values.reshape(4, 3).mean(1))


def _nrmse(actual: Floats, guess: Floats) -> Floats:
    level = np.maximum(np.abs(actual).mean(0), 1e-9)
    out: Floats = np.sqrt(((guess - actual) ** 2).mean(0)) / level
    return out


def families(bench: Bench, kinds: Sequence[ModelKind], settings: Iterable[str]) -> None:
    """Each kind of model in each of these settings, on families left out."""
    heads = " ".join(f"{name[:5]:>5}" for name in RESOURCES)
    print(
        f"error in %, mean of {', '.join(METRICS)}, by resource: {heads}; then their mean, score"
    )
    for setting in settings:
        rows = bench.rows[setting]
        print(f"{setting}: {len(rows.workloads)} workloads, {len(set(rows.families))} families")
        noise = noise_of(rows)
        if noise is not None:
            print(f"  {'noise':<10} {_by_resource(noise)} {100 * noise.mean():5.0f}")
        guesses = {kind: bench.guess(setting, kind) for kind in kinds}
        for kind, guess in guesses.items():
            off = relative(rows.labels, guess)
            score = errors_of(rows.labels, guess)["score"]
            line = f"  {kind:<10} {_by_resource(off)} {100 * off.mean():5.0f} {score:6.3f}"
            print(line, flush=True)
        said = chosen_out_of_fold(guesses, rows.labels, rows.families)
        off, root = relative(rows.labels, said), _nrmse(rows.labels, said)
        print(f"  {'chosen':<10} {_by_resource(off)} {100 * off.mean():5.0f}")
        print(f"  {'NRMSE':<10} {_by_resource(root)} {100 * root.mean():5.0f}")
        each = ", ".join(f"{n} {100 * v:.0f}" for n, v in zip(TARGETS, off, strict=True))
        print(f"  chosen, each: {each}")
        held = _held(rows, said)
        print(f"  intervals (80 %) hold {100 * held.mean():.0f} %: {_by_resource(held)}")


def _held(rows: MeasuredSetting, guess: Floats) -> Floats:
    """By label, the share of truths within intervals made on the other folds."""
    folds = grouped_folds(rows.families, _FOLDS, 0)
    inside = np.zeros(guess.shape)
    for fold in np.unique(folds):
        here, rest = folds == fold, folds != fold
        names = {"family": np.asarray(rows.families)[rest]}
        for at in range(len(TARGETS)):
            spans = GroupConformal.fit(
                rows.labels[rest, at], guess[rest, at], names, space="log1p"
            )
            low, _, high = spans.interval(guess[here, at]).T
            truth = rows.labels[here, at]
            inside[here, at] = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
    share: Floats = inside.mean(0)
    return share


# -- transfer -------------------------------------------------------------------------------------


def transfer(bench: Bench, targets: Sequence[str]) -> None:
    """A network of one setting goes on in another, against one trained anew there: error on
    families left out by how many workloads it saw, and by how long it trained."""
    base_rows, base_inputs = bench.rows[BASE], bench.inputs[BASE]
    for setting in targets:
        rows, inputs = bench.rows[setting], bench.inputs[setting]
        folds = grouped_folds(rows.families, _FOLDS, 0)
        bases = {}
        for fold in np.unique(folds):
            away = {rows.families[i] for i in np.flatnonzero(folds == fold)}
            kept = [i for i, name in enumerate(base_rows.families) if name not in away]
            net = NetModel(GnnKind.GCN, bench.options)
            bases[fold] = net.fit([base_inputs[i] for i in kept], base_rows.labels[kept])
        print(f"{BASE} → {setting}: error in % (score), CPU s of a training")

        def tried(
            epochs: int,
            share: float,
            moved: bool,
            *,
            bases: dict[int, NetModel] = bases,
            folds: Indices = folds,
            inputs: list[GraphInput] = inputs,
            labels: Floats = rows.labels,
        ) -> str:
            guess, spent = np.empty_like(labels), 0.0
            options = TrainOptions(epochs=epochs)
            for fold, base in bases.items():
                kept, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
                order = np.random.default_rng(int(fold)).permutation(kept)
                some = np.sort(order[: max(6, round(share * len(order)))])
                net = NetModel(GnnKind.GCN, options, base=base if moved else None)
                start = time.process_time()
                net.fit([inputs[i] for i in some], labels[some])
                spent += time.process_time() - start
                guess[test] = net.predict([inputs[i] for i in test])
            off, score = relative(labels, guess).mean(), errors_of(labels, guess)["score"]
            return f"{100 * off:3.0f} ({score:.2f}), {spent / len(bases):4.1f} s"

        whole = bench.options.epochs
        plans = [(whole, share) for share in (0.1, 0.2, 0.4, 1.0)]
        plans += [(whole // part, 1.0) for part in (8, 4, 2)]
        for epochs, share in plans:
            cells = "; ".join(
                f"{name} {tried(epochs, share, moved)}"
                for name, moved in (("transferred", True), ("anew", False))
            )
            print(f"  {100 * share:3.0f} % of the data, {epochs} epochs: {cells}", flush=True)


# -- ablations ------------------------------------------------------------------------------------


def ablations(bench: Bench) -> None:
    """The published network, and one thing changed at a time."""
    rows = bench.rows[BASE]
    graphs = graphs_of(rows.workloads, bench.cache)
    sizes = [int(work["batch"]) for work in rows.workloads]

    def told(groups: Callable[[int], int] | None) -> list[GraphInput]:
        return [graph_input(g, b, groups) for g, b in zip(graphs, sizes, strict=True)]

    def show(name: str, inputs: list[GraphInput], form: Form, kept: Sequence[int]) -> None:
        def start() -> BurstModel:
            return NetModel(GnnKind.GCN, bench.options, form=form)

        began = time.process_time()
        some = [rows.families[i] for i in kept]
        labels = rows.labels[list(kept)]
        guess = held_out(start, [inputs[i] for i in kept], labels, some)
        off, score = relative(labels, guess).mean(), errors_of(labels, guess)["score"]
        spent = time.process_time() - began
        print(f"  {name:<34} {100 * off:4.0f} {score:6.3f} {spent:5.0f} s", flush=True)

    whole = range(len(graphs))
    uniform = round(float(np.mean([group_count(len(g)) for g in graphs])))
    plain = told(None)
    print(f"ablations in {BASE}, gcn, families left out: error in %, score, CPU of five trainings")
    show("as published", plain, Form(), whole)
    show(f"uniform grouping ({uniform})", told(lambda nodes: uniform), Form(), whole)
    for depth in (2, 4):
        show(f"K = {depth} layers, not N // 2", plain, Form(depth=depth), whole)
    show("Set2Set of 3 rounds, not N", plain, Form(rounds=3), whole)
    show("mean and most, not Set2Set", plain, Form(attentive=False), whole)
    small = [at for at, graph in enumerate(graphs) if len(graph) <= _UNGROUPED]
    if len({rows.families[at] for at in small}) >= _FOLDS:
        print(f"  of {len(small)} workloads with at most {_UNGROUPED} operators:")
        show("as published", plain, Form(), small)
        show("no grouping, four layers and rounds", told(lambda nodes: nodes), _SHALLOW, small)
        show("proportional, four layers and rounds", plain, _SHALLOW, small)


_UNGROUPED = 200
"""More nodes than that take too long without groups."""
_SHALLOW = Form(depth=4, rounds=4)


# -- steps ----------------------------------------------------------------------------------------


def steps(bench: Bench) -> None:
    """The time of a step, on families and on settings left out."""
    rows = step_rows(bench.data, bench.cache)
    truth = np.array([row.step_ms for row in rows])
    settings = np.array([str(row.setting) for row in rows])
    names = [row.family for row in rows]
    told = _computing(bench, rows)
    guesses = {
        "computing as measured": left_out(rows, names),
        "computing foreseen": _with_computing(rows, names, told),
        "setting left out": left_out(rows, settings.tolist()),
        "boosting by setting": _boosted(bench, rows),
    }
    print(f"step time of {len(rows)} workloads in settings: median error in % (mean)")
    for name, guess in guesses.items():
        off = np.abs(guess / truth - 1)
        print(f"  {name:<24} {100 * np.median(off):3.0f} ({100 * off.mean():.0f})")
        for setting in dict.fromkeys(settings.tolist()):
            each = off[settings == setting]
            print(f"    {setting:<18} {100 * np.median(each):3.0f} ({100 * each.mean():.0f})")
    weights = DistributedSteps.fit(rows)
    print(f"  weights: {weights.weights.round(2).tolist()}")
    _gains(rows, guesses)


def _gains(rows: list[MeasuredStep], guesses: dict[str, Floats]) -> None:
    """Throughput of four workers over that of two, as measured and as foreseen."""
    place = {(row.workload, str(row.setting)): at for at, row in enumerate(rows)}
    pairs = [
        (place[work, "W2/1gbit"], at)
        for (work, setting), at in place.items()
        if setting == "W4/1gbit" and (work, "W2/1gbit") in place
    ]
    if not pairs:
        return
    true = np.array([2 * rows[two].step_ms / rows[four].step_ms for two, four in pairs])
    for name, guess in guesses.items():
        said = np.array([2 * guess[two] / guess[four] for two, four in pairs])
        off = np.abs(said / true - 1)
        error = 100 * np.median(off)
        print(f"  throughput W4 ÷ W2, {name}: {np.median(said):.2f}, error {error:.0f} %")
    print(f"  measured: {np.median(true):.2f} on one core that all share, {len(pairs)} workloads")


# -- shares of links ------------------------------------------------------------------------------


def shares(bench: Bench) -> None:
    """For how much of a step the busiest link is loaded, on families and on settings left out."""
    rows = step_rows(bench.data, bench.cache)
    loaded = _link_loads(bench.data)
    truth = np.array([loaded[row.workload, str(row.setting)] for row in rows])
    wire = np.array([wire_ms(row.work.slopes, row.setting) for row in rows])
    names, settings = [row.family for row in rows], [str(row.setting) for row in rows]
    print(f"share of a step on the busiest link, {len(rows)} workloads in settings: mean |error|")
    for kind, groups in (("family", names), ("setting", settings)):
        step = left_out(rows, groups)
        alone = np.array([row.work.compute_ms for row in rows])
        turns = _turns(rows, groups)
        guesses = {
            "bytes ÷ link ÷ step": np.minimum(wire / step, MOST_SHARE),
            "talking not hidden ÷ step": np.clip(1 - turns / step, 0, 1),
            "step − computing, ÷ step": np.clip(1 - alone / step, 0, 1),
            "constant": _constant(truth, groups, [""] * len(rows)),
        }
        if kind == "family":
            guesses["constant by setting"] = _constant(truth, groups, settings)
        print(f"  {kind} left out; then by setting: {', '.join(dict.fromkeys(settings))}")
        for name, guess in guesses.items():
            off, each = np.abs(guess - truth), np.array(settings)
            cells = " ".join(f"{off[each == s].mean():.3f}" for s in dict.fromkeys(settings))
            print(f"    {name:<26} {off.mean():.3f} bias {np.mean(guess - truth):+.3f}: {cells}")
        _share_intervals(rows, groups, kind, truth, wire)


def _link_loads(data: Path) -> dict[tuple[str, str], float]:
    """Of each workload in each setting, the mean load of the task whose link has most of it."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in measured_runs(data):
        rate = NETWORKS[Setting.parse(run["setting"]).network]
        if rate is None:
            continue
        loads = [
            height * busy / max(busy + idle, 1e-9)
            for task in run["tasks"].values()
            for _, height, busy, idle, _ in (task["sent"], task["received"])
        ]
        place = _name(run["workload"]), run["setting"]
        found.setdefault(place, []).append(max(loads) * 8 * 2**20 / rate)
    return {place: float(np.mean(loads)) for place, loads in found.items()}


def _turns(rows: list[MeasuredStep], groups: Sequence[str]) -> Floats:
    """What of a step is computing, by a model that saw nothing of the group."""
    out = np.empty(len(rows))
    for group in set(groups):
        kept = [row for row, name in zip(rows, groups, strict=True) if name != group]
        weight = DistributedSteps.fit(kept).weights[TERMS.index("turns")]
        for at in [at for at, name in enumerate(groups) if name == group]:
            row = rows[at]
            out[at] = weight * terms(row.work, row.setting, row.cores)[TERMS.index("turns")]
    return out


def _constant(truth: Floats, groups: Sequence[str], within: Sequence[str]) -> Floats:
    """The median of the others that are alike."""
    apart, alike = np.array(groups), np.array(within)
    return np.array(
        [
            np.median(truth[(apart != group) & (alike == like)])
            for group, like in zip(groups, within, strict=True)
        ]
    )


def _share_intervals(
    rows: list[MeasuredStep], groups: Sequence[str], kind: str, truth: Floats, wire: Floats
) -> None:
    """How many shares are within intervals that were made without their group."""
    unseen = ["family"] if kind == "family" else ["family", "setting"]
    inside, width = np.zeros(len(rows), bool), np.zeros(len(rows))
    step, away = left_out(rows, groups), np.array(groups)
    for group in set(groups):
        here = away == group
        model = fit_steps([row for row, gone in zip(rows, here, strict=True) if not gone], "")
        assert model.spread is not None
        low, _, high = model.spread.interval(step[here], unseen=unseen).T
        least, most = (np.minimum(wire[here] / each, MOST_SHARE) for each in (high, low))
        inside[here] = (least <= truth[here]) & (truth[here] <= most)
        width[here] = most - least
    each = np.array([str(row.setting) for row in rows])
    cells = ", ".join(f"{s} {100 * inside[each == s].mean():.0f}" for s in dict.fromkeys(each))
    print(
        f"    intervals (80 %) hold {100 * inside.mean():.0f} %, {width.mean():.2f} wide: {cells}"
    )


def _computing(bench: Bench, rows: list[MeasuredStep]) -> dict[str, Floats]:
    """What a worker computes, by families left out: products, bytes and operators, no weight
    below zero."""
    works = {}
    for each in bench.rows.values():
        for work, told in zip(each.workloads, bench.inputs[str(each.setting)], strict=True):
            works[_name(work)] = told.summary
    return {row.workload: works[row.workload] for row in rows}


def _name(work: dict[str, object]) -> str:
    return json.dumps(work, sort_keys=True)


def _with_computing(rows: list[MeasuredStep], names: list[str], told: dict[str, Floats]) -> Floats:
    """Computing by boosting on sums of the graph, families left out, then a step from it."""
    works = {row.workload: (row.work.compute_ms, row.family) for row in rows}
    order = list(works)
    x = np.stack([told[name] for name in order])
    y = np.log([works[name][0] for name in order])
    found = dict(zip(order, np.exp(_boost(x, y, [works[n][1] for n in order])), strict=True))
    guess = np.empty(len(rows))
    for family in set(names):
        model = DistributedSteps.fit([row for row in rows if row.family != family])
        for at in [i for i, name in enumerate(names) if name == family]:
            row = rows[at]
            work = SetupTimes(found[row.workload], row.work.slopes)
            guess[at] = model.step_ms(work, row.setting, row.cores)
    return guess


def _boosted(bench: Bench, rows: list[MeasuredStep]) -> Floats:
    """A step by boosting alone, a model for each setting."""
    told = _computing(bench, rows)
    guess = np.empty(len(rows))
    for setting in {str(row.setting) for row in rows}:
        here = [at for at, row in enumerate(rows) if str(row.setting) == setting]
        x = np.stack([told[rows[at].workload] for at in here])
        y = np.log([rows[at].step_ms for at in here])
        guess[here] = np.exp(_boost(x, y, [rows[at].family for at in here]))
    return guess


def _boost(x: Floats, y: Floats, names: Sequence[str]) -> Floats:
    ensemble = sklearn_ensemble("boosting")
    folds, out = grouped_folds(np.asarray(names), _FOLDS, 0), np.empty(len(y))
    for fold in np.unique(folds):
        model = ensemble.GradientBoostingRegressor(
            n_estimators=150, max_depth=3, learning_rate=0.05, subsample=0.7, random_state=0
        )
        out[folds == fold] = model.fit(x[folds != fold], y[folds != fold]).predict(
            x[folds == fold]
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description="How well bursts are foreseen.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--settings", default="", help="of families; all unless given")
    parser.add_argument("--kinds", default=",".join(ModelKind))
    parser.add_argument("--to", default="P2W2/1gbit,W2/100mbit", help="of transfers")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    bench = Bench(options.data, options.epochs)
    wanted = options.only.split(",")
    if "steps" in wanted:
        steps(bench)
    if "shares" in wanted:
        shares(bench)
    if "families" in wanted:
        kinds = [ModelKind(name) for name in options.kinds.split(",")]
        families(bench, kinds, options.settings.split(",") if options.settings else bench.rows)
    if "transfer" in wanted:
        transfer(bench, options.to.split(","))
    if "ablations" in wanted:
        ablations(bench)


if __name__ == "__main__":
    main()
