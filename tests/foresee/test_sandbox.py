"""The sandbox against code that really misbehaves: it always gives a value or one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from presage.foresee.sandbox import run_isolated
from presage.model.errors import UserError
from tests.waiting import PATIENCE_S, eventually

# Ours: it imports the user's file, as a reader of models does.
RUNNER = """
import importlib.util
from presage.model.errors import ConfigError

def load(path):
    spec = importlib.util.spec_from_file_location("user_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()

def refuse(payload):
    raise ConfigError(f"{payload}: say what to do")

def echo(payload):
    return payload
"""


@pytest.fixture
def user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a user's file, given as text, the way Presage would."""
    (tmp_path / "runner").mkdir()
    (tmp_path / "runner" / "ours_runner.py").write_text(RUNNER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "runner"))

    def run(text: str, *, timeout_s: float = PATIENCE_S, memory_mib: int = 512) -> Any:
        path = tmp_path / "model.py"
        path.write_text(text)
        return run_isolated(
            "ours_runner", "load", str(path), timeout_s=timeout_s, memory_mib=memory_mib
        )

    return run


def echo(payload: Any) -> Any:
    return run_isolated("ours_runner", "echo", payload, timeout_s=PATIENCE_S, memory_mib=512)


def test_values_come_back_as_they_are(user_code: Any) -> None:
    payload = {"a": [1, 2.5, None, True], "text": "naïve\n…", "nested": {"b": []}}
    assert echo(payload) == payload
    assert user_code("def build():\n    return {'flops': 7}\n") == {"flops": 7}


def test_a_large_value_does_not_block(user_code: Any) -> None:
    value = list(range(300_000))  # far more than a pipe holds
    assert echo(value) == value


def test_what_the_code_prints_is_no_part_of_the_value(
    user_code: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys\ndef build():\n  print('{\"value\": 1}')\n  sys.stderr.write('oh')\n"
    assert user_code(code + "  return 2\n") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "value" in captured.err
    assert "oh" in captured.err


def test_long_output_is_cut(user_code: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert user_code("def build():\n    print('x' * 1_000_000)\n    return 1\n") == 1
    assert len(capsys.readouterr().err) < 70_000


@pytest.mark.parametrize(
    ("code", "line"),
    [
        # The last frame of the user counts, not the library's below it.
        (
            "import json\ndef build():\n    return json.loads('{')\n",
            "JSONDecodeError: Expecting property name enclosed in double quotes:"
            " line 1 column 2 (char 1) (model.py:3)",
        ),
        ("def build():\n    return 1 / 0\n", "ZeroDivisionError: division by zero (model.py:2)"),
        ("raise ValueError('two\\nlines')\n", "ValueError: two lines (model.py:1)"),
        ("raise ValueError\n", "ValueError (model.py:1)"),
        ("def build(:\n", "SyntaxError: invalid syntax (model.py:1)"),
        ("import sys\n\nsys.exit(3)\n", "the code called sys.exit(3) (model.py:3)"),
        ("import no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing'"),
        (
            "def build():\n    return build()\n",
            "RecursionError: maximum recursion depth exceeded (model.py:2)",
        ),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt (model.py:1)"),
        ("import os\nos._exit(3)\n", "the code ended its process with exit code 3;"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "was killed (SIGKILL)"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "crashed its process (SIGS"),
        ("import ctypes\nctypes.string_at(0)\n", "the code crashed its process (SIGSEGV)"),
        ("x = bytearray(2 << 30)\n", "the code needs more than 512 MiB of memory"),
        ("x = []\nwhile True: x.append(bytes(1 << 20))\n", "more than 512 MiB of memory"),
        ("while True: print('x' * 1000)\n", "the code printed more than 16 MiB; print less"),
        ("def build():\n    return {1, 2}\n", "TypeError: Object of type set is not JSON"),
    ],
)
def test_misbehaviour_is_one_clear_line(user_code: Any, code: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        user_code(code)
    message = str(caught.value)
    assert line in message
    assert "\n" not in message


def test_an_endless_loop_is_stopped(user_code: Any) -> None:
    with pytest.raises(UserError, match=r"took longer than 0\.5 s"):
        user_code("while True: pass\n", timeout_s=0.5)


def test_a_library_that_cannot_allocate_is_short_of_memory(user_code: Any) -> None:
    code = "import numpy\ndef build():\n    return numpy.ones(1 << 30).tolist()\n"
    with pytest.raises(UserError, match="more than 512 MiB"):
        user_code(code)


def test_what_presage_says_on_purpose_is_passed_on(user_code: Any) -> None:
    with pytest.raises(UserError, match=r"^model\.py: say what to do$"):
        run_isolated("ours_runner", "refuse", "model.py", timeout_s=PATIENCE_S, memory_mib=512)


@pytest.mark.parametrize("session", [False, True])
def test_a_grandchild_is_ended_at_the_time_limit(
    user_code: Any, tmp_path: Path, session: bool
) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '600'], start_new_session={session})\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    limit_s = 1.0
    while not note.exists():  # a busy machine may not come that far in a second
        with pytest.raises(UserError, match="took longer"):
            user_code(code, timeout_s=limit_s)
        limit_s *= 2
    assert _ended(int(note.read_text()))


def test_a_grandchild_that_outlives_the_code_is_ended(user_code: Any, tmp_path: Path) -> None:
    """Though it holds the output open."""
    code = "import subprocess\npid = subprocess.Popen(['sleep', '600']).pid\n"
    pid = user_code(code + "def build():\n    return pid\n")
    assert _ended(pid)


def test_threads_and_exit_handlers_do_not_hold_it_up(user_code: Any) -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(time.sleep, 600)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "def build():\n    return 1\n"
    )
    assert user_code(code) == 1


def test_a_forked_copy_does_not_answer(user_code: Any) -> None:
    code = "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
    assert user_code(code + "def build():\n    return 'parent' if pid else 'copy'\n") == "parent"


def test_a_file_in_the_working_directory_replaces_no_library(
    user_code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')\n")
    monkeypatch.chdir(tmp_path)
    assert echo(1) == 1


def test_nothing_is_left_behind(user_code: Any, tmp_path: Path) -> None:
    files, before = _open_files(), set(tmp_path.rglob("*"))
    children = set(psutil.Process().children())  # other tests of this worker may have had some
    with pytest.raises(UserError):
        user_code("import os\nos.abort()\n")
    assert user_code("def build():\n    return 1\n") == 1
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "model.py"}
    assert _open_files() == files
    assert set(psutil.Process().children()) <= children


def _open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def _ended(pid: int) -> bool:
    """Wait until it is gone, or waits only for somebody to notice."""

    def gone() -> bool:
        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    return eventually(gone)
