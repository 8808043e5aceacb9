"""What every test may ask for: the shared data, programs from PATH, and Hypothesis profiles.

With CI=true, a skip for something that is missing becomes a failure.
"""

from __future__ import annotations

import os

# Before Polars is imported anywhere: it sizes its thread pool once, and there are several workers.
os.environ.setdefault("POLARS_MAX_THREADS", "2")
# Workers with two threads each would wait for one another in every small fit.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.order import Groups, arrange, group_of

if TYPE_CHECKING:
    from tests.kubernetes_plane import Plane
    from tests.server.kit import Zygote

ROOT = Path(__file__).resolve().parent.parent

# `make test` gives the same answer twice; `make soak` looks where nobody has looked before.
# No deadline: the time of one example says more about the machine than about the code.
settings.register_profile("default", max_examples=100, deadline=None, derandomize=True)
settings.register_profile(
    "soak",
    max_examples=2000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Several workers: groups start in the order of the tests, not by their number of tests."""
    config.option.loadscopereorder = False
    return Groups(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """A run of all tests: its workers are forked by a process that has imported what they need."""
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return  # a few tests need less than all
    from tests.forking import Forker

    os.environ["FORKER_OF_TESTS"] = str(os.getpid())  # the workers': it is known before they are
    rewriting = os.fork()  # beside the imports of the other
    if not rewriting:
        _rewrite_assertions(config)
    forker = Forker()
    os.waitpid(rewriting, 0)
    folder = Path(tempfile.mkdtemp(prefix="presage-tests-"))
    config.add_cleanup(partial(shutil.rmtree, folder))
    config.add_cleanup(forker.close)
    python = forker.program(folder, "python")
    for spec in specs:
        spec.python = str(python)


def _rewrite_assertions(config: pytest.Config) -> NoReturn:
    """Leave the tests as pytest rewrites them where it looks for that: in a fresh checkout every
    worker would do the same work at the same time. Without these names, each worker does."""
    with suppress(ImportError, OSError):
        from _pytest.assertion import rewrite

        state = config.stash[rewrite.assertstate_key]
        for file in sorted((ROOT / "tests").rglob("test_*.py")):
            cache = rewrite.get_cache_dir(file)
            made = cache / f"{file.stem}{rewrite.PYC_TAIL}"
            if not sys.dont_write_bytecode and rewrite._read_pyc(file, made) is None:
                rewrite.try_makedirs(cache)
                digest, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, digest, made)
    os._exit(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    arrange(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """What a group of files shared ends with the last test of the group."""
    yield
    group = group_of(item.nodeid)
    if group == "ray" and (nextitem is None or group_of(nextitem.nodeid) != group):
        from tests.executors.ray_kit import close_shared  # nobody else needs it

        close_shared()


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of public data: `$PRESAGE_DATA`, else `../shared/data` beside the checkout."""
    places = [Path(os.environ["PRESAGE_DATA"])] if os.environ.get("PRESAGE_DATA") else []
    places.append(ROOT.parent / "shared" / "data")
    for place in places:
        if place.is_dir():
            return place
    return missing("no shared data: set PRESAGE_DATA, or put it in ../shared/data")


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts `presage` commands that real servers and their users need."""
    from tests.server.kit import Zygote  # not before it is needed

    started = Zygote(tmp_path_factory.mktemp("commands"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def shared_plane() -> Iterator[Plane]:
    """A Kubernetes control plane, where `tools/engines kubernetes` has built one."""
    from tests.kubernetes_plane import PlaneError, find_programs, plane_for_tests

    try:
        find_programs()
    except PlaneError as error:
        missing(str(error))
    yield from plane_for_tests()


@pytest.fixture
def plane(shared_plane: Plane) -> Iterator[Plane]:
    """The control plane of the test run, up, with no nodes and nothing in its namespace."""
    yield shared_plane
    shared_plane.clear()


@pytest.fixture(scope="session")
def program() -> Callable[..., str]:
    """Find a program by any of its names: `program("chromium-headless-shell", "chromium")`."""

    def find(*names: str) -> str:
        for name in names:
            if path := shutil.which(name):
                return path
        return missing(f"{' or '.join(names)} is not on PATH; see tools/system-packages")

    return find


def missing(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
    pytest.skip(reason)
