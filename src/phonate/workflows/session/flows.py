"""The flows of a session: recordings -> a voice model, texts -> a language model; and what they share."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phonate.audio.containers.kinds import USUAL_SUFFIXES
from phonate.audio.decoding import MADE, read_start, write_audio
from phonate.compute.system import write_whole
from phonate.config.errors import CheckpointError, DataError, InputError, option
from phonate.config.metrics import plain, told
from phonate.config.words import duration, number_of
from phonate.data.corpora.manifest import list_corpus
from phonate.data.corpora.rows import Problem, Row, official_split, one_line, printable, read_part
from phonate.data.corpora.validation import Report, Unusable, require_length, require_one_speaker, to_cut
from phonate.data.dialogues import SUFFIXES, text_files
from phonate.data.parallel import Progress, Stage
from phonate.data.settings import VoiceData
from phonate.data.voices import (
    ExtractedFeatures,
    VoiceDataDetector,
    VoiceFile,
    extract_features,
    validate_voice_files,
    voice_profile,
    write_profile,
)
from phonate.rendering import BESIDE, GRIFFIN_LIM, saved_beside, vocoder_conflict
from phonate.training.checkpoints import best_or_latest, files, listing
from phonate.training.checkpoints import files as manifest
from phonate.training.checkpoints.listing import is_checkpoint
from phonate.training.plan import Plan
from phonate.workflows.load import load
from phonate.workflows.pages.recordings import write_voice_page
from phonate.workflows.pages.report import write_report
from phonate.workflows.session.config import SessionConfig, default_recipe, default_task, needs_text
from phonate.workflows.session.log import SessionLog, SessionState
from phonate.workflows.train import train_plan

MODEL, VOCODER = "model", "vocoder"
"""Names of runs."""
# --------- What the flows of a session share: progress for bar and log, training, and saving the model

_LINES = 10
"""Approximate number of log lines for the progress of a stage."""
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})
"""Errors of renaming a folder to an existing name."""


@dataclass
class Work:
    """A session that is under way."""

    config: SessionConfig
    log: SessionLog
    state: SessionState
    device: str
    voice_data_dir: Path
    output: Path
    bar: Progress | None = None
    """Shown beside the log."""
    runs: list[Path] = field(default_factory=list)
    """The runs that were begun; the last one is being trained, or was trained last."""

    @property
    def folder(self) -> Path:
        """What this session makes, apart from the model that it leaves in `output`."""
        return self.log.folder

    def progress(self, what: str, done: int, total: int) -> None:
        """Move the bar, and log about ten lines for a stage that takes a while."""
        if self.bar is not None:
            self.bar(what, done, total)
        if what == Stage.READING:
            return
        every = max(10, -(-total // (10 * _LINES)) * 10)
        if done == total or done % every == 0:
            verb = "Processed" if what == Stage.EXTRACTING else f"{what[:1].upper()}{what[1:]}:"
            self.log.add("INFO", [f"{verb} {done}/{total} samples..."], mirrored=self.bar is None)

    def train(self, plan: Plan, name: str) -> Path:
        """Train what was planned into the session's folder `name` on the session's device; returns the run.

        In a resumed session a finished run is not trained again, and one with checkpoints continues.
        """
        run = self.folder / name
        self.runs.append(run)
        if name in self.state.trained:
            return run
        recipe = self.folder / f"{name}.yaml"
        recipe.write_text(plan.resolved.to_yaml(), encoding="utf-8")
        resume = "auto" if run.is_dir() else None
        trained = train_plan(replace(plan, output=run, asked_device=self.device, asked_resume=resume))
        self.state.trained.append(name)
        self.state.write(self.folder)
        terms = {one.name for one in trained.declared if one.is_term}
        metrics = sorted((name, value) for name, value in trained.metrics.items() if plain(name) not in terms)
        shown = "".join(f", {name} {told(name, value, trained.declared)}" for name, value in metrics)
        self.log.success(f"Trained {number_of(trained.step, 'step')} of {plan.recipe.task}{shown}")
        return run

    def export(self, name: str, vocoder: str | None = None) -> Path:
        """Copy what inference needs of the best checkpoint, its vocoder and the voice's profile to the session's
        folder `name`."""
        target = self.folder / name
        if target.is_dir():  # a session that was interrupted while it saved
            shutil.rmtree(target)
        model = listing.export(best_or_latest(self.runs[-1]), target)
        if vocoder not in (None, GRIFFIN_LIM):
            listing.export(best_or_latest(str(vocoder)), model / BESIDE)
        for extra in sorted(self.folder.glob("voice_profile.*")):
            shutil.copy2(extra, model)
        self.log.info(f"Report: {write_report(self.runs[-1])}")
        return model

    def keep(self, model: Path) -> Path:
        """Move the model `made` to its name in the output, and end the session's work.

        A model that an earlier session saved there is replaced; its run still has its checkpoints. Other files there
        are moved, never deleted.
        """
        target = self.output / model.name
        for number in itertools.count(1):
            try:
                model.rename(target)
                break
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
            earlier = self.folder / f"earlier_{model.name}_{number}"
            if not earlier.exists():
                self._clear(target, earlier)
        self.state.done = True
        self.state.write(self.folder)
        return target

    def _clear(self, target: Path, earlier: Path) -> None:
        try:
            target.rename(earlier)
        except FileNotFoundError:  # another session that ends at this moment has done so
            return
        if _is_saved(earlier):
            shutil.rmtree(earlier)
        else:
            self.log.warning(f"{target} held other files than a session's model; they are kept as {earlier}")


def _is_saved(folder: Path) -> bool:
    """Whether `folder` holds what a session saved, and nothing else."""
    if folder.is_symlink() or not is_checkpoint(folder):
        return False
    try:
        names = {files.MANIFEST, SAMPLE, *manifest.read_manifest(folder)}
        if saved_beside(folder) is not None:
            names.add(BESIDE)
    except CheckpointError:  # a file of that name which is no manifest
        return False
    return all(entry.name in names or entry.match("voice_profile.*") for entry in folder.iterdir())


# ------------------------------------------------------- One example by the model that a session saved

SAMPLE = "sample.flac"


def sample(folder: Path, target: Path, recording: Path | None = None, text: str | None = None) -> str | None:
    """Apply the model in the folder `made` to one training example; returns a line for the log.

    Sound is written into the folder as sample.flac. The line names the folder `kept`, where it will be. None: the task
    has nothing to demonstrate.
    """
    model = load(folder)
    shown = model.demonstration(recording, text)
    if shown is None:
        return None
    where = ""
    if shown.waveform is not None:
        assert model.sample_rate is not None
        write_audio(folder / SAMPLE, shown.waveform, model.sample_rate, MADE)
        where = f": {target / SAMPLE}"
    return f"{shown.summary}{where}. For more: {shown.command.format(run=shlex.quote(str(target)))}"


# ------------------------------- Texts -> a language model: check the configuration, load, train, save

SAMPLES = Path("datasets/samples")
TEXT_MODEL = "text_model"


def train_text(work: Work) -> Path:
    """The whole flow; returns the model's folder.

    Raises RecipeError for mistakes in the configuration, DataError where there is no text, MissingPackageError
    without transformers.
    """
    log = work.log
    config = work.config
    name = default_recipe("texts", pretrained=config.value("model", "name") is not None)
    overrides = {} if config.value("data", "path") is not None else {"data.path": str(_texts(work))}
    log.info("Starting text training")
    plan = config.plan(name, overrides)
    written = plan.written
    log.success(f"Configuration: {written.document.name if work.config.exists else 'the recipe ' + written.name}")
    log.info(f"Training on the texts in {plan.recipe.data.path}, on {work.device}")
    work.train(plan, MODEL)
    exported = work.export(TEXT_MODEL)
    shown = sample(exported, work.output / TEXT_MODEL)
    model = work.keep(exported)
    log.success(f"Text model saved to: {model}")
    if shown is not None:
        log.success(shown)
    return model


def _texts(work: Work) -> Path:
    """The folder of texts where the configuration names none."""
    places = (work.voice_data_dir, SAMPLES)
    for folder in places:
        if folder.is_dir() and _has_texts(folder):
            return folder
    raise DataError(
        f"No texts found in: {' or '.join(map(str, places))}; put {', '.join(SUFFIXES)} files there, or set "
        f"data.path in {work.config.document.name}; recordings go into {work.voice_data_dir}"
    )


def _has_texts(folder: Path) -> bool:
    try:
        return bool(text_files(folder))
    except DataError:
        return False


# ----------------- The vocoder of a session's voice: the recipe's, a run, or one that is trained first

_AUTO = "auto"


@dataclass(frozen=True)
class _Choice:
    run: str | None
    """Its value."""
    recipe: str | None = None
    """The recipe by which it is trained first, if it is."""


def with_known_vocoder(work: Work, plan: Plan) -> Plan:
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
        usable = config.task is not None or (named is not None and vocoder_conflict(named, data.audio.facts) is None)
        return _Choice(named) if usable else _Choice(None, _AUTO)
    return _Choice(str(Path(source).resolve())) if Path(source).is_dir() else _Choice(None, source)


def _with(plan: Plan, vocoder: str | None) -> Plan:
    if getattr(plan.written.recipe.data, "vocoder", None) == vocoder:
        return plan
    return plan.but({"data.vocoder": vocoder})


# ----------------------------------------- Recordings -> a voice model: scan, validate, extract, analyse, train, save

VOICE_MODEL = "voice_model"
PAGE = "voice_profile.html"
LISTED = "recordings.jsonl"


@dataclass(frozen=True)
class _Recording:
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
    plan = with_vocoder(work, _voice_plan(work, task, listed))
    log.info(f"Training a model of the task {task} on {work.device}")
    work.train(plan, MODEL)
    exported = work.export(VOICE_MODEL, getattr(plan.recipe.data, "vocoder", None))
    path, text = _first(listed)
    shown = sample(exported, work.output / VOICE_MODEL, path, text)
    model = work.keep(exported)
    log.success(f"Voice model saved to: {model}")
    if shown is not None:
        log.success(shown)
    return model


def _prepare(work: Work, listed: Path) -> str:
    """Scan, validate, extract and analyse, and list what is trained on in the file `listed`; returns the task."""
    detector = scan(work)
    if work.config.settings.transcribe:
        detector = _transcribe(work, detector)
    speakers = {name: work.config.value("data", name) for name in ("speaker", "speaker_folder", "speaker_in_name")}
    rows, _ = list_corpus(VoiceData(path=str(detector.voice_data_dir), **speakers))
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
            f"there, name another folder with {option('voice_data_dir')}, or train on texts with "
            f"{option('voice_mode', 'text')}"
        )
    work.log.success(f"Found {stats['total_files']} voice files ({stats['total_size_mb']:.2f} MB)")
    return detector


def _transcribe(work: Work, detector: VoiceDataDetector) -> VoiceDataDetector:
    """Cut recordings at pauses and transcribe them; returns a detector for the pieces."""
    from phonate.workflows.datasets.from_recordings import load_transcriber, make_dataset

    settings = work.config.settings
    work.log.info("Cutting recordings at pauses and transcribing them")
    options = ("session.whisper_model", "session.language")
    transcriber = load_transcriber(settings.whisper_model, settings.language, options, work.device)
    target = work.folder / "dataset"
    if target.is_dir():  # a session that was interrupted while it transcribed
        shutil.rmtree(target)
    dataset = make_dataset(
        VoiceData(path=str(detector.voice_data_dir), format="folder"),
        target,
        split=True,
        transcribe=transcriber,
        sample_rate=None,
        progress=work.progress,
    )
    work.log.warning(*(f"{one['source']}: {one['why']}" for one in dataset["dropped"] if one["why"] == "unreadable"))
    left_out = ", ".join(f"{count} {why}" for why, count in dataset["why"].items())
    work.log.success(
        f"Transcribed {number_of(dataset['pieces'], 'piece')}, {duration(dataset['seconds']['kept'])}"
        + (f" (left out: {left_out})" if left_out else "")
    )
    return VoiceDataDetector(target)


def _validate(work: Work, detector: VoiceDataDetector) -> tuple[list[VoiceFile], Report]:
    """Check quality and format of each file. Raises DataError where none can be used."""
    work.log.info("Validating voice files")
    cache = work.config.value("data", "cache_dir")
    files, report = validate_voice_files(detector, work.config.settings.rules, work.progress, cache_dir=cache)
    work.log.warning(*map(_line, report.refused))
    work.log.warning(*map(_line, report.warnings))
    if not files:
        raise DataError(
            f"None of {report.listed} voice files can be used "
            f"({', '.join(f'{count} {why}' for why, count in report.reasons().items())}); the log has each one's reason"
        )
    work.log.success(f"{len(files)} of {report.listed} voice files can be used, {duration(report.seconds)}")
    return files, report


def _line(problem: Problem) -> str:
    return one_line(f"{problem.place}: {problem.reason}: {problem.detail}")


def _extract(work: Work, files: Sequence[VoiceFile]) -> ExtractedFeatures:
    """Extract MFCC, pitch, spectrum and energy of each file, or take them from the cache."""
    work.log.info("Extracting voice features")
    rules, cache = work.config.settings.rules, work.config.value("data", "cache_dir")
    extracted = extract_features(files, rules, cache, work.progress)
    work.log.warning(*map(_line, extracted.problems))
    if not extracted.files:
        raise DataError(f"None of {len(files)} voice files can still be read; the log has each one's reason")
    cached = len(extracted.files) - extracted.computed
    work.log.success(
        f"Extracted features of {number_of(len(extracted.files), 'sample')}"
        + (f", {cached} of them from the cache" if cached else "")
    )
    return extracted


def _analyse(work: Work, extracted: ExtractedFeatures, report: Report) -> None:
    work.log.info("Analysing the voice")
    profile = voice_profile(extracted.files, extracted.features)
    write_profile(profile, work.folder)
    name = work.voice_data_dir.resolve().name
    rules = work.config.settings.rules
    page = write_voice_page(work.folder / PAGE, name, profile, extracted.files, extracted.features, report, rules)
    pitch = profile["voice_pitch"]
    tone = "no pitch" if pitch["mean"] is None else f"pitch {pitch['mean']:.0f} Hz (deviation {pitch['std']:.0f})"
    work.log.success(
        f"Voice profile of {number_of(profile['sample_count'], 'sample')}, "
        f"{duration(profile['total_duration'])}, {tone}, quality {profile['avg_quality_score']:.2f}: {page}"
    )


def _task(work: Work, rows: Sequence[Row | Problem]) -> str:
    """The task to train. Raises InputError where it needs texts and there are none."""
    task = work.config.task or work.config.settings.voice
    recordings = [row for row in rows if isinstance(row, Row)]
    with_text = sum(bool(row.text) for row in recordings)
    if task == "auto":
        mostly = recordings and 2 * with_text >= len(recordings)
        task = default_task("transcribed recordings" if mostly else "recordings")
        work.log.info(f"{with_text} of {len(recordings)} recordings have a text: {task}")
    if needs_text(task) and not with_text:
        raise InputError(
            f"{one_line(str(work.voice_data_dir))}: {task} needs recordings with texts, and none has one; "
            "put a .txt beside each recording, or a metadata.csv, or set session.transcribe: true"
        )
    return task


def _voice_plan(work: Work, task: str, path: Path, corpus: bool = True) -> Plan:
    """The plan for the recordings listed at `path`; `corpus`: whether they are listed there already."""
    overrides = {"data.path": str(path.resolve()), **work.config.language_overrides(task)}
    return work.config.plan(task, overrides, corpus)


def _check(work: Work, task: str, listed: Path) -> None:
    """Raise InputError for mistakes in the configuration, the vocoder included, before any work."""
    with_known_vocoder(work, _voice_plan(work, task, listed, corpus=False)).check()


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
    try:
        require_one_speaker(one.row)
        if one.is_part:
            require_length(one.part_seconds, "session.rules", most=longest)
    except Unusable as why:
        return why.detail
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
            mend = to_cut(work.voice_data_dir, work.config.settings.rules.max_seconds, text=True)
            left_out.append(f"{place}: too long, and its text is of the whole; left out, {mend}")
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
    write_whole(listed, "".join(lines).encode("ascii"))


def _first(listed: Path) -> tuple[Path, str | None]:
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
