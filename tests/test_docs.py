"""The documents are run, lead somewhere, and name everything there is.

Every `console` and `sh` block of README.md and docs/**/*.md is run, the blocks of a file in order
in one directory that holds copies of benchmarks/ and examples/. In a `console` block the lines
after `$ ` are the commands and the rest is what a person sees; an `sh` block without `$ ` is a
script. The info string can add:

    check     the output must match; `...` stands for anything
    exit=2    the block ends with this exit code
    no-run    not run; an HTML comment just before the block gives the reason

A server that a document starts in the background writes to a file, not to the output of its block.

`make` is not run here, because the tests are a part of it: its target must exist. Neither is the
`git clone` of the README, nor the `cd` into that clone.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from markdown_it import MarkdownIt

from presage.cli.main import app
from presage.policy import registry
from tests.server.kit import Zygote

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT_S = 900
"""Of one block, on the slowest machine."""
SHARED = {"--no-wait"}
"""Options of every command that asks a server, described once."""

_COMMENT = re.compile(r"<!--(.*?)-->\s*\Z", re.DOTALL)
_MAKE = re.compile(r"(?:\w+=\S* )*make\b([^#]*)")
_CLONE = re.compile(r"git clone |cd presage$")
_OTHER_SHELLS = {"bash", "shell", "shell-session", "zsh"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block that shows commands."""

    line: int
    words: list[str]
    text: str
    comment: str

    @property
    def commands(self) -> str:
        """The commands as one script; a command goes on after a backslash."""
        mine = [line.removeprefix("$ ") for line, mine in self._lines() if mine]
        return "\n".join(mine) if mine or self.words[0] == "console" else self.text

    @property
    def output(self) -> str:
        """What the block says the commands print."""
        return "".join(f"{line}\n" for line, mine in self._lines() if not mine)

    @property
    def exit_code(self) -> int:
        """The exit code that the block announces."""
        codes = [word.removeprefix("exit=") for word in self.words if word.startswith("exit=")]
        return int(codes[0]) if codes else 0

    def _lines(self) -> Iterator[tuple[str, bool]]:
        goes_on = False
        for line in self.text.splitlines():
            mine = goes_on or line.startswith("$ ")
            yield line, mine
            goes_on = mine and line.endswith("\\")


def blocks(markdown: str) -> Iterator[Block]:
    """The blocks that show commands; raises ValueError for one that would escape."""
    before = ""
    for token in MarkdownIt("commonmark").parse(markdown):
        if token.type in ("fence", "code_block"):
            line = (token.map or [0])[0] + 1
            words = token.info.split()
            if words and words[0] in ("console", "sh"):
                block = Block(line, words, token.content, before)
                if not block.commands.strip():
                    raise ValueError(f"line {line}: a console block without a '$ ' line")
                if "no-run" in words and not before:
                    raise ValueError(
                        f"line {line}: no-run needs its reason in a comment before it"
                    )
                yield block
            elif _OTHER_SHELLS & set(words[:1]) or re.search(r"^\$ ", token.content, re.MULTILINE):
                raise ValueError(f"line {line}: write commands in a console or sh block")
        found = _COMMENT.search(token.content) if token.type == "html_block" else None
        before = found[1].strip() if found else ""


def make_targets() -> set[str]:
    """The targets of the Makefile."""
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))


def runnable(commands: str, *, readme: bool) -> str:
    """The script without `make`, whose targets must exist, and without the README's clone."""
    kept = []
    for line in commands.splitlines():
        if make := _MAKE.match(line):
            unknown = {word for word in make[1].split() if "=" not in word} - make_targets()
            assert not unknown, f"the Makefile has no {unknown}: {line}"
        elif not (readme and _CLONE.match(line)):
            kept.append(line)
    return "\n".join(kept)


@pytest.fixture
def document(tmp_path: Path) -> Iterator[str]:
    """A mark in the environment of commands: what a document left running is ended by it."""
    yield str(tmp_path)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PRESAGE_DOCUMENT") == str(tmp_path):
                process.kill()


