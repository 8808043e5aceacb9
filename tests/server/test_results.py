"""Results over HTTP, from Python and from the command line."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest

import presage
from presage.model.answers import JobStatus
from presage.model.errors import ApiError
from tests.server.kit import PATIENCE_S, Done, Server, eventually

_MAKE = """
import os, pathlib
pathlib.Path("model.pt").write_bytes(bytes(range(256)) * 1000)
pathlib.Path("out").mkdir()
pathlib.Path("out/r\u00e4ume.csv").write_text("a,b")
os.symlink("/etc/passwd", pathlib.Path(os.environ["PRESAGE_RESULT_DIR"], "way-out"))
raise SystemExit(3)
"""
_SIZE = 256_003


@pytest.fixture(scope="module")
def made(server: Server) -> str:
    """A job that failed and left something."""
    job = server.submit(["python", "-c", _MAKE])
    assert server.client().job(job).wait(PATIENCE_S).status == "FAILED"
    return job


def test_the_end_says_how_many_files_how_large_and_where(server: Server, made: str) -> None:
    body = server.job(made)
    assert body["results"] == {"files": 2, "bytes": _SIZE, "left_out": 0, "url": None}
    assert body["reason"]["text"].endswith("; 2 result files (250 KiB)")
    status = server.presage("status", made)
    assert f"2 files, 250 KiB: presage results {made}" in " ".join(status.out.split())
    waited = server.presage("wait", made)
    assert f"2 files, 250 KiB: presage results {made}" in waited.err


def test_they_are_listed(server: Server, made: str) -> None:
    page = server.client().results(made)
    assert [(file.path, file.bytes) for file in page.files] == [
        ("model.pt", 256_000),
        ("out/räume.csv", 3),
    ]
    assert (page.count, page.bytes) == (2, _SIZE)
    some = server.client().job(made).results("out")
    assert [file.path for file in some] == ["out/räume.csv"]
    first = server.http.get(f"/api/v1/jobs/{made}/results", params={"limit": 1}).json()
    assert (first["next"], len(first["files"]), first["count"]) == ("model.pt", 1, 2)


def test_one_file_is_sent_whole_or_in_part(server: Server, made: str) -> None:
    place, content = f"/api/v1/jobs/{made}/results/model.pt", bytes(range(256)) * 1000
    whole = server.http.get(place)
    assert whole.content == content
    assert whole.headers["content-length"] == "256000"
    for asked, part in (
        ("bytes=10-19", content[10:20]),
        ("bytes=255990-", content[-10:]),
        ("bytes=-5", content[-5:]),
    ):
        answer = server.http.get(place, headers={"Range": asked})
        assert (answer.status_code, answer.content) == (206, part), asked
    assert answer.headers["content-range"] == "bytes 255995-255999/256000"
    beyond = server.http.get(place, headers={"Range": "bytes=256000-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */256000")
    stale = {"Range": "bytes=5-", "If-Range": '"another"'}
    assert server.http.get(place, headers=stale).status_code == 200


@pytest.mark.parametrize("path", ["way-out", "../job.json", "out/../../job.json", "out", "none"])
def test_nothing_leads_out(server: Server, made: str, path: str) -> None:
    raw = path.replace("/", "%2F").replace(".", "%2E")
    answer = server.http.get(f"/api/v1/jobs/{made}/results/{raw}")
    assert answer.status_code == 404, answer.text
    assert "root:" not in answer.text


def test_all_of_it_as_an_archive(server: Server, made: str) -> None:
    tar = server.http.get(f"/api/v1/jobs/{made}/results.tar").content
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        sizes = {member.name: member.size for member in archive}
        file = archive.extractfile("model.pt")
        assert file is not None
        assert file.read() == bytes(range(256)) * 1000
    assert sizes == {"model.pt": 256_000, "out/räume.csv": 3}
    packed = server.http.get(f"/api/v1/jobs/{made}/results.zip", params={"path": "out"}).content
    with zipfile.ZipFile(io.BytesIO(packed)) as zipped:
        assert zipped.testzip() is None
        assert zipped.namelist() == ["out/räume.csv"]


def test_they_are_brought_here(server: Server, made: str, tmp_path: Path) -> None:
    done = server.presage("results", made, "--get", str(tmp_path / "here"), "--json")
    assert (done.json["count"], done.json["brought"]) == (2, 2)
    assert (tmp_path / "here" / "out" / "räume.csv").read_text() == "a,b"
    again = server.presage("results", made, "--get", str(tmp_path / "here"))
    assert again.out == f"2 files, 250 KiB in {tmp_path / 'here'}\n"
    listed = server.presage("results", made)
    assert [line.split()[-1] for line in listed.out.splitlines()] == ["model.pt", "out/räume.csv"]
    assert "presage results" in listed.err
    _refused(server.presage("results", made, "no-such"), "has no result no-such")
    _refused(server.presage("results", "nobody"), "there is no job nobody")


def _refused(done: Done, words: str) -> None:
    assert done.code != 0
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_an_interrupted_download_continues(
    server: Server, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    real = httpx.Client.stream

    def stream(self: httpx.Client, method: str, url: str, **rest: object) -> object:
        headers = rest.get("headers") or {}
        assert isinstance(headers, dict)
        asked.append(headers.get("Range"))
        return real(self, method, url, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx.Client, "stream", stream)
    job = server.client().job(made)

    def gives_up(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.download(tmp_path, "model.pt", told=gives_up)
    assert not (tmp_path / "model.pt").exists()  # never half a file under its name
    have = (tmp_path / ".model.pt.presage-part").stat().st_size
    job.download(tmp_path, "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == bytes(range(256)) * 1000
    assert have
    assert asked == [None, f"bytes={have}-"]
    job.download(tmp_path, "model.pt")
    assert len(asked) == 2  # it is here
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt"]


def test_a_job_without_results_says_so(server: Server) -> None:
    job = server.submit("true")
    assert server.client().job(job).wait(PATIENCE_S).status == "COMPLETED"
    assert "results" not in server.job(job)
    assert server.client().results(job).files == ()
    with pytest.raises(ApiError):
        server.client().results("nobody")


def test_what_is_sent_is_said_and_secrets_stay_here(server: Server, tmp_path: Path) -> None:
    (tmp_path / "presage.yaml").write_text("name: sender\ncommand: ls -a\n")
    (tmp_path / ".env").write_text("TOKEN=1")
    (tmp_path / "run.log").write_text("x")
    (tmp_path / ".gitignore").write_text("*.log\n")
    lint = server.presage("lint", "presage.yaml", cwd=tmp_path)
    assert "it sends 2 files, 34 B, the largest presage.yaml 28 B; 1 path ignored" in lint.err
    assert "not sent, since it may hold secrets: .env" in lint.err
    dry = server.presage("submit", "presage.yaml", "--dry-run", "--json", cwd=tmp_path)
    assert dry.json["sends"]["withheld"] == [".env"]
    sent = server.presage("submit", "presage.yaml", "--include", ".env", "--json", cwd=tmp_path)
    job = server.client().job(sent.json["id"])
    assert job.wait(PATIENCE_S).status == "COMPLETED"
    assert list(job.logs()) == [".", "..", ".env", ".gitignore", "presage.yaml"]


def test_what_an_old_server_answers_is_understood(server: Server, made: str) -> None:
    body = {**server.job(made)}
    del body["results"]
    from presage.client._answers import value_of

    assert value_of(JobStatus, json.loads(json.dumps(body))).results is None
    assert presage.Client(server.url).job(made).info.results is not None


def test_jobs_that_are_over_are_removed(server: Server, made: str) -> None:
    done, runs = server.submit("echo hi"), server.submit("sleep 600", name="busy")
    assert server.client().job(done).wait(PATIENCE_S).status == "COMPLETED"
    _refused(server.presage("rm", runs, "--yes"), "is not over")
    _refused(server.presage("rm", done), "this would remove 1 job")
    _refused(server.presage("rm"), "name jobs, or give --older-than 30d")
    dry = server.presage("rm", "--older-than", "0s", "--dry-run", "--json")
    assert {done, made} <= {job["id"] for job in dry.json["removed"]}
    assert server.client().job(done).info.removed_at is None
    gone = server.presage("rm", done, "--yes")
    assert gone.out.startswith(f"{done} COMPLETED ")
    assert done not in [job.id for job in server.client().jobs()]
    assert server.client().job(done).info.removed_at is not None
    assert "removed" in server.presage("status", done).out
    assert list(server.client().job(done).logs()) == []
    assert not (server.data / "jobs" / done).exists()
    assert server.presage("rm", done, "--yes").err == "nothing to remove\n"
    server.client().job(runs).stop()


def test_a_server_removes_what_it_does_not_keep(server: Server, made: str) -> None:
    server.stop()
    server._options = (*server._options, "--keep-results", "0s")
    server.start()
    eventually(lambda: "removed 250 KiB of results: 1 job" in server.log())
    assert "results" not in server.job(made)
    assert "were removed on" in server.presage("results", made).err
    entries = server.http.get("/api/v1/audit").json()["entries"]
    assert [entry["who"] for entry in entries if entry["what"] == "retention"] == ["presage"]
