"""Labels and lists between phonate and the programs that own their formats: each reads what the other writes, with the
same values. Programs that are not installed are named.

    python -m venv formats && formats/bin/pip install -e . praat-parselmouth tgt textgrid praatio pympi-ling pylangacq \
        webvtt-py srt pyannote.database pyannote.metrics lhotse urllib3 meeteval simplejson "nemo_toolkit[asr]"
    apt-get install sctk
    formats/bin/python benchmarks/formats.py --sctk /usr/lib/sctk/bin
"""

from __future__ import annotations

import argparse
import html
import importlib.metadata
import json
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile

from phonate.data.annotations import SpeakerTurn, read_rttm, read_uem, write_rttm, write_uem
from phonate.data.corpora.manifest import CORPORA, detect_format
from phonate.data.corpora.rows import Row
from phonate.data.labels import label_format, write_turns
from phonate.data.transcripts import Transcription, write_transcription
from phonate.evaluation.diarization import score
from phonate.text.captions import TimedWord

TURNS = [SpeakerTurn(0.25, 2.5, 'ann"x'), SpeakerTurn(2.0, 3.125, "Бо&b"), SpeakerTurn(4.0, 4.5, 'ann"x')]
SPANS = [(one.start, one.end, one.speaker) for one in TURNS]
SAID = [("I'm", 0.5, 0.9), ("50%,", 0.9, 1.2), ("—", 1.2, 1.3), ("grüß", 1.4, 1.8), ("Gott.", 2.0, 2.4)]
WORDS = Transcription([TimedWord(text, start, end, None, "ann") for text, start, end in SAID], 6.0)
LABELS = [(0.5, 2.25, "Ann", 'she said "hello" twice'), (2.0, 3.5, "Bob", "grüß Gott")]
Check = tuple[str, bool]
"""What is compared, and whether it is the same."""


def _segments(file: Path) -> list[tuple[float, float, str | None, str | None]]:
    kind = label_format(file)
    assert kind is not None, file
    return [(one.start, one.end or 0.0, one.speaker, one.text) for found in kind.read(file) for one in found.segments]


def _rows(path: Path) -> list[Row]:
    return [row for row in CORPORA.get(detect_format(path))(path) if isinstance(row, Row)]


def praat(folder: Path) -> Iterator[Check]:
    import parselmouth
    from parselmouth.praat import call

    write_turns(folder / "turns.TextGrid", "turns", TURNS, 6.0)
    write_transcription(folder / "words.TextGrid", WORDS, "words")
    for name, expected in (
        ("turns", sorted(SPANS, key=str)),
        ("words", sorted(((b, e, t) for t, b, e in SAID), key=str)),
    ):
        tiers = parselmouth.read(str(folder / f"{name}.TextGrid")).to_tgt().tiers
        found = sorted(((one.start_time, one.end_time, one.text) for tier in tiers for one in tier), key=str)
        yield f"reads a TextGrid of {name}", found == expected
    grid = call("Create TextGrid", 0, 6, "Ann Bob clicks", "clicks")
    for tier, (start, end, _, text) in enumerate(LABELS, start=1):
        call(grid, "Insert boundary", tier, start)
        call(grid, "Insert boundary", tier, end)
        call(grid, "Set interval text", tier, 2, text)
    for form in ("text", "short text", "binary"):
        call(grid, f"Save as {form} file...", str(folder / "praat.TextGrid"))
        yield f"{form} file is read", _segments(folder / "praat.TextGrid") == LABELS


def tgt(folder: Path) -> Iterator[Check]:
    import tgt

    grid = tgt.TextGrid()
    for start, end, speaker, text in LABELS:
        tier = tgt.IntervalTier(0, 6, speaker)
        tier.add_annotation(tgt.Interval(start, end, text))
        grid.add_tier(tier)
    for form in ("long", "short"):
        tgt.write_to_file(grid, str(folder / "tgt.TextGrid"), format=form, encoding="utf-8")
        yield f"{form} TextGrid is read", _segments(folder / "tgt.TextGrid") == LABELS
    write_turns(folder / "turns.TextGrid", "turns", TURNS, 6.0)
    tiers = tgt.read_textgrid(str(folder / "turns.TextGrid")).tiers
    found = [(one.start_time, one.end_time, one.text) for tier in tiers for one in tier]
    yield "reads a TextGrid of turns", sorted(found) == sorted(SPANS)


