"""The demo of text-to-speech: a vocoder, a voice, and sentences that it never heard."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from phonate.config.errors import InputError
from phonate.data.manifests.manifest import list_corpus
from phonate.data.manifests.rows import Row
from phonate.data.settings import VoiceData
from phonate.training.run import Run
from phonate.workflows.demo import embedded_voice
from phonate.workflows.demo.training import Say, quoted, train_stop_resume, train_through
from phonate.workflows.evaluate import evaluate
from phonate.workflows.pages.exhibits import LISTENING, Clip, Example, Listening

_VOCODER_SHARE = 0.25
"""Of the minutes; the rest is for the voice itself."""
_SENTENCES = 400
_KEPT = 12
"""Sentences that are kept out of training and spoken at the end."""
_BY_LOSS = (
    "data.judged=0",
    "training.validation.metric_for_best_model=val_loss",
    "training.validation.greater_is_better=false",
)
"""Judging at every validation takes longer than a demo may."""
_JUDGES = ("faster_whisper", "jiwer", "whisper_normalizer", "distillmos", "xls_r_sqa", "resemblyzer")


def learn_to_speak(data: Path | None, output: Path, minutes: float, say: Say) -> None:
    """Train a vocoder and a voice on `data`, or on the embedded voice, and let it speak; all goes to `output`."""
    exact = data is None
    if data is None:
        say(f"making a corpus: {_SENTENCES} sentences, put together by chance and spoken by espeak-ng")
        data = embedded_voice.make(output / "corpus", _SENTENCES).folder
    listed, _ = list_corpus(VoiceData(path=str(data)))
    if not any(isinstance(row, Row) and row.text for row in listed):
        raise InputError(
            f"{data}: none of the recordings has a text, and a voice is learnt from both; add the texts (docs/data.md "
            "says how), or convert voices instead, which needs none: --task conversion (make demo TASK=conversion)"
        )
    share = min(0.2, _KEPT / len(listed))
    corpus = ["size=tiny", f"data.path={quoted(data)}", f"data.validation={share:.4f}"]
    if _multiplies_in_bf16():
        corpus.append("training.mixed_precision=bf16")
    vocoder = output / "vocoder"
    say("\nfirst a vocoder, which makes sound of mel spectrograms")
    plain = "training.adversarial_start=null"
    train_through(["vocoder", *corpus, plain], vocoder, _VOCODER_SHARE * minutes, say)
    say("\nthen the voice, which makes mel spectrograms of text")
    recipe = ["speech", *corpus, plain, *_BY_LOSS, "training.batch_size=8", f"data.vocoder={quoted(vocoder)}"]
    if exact:  # espeak-ng told when it says each of its phones
        recipe += ["data.phonemes=espeak", "data.durations=espeak", "model.predictor_dropout=0.1"]
    elif importlib.util.find_spec("pocketsphinx") is None:
        recipe.append("data.durations=learnt")
    train_stop_resume(recipe, output, (1.0 - _VOCODER_SHARE) * minutes, say)
    if missing := [name for name in _JUDGES if importlib.util.find_spec(name) is None]:
        say(f"\nspeaking; for figures, install the judges ({', '.join(missing)}): pip install 'phonate[eval]'")
        _speak(output)
    else:
        say("\nspeaking sentences that were kept out of training, and measuring how good that is")
        evaluate(output)


def _multiplies_in_bf16() -> bool:
    """Whether there is a processor here, and no GPU, on which a step takes less time so (1.7 times as many)."""
    import torch

    if torch.cuda.is_available():  # which `auto` knows about
        return False
    has: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.10 does not tell
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def _speak(output: Path) -> None:
    """Speak the texts that were kept out of training, for the report."""
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
        made = Clip(label="Spoken", path=f"spoken-{name}.flac", note="what this model makes of the text")
        examples.append(Example(title=text, clips=(natural, made)))
    Run(output).write_json(LISTENING, Listening(examples=tuple(examples)).model_dump())
