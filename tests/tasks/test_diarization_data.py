"""Samples of diarization: labels at the right frames, nobody both in training and in validation, shares, refusals."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from phonate.cli import main
from phonate.config.errors import DataError, InputError
from phonate.config.randomness import generator
from phonate.config.resolve import resolve
from phonate.data.annotations import SpeakerTurn, write_rttm, write_uem
from phonate.data.batches import COLLATORS, with_collator
from phonate.data.corpora.manifest import read_corpus
from phonate.data.features import FEATURES
from phonate.data.loading import BatchSource
from phonate.tasks.diarization.data import DiarizationCollator, DiarizationCorpus, DiarizationDataset
from phonate.tasks.diarization.evaluation import validation_recordings
from phonate.tasks.diarization.settings import DiarizationData, MixingSettings
from phonate.tasks.diarization.task import DiarizationTask

RATE = 16_000
TURNS = {
    "m1": [(0.0, 5.0, "ann"), (4.0, 9.0, "bob"), (11.0, 13.0, "ann")],
    "m2": [(1.0, 6.0, "cat"), (5.5, 12.0, "dan")],
    "m3": [(0.5, 3.25, "eve"), (3.0, 12.0, "fay")],
    "m4": [(2.0, 10.0, "gus"), (2.0, 4.0, "hal")],
}


@cache
def tone(seconds: float, pitch: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * RATE)) / RATE
    sound = 0.1 * sum(np.sin(2 * np.pi * pitch * h * at) / h for h in range(1, 8))
    softer = np.where((4 * at) % 1.0 > 0.8, 0.2, 1.0)  # as between syllables
    return (softer * (sound + 0.003 * rng.standard_normal(len(at)))).astype(np.float32)


def meetings(folder: Path, turns: dict[str, list[tuple[float, float, str]]] = TURNS, seconds: float = 14.0) -> Path:
    """Recordings in which every speaker is a tone, and the RTTM of them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, of_one) in enumerate(turns.items()):
        sound = 0.0005 * np.random.default_rng(number).standard_normal(round(seconds * RATE)).astype(np.float32)
        for start, end, speaker in of_one:
            pitch = 90.0 + 17.0 * (ord(speaker[0]) - ord("a"))
            first = round(start * RATE)
            sound[first : first + round((end - start) * RATE)] += tone(end - start, pitch, number)
        soundfile.write(folder / f"{name}.wav", sound, RATE, subtype="PCM_16")
    write_rttm(folder / "all.rttm", {name: [SpeakerTurn(*turn) for turn in of_one] for name, of_one in turns.items()})
    return folder


