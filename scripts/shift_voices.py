"""Writes tables in which voices also speak higher and lower, for a model that is to speak at any pitch.

    pip install pyworld
    python scripts/shift_voices.py speakers.csv SPEAKER study

Of the recordings of SPEAKER, who has most of them, study/half.csv has every second one, and all of the others.
study/shifted.csv also has the other half of SPEAKER's, shifted by 3, 6, 9 and -3 semitones in turn, and a copy of each
of the others' recordings, shifted by 3 or 4 semitones up or down. Speakers of shifted recordings are called after
speaker and shift, such as kathleen+6. WORLD (Morise et al. 2016) takes the recordings apart and puts them together
again at another pitch; formants move by a fifth of the shift, as with the vocal tracts of higher voices.
"""

from __future__ import annotations

import csv
import random
import sys
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from phonate.pretrained import stand_in

ROTATION = (3, 6, 9, -3)
OTHERS = (-4, -3, 3, 4)
FORMANTS = 5
"""A vocal tract's resonances move by 1 / 5 of the shift."""
LOWEST, HIGHEST = 60.0, 500.0
"""F0 that is looked for, in Hz."""
PEAK = 0.98

Recording = dict[str, str]


def warped(values_TF: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Spectra (T, F) whose frequencies are multiplied by `factor`."""
    bins_F = np.arange(values_TF.shape[1])
    return np.stack([np.interp(bins_F / factor, bins_F, one_F) for one_F in values_TF])


def shifted(sound: NDArray[np.float64], rate: int, semitones: int) -> NDArray[np.float64]:
    """A recording at another pitch, as long as before."""
    with stand_in("pkg_resources"):
        import pyworld

    coarse, times = pyworld.dio(sound, rate, f0_floor=LOWEST, f0_ceil=HIGHEST)
    pitch = pyworld.stonemask(sound, coarse, times, rate)
    factor = 2.0 ** (semitones / 12.0 / FORMANTS)
    envelope = np.exp(warped(np.log(pyworld.cheaptrick(sound, pitch, times, rate)), factor))
    noise = warped(pyworld.d4c(sound, pitch, times, rate), factor)
    made = pyworld.synthesize(pitch * 2.0 ** (semitones / 12.0), envelope, noise, rate)
    scaled: NDArray[np.float64] = made * min(1.0, PEAK / np.abs(made).max())
    return scaled


def copy(row: Recording, semitones: int, folder: Path) -> Recording:
    """The row of a shifted copy, which is written to `folder` unless it is there."""
    source = Path(row["audio_path"])
    target = folder / f"{source.stem}_{semitones:+d}.flac"
    if not target.exists():
        sound, rate = soundfile.read(source)
        unfinished = folder / "unfinished.flac"
        soundfile.write(unfinished, shifted(sound, rate, semitones), rate)
        unfinished.replace(target)
    return row | {"audio_path": str(target.resolve()), "speaker_id": f"{row['speaker_id']}{semitones:+d}"}


def write(path: Path, rows: list[Recording]) -> None:
    """A table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"{path}: {len(rows)} recordings")


def main() -> None:
    """Write the recordings and the tables."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    speaker, study = sys.argv[2], Path(sys.argv[3])
    (study / "shifted").mkdir(parents=True, exist_ok=True)
    known = [row for row in rows if row["speaker_id"] == speaker and row["split"] == "train"]
    others = [row for row in rows if row["speaker_id"] != speaker]
    half = known[::2] + [row for row in rows if row not in known]
    write(study / "half.csv", half)
    draw = random.Random(0)
    shifts = [(row, ROTATION[number % len(ROTATION)]) for number, row in enumerate(known[1::2])]
    shifts += [(row, draw.choice(OTHERS)) for row in others]
    write(study / "shifted.csv", half + [copy(*one, study / "shifted") for one in shifts])


if __name__ == "__main__":
    main()
