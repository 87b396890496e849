"""One bad row, file or folder never ends a corpus: it is refused, counted and named."""

from __future__ import annotations

import json
import os
import random

import pytest
from small_corpora import corpus, wav

from phonate.config.errors import DataError
from phonate.data.corpora.manifest import check_corpus, list_corpus
from phonate_process import PythonProcess, run_python

GOOD = [
    {"audio_path": f"{speaker}/{i}.wav", "speaker_id": speaker, "text": str(i)}
    for speaker in ("ann", "bob")
    for i in range(3)
]
LINES = [json.dumps(row).encode() for row in GOOD]
CSV = [f"{row['audio_path']},{row['speaker_id']},{row['text']}".encode() for row in GOOD]
HEADER = b"audio_path,speaker_id,text"

BAD_LINES = {
    "bytes that are not UTF-8": (b'{"audio_path": "ann/0.wav", "id": "x", "speaker_id": "\xff"}', b"ann/0.wav,\xff,1"),
    "the root as a path": (b'{"audio_path": "/", "speaker_id": "ann"}', b"/,ann,1"),
    "a dot as a path": (b'{"audio_path": ".", "speaker_id": "ann"}', b".,ann,1"),
    "a null byte": (b'{"audio_path": "a\\u0000", "speaker_id": "ann"}', b"a\x00b,ann,1"),
    "a cell of 200 KB": (b'{"audio_path": "' + b"a" * 200_000 + b'"}', b"b" * 200_000 + b",ann,1"),
    "JSON nested deeply": (b"[" * 100_000, b"[[[,ann,1"),
    "a path that is a list": (b'{"audio_path": ["a"], "speaker_id": "ann"}', b'"[""a""]",ann,1'),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LINES)
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_bad_line_is_refused_and_the_others_are_used(folder, name, kind):
    line = BAD_LINES[name][kind == "csv"]
    lines = [*LINES[:3], line, *LINES[3:]] if kind == "jsonl" else [HEADER, *CSV[:3], line, *CSV[3:]]
    (folder / f"list.{kind}").write_bytes(b"\n".join(lines))
    checked, report = check_corpus(corpus(folder / f"list.{kind}"))
    assert {one.row.id for one in checked} == {f"{speaker}/{i}" for speaker in ("ann", "bob") for i in range(3)}
    (refused,) = report.refused
    assert refused.place.startswith(str(folder / f"list.{kind}:{4 if kind == 'jsonl' else 5}"))