def textgrid(folder: Path) -> Iterator[Check]:
    import textgrid

    grid = textgrid.TextGrid(maxTime=6)
    for start, end, speaker, text in LABELS:
        tier = textgrid.IntervalTier(speaker, 0, 6)
        tier.add(start, end, text)
        grid.append(tier)
    grid.write(str(folder / "library.TextGrid"))
    yield "TextGrid is read", _segments(folder / "library.TextGrid") == LABELS


def praatio(folder: Path) -> Iterator[Check]:
    from praatio import textgrid

    grid = textgrid.Textgrid()
    for start, end, speaker, text in LABELS:
        grid.addTier(textgrid.IntervalTier(speaker, [(start, end, text)], 0, 6))
    for form in ("long_textgrid", "short_textgrid"):
        grid.save(str(folder / "praatio.TextGrid"), format=form, includeBlankSpaces=True)
        yield f"{form} is read", _segments(folder / "praatio.TextGrid") == LABELS


def pympi(folder: Path) -> Iterator[Check]:
    from pympi.Elan import Eaf

    elan = Eaf()
    elan.remove_tier("default")
    for start, end, speaker, text in LABELS:
        elan.add_tier(speaker)
        elan.add_annotation(speaker, round(1000 * start), round(1000 * end), text)
    elan.to_file(str(folder / "pympi.eaf"))
    yield "ELAN file is read", _segments(folder / "pympi.eaf") == LABELS
    write_turns(folder / "turns.eaf", "turns", TURNS)
    read = Eaf(str(folder / "turns.eaf"))
    found = [
        (start / 1000, end / 1000, tier)
        for tier in read.get_tier_names()
        for start, end, _ in read.get_annotation_data_for_tier(tier)
    ]
    yield "reads an ELAN file of turns", sorted(found) == sorted(SPANS)


def pylangacq(folder: Path) -> Iterator[Check]:
    import pylangacq

    (folder / "call.cha").write_text(
        "@UTF8\n@Begin\n@Languages:\teng\n@Participants:\tCHI Eve Target_Child, MOT Sue Mother\n"
        "@ID:\teng|x|CHI|1;06.|female|||Target_Child|||\n@ID:\teng|x|MOT|||||Mother|||\n@Media:\tcall, audio\n"
        "*CHI:\tmore cookie . \x15500_2250\x15\n*MOT:\tyou want (be)cause xxx cookie@f ? \x152000_3500\x15\n@End\n",
        encoding="utf-8",
    )
    read = pylangacq.read_chat(str(folder / "call.cha"))
    theirs = [(one.participant, *one.time_marks, [token.word for token in one.tokens]) for one in read.utterances()]
    pylangacq.read_chat(str(folder / "call.cha")).to_files(str(folder / "again"))
    for where in (folder, folder / "again"):
        ours = [
            (speaker, 1000 * start, 1000 * end, re.findall(r"[\w']+|[.?!]", text or ""))
            for start, end, speaker, text in _segments(where / "call.cha")
        ]
        yield f"CHAT has the same words{' as written by it' if where != folder else ''}", ours == theirs


def webvtt(folder: Path) -> Iterator[Check]:
    import webvtt

    captions = webvtt.WebVTT()
    captions.captions.append(webvtt.Caption("00:00:00.500", "00:00:02.250", ["<v Ann Lee>hello &amp; welcome</v>"]))
    captions.captions.append(webvtt.Caption("00:00:02.000", "00:00:03.500", ["Bob: good day", "and more"]))
    captions.save(str(folder / "captions.vtt"))
    expected = [(0.5, 2.25, "Ann Lee", "hello & welcome"), (2.0, 3.5, "Bob", "good day and more")]
    yield "WebVTT is read", _segments(folder / "captions.vtt") == expected
    write_turns(folder / "turns.vtt", "turns", TURNS)
    read = webvtt.read(str(folder / "turns.vtt"))
    found = [(_seconds(one.start), _seconds(one.end), html.unescape(one.voice or "")) for one in read]
    yield "reads WebVTT of turns", found == SPANS


def _seconds(stamp: str) -> float:
    hours, minutes, seconds = stamp.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + float(seconds)


