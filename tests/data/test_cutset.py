"""Lhotse manifests: whole recordings are rows, and what is none is refused by its line."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from small_corpora import RATE, corpus, rows_of, tone

from phonate.config.errors import DataError
from phonate.data.manifests.manifest import check_corpus, read_corpus
from phonate.data.settings import VoiceData
from phonate.data.store.prepared import prepare


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
    with pytest.raises(DataError, match=r"^\S*bad\.jsonl:1: its audio is a command"):
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


def test_a_part_of_a_recording_is_refused_and_the_others_are_used(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    documents = [cut.to_dict() for cut in cuts]
    documents[0]["duration"] /= 2
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, documents)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (5, {"malformed row": 1})


def test_cuts_of_single_channels_of_a_file_are_refused(folder, tmp_path):
    """Read whole, each would be the same mix of all channels."""
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
    assert (report.usable, report.reasons()) == (7, {"malformed row": 2})
    assert all("save the channels as files of their own" in problem.detail for problem in report.refused)


def test_cuts_that_lhotse_would_transform_are_refused(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    fast = [cut.perturb_volume(0.5).to_dict() for cut in cuts][:1]
    plain = [cut.to_dict() for cut in cuts][1:]
    plain[0]["recording"]["transforms"] = []
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, fast + plain)))
    _, report = check_corpus(corpus(tmp_path / "cuts.jsonl"))
    assert (report.usable, report.reasons()) == (5, {"malformed row": 1})
    assert "save the cut as a file of its own" in report.refused[0].detail


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


def test_a_manifest_that_is_cut_short_is_one_clear_error(folder, tmp_path):
    cuts, _ = read_corpus(corpus(folder))
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    whole = (tmp_path / "cuts.jsonl.gz").read_bytes()
    (tmp_path / "cuts.jsonl.gz").write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"cuts\.jsonl\.gz: not a CutSet manifest"):
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
    assert "the text holds half a character" in refused["detail"]
