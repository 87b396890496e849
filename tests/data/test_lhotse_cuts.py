"""Cuts as Lhotse writes them: JSON, Shar, mixed, padded, changed and trimmed ones sound as Lhotse plays them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from small_corpora import RATE, wav

from phonate.audio.decoding import read_audio
from phonate.config.errors import DataError
from phonate.data.corpora.lhotse import cutset_rows, lhotse_rows
from phonate.data.corpora.manifest import detect_format
from phonate.data.corpora.rows import Problem, StoreError, read_part
from phonate.data.corpora.shards import shar_rows

lhotse = pytest.importorskip("lhotse")


@pytest.fixture
def cuts(tmp_path):
    made = []
    for number, name in enumerate(("ann", "bob")):
        recording = lhotse.Recording.from_file(
            wav(tmp_path / "audio" / f"{name}.wav", 1.0 + number, 220.0 * (number + 1))
        )
        cut = recording.to_cut()
        cut.supervisions = [
            lhotse.SupervisionSegment(name, recording.id, 0.0, recording.duration, speaker=name, text=f"i am {name}")
        ]
        made.append(cut)
    return lhotse.CutSet.from_cuts(made)


def read(rows, path, tmp_path):
    return list(rows(path, tmp_path / "cache"))


def samples(row):
    return read_audio(row.path, RATE, offset=row.start, channel=row.channel)[0]


@pytest.mark.parametrize("name", ["cuts.json", "cuts.jsonl", "cuts.jsonl.gz"])
def test_a_manifest_and_the_folder_that_holds_nothing_else(cuts, tmp_path, name):
    (tmp_path / "cuts").mkdir()
    cuts.to_file(tmp_path / "cuts" / name)
    for path in (tmp_path / "cuts", tmp_path / "cuts" / name):
        assert detect_format(path) == "cutset"
        rows = read(cutset_rows, path, tmp_path)
        assert [(one.id, one.speaker, one.text) for one in rows] == [
            ("ann", "ann", "i am ann"),
            ("bob", "bob", "i am bob"),
        ]
        assert [one.path.name for one in rows] == ["ann.wav", "bob.wav"]


def test_cuts_beside_the_recordings_that_they_name(cuts, tmp_path):
    """And not beside others; of several manifests one is to be named."""
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    assert detect_format(tmp_path) == "cutset"
    assert [one.text for one in read(cutset_rows, tmp_path, tmp_path)] == ["i am ann", "i am bob"]
    wav(tmp_path / "others/x.wav")
    cuts.to_file(tmp_path / "others/cuts.jsonl")
    assert detect_format(tmp_path / "others") == "folder"
    cuts.to_file(tmp_path / "more.jsonl")
    with pytest.raises(DataError, match=r"has cuts\.jsonl\.gz, more\.jsonl; give the file that is meant"):
        read(cutset_rows, tmp_path, tmp_path)


def test_recordings_and_supervisions_in_json(cuts, tmp_path):
    parts = tmp_path / "parts"
    parts.mkdir()
    recordings, supervisions = [one for one in cuts.decompose() if one is not None][:2]
    recordings.to_file(parts / "recordings.json")
    supervisions.to_file(parts / "supervisions.json")
    assert detect_format(parts) == "lhotse"
    assert [one.speaker for one in read(lhotse_rows, parts, tmp_path)] == ["ann", "bob"]


@pytest.mark.parametrize(
    "change",
    [
        lambda ann, bob: ann.mix(bob, offset_other_by=0.4, snr=3),
        lambda ann, bob: ann.pad(duration=1.5),
        lambda ann, bob: ann.append(bob),
        lambda ann, bob: ann.perturb_speed(1.1),
        lambda ann, bob: ann.perturb_volume(0.25),
    ],
    ids=["mixed", "padded", "appended", "speed", "volume"],
)
def test_what_lhotse_computes_is_written_once_with_its_samples_and_supervisions(cuts, tmp_path, change):
    cut = change(*cuts).with_id("made")
    lhotse.CutSet.from_cuts([cut]).to_file(tmp_path / "cuts.jsonl")
    (row,) = read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)
    np.testing.assert_allclose(samples(row), cut.load_audio()[0], atol=1e-5)
    assert [(one.start, one.speaker) for one in row.segments] == [(one.start, one.speaker) for one in cut.supervisions]
    before = row.path.stat().st_mtime_ns
    (again,) = read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)
    assert (again.path, again.path.stat().st_mtime_ns) == (row.path, before)


def test_a_cut_that_finds_no_room_on_the_disk_is_not_left_out_as_malformed(cuts, tmp_path):
    ann, bob = cuts
    lhotse.CutSet.from_cuts([ann.append(bob).with_id("made")]).to_file(tmp_path / "cuts.jsonl")
    (tmp_path / "cache").write_text("a file, where nothing can be made")
    with pytest.raises(StoreError, match="can't write the cache"):
        read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)


def test_a_new_sample_rate_alone_leaves_the_file_that_is_there(cuts, tmp_path):
    cuts.resample(8000).to_file(tmp_path / "cuts.jsonl")
    rows = read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)
    assert [(one.path.name, one.start, one.end) for one in rows] == [("ann.wav", 0.0, None), ("bob.wav", 0.0, None)]


def test_cuts_trimmed_to_the_supervisions_of_an_rttm_are_of_the_one_channel_there_is(cuts, tmp_path):
    (tmp_path / "x.rttm").write_text("SPEAKER bob 1 0.5 1.0 <NA> <NA> ann <NA> <NA>\n")
    both = lhotse.CutSet.from_manifests(
        recordings=lhotse.RecordingSet.from_recordings(cut.recording for cut in cuts if cut.id == "bob"),
        supervisions=lhotse.SupervisionSet.from_rttm(tmp_path / "x.rttm"),
    )
    both.trim_to_supervisions().to_file(tmp_path / "cuts.jsonl")
    (row,) = read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)
    assert (row.path.name, row.channel, row.start, row.end, row.speaker) == ("bob.wav", None, 0.5, 1.5, "ann")


def test_shar(cuts, tmp_path):
    folder = tmp_path / "shar"
    folder.mkdir()
    cuts.to_shar(folder, fields={"recording": "flac"}, shard_size=1, num_jobs=1)
    assert detect_format(folder) == "shar"
    rows = list(shar_rows(folder))
    assert [(one.id, one.speaker, one.text) for one in rows] == [("ann", "ann", "i am ann"), ("bob", "bob", "i am bob")]
    for row, cut in zip(rows, cuts, strict=True):
        np.testing.assert_allclose(read_part(row)[0], cut.load_audio()[0], atol=1e-4)
    shard = sorted(folder.glob("recording.*.tar"))[1]
    shard.write_bytes(shard.read_bytes()[:700])
    rows = list(shar_rows(folder))
    assert rows[0].id == "ann"
    with pytest.raises(DataError, match=r"recording\.000001\.tar: cut short"):
        read_part(rows[1])


def test_no_source_of_a_mixed_cut_runs_a_command(cuts, tmp_path):
    ann, bob = cuts
    document = ann.mix(bob).to_dict()
    marker = tmp_path / "ran"
    for source in (
        {"type": "command", "source": f"touch {marker}"},
        {"type": "file", "source": f"pipe:touch {marker}"},
    ):
        document["tracks"][1]["cut"]["recording"]["sources"] = [{**source, "channels": [0]}]
        (tmp_path / "cuts.jsonl").write_text(json.dumps(document) + "\n")
        (row,) = read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)
        assert isinstance(row, Problem)
        assert not marker.exists()


def test_a_command_that_only_decodes_is_the_file_that_it_decodes(cuts, tmp_path):
    ann, _ = cuts
    document = ann.to_dict()
    file = document["recording"]["sources"][0]["source"]
    for command, reason in ((f"flac -c -d -s {file}", None), (f"sox {file} -t wav - speed 2 |", "speed")):
        document["recording"]["sources"] = [{"type": "command", "source": command, "channels": [0]}]
        (tmp_path / "cuts.jsonl").write_text(json.dumps(document) + "\n")
        (row,) = read(cutset_rows, tmp_path / "cuts.jsonl", tmp_path)
        if reason is None:
            assert row.path.name == "ann.wav"
        else:
            assert isinstance(row, Problem)
            assert reason in row.detail