def srt(folder: Path) -> Iterator[Check]:
    import srt

    write_turns(folder / "turns.srt", "turns", TURNS)
    found = [
        (one.start.total_seconds(), one.end.total_seconds(), one.content.partition(": ")[0])
        for one in srt.parse((folder / "turns.srt").read_text(encoding="utf-8"))
    ]
    yield "reads SubRip of turns", found == SPANS


def pyannote(folder: Path) -> Iterator[Check]:
    from pyannote.core import Annotation, Segment, Timeline
    from pyannote.database.util import load_rttm, load_uem

    regions = [(0.0, 5.25), (6.0, 10.5)]
    write_rttm(folder / "turns.rttm", {"call.1": TURNS})
    write_uem(folder / "turns.uem", {"call.1": regions})
    read = load_rttm(folder / "turns.rttm")["call.1"].itertracks(yield_label=True)
    yield "reads RTTM", [(one.start, one.end, label) for one, _, label in read] == SPANS
    yield "reads UEM", [(one.start, one.end) for one in load_uem(folder / "turns.uem")["call.1"]] == regions
    annotation = Annotation(uri="call")
    for track, one in enumerate(TURNS):
        annotation[Segment(one.start, one.end), track] = one.speaker
    with (folder / "theirs.rttm").open("w", encoding="utf-8") as file:
        annotation.write_rttm(file)
    with (folder / "theirs.uem").open("w", encoding="utf-8") as file:
        Timeline([Segment(*one) for one in regions], uri="call").write_uem(file)
    yield "RTTM is read", read_rttm(folder / "theirs.rttm") == {"call": TURNS}
    yield "UEM is read", read_uem(folder / "theirs.uem") == {"call": regions}


def lhotse(folder: Path) -> Iterator[Check]:
    from lhotse import SupervisionSegment, SupervisionSet

    write_rttm(folder / "turns.rttm", {"call": TURNS})
    found = [(one.start, one.end, one.speaker) for one in SupervisionSet.from_rttm(str(folder / "turns.rttm"))]
    yield "reads RTTM", found == SPANS
    write_transcription(folder / "words.ctm", WORDS, "words")
    whole = SupervisionSet.from_segments([SupervisionSegment("x", "words", 0.0, 6.0)])
    (aligned,) = whole.with_alignment_from_ctm(str(folder / "words.ctm"), type="word")
    symbols = [(one.symbol, one.start) for one in aligned.alignment["word"]]
    yield "reads CTM", symbols == [("I'm", 0.5), ("50%", 0.9), ("grüß", 1.4), ("Gott", 2.0)]
    yield from _ami(folder / "ami")


def _ami(root: Path) -> Iterator[Check]:
    from lhotse.recipes.ami import parse_ami_annotations

    nite = 'xmlns:nite="http://nite.sourceforge.net/"'
    said = [("Okay", 0.5, 0.8), ("café", 2.0, 2.4), ("it&#39;s", 2.4, 2.6), ("mm-hmm", 3.0, 3.2)]
    words = "".join(
        f'<w nite:id="ES2002a.A.words{n}" starttime="{start}" endtime="{end}">{text}</w>'
        for n, (text, start, end) in enumerate(said)
    )
    spans = [(0.4, 1.3, 0, 0), (1.9, 2.95, 1, 2), (2.98, 3.3, 3, 3)]
    href = "ES2002a.A.words.xml#id(ES2002a.A.words{})..id(ES2002a.A.words{})"
    segments = "".join(
        f'<segment transcriber_start="{start}" transcriber_end="{end}">'
        f'<nite:child href="{href.format(*ids)}"/></segment>'
        for start, end, *ids in spans
    )
    person = '<speaker channel="0" nxt_agent="A" global_name="FEE005"/>'
    parts = {
        "words/ES2002a.A.words.xml": words,
        "segments/ES2002a.A.segments.xml": segments,
        "corpusResources/meetings.xml": f'<meeting observation="ES2002a">{person}</meeting>',
    }
    for name, content in parts.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(f"<nite:root {nite}>{content}</nite:root>", encoding="utf-8")
    parsed = parse_ami_annotations(root, normalize="none")
    theirs = [(key[1], one.text) for key, found in parsed.items() for one in found]
    ours = [(speaker, text) for _, _, speaker, text in _segments(root / "words/ES2002a.A.words.xml")]
    yield "AMI's XML has the same speaker and words", ours == theirs


