"""Recordings -> a voice model: scan, validate, extract, analyse, train, save."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from phonate.audio.decoding import read_start, write_audio
from phonate.audio.processor import AudioProcessor
from phonate.audio.readers import USUAL_SUFFIXES
from phonate.config.errors import DataError, InputError
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Problem, Row, official_split, one_line, printable, read_part
from phonate.data.corpora.validation import Report
from phonate.data.settings import VoiceData
from phonate.data.voices import (
    Extracted,
    VoiceDataDetector,
    VoiceFile,
    extract_features,
    validate_voice_files,
    voice_profile,
    write_profile,
)
from phonate.rendering import vocoder_conflict
from phonate.training.checkpoints import best_or_latest
from phonate.training.plan import Plan
from phonate.workflows.pages.recordings import write_voice_page
from phonate.workflows.session.config import default_task, needs_text
from phonate.workflows.session.session import sample
from phonate.workflows.session.work import MODEL, VOCODER, Work

# ----------------- The vocoder of a session's voice: the recipe's, a run, or one that is trained first

_AUTO = "auto"


@dataclass(frozen=True)
class _Choice:
    """What `data.vocoder` is to be."""

    run: str | None
    """Its value."""
    recipe: str | None = None
    """The recipe by which it is trained first, if it is."""


def checked(work: Work, plan: Plan) -> Plan:
    """The plan with its vocoder, if it need not be trained. Raises InputError where it has no intact checkpoint."""
    choice = _choice(work, plan)
    if choice.run is not None:
        best_or_latest(choice.run)
    return _with(plan, choice.run)


def with_vocoder(work: Work, plan: Plan) -> Plan:
    """The plan with its vocoder, which is trained now if there is none."""
    choice = _choice(work, plan)
    if choice.recipe is None:
        return _with(plan, choice.run)
    work.log.info(f"Training a vocoder first, on {work.device}")
    own = work.config.vocoder_plan(choice.recipe, {"data.path": plan.written.recipe.data.path})
    run = work.train(own, VOCODER)
    return _with(plan, str(run.resolve()))


def _choice(work: Work, plan: Plan) -> _Choice:
    """As `session.vocoder` says, unless the configuration itself has a `data.vocoder`."""
    data, source, config = plan.written.recipe.data, work.config.settings.vocoder, work.config
    named = getattr(data, "vocoder", None)
    if not hasattr(data, "vocoder") or config.value("data", "vocoder") is not None:
        return _Choice(named)
    if source is None:
        return _Choice(None)
    if source == _AUTO:
        usable = config.task is not None or (
            named is not None and vocoder_conflict(named, AudioProcessor(data.audio)) is None
        )
        return _Choice(named) if usable else _Choice(None, _AUTO)
    return _Choice(str(Path(source).resolve())) if Path(source).is_dir() else _Choice(None, source)


def _with(plan: Plan, vocoder: str | None) -> Plan:
    """The plan with `data.vocoder`."""
    if getattr(plan.written.recipe.data, "vocoder", None) == vocoder:
        return plan
    return plan.but({"data.vocoder": vocoder})


SAVED = "voice_model"
PAGE = "voice_profile.html"
LISTED = "recordings.jsonl"


@dataclass(frozen=True)
class _Recording:
    """A recording that can be trained on."""

    row: Row
    file: VoiceFile

    @property
    def is_part(self) -> bool:
        """Whether it is a part or a channel of its file, and not the whole."""
        return self.row.start > 0.0 or self.row.end is not None or self.row.channel is not None

    @property
    def is_long(self) -> bool:
        """Whether only its beginning is used."""
        return not self.is_part and self.file.seconds < self.file.whole_seconds

    @property
    def part_seconds(self) -> float:
        """Length of the part."""
        return (self.file.whole_seconds if self.row.end is None else self.row.end) - self.row.start


def train_voice(work: Work) -> Path:
    """The whole flow; returns the folder of the model.

    Raises RecipeError for mistakes in the configuration, InputError where a recogniser is to be trained without texts,
    DataError where no recording can be used.
    """
    log = work.log
    log.info("Starting voice training")
    listed = work.folder / LISTED
    task = work.state.task
    if task is None or not listed.is_file():
        task = _prepare(work, listed)
    plan = with_vocoder(work, _plan(work, task, listed))
    log.info(f"Training a model of the task {task} on {work.device}")
    work.train(plan, MODEL)
    made = work.export(SAVED, getattr(plan.recipe.data, "vocoder", None))
    path, text = _first(listed)
    shown = sample(made, work.output / SAVED, path, text)
    model = work.keep(made)
    log.success(f"Voice model saved to: {model}")
    if shown is not None:
        log.success(shown)
    return model


def _prepare(work: Work, listed: Path) -> str:
    """Scan, validate, extract and analyse, and list what is trained on in the file `listed`; returns the task."""
    detector = scan(work)
    if work.config.settings.transcribe:
        detector = _transcribe(work, detector)
    speaker = work.config.value("data", "speaker")
    rows, _ = list_corpus(VoiceData(path=str(detector.voice_data_dir), speaker=speaker))
    task = _task(work, rows)
    if work.config.value("data", "path") is not None:
        work.log.warning(
            f"data.path of {work.config.document.name} is not used; a session trains on {work.voice_data_dir}"
        )
    _check(work, task, listed)
    files, report = _validate(work, detector)
    extracted = _extract(work, files)
    report.refused += extracted.problems
    _analyse(work, extracted, report)
    _write_list(work, task, listed, _match(work, rows, detector.get_voice_files(), extracted.files))
    work.state.task = task
    work.state.write(work.folder)
    return task


def scan(work: Work) -> VoiceDataDetector:
    """Find the recordings. Raises DataError where there are none."""
    detector = VoiceDataDetector(work.voice_data_dir)
    stats = detector.get_stats()
    if not stats["total_files"]:
        raise DataError(
            f"No voice data found in: {one_line(str(work.voice_data_dir))}; put {', '.join(USUAL_SUFFIXES)} files "
            "there, name another folder with --voice-data-dir, or train on texts with --voice-mode text"
        )
    work.log.success(f"Found {stats['total_files']} voice files ({stats['total_size_mb']:.2f} MB)")
    return detector


def _transcribe(work: Work, detector: VoiceDataDetector) -> VoiceDataDetector:
    """Cut recordings at pauses and transcribe them; returns a detector for the pieces."""
    from phonate.workflows.datasets.from_recordings import make_dataset, recogniser

    settings = work.config.settings
    work.log.info("Cutting recordings at pauses and transcribing them")
    whisper = recogniser(settings.whisper_model, settings.language)
    target = work.folder / "dataset"
    if target.is_dir():  # a session that was interrupted while it transcribed
        shutil.rmtree(target)
    made = make_dataset(
        detector.voice_data_dir,
        target,
        split=True,
        transcribe=whisper,
        sample_rate=None,
        progress=work.progress,
    )
    work.log.warning(*(f"{one['source']}: {one['why']}" for one in made["dropped"] if one["why"] == "unreadable"))
    left_out = ", ".join(f"{count} {why}" for why, count in made["why"].items())
    work.log.success(
        f"Transcribed {made['pieces']} pieces, {made['seconds']['kept'] / 60:.1f} minutes"
        + (f" (left out: {left_out})" if left_out else "")
    )
    return VoiceDataDetector(target)


def _validate(work: Work, detector: VoiceDataDetector) -> tuple[list[VoiceFile], Report]:
    """Check quality and format of each file. Raises DataError where none can be used."""
    work.log.info("Validating voice files")
    files, report = validate_voice_files(detector, work.config.settings.rules, work.progress)
    work.log.warning(*map(_line, report.refused))
    work.log.warning(*map(_line, report.warnings))
    if not files:
        raise DataError(
            f"None of {report.listed} voice files can be used "
            f"({', '.join(f'{count} {why}' for why, count in report.reasons().items())}); the log has each one's reason"
        )
    work.log.success(f"{len(files)} of {report.listed} voice files can be used, {report.seconds / 60:.1f} minutes")
    return files, report


def _line(problem: Problem) -> str:
    return one_line(f"{problem.place}: {problem.reason}: {problem.detail}")


def _extract(work: Work, files: Sequence[VoiceFile]) -> Extracted:
    """Extract MFCC, pitch, spectrum and energy of each file, or take them from the cache."""
    work.log.info("Extracting voice features")
    rules, cache = work.config.settings.rules, work.config.value("data", "cache_dir")
    extracted = extract_features(files, rules, cache, work.progress)
    work.log.warning(*map(_line, extracted.problems))
    if not extracted.files:
        raise DataError(f"None of {len(files)} voice files can still be read; the log has each one's reason")
    kept = len(extracted.files) - extracted.computed
    work.log.success(
        f"Extracted features of {len(extracted.files)} samples" + (f", {kept} of them from the cache" if kept else "")
    )
    return extracted


def _analyse(work: Work, extracted: Extracted, report: Report) -> None:
    """Write the voice's profile as JSON and as a page."""
    work.log.info("Analysing the voice")
    profile = voice_profile(extracted.files, extracted.features)
    write_profile(profile, work.folder)
    name = work.voice_data_dir.resolve().name
    rules = work.config.settings.rules
    page = write_voice_page(work.folder / PAGE, name, profile, extracted.files, extracted.features, report, rules)
    pitch = profile["voice_pitch"]
    tone = "no pitch" if pitch["mean"] is None else f"pitch {pitch['mean']:.0f} Hz (deviation {pitch['std']:.0f})"
    work.log.success(
        f"Voice profile of {profile['sample_count']} samples, {profile['total_duration'] / 60:.1f} minutes, {tone}, "
        f"quality {profile['avg_quality_score']:.2f}: {page}"
    )


