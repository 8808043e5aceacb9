"""The file that `presage serve --config` reads: documented, checked, and shown without secrets."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from presage.cli.serve import serve
from presage.control.site import config
from presage.control.site.config import OPTIONS, ServerFile, effective, read_server_file, shown
from presage.control.site.server_log import log_to
from presage.model.errors import ConfigError
from tests.server.kit import Server, Zygote, eventually


def keys(
    model: type[BaseModel] = ServerFile, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Every key of the file; what is in policies and queues is in docs/reference/policies.md."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys(inner, (*path, name))
        else:
            yield (*path, name)


def test_every_key_is_documented(root: Path) -> None:
    text = (root / "docs" / "reference" / "server-config.md").read_text(encoding="utf-8")
    missing = [".".join(key) for key in keys() if f"| `{'.'.join(key)}` |" not in text]
    assert not missing, f"docs/reference/server-config.md lacks {missing}"
    told = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))
    assert told == {".".join(key) for key in keys()}


def test_every_option_is_a_key() -> None:
    options = set(inspect.signature(serve).parameters) - {"config", "print_config"}
    assert options == OPTIONS.keys()
    assert {tuple(option.key.split(".")) for option in OPTIONS.values()} <= set(keys())


def test_options_go_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "presage-server.yaml"
    path.write_text(
        "server: {port: 9000, lease_s: 7}\n"
        "storage: {data: here, db: 'postgresql://me:geheim@db/presage'}\n"
        "executor: {nodes: cluster.yaml, rightsize: true}\n"
        "policies: {mine: {order: sjf}}\n"
        "policy: mine\n"
    )
    (tmp_path / "cluster.yaml").write_text("nodes: [{name: a, gpus: 2}]\n")
    file = read_server_file(path)
    assert file.storage.data == tmp_path / "here"  # seen from the file
    assert file.executor.nodes == str(tmp_path / "cluster.yaml")
    made = effective(file, {"port": 1, "rightsize": False, "host": None, "policy": "sjf"})
    assert (made.server.port, made.server.lease_s, made.server.host) == (1, 7.0, "127.0.0.1")
    assert (made.executor.rightsize, made.policy, made.executor.kind) == (False, "sjf", "local")
    printed = yaml.safe_dump(shown(made))
    assert "geheim" not in printed
    assert "postgresql://me:***@db/presage" in printed
    (tmp_path / "again.yaml").write_text(printed.replace("***", "geheim"))
    assert read_server_file(tmp_path / "again.yaml") == made


def test_a_secret_of_a_section_to_come_is_hidden() -> None:
    assert config._hidden({"a": [SecretStr("geheim")]}) == {"a": ["**********"]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server:\n  prot: 1\n", "line 2: server.prot: unknown key; did you mean 'port'?"),
        ("server:\n  port: 99999\n", "line 2: server.port: input should be less than or equal"),
        ("polcy: fifo\n", "line 1: polcy: unknown key; did you mean 'policy'?"),
        ("server:\n  url: hello\n", "line 2: server.url: write an address such as https://"),
        ("server:\n\n  tls_cert: a.pem\n", "line 3: server.tls_cert: needs tls_key"),
        (
            "executor: {kind: k8s}\n",
            "line 1: executor.kind: input should be 'local', 'ray', 'kubernetes' or 'slurm'",
        ),
        (
            "executor:\n  slurm:\n    nodes: 9..3\n",
            "line 3: executor.slurm.nodes: write a number of nodes such as 4, or a span such as "
            "0..16, the smaller first, not '9..3'",
        ),
        (
            "executor:\n  slurm:\n    idle: soon\n",
            "line 3: executor.slurm.idle: ",
        ),
        ("queues:\n  a:\n    gpu_hours: -1\n", "line 3: queues.a.gpu_hours: input should be"),
        ("policy: fifo\nnetwork: 5gbit\n", "line 2: network: "),
        ("- a\n", "write a mapping"),
    ],
)
def test_mistakes_name_the_line_and_the_fix(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as wrong:
        read_server_file(path)
    assert says in str(wrong.value)
    assert str(wrong.value).startswith(str(path))


def test_pilots_have_bounds(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    for given, least, most in ((4, 4, 4), ("0..16", 0, 16)):
        path.write_text(f"executor: {{kind: slurm, slurm: {{nodes: {given}, idle: 5m}}}}\n")
        setup = read_server_file(path).executor.slurm.setup(tmp_path)
        assert (setup.pilot_nodes, setup.pilot_most, setup.pilot_idle_s) == (least, most, 300.0)


def test_the_command_prints_what_counts(zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("policy: backfill\nqueues: {night: {limit_cpus: 8}}\n")
    done = zygote.run("serve", "--config", str(path), "--print-config", "--port", "0")
    made = yaml.safe_load(done.out)
    assert (done.code, done.err, made["policy"], made["server"]["port"]) == (0, "", "backfill", 0)
    assert made["queues"]["night"]["limit_cpus"] == 8.0
    wrong = zygote.run("serve", "--print-config", "--policy", "nope")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)


@pytest.mark.engine
@pytest.mark.slow
def test_a_server_runs_by_its_file(serve: Callable[..., Server], tmp_path: Path) -> None:
    path, log = tmp_path / "s.yaml", tmp_path / "logs" / "server.log"
    path.write_text(
        "logging: {file: logs/server.log, max_mib: 0.001, keep: 2, job_max_mib: 0.0625}\n"
        "executor: {nodes: 1x4}\n"
        "network: 10gbit\n"
        "policy: backfill\n"
        "queues: {night: {limit_gpus: 1}}\n"
    )
    server = serve("--config", str(path), nodes=None).start()
    assert "deciding as" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert "deciding as" not in server.log()
    queues = {queue["name"]: queue for queue in server.http.get("/api/v1/queues").json()["queues"]}
    assert queues["night"]["limit_gpus"] == 1.0
    loud = server.submit("yes | head -c 300000; sleep 600")
    server.wait(loud, "PROCESSING")

    def cut() -> bool:
        return "[presage: the log passed 65536 bytes; what came before was cut]" in server.logs(
            loud
        )

    talks = server.job(
        server.submit(workers=2, resources={"gpus": 1}, model={"target": "zoo:mlp", "batch": 8})
    )["estimates"]
    assert "W2/10gbit" in talks["link_share"]["source"]
    assert 0 < talks["link_share"]["p50"] < 1
    assert "of a step if on several nodes" in talks["text"]
    eventually(cut)
    server.stop_everything()


def test_a_log_is_rotated(tmp_path: Path) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers.clear()
    file = tmp_path / "server.log"
    try:
        log_to(file, max_bytes=500, keep=2)
        for number in range(100):
            logging.getLogger("presage.test").info("line %d", number)
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
        root.setLevel(level)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["server.log", "server.log.1", "server.log.2"]
    assert all(path.stat().st_size <= 500 for path in tmp_path.iterdir())
    assert "line 99" in file.read_text()
