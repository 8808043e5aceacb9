"""The store of profiles: what was added is there, also after a crash in the middle of a line."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from presage.model.errors import UserError
from presage.telemetry.store import ProfileStore, default_directory
from tests.profiles import PROFILE as SAMPLE

PROFILE = replace(SAMPLE, signature="aa", command=("x",), started_s=1.0)


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "home" / "profiles")


def test_profiles_are_kept_by_signature(store: ProfileStore) -> None:
    others = [replace(PROFILE, started_s=float(i), exit_code=i) for i in range(3)]
    for profile in others:
        store.add(profile)
    path = store.add(replace(PROFILE, signature="bb", started_s=0.5))
    assert ProfileStore(store.directory).history("aa") == others
    assert store.history("none") == []
    assert [p.started_s for p in store.read_all()] == [0.0, 0.5, 1.0, 2.0]
    assert path == store.directory / "bb.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_store_is_empty(store: ProfileStore) -> None:
    assert store.read_all() == []


@pytest.mark.parametrize("cut", [1, 2, 40, 10_000])
def test_a_torn_line_is_left_out_and_spoils_nothing(store: ProfileStore, cut: int) -> None:
    """However much of the last line a crash has cut off, the others stay."""
    first, last = PROFILE, replace(PROFILE, started_s=5.0)
    store.add(first)
    path = store.add(last)
    raw = path.read_bytes()
    one_line = raw.index(b"\n") + 1
    kept = max(one_line, len(raw) - cut)
    path.write_bytes(raw[:kept])
    whole = [first, last] if cut == 1 else [first]  # without its end of line it is still whole
    assert store.history("aa") == whole
    store.add(replace(PROFILE, started_s=9.0))
    assert store.history("aa") == [*whole, replace(PROFILE, started_s=9.0)]


def test_a_line_of_another_format_is_an_error(store: ProfileStore) -> None:
    path = store.add(PROFILE)
    path.write_text(path.read_text() + path.read_text().replace('"format": 1', '"format": 7'))
    with pytest.raises(UserError, match=r"aa\.jsonl line 2: the profile has format 7"):
        store.history("aa")


ADD_MANY = """
import sys
from pathlib import Path
from dataclasses import replace
from presage.telemetry.store import ProfileStore
store = ProfileStore(Path(sys.argv[1]))
(profile,) = store.history("aa")[:1]
sys.stdin.readline()
for _ in range(50):
    store.add(replace(profile, started_s=float(sys.argv[2])))
"""


def test_several_processes_add_at_the_same_time(store: ProfileStore) -> None:
    store.add(PROFILE)
    words = [sys.executable, "-c", ADD_MANY, str(store.directory)]
    workers = [subprocess.Popen([*words, start], stdin=subprocess.PIPE) for start in ("2", "3")]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()  # both go
    assert [worker.wait() for worker in workers] == [0, 0]
    kept = sorted(profile.started_s for profile in store.history("aa"))
    assert kept == [1.0, *[2.0] * 50, *[3.0] * 50]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRESAGE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "profiles"
    monkeypatch.delenv("PRESAGE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".local" / "share" / "presage" / "profiles"


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"cannot be kept in .*: Not a directory; set PRESAGE_HOME"
    ):
        ProfileStore(tmp_path / "file" / "profiles").check()


def test_a_place_without_permission_is_named(
    store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match="permission denied; set PRESAGE_HOME"):
        store.check()
