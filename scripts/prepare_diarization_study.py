"""Splits labelled recordings into folds for cross-validation, without common speakers.

    python scripts/prepare_diarization_study.py CORPUS STUDY

CORPUS is a folder of recordings with one RTTM file. Recordings that share a speaker are kept together; each such group
is the test set of one fold, STUDY/N/test, and all others are in STUDY/N/train, with RTTM, UEM and links to the
recordings.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from phonate.data.annotations import SpeakerTurn, read_rttm, write_rttm

Turns = dict[str, list[SpeakerTurn]]


def groups(turns: Turns) -> list[list[str]]:
    """Names of recordings, together where they are linked by common speakers."""
    found: list[tuple[set[str], list[str]]] = []
    for name in sorted(turns):
        speakers, names = {turn.speaker for turn in turns[name]}, [name]
        for group in [one for one in found if one[0] & speakers]:
            found.remove(group)
            speakers, names = speakers | group[0], group[1] + names
        found.append((speakers, names))
    return sorted(sorted(names) for _, names in found)


def write(folder: Path, corpus: Path, names: list[str], turns: Turns) -> None:
    """A corpus of the recordings `names`."""
    import soundfile

    folder.mkdir(parents=True)
    write_rttm(folder / "ref.rttm", {name: turns[name] for name in names})
    regions = []
    for name in names:
        (file,) = (one for one in corpus.rglob(f"{name}.*") if one.suffix in {".flac", ".wav"})
        (folder / file.name).symlink_to(file.resolve())
        regions.append(f"{name} NA 0.000 {soundfile.info(file).duration:.3f}\n")
    (folder / "ref.uem").write_text("".join(regions), encoding="utf-8")


def main() -> None:
    """Write the folds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("study", type=Path)
    args = parser.parse_args()
    (file,) = args.corpus.glob("*.rttm")
    turns = {name: list(found) for name, found in read_rttm(file).items()}
    folds = groups(turns)
    for number, test in enumerate(folds):
        train = sorted(set(turns) - set(test))
        write(args.study / str(number) / "test", args.corpus, test, turns)
        write(args.study / str(number) / "train", args.corpus, train, turns)
        print(f"{number}: tested on {', '.join(test)}")


if __name__ == "__main__":
    main()
