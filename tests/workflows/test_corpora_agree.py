"""Corpora of many layouts, whole and damaged: what is checked, explained, measured and trained, also by a session, are
the same recordings with the same speakers and texts, and the same refusals."""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from phonate.audio.decoding import FloatArray
from phonate.cli import main
from phonate.config.errors import InputError
from phonate.config.resolve import to_yaml
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Row
from phonate.data.prepared import PreparedCorpus
from phonate.data.settings import VoiceData, VoiceRules
from phonate.data.voices import VoiceDataDetector, validate_voice_files
from phonate.tasks.recognition.data import RecognitionCorpus
from phonate.tasks.speech import durations
from phonate.tasks.speech.data import SpeechCorpus
from phonate.text.phonemes import Word
from phonate.training.plan import plan
from phonate.workflows import train as workflow
from phonate.workflows.session import flows
from phonate.workflows.session.config import SessionSettings

RATE = 16000
SPEAKERS = ("84", "126")
TEXTS = tuple(f"The {word} boat left the harbour early." for word in ("red", "blue", "old", "new", "big", "small"))
CLIPS = tuple((f"c{i}", SPEAKERS[i % 2], text) for i, text in enumerate(TEXTS))
"""Name, speaker and text of each recording."""


@functools.cache
def _sound(number: int) -> bytes:
    time = np.arange(round(2.1 * RATE)) / RATE
    sound = sum(0.1 / k * np.sin(2 * np.pi * k * (110 + 20 * number) * time) for k in (1, 2, 3))
    noise = 0.002 * np.random.default_rng(number).standard_normal(len(time))
    held = io.BytesIO()
    soundfile.write(held, sound * (np.sin(2 * np.pi * 3 * time) > -0.5) + noise, RATE, format="WAV")
    return held.getvalue()


def _record(root: Path, template: str) -> list[str]:
    """Recordings called after a template, with s the speaker and i the number."""
    names = [template.format(s=speaker, i=i) for i, (_, speaker, _) in enumerate(CLIPS)]
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(_sound(i))
    return names


def _write(file: Path, *lines: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def speaker_folders(root: Path) -> Path:
    for name, text in zip(_record(root, "{s}/c{i}.wav"), TEXTS, strict=True):
        _write((root / name).with_suffix(".txt"), text)
    return root


def vctk(root: Path) -> Path:
    _record(root, "wav48/{s}/{s}_00{i}_mic1.wav")
    for i, (_, speaker, text) in enumerate(CLIPS):
        _write(root / f"txt/{speaker}/{speaker}_00{i}.txt", text)
    return root


def librispeech(root: Path) -> Path:
    _record(root, "train-clean-100/{s}/7/{s}-7-000{i}.wav")
    for speaker in SPEAKERS:
        lines = [f"{speaker}-7-000{i} {text}" for i, (_, one, text) in enumerate(CLIPS) if one == speaker]
        _write(root / f"train-clean-100/{speaker}/7/{speaker}-7.trans.txt", *lines)
    return root


def ljspeech(root: Path) -> Path:
    _record(root, "wavs/c{i}.wav")
    _write(root / "metadata.csv", *(f"{name}|{text}|{text}" for name, _, text in CLIPS))
    return root


def common_voice(root: Path) -> Path:
    _record(root, "clips/c{i}.wav")
    head, lines = "client_id\tpath\tsentence", [f"{speaker}\t{name}.wav\t{text}" for name, speaker, text in CLIPS]
    for name, some in {"train": lines[:4], "dev": lines[4:5], "test": lines[5:]}.items():
        _write(root / f"{name}.tsv", head, *some)
    return root


def kaldi(root: Path) -> Path:
    names = _record(root, "audio/c{i}.wav")
    _write(root / "wav.scp", *(f"c{i} {root / name}" for i, name in enumerate(names)))
    _write(root / "utt2spk", *(f"{name} {speaker}" for name, speaker, _ in CLIPS))
    _write(root / "text", *(f"{name} {text}" for name, _, text in CLIPS))
    return root


def nemo(root: Path) -> Path:
    _record(root, "wavs/c{i}.wav")
    rows = [
        {"audio_filepath": f"wavs/{name}.wav", "duration": 2.1, "text": text, "speaker": speaker}
        for name, speaker, text in CLIPS
    ]
    return _write(root / "manifest.json", *map(json.dumps, rows))


def lhotse_cuts(root: Path) -> Path:
    lines = []
    for i, name in enumerate(_record(root, "audio/c{i}.wav")):
        id, speaker, text = CLIPS[i]
        recording = {
            "id": id,
            "sources": [{"type": "file", "channels": [0], "source": str(root / name)}],
            **{"sampling_rate": RATE, "num_samples": 33600, "duration": 2.1, "channel_ids": [0]},
        }
        said = {"id": id, "recording_id": id, "start": 0.0, "duration": 2.1, "channel": 0}
        cut = {"id": id, "start": 0.0, "duration": 2.1, "channel": 0, "type": "MonoCut", "recording": recording}
        lines.append(json.dumps({**cut, "supervisions": [{**said, "text": text, "speaker": speaker}]}))
    return _write(root / "cuts.jsonl", *lines)


def shards(root: Path) -> Path:
    root.mkdir()
    with tarfile.open(root / "shard-000000.tar", "w") as tar:
        for i, (name, speaker, text) in enumerate(CLIPS):
            facts = json.dumps({"speaker": speaker, "text": text}).encode()
            for suffix, content in ((".wav", _sound(i)), (".json", facts)):
                entry = tarfile.TarInfo(name + suffix)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return root


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    one.__name__: one
    for one in (speaker_folders, vctk, librispeech, ljspeech, common_voice, kaldi, nemo, lhotse_cuts, shards)
}


