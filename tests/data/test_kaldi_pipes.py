"""wav.scp with the decoders that people pipe through: the file that they decode is read, and no command runs."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from small_corpora import RATE, tone, wav

from phonate.data.corpora.kaldi import Part, kaldi_rows, part_of_pipe
from phonate.data.corpora.rows import Problem, StoreError


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("flac -c -d -s x.flac |", Part("x.flac")),
        ("flac -cds 'my x.flac' |", Part("my x.flac")),
        ("sph2pipe -f wav -p -c 1 x.sph |", Part("x.sph", 0)),
        ("/opt/sph2pipe_v2.5/sph2pipe -f wav -p -c 2 -t 1.5:4 x.wv1 |", Part("x.wv1", 1, 1.5, 4.0)),
        ("sox x.wav -t wav - |", Part("x.wav")),
        ("sox -t mp3 x.mp3 -r 16k -c 1 -b 16 -t wav - remix 2 rate -h 16k trim 5 10 |", Part("x.mp3", 1, 5.0, 15.0)),
        ("sox x.wav -t wav - trim 1:05 =70 |", Part("x.wav", None, 65.0, 70.0)),
        ("ffmpeg -v 8 -i x.m4a -ac 1 -ar 16000 -f wav - |", Part("x.m4a")),
        ("ffmpeg -threads 1 -i x.flac -map_channel 0.0.1 -f wav -threads 1 pipe:1 |", Part("x.flac", 1)),
        ("ffmpeg -ss 00:01:00 -t 2.5 -i x.mp4 -f wav - |", Part("x.mp4", None, 60.0, 62.5)),
        ("sph2pipe -f wav -p -c 1 x.sph 2>/dev/null | sox -t wav - -r 8k -t wav - trim 1 2 |", Part("x.sph", 0, 1, 3)),
        ("cat x.wav |", Part("x.wav")),
        ("lame --decode --quiet x.mp3 - |", Part("x.mp3")),
    ],
)
def test_a_plain_decoder_names_the_file_to_read(command, part):
    assert part_of_pipe(command) == part


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sox x.wav -t wav - speed 1.1 |", "speed"),
        ("sox --vol 0.3 x.wav -t wav - |", "--vol"),
        ("sox a.wav b.wav -t wav - |", "joins"),
        ("sox a.wav b.wav c.wav -t wav - trim 0 1 |", "joins"),
        ("sox -t raw -r 8k -e signed -b 16 x.pcm -t wav - |", "header"),
        ("sox x.wav -t wav - remix 1,2 |", "remix"),
        ("ffmpeg -i x.wav -af volume=2 -f wav - |", "-af"),
        ("ffmpeg -i a.wav -i b.wav -f wav - |", "2 files"),
        ("flac -c -s x.flac |", "decode"),
        ("cat x.wav; rm -rf y |", "shell"),
        ("cat $(ls) |", "shell"),
        ("wav-reverberate --rir=y x.wav - |", "wav-reverberate"),
        ("sox x.wav -t wav - | wav-reverberate - - |", "wav-reverberate"),
        ("sox x.wav -t wav - trim 5 | sox - -t wav - trim 1 |", "twice"),
        ("-", "does not say"),
        ("gunzip -c x.gz |", "gunzip"),
        ("cat 'x.wav |", "quot"),
    ],
)
def test_what_changes_samples_or_needs_a_shell_is_refused_in_one_line(command, reason, tmp_path):
    with pytest.raises(ValueError, match=f"(?i){reason}"):
        part_of_pipe(command)
    (tmp_path / "wav.scp").write_text(f"u1 {command}\n")
    (problem,) = kaldi_rows(tmp_path, tmp_path / "cache")
    assert isinstance(problem, Problem)
    assert problem.reason == "command"


def test_parts_and_channels_are_read_and_utterances_count_from_the_part(tmp_path):
    stereo = np.stack([tone(3.0, 220.0), tone(3.0, 440.0)], axis=1)
    soundfile.write(tmp_path / "x.wav", stereo, RATE)
    (tmp_path / "wav.scp").write_text("r sox x.wav -t wav - remix 2 trim 0.5 2 |\n")
    (tmp_path / "segments").write_text("u r 0.25 1.5\n")
    (row,) = kaldi_rows(tmp_path, tmp_path / "cache")
    assert (row.path.name, row.channel, row.start, row.end) == ("x.wav", 1, 0.5, 2.5)
    assert (row.segments[0].start, row.segments[0].end) == (0.75, 2.0)


def test_recordings_in_archives(tmp_path):
    """As Kaldi's wav-copy writes them, and as kaldiio 2.18.1 does (AUDIO and the length before it)."""
    wav(tmp_path / "x.wav", 1.0)
    content = (tmp_path / "x.wav").read_bytes()
    length = len(content).to_bytes(2, "little")
    (tmp_path / "k.ark").write_bytes(b"u1 " + content + b"u2 AUDIO\x02" + length + content + b"u3 \0BFM ")
    second = 3 + len(content) + 3
    third = second + 8 + len(content) + 3
    (tmp_path / "wav.scp").write_text(f"u1 k.ark:3\nu2 k.ark:{second}\nu3 k.ark:{third}\nu4 lost.ark:0\n")
    one, two, three, four = kaldi_rows(tmp_path, tmp_path / "cache")
    assert one.path == two.path
    assert one.path.read_bytes() == content
    assert (three.reason, four.reason) == ("archive", "archive")
    assert "no recording is there" in three.detail
    assert "No such file" in four.detail


def test_a_full_disk_is_not_a_broken_archive(tmp_path):
    wav(tmp_path / "x.wav", 1.0)
    (tmp_path / "k.ark").write_bytes(b"u1 " + (tmp_path / "x.wav").read_bytes())
    (tmp_path / "wav.scp").write_text("u1 k.ark:3\n")
    (tmp_path / "cache").write_text("a file, where nothing can be made")
    with pytest.raises(StoreError, match="can't write the cache"):
        list(kaldi_rows(tmp_path, tmp_path / "cache"))
