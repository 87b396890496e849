"""Simulated conversations: labels are speech, statistics are as asked for, and nothing depends on the order."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile
from simulated import DRY, RATE, clip, prepared_folder, simulator, source, speaker_folder, talking, voice

from phonate.config.errors import DataError, InputError
from phonate.config.randomness import generator
from phonate.data.annotations import SpeakerTurn, read_rttm, write_rttm
from phonate.data.cache import IndexedSegment
from phonate.data.clips import ClipBank, Source, Utterance, alone, arrival_activity, mixed_activity, speech_segments
from phonate.data.conversations import (
    Acoustics,
    ColouredNoise,
    PartTurn,
    RecordedNoise,
    arrange_as,
    convolved,
    room_response,
    write_conversations,
)
from phonate.data.corpora.manifest import check_corpus
from phonate.data.prepared import prepare
from phonate.data.settings import AcousticSettings, KaldiData, SimulationSettings


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> ClipBank:
    folder = speaker_folder(tmp_path_factory.mktemp("speakers"))
    return ClipBank.of([source(folder, tmp_path_factory.mktemp("cache"))], RATE, 0.5)


# Where there is speech in a clip


@pytest.mark.parametrize("floor", [1e-4, 3e-3])
def test_speech_is_found_within_a_few_frames_and_pauses_are_not_speech(floor: float) -> None:
    found = speech_segments(clip([(0.5, 1.2), (0.4, 2.0)], 120.0, seed=1, floor=floor), RATE) / RATE
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found, [[0.5, 1.7], [2.1, 4.1]], atol=0.045)


def test_a_short_gap_belongs_to_speech_and_a_click_is_none() -> None:
    sound = clip([(0.5, 0.8), (0.1, 0.8)], 120.0, seed=1)
    sound[round(2.5 * RATE) : round(2.52 * RATE)] += 0.3
    found = speech_segments(sound, RATE) / RATE
    np.testing.assert_allclose(found, [[0.5, 2.2]], atol=0.045)


@pytest.mark.parametrize("samples", [0, 10, 5000])
def test_silence_has_no_speech(samples: int) -> None:
    assert len(speech_segments(np.zeros(samples, np.float32), RATE)) == 0


def test_noise_that_hides_the_speech_is_no_speech() -> None:
    """Otherwise all of the clip, with its pauses, would be labelled as speech."""
    clean = clip([(0.5, 1.2), (0.4, 2.0)], 120.0, seed=1)
    hidden = clean + (0.3 * np.random.default_rng(0).standard_normal(len(clean))).astype(np.float32)
    assert len(speech_segments(clean, RATE)) == 2
    assert len(speech_segments(hidden, RATE)) == 0


def test_clips_are_taken_where_nobody_else_talks() -> None:
    segments = [
        IndexedSegment(0.0, 4.0, 0, ""),
        IndexedSegment(3.0, 6.0, 1, ""),
        IndexedSegment(6.0, 7.0, -1, ""),
        IndexedSegment(7.0, 9.0, 0, ""),
        IndexedSegment(8.0, 9.5, 0, ""),
    ]
    assert list(alone(segments)) == [(0, 0.0, 3.0), (1, 4.0, 6.0), (0, 7.0, 9.5)]


# What is simulated


def test_labels_are_the_speech_that_is_heard(bank: ClipBank) -> None:
    conversation = simulator(bank, speakers=(3, 3), overlap=0.3).conversation(30 * RATE, generator(1))
    hop = RATE // 100
    level = np.sqrt(np.mean(conversation.waveform_N.reshape(-1, hop) ** 2, axis=1))
    active = talking(conversation).any(axis=1)
    audible = level > 0.02
    # Only the margins that speech gets on both sides, and fades, differ.
    assert np.mean(active != audible) < 0.05
    assert not audible[~np.convolve(active, np.ones(3), mode="same").astype(bool)].any()


def test_a_faulty_labelling_of_whole_clips_would_be_noticed(bank: ClipBank) -> None:
    """Labels of whole turns, pauses and all: what the test above must not pass."""
    conversation = simulator(bank, speakers=(2, 2), overlap=0.0).conversation(30 * RATE, generator(1))
    hop = RATE // 100
    audible = np.sqrt(np.mean(conversation.waveform_N.reshape(-1, hop) ** 2, axis=1)) > 0.02
    whole = np.zeros(len(audible), dtype=bool)
    for turn in conversation.turns:
        whole[max(0, turn.start // hop) : max(0, turn.end // hop)] = True
    assert np.mean(whole != audible) > 0.05


def test_pauses_are_labelled_from_a_chosen_length_on(bank: ClipBank) -> None:
    """The clips have a pause of 0.4 s in the middle."""
    fine, coarse = (
        simulator(bank, speakers=(2, 2), overlap=0.0, label_pauses_from=length).conversation(30 * RATE, generator(1))
        for length in (0.2, 0.5)
    )
    assert fine.waveform_N.tobytes() == coarse.waveform_N.tobytes()
    gaps = [
        (later - earlier) / RATE
        for conversation in (fine, coarse)
        for turn in conversation.turns
        for earlier, later in zip(turn.utterance.segments[:-1, 1], turn.utterance.segments[1:, 0], strict=True)
    ]
    assert min(gaps) < 0.4
    coarse_gaps = [
        (later - earlier) / RATE
        for turn in coarse.turns
        for earlier, later in zip(turn.utterance.segments[:-1, 1], turn.utterance.segments[1:, 0], strict=True)
    ]
    assert min(coarse_gaps, default=1.0) >= 0.5


@pytest.mark.parametrize(
    "settings",
    [
        {"speakers": (2, 2), "overlap": 0.0},
        {"speakers": (2, 2), "overlap": 0.2},
        {"speakers": (2, 2), "overlap": 0.44},
        {"speakers": (4, 4), "overlap": 0.15, "turn_seconds": 2.0},
        {"speakers": (2, 4), "overlap": 0.3, "pause_seconds": 1.0},
    ],
)
def test_overlap_has_the_chosen_share_of_the_speech(bank: ClipBank, settings: dict) -> None:
    made = simulator(bank, **settings)
    counts = [talking(made.conversation(30 * RATE, generator(7, number))).sum(axis=1) for number in range(80)]
    speech = sum(int((count > 0).sum()) for count in counts)
    overlapped = sum(int((count > 1).sum()) for count in counts)
    assert abs(overlapped / speech - settings["overlap"]) < 0.04


def test_turns_and_pauses_have_the_chosen_means(bank: ClipBank) -> None:
    made = simulator(bank, speakers=(3, 3), overlap=0.1, turn_seconds=2.5, pause_seconds=0.8)
    lengths, pauses = list[float](), list[float]()
    for number in range(60):
        turns = made.conversation(60 * RATE, generator(3, number)).turns
        lengths += [(turn.end - turn.start) / RATE for turn in turns]
        latest = turns[0].end
        for turn in turns[1:]:
            if turn.start > latest:
                pauses.append((turn.start - latest) / RATE)
            latest = max(latest, turn.end)
    assert abs(np.mean(lengths) - 2.5) < 0.4
    assert abs(np.mean(pauses) - 0.8) < 0.16
    assert np.median(pauses) < 0.5  # most are short, some long
    assert np.percentile(pauses, 95) > 2.0


def test_every_number_of_speakers_is_as_likely_and_all_are_heard(bank: ClipBank) -> None:
    made = simulator(bank, speakers=(2, 4))
    counts = [talking(made.conversation(30 * RATE, generator(5, number))).any(axis=0).sum() for number in range(90)]
    assert set(counts) == {2, 3, 4}
    assert min(np.bincount(counts)[2:]) >= 18


def test_nobody_talks_over_themselves(bank: ClipBank) -> None:
    turns = simulator(bank, speakers=(2, 2), overlap=0.5).conversation(60 * RATE, generator(2)).turns
    for speaker in (0, 1):
        mine = [turn for turn in turns if turn.speaker == speaker]
        assert all(one.end < two.start for one, two in itertools.pairwise(mine))


def test_turns_are_those_of_a_recorded_conversation(bank: ClipBank, tmp_path: Path) -> None:
    """Ann talks for 12 s, Bob says a word meanwhile, and answers at the end."""
    recorded = [SpeakerTurn(1.0, 13.0, "ann"), SpeakerTurn(6.0, 6.5, "bob"), SpeakerTurn(15.0, 20.0, "bob")]
    write_rttm(tmp_path / "real.rttm", {"m1": recorded})
    made = simulator(bank, speakers=(2, 2), turns_from=str(tmp_path / "real.rttm"))
    together = list[bool]()
    for number in range(10):
        conversation = made.conversation(20 * RATE, generator(6, number))
        ann, word, answer = conversation.turns
        assert [turn.speaker for turn in conversation.turns] == [0, 1, 1]
        assert len(set(conversation.speaker_K.tolist())) == 2
        assert [turn.start / RATE for turn in conversation.turns] == [1.0, 6.0, 15.0]
        assert 8.0 < (ann.end - ann.start) / RATE < 16.0
        assert 0.3 < (word.end - word.start) / RATE < 0.9
        assert 3.0 < (answer.end - answer.start) / RATE < 7.0
        active_TS = talking(conversation)
        together.append(bool(active_TS[600:700].all(axis=1).any()))
        assert not active_TS[:95].any()
    assert sum(together) >= 8  # Ann may pause for a moment
    assert {tuple(made.conversation(20 * RATE, generator(6, number)).speakers) for number in range(10)} != {(0, 1)}


def test_a_share_of_the_conversations_has_recorded_turns(bank: ClipBank, tmp_path: Path) -> None:
    write_rttm(tmp_path / "real.rttm", {"m1": [SpeakerTurn(1.0, 13.0, "ann"), SpeakerTurn(15.0, 20.0, "bob")]})
    made = simulator(bank, speakers=(2, 2), turns_from=str(tmp_path / "real.rttm"), turns_from_share=0.3)
    starts = [
        [turn.start / RATE for turn in made.conversation(20 * RATE, generator(7, one)).turns] for one in range(60)
    ]
    assert 9 <= starts.count([1.0, 15.0]) <= 29


def test_parts_of_recorded_conversations_differ_and_have_the_chosen_number_of_speakers(
    bank: ClipBank, tmp_path: Path
) -> None:
    alone = [SpeakerTurn(4.0 * number, 4.0 * number + 3.0, "ann") for number in range(30)]
    three = [SpeakerTurn(3.0 * number, 3.0 * number + 4.0, f"s{number % 3}") for number in range(40)]
    write_rttm(tmp_path / "real.rttm", {"alone": alone, "three": three})
    made = simulator(bank, speakers=(2, 4), turns_from=str(tmp_path / "real.rttm"))
    active = [talking(made.conversation(15 * RATE, generator(9, number))) for number in range(12)]
    assert all(one_TS.shape[1] == 3 for one_TS in active)
    assert len({one_TS.any(axis=1).tobytes() for one_TS in active}) == 12
    assert 0.15 < np.mean([(one_TS.sum(axis=1) > 1).mean() for one_TS in active]) < 0.5  # a quarter in the file


def test_a_turn_that_began_before_a_part_is_heard_from_its_beginning(bank: ClipBank, tmp_path: Path) -> None:
    write_rttm(tmp_path / "real.rttm", {"m1": [SpeakerTurn(0.0, 300.0, "ann")]})
    made = simulator(bank, speakers=(1, 1), turns_from=str(tmp_path / "real.rttm"))
    turn = made.conversation(10 * RATE, generator(4)).turns[0]
    assert turn.start < 0 < 8 * RATE < turn.end


def test_an_utterance_that_ends_before_the_conversation_is_left_out() -> None:
    """An utterance may be shorter than the turn that it stands for."""

    def draw(speaker: int, samples: int) -> Utterance:
        length = round(0.8 * samples)
        return Utterance(np.ones(length, np.float32), np.array([[0, length]]))

    turns = arrange_as([PartTurn(-1.0, 0.1, 0), PartTurn(1.0, 2.0, 0)], 4 * RATE, RATE, draw)
    assert [(turn.start, turn.end) for turn in turns] == [(RATE, round(1.8 * RATE))]


@pytest.mark.parametrize(
    ("text", "speakers", "message"),
    [
        (
            "SPEAKER m1 1 0 5 <NA> <NA> ann <NA> <NA>\n",
            (2, 3),
            "change data.simulation.speakers",
        ),
        ("SPKR-INFO m1 1 <NA> <NA> <NA> unknown ann <NA> <NA>\n", (1, 2), "no turns"),
        ("speaker talks\n", (1, 2), "not RTTM"),
    ],
)
def test_an_unsuitable_file_of_turns_is_refused(
    bank: ClipBank, tmp_path: Path, text: str, speakers: tuple[int, int], message: str
) -> None:
    (tmp_path / "real.rttm").write_text(text)
    with pytest.raises(DataError, match=message):
        simulator(bank, speakers=speakers, turns_from=str(tmp_path / "real.rttm")).conversation(RATE, generator(1))


def test_levels_of_the_speakers_differ_as_chosen(bank: ClipBank) -> None:
    made = simulator(bank, speakers=(2, 2), overlap=0.0, gain_db=6.0)
    levels = list[float]()
    for number in range(60):
        conversation = made.conversation(20 * RATE, generator(11, number))
        for turn in conversation.turns[1:3]:
            begin, end = max(0, turn.start), min(len(conversation.waveform_N), turn.end)
            segments = turn.utterance.segments + turn.start
            begin, end = max(begin, int(segments[0, 0])), min(end, int(segments[0, 1]))
            if end - begin > RATE // 4:
                levels.append(10 * np.log10(np.mean(conversation.waveform_N[begin:end] ** 2)))
    assert abs(np.std(levels) - 6.0) < 1.8


def test_speed_changes_the_pitch_and_keeps_labels_on_the_speech(bank: ClipBank) -> None:
    made = simulator(bank, speakers=(2, 2), overlap=0.0, speed=(0.8, 0.8))
    conversation = made.conversation(20 * RATE, generator(4))
    hop = RATE // 100
    audible = np.sqrt(np.mean(conversation.waveform_N.reshape(-1, hop) ** 2, axis=1)) > 0.02
    assert np.mean(talking(conversation).any(axis=1) != audible) < 0.05
    turn = next(turn for turn in conversation.turns if turn.start >= 0)
    heard = turn.utterance.waveform_N[1000 : 1000 + 8192]
    pitch = np.argmax(np.abs(np.fft.rfft(heard * np.hanning(8192)))) * RATE / 8192
    slowed = 0.8 * (90.0 + 25.0 * int(conversation.speakers[turn.speaker]))
    assert abs(pitch - slowed) < 3.0


def test_equal_keys_give_equal_conversations_whatever_was_made_before(bank: ClipBank) -> None:
    made = simulator(bank, AcousticSettings(), speakers=(2, 4), speed=(0.9, 1.1))
    forwards = [made.conversation(5 * RATE, generator(0, number)) for number in range(4)]
    again = simulator(bank, AcousticSettings(), speakers=(2, 4), speed=(0.9, 1.1))
    backwards = [again.conversation(5 * RATE, generator(0, number)) for number in reversed(range(4))][::-1]
    for one, two in zip(forwards, backwards, strict=True):
        assert one.waveform_N.tobytes() == two.waveform_N.tobytes()
        assert one.segments_K2.tolist() == two.segments_K2.tolist()
    assert forwards[0].waveform_N.tobytes() != forwards[1].waveform_N.tobytes()


def test_too_few_speakers_are_an_error(bank: ClipBank) -> None:
    with pytest.raises(DataError, match=r"7 speakers .*6; lower data\.simulation"):
        simulator(bank, speakers=(2, 7))


def test_limits_in_the_wrong_order_are_an_error() -> None:
    with pytest.raises(InputError, match=r"speakers .*\[minimum, maximum\]"):
        SimulationSettings(speakers=(4, 2))


def test_clips_without_speech_are_left_out_and_nothing_but_them_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = speaker_folder(tmp_path / "speakers", speakers=2, clips=2)
    rng = np.random.default_rng(0)
    for name in ("s0/0.wav", "s0/1.wav"):  # so quiet that nothing stands out, a tenth of a second is left
        sound = np.zeros(RATE, np.float32)
        sound[:1600] = 0.1 * rng.standard_normal(1600)
        soundfile.write(folder / name, sound, RATE, subtype="PCM_16")
    with caplog.at_level("WARNING", "phonate"):
        of_one = ClipBank.of([source(folder, tmp_path / "cache")], RATE, 0.5)
    assert of_one.speakers == ["s1"]
    assert "2 recordings" in caplog.text
    assert "s0/0" in caplog.text
    with pytest.raises(DataError, match="at least 9 s"):
        ClipBank.of([source(folder, tmp_path / "cache")], RATE, 9.0)


def test_long_recordings_of_one_speaker_are_several_clips(tmp_path: Path) -> None:
    (tmp_path / "long" / "ann").mkdir(parents=True)
    soundfile.write(tmp_path / "long" / "ann" / "talk.wav", voice(150.0, 120.0, 0), RATE, subtype="PCM_16")
    whole = source(tmp_path / "long", tmp_path / "cache")
    segments = whole.speech(0)
    assert sorted(set(segments[:, 0].tolist())) == [0, 1, 2]
    assert (segments[:, 3] - segments[:, 2]).sum() / RATE == pytest.approx(150.0, abs=0.2)


# Acoustics


@pytest.mark.parametrize("length", [4_000, 48_000])  # 48000: rt60 of 3 s at 16 kHz
def test_convolution_equals_the_definition(length: int) -> None:
    rng = np.random.default_rng(0)
    sources = rng.standard_normal((3, 70_000)).astype(np.float32)
    sources[1, 20_000:] = 0.0
    sources[2] = 0.0
    responses = rng.standard_normal((3, length)).astype(np.float32)
    expected = sum(
        np.fft.irfft(np.fft.rfft(one, 1 << 17) * np.fft.rfft(two, 1 << 17))[:70_000]
        for one, two in zip(sources.astype(np.float64), responses.astype(np.float64), strict=True)
    )
    np.testing.assert_allclose(convolved(sources, responses), expected, atol=2e-3)


def test_a_room_decays_by_60_db_in_its_reverberation_time() -> None:
    response = np.mean([room_response(0.5, 0.0, RATE, generator(one)) ** 2 for one in range(40)], axis=0)
    direct, tail = response[0], response[1:]
    assert direct == pytest.approx(1.0)
    assert 10 * np.log10(direct / tail.sum()) == pytest.approx(0.0, abs=0.1)
    early, late = tail[1_000:1_800].mean(), tail[5_000:5_800].mean()
    assert 10 * np.log10(early / late) == pytest.approx(60.0 * 4_000 / (0.5 * RATE), abs=1.5)


@pytest.mark.parametrize("snr", [0.0, 15.0])
def test_noise_and_level_are_as_chosen(bank: ClipBank, snr: float) -> None:
    settings = {"reverberation": 0.0, "level_db": (-20.0, -20.0)}
    clean = simulator(bank, AcousticSettings(**settings, noise=0.0), speakers=(2, 2), overlap=0.0)
    noisy = simulator(bank, AcousticSettings(**settings, noise=1.0, snr_db=(snr, snr)), speakers=(2, 2), overlap=0.0)
    one, two = (made.conversation(30 * RATE, generator(6)) for made in (clean, noisy))
    speech = np.repeat(talking(one).any(axis=1), RATE // 100)
    level = 10 * np.log10(np.mean(one.waveform_N[speech] ** 2))
    noise = 10 * np.log10(np.mean((two.waveform_N - one.waveform_N) ** 2))
    assert level == pytest.approx(-20.0, abs=0.6)
    assert level - noise == pytest.approx(snr, abs=1.0)


def test_a_recording_in_which_nobody_speaks_is_not_made_as_loud_as_speech() -> None:
    quiet = (1e-3 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    acoustics = Acoustics(AcousticSettings(reverberation=0.0, noise=1.0), RATE, ColouredNoise())
    for number in range(8):
        made = acoustics(quiet[None], 0, generator(number))
        assert 0.9e-3 < np.sqrt(np.mean(made**2)) < 1.6e-3
        assert np.sqrt(np.mean(acoustics(quiet[None], RATE, generator(number)) ** 2)) > 4e-3


def test_synthetic_noise_has_level_one_and_many_colours() -> None:
    noise, tilts = ColouredNoise(), list[float]()
    for number in range(20):
        made = noise(RATE, generator(number))
        power = np.abs(np.fft.rfft(made)) ** 2
        tilts.append(10 * np.log10(power[100:500].mean() / power[4000:].mean()))
        assert 0.5 < np.sqrt(np.mean(made**2)) < 2.0
    assert max(tilts) - min(tilts) > 10.0


def test_recorded_noise_is_cut_or_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "noise"
    folder.mkdir()
    rng = np.random.default_rng(0)
    sound = (0.1 * rng.standard_normal(RATE)).astype(np.float32)
    soundfile.write(folder / "hiss.wav", sound, RATE, subtype="PCM_16")
    prepared = prepared_folder(folder, tmp_path / "cache")
    noise = RecordedNoise(prepared, [0])
    for samples in (RATE // 2, RATE, 3 * RATE + 7):
        made = noise(samples, generator(1))
        assert len(made) == samples
        assert np.sqrt(np.mean(made**2)) == pytest.approx(1.0, abs=0.02)
    longest = noise(3 * RATE, generator(1))
    np.testing.assert_array_equal(longest[:RATE], longest[RATE : 2 * RATE])


# Labels in frames, and files


def test_columns_come_in_the_order_of_arrival() -> None:
    begin, end = np.array([5.0, -3.0, 0.0, 8.0]), np.array([9.0, 2.0, 4.0, 8.2])
    activity, speakers = arrival_activity(begin, end, np.array([7, 4, 2, 1]), frames=8, centre=0.5)
    assert speakers.tolist() == [2, 4, 7]  # 2 and 4 both talk in the first frame; 1 begins after the last one
    assert activity.T.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]]


def a_conversation(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The activity (T, S) of speakers with different numbers or none (-1), each of whom talks at least once."""
    frames, strangers = int(rng.integers(1, 7)), int(rng.integers(3))
    known = rng.choice(5, rng.integers(4), replace=False)
    numbers = rng.permutation(np.concatenate([known, np.full(strangers, -1)])).astype(np.int64)
    activity = rng.integers(0, 2, (frames, len(numbers)), dtype=np.uint8)
    activity[rng.integers(frames, size=len(numbers)), np.arange(len(numbers))] = 1
    return activity, numbers


