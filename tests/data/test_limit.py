"""`data.limit`: a part of a corpus, to try things out."""

from __future__ import annotations

from small_corpora import corpus, wav

from phonate.data.corpora.manifest import check_corpus
from phonate.data.prepared import prepare


def voices(folder, speakers=4, clips=30):
    for speaker in range(speakers):
        for clip in range(clips):
            wav(folder / f"s{speaker}/{clip:02d}.wav", 0.2 + 0.001 * clip, 200 + 20 * speaker)
    return folder


def test_so_many_recordings_are_taken_and_of_all_speakers(tmp_path):
    path = voices(tmp_path / "voices")
    checked, report = check_corpus(corpus(path, limit=40))
    assert (report.listed, report.usable, report.over_limit) == (40, 40, 80)
    assert len({one.row.speaker for one in checked}) == 4
    again, _ = check_corpus(corpus(path, limit=40))
    assert [one.row.id for one in again] == [one.row.id for one in checked]
    fewer, _ = check_corpus(corpus(path, limit=10))
    assert {one.row.id for one in fewer} < {one.row.id for one in checked}


def test_no_others_are_read_or_kept(tmp_path):
    """The point of it: trying out takes as long as the few recordings take."""
    path = voices(tmp_path / "voices", 1)
    taken = {one.row.id for one in check_corpus(corpus(path, limit=10))[0]}
    for file in path.rglob("*.wav"):
        if f"s0/{file.name}" not in taken and file.stem not in taken and f"s0/{file.stem}" not in taken:
            file.write_text("no audio")
    prepared = prepare(corpus(path, limit=10, validation=0.2))
    assert set(prepared.index.id) == taken
    assert (len(prepared.train), len(prepared.validation)) == (8, 2)
    assert not prepared.report["refused"]


def test_a_limit_over_the_corpus_changes_nothing(tmp_path):
    path = voices(tmp_path / "voices", 1, 5)
    _, report = check_corpus(corpus(path, limit=100))
    assert (report.usable, report.over_limit) == (5, 0)
    assert prepare(corpus(path, limit=100)).folder == prepare(corpus(path)).folder