def _sounds(root: Path) -> list[Path]:
    return sorted(root.rglob("*.wav"))


def _lists(root: Path) -> list[Path]:
    return sorted(file for file in root.rglob("*") if file.is_file() and file.suffix not in (".wav", ".tar"))


def _change_one(files: Sequence[Path], change: Callable[[bytes], bytes]) -> None:
    for file in files[:1]:
        file.write_bytes(change(file.read_bytes()))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a recording that is not there": lambda root: [file.unlink() for file in _sounds(root)[1:2]] and None,
    "a recording cut short": lambda root: _change_one(_sounds(root), lambda content: content[:9000]),
    "an empty recording": lambda root: _change_one(_sounds(root), lambda content: b""),
    "no recording": lambda root: [file.unlink() for file in _sounds(root)] and None,
    "a text in Latin-1": lambda root: _change_one(_lists(root), lambda content: content.replace(b"boat", b"bo\xe4t")),
    "a text that is gone": lambda root: _change_one(
        _lists(root), lambda content: content.replace(TEXTS[0].encode(), b"")
    ),
    "a text that English can't pronounce": lambda root: (
        [
            _change_one([file], lambda content: content.replace(TEXTS[0].encode(), "你好吗".encode()))
            for file in _lists(root)
        ]
        and None
    ),
    "a line cut short": lambda root: _change_one(_lists(root), lambda content: content[:-9]),
    "an empty list": lambda root: _change_one(_lists(root), lambda content: b""),
    "the same twice": lambda root: [shutil.copy(file, file.with_name("c9.wav")) for file in _sounds(root)[:1]] and None,
    "a shard cut short": lambda root: _change_one(
        sorted(root.rglob("*.tar")), lambda content: content[: len(content) // 2]
    ),
}
OPTIONS: dict[str, list[Any]] = {
    "data.limit": [3],
    "data.speaker": ["anna"],
    "data.validation": [0.0, 0.4],
    "data.unit": ["segment", "recording"],
    "data.speaker_in_name": ["^[^_-]+", r"c\d"],
    "data.speaker_folder": [0, 1],
}
TASKS = ("conversion", "recognition", "speech", "vocoder")


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[str], dict[str, Any]]:
    """A layout, what is damaged in it, and a recipe."""
    damages = draw(st.lists(st.sampled_from(sorted(DAMAGES)), unique=True, max_size=2))
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), unique=True, max_size=2))
    options = {name: draw(st.sampled_from(OPTIONS[name])) for name in sorted(names)}
    task = draw(st.sampled_from(TASKS))
    return draw(st.sampled_from(sorted(LAYOUTS))), damages, {"task": task, "size": "tiny", **options}


class Begun(Exception):
    """Raised where the first step would be computed."""


Facts = set[tuple[str, str]]
Outcome = tuple[dict[str, Any], Facts] | str
"""What is trained: the values of the recipe, and each recording with its speaker; or the words of a refusal."""


class EvenAligner:
    """In the place of pocketsphinx, which would not find the texts in these tones: each phone is as long as another."""

    def __init__(self, vocabulary: Iterable[Word]) -> None:
        pass

    def __call__(self, waveform: FloatArray, sample_rate: int, words: Sequence[Word]) -> list[list[float]]:
        edges = np.linspace(0.0, len(waveform) / sample_rate, 1 + sum(len(word.phones) for word in words))
        ends = np.cumsum([len(word.phones) for word in words])
        return [edges[end - len(word.phones) : end + 1].tolist() for word, end in zip(words, ends, strict=True)]