@pytest.mark.parametrize("seed", range(50))
def test_two_conversations_at_once_have_the_speech_of_both(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = a_conversation(rng), a_conversation(rng)
    activity, numbers = mixed_activity(*one, *two)
    expected: dict[tuple[int, int, int], np.ndarray] = {}
    for which, (own, people) in enumerate((one, two)):
        for column, person in enumerate(people.tolist()):
            key = (person, -1, -1) if person >= 0 else (person, which, column)
            talk = np.zeros(len(one[0]), np.uint8)
            talk[: len(own)] = own[: len(talk), column]
            expected[key] = expected.get(key, 0 * talk) | talk
    wanted = sorted((key[0], tuple(talk.tolist())) for key, talk in expected.items() if talk.any())
    assert sorted(zip(numbers.tolist(), map(tuple, activity.T.tolist()), strict=True)) == wanted
    arrivals = list(zip(activity.argmax(axis=0).tolist(), numbers.tolist(), strict=True))
    assert arrivals == sorted(arrivals)


def test_conversations_as_files_are_a_corpus(bank: ClipBank, tmp_path: Path) -> None:
    made = simulator(bank, speakers=(2, 2), overlap=0.3)
    written = write_conversations(tmp_path / "talks", made, 3, 12.0)
    assert read_rttm(tmp_path / "talks/ref.rttm").keys() == written.keys()
    checked, report = check_corpus(KaldiData(path=str(tmp_path / "talks")))
    assert report.usable == 3
    assert not report.refused
    assert all(one.seconds == 12.0 for one in checked)
    assert 0.1 < report.overlap_seconds / report.speech_seconds < 0.6
    again = write_conversations(tmp_path / "again", made, 3, 12.0)
    assert again == written
    assert (tmp_path / "again/0002.wav").read_bytes() == (tmp_path / "talks/0002.wav").read_bytes()


def test_clips_of_recorded_conversations_hold_one_voice(tmp_path: Path) -> None:
    """Two people in a recording, one second of it together: no clip reaches into that second."""
    first, second = np.zeros(8 * RATE, np.float32), np.zeros(8 * RATE, np.float32)
    first[: 4 * RATE] = voice(4.0, 100.0, 1)
    second[3 * RATE : 7 * RATE] = voice(4.0, 170.0, 2)
    folder = tmp_path / "talk"
    folder.mkdir()
    soundfile.write(folder / "m1.wav", first + second, RATE, subtype="PCM_16")
    write_rttm(folder / "m1.rttm", {"m1": [SpeakerTurn(0.0, 4.0, "ann"), SpeakerTurn(3.0, 7.0, "bob")]})
    prepared = prepare(KaldiData(path=str(folder), cache_dir=str(tmp_path / "cache"), unit="recording", validation=0.0))
    of_talk = ClipBank.of(
        [Source(prepared, [0], lambda position, speaker: prepared.index.speakers[speaker], RATE)], RATE, 0.5
    )
    assert of_talk.speakers == ["ann", "bob"]
    np.testing.assert_allclose(of_talk.seconds(), [3.0, 3.0], atol=0.05)
    made = simulator(of_talk, DRY, speakers=(1, 1), overlap=0.0, gain_db=0.0)
    for number in range(6):
        conversation = made.conversation(4 * RATE, generator(8, number))
        heard = conversation.waveform_N * np.hanning(4 * RATE)
        spectrum = np.abs(np.fft.rfft(heard))
        own, other = ((100, 170), (170, 100))[int(conversation.speakers[0])]
        assert spectrum[4 * other - 8 : 4 * other + 8].max() < 0.05 * spectrum[4 * own - 8 : 4 * own + 8].max()