def test_two_files_of_one_name_are_two_recordings(folder):
    import soundfile

    samples, rate = soundfile.read(wav(folder / "ann/take.wav", hertz=400))
    soundfile.write(folder / "ann/take.flac", samples[::-1], rate)
    checked, report = check_corpus(corpus(folder))
    assert report.refused == []
    assert {"ann/take": ".flac", "ann/take.wav": ".wav"}.items() <= {
        (one.row.id, one.row.path.suffix) for one in checked
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_text_or_folder_is_refused(folder):
    (folder / "ann/0.txt").write_text("one")
    (folder / "ann/0.txt").chmod(0)
    (folder / "bob").chmod(0)
    try:
        _, report = check_corpus(corpus(folder))
    finally:
        (folder / "bob").chmod(0o755)
    assert (report.usable, report.reasons()) == (2, {"unreadable text": 1, "unreadable folder": 1})


def test_an_unreadable_text_is_refused_for_root_too(folder):
    (folder / "ann/0.txt").write_text("one")
    (folder / "ann/1.txt").symlink_to("/proc/self/mem")  # opens, and fails when it is read
    _, report = check_corpus(corpus(folder))
    assert (report.usable, report.reasons()) == (5, {"unreadable text": 1})
    assert report.refused[0].id == "ann/1"


def test_a_text_in_another_encoding_is_refused(folder):
    """Its letters would be learnt as others."""
    (folder / "ann/0.txt").write_text("one")
    (folder / "ann/1.txt").write_bytes("café".encode("latin-1"))
    _, report = check_corpus(corpus(folder))
    assert (report.usable, report.reasons()) == (5, {"unreadable text": 1})
    assert report.refused[0].detail == "is not UTF-8; save it as UTF-8"


def test_a_tag_that_is_not_utf8_refuses_its_file_only(folder, monkeypatch):
    from phonate.data.corpora import validation

    opened = validation.open_recording

    def failing(path):
        if path.name == "0.wav":
            b"\xff".decode()
        return opened(path)

    monkeypatch.setattr(validation, "open_recording", failing)
    _, report = check_corpus(corpus(folder))
    assert (report.usable, report.reasons()) == (4, {"unreadable": 2})


def test_a_compressed_manifest_that_expands_without_end_is_refused(folder, tmp_path):
    import gzip

    with gzip.open(tmp_path / "bomb.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(17):
            file.write(b" " * 2**20)
    with pytest.raises(DataError, match=r"bomb\.jsonl\.gz:1: .*larger"):
        list_corpus(corpus(tmp_path / "bomb.jsonl.gz"))
    with gzip.open(tmp_path / "lines.jsonl.gz", "wb", compresslevel=9) as file:
        for _ in range(70):
            file.write(b" " * 2**20 + b"\n")
    assert (tmp_path / "lines.jsonl.gz").stat().st_size < 2**18
    with pytest.raises(DataError, match="64 MiB"):
        list_corpus(corpus(tmp_path / "lines.jsonl.gz"))


SPLICES = [b'"', b"\xff", b"\x00", b"/", b"null", b"1e400", b"-1", b"[]", b"{}", b"\n", b"|", b",", b"NaN"]


def mutated(content: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(data))
        if rng.random() < 0.4:
            data[at] = rng.randrange(256)
        else:
            data[at : at + rng.choice([0, 1, 3, 40])] = rng.choice(SPLICES)
    return bytes(data)


@pytest.mark.parametrize("kind", ["list.json", "list.jsonl", "list.csv", "piped.csv", "cuts.jsonl"])
def test_mutated_lists_end_in_rows_or_one_clear_error(folder, tmp_path, kind):
    from phonate.data.corpora.manifest import read_corpus

    contents = {
        "list.json": json.dumps(GOOD).encode(),
        "list.jsonl": b"\n".join(LINES),
        "list.csv": b"\n".join([HEADER, *CSV]),
        "piped.csv": b"\n".join(line.replace(b",", b"|") for line in CSV),
        "cuts.jsonl": b"\n".join(json.dumps(cut.to_dict()).encode() for cut in read_corpus(corpus(folder))[0]),
    }
    ended = 0
    for seed in range(60):
        (folder / kind).write_bytes(mutated(contents[kind], seed))
        try:
            list_corpus(corpus(folder / kind))
        except DataError:
            ended += 1
    assert ended <= (60 if kind == "list.json" else 6), "a line spoils a whole list"


def parquet(path, columns, **options):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow.table(columns), path, **options)


def sounds(folder):
    return [(folder / f"ann/{i}.wav").read_bytes() for i in range(3)]


@pytest.mark.slow
def test_a_shard_that_expands_without_end_is_refused_and_the_others_are_used(folder, tmp_path):
    (tmp_path / "set").mkdir()
    good = {"audio": [{"bytes": one, "path": None} for one in sounds(folder)], "speaker_id": [b"ann"] * 3}
    parquet(tmp_path / "set/a.parquet", good)
    bomb = {"audio": [{"bytes": bytes(80 * 2**20), "path": None}] * 4, "speaker_id": ["ann"] * 4}
    parquet(tmp_path / "set/b.parquet", bomb, compression="zstd", use_dictionary=False)
    assert (tmp_path / "set/b.parquet").stat().st_size < 2**20
    checked, report = check_corpus(corpus(tmp_path / "set"))
    assert [one.row.speaker for one in checked] == ["ann"] * 3, "text that is stored as bytes"
    assert report.reasons() == {"unreadable": 1}
    assert "expands to 320 MiB" in report.refused[0].detail


def test_columns_that_are_there_twice_or_hold_no_text(folder, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    audio = arrow.array([{"bytes": one, "path": None} for one in sounds(folder)])
    texts = arrow.array(["a", "b", "c"])
    table = arrow.Table.from_arrays([audio, texts, texts], names=["audio", "text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r"twice\.parquet: .*'text'; keep one"):
        check_corpus(corpus(tmp_path / "twice.parquet"))
    table = arrow.table({"audio": audio, "text": [b"a", b"\xff", b"c"], "speaker_id": [["x"], None, ["y"]]})
    pyarrow.parquet.write_table(table, tmp_path / "odd.parquet")
    rows, _ = list_corpus(corpus(tmp_path / "odd.parquet"))
    details = [row.detail for row in rows if hasattr(row, "detail")]
    assert len(details) == 3
    assert "its speaker_id is a list, not a text" in details[0]
    assert "is not UTF-8" in details[1]


@pytest.mark.slow
def test_a_damaged_arrow_file_is_an_error_and_never_a_crash(folder, tmp_path):
    """In a process of its own: without the check of a batch's offsets some of these end it by a signal."""

    arrow = pytest.importorskip("pyarrow")
    texts = ["hello " * 20] * 200
    table = arrow.table({"audio": [{"bytes": sounds(folder)[0], "path": "x"}] * 200, "text": texts})
    with arrow.OSFile(str(tmp_path / "whole.arrow"), "wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    code = f"""
import random
from pathlib import Path
from phonate.config.errors import DataError
from phonate.data.corpora.manifest import list_corpus
from phonate.data.settings import VoiceData
whole, file = Path({str(tmp_path / "whole.arrow")!r}).read_bytes(), Path({str(tmp_path / "bad.arrow")!r})
refused = 0
for seed in range(60):
    rng, data = random.Random(seed), bytearray(whole)
    for _ in range(3):
        at = rng.randrange(4000)
        data[at : at + 4] = rng.randbytes(4)
    file.write_bytes(data)
    try:
        list_corpus(VoiceData(path=str(file), cache_dir={str(tmp_path / "cache")!r}))
    except DataError:
        refused += 1
assert refused > 10, refused
"""
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_processes_extract_at_the_same_time(folder, tmp_path):
    import subprocess

    (tmp_path / "set").mkdir()
    good = {"audio": [{"bytes": sounds(folder)[i % 3] + bytes(i), "path": None} for i in range(300)]}
    parquet(tmp_path / "set/a.parquet", good)
    code = (
        "from phonate.data.corpora.manifest import list_corpus; from phonate.data.settings import VoiceData;"
        f"print(len(list_corpus(VoiceData(path={str(tmp_path / 'set')!r}, cache_dir={str(tmp_path / 'c')!r}))[0]))"
    )
    ranks = [PythonProcess("-c", code, stdout=subprocess.PIPE) for _ in range(2)]
    assert [rank.communicate(timeout=120)[0].strip() for rank in ranks] == [b"300", b"300"]
    assert not list((tmp_path / "c").rglob(".*"))
