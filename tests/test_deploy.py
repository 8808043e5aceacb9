"""What is in deploy/ fits the program: checked by the tools that will read it, and by a server."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from presage.control.site.config import read_server_file
from tests.server.kit import Server, Zygote, eventually

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
BOARD = json.loads((DEPLOY / "grafana" / "presage.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
METRIC = re.compile(r"\bpresage_\w+")


def board_queries() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def alert_queries() -> list[str]:
    return [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]


def test_the_unit_leaves_jobs_alone(program: Callable[..., str], tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "presage.service").read_text()
    assert "\nKillMode=process\n" in text  # docs/adr/0015
    assert "\nSendSIGKILL=no\n" in text
    unit = tmp_path / "presage.service"
    unit.write_text(text.replace("/opt/presage/bin/presage", program("true")))
    argv = [program("systemd-analyze"), "verify", str(unit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_reads_the_configuration_that_is_beside_it() -> None:
    text = (DEPLOY / "systemd" / "presage.service").read_text()
    assert "--config /etc/presage/presage-server.yaml" in text
    file = read_server_file(DEPLOY / "presage-server.yaml")
    assert (str(file.storage.data), file.policy) == ("/var/lib/presage", "backfill")


def test_the_image_has_what_the_server_needs() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (DEPLOY.parent / name).exists(), name
    extras = re.search(r"\.\[([\w,]+)\]", text)
    assert extras is not None
    known = (DEPLOY.parent / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", known, re.MULTILINE), extra
    assert "\nUSER presage\n" in text


@pytest.fixture(scope="module")
def busy(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a job that runs and one that waits."""
    data = tmp_path_factory.mktemp("deploy") / "data"
    server = Server(zygote, data, nodes="1x2").start()
    runs = server.submit("while true; do :; done", resources={"gpus": 2, "cpus": 1})
    server.wait(runs, "PROCESSING")
    server.submit(resources={"gpus": 2})
    eventually(lambda: "presage_worker_cpu_cores" in server.http.get("/metrics").text)
    yield server
    server.stop_everything()
    server.close()


@pytest.mark.engine
@pytest.mark.slow
def test_every_metric_of_the_board_and_the_rules_is_there(busy: Server) -> None:
    told = set(METRIC.findall(busy.http.get("/metrics").text))
    asked = {
        name for query in (*board_queries(), *alert_queries()) for name in METRIC.findall(query)
    }
    assert asked
    assert asked <= told, asked - told


@pytest.mark.engine
@pytest.mark.slow
def test_a_real_prometheus_answers_every_query(
    busy: Server, program: Callable[..., str], tmp_path: Path
) -> None:
    folder = DEPLOY / "prometheus"
    check = [program("promtool"), "check", "config", str(folder / "prometheus.yaml")]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((folder / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "250ms", "evaluation_interval": "250ms"}
    config["rule_files"] = [str(folder / "alerts.yaml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{busy.port}"]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [
        program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yaml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
            for query in board_queries():
                eventually(lambda query=query: answered(http, query))  # type: ignore[misc]
            groups = eventually(lambda: evaluated(http))
        rules = {rule["name"]: rule for rule in groups[0]["rules"]}
        assert len(rules) == len(alert_queries())
        assert {rule["health"] for rule in rules.values()} == {"ok"}
        assert {rule["state"] for rule in rules.values()} <= {"inactive", "pending"}
    finally:
        process.kill()
        process.wait()


def answered(http: httpx.Client, query: str) -> bool:
    """Whether a query has an answer already."""
    try:
        answer = http.get("/api/v1/query", params={"query": query})
    except httpx.TransportError:
        return False
    if answer.status_code == 503:  # it is still starting
        return False
    body = answer.json()
    assert body["status"] == "success", (query, body)
    return bool(body["data"]["result"])


def evaluated(http: httpx.Client) -> list[dict[str, Any]]:
    """The groups of rules, once all were evaluated."""
    groups: list[dict[str, Any]] = http.get("/api/v1/rules").json()["data"]["groups"]
    done = groups and all(rule["health"] != "unknown" for rule in groups[0]["rules"])
    return groups if done else []
