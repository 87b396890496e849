"""Lhotse manifests: cuts are rows, parts and channels of files too; what is none is refused by its line."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from small_corpora import RATE, corpus, rows_of, tone

from phonate.audio.decoding import read_audio
from phonate.config.errors import DataError
from phonate.data.corpora.manifest import check_corpus, read_corpus
from phonate.data.corpora.rows import Requirements
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData


def test_lhotse_manifest_comes_back_as_it_was(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    rows, report = rows_of(corpus(tmp_path / "cuts.jsonl.gz"))
    assert report.format == "cutset"
    assert sorted(rows) == sorted(cut.id for cut in cuts)


def test_a_manifest_that_runs_a_command_is_refused(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    marker = tmp_path / "ran"
    lines = [json.dumps(cut.to_dict()) for cut in cuts]
    document = json.loads(lines[0])
    document["recording"]["sources"][0] = {"type": "command", "channels": [0], "source": f"touch {marker}; cat x"}
    (tmp_path / "bad.jsonl").write_text(json.dumps(document) + "\n")
    with pytest.raises(DataError, match=r"bad\.jsonl:1: .*a command"):
        read_corpus(corpus(tmp_path / "bad.jsonl"))
    assert not marker.exists()


def test_a_path_that_runs_a_command_is_refused(tmp_path, monkeypatch):
    """Lhotse opens `pipe:...` with a shell."""
    import lhotse

    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_corpus(VoiceData(path="pipe:touch ran.jsonl", format="cutset"))
    assert not (tmp_path / "ran.jsonl").exists()
    list(lhotse.CutSet.from_jsonl_lazy("pipe:touch ran.jsonl"))
    assert (tmp_path / "ran.jsonl").exists(), "Lhotse no longer does so: the guard can go"


def test_a_cut_of_two_speakers_is_refused_and_never_trained_as_the_first_of_them(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    first = documents[0]["supervisions"][0]
    documents[0]["supervisions"] = [
        {**first, "id": "1", "duration": 0.2, "speaker": "ann", "text": "one"},
        {**first, "id": "2", "start": 0.2, "duration": 0.2, "speaker": "bob", "text": "two"},
    ]
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (5, {"several speakers": 1})
    assert report.refused[0].id == documents[0]["id"]
    assert "2 speakers (ann, bob)" in report.refused[0].detail
    checked, report = check_corpus(corpus(tmp_path / "cuts.jsonl"), requirements=Requirements())
    (both,) = (one for one in checked if one.row.id == documents[0]["id"])
    assert [(one.start, one.end, one.speaker, one.text) for one in both.segments] == [
        (0.0, pytest.approx(0.2), "ann", "one"),
        (pytest.approx(0.2), pytest.approx(0.4), "bob", "two"),
    ]
    assert (both.row.speaker, both.row.text, report.segments) == (None, "one two", 7)


def test_a_part_of_a_recording_is_read_as_that_part(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    documents[0].update(start=0.1, duration=0.2)
    documents[0]["supervisions"][0].update(duration=0.2)
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    prepared = prepare(corpus(tmp_path / "cuts.jsonl"))
    position = prepared.index.id[:].index(documents[0]["id"])
    whole = read_audio(prepared.index.path[position])[0]
    part = whole[int(0.1 * RATE) : int(0.3 * RATE)]
    cached = prepared.cache.waveform(position)
    assert np.abs(cached - part / np.abs(part).max()).max() < 1e-4
    assert np.array_equal(prepared.cache.waveform(position, 5, 9), cached[5:9])
    again = read_corpus(corpus(tmp_path / "cuts.jsonl"))[0][documents[0]["id"]]
    assert (again.start, again.duration) == (0.1, pytest.approx(0.2))


def test_cuts_of_single_channels_of_a_file_are_read_channel_by_channel(folder, tmp_path):
    import soundfile

    stereo = np.stack([tone(hertz=200.0), tone(hertz=300.0)], axis=1)
    soundfile.write(folder / "ann/stereo.wav", stereo, RATE)
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    (both,) = (document for document in documents if document["id"] == "ann/stereo")
    assert both["type"] == "MultiCut"
    for channel in (0, 1):
        single = {**both, "id": f"channel {channel}", "type": "MonoCut", "channel": channel}
        documents.append(json.loads(json.dumps(single)))
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    checked, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert "ann/stereo" in {one.row.id for one in checked}
    assert (report.usable, report.reasons()) == (9, {})
    prepared = prepare(corpus(tmp_path / "cuts.jsonl"))
    for channel in (0, 1):
        position = prepared.index.id[:].index(f"channel {channel}")
        alone = stereo[:, channel] / np.abs(stereo[:, channel]).max()
        assert np.abs(prepared.cache.waveform(position) - alone).max() < 1e-3


@pytest.mark.parametrize(
    "bad",
    [
        {"recording": 5},
        {"type": "MonoCut", "recording": 5},
        {"type": "MonoCut", "id": "x", "start": 0, "duration": 0.4, "channel": 0, "supervisions": [5]},
        {"type": "Kut"},
        5,
    ],
    ids=json.dumps,
)
def test_a_line_that_is_no_cut_is_refused_and_the_others_are_used(folder, tmp_path, bad):
    cuts, _ = read_corpus(corpus(folder))
    documents = [*(cut.to_dict() for cut in cuts)]
    documents.insert(2, bad)
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (6, {"malformed row": 1})
    assert report.refused[0].place.endswith("cuts.jsonl:3")


def test_a_manifest_that_is_cut_short_is_reported_and_its_intact_lines_are_used(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    whole = (tmp_path / "cuts.jsonl.gz").read_bytes()
    (tmp_path / "cuts.jsonl.gz").write_bytes(whole[:-40])
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl.gz"))
    assert report.usable < 6
    assert report.reasons() == {"damaged file": 1}
    (tmp_path / "cuts.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"damaged file.*cuts\.jsonl\.gz:1: .*copy it again"):
        check_corpus(corpus(tmp_path / "cuts.jsonl.gz"))


def test_a_manifest_that_spells_no_utf8_is_refused_but_for_names_of_files(folder, tmp_path):
    os.rename(folder / "bob/0.wav", os.fsencode(folder / "bob") + b"/\xff.wav")
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    documents[0]["id"] = "\ud83d"
    documents[1]["supervisions"][0]["text"] = "hi \ud83d"
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    prepared = prepare(corpus(tmp_path / "cuts.jsonl"))
    assert {"\\ud83d", "bob/\\udcff"} < set(prepared.index.id)
    (refused,) = prepared.report["refused"]
    assert "the text 'hi \\\\ud83d' is not UTF-8" in refused["detail"]