def _task(work: Work, rows: Sequence[Row | Problem]) -> str:
    """The task to train. Raises InputError where it needs texts and there are none."""
    wanted = work.config.task or work.config.settings.voice
    recordings = [row for row in rows if isinstance(row, Row)]
    with_text = sum(bool(row.text) for row in recordings)
    if wanted == "auto":
        mostly = recordings and 2 * with_text >= len(recordings)
        wanted = default_task("transcribed recordings" if mostly else "recordings")
        work.log.info(f"{with_text} of {len(recordings)} recordings have a text: {wanted}")
    if needs_text(wanted) and not with_text:
        raise InputError(
            f"{one_line(str(work.voice_data_dir))}: {wanted} needs recordings with texts, and none has one; "
            "put a .txt beside each recording, or a metadata.csv, or set session.transcribe: true"
        )
    return wanted


def _plan(work: Work, task: str, path: Path, corpus: bool = True) -> Plan:
    """The plan for the recordings listed at `path`; `corpus`: whether they are listed there already."""
    overrides = {"data.path": str(path.resolve()), **work.config.language_overrides(task)}
    return work.config.plan(task, overrides, corpus)


def _check(work: Work, task: str, listed: Path) -> None:
    """Raise InputError for mistakes in the configuration, the vocoder included, before any work."""
    checked(work, _plan(work, task, listed, corpus=False)).check()