def speakers(folder: Path, names: str = "abcdefgh") -> Path:
    """A folder of clips for each speaker: a second of silence, two of speech, half a second of silence."""
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for clip in range(3):
            quiet = np.zeros(RATE, np.float32)
            sound = np.concatenate([quiet, tone(2.0, 100.0 + 20.0 * number, 10 * number + clip), quiet[: RATE // 2]])
            soundfile.write(folder / name / f"{clip}.wav", sound, RATE, subtype="PCM_16")
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Any:
    """`data(**settings)`: a corpus's settings with a cache of the test's own."""

    def settings(**values: Any) -> DiarizationData:
        return DiarizationData.model_validate({"cache_dir": str(tmp_path / "cache"), "chunk_seconds": 4.0, **values})

    return settings


def samples(settings: DiarizationData, split: str = "train") -> DiarizationDataset:
    return DiarizationDataset(DiarizationCorpus(settings), split)


# Pieces of recordings


def test_labels_are_the_speakers_at_the_centres_of_frames(tmp_path: Path, data: Any) -> None:
    corpus = DiarizationCorpus(data(path=str(meetings(tmp_path / "talk")), validation=0.0))
    train = DiarizationDataset(corpus, "train")
    for number in range(len(train.ids)):
        item = train.get(number, generator(0, number))
        turns = TURNS[item.source]
        names = [corpus.speakers[one] for one in item.speakers_S]
        for frame in range(0, len(item.features_TF), 7):
            at = item.start + (frame + 0.5) / 100
            talking = {name for start, end, name in turns if start <= at < end}
            labelled = {name for name, here in zip(names, item.activity_TS[frame], strict=True) if here}
            assert labelled == talking, (item.source, at)
        first = [np.flatnonzero(column)[0] for column in item.activity_TS.T]
        assert first == sorted(first)


def test_those_who_begin_together_come_by_name_and_the_silent_have_no_column(tmp_path: Path, data: Any) -> None:
    corpus = DiarizationCorpus(data(path=str(meetings(tmp_path / "talk")), validation=0.0))
    position = next(one for one in corpus.positions("train") if corpus.prepared.index.id[one] == "m4")
    activity, numbers = corpus.activity(position, 100, 500)
    assert [corpus.speakers[one] for one in numbers] == ["gus", "hal"]
    assert activity.sum(axis=0).tolist() == [300, 200]
    activity, numbers = corpus.activity(position, 450, 500)
    assert [corpus.speakers[one] for one in numbers] == ["gus"]
    assert corpus.activity(position, 0, 100)[0].shape == (100, 0)


def test_features_of_a_piece_are_those_of_the_whole(tmp_path: Path, data: Any) -> None:
    settings = data(path=str(meetings(tmp_path / "talk")), validation=0.0)
    corpus = DiarizationCorpus(settings)
    item = DiarizationDataset(corpus, "train").get(0, generator(3))
    sound, _ = soundfile.read(tmp_path / "talk" / f"{item.source}.wav", dtype="float32")
    whole = FEATURES.get("fbank")(settings).compute(sound)
    first = round(item.start * 100)
    np.testing.assert_allclose(item.features_TF, whole[first : first + 400], atol=1e-3)


def test_validation_covers_recordings_once_and_training_anywhere_in_them(tmp_path: Path, data: Any) -> None:
    settings = data(path=str(meetings(tmp_path / "talk")), validation=0.3)
    held_out = samples(settings, "validation")
    assert held_out.lengths.sum() == 1400
    assert held_out.lengths.max() <= 400
    pieces = [held_out.get(number, generator(0)) for number in range(len(held_out.ids))]
    ends = [round(100 * one.start) + len(one.features_TF) for one in pieces]
    assert [round(100 * one.start) for one in pieces] == [0, *ends[:-1]]
    train = samples(settings)
    starts = {round(100 * train.get(0, generator(epoch)).start) for epoch in range(50)}
    assert len(starts) > 20
    everywhere = [train.get(number, generator(number)) for number in range(len(train.ids))]
    assert max(one.start for one in everywhere if one.source == everywhere[0].source) > 6.0


def test_an_epoch_has_as_many_pieces_as_are_asked_for_from_all_recordings(tmp_path: Path, data: Any) -> None:
    settings = data(path=str(meetings(tmp_path / "talk")), validation=0.0)
    assert len(samples(settings).ids) == 16  # 14 s are four pieces of 4 s
    for count in (3, 40):
        train = samples(settings.model_copy(update={"samples": count}))
        assert len(train.ids) == len(set(train.ids)) == count
        drawn = [train.get(number % count, generator(number)) for number in range(60)]
        assert {one.source for one in drawn} == set(TURNS)
        assert all(len(one.features_TF) <= train.lengths[0] for one in drawn)


def test_snipped_edges_move_labels_with_the_frames(tmp_path: Path, data: Any) -> None:
    turns = {"m1": [(1.0, 2.0, "ann"), (3.0, 3.5, "bob")]}
    settings = data(
        path=str(meetings(tmp_path / "talk", turns, 6.0)),
        validation=0.0,
        audio={"snip_edges": True, "frame_length": 0.1},
        chunk_seconds=20.0,
    )
    item = samples(settings).get(0, generator(0))
    # Frame t is samples from t to t + 10 hundredths of a second, its centre at t + 5.
    assert len(item.features_TF) == len(item.activity_TS) == 591
    assert np.flatnonzero(item.activity_TS[:, 0]).tolist() == list(range(95, 195))


def test_uem_regions_are_never_left(tmp_path: Path, data: Any) -> None:
    folder = meetings(tmp_path / "talk")
    write_uem(folder / "all.uem", {name: [(1.0, 5.0), (8.0, 13.0)] for name in TURNS})
    settings = data(path=str(folder), validation=0.0, chunk_seconds=3.0)
    corpus = DiarizationCorpus(settings)
    train = DiarizationDataset(corpus, "train")
    assert len(corpus.prepared.index) == 8
    for number in range(len(train.ids)):
        item = train.get(number, generator(1, number))
        begin = 1.0 if item.source.endswith("00001000") else 8.0
        length = 4.0 if begin == 1.0 else 5.0
        assert item.start + len(item.features_TF) / 100 <= length + 1e-6
        names = [corpus.speakers[one] for one in item.speakers_S]
        at = begin + item.start + 0.005
        turns = TURNS[item.source.rpartition("-")[0]]
        heard = {name for name, here in zip(names, item.activity_TS[0], strict=True) if here}
        assert heard == {name for start, end, name in turns if start <= at < end}


def as_kaldi(folder: Path, target: Path) -> Path:
    """The meetings as a directory of Kaldi."""
    target.mkdir()
    lines: dict[str, list[str]] = {"wav.scp": [], "segments": [], "utt2spk": []}
    for name, turns in TURNS.items():
        lines["wav.scp"].append(f"{name} {folder / name}.wav")
        for number, (start, end, speaker) in enumerate(turns):
            lines["segments"].append(f"{speaker}-{name}-{number} {name} {start} {end}")
            lines["utt2spk"].append(f"{speaker}-{name}-{number} {speaker}")
    for file, content in lines.items():
        (target / file).write_text("\n".join(content) + "\n")
    return target


def as_cuts(folder: Path, target: Path) -> Path:
    """The meetings as a CutSet."""
    cuts, _ = read_corpus(DiarizationData(path=str(folder)))
    cuts.to_file(target)
    return target


def test_rttm_kaldi_and_lhotse_say_the_same(tmp_path: Path, data: Any) -> None:
    folder = meetings(tmp_path / "talk")
    forms = [folder, as_kaldi(folder, tmp_path / "kaldi"), as_cuts(folder, tmp_path / "cuts.jsonl.gz")]
    found = []
    for form in forms:
        corpus = DiarizationCorpus(data(path=str(form), validation=0.0, chunk_seconds=20.0))
        train = DiarizationDataset(corpus, "train")
        items = sorted((train.get(number, generator(0)) for number in range(4)), key=lambda one: one.source)
        found.append([(one.source, one.activity_TS.tobytes(), one.features_TF.tobytes()) for one in items])
        assert corpus.speakers == sorted({speaker for turns in TURNS.values() for _, _, speaker in turns})
    assert found[0] == found[1] == found[2]


# Who is held out


def people(corpus: DiarizationCorpus, split: str) -> set[str]:
    index = corpus.prepared.index
    return {index.speakers[one.speaker] for position in corpus.positions(split) for one in index.segments(position)}


def test_nobody_is_in_training_and_in_validation(tmp_path: Path, data: Any) -> None:
    turns = {
        **{f"a{n}": [(0.0, 2.0, "ann"), (1.0, 3.0, f"p{n}")] for n in range(4)},
        **{f"b{n}": [(0.0, 2.0, "bob"), (1.0, 3.0, f"q{n}")] for n in range(3)},
        **{f"c{n}": [(0.0, 2.0, f"r{n}"), (1.0, 3.0, f"s{n}")] for n in range(3)},
    }
    folder = meetings(tmp_path / "talk", turns, 4.0)
    corpus = DiarizationCorpus(data(path=str(folder), validation=0.3))
    train, validation = corpus.positions("train"), corpus.positions("validation")
    assert sorted(train + validation) == list(range(10))
    assert 1 <= len(validation) <= 4
    assert not people(corpus, "train") & people(corpus, "validation")
    item = DiarizationDataset(corpus, "validation").get(0, generator(0))
    assert set(item.speakers_S.tolist()) == {-1}
    # The faulty way, by recordings alone, lets speakers through.
    leaky = DiarizationCorpus(data(path=str(folder), validation=0.3, validation_by="recording"))
    assert people(leaky, "train") & people(leaky, "validation")


def test_named_speakers_stay_in_training(tmp_path: Path) -> None:
    """Label type speaker_id: validation by strangers would hear silence alone."""
    couples = [("ann", "ben"), ("cid", "dot")]  # who have no recording in common: strangers could be held out
    turns = {f"{one}-{other}-{n}": [(0.0, 2.0, one), (1.0, 3.0, other)] for one, other in couples for n in range(3)}
    turns["eve-0"] = [(0.0, 2.0, "eve"), (1.0, 3.0, "ann")]  # her only recording, which the ids alone would hold out
    folder = meetings(tmp_path / "talk", turns, 4.0)
    named = {"data.path": str(folder), "data.cache_dir": str(tmp_path / "cache"), "data.validation": 0.6}
    named |= {"data.chunk_seconds": 4.0, "training.eval_knobs.label_type": "speaker_id"}
    for chosen in ({}, {"data.validation_by": "recording"}):
        recipe = resolve("diarization", named | chosen).recipe
        corpus = DiarizationTask(recipe).corpus
        assert corpus.speakers == ["ann", "ben", "cid", "dot", "eve"]
        assert len(corpus.positions("validation")) >= 2
        validation = DiarizationDataset(corpus, "validation")
        heard = {number for i in range(len(validation.ids)) for number in validation.get(i, generator(0)).speakers_S}
        assert heard
        assert -1 not in heard
        kept = {corpus.prepared.index.id[position] for position in corpus.positions("validation")}
        assert {one.id for one in validation_recordings(recipe)} == kept


def test_named_speakers_can_not_be_validated_by_strangers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for split, names in (("train", ("m1", "m2")), ("dev", ("m3",))):
        meetings(tmp_path / "talk" / split, {n: [(0.0, 2.0, f"a{split}"), (1.0, 3.0, f"b{split}")] for n in names})
    named = {"data.path": str(tmp_path / "talk"), "data.cache_dir": str(tmp_path / "cache"), "data.chunk_seconds": 2.0}
    named |= {"training.eval_knobs.label_type": "speaker_id", "data.simulation": None}
    with pytest.raises(InputError, match=r"validation_by.*speaker_id.*recording"):
        DiarizationTask(resolve("diarization", named | {"data.validation_by": "speaker"}).recipe)
    with caplog.at_level(logging.WARNING, "phonate"):
        _ = DiarizationTask(resolve("diarization", named).recipe).corpus
    assert "speaker_id: none of the 2 speakers in validation is in training" in caplog.text
    unvalidated = DiarizationTask(resolve("diarization", named | {"data.validation": 0}).recipe).corpus
    assert len(unvalidated.speakers) == 4


def test_names_of_one_recording_only_are_other_people_elsewhere(
    tmp_path: Path, data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    turns = {f"m{n}": [(0.0, 2.0, "spk00"), (1.0, 3.0, "spk01")] for n in range(4)}
    folder = meetings(tmp_path / "talk", turns, 4.0)
    with caplog.at_level(logging.WARNING, "phonate"):
        linked = DiarizationCorpus(data(path=str(folder), validation=0.25))
    assert "data.speaker_names=recording" in caplog.text
    assert (len(linked.speakers), len(linked.positions("validation"))) == (2, 1)
    caplog.clear()
    apart = DiarizationCorpus(data(path=str(folder), validation=0.25, speaker_names="recording"))
    assert not caplog.text
    assert len(apart.speakers) == 6
    assert apart.speakers[0].endswith("/spk00")


def test_official_splits_are_kept(tmp_path: Path, data: Any) -> None:
    for split, names in (("train", ("m1", "m2")), ("dev", ("m3",)), ("test", ("m4",))):
        meetings(tmp_path / "talk" / split, {name: TURNS[name] for name in names})
    corpus = DiarizationCorpus(data(path=str(tmp_path / "talk")))
    ids = {split: [corpus.prepared.index.id[one] for one in corpus.positions(split)] for split in ("train", "test")}
    assert ids == {"train": ["m1", "m2"], "test": ["m4"]}
    assert [DiarizationDataset(corpus, "validation").get(0, generator(0)).source] == ["m3"]
    assert set(corpus.speakers) == {"ann", "bob", "cat", "dan"}


# Simulated conversations


def test_who_speaks_when_is_not_learnt_of_recordings_with_one_speaker_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = f"data.path={speakers(tmp_path / 'people', 'ab')}"
    for command in ("explain", "data check", "train"):
        words = [*command.split(), "diarization-whisper"]
        output = ["--output", str(tmp_path / "run")] if words[0] == "train" else []
        assert main([*words, people, *output]) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"error: {tmp_path / 'people'}: no recording has two speakers")
        assert "data.simulation={}" in told
    speech_alone = ["training.eval_knobs.label_type=binary", "model.decoding.smoothing=null"]
    for legitimate in (speech_alone, ["data.simulation={}"]):
        assert main(["explain", "diarization-whisper", people, *legitimate]) == 0
    alternating = meetings(tmp_path / "alone", {"m1": [(0.5, 2.0, "ann")], "m2": [(1.0, 2.0, "bob")]})
    assert main(["explain", "diarization-whisper", f"data.path={alternating}", "data.mixing={}"]) == 0
    assert main(["explain", "diarization-whisper", f"data.path={meetings(tmp_path / 'talk')}"]) == 0


@pytest.mark.parametrize(("names", "advice"), [("ab", "data.simulation={}"), ("a", "a single speaker is too few")])
def test_recordings_without_labels_are_refused_where_they_would_only_be_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str, advice: str
) -> None:
    """The recipe mixes chunks, and of whole files it is not known when anybody speaks."""
    people = f"data.path={speakers(tmp_path / 'people', names)}"
    assert main(["train", "diarization-pretrained", people, "--dry-run"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"error: {tmp_path / 'people'}: no recording has two speakers")
    assert advice in told


def test_recordings_without_labels_beside_labelled_ones_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be speech of one speaker from beginning to end."""
    corpora = [
        {"name": "talk", "path": str(meetings(tmp_path / "talk"))},
        {"name": "raw", "path": str(speakers(tmp_path / "raw", "ab"))},
    ]
    assert main(["train", "diarization-pretrained", f"data.datasets={json.dumps(corpora)}", "--dry-run"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "no labels say who speaks when in 6 of 10 recordings: raw/a/0, raw/a/1, raw/a/2 and 3 more; " in told
    (tmp_path / "ids.txt").write_text("".join(f"raw/{name}/{clip}\n" for name in "ab" for clip in range(3)))
    dropped = [f"data.datasets={json.dumps(corpora)}", f"data.drop={tmp_path / 'ids.txt'}"]
    assert main(["explain", "diarization-pretrained", *dropped]) == 0


def test_clips_alone_are_simulated_with_strangers_in_validation(tmp_path: Path, data: Any) -> None:
    settings = data(path=str(speakers(tmp_path / "clips")), simulation={"speakers": [2, 2], "validation_samples": 5})
    corpus = DiarizationCorpus(settings)
    assert corpus.simulated_share == 1.0
    assert not corpus.validates_on_recordings
    banks = {split: set(one.bank.speakers) for split, one in corpus.simulators.items()}
    assert banks["train"] | banks["validation"] == set("abcdefgh")
    assert not banks["train"] & banks["validation"]
    train, held_out = DiarizationDataset(corpus, "train"), DiarizationDataset(corpus, "validation")
    assert (len(train.ids), len(held_out.ids)) == (1000, 5)
    item = train.get(0, generator(0))
    assert item.features_TF.shape == (400, 80)
    assert item.activity_TS.shape[0] == 400
    assert {corpus.speakers[one] for one in item.speakers_S} <= banks["train"]
    assert set(held_out.get(0, generator(0)).speakers_S.tolist()) == {-1}


def test_official_test_and_validation_speakers_are_kept_apart(tmp_path: Path, data: Any) -> None:
    for split, names in (("train", "abcd"), ("dev", "ef"), ("test", "gh")):
        speakers(tmp_path / "clips" / split, names)
    corpus = DiarizationCorpus(data(path=str(tmp_path / "clips"), simulation={"speakers": [2, 2]}))
    banks = {split: one.bank.speakers for split, one in corpus.simulators.items()}
    assert banks == {"train": list("abcd"), "validation": list("ef")}


def test_official_validation_speakers_who_are_in_training_are_no_strangers(tmp_path: Path, data: Any) -> None:
    for split, names in (("train", "abcd"), ("dev", "cdef")):
        speakers(tmp_path / "clips" / split, names)
    corpus = DiarizationCorpus(data(path=str(tmp_path / "clips"), simulation={"speakers": [2, 2]}))
    assert corpus.simulators["validation"].bank.speakers == ["e", "f"]
    few = data(path=str(tmp_path / "clips"), simulation={"speakers": [3, 3]})
    with pytest.raises(DataError, match="2 in the official validation split"):
        samples(few)


def test_validation_conversations_are_the_same_whatever_the_generator(tmp_path: Path, data: Any) -> None:
    settings = data(path=str(speakers(tmp_path / "clips")), simulation={"speakers": [2, 2]})
    held_out, train = samples(settings, "validation"), samples(settings)
    one, two = held_out.get(1, generator(1)), held_out.get(1, generator(2))
    assert one.features_TF.tobytes() == two.features_TF.tobytes()
    assert one.activity_TS.tobytes() == two.activity_TS.tobytes()
    first, second = train.get(1, generator(0, 0)), train.get(1, generator(0, 1))
    assert first.features_TF.tobytes() != second.features_TF.tobytes()


def test_shares_of_real_and_simulated_samples(tmp_path: Path, data: Any) -> None:
    talk, clips = str(meetings(tmp_path / "talk")), str(speakers(tmp_path / "clips"))
    settings = data(path=talk, validation=0.25, samples=50, simulation={"path": clips, "share": 0.8})
    train = samples(settings)
    simulated = [name for name in train.ids if name.startswith("simulated")]
    assert (len(train.ids), len(simulated), len(set(train.ids))) == (50, 40, 50)
    assert samples(settings, "validation").get(0, generator(0)).source in TURNS
    natural = samples(settings.model_copy(update={"samples": None}))
    real = [name for name in natural.ids if not name.startswith("simulated")]
    assert (len(real), len(natural.ids)) == (12, 60)  # three recordings of four pieces, and four times as many
    assert train.get(0, generator(0)).source in TURNS
    assert train.get(49, generator(0)).source == ""


def test_changed_clips_are_seen_in_what_a_resume_compares(tmp_path: Path, data: Any) -> None:
    talk, clips = meetings(tmp_path / "talk"), speakers(tmp_path / "clips")
    settings = data(path=str(talk), validation=0.25, simulation={"path": str(clips)})
    before = samples(settings).digests
    shutil.copyfile(clips / "a" / "0.wav", clips / "b" / "1.wav")
    after = samples(settings).digests
    assert before.keys() == after.keys()
    (changed,) = {name for name in before if before[name] != after[name]}
    assert changed.endswith("b/1")


def test_clips_of_the_corpus_itself_are_those_of_training_recordings(tmp_path: Path, data: Any) -> None:
    """Otherwise the model would hear the voices that it is validated on."""
    talk, clips = meetings(tmp_path / "talk"), speakers(tmp_path / "clips")
    settings = data(path=str(talk), validation=0.25, simulation={"path": [str(talk), str(clips)], "speakers": [2, 2]})
    corpus = DiarizationCorpus(settings)
    bank = corpus.simulators["train"].bank.speakers
    assert people(corpus, "validation")
    assert not set(bank) & people(corpus, "validation")
    assert people(corpus, "train") - set(bank) <= {"hal"}  # who never talks alone
    assert {f"clips/{name}" for name in "abcdefgh"} <= set(bank)
    assert len(corpus.speakers) == len(set(corpus.speakers)) == 6 + 8  # people of real recordings have one number


def test_conversations_beside_recordings_have_no_more_speakers_than_there_are(
    tmp_path: Path, data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    talk = meetings(tmp_path / "talk", {name: [(1.0, 4.0, "ann"), (5.0, 8.0, "ben")] for name in ("x", "y", "z")})
    settings = {"path": str(talk), "validation": 0.34, "validation_by": "recording", "samples": 20}
    corpus = DiarizationCorpus(data(**settings, simulation={"speakers": [1, 4]}))
    assert corpus.simulators["train"].settings.speakers == (1, 2)
    assert corpus.simulated_share == 0.5
    assert "2 speaker(s)" in caplog.text
    with pytest.raises(DataError, match=r"4 speakers .* data\.simulation\.speakers"):  # they were asked for
        _ = DiarizationCorpus(data(**settings, simulation={"speakers": [1, 4], "share": 0.5})).simulators


def test_recordings_without_a_clip_of_one_speaker_are_trained_on_alone(
    tmp_path: Path, data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    talk = meetings(tmp_path / "talk", {name: [(1.0, 4.0, "ann"), (1.0, 4.0, "ben")] for name in ("x", "y", "z")})
    settings = {"path": str(talk), "validation": 0.34, "validation_by": "recording", "samples": 20}
    corpus = DiarizationCorpus(data(**settings, simulation={"speakers": [1, 4]}))
    assert (corpus.simulators, corpus.simulated_share) == ({}, 0.0)
    assert "no conversations are simulated" in caplog.text
    assert len(DiarizationDataset(corpus, "train").ids) == 20


def test_clips_of_one_of_several_data_sets(tmp_path: Path, data: Any) -> None:
    one, two = meetings(tmp_path / "one"), meetings(tmp_path / "two")
    datasets = [{"name": "first", "path": str(one)}, {"name": "second", "path": str(two)}]
    simulation = {"path": [str(two)], "speakers": [2, 2]}
    corpus = DiarizationCorpus(data(datasets=datasets, validation=0.2, simulation=simulation))
    bank = set(corpus.simulators["train"].bank.speakers)
    assert bank
    assert bank <= people(corpus, "train")
    assert all(name.startswith("second/") for name in bank)
    assert {name.partition("/")[0] for name in corpus.speakers} == {"first", "second"}


def test_batches_do_not_depend_on_workers(tmp_path: Path, data: Any) -> None:
    talk, clips = str(meetings(tmp_path / "talk")), str(speakers(tmp_path / "clips"))
    settings = data(path=talk, validation=0.25, samples=12, augmentation={}, simulation={"path": clips})

    def batches(workers: int) -> list[Any]:
        made = BatchSource(samples(settings), seed=3, batch_size=4, num_workers=workers)
        try:
            return [one for epoch in (0, 1) for one in made.epoch(epoch)]
        finally:
            made.close()

    alone, helped = batches(0), batches(2)
    assert [one.ids for one in alone] == [one.ids for one in helped]
    for one, two in zip(alone, helped, strict=True):
        for name in one.batch:
            assert torch.equal(one.batch[name], two.batch[name]), name


def test_a_data_set_reaches_workers_that_are_started_anew(tmp_path: Path, data: Any) -> None:
    """As on macOS, where workers get a pickle."""
    talk, clips = str(meetings(tmp_path / "talk")), str(speakers(tmp_path / "clips"))
    train = samples(data(path=talk, validation=0.25, samples=6, augmentation={}, simulation={"path": clips}))
    again = pickle.loads(pickle.dumps(train))
    assert list(again.ids) == list(train.ids)
    for number in (0, 5):
        one, two = train.get(number, generator(number)), again.get(number, generator(number))
        assert one.features_TF.tobytes() == two.features_TF.tobytes()
        assert one.speakers_S.tolist() == two.speakers_S.tolist()


def test_too_few_speakers_for_two_splits_are_one_clear_line(tmp_path: Path, data: Any) -> None:
    settings = data(path=str(speakers(tmp_path / "clips", "abc")), simulation={"speakers": [2, 2]})
    with pytest.raises(DataError, match="training and validation need 2 each, found 3"):
        samples(settings)
    assert len(samples(settings.model_copy(update={"validation": 0.0})).ids) == 1000


def test_other_acoustics_change_features_but_no_labels(tmp_path: Path, data: Any) -> None:
    talk = str(meetings(tmp_path / "talk"))
    plain = samples(data(path=talk, validation=0.0))
    varied = samples(data(path=talk, validation=0.0, augmentation={"reverberation": 1.0, "noise": 1.0}))
    for number in range(4):
        one, two = plain.get(number, generator(number)), varied.get(number, generator(number))
        assert one.activity_TS.tobytes() == two.activity_TS.tobytes()
        assert one.features_TF.shape == two.features_TF.shape
        assert np.abs(one.features_TF - two.features_TF).mean() > 0.3
    held_out = data(path=talk, validation=0.25, augmentation={"noise": 1.0})
    assert samples(held_out, "validation").get(0, generator(1)).features_TF.tobytes() == (
        samples(held_out, "validation").get(0, generator(2)).features_TF.tobytes()
    )


def test_pieces_are_added_with_their_labels(tmp_path: Path, data: Any) -> None:
    """The sound and the labels of a mixed sample are those of two pieces of different recordings."""
    talk = str(meetings(tmp_path / "talk", {name: TURNS[name] for name in ("m1", "m2")}))
    whole = {"path": talk, "validation": 0.0, "chunk_seconds": 14.0, "samples": 8}
    mixed, plain = samples(data(**whole, mixing={"share": 1.0})), samples(data(**whole))
    corpus = DiarizationCorpus(data(**whole))
    sounds = [corpus.prepared.cache.waveform(position) for position in (0, 1)]
    one = mixed.get(0, generator(0))
    together = corpus.features.compute(sounds[0] + sounds[1])
    np.testing.assert_allclose(one.features_TF, together, atol=1e-3)
    alone = [plain.get(number, generator(0)) for number in (0, 7)]
    assert sorted(one.speakers_S.tolist()) == sorted(number for item in alone for number in item.speakers_S.tolist())
    assert one.activity_TS.sum() == sum(item.activity_TS.sum() for item in alone)
    begins = one.activity_TS.argmax(axis=0).tolist()
    assert begins == sorted(begins)
    assert not mixed.cached


def test_pieces_with_too_many_speakers_together_are_not_added(tmp_path: Path, data: Any) -> None:
    talk = str(meetings(tmp_path / "talk"))
    whole = {"path": talk, "validation": 0.0, "chunk_seconds": 14.0, "samples": 8}
    mixed = samples(data(**whole, mixing={"share": 1.0, "speakers": 3}))
    assert {mixed.get(number, generator(number)).activity_TS.shape[1] for number in range(8)} == {2}
    more = samples(data(**whole, mixing={"share": 1.0, "speakers": 4}))
    assert {more.get(number, generator(number)).activity_TS.shape[1] for number in range(8)} == {4}


def test_validation_is_never_mixed(tmp_path: Path, data: Any) -> None:
    talk = str(meetings(tmp_path / "talk"))
    plain = data(path=talk, validation=0.25)
    mixed = plain.model_copy(update={"mixing": MixingSettings(share=1.0), "pool": 3})
    one, two = (samples(settings, "validation").get(0, generator(1)) for settings in (plain, mixed))
    assert one.features_TF.tobytes() == two.features_TF.tobytes()
    assert one.activity_TS.tobytes() == two.activity_TS.tobytes()


def test_a_pool_is_computed_once_and_drawn_from_evenly(tmp_path: Path, data: Any) -> None:
    talk, clips = str(meetings(tmp_path / "talk")), str(speakers(tmp_path / "clips"))
    settings = {"path": talk, "validation": 0.0, "samples": 60, "augmentation": {}}
    simulation = {"path": clips, "share": 0.75}
    train = samples(data(**settings, simulation=simulation, pool=8))
    assert train.cached
    drawn = {"recorded": set(), "simulated": set()}
    for epoch in (0, 1):
        for number, name in enumerate(train.ids):
            item = train.get(number, generator(epoch, number))
            drawn[name.partition("#")[0]].add(item.features_TF.tobytes())
    assert (len(drawn["recorded"]), len(drawn["simulated"])) == (2, 6)
    again = pickle.loads(pickle.dumps(train)).get(0, generator(0, 0))
    assert again.features_TF.tobytes() in drawn["recorded"]
    stored = samples(data(**{**settings, "augmentation": None}, pool=8, storage_type="memory"))
    assert len({stored.get(0, generator(epoch)).start for epoch in range(20)}) > 8  # what is stored is in no pool


def test_noise_comes_from_a_folder(tmp_path: Path, data: Any) -> None:
    (tmp_path / "noise").mkdir()
    hum = (0.2 * np.sin(2 * np.pi * 3000 * np.arange(2 * RATE) / RATE)).astype(np.float32)
    soundfile.write(tmp_path / "noise" / "hum.wav", hum, RATE, subtype="PCM_16")
    acoustics = {"reverberation": 0.0, "noise": 1.0, "noise_path": str(tmp_path / "noise"), "snr_db": [0.0, 0.0]}
    settings = data(path=str(meetings(tmp_path / "talk")), validation=0.0, augmentation=acoustics)
    assert [one.path for one in settings.to_prepare] == [settings.path, str(tmp_path / "noise")]
    features = samples(settings).get(0, generator(0)).features_TF
    plain = samples(settings.model_copy(update={"augmentation": None})).get(0, generator(0)).features_TF
    louder = (features - plain).mean(axis=0)
    assert np.argmax(louder) == pytest.approx(80 * 1127 * np.log1p(3000 / 700) / 2790, abs=4)  # the band of 3 kHz


# What can't be used


def test_bad_recordings_are_refused_and_never_silence(tmp_path: Path, data: Any) -> None:
    folder = meetings(tmp_path / "talk")
    (folder / "m2.wav").write_bytes(b"no audio")
    soundfile.write(folder / "unlisted.wav", tone(3.0, 100.0, 0), RATE)
    with (folder / "all.rttm").open("a") as file:
        file.write("SPEAKER gone 1 0.0 2.0 <NA> <NA> ann <NA> <NA>\n")
        file.write("SPEAKER m3 1 zero 2.0 <NA> <NA> ann <NA> <NA>\n")
    corpus = DiarizationCorpus(data(path=str(folder), validation=0.0))
    assert [corpus.prepared.index.id[one] for one in corpus.positions("train")] == ["m1", "m4"]
    refused = {one["id"]: one["reason"] for one in corpus.prepared.report["refused"]}
    assert refused == {
        "m2": "unreadable",
        "unlisted": "no annotation",
        "gone": "missing file",
        "m3": "malformed row",
    }


def test_segments_without_a_speaker_are_refused(tmp_path: Path, data: Any) -> None:
    folder = speakers(tmp_path / "clips", "ab")
    (folder / "list.csv").write_text("path,speaker\na/0.wav,a\na/1.wav,\nb/0.wav,b\n")
    corpus = DiarizationCorpus(data(path=str(folder / "list.csv"), validation=0.0))
    assert corpus.prepared.report["reasons"] == {"no speaker": 1}


def test_recordings_in_which_nobody_speaks_are_fine_beside_others(tmp_path: Path, data: Any) -> None:
    folder = meetings(tmp_path / "talk")
    soundfile.write(folder / "quiet.wav", 0.01 * np.random.default_rng(0).standard_normal(5 * RATE), RATE)
    write_uem(folder / "all.uem", {**{name: [(0.0, 14.0)] for name in TURNS}, "quiet": [(0.0, 5.0)]})
    corpus = DiarizationCorpus(data(path=str(folder), validation=0.0))
    train = DiarizationDataset(corpus, "train")
    items = [train.get(number, generator(0)) for number in range(len(train.ids))]
    quiet = next(one for one in items if one.source == "quiet")
    assert quiet.activity_TS.shape == (len(quiet.features_TF), 0)
    batch = train.collate([quiet, next(one for one in items if one.source == "m1")])
    assert batch["speaker_count"][0] == 0
    assert train.collate([quiet])["activity"].shape == (1, len(quiet.features_TF), 0)


def test_a_corpus_without_speakers_is_an_error(tmp_path: Path, data: Any) -> None:
    folder = tmp_path / "talk"
    folder.mkdir()
    soundfile.write(folder / "quiet.wav", 0.01 * np.random.default_rng(0).standard_normal(5 * RATE), RATE)
    (folder / "all.rttm").write_text("")
    write_uem(folder / "all.uem", {"quiet": [(0.0, 5.0)]})
    with pytest.raises(DataError, match="speaker labels"):
        DiarizationCorpus(data(path=str(folder)))


def test_no_corpus_at_all_is_an_error(data: Any) -> None:
    with pytest.raises(DataError, match=r"data\.path or data\.simulation\.path"):
        DiarizationCorpus(data())


# Batches


def test_a_batch_pads_with_zeros_and_absent_speakers_with_minus_one(tmp_path: Path, data: Any) -> None:
    train = samples(data(path=str(meetings(tmp_path / "talk", {**TURNS, "m5": [(0.0, 1.5, "ida")]}, 13.0))))
    items = [train.get(number, generator(0)) for number in range(len(train.ids))]
    long = next(one for one in items if one.activity_TS.shape[1] == 2)
    short = next(one for one in items if one.activity_TS.shape[1] == 1)
    short = type(short)(short.features_TF[:250], short.activity_TS[:250], short.speakers_S)
    batch = train.collate([long, short])
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "features": ((2, 400, 80), torch.float32),
        "lengths": ((2,), torch.int64),
        "activity": ((2, 400, 2), torch.float32),
        "speaker_count": ((2,), torch.int64),
        "speakers": ((2, 2), torch.int64),
    }
    assert batch["lengths"].tolist() == [400, 250]
    assert batch["speaker_count"].tolist() == [2, 1]
    assert not batch["features"][1, 250:].any()
    assert not batch["activity"][1, 250:].any()
    assert not batch["activity"][1, :, 1].any()
    assert batch["speakers"][1, 1] == -1


def test_a_collator_of_ones_own_is_named_by_the_recipe(tmp_path: Path, data: Any) -> None:
    class CustomCollator(DiarizationCollator):
        def __call__(self, cuts: list[Any]) -> Any:
            batch = super().__call__(cuts)
            return {**batch, "labels": (batch["activity"].sum(-1) > 1).long()}

    COLLATORS.register("several_at_once", CustomCollator)
    train = with_collator(samples(data(path=str(meetings(tmp_path / "talk")))), "several_at_once")
    batch = train.collate([train.get(number, generator(0)) for number in range(3)])
    assert batch["labels"].shape == batch["features"].shape[:2]
    assert set(batch["labels"].unique().tolist()) <= {0, 1}


def test_mistakes_in_a_recipe_have_file_and_line(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("task: diarization\ndata:\n  path: x\n  simulation:\n    speakers: [4, 2]\n")
    with pytest.raises(InputError, match=r"mine\.yaml:5:\d+ data\.simulation"):
        resolve(str(recipe))


@pytest.mark.slow
def test_real_meetings_and_clips_of_real_speakers(recordings: Path, data: Any) -> None:
    settings = data(
        path=str(recordings / "diar_en_ami"),
        validation=0.2,
        chunk_seconds=30.0,
        samples=20,
        simulation={"path": [str(recordings / "spk_en_librispeech/train-clean-100"), str(recordings / "asr_en_an4")]},
    )
    corpus = DiarizationCorpus(settings)
    train, held_out = DiarizationDataset(corpus, "train"), DiarizationDataset(corpus, "validation")
    assert not people(corpus, "train") & people(corpus, "validation")
    simulated = [train.get(number, generator(number)) for number in range(10, 20)]
    speech = np.mean([one.activity_TS.any(axis=1).mean() for one in simulated])
    assert 0.7 < speech < 0.95
    assert all(np.isfinite(one.features_TF).all() for one in simulated)
    assert held_out.lengths.sum() == 3000 * len(held_out.ids)


def test_the_collator_takes_cuts_of_lhotse(tmp_path: Path, data: Any) -> None:
    from torch.utils.data import DataLoader

    from phonate import DiarizationCollator as Exported

    settings = data(path=str(meetings(tmp_path / "talk")), validation=0.0, chunk_seconds=20.0)
    cuts, _ = read_corpus(settings)
    loader = DataLoader(list(cuts), batch_size=4, collate_fn=Exported())
    (batch,) = list(loader)
    train = samples(settings)
    expected = train.collate([train.get(number, generator(0)) for number in range(4)])
    assert batch.keys() == expected.keys()
    for name in ("lengths", "activity", "speaker_count"):
        assert torch.equal(batch[name], expected[name])
    torch.testing.assert_close(batch["features"], expected["features"], atol=1e-3, rtol=0)
    assert (batch["speakers"] == -1).all()
    cut = next(iter(cuts))
    cut.supervisions[0].speaker = None
    with pytest.raises(DataError, match="speaker; fill it in"):
        Exported()([cut])
