"""Diarizer: windows, stitching, streams, long recordings."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import soundfile
import torch

from phonate.config.documents import parse
from phonate.config.errors import DataError, InputError
from phonate.config.resolve import resolve_document
from phonate.data.annotations import SpeakerTurn, read_rttm
from phonate.data.features import MelFeatures
from phonate.data.progress import progress_listener
from phonate.data.settings import VoiceData
from phonate.evaluation.diarization import score
from phonate.tasks.diarization.inference import Diarizer
from phonate.tasks.diarization.model import build_model
from phonate.tasks.diarization.segmentation import read_windows
from phonate.tasks.diarization.settings import SmoothingSettings

RATE = 16_000
CAUSAL = """
  model_type: decoder
  decoder: {attention_type: causal_linear, positional_encoding: rope}
  front_end: {normalisation: causal_mean}
"""


def diarizer(model="", label_type="multilabel", chunk=4.0, decoding="{}"):
    text = f"""
task: diarization
size: tiny
data: {{path: unused, chunk_seconds: {chunk}}}
model:
  num_speakers: 3
  decoding: {decoding}
{model}
training: {{eval_knobs: {{label_type: {label_type}}}}}
"""
    recipe = resolve_document(parse(text, "recipe.yaml")).recipe
    torch.manual_seed(0)
    network = build_model(recipe, 80, ["ann", "bob"])
    return Diarizer(network, recipe, {"speakers": ["ann", "bob"]})


class Known(torch.nn.Module):
    """A stand-in for a trained model: speakers are tones, told apart by the loudest band; columns are in the order of
    arrival in each window."""

    speakers, stride = 3, 10

    def __init__(self):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def activity_probabilities(self, features, lengths):
        frames = -(-features.shape[1] // self.stride)
        out = torch.zeros(len(features), frames, 3)
        for item, length in enumerate(lengths.tolist()):
            block = features[item, :length]
            order = []
            for frame in range(-(-length // self.stride)):
                own = block[frame * self.stride : (frame + 1) * self.stride].mean(0)
                if float(own.max()) < -12.0:
                    continue
                who = min(range(len(BANDS)), key=lambda one: abs(BANDS[one] - int(own.argmax())))
                if who not in order and len(order) < 3:
                    order.append(who)
                if who in order:
                    out[item, frame, order.index(who)] = 1.0
        return out


TONES = (300.0, 800.0, 1600.0, 3000.0, 5000.0)
BANDS = ()


@pytest.fixture(scope="module")
def known():
    """A Diarizer around `Known`."""
    global BANDS
    found = diarizer()
    time = np.arange(RATE) / RATE
    BANDS = tuple(
        int(found.features.compute((0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)).mean(0).argmax())
        for hertz in TONES
    )
    assert len(set(BANDS)) == len(TONES)
    found.model = Known()
    return found


def meeting(turns, seconds):
    """The waveform (N,) of turns (start, end, speaker number), and the turns."""
    waveform = np.zeros(int(seconds * RATE), dtype=np.float32)
    for start, end, who in turns:
        time = np.arange(int(start * RATE), int(end * RATE)) / RATE
        waveform[int(start * RATE) : int(end * RATE)] += (0.3 * np.sin(2 * np.pi * TONES[who] * time)).astype(
            np.float32
        )
    return waveform, [SpeakerTurn(start, end, f"s{who}") for start, end, who in turns]


class FakeJudge:
    """Voices are tones here, so the embedding is the spectrum."""

    def embed_pieces(self, speeches, per_second):
        return [self.embed(speech) for speech in speeches]

    def embed(self, speech):
        power = np.abs(np.fft.rfft(speech[:1600], 1600)) ** 2
        pieces = np.array([[power[int(hertz / 10) - 5 : int(hertz / 10) + 6].sum() for hertz in TONES]])
        padded = np.zeros((1, 256), dtype=np.float32)
        padded[:, : len(TONES)] = pieces / np.linalg.norm(pieces)
        return padded


def test_a_model_of_three_speakers_handles_five(known, monkeypatch):
    monkeypatch.setattr("phonate.tasks.diarization.segmentation.SpeakerEncoder", lambda device: FakeJudge())
    rng = np.random.default_rng(0)
    turns, at = [], 0.5
    for number in range(30):
        length = rng.integers(10, 25) / 10
        turns.append((at, at + length, number * 2 % 5 if number < 10 else int(rng.integers(5))))
        at = round(at + length + 0.2, 1)
    waveform, truth = meeting(turns, at)
    found = known.diarize(waveform)
    assert found.speakers == [f"speaker{number}" for number in range(1, 6)]
    assert found.turns[0].speaker == "speaker1"
    assert score(truth, found.turns).der < 0.1
    assert score(truth, known.diarize(waveform, speakers=5).turns).der < 0.1
    # a single place for each of the model's columns can't tell five apart
    assert score(truth, known.diarize(waveform, stitching="overlap").turns).der > 0.2
    two = known.diarize(waveform, max_speakers=2)
    assert len(two.speakers) == 2


class Confused(Known):
    """Gives what is said in the middle of a window to the wrong one of two speakers."""

    def activity_probabilities(self, features, lengths):
        out = super().activity_probabilities(features, lengths)
        out[:, 18:26, :2] = out[:, 18:26, :2].flip(-1)
        return out


def test_what_a_model_confuses_is_put_right_by_the_voices(known, monkeypatch):
    monkeypatch.setattr("phonate.tasks.diarization.segmentation.SpeakerEncoder", lambda device: FakeJudge())
    monkeypatch.setattr(known, "model", Confused())
    waveform, truth = meeting([(at, at + 0.9, number % 2) for number, at in enumerate(range(20))], 20.0)
    plain = known.decoding
    compared = plain.model_copy(update={"reassignment_margin": 0.1})
    analysis = known.analyse(waveform, settings=compared)
    confused = score(truth, known.decode(analysis, settings=plain).turns)
    assert confused.der > 0.1
    assert score(truth, known.decode(analysis, settings=compared).turns).der < 0.5 * confused.der
    with pytest.raises(ValueError, match="reassignment_margin"):
        known.decode(known.analyse(waveform), settings=compared)


class Merged(Known):
    """Takes two people for one."""

    def activity_probabilities(self, features, lengths):
        out = super().activity_probabilities(features, lengths)
        return torch.stack([out[..., :2].amax(-1), torch.zeros_like(out[..., 0]), out[..., 2]], dim=-1)


def test_two_whom_the_model_takes_for_one_are_told_apart_by_their_voices(known, monkeypatch):
    monkeypatch.setattr("phonate.tasks.diarization.segmentation.SpeakerEncoder", lambda device: FakeJudge())
    monkeypatch.setattr(known, "model", Merged())
    waveform, truth = meeting([(at, at + 1.4, number % 2) for number, at in enumerate(range(0, 40, 2))], 40.0)
    settings = known.decoding.model_copy(update={"reassignment_margin": 0.05})
    analysis = known.analyse(waveform, settings=settings)
    assert score(truth, known.decode(analysis).turns).der > 0.3
    together = known.decode(analysis, settings=settings)
    assert len(together.speakers) == 2
    assert score(truth, together.turns).der < 0.1


def test_files_arrays_and_lists_give_the_same(known, tmp_path, monkeypatch):
    monkeypatch.setattr("phonate.tasks.diarization.segmentation.SpeakerEncoder", lambda device: FakeJudge())
    waveform, truth = meeting([(0.5, 2.0, 0), (2.5, 5.0, 1), (6.0, 9.5, 0)], 10.0)
    soundfile.write(tmp_path / "m.wav", waveform, RATE, subtype="FLOAT")
    one = known.diarize(tmp_path / "m.wav")
    two, three = known.diarize([waveform, waveform])
    assert one.turns == two.turns == three.turns
    assert one.seconds == 10.0
    assert known.diarize(np.repeat(waveform, 2), sample_rate=2 * RATE).speakers == one.speakers
    (tmp_path / "m.rttm").write_text(one.rttm("m"))
    assert score(truth, read_rttm(tmp_path / "m.rttm")["m"]).der < 0.1
    assert one.probabilities_UG.shape == (100, len(one.speakers))
    assert all(turn.end <= one.seconds for turn in one.turns)


def test_one_window_needs_no_voices(known, monkeypatch):
    """So a short recording needs no resemblyzer."""

    def refuse(device):
        raise AssertionError("voices were compared")

    monkeypatch.setattr("phonate.tasks.diarization.segmentation.SpeakerEncoder", refuse)
    waveform, truth = meeting([(0.5, 2.0, 0), (2.0, 3.5, 1)], 3.7)
    assert score(truth, known.diarize(waveform).turns).der < 0.1
    with pytest.raises(AssertionError):
        known.diarize(waveform, speakers=1)


def test_silence_and_hardly_any_sound():
    found = diarizer(decoding="{threshold: 0.99}").diarize(np.zeros(10 * RATE, dtype=np.float32))
    assert (found.turns, found.speakers, found.rttm("m")) == ([], [], "")
    with pytest.raises(DataError, match="one frame"):
        diarizer().diarize(np.zeros(10, dtype=np.float32))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"speakers": 0}, "1 or more"),
        ({"speakers": 2, "max_speakers": 3}, "not both"),
        ({"min_speakers": 3, "max_speakers": 2}, "exceed"),
        ({"speakers": 2, "stitching": "overlap"}, "stitching embeddings"),
    ],
)
def test_contradictions_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        diarizer().diarize(np.zeros(RATE, dtype=np.float32), **given)


@pytest.mark.parametrize("label_type", ["binary", "speaker_id"])
def test_columns_that_mean_the_same_in_every_window(label_type):
    own = diarizer(label_type=label_type, decoding="{threshold: 0.01}")
    waveform = np.random.default_rng(0).normal(size=12 * RATE).astype(np.float32) * 0.1
    found = own.diarize(waveform)
    assert set(found.speakers) <= ({"speech"} if label_type == "binary" else {"ann", "bob"})
    assert found.turns
    with pytest.raises(InputError, match="label type"):
        own.diarize(waveform, speakers=2)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[160], [1600], [37, 5000, 1], [100_000]])
@pytest.mark.parametrize("label_type", ["multilabel", "powerset", "binary"])
@pytest.mark.parametrize("more", ["", "  upsampling: 2\n"])
def test_a_stream_is_equal_to_the_whole(sizes, label_type, more):
    own = diarizer(CAUSAL + more, label_type)
    rng = np.random.default_rng(1)
    waveform = (rng.normal(size=7 * RATE) * np.repeat(rng.random(70), RATE // 10) * 0.3).astype(np.float32)
    features = torch.from_numpy(own.features.compute(waveform))[None]
    with torch.no_grad():
        whole = own.model.activity_probabilities(features, torch.tensor([features.shape[1]]))[0].numpy()
    cuts = np.cumsum(np.resize(sizes, 2000))
    blocks = np.split(waveform, cuts[cuts < len(waveform)])
    streamed = np.concatenate(list(own.stream_probabilities(blocks)))
    assert streamed.shape == whole.shape
    np.testing.assert_allclose(streamed, whole, atol=1e-5)


def test_turns_of_a_stream_are_those_of_the_whole():
    own = diarizer(CAUSAL, chunk=60.0, decoding="{threshold: 0.5, median: 3, min_speech: 0.2}")
    rng = np.random.default_rng(2)
    waveform = (rng.normal(size=20 * RATE) * np.repeat(rng.random(40), RATE // 2) * 0.3).astype(np.float32)
    own.decoding = own.decoding.model_copy(
        update={"threshold": float(np.median(np.concatenate(list(own.stream_probabilities([waveform])))))}
    )
    streamed = list(own.stream(np.split(waveform, 100)))
    whole = own.diarize(waveform)  # one window
    assert len(streamed) > 2

    def spans(turns):
        return sorted((round(turn.start, 6), round(turn.end, 6)) for turn in turns)

    assert spans(streamed) == spans(whole.turns)


def test_turns_of_a_stream_end_with_the_recording():
    """An output frame is 0.1 s; the last one reaches beyond the end of a recording of 3.03 s."""
    own = diarizer(CAUSAL, chunk=60.0, decoding="{threshold: 0.000001}")
    waveform = np.random.default_rng(3).normal(size=int(3.03 * RATE)).astype(np.float32)
    whole = own.diarize(waveform)
    assert {turn.end for turn in whole.turns} == {3.03}
    assert sorted(own.stream(np.array_split(waveform, 20))) == sorted(
        SpeakerTurn(turn.start, turn.end, turn.speaker) for turn in whole.turns
    )


def test_a_model_that_looks_ahead_refuses_a_stream():
    with pytest.raises(InputError, match="later frames"):
        list(diarizer().stream([np.zeros(RATE, dtype=np.float32)]))


def test_a_long_recording_is_read_as_it_is_needed():
    """Once, and never more than a window and two blocks ahead, however long the recording is."""
    own, ahead, given_back = diarizer(), [], 0
    size = 5 * RATE
    read_by = []

    def read():
        read_by.append(0)
        for number in range(120):
            read_by[-1] = (number + 1) * size
            yield np.full(size, 1e-3 * (number % 7), dtype=np.float32)

    for window in read_windows(read, own.features, 400, 200, 10):
        ahead.append(read_by[0] - window.start * 160)
        given_back += 1
    assert given_back == 299
    assert max(ahead) <= 4 * RATE + 2 * size
    assert read_by == [120 * size]


def test_a_long_recording_is_not_held_for_features_that_measure_its_level_first():
    alive, most = [], 0

    def read():
        nonlocal most
        for _ in range(60):
            block = np.full(5 * RATE, 0.1, dtype=np.float32)
            alive.append(weakref.ref(block))
            most = max(most, sum(one() is not None for one in alive))
            yield block

    own = MelFeatures(VoiceData(path="unused", audio={"sample_rate": RATE, "hop_length": 160}))
    assert len(list(read_windows(read, own, 400, 200, 10))) == 150
    assert most < 20


def test_windows_of_a_powerset_model_are_smoothed_and_others_refused():
    rng = np.random.default_rng(0)
    sound = (0.1 * rng.standard_normal(12 * RATE) * np.repeat(rng.random(24), RATE // 2)).astype(np.float32)
    own = diarizer(label_type="powerset")
    plain = own.analyse(sound).windows.probabilities
    own.decoding = own.decoding.model_copy(update={"smoothing": SmoothingSettings(change_seconds=5.0)})
    smooth = own.analyse(sound).windows.probabilities
    given = diarizer(label_type="powerset", decoding="{smoothing: {change_seconds: 5.0}}")
    np.testing.assert_array_equal(given.analyse(sound).windows.probabilities, smooth)
    assert [one.shape for one in smooth] == [one.shape for one in plain]
    assert np.abs(np.diff(smooth, axis=1)).mean() < 0.5 * np.abs(np.diff(plain, axis=1)).mean()
    assert own.diarize(sound).seconds == 12.0
    with pytest.raises(InputError, match=r"model\.decoding\.smoothing: .*powerset"):
        diarizer(label_type="multilabel", decoding="{smoothing: {}}")


def test_a_stream_is_not_smoothed():
    own = diarizer(CAUSAL, label_type="powerset", chunk=60.0, decoding="{smoothing: {}}")
    with pytest.raises(InputError, match=r"set model\.decoding\.smoothing=null"):
        list(own.stream([np.zeros(RATE, dtype=np.float32)]))


def test_progress_is_reported_of_a_file_to_whoever_listens(tmp_path):
    soundfile.write(tmp_path / "talk.wav", np.random.default_rng(0).normal(0.0, 0.1, 20 * RATE), RATE)
    reports = []
    with progress_listener(lambda *report: reports.append(report)):
        diarizer().diarize(tmp_path / "talk.wav")
    assert {report[0] for report in reports} == {"diarizing, seconds"}
    assert len(reports) > 1
    assert reports[-1][1:] == (20, 20)
