"""docs/laboratory/claims.md is honest: what it calls measured has a command that exists, and the rows of the results
that it names hold its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from phonate.cli.parsing import COMMANDS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "laboratory" / "claims.md"
RESULTS = ROOT / "benchmarks" / "results"
HEADER = ["promised", "verdict", "measured", "command", "figures in", "when"]
VERDICTS = {"holds", "beaten", "in part", "contradicted", "no figure promised"}
UNMEASURED = "not measured: needs "
NUMBER = re.compile(r"(?<![\w.,-])\d+(?:[.,]\d+)*")  # not those in names, such as bf16 and SHA-256
SOURCE = re.compile(r"`([^`]+)`: ([^`]+?)(?:, and |$)")
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


def results_of(path: Path) -> list[tuple[str, ...]]:
    """The cells of each row of a results file; a sentence is one cell in quotes."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return [tuple(map(str, row.values())) for row in json.loads(text)["rows"]]
    found: list[tuple[str, ...]] = []
    for line in text.replace("*", "").replace("`", "").splitlines():
        if line.startswith("|"):
            found.append(tuple(cell for cell in cells(line) if cell))
        elif line:
            found.append((f'"{line.removeprefix("- ").strip()}"',))
    return found


def rows_called(label: str, results: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows whose first cells are those of `label` (with a slash between), or the sentences that begin so."""
    if label.startswith('"'):
        return [row for row in results if row[0].startswith(label.removesuffix('"') + " ")]
    wanted = tuple(label.split(" / "))
    return [row for row in results if row[: len(wanted)] == wanted]


def figure_faults(row: Row) -> list[str]:
    """What is wrong with the figures of a row and the rows of results that it names."""
    sources = {name: labels.split("; ") for name, labels in SOURCE.findall(row["figures in"])}
    if not sources:
        return ["no rows of a results file"]
    if absent := [f"there is no {name}" for name in sources if not (ROOT / name).is_file()]:
        return absent
    there: set[str] = set()
    found = []
    for name, labels in sources.items():
        results = results_of(ROOT / name)
        for label in labels:
            named = rows_called(label, results)
            found += [] if named else [f"no row of {name} is called {label!r}"]
            there |= numbers(" ".join(cell for row in named for cell in row))
    stated = numbers(row["measured"])
    found += [] if stated else ["no figure"]
    return found + [f"{number} stands in none of its rows" for number in sorted(stated - there)]


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
    beside = [script.with_name(f"{name}.py") for name in re.findall(r"^from (\w+) import", code, re.MULTILINE)]
    code += "".join(module.read_text(encoding="utf-8") for module in beside if module.is_file())
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
    return found + figure_faults(row)


@pytest.mark.parametrize("row", rows(PAGE.read_text(encoding="utf-8")), ids=lambda row: row["promised"][:60])
def test_each_claim_is_measured_or_says_what_it_needs(row: Row) -> None:
    assert faults(row) == []


def test_the_page_has_rows_of_each_kind() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert len(found) >= 30
    assert any(row["measured"].startswith(UNMEASURED) for row in found)


HONEST = {
    "promised": "a profiler for 5 %",
    "verdict": "beaten",
    "measured": "+0.0 %",
    "command": "`python benchmarks/watch_overhead.py --rounds 40`",
    "figures in": "`benchmarks/results/watch_overhead.md`: watched",
    "when": "2026-11-21",
}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, None),
        ({"measured": "+12.345 %"}, "12.345 stands in none"),
        ({"measured": "9.8 %"}, "9.8 stands in none of its rows"),
        ({"figures in": "`benchmarks/results/watch_overhead.md`: torch"}, "no row of"),
        ({"figures in": "`benchmarks/results/watch_overhead.md`"}, "no rows of a results file"),
        ({"measured": "hardly anything"}, "no figure"),
        ({"command": "`python benchmarks/no_such.py`"}, "there is no benchmarks/no_such.py"),
        ({"command": "`python benchmarks/watch_overhead.py --turbo`"}, "has no --turbo"),
        ({"command": "`phonate levitate`"}, "there is no phonate levitate"),
        ({"command": "by hand"}, "no command"),
        ({"figures in": "`benchmarks/results/no_such.md`: x"}, "there is no benchmarks/results/no_such.md"),
        ({"figures in": ""}, "no rows of a results file"),
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


def figures_without_results(section: str) -> list[str]:
    """Cells of tables whose figures are in no single row of the results, and figures that are nowhere in them."""
    files = [*sorted((ROOT / "docs" / "laboratory").glob("*.md")), *sorted(RESULTS.glob("*.md"))]
    measured = [numbers(" ".join(row)) for path in files for row in results_of(path)]
    there = set().union(*measured)
    lines = [cells(line) for line in section.splitlines() if line.startswith("|")]
    systems = [{number for number in numbers(cell) if "." in number} for line in lines for cell in line[1:]]
    stated = {number for number in numbers(section) if "." in number and number not in SIZES}
    lonely = [" ".join(sorted(one)) for one in systems if not any(one <= row for row in measured)]
    return lonely + sorted(stated - there)


SIZES = {"13.6"}
"""MB of the packaged voice and vocoder; a test of theirs has it."""


def test_figures_of_the_readme_stand_in_results() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How good")[2]
    assert len([number for number in numbers(section) if "." in number]) > 8
    assert figures_without_results(section) == []


def test_figures_of_two_rows_are_not_those_of_one() -> None:
    assert figures_without_results("| voices | 4.0 %, 4.18 | 11.8 %, 4.39 |\nand 77.77") == [
        "11.8 4.39",
        "77.77",
    ]