def meeteval(folder: Path) -> Iterator[Check]:
    import meeteval

    names = ("start_time", "end_time", "speaker", "words")
    listed = [dict(zip(names, one, strict=True), session_id="call") for one in LABELS]
    found = meeteval.io.SegLST(listed)
    meeteval.io.STM.new(found).dump(folder / "theirs.stm")
    meeteval.io.RTTM.new(found).dump(folder / "theirs.rttm")
    yield "STM is read", _segments(folder / "theirs.stm") == LABELS
    yield "RTTM is read", [one[:3] for one in _segments(folder / "theirs.rttm")] == [one[:3] for one in LABELS]
    write_rttm(folder / "turns.rttm", {"call": TURNS})
    read = meeteval.io.load(folder / "turns.rttm").lines
    spans = [(float(one.begin_time), float(one.begin_time + one.duration), one.speaker_id) for one in read]
    yield "reads RTTM", spans == SPANS


def nemo(folder: Path) -> Iterator[Check]:
    from nemo.collections.asr.parts.utils import manifest_utils, speaker_utils
    from nemo.collections.common.parts.preprocessing.manifest import item_iter

    for name in ("a", "b.c"):
        soundfile.write(folder / f"{name}.wav", np.full(16000 * 8, 0.01, np.float32), 16000)
    (folder / "text.txt").write_text("from a file")
    path = str(folder / "b.c.wav")
    lines = [
        {"audio_filepath": "a.wav", "duration": 8.0, "text": "whole one", "speaker": 3},
        {"audio_filepath": path, "offset": 1.0, "duration": 1.5, "text": "a part", "speaker": "ann"},
        {"audio_filename": path, "offset": 0.5, "duration": 2.0, "normalized_text": "normal", "speaker": "ann"},
        {"audio_filepath": path, "duration": 8.0, "text_filepath": str(folder / "text.txt"), "speaker": "ann"},
    ]
    (folder / "train.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    theirs = [
        (Path(one["audio_file"]).name, one["offset"] or 0.0, one["duration"], one["text"], str(one["speaker"]))
        for one in item_iter(str(folder / "train.json"))
    ]
    ours = [
        (row.path.name, row.start, (row.end or 8.0) - row.start, row.text, row.speaker)
        for row in _rows(folder / "train.json")
    ]
    yield "manifest for recognition has the same rows", ours == theirs
    for name in ("a", "b.c"):
        speaker_utils.labels_to_rttmfile([" ".join(map(str, one)) for one in SPANS], name, str(folder))
        (folder / f"{name}.uem").write_text(f"{name} 1 0.0 5.0\n")
    for kind in ("wav", "rttm", "uem"):
        (folder / f"{kind}s.txt").write_text("".join(f"{folder / name}.{kind}\n" for name in ("a", "b.c")))
    texts = {f"{kind}_path": str(folder / f"{kind}s.txt") for kind in ("rttm", "uem")}
    manifest_utils.create_manifest(str(folder / "wavs.txt"), str(folder / "diar.json"), **texts)
    rows = [
        (row.id, row.end, [(one.start, one.end, one.speaker) for one in row.segments])
        for row in _rows(folder / "diar.json")
    ]
    yield "manifest for diarization is read", rows == [("a", 5.0, SPANS), ("b.c", 5.0, SPANS)]
    write_rttm(folder / "turns.rttm", {"call": TURNS})
    yield (
        "reads RTTM",
        speaker_utils.rttm_to_labels(str(folder / "turns.rttm")) == [" ".join(map(str, one)) for one in SPANS],
    )
    tokens = [("good", 0.1), ("day", 0.5)]
    written = [
        manifest_utils.get_ctm_line("a", 1, start, 0.3, token, conf, "lex", "NA")
        for (token, start), conf in zip(tokens, (0.5, None), strict=True)
    ]
    (folder / "align.ctm").write_text("".join(written))
    yield "CTM is read", _segments(folder / "align.ctm") == [(0.1, 0.8, None, "good day")]


