"""Which rows train, validate and test: official splits first, then a share by the hashes of recordings."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_corpora import corpus, wav

from phonate.config.errors import DataError
from phonate.data.corpora.rows import official_split
from phonate.data.prepared import prepare, prepare_to_train, split
from phonate.evaluation.held_out import Clip, Overlap, clips_of, trained_on


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("train", "train"),
        ("train-clean-360", "train"),
        ("trn_si84", "train"),
        ("dev-clean", "validation"),
        ("Validation", "validation"),
        ("val", "validation"),
        ("test-00000-of-00002", "test"),
        ("eval", "test"),
        ("trainer", None),
        ("validated", None),
        ("ann", None),
        ("", None),
        (None, None),
    ],
)
def test_names_of_official_splits(name, found):
    assert official_split(name) == found


def listed(folder, splits):
    samples = []
    for number, name in enumerate(splits):
        wav(folder / f"{number}.wav", hertz=200 + 10 * number)
        samples.append({"audio_path": f"{number}.wav", "speaker_id": "ann", **({"split": name} if name else {})})
    (folder / "metadata.json").write_text(json.dumps(samples))
    return folder


def ids(prepared):
    return tuple([prepared.index.id[i] for i in part] for part in (prepared.train, prepared.validation, prepared.test))


def test_official_splits_are_kept_and_test_never_trains(tmp_path):
    folder = listed(tmp_path / "corpus", ["train", "train", "dev", "test", None, "train"])
    prepared = prepare(corpus(folder))
    assert ids(prepared) == (["0", "1", "4", "5"], ["2"], ["3"])
    nothing = prepare(corpus(folder, validation=0.0))
    assert ids(nothing) == (["0", "1", "2", "4", "5"], [], ["3"])


def test_without_an_official_validation_split_a_share_of_the_rest_validates(tmp_path):
    folder = listed(tmp_path / "corpus", ["train"] * 8 + ["test"] * 3)
    train, validation, test = ids(prepare(corpus(folder, validation=0.25)))
    assert (len(train), len(validation), test) == (6, 2, ["8", "9", "10"])


def test_a_test_set_alone_is_not_trained_on(tmp_path):
    data = corpus(listed(tmp_path / "corpus", ["test", "test"]))
    assert ids(prepare(data)) == ([], [], ["0", "1"])
    with pytest.raises(DataError, match="test split"):
        prepare_to_train(data)


def test_the_official_test_split_was_not_trained_on(tmp_path):
    folder = listed(tmp_path / "corpus", ["train", "train", "test"])
    clips = [Clip(str(i), "ann", "", np.zeros(1, np.float32), folder / f"{i}.wav") for i in range(3)]
    assert trained_on(corpus(folder), [], clips[2:]) == Overlap(0, 1)
    assert trained_on(corpus(folder), ["1"], clips) == Overlap(1, 1)


def test_an_unknown_split_is_warned_of(tmp_path):
    prepared = prepare(corpus(listed(tmp_path / "corpus", ["fold1", "train", "train"])))
    (warning,) = (found for found in prepared.report["warnings"] if found["reason"] == "unknown split")
    assert (warning["id"], "'fold1'" in warning["detail"]) == ("0", True)


def test_folders_of_official_splits(tmp_path):
    for name in ("train/ann/a", "train/ann/b", "dev/ann/c", "test/bob/d"):
        wav(tmp_path / f"corpus/{name}.wav")
    assert ids(prepare(corpus(tmp_path / "corpus"))) == (["train/ann/a", "train/ann/b"], ["dev/ann/c"], ["test/bob/d"])


def test_folders_of_official_splits_of_one_speaker(tmp_path):
    for name in ("train/a", "train/b", "validation/c", "test/d"):
        wav(tmp_path / f"anna/{name}.wav")
    prepared = prepare(corpus(tmp_path / "anna"))
    assert ids(prepared) == (["train/a", "train/b"], ["validation/c"], ["test/d"])
    assert prepared.speakers == ["anna"]


def test_speakers_may_be_called_like_splits(tmp_path):
    for name in ("val/a", "ann/b", "ann/c"):
        wav(tmp_path / f"corpus/{name}.wav")
    assert sorted(prepare(corpus(tmp_path / "corpus")).speakers) == ["ann", "val"]


def test_parts_of_a_recording_stay_together():
    names = [f"{recording}-{part}" for recording in range(20) for part in range(5)]
    recordings = np.repeat(np.arange(20), 5)
    train, validation = split(names, np.full(100, -1), 0.2, recordings)
    assert len(validation) == 20
    assert not set(recordings[train]) & set(recordings[validation])
    one_long = np.where(np.arange(100) < 90, 0, np.arange(100))
    train, validation = split(names, np.full(100, -1), 0.05, one_long)
    assert len(validation) == 5
    assert 0 not in one_long[validation]
    _, validation = split(names, np.full(100, -1), 0.05, np.repeat([0, 1], [40, 60]))
    assert len(validation) == 40, "the smaller of two recordings"


def test_one_recording_a_row_is_split_as_before():
    """The rule of earlier versions, which prepared corpora and their runs rely on."""
    from phonate.config.randomness import derived_seed

    rng = np.random.default_rng(0)
    for _ in range(20):
        speakers = rng.integers(0, 4, size=50)
        names = [f"clip-{number}" for number in rng.permutation(1000)[:50]]
        left, chosen = np.bincount(speakers), []
        for position in sorted(range(50), key=lambda i: derived_seed("validation", names[i])):
            if len(chosen) < 10 and left[speakers[position]] > 1:
                left[speakers[position]] -= 1
                chosen.append(position)
        assert split(names, speakers, 0.2)[1].tolist() == sorted(chosen)
        assert split(names, speakers, 0.2, np.arange(50))[1].tolist() == sorted(chosen)


def test_recordings_of_another_corpus_that_can_not_be_used_are_named(tmp_path, caplog):
    for name in ("one.wav", "two.wav"):
        wav(tmp_path / "other" / name)
    (tmp_path / "other" / "two.wav").write_text("no sound")
    assert [clip.id for clip in clips_of(corpus(tmp_path / "voice"), str(tmp_path / "other"))] == ["one"]
    (line,) = [record.message for record in caplog.records if "can't be used" in record.message]
    assert "two.wav: " in line
