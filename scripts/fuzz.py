"""Fuzz the readers of files from elsewhere, guided by coverage: no crash, no hang, under 1 GB, no write outside.

    pip install atheris
    OMP_NUM_THREADS=1 python scripts/fuzz.py [READER ...] [--seconds 60]

Each reader runs in a process of its own, from files that it reads, which are made here. It may answer with what it read
or with a PhonateError; any other exception, an answer after 20 seconds, more than 1,000 MB of memory and a file opened
for writing outside its folder end the fuzzing. The input is then kept in the folder that is
printed, and the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Target = Callable[[Path], object]
MEMORY_MB = 1000
TIMEOUT = 20


def _wav() -> bytes:
    import numpy as np
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, 0.1 * np.sin(np.arange(1600) / 5.0), 16000, format="WAV", subtype="PCM_16")
    return stream.getvalue()


def _flac() -> bytes:
    import numpy as np
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, 0.1 * np.sin(np.arange(1600) / 5.0), 16000, format="FLAC")
    return stream.getvalue()


def _tar(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _weights() -> bytes:
    import torch
    from safetensors.torch import save

    parts = json.dumps({"w": {"saved_offsets": [0, 0]}})
    return save({"w": torch.ones(2, 3)}, metadata={"format": "pt", "DCP_SHARDING_INFO": parts})


def sound(path: Path) -> object:
    """What training, checks and uploads decode."""
    from phonate.audio.decoding import probe, read_blocks

    return probe(path), sum(len(block) for block in read_blocks(path, 16000))


def labels(path: Path) -> object:
    """Turns and texts of label files."""
    from phonate.config.errors import PhonateError
    from phonate.data.labels import read_texts, read_turns

    with contextlib.suppress(PhonateError):  # not all of them have both
        read_turns(path)
    return read_texts(path)


def rows(function: str) -> Target:
    """A reader of corpora, by the name of its module and its own."""
    module, name = function.split(":")

    def read(path: Path) -> object:
        import importlib

        return list(getattr(importlib.import_module(f"phonate.data.corpora.{module}"), name)(path))

    return read


def shar(path: Path) -> object:
    """Lhotse's Shar: the cuts, with recordings beside them."""
    from phonate.data.corpora.shards import shar_rows

    recordings = path.with_name("recording.000000.tar")
    if not recordings.exists():
        recordings.write_bytes(_tar({"c.wav": _wav(), "c.json": b"{}"}))
    return list(shar_rows(path.parent))


def recipe(path: Path) -> object:
    """A recipe."""
    from phonate.config.documents import read
    from phonate.config.resolve import resolve_document

    return resolve_document(read(path))


def dialogues(path: Path) -> object:
    """Texts, pairs and ChatML."""
    from phonate.data.dialogues import read_dialogues

    return read_dialogues(path)


def ssml(path: Path) -> object:
    """Marked-up text."""
    from phonate.config.errors import InputError
    from phonate.text.ssml import parse

    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(str(error)) from error
    return parse(text)


def tensors(path: Path) -> object:
    """Tensors of a checkpoint, whole and in parts."""
    from phonate.training.checkpoints.snapshot import read_shards

    return read_shards([path], largest=1 << 20)


def state(path: Path) -> object:
    """The state of a checkpoint."""
    from phonate.training.checkpoints.files import read_json
    from phonate.training.checkpoints.snapshot import decode

    return decode(read_json(path), {})


def manifest(path: Path) -> object:
    """The manifest of a checkpoint, with the check of its files."""
    from phonate.training.checkpoints.files import problems

    return problems(path.parent)


