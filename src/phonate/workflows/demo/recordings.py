"""A person's recordings, divided for the demo into what is trained on and what is converted afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phonate.config.errors import DataError, InputError

MOST_SOURCES = 3
_FEWEST_CLIPS = 3
_SHORTEST_SOURCE = 1.0  # seconds; a shorter one says too little of a voice


@dataclass(frozen=True)
class Divided:
    """The division."""

    training: list[dict[str, str]]
    """Recordings to train on, as a JSON corpus lists them."""
    speakers: int
    target: str
    """The speaker with the most speech."""
    target_clips: tuple[Path, ...]
    """The target's recordings."""
    sources: tuple[Path, ...]
    """A recording of each of a few other speakers; not in `training`."""


@dataclass(frozen=True)
class _Recording:
    path: Path
    seconds: float


def divide(folder: Path) -> Divided:
    """Keep one recording of up to three speakers who are not the target.

    Raises InputError when `folder` has no two speakers, or none to spare a recording of, and DataError when it
    can't be read.
    """
    speakers = _by_speaker(folder)
    if len(speakers) < 2:
        found = f"only of {next(iter(speakers))!r}" if speakers else "none"
        raise InputError(
            f"{folder}: the demo needs recordings of two or more speakers, a sub-folder each; found {found}"
        )
    target = max(speakers, key=lambda name: sum(one.seconds for one in speakers[name]))
    kept: dict[str, Path] = {}
    for name, recordings in speakers.items():
        long = [one for one in recordings if one.seconds >= _SHORTEST_SOURCE]
        if name != target and len(recordings) >= _FEWEST_CLIPS and long and len(kept) < MOST_SOURCES:
            kept[name] = long[-1].path
    if not kept:
        raise InputError(
            f"{folder}: nothing to convert; a speaker beside {target!r} needs {_FEWEST_CLIPS} recordings or more, "
            f"one of them of {_SHORTEST_SOURCE:g} s or longer"
        )
    sources = set(kept.values())
    training = [
        {"audio_path": str(one.path.resolve()), "speaker_id": name}
        for name, recordings in speakers.items()
        for one in recordings
        if one.path not in sources
    ]
    clips = tuple(one.path for one in speakers[target])
    return Divided(training, len(speakers), target, clips, tuple(kept.values()))


def _by_speaker(folder: Path) -> dict[str, list[_Recording]]:
    """The usable recordings of each speaker, in the corpus's order."""
    from phonate.data.manifests.manifest import check_corpus
    from phonate.data.settings import VoiceData

    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give one with a sub-folder of recordings for each speaker")
    checked, _ = check_corpus(VoiceData(path=str(folder), format="folder"))
    speakers: dict[str, list[_Recording]] = {}
    for one in checked:
        recording = _Recording(one.row.path.resolve(), one.seconds)
        speakers.setdefault(str(one.row.segments[0].speaker), []).append(recording)
    return speakers
