"""Lhotse manifests: a CutSet, or a recording set, as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from phonate.config.errors import DataError
from phonate.data.rows import Problem, Row, malformed


def cutset_rows(path: Path) -> Iterator[Row | Problem]:
    """Rows of a manifest of whole recordings. Audio that comes from a command or an address is refused: a manifest
    is data, and may neither run a shell nor reach into a network."""
    import lhotse

    # Lhotse runs a "path" that begins with pipe: in a shell, and opens addresses; an absolute path is neither.
    path = path.resolve()
    if not path.is_file():
        raise DataError(f"{path}: no such file; a CutSet manifest (.jsonl or .jsonl.gz) is wanted")
    try:
        cuts = lhotse.CutSet.from_jsonl_lazy(path) if ".jsonl" in path.name else lhotse.CutSet.from_file(path)
        for number, cut in enumerate(cuts, start=1):
            yield _row(cut, path, f"{path}:{number}")
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"{path}: not a CutSet manifest of Lhotse ({error})") from error


def _row(cut: object, path: Path, place: str) -> Row | Problem:
    recording = getattr(cut, "recording", None)
    if recording is None or len(recording.sources) != 1:
        return malformed(place, "a cut of one recording from one file is wanted")
    source = recording.sources[0]
    if source.type != "file":
        raise DataError(f"{place}: its audio is a {source.type}, not a file; save the recording to a file first")
    if abs(cut.duration - recording.duration) > 1e-3:  # type: ignore[attr-defined]
        return malformed(place, "the cut is a part of its recording; save it as a recording of its own first")
    said = cut.supervisions[0] if cut.supervisions else None  # type: ignore[attr-defined]
    file = Path(source.source)
    return Row(
        id=str(cut.id),  # type: ignore[attr-defined]
        path=file if file.is_absolute() or file.is_file() else path.parent / file,
        speaker=said.speaker if said else None,
        text=said.text if said else None,
        place=place,
    )
