"""Where data and results may be: which address needs which package, and what to install.

The one place that knows; `presage lint` and a run that is about to start say the same words.
Standard library only; opens nothing.
"""

from __future__ import annotations

__all__ = ["is_local", "missing_for", "missing_for_git"]

_EXTRAS = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "gcs": ("gcsfs", "gcs"),
    "http": ("aiohttp", "http"),
    "https": ("aiohttp", "http"),
}
"""By scheme: the package that fsspec needs for it, and the extra that brings it."""


def is_local(url: str) -> bool:
    """Whether an address is a path on this machine."""
    return url.startswith("file://") or not ("://" in url or "::" in url)


def missing_for(url: str) -> str | None:
    """What is not installed here that an address needs, in words; None if nothing is."""
    if is_local(url):
        return None
    from importlib.util import find_spec  # late: guardians import this, and few need it

    if find_spec("fsspec") is None:
        return f"{url} needs fsspec, which is not installed here: pip install 'presage[server]'"
    for part in url.split("::"):
        package, extra = _EXTRAS.get(part.partition("://")[0].lower(), ("", ""))
        if package and find_spec(package) is None:
            return (
                f"{url} needs {package}, which is not installed here: "
                f"pip install 'presage[{extra}]'"
            )
    return None


def missing_for_git(path: str | None = None) -> str | None:
    """The same for a Git repository; `path` is where to look for programs."""
    import shutil

    if shutil.which("git", path=path):
        return None
    return "a git source needs the program git, which is not installed here: apt-get install git"
