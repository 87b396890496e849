"""Recordings -> a voice model: scan, validate, extract, analyse, train, save."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phonate.audio.decoding import read_start, write_audio
from phonate.config.errors import DataError, InputError
from phonate.config.resolve import Resolved
from phonate.data.manifests.manifest import list_corpus
from phonate.data.manifests.rows import Problem, Row, one_line, printable
from phonate.data.manifests.validation import Report
from phonate.data.settings import VoiceData
from phonate.data.voices.extraction import Extracted, extract_features
from phonate.data.voices.files import VOICE_FORMATS, VoiceDataDetector
from phonate.data.voices.profile import voice_profile, write_profile
from phonate.data.voices.validation import VoiceFile, validate_voice_files
from phonate.workflows.pages.voice_page import write_voice_page
from phonate.workflows.session.demonstration import sample
from phonate.workflows.session.work import MODEL, VOCODER, Work

RECORDINGS = Path("recordings")
SAVED = "voice_model"
PAGE = "voice_profile.html"
NEED_TEXT = ("speech", "recognition")


@dataclass(frozen=True)
class _Recording:
    """A recording that can be trained on."""

    row: Row
    file: VoiceFile

    @property
    def is_long(self) -> bool:
        """Whether only its beginning is used."""
        return self.file.seconds < self.file.whole_seconds


def train_voice(work: Work) -> Path:
    """The whole flow; returns the folder of the model.

    Raises RecipeError for mistakes in the configuration, InputError where a recogniser is to be trained without texts,
    DataError where no recording can be used.
    """
    log = work.log
    log.info("Starting voice training")
    detector = scan(work)
    if work.config.settings.transcribe:
        detector = _transcribe(work, detector)
    rows, _ = list_corpus(VoiceData(path=str(detector.voice_data_dir)))
    task = _task(work, rows)
    if work.config.value("data", "path") is not None:
        log.warning(f"data.path of {work.config.document.name} is not used: recordings are those that were scanned")
    listed = work.folder / "recordings.jsonl"
    work.check(_recipe(work, task, listed))
    files, report = _validate(work, detector)
    extracted = _extract(work, files)
    report.refused += extracted.problems
    _analyse(work, extracted, report)
    first = _write_list(work, task, listed, _match(work, rows, detector.get_voice_files(), extracted.files))
    resolved = _with_vocoder(work, _recipe(work, task, listed))
    log.info(f"Training a model of the task {task} on {work.device}")
    work.train(resolved, MODEL)
    made = work.export(SAVED, getattr(resolved.recipe.data, "vocoder", None))
    shown = sample(made, work.output / SAVED, first.path, first.text)
    model = work.keep(made)
    log.success(f"Voice model saved to: {model}")
    if shown is not None:
        log.success(shown)
    return model


def scan(work: Work) -> VoiceDataDetector:
    """The recordings that are there. Raises DataError where there are none."""
    detector = VoiceDataDetector(work.voice_data_dir)
    stats = detector.get_stats()
    if not stats["total_files"]:
        raise DataError(
            f"No voice data found in: {one_line(str(work.voice_data_dir))}; put {', '.join(VOICE_FORMATS)} files "
            "there, name another folder by --voice-data-dir, or train on texts by --voice-mode text"
        )
    work.log.success(f"Found {stats['total_files']} voice files ({stats['total_size_mb']:.2f} MB)")
    return detector


def _transcribe(work: Work, detector: VoiceDataDetector) -> VoiceDataDetector:
    """Cut recordings at pauses and write down what is said; goes on with the pieces."""
    from phonate.workflows.datasets.from_recordings import make_dataset, recogniser

    settings = work.config.settings
    work.log.info("Cutting recordings at pauses and writing down what is said")
    whisper = recogniser(settings.whisper_model, settings.language)
    made = make_dataset(
        detector.voice_data_dir,
        work.folder / "dataset",
        split=True,
        transcribe=whisper,
        sample_rate=None,
        progress=work.progress,
    )
    work.log.warning(*(f"{one['source']}: {one['why']}" for one in made["dropped"] if one["why"] == "unreadable"))
    left_out = ", ".join(f"{count} {why}" for why, count in made["why"].items())
    work.log.success(
        f"Wrote down {made['pieces']} pieces, {made['seconds']['kept'] / 60:.1f} minutes"
        + (f" (left out: {left_out})" if left_out else "")
    )
    return VoiceDataDetector(work.folder / "dataset")


def _validate(work: Work, detector: VoiceDataDetector) -> tuple[list[VoiceFile], Report]:
    """Quality and format of each file. Raises DataError where none can be used."""
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
    """MFCC, pitch, spectrum and energy of each file, computed once."""
    work.log.info("Extracting voice features")
    rules, cache = work.config.settings.rules, work.config.value("data", "cache_dir")
    extracted = extract_features(files, rules, cache, work.progress)
    work.log.warning(*map(_line, extracted.problems))
    if not extracted.files:
        raise DataError(f"None of {len(files)} voice files could be read any more; the log has each one's reason")
    kept = len(extracted.files) - extracted.computed
    work.log.success(
        f"Extracted features of {len(extracted.files)} samples" + (f", {kept} of them earlier" if kept else "")
    )
    return extracted


def _analyse(work: Work, extracted: Extracted, report: Report) -> None:
    """The profile of the voice, as JSON and as a page."""
    work.log.info("Analysing the voice")
    profile = voice_profile(extracted.files, extracted.features)
    write_profile(profile, work.folder)
    name = work.voice_data_dir.resolve().name
    rules = work.config.settings.rules
    page = write_voice_page(work.folder / PAGE, name, profile, extracted.files, extracted.features, report, rules)
    pitch = profile["voice_pitch"]
    heard = "no pitch" if pitch["mean"] is None else f"pitch {pitch['mean']:.0f} Hz (deviation {pitch['std']:.0f})"
    work.log.success(
        f"Voice profile of {profile['sample_count']} samples, {profile['total_duration'] / 60:.1f} minutes, {heard}, "
        f"quality {profile['avg_quality_score']:.2f}; to look at: {page}"
    )


def _task(work: Work, rows: Sequence[Row | Problem]) -> str:
    """What is made of the recordings. Raises InputError where it needs texts and there are none."""
    wanted = work.config.task or work.config.settings.voice
    recordings = [row for row in rows if isinstance(row, Row)]
    with_text = sum(bool(row.text) for row in recordings)
    if wanted == "auto":
        wanted = "speech" if recordings and 2 * with_text >= len(recordings) else "conversion"
        work.log.info(f"{with_text} of {len(recordings)} recordings have a text: {wanted}")
    if wanted in NEED_TEXT and not with_text:
        raise InputError(
            f"{one_line(str(work.voice_data_dir))}: {wanted} is learnt from recordings with texts, and none has one; "
            "put a .txt beside each recording, or a metadata.csv, or set session.transcribe: true"
        )
    return wanted


def _recipe(work: Work, task: str, path: Path) -> Resolved:
    """The recipe, for the recordings at `path`."""
    return work.config.recipe(task, {"data.path": str(path.resolve()), **work.config.of_language(task)})


def _match(
    work: Work, rows: Sequence[Row | Problem], scanned: Sequence[Path], files: Sequence[VoiceFile]
) -> list[_Recording]:
    """The usable `files` as the corpus lists them, with speakers and texts. Raises DataError where it lists none."""
    known = {path.resolve() for path in scanned}
    usable = {file.path.resolve(): file for file in files}
    recordings, problems = [], []
    for row in rows:
        if isinstance(row, Problem):
            problems.append(_line(row))
            continue
        path = row.path.resolve()
        if path in usable:
            recordings.append(_Recording(row, usable.pop(path)))
        elif path not in known:
            why = f"no {', '.join(VOICE_FORMATS)} file of the folder" if path.is_file() else "there is no such file"
            problems.append(f"{one_line(row.place)}: {one_line(str(row.path))}: {why}; left out")
    problems += [f"{one_line(str(path))}: the list of recordings does not name it; left out" for path in usable]
    work.log.warning(*problems)
    if not recordings:
        raise DataError(
            f"{one_line(str(work.voice_data_dir))}: the list of recordings there names none that can be used; mend it"
        )
    return recordings


def _write_list(work: Work, task: str, listed: Path, recordings: Sequence[_Recording]) -> Row:
    """List what is trained on in the file `listed`, as JSON lines; returns the first recording in it.

    Of long recordings only the beginning is used, which their texts are not of.
    """
    used: list[_Recording] = []
    left_out: list[str] = []
    for one in recordings:
        place = one_line(str(one.row.path))
        if task in NEED_TEXT and not one.row.text:
            left_out.append(f"{place}: no text; left out")
        elif task in NEED_TEXT and one.is_long:
            left_out.append(f"{place}: its text is of more than is used of it; left out, cut it at pauses")
        else:
            used.append(one)
    work.log.warning(*left_out)
    if not used:
        raise DataError(f"None of {len(recordings)} recordings can be used for {task}; the log has each one's reason")
    lines = (json.dumps(_line_of(work, one, number)) + "\n" for number, one in enumerate(used))
    listed.write_text("".join(lines), encoding="ascii")
    return used[0].row


def _line_of(work: Work, one: _Recording, number: int) -> dict[str, str | None]:
    audio = _beginning(work, one, number) if one.is_long else one.row.path.resolve()
    speaker = one.row.speaker or printable(one.row.path.parent.name)
    return {"id": one.row.id, "audio_path": str(audio), "speaker_id": speaker, "text": one.row.text}


def _beginning(work: Work, one: _Recording, number: int) -> Path:
    """What is used of a recording that is too long, as a file of its own."""
    target = work.folder / "beginnings" / f"{number:05d}.flac"
    target.parent.mkdir(exist_ok=True)
    waveform, info = read_start(one.row.path, one.file.seconds)
    write_audio(target, waveform, info.sample_rate)
    return target.resolve()


def _with_vocoder(work: Work, resolved: Resolved) -> Resolved:
    """The recipe with what makes sound of its mels: one that is trained now, where none is named."""
    data, source, config = resolved.recipe.data, work.config.settings.vocoder, work.config
    if getattr(data, "vocoder", "none") is not None or source is None or (source == "auto" and config.task):
        return resolved
    run = Path(source)
    if not run.is_dir():
        recipe = config.vocoder_recipe("vocoder" if source == "auto" else source, {"data.path": data.path})
        work.log.info(f"First a vocoder, which makes sound of mel spectrograms, on {work.device}")
        run = work.train(recipe, VOCODER).run.path
    overrides = {"data.path": data.path, "data.vocoder": str(run.resolve()), **config.of_language(resolved.recipe.task)}
    return config.recipe(resolved.recipe.task, overrides)
