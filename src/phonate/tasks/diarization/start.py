"""What training requires of the recordings as they are listed, before it prepares them; without torch."""

from __future__ import annotations

from collections.abc import Iterable

from phonate.config.errors import DataError
from phonate.config.tasks import Start
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Row
from phonate.tasks.diarization.settings import SAME_SPEAKERS, DiarizationRecipe, has_corpus


def start(recipe: DiarizationRecipe) -> Iterable[Start]:
    """Decides nothing; see `TaskInfo.start`.

    Raises DataError where speakers are to be told apart, and the recordings have one each: the model would learn who
    speaks at all, and its error rate would still be low.
    """
    data = recipe.data
    if recipe.training.eval_knobs.label_type in SAME_SPEAKERS or not has_corpus(data):
        return ()
    if data.simulation is not None or data.mixing is not None:
        return ()
    try:
        rows = [row for row in list_corpus(data)[0] if isinstance(row, Row)]
    except DataError:  # who reads the corpus says so; options can be explained without it
        return ()
    if rows and all(len(row.speakers) < 2 for row in rows):
        raise DataError(
            f"{data.label}: no recording has two speakers by its labels, so that there is nobody to tell apart; put "
            "labels beside recordings of conversations (meeting.wav, meeting.rttm), or simulate conversations of these "
            "speakers with data.simulation={}"
        )
    return ()
