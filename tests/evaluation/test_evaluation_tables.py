"""The figures of an evaluation, as a table and as JSON."""

from __future__ import annotations

import json
import math

import pytest

from phonate.config.metrics import Metric
from phonate.evaluation.tables import Evaluation, markdown


def test_a_figure_that_is_not_finite_is_a_dash_and_is_left_out_of_the_document() -> None:
    """The F0 error of speech without a voiced frame."""
    table = Evaluation(
        "speech", {"this model": {"wer": 0.5, "f0": math.nan}}, "this model", items={"a": {"text": "a", "f0": math.inf}}
    )
    document = json.loads(json.dumps(table.document(), allow_nan=False))
    assert document["systems"] == {"this model": {"wer": 0.5}}
    assert document["items"] == {"a": {"text": "a"}}
    assert [row[-1] for row in table.rows()] == ["–"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2.66e-07, "< 0.001"),
        (-2.66e-07, "> -0.001"),
        (0.0, "0"),
        (0.00123, "0.00123"),
        (0.0152, "0.0152"),
        (123.4, "123"),
    ],
)
def test_figures_have_no_powers_of_ten(value: float, shown: str) -> None:
    assert Metric("rtf").cell(value) == shown


def test_a_bar_in_a_cell_of_markdown_is_no_border() -> None:
    assert markdown(["what", "n"], [["a|b", "2"]]) == "| what | n |\n| --- | --- |\n| a\\|b | 2 |"


def test_arrows_are_explained_where_there_are_any() -> None:
    table = Evaluation("speech", {"this voice": {"rtf": 0.1, "mos": 4.0}}, "this voice")
    assert "MOS 1–5 ↑" in table.header()
    assert table.directions() == "↑ higher is better, ↓ lower is better"
    assert table.directions(["rtf"]) == "", "neither is better"