def installed(path: str) -> str:
    """PATH with the programs of this environment first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"


@pytest.fixture(scope="session")
def programs(zygote: Zygote) -> str:
    """PATH with a `presage` that starts at once; README.md has the real one."""
    return f"{zygote.programs()}{os.pathsep}{installed(os.environ['PATH'])}"


@pytest.mark.slow
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_of_a_document_run(
    path: Path, tmp_path: Path, document: str, programs: str, request: pytest.FixtureRequest
) -> None:
    text = path.read_text(encoding="utf-8")
    wanted = [block for block in blocks(text) if "no-run" not in block.words]
    checkout = tmp_path / "presage"
    checkout.mkdir()
    for folder in ("benchmarks", "examples"):
        if wanted and (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, checkout / folder)
    environment = os.environ | {
        "PATH": installed(os.environ["PATH"]) if path == README else programs,
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PRESAGE_DOCUMENT": document,
    }
    if any(re.search(r"shared/data|PRESAGE_DATA", block.commands) for block in wanted):
        data: Path = request.getfixturevalue("shared_data")
        (tmp_path / "shared").mkdir()
        (tmp_path / "shared" / "data").symlink_to(data.resolve())
        environment["PRESAGE_DATA"] = str(data.resolve())

    for block in wanted:
        script = runnable(block.commands, readme=path == README)
        done = subprocess.run(
            ["sh", "-eu"],
            input=script,
            cwd=checkout,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        where = f"{path.relative_to(ROOT)}:{block.line}"
        assert done.returncode == block.exit_code, f"{where}\n{script}\n{done.stdout}"
        if "check" in block.words:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            same = doctest.OutputChecker().check_output(block.output, done.stdout, flags)
            assert same, f"{where} shows\n{block.output}\nbut prints\n{done.stdout}"


def test_servers_of_two_documents_do_not_meet() -> None:
    """Documents run side by side: a port belongs to one of them."""
    whose: dict[str, set[str]] = {}
    for path in DOCUMENTS:
        for port in re.findall(r"--port (\d+)", path.read_text(encoding="utf-8")):
            whose.setdefault(port, set()).add(path.name)
    assert {port: names for port, names in whose.items() if len(names) > 1} == {}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(path: Path) -> None:
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))
    inner = [child for token in tokens for child in token.children or ()]
    targets = [str(token.attrs.get("href") or token.attrs.get("src") or "") for token in inner]
    files = [target.partition("#")[0] for target in targets if "://" not in target]
    broken = [name for name in files if not (path.parent / name).exists()]
    assert not broken, f"{path.relative_to(ROOT)} links to {broken}"


@pytest.mark.parametrize(
    ("markdown", "problem"),
    [
        ("```console no-run\n$ presage\n```", "needs its reason"),
        ("<!-- why -->\n\ntext\n\n```console no-run\n$ presage\n```", "needs its reason"),
        ("```console\npresage\n```", "without a"),
        ("```bash\npresage\n```", "console or sh"),
        ("    $ presage", "console or sh"),
    ],
)
def test_a_block_that_would_not_run_is_refused(markdown: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(blocks(markdown))


def test_a_block_is_read_as_commands_and_output() -> None:
    (block,) = blocks("<!-- a GPU -->\n```console no-run exit=2\n$ a \\\n  b\nout\n$ c\n```")
    assert (block.commands, block.output) == ("a \\\n  b\nc", "out\n")
    assert (block.comment, block.exit_code) == ("a GPU", 2)


def test_make_and_the_clone_are_left_out() -> None:
    commands = "git clone URL\ncd presage\nCI=true make test  # all\npresage simulate t"
    assert runnable(commands, readme=True) == "presage simulate t"
    with pytest.raises(AssertionError, match="nonsense"):
        runnable("make nonsense", readme=False)


def test_a_section_holds_its_subsections(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n## `b`\n### c\n--x\n```sh\n# no heading\n```\n--y\n## d\n--z\n")
    section = _sections(page)["b"]
    assert [_has(section, option) for option in ("--x", "--y", "--z")] == [True, True, False]


def test_every_command_and_option_is_documented() -> None:
    page = ROOT / "docs" / "reference" / "cli.md"
    sections = _sections(page)
    missing = [option for option in SHARED if not _has(page.read_text("utf-8"), option)]
    for name, options in _commands("presage", typer.main.get_command(app)):
        section = sections.get(name)
        if section is None:
            missing.append(f"a section headed '{name}'")
        else:
            missing += [
                f"{option} under '{name}'" for option in options if not _has(section, option)
            ]
    assert not missing, f"docs/reference/cli.md lacks {missing}"


def test_every_policy_and_placement_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "policies.md").read_text(encoding="utf-8")
    names = [*registry.names(), *registry.placements()]
    missing = [name for name in names if not _has(text, f"`{name}`")]
    assert not missing, f"docs/reference/policies.md lacks {missing}"


def _commands(name: str, command: Any) -> Iterator[tuple[str, list[str]]]:
    """Each command with its long options; Typer gives a command the attributes of click's."""
    words = [word for param in command.params for word in (*param.opts, *param.secondary_opts)]
    own = [word for word in words if word.startswith("--") and word not in SHARED]
    options = [word for word in own if "-completion" not in word]
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    children = {child: command.get_command(None, child) for child in names}
    if options or not children:
        yield name, options
    for child, inner in sorted(children.items()):
        yield from _commands(f"{name} {child}", inner)


def _sections(path: Path) -> dict[str, str]:
    """The text under each heading, with what is under its own subheadings."""
    text = path.read_text(encoding="utf-8")
    tokens = MarkdownIt("commonmark").parse(text)
    headings = [
        (token.map[0], token.tag, tokens[i + 1].content.strip("`"))
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and token.map
    ]
    lines = text.splitlines()
    sections = {}
    for i, (start, tag, title) in enumerate(headings):
        ends = (line for line, other, _ in headings[i + 1 :] if other <= tag)
        sections[title] = "\n".join(lines[start : next(ends, len(lines))])
    return sections


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None