TEXTGRID = b'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n1\n<exists>\n1\n'
TEXTGRID += b'"IntervalTier"\n"a"\n0\n1\n1\n0\n1\n"b"\n'
CHATML = b'[{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, '
CHATML += b'{"role": "assistant", "content": "b"}]}]'
CUTS = b'{"id": "c", "start": 0, "duration": 0.1, "channel": 0, "supervisions": [{"id": "s", "recording_id": "r", '
CUTS += b'"start": 0, "duration": 0.1, "text": "a", "speaker": "p"}], "recording": {"id": "r", "sources": [{"type": '
CUTS += b'"memory", "channels": [0], "source": ""}], "sampling_rate": 16000, "num_samples": 1600, "duration": 0.1}, '
CUTS += b'"type": "MonoCut"}\n'
ELAN = b'<?xml version="1.0"?>\n<ANNOTATION_DOCUMENT><TIME_ORDER/></ANNOTATION_DOCUMENT>'
LIST = b'[{"audio_path": "a.wav", "speaker_id": "bo", "text": "a"}]'
MANIFEST = b'{"files": {"a": {"size": 1, "sha256": "' + b"0" * 64 + b'"}}, "format": 1}\n'
READERS: dict[str, tuple[Target, str, Callable[[], bytes]]] = {
    "wav": (sound, "a.wav", _wav),
    "flac": (sound, "a.flac", _flac),
    "rttm": (labels, "a.rttm", lambda: b"SPEAKER a 1 0.0 1.5 <NA> <NA> bo <NA> <NA>\n"),
    "textgrid": (labels, "a.TextGrid", lambda: TEXTGRID),
    "vtt": (labels, "a.vtt", lambda: b"WEBVTT\n\n00:00.000 --> 00:01.000\n<v bo>a\n"),
    "srt": (labels, "a.srt", lambda: b"1\n00:00:00,000 --> 00:00:01,000\nbo: a\n"),
    "eaf": (labels, "a.eaf", lambda: ELAN),
    "ctm": (labels, "a.ctm", lambda: b"a 1 0.0 0.5 word\n"),
    "stm": (labels, "a.stm", lambda: b"a 1 bo 0.0 1.5 <o> a b\n"),
    "csv": (rows("tables:csv_rows"), "metadata.csv", lambda: b"audio_path,speaker_id,text\na.wav,bo,a b\n"),
    "json": (rows("lists:json_rows"), "metadata.json", lambda: LIST),
    "yaml": (recipe, "recipe.yaml", lambda: b"task: vocoder\ndata: {path: x}\ntraining: {max_steps: 3}\n"),
    "chatml": (dialogues, "chatml.json", lambda: CHATML),
    "ssml": (ssml, "a.xml", lambda: b'<speak>a <break time="1s"/><prosody rate="slow">b</prosody></speak>'),
    "shar": (shar, "cuts.000000.jsonl", lambda: CUTS),
    "webdataset": (
        rows("shards:webdataset_rows"),
        "a.tar",
        lambda: _tar({"a.txt": b"a b", "a.wav": _wav(), "a.json": b'{"text": "a"}'}),
    ),
    "tensors": (tensors, "w.safetensors", _weights),
    "state": (state, "state.json", lambda: b'{"a": {"$tuple": [1, {"$float": "nan"}]}, "b": {"$dict": [[1, 2]]}}'),
    "manifest": (manifest, "manifest.json", lambda: MANIFEST),
}


def refuse_writes(folder: Path) -> None:
    """From now on, no file outside `folder` may be opened for writing, moved or removed."""

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event in {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "shutil.rmtree"}
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            flags = arguments[2]
            writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if writes and not Path(os.fsdecode(arguments[0])).resolve().is_relative_to(folder):
            os.write(2, f"\nwrites outside: {event} {arguments[0]!r}\n".encode())
            os.abort()

    sys.addaudithook(check)


def fuzz(reader: str, seconds: int) -> None:
    """Fuzz `reader` in this process."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["phonate"]):
        import phonate.config.errors

        target, name, seed = READERS[reader]
        folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{reader}-")).resolve()
        seeds, place = folder / "seeds", folder / "input"
        seeds.mkdir()
        place.mkdir()
        (seeds / "first").write_bytes(seed())
        file = place / name
        file.write_bytes(seed())
        try:  # imports what it imports, which is instrumented
            target(file)
        except phonate.config.errors.PhonateError as error:
            print(f"the first input of {reader} is refused: {error}", file=sys.stderr)
    tempfile.tempdir = str(folder)  # where decoders keep what they decode
    refuse_writes(folder)

    def once(data: bytes) -> None:
        file.write_bytes(data)
        with contextlib.suppress(phonate.config.errors.PhonateError):
            target(file)

    options = [f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={TIMEOUT}", "-max_len=8192"]
    options += [f"-artifact_prefix={folder}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, str(seeds)], once)
    atheris.Fuzz()


def main() -> int:
    """Fuzz each reader in a process, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", default=list(READERS), metavar="READER", help=", ".join(READERS))
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        fuzz(options.readers[0], options.seconds)
        return 0
    failed = 0
    print("| reader | inputs | most memory, MB | result |\n| --- | ---: | ---: | --- |", flush=True)
    for reader in options.readers:
        command = [sys.executable, __file__, reader, "--here", "--seconds", str(options.seconds)]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", ended.stderr))
        words = [line for line in ended.stderr.splitlines() if "Error" in line or "ERROR" in line or "outside" in line]
        result = "nothing found" if ended.returncode == 0 else f"{' '.join(words[:3])[:200]} (exit {ended.returncode})"
        failed += ended.returncode != 0
        inputs, memory = stats.get("number_of_executed_units", "?"), stats.get("peak_rss_mb", "?")
        print(f"| {reader} | {inputs} | {memory} | {result} |", flush=True)
        if ended.returncode:
            print(ended.stderr[-3000:], file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
