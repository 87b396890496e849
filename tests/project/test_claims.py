"""docs/claims.md is honest: what it calls measured has a command that exists and figures that stand in its results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phonate.cli.table import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "claims.md"
RESULTS = ROOT / "benchmarks" / "results"
HEADER = ["promised", "verdict", "measured", "command", "figures in", "when"]
VERDICTS = {"holds", "beaten", "in part", "contradicted", "no figure promised"}
UNMEASURED = "not measured: needs "
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
Row = dict[str, str]


def cells(line: str) -> list[str]:
    """What stands between the bars of a line."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(text: str) -> list[Row]:
    """The rows of all tables of claims."""
    found, inside = [], False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif cells(line) == HEADER:
            inside = True
        elif inside and not set(line) <= set("|- "):
            found.append(dict(zip(HEADER, cells(line), strict=True)))
    return found


def numbers(text: str) -> set[str]:
    """All numbers of a text, without separators of thousands."""
    return {re.sub(r",(?=\d{3}\b)", "", number) for number in NUMBER.findall(text)}


def command_faults(command: str) -> list[str]:
    """Why a reader could not run this."""
    words = command.split()
    if words[0] == "phonate":
        return [] if words[1] in COMMANDS else [f"there is no phonate {words[1]}"]
    if words[0] != "python" or not words[1].startswith("benchmarks/"):
        return [f"{command} is neither a benchmark nor a command of phonate"]
    script = ROOT / words[1]
    if not script.is_file():
        return [f"there is no {words[1]}"]
    code = script.read_text(encoding="utf-8")
    return [f"{words[1]} has no {word}" for word in words[2:] if word.startswith("--") and f'"{word}"' not in code]


def faults(row: Row) -> list[str]:
    """What is wrong with a row."""
    if row["measured"].startswith(UNMEASURED):
        missing = [] if row["measured"].removeprefix(UNMEASURED) else ["it does not say what is needed"]
        return missing + [f"{name} of what is not measured" for name in [*HEADER[3:], "verdict"] if row[name]]
    found = [] if row["verdict"] in VERDICTS else [f"{row['verdict']!r} is no verdict"]
    found += [] if re.fullmatch(r"\d{4}-\d\d-\d\d", row["when"]) else [f"{row['when']!r} is no date"]
    commands = re.findall(r"`([^`]+)`", row["command"])
    found += [] if commands else ["no command"]
    found += [fault for command in commands for fault in command_faults(command)]
    sources = [ROOT / name for name in re.findall(r"`([^`]+)`", row["figures in"])]
    absent = [f"there is no {source.relative_to(ROOT)}" for source in sources if not source.is_file()]
    if absent or not sources:
        return found + (absent or ["no results file"])
    there = set().union(*(numbers(source.read_text(encoding="utf-8")) for source in sources))
    stated = numbers(row["measured"])
    found += [] if stated else ["no figure"]
    return found + [f"{number} stands in none of its files" for number in sorted(stated - there)]


@pytest.mark.parametrize("row", rows(PAGE.read_text(encoding="utf-8")), ids=lambda row: row["promised"][:60])
def test_each_claim_is_measured_or_says_what_it_needs(row: Row) -> None:
    assert faults(row) == []


def test_the_page_has_rows_of_each_kind() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert len(found) >= 30
    assert {"holds", "contradicted"} <= {row["verdict"] for row in found}
    assert any(row["measured"].startswith(UNMEASURED) for row in found)


HONEST = {
    "promised": "a profiler for 5 %",
    "verdict": "beaten",
    "measured": "+0.0 %",
    "command": "`python benchmarks/watch_overhead.py --rounds 40`",
    "figures in": "`benchmarks/results/watch_overhead.md`",
    "when": "2026-11-21",
}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"measured": "+12.345 %"}, "12.345 stands in none"),
        ({"measured": "hardly anything"}, "no figure"),
        ({"command": "`python benchmarks/no_such.py`"}, "there is no benchmarks/no_such.py"),
        ({"command": "`python benchmarks/watch_overhead.py --turbo`"}, "has no --turbo"),
        ({"command": "`phonate levitate`"}, "there is no phonate levitate"),
        ({"command": "by hand"}, "no command"),
        ({"figures in": "`benchmarks/results/no_such.md`"}, "there is no benchmarks/results/no_such.md"),
        ({"figures in": ""}, "no results file"),
        ({"verdict": "splendid"}, "no verdict"),
        ({"when": "lately"}, "no date"),
        ({"measured": "not measured: needs "}, "what is needed"),
        ({"measured": "not measured: needs a GPU"}, "of what is not measured"),
    ],
)
def test_a_dishonest_row_is_found(changed: Row, fault: str | None) -> None:
    found = faults(HONEST | changed)
    assert any(fault in line for line in found) if fault else found == []


@pytest.mark.parametrize("results", sorted(RESULTS.iterdir()), ids=lambda path: path.name)
def test_results_name_a_command_that_exists_and_are_told_on_the_page(results: Path) -> None:
    text = results.read_text(encoding="utf-8")
    named = re.search(r"python (benchmarks/\w+\.py)", text)
    assert named, "no command"
    assert (ROOT / named[1]).is_file()
    assert f"`benchmarks/results/{results.name}`" in PAGE.read_text(encoding="utf-8")


def test_figures_of_the_readme_stand_in_results() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## How good")[2].partition("\n## ")[0]
    files = [*sorted((ROOT / "docs").glob("results-*.md")), *sorted(RESULTS.glob("*.md"))]
    there = set().union(*(numbers(path.read_text(encoding="utf-8")) for path in files))
    measured = {number for number in numbers(section) if "." in number}
    assert len(measured) > 20
    assert measured <= there, sorted(measured - there)