def _trained(corpus: Any) -> Facts:
    """The recordings of a task's corpus that are trained or validated on; those of speech must be aligned, and those of
    recognition have letters, too."""
    prepared: PreparedCorpus = corpus.prepared
    index, positions = prepared.index, range(len(prepared.index))
    if isinstance(corpus, SpeechCorpus):
        positions = [position for position in positions if len(corpus.durations[position])]
    if isinstance(corpus, RecognitionCorpus):
        positions = [position for position in positions if corpus.wordings[position]]
    return {(str(index.id[at]), prepared.speakers[index.speaker[at]]) for at in positions}


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Training or its dry run, up to the first step."""
    taken: list[Any] = []

    def trainer(task: Any, *_: Any, recipe: Any, **__: Any) -> None:
        taken.append((recipe, task))
        raise Begun

    def estimate(resolved: Any, task: Any, *_: Any) -> None:
        taken.append((resolved, task))
        raise Begun

    monkeypatch.setattr(workflow, "Trainer", trainer)
    monkeypatch.setattr(workflow, "estimate", estimate)
    monkeypatch.setattr(durations, "Pocketsphinx", EvenAligner)

    def start(recipe: Path, output: Path, dry_run: bool) -> Outcome:
        try:
            workflow.train(recipe, output=output, mode="cpu", dry_run=dry_run)
        except Begun:
            resolved, task = taken.pop()
        except InputError as error:
            return str(error)
        try:
            task.dataset("train")
            return resolved.values, _trained(task.corpus)
        except InputError as error:
            return str(error)

    return start


def _listed_by_a_session(root: Path, task: str, options: Mapping[str, Any], folder: Path) -> Path:
    """What a session lists for training. Raises InputError where it lists nothing."""
    log = SimpleNamespace(warning=lambda *_: None, info=lambda *_: None)
    config = SimpleNamespace(settings=SessionSettings())
    work = SimpleNamespace(log=log, folder=folder, voice_data_dir=root, config=config)
    detector = VoiceDataDetector(root)
    files, _ = validate_voice_files(detector, VoiceRules(), processes=1)
    rows, _ = list_corpus(VoiceData(path=str(root), **options))
    matched = flows._match(work, rows, detector.get_voice_files(), files)  # type: ignore[arg-type]
    flows._write_list(work, task, folder / "listed.jsonl", matched)  # type: ignore[arg-type]
    return folder / "listed.jsonl"


def _recipe(file: Path, task: str, data: Mapping[str, Any]) -> Path:
    file.write_text(to_yaml({"task": task, "size": "tiny", "data": data}), encoding="utf-8")
    return file


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(case=("common_voice", ["a text that English can't pronounce"], {"task": "recognition", "size": "tiny"}))
@example(case=("common_voice", ["no recording"], {"task": "conversion", "size": "tiny"}))
@given(case=cases())
def test_all_doors_agree_on_a_corpus(
    case: tuple[str, list[str], dict[str, Any]],
    begin: Callable[..., Outcome],
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    layout, damages, options = case
    folder = tmp_path_factory.mktemp("corpus")
    path = LAYOUTS[layout](folder / "voice")
    for damage in damages:
        DAMAGES[damage](folder / "voice")
    data = {name.removeprefix("data."): value for name, value in options.items() if name.startswith("data.")}
    data |= {"path": str(path), "cache_dir": str(folder / "cache")}
    recipe = _recipe(folder / "mine.yaml", options["task"], data)

    trained = begin(recipe, folder / "run", dry_run=False)
    assert begin(recipe, folder / "dry", dry_run=True) == trained
    capsys.readouterr()
    status = main(["data", "check", str(recipe), "--json"])
    captured = capsys.readouterr()
    if isinstance(trained, str):
        assert status == 2, trained
        if not captured.err:  # each refusal in a report
            assert json.loads(captured.out)["usable"] == 0
            assert f"none of {json.loads(captured.out)['listed']} recordings can be used" in trained
        else:
            # Commands say where in the recipe the corpus is named.
            placed = re.escape(str(recipe)) + r":\d+:\d+ data\.path: "
            assert re.sub(f"^error: {placed}", "error: ", captured.err) == f"error: {trained}\n"
        return
    report = json.loads(captured.out)
    values, recordings = trained
    assert report["usable"] == len(recordings)
    speakers: dict[str, int] = {}
    for _, speaker in recordings:
        speakers[speaker] = speakers.get(speaker, 0) + 1
    assert report["speakers"] == speakers
    explained = plan(recipe, incomplete=True)
    explained.check()
    assert explained.resolved.values == values
    if layout == "shards" or options["task"] == "vocoder" or "data.limit" in options:  # not of sessions
        return
    given = {name: data[name] for name in ("speaker", "speaker_in_name", "speaker_folder") if name in data}
    listed = _listed_by_a_session(folder / "voice", options["task"], given, folder)
    again = _recipe(folder / "session.yaml", options["task"], {**_without_speakers(data), "path": str(listed)})
    by_session = begin(again, folder / "session", dry_run=False)
    assert not isinstance(by_session, str), by_session
    assert _files(by_session[1], listed) == _files(recordings, path, **given)


def _without_speakers(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if not name.startswith("speaker")}


def _files(recordings: Facts, path: Path, **options: Any) -> Facts:
    """The file and the speaker of each recording."""
    rows, _ = list_corpus(VoiceData(path=str(path), **options))
    files = {row.id: row.path.name for row in rows if isinstance(row, Row)}
    return {(files[id], speaker) for id, speaker in recordings}
