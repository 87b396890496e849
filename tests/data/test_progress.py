"""Progress reporting."""

from __future__ import annotations

from phonate.data.derived import open_pitch
from phonate.data.parallel import progress_listener, report_progress, track
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData


def test_work_on_a_corpus_is_heard_by_whoever_listens(tone_corpus, tmp_path):
    heard: list[tuple[str, int, int]] = []
    with progress_listener(lambda *said: heard.append(said)):
        settings = VoiceData(path=str(tone_corpus), cache_dir=str(tmp_path))
        open_pitch(prepare(settings), settings.audio, "swift")
    for what in ("preparing recordings", "computing pitch"):
        assert [said for said in heard if said[0] == what] == [(what, done + 1, 18) for done in range(18)]


def test_nobody_listens_any_more_after_the_block():
    heard = []
    with progress_listener(lambda *said: heard.append(said)):
        assert list(track("counting", "ab")) == ["a", "b"]
    report_progress("counting", 3, 3)
    assert heard == [("counting", 1, 2), ("counting", 2, 2)]


def test_who_is_told_by_name_hears_it_alone(tone_corpus, tmp_path):
    alone, others = [], []
    with progress_listener(lambda *said: others.append(said)):
        prepare(VoiceData(path=str(tone_corpus), cache_dir=str(tmp_path)), lambda *said: alone.append(said))
    assert alone
    assert not others
