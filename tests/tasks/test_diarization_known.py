"""Speakers whose voices are known get their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from phonate.audio.decoding import read_audio, write_audio
from phonate.data.annotations import SpeakerTurn
from phonate.pretrained import SPEAKERS, SpeakerEncoder, missing
from phonate.tasks.diarization.identification import names_by_voice


class OfOneVoice:
    """Hears the same voice in every recording."""

    def speech(self, samples: np.ndarray, rate: int, name: str) -> np.ndarray:
        return samples

    def embed_pieces(self, speech: list[np.ndarray]) -> list[np.ndarray]:
        return [np.eye(1, 256, dtype=np.float32) for _ in speech]


def test_whose_voice_is_taken_is_told_in_the_order_of_the_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_audio(tmp_path / "a.wav", np.ones(16000, np.float32), 16000)
    known = dict.fromkeys(("ann", "dan", "bob", "carl", "eve"), tmp_path / "a.wav")
    turns = [SpeakerTurn(0.0, 1.0, "speaker1")]
    names = names_by_voice(turns, [np.ones(16000, np.float32)], known, cast(SpeakerEncoder, OfOneVoice()))
    assert names == {"speaker1": "ann"}
    said = "was not found: the closest voice has a similarity of 1.00, and is already taken to be ann's"
    assert caplog.messages == [f"{name} {said}" for name in ("dan", "bob", "carl", "eve")]


@pytest.mark.skipif(bool(missing(SPEAKERS)), reason="needs an encoder: pip install 'phonate[eval]'")
@pytest.mark.slow
def test_speakers_get_the_names_of_their_voices(recordings: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = recordings / "spk_en_librispeech" / "test-other"
    people = {one.name: sorted(one.rglob("*.flac")) for one in sorted(folder.iterdir())}
    assert len(people) == 4
    (one, first), (two, second), (three, third), (stranger, fourth) = people.items()
    turns, pieces, at = [], [], 0.0
    for label, files in (("speaker1", first), ("speaker2", second), ("speaker3", fourth)):
        speech = np.concatenate([read_audio(file, 16000)[0] for file in files[1:4]])
        turns.append(SpeakerTurn(at, at + len(speech) / 16000, label))
        pieces.append(speech)
        at += len(speech) / 16000
    blocks = np.array_split(np.concatenate(pieces), 7)
    names = names_by_voice(turns, blocks, {three: third[0], two: second[0], one: first[0]})
    assert names == {"speaker1": one, "speaker2": two}  # and the stranger keeps the number
    assert stranger not in names.values()
    (absent,) = caplog.messages
    assert re.fullmatch(rf"{three} was not found: the closest voice has a similarity of 0\.\d\d; .*", absent)
    swapped = names_by_voice(turns, blocks, {one: second[0], two: first[0]})
    assert swapped == {"speaker1": two, "speaker2": one}
