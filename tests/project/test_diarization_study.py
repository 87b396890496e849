"""The folds of the diarization study share no speaker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

from phonate.data.annotations import SpeakerTurn, read_rttm, read_uem, write_rttm
from phonate_process import run_python

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_diarization_study.py"


def test_recordings_with_a_common_speaker_are_in_one_fold(tmp_path: Path) -> None:
    corpus, study = tmp_path / "corpus", tmp_path / "study"
    corpus.mkdir()
    speakers = {"a": ["anna", "ben"], "b": ["carl"], "c": ["ben", "dora"], "d": ["dora"]}
    for name in speakers:
        soundfile.write(corpus / f"{name}.wav", np.zeros(16000), 16000)
    write_rttm(
        corpus / "ref.rttm", {name: [SpeakerTurn(0.0, 0.5, one) for one in there] for name, there in speakers.items()}
    )
    run_python(SCRIPT, corpus, study).check_returncode()
    tested = {}
    for fold in study.iterdir():
        train, test = (read_rttm(fold / part / "ref.rttm") for part in ("train", "test"))
        voices = [{turn.speaker for turns in part.values() for turn in turns} for part in (train, test)]
        assert not voices[0] & voices[1]
        assert sorted([*train, *test]) == ["a", "b", "c", "d"]
        assert set(read_uem(fold / "test" / "ref.uem")) == set(test)
        assert all((fold / "test" / f"{name}.wav").is_file() for name in test)
        tested[fold.name] = sorted(test)
    assert sorted(tested.values()) == [["a", "c", "d"], ["b"]]
