"""Damaged and hostile ChatML: pairs or one clear error, soon, and no file written outside the cache."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from phonate.config.errors import DataError, PhonateError
from phonate.data.dialogues import dialogue_of
from phonate.tasks.cloning.data import CloningCorpus
from phonate.tasks.cloning.settings import CloningData
from sounds import voiced_tone

DEEP = "\u2603deep"
"""Stands for a value that json.dumps can't write: nested 100,000 deep."""
HUGE = "\u2603huge"
"""Stands for an integer of 5000 digits."""
LONGEST_SECONDS = 20
"""For one file; they take milliseconds."""


class StandInCodec:
    """Codes without a network, so that only the data is tested."""

    fingerprint = "stand-in"
    codebooks, codebook_size = 8, 1024

    def to(self, device: str) -> None:
        assert device == "cpu"

    def encode(self, waveform: np.ndarray, rate: int) -> np.ndarray:
        return np.full((max(1, len(waveform) * 25 // rate), 8), len(waveform) % 1024, dtype=np.int16)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings, and with what a path may lead to."""
    folder = tmp_path_factory.mktemp("fuzz")
    for name, pitch in (("a", 120.0), ("b", 150.0)):
        soundfile.write(folder / f"{name}.wav", voiced_tone(0.6, pitch, (600.0, 1500.0, 2500.0), seed=1), 22050)
    (folder / "cut.wav").write_bytes((folder / "a.wav").read_bytes()[:300])
    (folder / "noise.flac").write_bytes(random.Random(0).randbytes(3000))
    (folder / "loop.wav").symlink_to("loop.wav")
    os.mkfifo(folder / "pipe.wav")
    (folder / "lines").mkdir()
    return folder


def good_rows(place: Path) -> list[dict[str, Any]]:
    def audio(name: str) -> dict[str, Any]:
        return {"type": "audio", "audio_url": str(place / name), "start": 0.0, "end": 0.55}

    def text(words: str) -> dict[str, Any]:
        return {"type": "text", "text": words}

    words = "Please generate speech for given text in reference audio's voice: some words to speak"
    return [
        {
            "messages": [
                {"role": "system", "content": "Speak."},
                {"role": "user", "content": [text("a reference"), audio("a.wav"), text(words)]},
                {"role": "assistant", "content": [text("some words to speak"), audio("b.wav")]},
            ],
            "speaker": "anna",
            "misc": {"duration": 4.3},
        },
        {
            "messages": [
                {"role": "user", "content": "a reference"},
                {"role": "assistant", "content": [audio("b.wav")], "weight": 0},
                {"role": "user", "content": "some words to speak"},
                {"role": "assistant", "content": [audio("a.wav")]},
            ],
            "start_index": 3,
        },
    ]


def odd_values(place: Path) -> list[Any]:
    paths = [
        "../../../../../etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        "file:///etc/passwd",
        "~/x.wav",
    ]
    paths += [
        f"{place}/{name}" for name in ("cut.wav", "noise.flac", "loop.wav", "pipe.wav", "none.wav", "", "..", "%s")
    ]
    paths += [
        "http://127.0.0.1:9/a.wav",
        "data:audio/wav;base64,AAAA",
        "a\0b.wav",
        "x" * 5000,
        "\\\\host\\share",
        "|ls",
    ]
    texts = [
        "",
        " \n\t",
        "\ud83d",
        "\u202e\u200f",
        "\x00\x1b[2J",
        "٣" * 3000,
        "<|eot_id|>",
        "{0.__class__}",
        "a" * 200_000,
    ]
    numbers = [0, -1, 1e308, -1e308, 10**400, float("nan"), float("inf"), 0.1 + 0.2, True, False, None, HUGE]
    return [*paths, *texts, *numbers, [], {}, [[]], [None], {"type": "audio"}, {"url": 5}, {"role": "user"}, DEEP]


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container with each of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield value, key
        yield from nodes(inner)


def mutated(row: dict[str, Any], rng: random.Random, odd: list[Any]) -> Any:
    row = copy.deepcopy(row)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(nodes(row))
        if not places:
            break
        container, key = rng.choice(places)
        action = rng.randrange(5)
        if action <= 1:
            container[key] = copy.deepcopy(rng.choice(odd))
        elif action == 2:
            del container[key]
        elif action == 3:
            other, there = rng.choice(places)
            value = copy.deepcopy(other.get(there) if isinstance(other, dict) else there)
            container[key] = value
        elif isinstance(container, list):
            container.extend(copy.deepcopy(container) * rng.choice((1, 3)))
        else:
            container[rng.choice(("audio_url", "text", "role", "weight", "extra"))] = copy.deepcopy(rng.choice(odd))
    return rng.choice((row, row, row, row, row, [row], {"messages": row}, rng.choice(odd)))


def written(row: Any) -> str:
    line = json.dumps(row)
    line = line.replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)
    return line.replace(json.dumps(HUGE), "9" * 5000)


def damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.choice((1, 2, 10))):
        at, action = rng.randrange(len(data) + 1), rng.randrange(5)
        if action == 0:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif action == 1:
            del data[at : at + rng.randrange(1, 40)]
        elif action == 2 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif action == 3:
            data[at:at] = data[: rng.randrange(len(data) + 1)]
        else:
            data[at:at] = rng.choice((b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b'"', b"}", b"]", b"\n", b"NaN", b"1e999"))
    return bytes(data)


def cases(place: Path, count: int, rng: random.Random) -> Iterator[tuple[str, bytes, int]]:
    """Suffix and contents of files with about `count` mutations in all, and how many good rows must be found."""
    rows, odd = good_rows(place), odd_values(place)
    made = 0
    while made < count:
        if rng.random() < 0.3:  # one file for each damage of bytes
            lines = [written(rng.choice(rows)) for _ in range(2)]
            suffix = rng.choice((".json", ".jsonl"))
            whole = "\n".join(lines) if suffix == ".jsonl" else f"[{','.join(lines)}]"
            yield suffix, damaged_bytes(whole.encode(), rng), 0
            made += 1
            continue
        bad = [written(mutated(rng.choice(rows), rng, odd)) for _ in range(8)]
        made += len(bad)
        lines = [written(rows[0]), *bad, written(rows[1])]
        if rng.random() < 0.5:
            yield ".jsonl", "\n".join(lines).encode(), 2
        else:
            whole = any("[" * 1000 in line or "9" * 5000 in line for line in bad)  # no JSON at all, then
            yield ".json", f"[{','.join(lines)}]".encode(), 0 if whole else 2


_WRITES = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0, "os.symlink": 1, "os.link": 1, "os.truncate": 0}
_watching: list[Callable[[str], None]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, str | bytes) and os.path.isdir(path):  # a file in it without a name, gone when it is closed
            return
        if isinstance(path, str | bytes) and (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            _watching[0](os.fsdecode(path))
    elif event in _WRITES:
        _watching[0](os.fsdecode(arguments[_WRITES[event]]))


@contextmanager
def writes_watched() -> Iterator[set[str]]:
    """Every path that this process opens for writing, makes, renames to or removes."""
    if not any(hook is _audit for hook in _installed):
        sys.addaudithook(_audit)  # for the rest of the process; it does nothing outside of this block
        _installed.append(_audit)
    found: set[str] = set()
    _watching.append(lambda path: found.add(os.path.abspath(path)))
    try:
        yield found
    finally:
        _watching.clear()


_installed: list[Any] = []


def _too_slow(*_: object) -> None:
    raise AssertionError(f"a file took more than {LONGEST_SECONDS} s")


def read_all(corpus: CloningCorpus) -> PhonateError | None:
    """Read all pairs with their codes; returns the error that a user would see."""
    try:
        for sample in (*corpus.samples("train"), *corpus.samples("validation")):
            assert len(corpus.codes(sample.target)) > 0
            assert len(corpus.codes(sample.reference)) > 0
    except PhonateError as error:
        return error
    return None


def fuzz(place: Path, cache: Path, count: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Feed files with `count` mutations; returns how many files were read and how many refused."""
    monkeypatch.chdir(place / "lines")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))  # where what is read is noted
    cache.mkdir()
    outcome = {"read": 0, "refused": 0}
    earlier = signal.signal(signal.SIGALRM, _too_slow)
    try:
        for number, (suffix, content, good) in enumerate(cases(place, count, random.Random(seed))):
            file = cache / f"rows{suffix}"
            file.write_bytes(content)
            corpus = CloningCorpus(CloningData(path=str(file), cache_dir=str(cache)), StandInCodec)  # type: ignore[arg-type]
            signal.alarm(LONGEST_SECONDS)
            try:
                with writes_watched() as paths:
                    error = read_all(corpus)
            finally:
                signal.alarm(0)
            outcome["read" if error is None else "refused"] += 1
            assert error is None or not good, f"case {number}, seed {seed}: {error}"
            assert "\n" not in str(error)
            assert error is not None or len(corpus.checked.samples) >= good, f"case {number}, seed {seed}"
            outside = [path for path in paths if not Path(path).is_relative_to(cache)]
            assert not outside, f"case {number}, seed {seed} wrote {outside}"
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert sorted(path.name for path in place.iterdir()) == [
        "a.wav",
        "b.wav",
        "cut.wav",
        "lines",
        "loop.wav",
        "noise.flac",
        "pipe.wav",
    ]
    assert not list((place / "lines").iterdir())
    return outcome


def test_damaged_files(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = fuzz(place, tmp_path / "cache", 400, 1, monkeypatch)
    assert min(outcome.values()) > 10


@pytest.mark.slow
def test_ten_thousand_damages(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = fuzz(place, tmp_path / "cache", 10_000, 2, monkeypatch)
    assert min(outcome.values()) > 100


def test_writes_are_seen(tmp_path: Path) -> None:
    """The watch that the others rely on."""
    with writes_watched() as paths:
        (tmp_path / "folder").mkdir()
        (tmp_path / "a").write_text("x", encoding="ascii")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b").read_text(encoding="ascii")
    assert paths == {str(tmp_path / name) for name in ("folder", "a", "b")}


@pytest.mark.parametrize("seconds", [10**400, 1e300, -1, True, "1", float("nan"), float("inf")])
def test_times_that_are_no_times_are_refused(place: Path, seconds: object) -> None:
    row = good_rows(place)[0]
    row["messages"][1]["content"][1]["start"] = seconds
    with pytest.raises(DataError, match="'start' of part 2 of message 2 "):
        dialogue_of("rows.json:1", row)
