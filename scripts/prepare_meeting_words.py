"""Writes benchmarks/meeting_words.stm: what is said in ten extracts of the AMI Meeting Corpus, and by whom.

    git clone https://github.com/gcunhase/AMICorpusXML && git -C AMICorpusXML checkout b43d9179369b
    python scripts/prepare_meeting_words.py AMICorpusXML CORPUS

CORPUS is the folder of the extracts with ref.rttm (pyannote-audio's "Debug" data). Each is the first half minute of a
meeting, so that what a participant says there is the beginning of AMI's transcript of theirs, which AMICorpusXML has
without times. How many of its words each turn of ref.rttm has was told by the meeting's pauses, and at 30 s, where the
extracts end, by what Whisper hears. Turns without words are laughter and other noises.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from phonate.data.annotations import read_rttm

SPOKEN: dict[str, tuple[str, dict[str, tuple[str, list[int]]]]] = {
    "trn00": (
        "EN2001a",
        {
            "MEE067": ("D", [7, 0]),
            "MEE068": ("A", [1, 11, 1, 13, 6]),
            "MÉO069": ("E", [1, 1, 1, 9, 10, 1, 2]),
        },
    ),
    "trn01": (
        "EN2001b",
        {"FEO066": ("A", [1, 0]), "FEO065": ("C", [1, 0]), "MEE068": ("D", [0]), "MÉO069": ("B", [0])},
    ),
    "trn02": ("EN2001d", {"FEO066": ("A", [2])}),
    "trn03": ("EN2001e", {"MEE067": ("D", [3]), "MÉO069": ("B", [100])}),
    "trn04": ("EN2003a", {"MEE075": ("A", [32, 1, 1]), "MEE076": ("B", [0, 7]), "MEO074": ("C", [2, 1])}),
    "trn05": (
        "EN2004a",
        {"FEE078": ("B", [4, 1, 59]), "FEE080": ("A", [1]), "FEE081": ("D", [1, 0]), "FEO079": ("C", [1])},
    ),
    "trn06": ("EN2005a", {"FEE083": ("B", [16, 0, 52]), "FEE085": ("D", [4, 1]), "MEO082": ("A", [5])}),
    "trn07": (
        "EN2006a",
        {
            "FEE087": ("B", [5, 1, 1, 6, 8]),
            "FEE088": ("C", [1]),
            "MEE089": ("A", [1, 1]),
            "MEO086": ("D", [1, 12]),
        },
    ),
    "trn08": (
        "EN2006b",
        {
            "FEE087": ("B", [4, 0, 20, 0, 1]),
            "FEE088": ("C", [1, 1, 3, 0, 16, 9]),
            "MEE089": ("A", [3, 1, 3]),
            "MEO086": ("D", [1, 6]),
        },
    ),
    "trn09": ("EN2009b", {"FEE083": ("B", [0, 94]), "MEE094": ("C", [20, 0, 4, 0, 0]), "MEE095": ("A", [0])}),
}
"""For each extract the meeting, and for each speaker the letter of the transcript and the words of each turn."""


def main() -> None:
    """Write the words of each turn in the order of their starts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcripts", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/meeting_words.stm"))
    args = parser.parse_args()
    lines = [
        ";; The first 30 s of meetings of the AMI Meeting Corpus (https://groups.inf.ed.ac.uk/ami/corpus/, CC BY 4.0,",
        ";; https://creativecommons.org/licenses/by/4.0/); changed: written by scripts/prepare_meeting_words.py.",
    ]
    for name, turns in sorted(read_rttm(args.corpus / "ref.rttm").items()):
        meeting, speakers = SPOKEN[name]
        spoken = []
        for speaker, (letter, counts) in speakers.items():
            file = args.transcripts / f"data/ami-transcripts-speaker/{meeting}.{letter}.transcript.txt"
            words = iter(file.read_text(encoding="utf-8").split())
            own = sorted(turn for turn in turns if turn.speaker == speaker)
            for turn, count in zip(own, counts, strict=True):
                if count:
                    spoken.append((turn.start, turn.end, speaker, " ".join(next(words) for _ in range(count))))
        lines += [f"{name} 1 {speaker} {start:.3f} {end:.3f} {text}" for start, end, speaker, text in sorted(spoken)]
    args.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