def _match(
    work: Work, rows: Sequence[Row | Problem], scanned: Sequence[Path], files: Sequence[VoiceFile]
) -> list[_Recording]:
    """The usable `files` as the corpus lists them, with speakers and texts. Raises DataError where it lists none."""
    known = {os.path.realpath(path) for path in scanned}  # unlike Path.resolve, it takes links that form a loop
    usable = {os.path.realpath(file.path): file for file in files}
    recordings, problems, whole = [], [], set()
    longest = work.config.settings.rules.max_seconds
    for row in rows:
        if isinstance(row, Problem):
            problems.append(_line(row))
            continue
        path = os.path.realpath(row.path)
        if path in usable:
            one = _Recording(row.of_file(usable[path].whole_seconds), usable[path])
            why = _misfit(one, longest) or ("its recording is listed before" if path in whole else None)
            if why is not None:
                problems.append(f"{one_line(row.place)}: {one_line(str(row.path))}: {one_line(why)}; left out")
                continue
            recordings.append(one)
            if not one.is_part:
                whole.add(path)
        elif path not in known:
            exists = os.path.isfile(path)
            why = "has no suffix of a recording, or is in another folder" if exists else "no such file"
            problems.append(f"{one_line(row.place)}: {one_line(str(row.path))}: {why}; left out")
    listed = {os.path.realpath(row.path) for row in rows if isinstance(row, Row)}
    unlisted = [file for path, file in usable.items() if path not in listed]
    problems += [f"{one_line(str(file.path))}: not in the list of recordings; left out" for file in unlisted]
    work.log.warning(*problems)
    if not recordings:
        raise DataError(
            f"{one_line(str(work.voice_data_dir))}: its list of recordings names none that can be used; correct it"
        )
    return recordings


