"""What the documentation says is true: cheap snippets run, commands and links exist, the reference is current."""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from installed import missing
from phonate.cli.parsing import COMMANDS, parse_command
from phonate.config.resolve import resolve
from phonate_process import run, run_python

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "src" / "phonate" / "base").glob("*/MODEL_CARD.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *CARDS]
BLOCK = re.compile(r"(?:<!-- (\w+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, mark: str | None = None) -> list[tuple[str, str]]:
    """(page, code) of every block in `language`, of those under `<!-- mark -->` where one is given."""
    return [
        (page.name, code)
        for page in PAGES
        for found_mark, found_language, code in BLOCK.findall(page.read_text(encoding="utf-8"))
        if found_language == language and (mark is None or found_mark == mark)
    ]


def commands(program: str) -> list[list[str]]:
    """Every command of a shell block or a study that begins with `program`, as words, without variables (options)."""
    studies = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "scripts").glob("study_*.sh"))]
    code = "\n".join([*(code for language in ("bash", "sh") for _, code in blocks(language)), *studies])
    lines = [line.strip() for line in code.replace("\\\n", " ").splitlines()]
    split = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"{program} ")]
    ended = [itertools.takewhile(lambda word: word not in {"|", "&", "&&", ">", "<"}, words) for words in split]
    return [[word for word in words if not re.fullmatch(r"\$[a-zA-Z]+", word)] for words in ended]


@pytest.mark.parametrize("words", commands("phonate"), ids=" ".join)
def test_a_command_that_is_shown_is_understood(words: list[str]) -> None:
    assert words[0] in COMMANDS
    parse_command(words[0], words[1:], argparse.Namespace())


SHIPPED = [words for words in commands("phonate") if words[0] == "train" and "/" not in words[1]]


@pytest.mark.parametrize("words", SHIPPED, ids=" ".join)
def test_overrides_of_shown_commands_are_options(words: list[str]) -> None:
    overrides = [word for word in words[2:] if "=" in word and "$" not in word]
    resolve(words[1], ["data.path=recordings", *overrides])


SCRIPTS = [words for words in commands("python") if words[0].endswith(".py")]


@pytest.mark.parametrize("words", SCRIPTS, ids=" ".join)
def test_a_script_that_is_shown_has_its_options(words: list[str]) -> None:
    code = (ROOT / words[0]).read_text(encoding="utf-8")
    assert [word for word in words[1:] if word.startswith("--") and f'"{word}"' not in code] == []


@pytest.mark.parametrize("code", [code for _, code in blocks("bash", "run")])
def test_shell_snippets_run(code: str, tmp_path: Path) -> None:
    for line in filter(None, code.splitlines()):
        words = shlex.split(line, comments=True)
        assert words[0] == "phonate"
        ran = run(*words[1:], cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()


@pytest.mark.parametrize("code", [code for _, code in blocks("python", "run")])
def test_python_snippets_run(code: str, tmp_path: Path) -> None:
    ran = run_python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_python_snippets_parse_and_import_what_exists() -> None:
    for page, code in blocks("python"):
        for node in ast.walk(ast.parse(code, page)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "phonate":
                module = importlib.import_module(str(node.module))
                assert [one.name for one in node.names if not hasattr(module, one.name)] == [], page


@pytest.mark.parametrize("code", [code for _, code in blocks("yaml", "recipe")])
def test_recipes_resolve(code: str, tmp_path: Path) -> None:
    (tmp_path / "voice.yaml").write_text(code, encoding="utf-8")
    resolve(tmp_path / "voice.yaml")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_settings_reference_is_current() -> None:
    ran = run_python(ROOT / "scripts" / "settings_reference.py", "--check")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(missing("mkdocs", "material"), reason="needs mkdocs-material: pip install 'phonate[docs]'")
def test_the_site_has_every_page_in_its_navigation_and_no_dead_link(tmp_path: Path) -> None:
    """Whatever mkdocs.yml asks to warn of is an error."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_make_target_of_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    make = r"(?:[A-Z_]+=\S+ )?make ([a-z-]+)"
    named = {name for page in PAGES for name in re.findall(f"`{make}", page.read_text(encoding="utf-8"))}
    named |= {name for _, code in blocks("bash") for name in re.findall(f"^{make}", code, re.MULTILINE)}
    assert {"demo", "test", "setup", "lint"} <= named
    for name in named:
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), name


def test_the_architecture_page_names_files_and_members_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "phonate"
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z_/]+/(?:[a-z_]+\.py)?|[a-z_]+\.py)`", prose))
    assert {"training/step.py", "pretrained.py", "data/corpora/"} <= named
    assert not [name for name in named - {"settings.py", "task.py"} if not (package / name).exists()]
    map_ = page.partition("```text")[2].partition("```")[0]
    parts = {one.name + "/" * one.is_dir() for one in package.iterdir() if not one.name.startswith(("_", "."))}
    assert not [part for part in parts - {"py.typed"} if f" {part} " not in map_]
    from phonate.training.task import Task

    table = page.partition("## The contract of a task")[2].partition("| `coupling` | several ranks")[0]
    members = {
        one.partition("(")[0]
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for one in re.findall(r"`([^`]+)`", row)
    }
    public = {name for name in vars(Task) if not name.startswith("_")}
    assert members == public - {"step", "device", "earlier_keys", "random_features"}
