"""Which files of a work folder are sent, and which are held back."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from presage.client import pack_folder, survey_folder
from presage.layout import Layout
from presage.model.errors import UserError


def _make(folder: Path, *paths: str, **texts: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("x")
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def _sent(folder: Path, *include: str) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(pack_folder(folder, include))) as tar:
        return [member.name for member in tar if member.isfile()]


def test_what_git_ignores_is_not_sent(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    job = tmp_path / "jobs" / "one"
    _make(job, "train.py", "data/big.bin", "keep.log", "a.log", "sub/b.tmp", "sub/c.tmp")
    (tmp_path / ".gitignore").write_text("*.log\n/jobs/one/data/\n")
    (job / ".gitignore").write_text("!keep.log\n")
    (job / "sub" / ".gitignore").write_text("*.tmp\n!c.tmp\n")
    listed = subprocess.run(
        ["git", "-C", str(job), "ls-files", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert _sent(job) == sorted(listed.stdout.split())  # git itself says so
    assert "data/big.bin" not in _sent(job)
    assert "keep.log" in _sent(job)


def test_an_ignore_file_of_ones_own_goes_before_that_of_git(tmp_path: Path) -> None:
    _make(tmp_path, "train.py", "weights.bin", "notes.md", "data/a", "data/b")
    (tmp_path / ".gitignore").write_text("*.bin\ndata/\n")
    (tmp_path / ".presageignore").write_text("*.md\n!weights.bin\n!data/a\n")
    assert _sent(tmp_path) == [
        ".gitignore",
        ".presageignore",
        "data/a",
        "train.py",
        "weights.bin",
    ]


def test_secrets_are_held_back_until_somebody_asks_for_them(tmp_path: Path) -> None:
    secret = (".env", ".env.local", "certs/a.pem", "deep/id_rsa", ".netrc", ".aws/credentials")
    _make(tmp_path, *secret, "train.py", ".env.example")
    assert _sent(tmp_path) == [".env.example", "train.py"]
    survey = survey_folder(tmp_path)
    assert survey.withheld == tuple(sorted(secret))
    assert (survey.files, survey.bytes) == (2, 2)
    assert survey.warning.startswith("not sent, since it may hold secrets: .aws/credentials, .env")
    assert "\n" not in survey.warning
    assert _sent(tmp_path, ".env", "certs/") == [".env", ".env.example", "certs/a.pem", "train.py"]
    (tmp_path / ".presageignore").write_text("!id_rsa\n")
    assert _sent(tmp_path) == [".env.example", ".presageignore", "deep/id_rsa", "train.py"]


def test_what_would_be_sent_in_one_line(tmp_path: Path) -> None:
    _make(tmp_path, "train.py", ".venv/lib", "__pycache__/x.pyc", "old.log")
    (tmp_path / "model.bin").write_bytes(bytes(3000))
    (tmp_path / ".gitignore").write_text("*.log\n")
    survey = survey_folder(tmp_path)
    assert survey.text == "3 files, 2.9 KiB, the largest model.bin 2.9 KiB; 1 path ignored"
    assert survey.warning == ""
    assert [path for path, _ in survey.largest] == ["model.bin", ".gitignore", "train.py"]


def test_a_pattern_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--include"):
        pack_folder(tmp_path, ["!"])


def test_a_data_directory_in_the_folder_is_not_sent(tmp_path: Path) -> None:
    """The first tutorial serves from `data` beside the job: nobody's results go along."""
    _make(tmp_path, "train.py")
    layout = Layout(tmp_path / "data")
    layout.prepare()
    layout.proxy_key.write_text("secret")
    layout.database.write_text("the journal")
    assert _sent(tmp_path) == ["train.py"]
    assert not survey_folder(tmp_path).withheld