def _misfit(one: _Recording, longest: float) -> str | None:
    """Why a row can't be one clip of one speaker; None where it can. `longest`: seconds of a part, at most."""
    speakers = one.row.speakers
    if len(speakers) > 1:
        return f"{len(speakers)} speakers ({', '.join(speakers[:5])}); cut it into segments"
    if one.is_part and one.part_seconds > longest:
        return f"a part of {one.part_seconds:.1f} s, longer than session.rules.max_seconds {longest:g}; cut it"
    return None


def _distinct(work: Work, recordings: Sequence[_Recording]) -> list[_Recording]:
    """The recordings with unique ids: of take.wav and take.flac the second becomes take.flac. A warning names them."""
    first: dict[str, Row] = {}
    names: dict[Path, Row] = {}
    unique: list[_Recording] = []
    for one in recordings:
        named = names.setdefault(one.row.path.with_suffix(""), one.row)
        id, number = one.row.id, 1
        while id in first:
            id = f"{one.row.id}{one.row.path.suffix.lower()}" + ("" if number == 1 else f".{number}")
            number += 1
        if id != one.row.id or named.path != one.row.path:
            same = first[one.row.id] if id != one.row.id else named
            shared = ", and share one text" if one.row.text and one.row.text == same.text else ""
            work.log.warning(
                f"{one_line(str(same.path))} and {one_line(str(one.row.path))} have the same name{shared}; both are "
                f"used, the second as {one_line(id)}"
            )
        first[id] = one.row
        unique.append(replace(one, row=replace(one.row, id=id)))
    return unique


def _write_list(work: Work, task: str, listed: Path, recordings: Sequence[_Recording]) -> None:
    """List what is trained on in the file `listed`, as JSON lines.

    Long recordings with a text are left out where the task needs texts: only their beginning would be used.
    """
    used: list[_Recording] = []
    left_out: list[str] = []
    for one in recordings:
        place = one_line(str(one.row.path))
        if needs_text(task) and not one.row.text:
            left_out.append(f"{place}: no text; left out")
        elif needs_text(task) and one.is_long:
            left_out.append(f"{place}: too long, and its text is of the whole; left out, cut it at pauses")
        else:
            used.append(one)
    lines: list[str] = []
    for number, one in enumerate(_distinct(work, used)):
        try:
            lines.append(json.dumps(_line_of(work, one, number)) + "\n")
        except DataError as error:  # a part that its file does not have
            left_out.append(f"{one_line(one.row.place)}: {one_line(str(error))}; left out")
    work.log.warning(*left_out)
    if not lines:
        raise DataError(f"None of {len(recordings)} recordings can be used for {task}; the log has each one's reason")
    tests = sum(official_split(one.row.split) == "test" for one in used)
    if tests:
        work.log.info(f"{tests} recordings are of the official test split, which is not trained on")
    beside = listed.with_name(f".{listed.name}.tmp")
    beside.write_text("".join(lines), encoding="ascii")
    beside.replace(listed)


def _first(listed: Path) -> tuple[Path, str | None]:
    """Path and text of the first recording in the list."""
    with listed.open(encoding="ascii") as file:
        row = json.loads(file.readline())
    return Path(row["audio_path"]), row["text"]


def _line_of(work: Work, one: _Recording, number: int) -> dict[str, str | None]:
    audio = _cut_out(work, one, number) if one.is_part or one.is_long else one.row.path.resolve()
    speaker = one.row.speaker or printable(one.row.path.parent.name)
    line = {"id": one.row.id, "audio_path": str(audio), "speaker_id": speaker, "text": one.row.text}
    return line if one.row.split is None else {**line, "split": one.row.split}


def _cut_out(work: Work, one: _Recording, number: int) -> Path:
    """Write the part of a recording that is used to a file: the one that is listed, or the beginning of a long one."""
    target = work.folder / ("parts" if one.is_part else "beginnings") / f"{number:05d}.flac"
    target.parent.mkdir(exist_ok=True)
    if one.is_part:
        waveform, rate = read_part(one.row)
    else:
        waveform, info = read_start(one.row.path, one.file.seconds)
        rate = info.sample_rate
    write_audio(target, waveform, rate)
    return target.resolve()
