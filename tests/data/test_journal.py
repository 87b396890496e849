"""What a decoder that crashes or hangs costs: the start at which it does, and its recording, by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from pool_work import hang_at

from phonate.audio.decoding import write_audio
from phonate.data import parallel
from phonate.data.journal import Journal, own_journal
from phonate.data.parallel import Guard, Here, Threads
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData
from sounds import SAMPLE_RATE, voiced_tone

slow = pytest.mark.slow

DECODER = """
import os
from phonate.audio import readers

opened_part = readers._opened_part

def opened(path, *rest, **options):
    if path.name in os.environ["DEADLY"].split():
        os.kill(os.getpid(), 9)
    return opened_part(path, *rest, **options)

readers._opened_part = opened
"""
CHECK = """
import sys
from pathlib import Path
from phonate.config.registry import load_plugin
from phonate.data.corpora.manifest import check_corpus
from phonate.data.settings import VoiceData

load_plugin(Path(sys.argv[1]))
for one in check_corpus(VoiceData(path=sys.argv[2]))[1].refused:
    print(one.id, one.reason, one.detail)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Where journals are, of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home/phonate"


@pytest.fixture
def dead():
    """The name of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    return f"{gone.pid}.{time.time():.0f}"


def left_by(process, folder, *sources):
    """What a process noted that died at `sources`."""
    ours = Journal(folder)
    name = ours._path.name.removesuffix(f"{ours.pid}{ours._path.suffix}") + process
    ours._path = folder / name
    for source in sources:
        ours._note(b"r", str(source))


def voice(path, seed):
    """A recording of half a second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_audio(path, voiced_tone(0.5, 120, (500, 1500), seed), SAMPLE_RATE)
    return path


@slow
def test_a_recording_that_kills_the_preparation_is_refused_by_name_the_next_time(tmp_path, home):
    for number in range(8):
        voice(tmp_path / f"corpus/anna/{number}.wav", number)
    (tmp_path / "decoder.py").write_text(DECODER)

    command = [sys.executable, "-c", CHECK, str(tmp_path / "decoder.py"), str(tmp_path / "corpus")]
    environment = {**os.environ, "DEADLY": "2.wav"}
    first, second = (subprocess.run(command, capture_output=True, text=True, env=environment) for _ in range(2))
    assert first.returncode == -signal.SIGKILL
    why = "the decoder crashes on it, or does not come to its end; export it again"
    assert (second.returncode, second.stdout) == (0, f"anna/2 unreadable {why}\n")
    assert len(list(home.iterdir())) == 1, "it is known from now on"


@slow
def test_what_was_open_when_a_process_was_killed_is_used_as_ever(tmp_path, home, dead):
    files = [voice(tmp_path / f"corpus/anna/{number}.wav", number) for number in range(3)]
    data = VoiceData(path=str(tmp_path / "corpus"), cache_dir=str(tmp_path / "before"))
    before = prepare(data)
    left_by(dead, tmp_path / "after", files[1])
    after = prepare(data.model_copy(update={"cache_dir": str(tmp_path / "after")}))
    assert before.fingerprint == after.fingerprint
    assert after.report == before.report
    for name in ("audio.int16", "features.bin"):
        assert (after.folder / name).read_bytes() == (before.folder / name).read_bytes()
    assert not list((tmp_path / "after").glob(".reading.*")), "it is no suspect any more"
    assert not home.exists()


@slow
@pytest.mark.parametrize("executor", [Threads(2, str), Here(str)])
def test_one_that_hangs_is_refused_and_the_others_are_done(executor, tmp_path, home, dead, monkeypatch):
    monkeypatch.setattr(parallel, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setenv("HANGING", str(tmp_path / "1"))
    files = [tmp_path / str(number) for number in range(4)]
    for file in files:
        file.write_bytes(b"")
    left_by(dead, home, files[1])
    results = list(executor.map(hang_at, files, lambda file: "refused"))
    assert results == ["0", "refused", "2", "3"]


def test_threads_do_not_run_far_ahead_of_who_takes_their_results():
    taken = []

    class Items(list):
        def __iter__(self):
            return (taken.append(item) or item for item in super().__iter__())

    results = Threads(2).map(str, Items(range(100)))
    assert next(results) == "0"
    assert len(taken) == 16, "sounds of a corpus do not all fit into memory"
    assert list(results) == [str(number) for number in range(1, 100)]


def test_only_what_is_there_and_was_left_open_by_the_dead_is_suspect(tmp_path, dead):
    file = tmp_path / "a.wav"
    file.write_bytes(b"")
    left_by(dead, tmp_path, file, tmp_path / "gone.wav", "s3://bucket/0.tar\n7.flac")
    living = Journal(tmp_path)
    with living.reading("/b.wav"):
        ours = Journal(tmp_path)
        ours._path = ours._path.with_name(f"{ours._path.name}-another")
        ours.take_over()
        assert set(ours.suspects) == {str(file), "s3://bucket/0.tar\n7.flac"}
        assert not (tmp_path / f"{living._ours}{dead}").exists()
    living.close()
    ours.acquit(str(file))
    ours.close()
    assert ours._path.exists(), "one is a suspect still"
    ours.acquit("s3://bucket/0.tar\n7.flac")
    assert sorted(tmp_path.iterdir()) == [file]


READING = """
import sys
from pathlib import Path
from phonate.data import journal
journal._host = lambda: "another"
with journal.Journal(Path(sys.argv[1])).reading(sys.argv[2]):
    print("in", flush=True)
    sys.stdin.read()
"""


@slow
def test_what_a_container_noted_that_is_gone_is_suspect_and_not_while_it_lives(tmp_path):
    """Started anew, it has another name for its machine; its process ids mean nothing here."""
    cache, file = tmp_path / "cache", tmp_path / "a.wav"
    file.write_bytes(b"")
    other = subprocess.Popen(
        [sys.executable, "-c", READING, str(cache), str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"in\n"
    ours = Journal(cache)
    ours.take_over()
    assert not ours.suspects
    assert len(list(cache.iterdir())) == 1
    other.kill()
    other.communicate()
    ours.take_over()
    assert [*ours.suspects] == [str(file)]
    ours.acquit(str(file))
    ours.close()
    assert not list(cache.iterdir())


def test_notes_of_a_run_lie_beside_its_caches_or_the_users_where_those_are_not_writable(tmp_path, home, monkeypatch):
    for folder in (tmp_path / "mine/deep", home):
        assert own_journal(tmp_path / "mine/deep").folder == folder
        monkeypatch.setattr(os, "access", lambda *_: False)


def test_a_thread_that_begins_to_read_after_the_end_leaves_no_note(tmp_path, home):
    notes, read = tmp_path / "notes", []
    guard = Guard(read.append, read.append, str, notes)
    guard("one.wav")
    guard.end()
    assert not list(notes.iterdir())
    guard("two.wav")
    assert read == ["one.wav", "two.wav"]
    assert not list(notes.iterdir())