def _conversation(rng: random.Random, names: str) -> list[SpeakerTurn]:
    turns = []
    for name in names:
        at = rng.uniform(0, 3)
        while at < 60:
            end = at + rng.uniform(0.1, 5)
            turns.append(SpeakerTurn(round(at, 3), round(end, 3), name))
            at = end + rng.uniform(0.05, 8)
    return sorted(turns)


def sctk(folder: Path, where: Path) -> Iterator[Check]:
    write_transcription(folder / "words.ctm", WORDS, "words")
    (folder / "words.stm").write_text("words 1 ann 0.0 6.0 i'm 50% grüß gott\n", encoding="utf-8")
    files = ["-r", str(folder / "words.stm"), "stm", "-h", str(folder / "words.ctm"), "ctm"]
    shown = subprocess.run(
        [where / "sclite", *files, "-e", "utf-8", "-o", "stdout", "sum"], capture_output=True, text=True, check=True
    )
    summed = next(line for line in shown.stdout.splitlines() if "Sum/Avg" in line)
    words, correct, *_, errors, _ = re.findall(r"[\d.]+", summed)[1:]
    found = (words, correct, errors) == ("4", "100.0", "0.0")
    yield "sclite finds no error in CTM against STM of the same words", found
    differences = []
    for seed in range(60):
        rng = random.Random(seed)
        reference, hypothesis = (
            _conversation(rng, "ABC"[: rng.randint(1, 3)]),
            _conversation(rng, "xyzw"[: rng.randint(1, 4)]),
        )
        collar, skipped, cut = rng.choice([0.0, 0.25]), rng.random() < 0.3, rng.random() < 0.5
        regions = [(5.0, 30.5), (33.0, 58.0)] if cut else None
        write_rttm(folder / "ref.rttm", {"m": reference})
        write_rttm(folder / "hyp.rttm", {"m": hypothesis})
        write_uem(folder / "m.uem", {"m": regions or []})
        options = ["-c", str(collar), *(["-1"] if skipped else []), *(["-u", str(folder / "m.uem")] if cut else [])]
        command = ["perl", where / "md-eval.pl", "-r", folder / "ref.rttm", "-s", folder / "hyp.rttm", *options]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        theirs = float(re.findall(r"OVERALL SPEAKER DIARIZATION ERROR = ([\d.]+) percent", printed)[-1])
        kept = {"collar": collar, "skip_overlap": skipped, "convention": "md-eval"}
        differences.append(abs(100 * score(reference, hypothesis, regions=regions, **kept).der - theirs))
    yield (
        f"md-eval prints the DER of --convention md-eval (60 random pairs; it rounds to 0.01, and differs by up to "
        f"{max(differences):.4f})",
        max(differences) <= 0.00501,
    )
    write_rttm(folder / "call.rttm", {"call": TURNS[:1]})
    valid = subprocess.run(
        ["perl", where / "rttmValidator.pl", "-p", "-f", "-i", folder / "call.rttm"],
        capture_output=True,
        text=True,
        check=False,
    )
    yield (
        "rttmValidator -p -f finds nothing in RTTM",
        valid.returncode == 0 and "ERROR" not in valid.stdout + valid.stderr,
    )


TOOLS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "praat-parselmouth": praat,
    "tgt": tgt,
    "textgrid": textgrid,
    "praatio": praatio,
    "pympi-ling": pympi,
    "pylangacq": pylangacq,
    "webvtt-py": webvtt,
    "srt": srt,
    "pyannote.database": pyannote,
    "lhotse": lhotse,
    "meeteval": meeteval,
    "nemo_toolkit": nemo,
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sctk", type=Path, help="the folder of sclite, md-eval.pl and rttmValidator.pl")
    args = parser.parse_args()
    tools: list[tuple[str, Callable[[Path], Iterator[Check]]]] = [*TOOLS.items()]
    if args.sctk is not None:
        tools.append(("sctk", lambda folder: sctk(folder, args.sctk)))
    print("| program | version | compared | same |\n|---|---|---|---|")
    for name, checks in tools:
        try:
            version = importlib.metadata.version(name) if name != "sctk" else "of the system"
        except importlib.metadata.PackageNotFoundError:
            print(f"| {name} | not installed | | |")
            continue
        with tempfile.TemporaryDirectory() as folder:
            for what, same in checks(Path(folder)):
                print(f"| {name} | {version} | {what} | {'yes' if same else '**no**'} |")


if __name__ == "__main__":
    main()
