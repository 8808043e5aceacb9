"""Data from elsewhere, brought by a real run: HTTP, S3, Git."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from presage import sources
from presage.executors.node.checkout import GitError, check_out
from presage.manifest import advice, parse_manifest
from presage.model import event as ev
from presage.model.cluster import Worker
from presage.model.event import Outcome
from presage.model.job import ReasonCode
from presage.testing.runs import Watcher
from tests.executors.kit import LocalKit

_SHOW = "cat $PRESAGE_DATA_DIR/set/rows; cp $PRESAGE_DATA_DIR/set/rows out"


def _run(kit: LocalKit, watch: Watcher, **manifest: Any) -> Any:
    kit.write_job("far", **{"command": _SHOW, **manifest})
    watch.executor.launch(ev.Launch("far", 1, (Worker(0, 0, "n0"),)))
    watch.until(lambda: watch.of("far", ev.JobExited) or watch.of("far", ev.LaunchFailed), "over")
    (end,) = watch.of("far", ev.JobExited) or watch.of("far", ev.LaunchFailed)
    watch.assert_nothing_left("far")
    return end


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A web server with a set of rows."""
    home = tmp_path_factory.mktemp("web")
    (home / "rows").write_text("1 2 3")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(home))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_file_of_a_web_server(kit: LocalKit, watch: Watcher, web: str) -> None:
    command = "cat $PRESAGE_DATA_DIR/rows"
    end = _run(kit, watch, command=command, data={"rows": f"{web}/rows"})
    assert end.outcome is Outcome.SUCCEEDED, end
    assert kit.log("far", 1, "worker-0") == "1 2 3"


def test_a_file_that_a_web_server_does_not_have_is_refused_for_good(
    kit: LocalKit, watch: Watcher, web: str
) -> None:
    end = _run(kit, watch, data={"set": f"{web}/none"})
    assert isinstance(end, ev.LaunchFailed)
    assert end.reason.code is ReasonCode.LAUNCH_FAILED
    assert f"data 'set' from {web}/none" in end.reason.text


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 server."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_data_and_results_in_s3_with_credentials_from_secrets(
    kit: LocalKit, watch: Watcher, s3: str
) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=s3,
        region_name="us-east-1",
        aws_access_key_id="ada",
        aws_secret_access_key="lovelace",
    )
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="sets/one/rows", Body=b"4 5 6")
    (kit.data / "secrets").mkdir(parents=True)
    (kit.data / "secrets" / "key").write_text("ada\n")
    (kit.data / "secrets" / "word").write_text("lovelace\n")
    end = _run(
        kit,
        watch,
        data={"set": "s3://bucket/sets/one"},
        results="s3://bucket/made",
        env={"AWS_ENDPOINT_URL": s3},
        secrets={"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word"},
    )
    assert end.outcome is Outcome.SUCCEEDED, end
    assert kit.log("far", 1, "worker-0") == "4 5 6"
    assert client.get_object(Bucket="bucket", Key="made/out")["Body"].read() == b"4 5 6"
    client.close()


def _git(*arguments: str, cwd: Path) -> str:
    env = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        **{
            f"GIT_{who}_{what}": "a@b"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A bare repository with two commits, and the first of them."""
    home = tmp_path_factory.mktemp("git")
    work, bare = home / "work", home / "team.git"
    work.mkdir()
    _git("init", "-q", "-b", "main", cwd=work)
    (work / "train.py").write_text("print('first')\nopen('model.pt', 'w').write('w')\n")
    _git("add", ".", cwd=work)
    _git("commit", "-q", "-m", "one", cwd=work)
    first = _git("rev-parse", "HEAD", cwd=work)
    _git("tag", "v1", cwd=work)
    (work / "train.py").write_text("print('second')\n")
    _git("commit", "-q", "-a", "-m", "two", cwd=work)
    _git("clone", "-q", "--bare", str(work), str(bare), cwd=home)
    return bare, first


def test_a_repository_is_the_work_folder(
    kit: LocalKit, watch: Watcher, repository: tuple[Path, str]
) -> None:
    git = {"url": str(repository[0]), "ref": "v1"}
    end = _run(kit, watch, command="python train.py", git=git)
    assert end.outcome is Outcome.SUCCEEDED, end
    assert kit.log("far", 1, "worker-0") == "first\n"
    results = kit.data / "jobs" / "far" / "results"
    assert [path.name for path in results.rglob("*")] == ["model.pt"]


@pytest.mark.parametrize("ref", ["HEAD", "main", "the first commit"])
def test_a_branch_or_a_commit_is_checked_out(
    tmp_path: Path, repository: tuple[Path, str], ref: str
) -> None:
    bare, first = repository
    wanted = first if ref == "the first commit" else ref
    commit = check_out(f"file://{bare}", wanted, tmp_path, os.environ)
    assert (commit == first) is (wanted == first)
    says = "first" if commit == first else "second"
    assert says in (tmp_path / "train.py").read_text()


def test_what_a_repository_does_not_have_is_said(
    kit: LocalKit, watch: Watcher, repository: tuple[Path, str]
) -> None:
    end = _run(kit, watch, command="python train.py", git={"url": str(repository[0]), "ref": "v9"})
    assert isinstance(end, ev.LaunchFailed)
    assert "there is no branch, tag or commit 'v9' in it" in end.reason.text


def test_a_repository_runs_no_program_of_this_machine(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(GitError, match="not allowed"):
        check_out(f"ext::sh -c touch% {marker}", "main", work, os.environ)
    assert not marker.exists()


def test_lint_and_the_launch_say_the_same_words_about_a_missing_extra(
    kit: LocalKit, watch: Watcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    url = "gs://bucket/set"
    words = f"{url} needs gcsfs, which is not installed here: pip install 'presage[gcs]'"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gcsfs" else 1)
    assert sources.missing_for(url) == words
    manifest = parse_manifest(f"{{name: far, command: 'true', data: {{set: '{url}'}}}}")
    assert words in advice(manifest)
    monkeypatch.undo()
    if sources.missing_for(url):  # as it is where the extra is not installed
        end = _run(kit, watch, data={"set": url})
        assert end.reason.text == words
        assert end.reason.code is ReasonCode.LAUNCH_FAILED
