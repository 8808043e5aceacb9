"""`import presage`: what it costs, what it gives, and that commands give the same."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from plotly.graph_objects import Figure
from typer.testing import CliRunner

import presage
from presage.cli.main import app
from presage.client import Client, JobHandle
from presage.foresee.graph.load import load_graph
from presage.model.profile import Distribution
from presage.sim.traces import Trace
from presage.telemetry.store import ProfileStore
from tests.cli.telemetry import made, written
from tests.profiles import PROFILE

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOK = EXAMPLES / "compare_policies.ipynb"
JOBS, CLUSTER, CONFIG = (EXAMPLES / name for name in ("jobs.csv", "cluster.yaml", "policies.yaml"))
HOSTILE = "<script>alert(1)</script>"


class Nobody:
    """A policy that starts no job, and has only what a policy must have."""

    def schedule(self, plan: presage.Plan, predict: presage.Predictor) -> None:
        """Nothing is done."""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path / "home"))


def command(*words: str | Path) -> Any:
    """What a command prints as JSON."""
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


# -- the module itself ----------------------------------------------------------------------------


def imported_by(statement: str) -> set[str]:
    """The modules that a statement imports in a fresh interpreter."""
    script = (
        f"import sys; before = {{*sys.modules}}; {statement}; print(*{{*sys.modules}} - before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_presage_imports_nothing() -> None:
    assert imported_by("import presage") == {"presage"}


def test_a_job_imports_the_standard_library_alone() -> None:
    found = imported_by("from presage import job")
    assert "presage.job" in found
    own = {name for name in found if name.split(".")[0] == "presage"}
    assert own == {"presage", "presage.job"}
    assert not {name.split(".")[0] for name in found - own} - sys.stdlib_module_names


def test_a_name_imports_its_own_parts_only() -> None:
    found = imported_by("from presage import predict")
    assert not found & {"polars", "plotly", "httpx", "presage.sim"}
    found = imported_by("from presage import Client")
    assert not found & {"polars", "plotly", "numpy", "pydantic"}


def test_editors_see_the_names_that_are_there() -> None:
    source = Path(presage.__file__).read_text(encoding="utf-8")
    seen = {
        alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "importlib"
    }
    assert sorted(seen) == sorted(presage.__all__)
    for name, module in seen.items():
        found = getattr(presage, name)
        assert found is getattr(sys.modules[str(module)], name)
    assert {*presage.__all__, "__version__"} <= set(dir(presage))


def test_a_name_that_is_not_there_is_said() -> None:
    with pytest.raises(AttributeError, match="module 'presage' has no attribute 'nothing'"):
        getattr(presage, "nothing")  # noqa: B009  # mypy would refuse presage.nothing


def test_the_reference_names_everything(root: Path) -> None:
    text = (root / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    wanted = {f"`{name}`" for name in presage.__all__}
    wanted |= {
        f"`{name}`" for kind in (Client, JobHandle) for name in vars(kind) if name[0] != "_"
    }
    assert not sorted(name for name in wanted if name not in text)


# -- simulate and compare -------------------------------------------------------------------------


def test_simulate_gives_what_the_command_prints() -> None:
    told = command("simulate", JOBS, "--cluster", CLUSTER, "--policy", "fifo,srtf", "--seed", "3")
    found = presage.compare(JOBS, CLUSTER, ["fifo", "srtf"], seed=3)
    for policy, figures in told["policies"].items():
        mine = found[policy].summary
        assert {**mine, "cpu_s": 0} == {**figures, "cpu_s": 0}
        alone = presage.simulate(JOBS, cluster=CLUSTER, policy=policy, seed=3)
        assert {**alone.summary, "cpu_s": 0} == {**mine, "cpu_s": 0}
    assert found.table["policy"].to_list() == ["fifo", "srtf"]
    assert found.table["avg_jct_s"][1] == found["srtf"].summary["avg_jct_s"]


def test_a_configuration_gives_what_the_command_prints() -> None:
    told = command("simulate", JOBS, "--cluster", CLUSTER, "--config", CONFIG)["policies"]
    assert len(told) == 4
    found = presage.compare(JOBS, CLUSTER, config=CONFIG)
    assert {r.policy: r.summary["avg_jct_s"] for r in found} == {
        name: figures["avg_jct_s"] for name, figures in told.items()
    }
    by_path = presage.compare(JOBS, CLUSTER, CONFIG)
    assert by_path.table.drop("cpu_s").equals(found.table.drop("cpu_s"))


def test_a_trace_is_a_path_a_frame_or_a_trace() -> None:
    read = presage.read_trace(JOBS)
    frame = pl.read_csv(JOBS)
    ends = [
        presage.simulate(given, "4x8", "sjf").jobs["end_s"].to_list()
        for given in (JOBS, str(JOBS), read, read.jobs, frame)
    ]
    assert all(each == ends[0] for each in ends)
    assert presage.read_trace(read) is read
    guessed = presage.simulate(read, "4x8", "sjf", estimates="estimate_s")
    told = command(
        "simulate", JOBS, *["--cluster", "4x8", "--policy", "sjf", "--estimates", "estimate_s"]
    )
    assert guessed.summary["avg_jct_s"] == told["policies"]["sjf"]["avg_jct_s"]


def test_a_cluster_is_text_a_file_or_nodes() -> None:
    cluster = presage.Cluster(CLUSTER)
    assert presage.Cluster(cluster) == cluster
    assert repr(presage.Cluster("2x4")) == "Cluster(2 nodes, 8 GPUs)"
    nodes = [presage.Node(f"n{i}", (presage.Device(),) * 4) for i in range(2)]
    same = [presage.simulate(JOBS, c).makespan_s for c in ("2x4", presage.Cluster("2x4"), nodes)]
    assert len(set(same)) == 1


def test_a_policy_is_a_name_a_configuration_or_an_object() -> None:
    mine = presage.pipeline("fifo", order=lambda job, plan, predict: (-job.seq,))
    config = presage.PolicyConfig(order="sjf")
    found = presage.compare(
        JOBS, "4x8", {"a": "sjf", "b": config, "last first": mine, "d": Nobody()}
    )
    assert [result.policy for result in found] == ["a", "b", "last first", "d"]
    assert found["a"].jobs.equals(found["b"].jobs)
    assert found["last first"].summary["avg_wait_s"] != found["a"].summary["avg_wait_s"]
    assert found["d"].summary["finished"] == 0
    assert found["d"].jobs["reason"].to_list() == ["the policy has not placed it yet"] * len(
        found.trace
    )
    named = presage.compare(JOBS, "4x8", ["fifo", config, Nobody()])
    assert named.table["policy"].to_list() == ["fifo", "sjf", "Nobody"]


def test_make_trace_makes_what_the_command_writes(tmp_path: Path) -> None:
    path = tmp_path / "made.parquet"
    command(
        "trace",
        "make",
        *["--kind", "diurnal", "--jobs", "50", "--seed", "3", "--load", "0.7", "--out"],
        path,
    )
    trace = presage.make_trace("diurnal", 50, load=0.7, seed=3)
    assert presage.read_trace(path).jobs.equals(trace.jobs)


# -- predict --------------------------------------------------------------------------------------

WORDS = ("predict", "zoo:resnet50", "--batch", "64", "--device", "a100-40g,t4")


def test_predict_gives_what_the_command_prints() -> None:
    p = presage.predict("zoo:resnet50", batch=64, gpu=["a100-40g", "t4"])
    assert p.to_dict() == command(*WORDS)
    first = p.gpus["a100-40g"]
    assert p.memory_mib.p10 < p.memory_mib.p50 == first.memory_mib.p50 < p.memory_mib.p90
    assert (p.step_ms, p.gpu_util_pct, p.fits) == (first.step_ms, first.gpu_util_pct, True)
    alone = presage.predict("zoo:resnet50", batch=64, gpu="a100-40g")
    assert alone.gpus == {"a100-40g": first}


def test_what_was_measured_takes_the_place_of_a_guess() -> None:
    seen = replace(
        PROFILE,
        device="NVIDIA A100-PCIE-40GB",
        batch=64,
        graph_signature=load_graph("zoo:resnet50").signature(),
        gpus=1,
        alone=True,
        gpu_memory_mib=Distribution(50_000.0, 50_000.0, 50_000.0, 50_000.0),
        step_ms=Distribution(70.0, 70.0, 80.0, 90.0),
    )
    ProfileStore().add(seen)
    p = presage.predict("zoo:resnet50", batch=64, gpu=["a100-40g", "t4"])
    assert (p.memory_mib.p50, p.step_ms.p50, p.step_ms.p90) == (50_000.0, 70.0, 80.0)
    assert not p.fits, "it was seen to need more than there is"
    assert p.reason.startswith("does not fit")
    assert p.gpus["t4"].memory_mib.p50 < 10_000
    assert p.evidence[0].startswith("history: ")
    assert p.to_dict() == command(*WORDS)


# -- telemetry ------------------------------------------------------------------------------------


def test_rightsize_and_phases_give_what_the_commands_print(tmp_path: Path) -> None:
    table = made()
    csv, bundle = written(table, tmp_path / "pods.csv"), tmp_path / "pods.npz"
    told = command("phases", "fit", csv, "--out", bundle, "--k", "2")
    found = presage.phases(table, k=2)
    assert found.table["cpu_mean"].to_list() == [
        each["use"]["cpu"]["mean"] for each in told["statistics"]
    ]
    again = presage.phases(csv, model=bundle)
    assert again.to_polars().equals(found.to_polars())
    shown = command("phases", "show", bundle, csv)
    labels = [phase for pod in shown.values() for phase in pod]
    assert labels == found.to_polars()["phase"].to_list()
    for words, model in (((), None), (("--bundle", bundle), found.model)):
        sized = command("rightsize", csv, "--window", "5m", *words)
        assert presage.rightsize(table, window="5m", bundle=model).to_json() == sized


# -- in a notebook --------------------------------------------------------------------------------


def results() -> dict[str, Any]:
    """One of each, with names that somebody chose to do harm."""
    jobs = pl.read_csv(JOBS).with_columns(job_id=pl.lit(HOSTILE) + pl.col("job_id"))
    trace = Trace(HOSTILE, HOSTILE, presage.read_trace(jobs).jobs, notes=(HOSTILE,))
    pods = made(2).with_columns(pod=pl.lit(HOSTILE) + pl.col("pod"))
    compared = presage.compare(trace, "4x8", {HOSTILE: "fifo", "sjf": "sjf"})
    return {
        "trace": trace,
        "simulate": compared[HOSTILE],
        "compare": compared,
        "predict": replace(presage.predict("zoo:resnet18", gpu=["t4", "v100-16g"]), name=HOSTILE),
        "rightsize": presage.rightsize(pods, window="5m"),
        "phases": presage.phases(pods, k=2),
    }


def test_results_show_themselves() -> None:
    for name, result in results().items():
        html = result._repr_html_()
        assert "<table" in html, name
        assert "<script" not in html, name
        drawn = result.plot()
        assert isinstance(drawn, Figure), name
        assert drawn.data, name
        assert "<script" not in drawn.to_json(), name
        assert isinstance(result.to_polars(), pl.DataFrame), name
        assert result.to_polars().height, name
        assert len(repr(result)) < 5000, name


def test_every_chart_of_a_simulation_can_be_drawn(tmp_path: Path) -> None:
    compared = presage.compare(JOBS, CLUSTER, ["fifo", "sjf"])
    drawn = [compared.plot(what) for what in ("jct", "wait", "queue", "utilization")]
    drawn.append(compared["sjf"].plot("gantt"))
    assert len({figure.layout.title.text for figure in drawn}) == 5
    compared.write_html(tmp_path / "report.html")
    assert "Policies side by side" in (tmp_path / "report.html").read_text(encoding="utf-8")


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: presage.simulate("gone.csv", "1x1"), "gone.csv does not exist"),
        (lambda: presage.simulate(5, "1x1"), "a trace is a file"),  # type: ignore[arg-type]
        (lambda: presage.simulate(pl.DataFrame({"x": [1]}), "1x1"), "matches no format"),
        (lambda: presage.simulate(JOBS, "1y1"), "1y1"),
        (lambda: presage.simulate(JOBS, 5), "not 5"),  # type: ignore[arg-type]
        (lambda: presage.simulate(JOBS, "1x1", "srtg"), "unknown policy 'srtg'"),
        (lambda: presage.simulate(JOBS, "1x1", Nobody), "the class Nobody is no policy"),  # type: ignore[arg-type]
        (lambda: presage.simulate(JOBS, "1x1", object()), "method schedule"),  # type: ignore[arg-type]
        (lambda: presage.simulate(JOBS, "1x1", CONFIG), "has the policies"),
        (lambda: presage.simulate(JOBS, "1x1", "gone.yaml"), "gone.yaml cannot be read"),
        (lambda: presage.simulate(JOBS, "1x1", Nobody(), placement="spread"), "places by itself"),
        (lambda: presage.simulate(JOBS, "1x1", restart_cost_s=-1.0), "restart cost"),
        (lambda: presage.compare(JOBS, "1x1", []), "no policy is given"),
        (lambda: presage.compare(JOBS, "1x1", ["fifo", "fifo"]), "two policies are called fifo"),
        (lambda: presage.compare(JOBS, "1x1")["sjf"], "no policy 'sjf' was compared"),
        (lambda: presage.simulate(JOBS, CLUSTER).plot("pie"), "there is no chart 'pie'"),
        (lambda: presage.pipeline("fifo", colour=1), "no part colour"),
        (lambda: presage.make_trace("weekly"), "unknown kind"),
        (lambda: presage.predict("zoo:resnet50", gpu="h1000"), "h1000"),
        (lambda: presage.predict("zoo:resnet50", gpu=[]), "no GPU is named"),
        (lambda: presage.predict("zoo:resnet50", batch=0), "1 sample or more"),
        (lambda: presage.predict(object()), "needs its inputs"),
        (lambda: presage.rightsize(7), "telemetry is a file"),  # type: ignore[arg-type]
        (lambda: presage.rightsize(made(), window="soon"), "window: write a time"),
        (lambda: presage.phases(made(), method="tea"), "there is no method 'tea'"),
        (lambda: presage.phases(made(), k=2).plot("nobody"), "no pod 'nobody'"),
        (lambda: presage.submit("gone.yaml"), "gone.yaml"),
        (lambda: Client("http://127.0.0.1:9", patience_s=0).nodes(), "presage serve"),
    ],
)
def test_a_mistake_is_one_line(call: Any, says: str) -> None:
    with pytest.raises(presage.PresageError) as wrong:
        call()
    assert says in str(wrong.value)
    assert "\n" not in str(wrong.value)


# -- the notebook ---------------------------------------------------------------------------------


def executed(home: Path, data: Path) -> Any:
    """The notebook, run in a kernel of its own as a reader would run it."""
    copy = home / "examples" / NOTEBOOK.name
    copy.parent.mkdir()
    shutil.copy(NOTEBOOK, copy)
    own = {"IPYTHONDIR": home, "JUPYTER_RUNTIME_DIR": home, "JUPYTER_CONFIG_DIR": home}
    done = subprocess.run(
        [Path(sys.executable).with_name("jupyter-execute"), "--inplace", copy],
        env={
            **os.environ,
            **{name: str(path) for name, path in own.items()},
            "PRESAGE_DATA": str(data),
            "PLOTLY_RENDERER": "plotly_mimetype",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(copy.read_text(encoding="utf-8"))


def shown(notebook: Any) -> tuple[list[list[str]], Any]:
    """The cells of the table, without how long a simulation took, and the data of the figure."""
    outputs = [out for cell in notebook["cells"] for out in cell.get("outputs", ())]
    table, drawn = (out["data"] for out in outputs)
    rows = re.findall(r"<tr>(.*?)</tr>", "".join(table["text/html"]))
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)[:-1] for row in rows]
    return cells, drawn["application/vnd.plotly.v1+json"]["data"]


def test_the_notebook_says_all_in_fifteen_lines() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


@pytest.mark.slow
def test_the_notebook_shows_what_it_gives(tmp_path: Path, shared_data: Path) -> None:
    found = shown(executed(tmp_path, shared_data))
    assert found == shown(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    rows, drawn = found
    assert [row[0] for row in rows[1:]] == [trace["name"] for trace in drawn]
    assert {row[1] for row in rows[1:]} == {"2,650"}


@pytest.mark.slow
def test_the_notebook_works_without_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code without a kernel: the other test has one."""
    monkeypatch.setenv("PRESAGE_DATA", str(tmp_path))
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]).replace("2650", "500"), names)
    compared = names["compared"]
    assert compared.table.height == len(compared.plot().data) == 6
