"""A voice as files for other programs: ONNX, Piper, a page that speaks in the browser, and the model card beside them.

Piper sends `^ _ h _ ə _ l _ ... , _   _ ... . _ $`: each phoneme is followed by a pad, words are separated by spaces,
and each mark within a sentence is followed by a space. Our models have one boundary after a word: its mark or `<word>`.

The plain file has the inputs `input` (1, L) int64, the tokens; `scales` (3,) float, how much noise the decoder is
given, how long everything is, and a number without effect; and `sid` (1,) int64, the speaker, where there are several.
Its output is `output` (1, 1, N). Its metadata say how text becomes tokens: `inventory` has the symbols by number.

A page holds the voice, its phonemizer and onnxruntime-web, compressed. The JavaScript modules of `phonate.text.browser`
and of the folder `browser` are in its import map, as `phonate/NAME`. What is large is gzip in base64, and the browser
unpacks it. Nothing is loaded from anywhere, so that the file can be opened as it is.
"""

from __future__ import annotations

import base64
import contextlib
import glob
import gzip
import io
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import torch
from markupsafe import Markup
from torch import Tensor, nn

from phonate.audio.processor import PEAK
from phonate.compute.system import require_space, writing
from phonate.config.errors import InputError, option, require_modules
from phonate.config.language_codes import primary
from phonate.config.metrics import Metric
from phonate.evaluation.tables import Evaluation, markdown
from phonate.nn.vocoder import Vocoder
from phonate.rendering import TrainedVocoder
from phonate.tasks.speech.graph import AlignedPiper, Rule, SpokenPage, SpokenPiper, SpokenText
from phonate.tasks.speech.inference import FADE_SECONDS, LONGEST, NEAR, PAUSE_SECONDS, SILENT_DB, Synthesiser, parallel
from phonate.text.browser import modules, sources
from phonate.text.espeak import SUBSTITUTES, SYMBOLS, voice_of
from phonate.text.language import language
from phonate.text.phonemes import MARKS, PAD, START, WORD, Inventory, learnt_marks
from phonate.training.checkpoints.files import FIGURES
from phonate.training.checkpoints.loading import CARD, sources_of, sources_of_start

if TYPE_CHECKING:
    import onnx
    import onnx_ir

    from phonate.tasks.speech.graph import Dtype


# ------------------- One HTML file that speaks: the voice, its phonemizer and onnxruntime-web

logger = logging.getLogger("phonate")
PHONEMIZERS = ("english", "characters")
"""Those that the page has, too."""
PACKAGE = "onnxruntime-web@1.30.0"
"""The release that was tested."""
DEFAULT_RUNTIME = Path("node_modules/onnxruntime-web")
_SCRIPT, _WEB_ASSEMBLY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_LANGUAGE_FILES = ("lexicon", "letter_to_sound")


@dataclass(frozen=True)
class Runtime:
    """The files of onnxruntime-web that compute on the processor."""

    version: str
    script: Path
    web_assembly: Path


def find_runtime(folder: Path | None) -> Runtime:
    """The runtime in `folder`, that of the npm package onnxruntime-web (default: where npm installs it, from here).

    Raises InputError where it is not there.
    """
    folder = folder or DEFAULT_RUNTIME
    try:
        version = json.loads((folder / "package.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{folder}: no onnxruntime-web there, with which the page computes; run npm install {PACKAGE} here, or "
            f"name the package's folder with {option('runtime')}"
        ) from error
    runtime = Runtime(version, folder / "dist" / _SCRIPT, folder / "dist" / _WEB_ASSEMBLY)
    for file in (runtime.script, runtime.web_assembly):
        if not file.is_file():
            raise InputError(
                f"{file}: not there; onnxruntime-web {version} has other files than the page needs; install another by "
                f"npm install {PACKAGE}"
            )
    return runtime


def require_phonemizer(synthesiser: Synthesiser, source: Path) -> None:
    """Raise InputError for a voice whose phonemizer is not in the page."""
    name = synthesiser.inventory.phonemizer_name
    if name not in PHONEMIZERS:
        raise InputError(
            f"{source}: a page speaks with data.phonemes: {' or '.join(PHONEMIZERS)}, and this voice was trained with "
            f"{name}, which runs in no browser; train another, or choose {option('form', 'onnx')}"
        )
    code = synthesiser.inventory.language
    if name == "characters" and language(code).readings:
        raise InputError(
            f"{source}: a page does not read numbers and abbreviations of the language {code} as this voice does; "
            f"choose {option('form', 'onnx')}"
        )


def page(name: str, synthesiser: Synthesiser, model: bytes, facts: Mapping[str, str], runtime: Runtime) -> str:
    """The HTML of a page.

    Args:
        name: Title of the page.
        synthesiser: The voice.
        model: Its ONNX file, whose waveforms are not scaled.
        facts: For a table.
        runtime: What computes.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    inventory = synthesiser.inventory
    settings: dict[str, Any] = {
        "name": name,
        "sampleRate": synthesiser.sample_rate,
        "speakers": synthesiser.speakers,
        "inventory": inventory.document(),
        "language": sentence_ends(inventory.language),
        "longest": LONGEST,
        "peak": PEAK,
        "melBands": synthesiser.data.audio.n_mels,
        "unitDb": -synthesiser.data.audio.min_level_db,
        "prosody": prosody(synthesiser),
        "shaping": {
            "hop": synthesiser.data.audio.hop_length,
            "rate": synthesiser.sample_rate,
            "near": NEAR,
            "silentDb": SILENT_DB,
            "fadeSeconds": FADE_SECONDS,
        },
    }
    packed = {"model": model, "script": runtime.script.read_bytes(), "runtime": runtime.web_assembly.read_bytes()}
    if inventory.phonemizer_name == "english":
        folder = resources.files("phonate.text.english")
        packed |= {name: (folder / f"{name}.json").read_bytes() for name in _LANGUAGE_FILES}
    environment = Environment(
        loader=PackageLoader(__package__, "browser"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("page.html.jinja").render(
        settings=settings,
        facts=facts,
        language=inventory.language,
        runtime=runtime.version,
        modules=Markup(json.dumps({"imports": dict(_imports())})),
        packed={key: _base64(gzip.compress(value, 9, mtime=0)) for key, value in packed.items()},
    )


def prosody(synthesiser: Synthesiser) -> dict[str, Any]:
    """What the page knows of questions and silences."""
    learnt = learnt_marks(synthesiser.inference_metadata)
    data = language(synthesiser.inventory.language)
    return {
        "learnt": None if learnt is None else sorted(learnt),
        "pauses": dict(data.pauses),
        "between": PAUSE_SECONDS,
        "questions": None if data.questions is None else data.questions.document(),
    }


def sentence_ends(code: str) -> dict[str, Any]:
    """What `sentences` in JavaScript knows of a language."""
    data = language(code)
    return {
        "abbreviations": sorted(data.abbreviations),
        "starters": sorted(data.starters),
        "conjunctions": sorted(data.conjunctions),
        "ordinals": data.ordinals,
    }


def _imports() -> Iterator[tuple[str, str]]:
    """What is imported in the page, and its source as a data: address."""
    for name, source in {**modules(), **sources(resources.files(__package__) / "browser")}.items():
        yield f"phonate/{name}", f"data:text/javascript;base64,{_base64(source.encode())}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# ------------------- Export to Piper: its phoneme ids, how they map to our tokens, and its config file

VERSION = "1.0.0"
"""Version of Piper's file format."""

UNUSED, PHONE, SPACE, FIRST_MARK = 0, 1, 2, 3
"""Weights of ids, for `SpokenPiper`."""

_FIRST = "_^$ !'(),-.:;?"
"""Piper's first phonemes. Some runtimes hard-code the ids of `_`, `^` and `$`, so we use the same ones."""
_MARKS = ",:;.!?"
"""The marks that Piper sends, in ascending order of weight."""
_LAST = "$"
_INNER_DOT = "inner ."
"""A full stop that ends no sentence: part of a mnemonic ("s." is ʂ), or a boundary of syllables."""
_VOWELS = frozenset("aeiouyæøœɐɑɒɔəɘɚɛɜɞɤɨɪɯɵɶʉʊʌʏᵻːˑ\u0303")


class _Context(NamedTuple):
    """What Piper's `sent` means (_: nothing) behind one of `behind` and before one of `before`; None: any."""

    sent: str
    meant: str
    behind: Collection[str] | None = None
    before: Collection[str] | None = None


_OTHERS = frozenset(_FIRST).union(SYMBOLS) - _VOWELS - {"_"}
_TRILLED = _Context("ɾ", "r", _OTHERS - {"r", "ɾ"})
_LATER_ESPEAK = {
    "de": (_Context("r", "ɾ", "bdkptɡ"),),
    "it": (_TRILLED, _Context("ɾ", "r", _VOWELS | {"ɾ"}, _OTHERS - {"ˈ", "ˌ"})),
    **dict.fromkeys(("la", "mk", "ro", "sk"), (_TRILLED,)),
}
"""By language, what Piper's espeak-ng, which is later than the release 1.52, says otherwise than that of training."""
_WITH_GLIDES = {"lt", "ta"}
"""Languages in which that of training, too, has ʲ behind a vowel."""
_SENT_OTHERWISE = {"my": "Burmese", "pt": "Portuguese", "sv": "Swedish"}
"""Languages of which nearly every sentence is sent with other phones or words, by more than rules could mend."""
_STOPS_UNSENT = set(str.split("as bn bpy cmn hi hy hyw ja kok mr ne or pa shn yue zh"))
"""Languages whose sentences end with signs that Piper takes for an end, and sends no mark for (। 。 ։)."""
_WITHOUT_SPACES = {"cmn", "shn", "yue", "zh", "zh-cmn", "zh-yue"}
"""Codes of languages that set no spaces: a clause is one word in training, and Piper sends spaces between its words."""


@dataclass(frozen=True)
class PiperNumbers:
    """The phoneme ids of a voice."""

    of_phonemes: dict[str, list[int]]
    """Piper's phoneme_id_map."""
    tokens: Sequence[int]
    """Our token for each id."""
    weights: Sequence[int]
    """Weight of each id: not said, a phone, or a boundary (of a mark, the stronger the higher)."""
    rules: Sequence[Sequence[Rule]]
    """What ids mean beside others, for `SpokenPiper`."""


def piper_numbers(inventory: Inventory) -> PiperNumbers:
    """The ids for a voice with espeak's phones."""
    phonemes = [*_FIRST, *(symbol for symbol in SYMBOLS if symbol not in _FIRST), _INNER_DOT]
    numbers = {phoneme: number for number, phoneme in enumerate(phonemes)}
    ours = {symbol: number for number, symbol in enumerate(inventory.symbols)}
    tokens, weights = [ours[PAD]] * len(phonemes), [UNUSED] * len(phonemes)

    def mean(phoneme: str, symbol: str, weight: int) -> None:
        tokens[numbers[phoneme]], weights[numbers[phoneme]] = ours[symbol], weight

    for symbol in SYMBOLS:
        if symbol in ours:
            mean(symbol, symbol, PHONE)
    for weight, mark in enumerate(_MARKS, FIRST_MARK):
        mean(mark, mark, weight)
    mean(" ", WORD, UNUSED if inventory.language in _WITHOUT_SPACES else SPACE)
    if primary(inventory.language) in _STOPS_UNSENT:
        mean(_LAST, ".", FIRST_MARK)
    else:
        mean(_LAST, WORD, SPACE)  # end of a text without a final mark
    mean("^", START, FIRST_MARK + len(_MARKS))
    of_phonemes = {phoneme: [number] for phoneme, number in numbers.items() if phoneme != _INNER_DOT}
    for written, phones in SUBSTITUTES.items():
        if len(written) == 1 and written not in _FIRST:
            of_phonemes[written] = [numbers[phone] for phone in phones or "_"]

    def rule(context: _Context) -> Rule:
        behind, before = (
            range(len(phonemes)) if beside is None else {numbers[one] for one in beside}
            for beside in (context.behind, context.before)
        )
        return Rule(numbers[context.sent], numbers[context.meant], behind, before)

    # a sentence's mark is the last, so these are phones, and a colon is a mark before a space alone
    inner = set(phonemes) - {_LAST, "_"}
    marks = (
        _Context("^", "_", inner),
        _Context(".", _INNER_DOT, None, inner),
        _Context("?", "ʔ", inner - set(_MARKS), inner),
        _Context(":", "ː", None, inner - {" "}),
    )
    mnemonics = [_Context(one[0], phone, None, (_INNER_DOT,)) for one, phone in SUBSTITUTES.items() if len(one) == 2]
    # the later espeak inserts glides between vowels (ðɪʲ ˈoʊld)
    glides = () if inventory.language in _WITH_GLIDES else (_Context("ʲ", "_", _VOWELS),)
    stages = (marks, (*mnemonics, *glides, *_LATER_ESPEAK.get(inventory.language, ())))
    return PiperNumbers(of_phonemes, tokens, weights, [[*map(rule, stage)] for stage in stages])


def require_piper(synthesiser: Synthesiser, source: Path) -> None:
    """Raise InputError for a voice to which Piper would send other phones than it learnt."""
    inventory = synthesiser.inventory
    if inventory.phonemizer_name != "espeak":
        form = "sherpa" if inventory.phonemizer_name == "english" else "onnx"  # the one that takes text, where it can
        raise InputError(
            f"{source}: Piper speaks espeak's phones, and this voice was trained with data.phonemes: "
            f"{inventory.phonemizer_name}; train one with data.phonemes=espeak, or choose {option('form', form)}"
        )
    if name := _SENT_OTHERWISE.get(primary(inventory.language)):
        raise InputError(
            f"{source}: Piper's espeak-ng is later than that of training and pronounces {name} otherwise than this "
            f"voice learnt; choose {option('form', 'onnx')}"
        )


def piper_config(
    numbers: PiperNumbers, name: str, language: str, speakers: Sequence[str], sample_rate: int, hop_length: int
) -> dict[str, Any]:
    """The contents of `voice.onnx.json`, the config file of a voice."""
    family, _, region = language.partition("-")
    several = len(speakers) > 1
    return {
        "audio": {"sample_rate": sample_rate},
        "hop_length": hop_length,
        "dataset": name,
        # Piper adds diacritics to the text of a voice "ar"
        "espeak": {"voice": "sem/ar" if language == "ar" else voice_of(language)},
        "language": {"code": f"{family}_{region.upper()}" if region else family, "family": family, "region": region},
        "inference": {"noise_scale": 1.0, "length_scale": 1.0, "noise_w": 0.0},
        "phoneme_type": "espeak",
        "phoneme_map": {},
        "phoneme_id_map": numbers.of_phonemes,
        "num_symbols": len(numbers.tokens),
        "num_speakers": len(speakers),
        "speaker_id_map": {speaker: number for number, speaker in enumerate(speakers)} if several else {},
        "piper_version": VERSION,
    }


# ----- Export to sherpa-onnx: tokens, a lexicon and metadata. It sends a space behind each word, then the word's mark

_SHERPA_LANGUAGE = "English"
"""Of which it reads words from a lexicon."""


def require_lexicon(synthesiser: Synthesiser, source: Path) -> None:
    """Raise InputError for a voice whose words no lexicon can hold."""
    if (name := synthesiser.inventory.phonemizer_name) != "english":
        raise InputError(
            f"{source}: sherpa-onnx speaks words of a lexicon, which data.phonemes: english has, and this voice was "
            f"trained with {name}; train another, or choose {option('form', 'piper')}"
        )


def sherpa_weights(inventory: Inventory) -> list[int]:
    """Weight of each of our tokens, for `SpokenPiper`; that of START is the highest."""
    of_marks = {mark: weight for weight, mark in enumerate(("-", *_MARKS), FIRST_MARK)}
    boundaries = {PAD: UNUSED, WORD: SPACE, START: FIRST_MARK + len(of_marks), **of_marks}
    return [boundaries.get(symbol, PHONE) for symbol in inventory.symbols]


def sherpa_tokens(inventory: Inventory) -> str:
    """The contents of `tokens.txt`: each symbol and its number; the boundary after a word is a space."""
    return "".join(f"{' ' if one == WORD else one} {number}\n" for number, one in enumerate(inventory.symbols))


def sherpa_lexicon() -> str:
    """The contents of `lexicon.txt`: each English word, in small letters, and its phones."""
    from phonate.text.english import lexicon
    from phonate.text.english.phonemizer import WEAK

    phones: dict[str, tuple[str, ...]] = {}
    for word in sorted((*lexicon.words(), *lexicon.names()), key=str.swapcase):  # small letters before capitals
        phones.setdefault(word.lower(), lexicon.entry(word)["DEFAULT"])
    phones |= WEAK
    return "".join(f"{word} {' '.join(said)}\n" for word, said in sorted(phones.items()))


# ----------- MODEL_CARD.md of an exported model: training data, settings, evaluation and permitted use

_HEADING = "## Evaluation"
_NAMED = 20
"""Maximum number of speakers listed by name; otherwise only their number is given."""
_UNKNOWN = "not recorded"
_NO_LICENCE = "*to be filled in: whether the licence and the speakers' consent permit the intended use*"


def model_card(name: str, facts: Mapping[str, str], figures: str) -> str:
    """The text of a card with a table of `facts`."""
    known = {"licence": _NO_LICENCE, **facts}
    rows = "\n".join(f"| {key} | {value} |" for key, value in known.items())
    return f"""# {name}

**The output of this model is AI-generated speech.** Disclose this wherever it is used, and do not imitate a person
without their consent.

| | |
| --- | --- |
{rows}

{_HEADING}

{figures}
"""


def facts_of(synthesiser: Synthesiser, vocoder: str) -> dict[str, str]:
    """Facts about a `Synthesiser` and its training data."""
    facts, speakers = synthesiser.inference_metadata, synthesiser.speakers
    named = ", ".join(speakers[:_NAMED]) if len(speakers) <= _NAMED else "not listed here"
    seconds = facts.get("seconds")
    return {
        "task": "text-to-speech",
        "language": synthesiser.inventory.language,
        "phones": f"{len(synthesiser.inventory)} symbols of the phonemizer {synthesiser.inventory.phonemizer_name}",
        "speakers": f"{len(speakers)}: {named}",
        "recordings": str(facts.get("recordings", _UNKNOWN)),
        "hours": _UNKNOWN if seconds is None else f"{seconds / 3600:.2f}",
        "sample rate": f"{synthesiser.sample_rate} Hz",
        "features": f"{facts['features']} ({synthesiser.data.audio.n_mels} mel bands)",
        "vocoder": vocoder,
        "made with": "phonate",
    }


def figures_beside(checkpoint: Path) -> str:
    """The evaluation table of the run of `checkpoint`, if it was evaluated, or what its own model card says of it."""
    for folder in (checkpoint, *checkpoint.resolve().parents[:2]):
        if (folder / FIGURES).is_file():
            evaluation = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
            return _table(evaluation)
    if (checkpoint / CARD).is_file():
        _, _, figures = (checkpoint / CARD).read_text(encoding="utf-8").partition(f"{_HEADING}\n")
        if figures := figures.partition("\n## ")[0].strip():
            return f"Of the checkpoint, before the export:\n\n{figures}"
    return "Not evaluated. Run `phonate evaluate RUN` before the export to include figures."


def _table(evaluation: Mapping[str, Any]) -> str:
    """The figures as `phonate evaluate` shows them."""
    columns = {
        name: Metric(name, one["better"], one["unit"], one["label"])
        for name, one in evaluation.get("columns", {}).items()
    }
    shown = Evaluation("speech", evaluation["systems"], focus="", columns=columns)
    table = markdown(shown.header(), shown.rows())
    return table + (f"\n\n{legend}" if (legend := evaluation.get("legend", "")) else "")


# ------------------------- A voice as one file, text to waveform, that needs neither torch nor phonate

_CHATTER = (
    "torch.onnx._internal.exporter._registration",  # tells of torchvision, which nobody asked for
    "torch.fx.experimental.symbolic_shapes",  # the number of frames is not known yet: the exporter's first way fails
)
_OPSET = 18
_IR_VERSION = 8  # that of the opset; a runtime refuses files of a later one, which torch writes
_EXAMPLE = 40  # tokens to trace with; any number runs
_MOST = 4096
"""Tokens of a text, for the exporter, which wants a bound."""
Inputs = Mapping[str, tuple[Tensor, dict[int, Any] | None]]
"""By name: an example, and the axes of any length."""
_BYTES: Mapping[Dtype, int] = {"fp32": 4, "fp16": 2, "int8": 1}
"""At least, of a weight."""


def export(
    source: Path,
    target: Path,
    form: str,
    vocoder: str | None = None,
    dtype: Dtype | None = None,
    runtime: Path | None = None,
) -> list[Path]:
    """Write the checkpoint `source` as `target`, a file or a folder to hold one, with a model card beside it.

    Args:
        source: A checkpoint's folder.
        target: What must not be there yet.
        form: onnx, piper, sherpa, or browser, a page that speaks.
        vocoder: A run of the task vocoder (default: the recipe's).
        dtype: What weights are stored as (default: fp32; in a page int8).
        runtime: The folder of the npm package onnxruntime-web, for a page (default: where npm installs it).

    Returns what was written. Raises InputError where there is no vocoder, `target` exists, or the voice has no phones
    that Piper or a page could make.
    """
    require_modules("an ONNX export", "onnx", "onnxscript", install="'phonate[onnx]'")
    if runtime is not None and form != "browser":
        raise InputError(f"{option('runtime')}: only for {option('form', 'browser')}; leave it out")
    written = _paths(target, form)
    engine = find_runtime(runtime) if form == "browser" else None
    synthesiser = Synthesiser.load_torch(source, vocoder)
    if form == "piper":
        require_piper(synthesiser, source)
    if engine:
        require_phonemizer(synthesiser, source)
    if form == "sherpa":
        require_lexicon(synthesiser, source)
    network = _vocoder(synthesiser, source)
    model = written[0]
    facts = facts_of(synthesiser, str(vocoder or synthesiser.data.vocoder))
    spoken = SpokenText(parallel(synthesiser, "be exported"), network)
    stored: Dtype = dtype or ("int8" if form == "browser" else "fp32")
    inherited = sources_of(vocoder or synthesiser.data.vocoder, "the vocoder")
    rows = facts | sources_of(source) | sources_of_start(source) | inherited
    logger.info("exporting %s as %s: this takes a while", source, form)
    # Files are moved from here once all are written.
    with writing(model), _folder_beside(model) as folder:
        require_space(folder, _BYTES[stored] * sum(one.numel() for one in spoken.parameters()))
        temporary = [folder / path.name for path in written]
        if engine:
            _write_page(spoken, synthesiser, temporary[0], facts, stored, engine)
        elif form == "piper":
            _write_voice(spoken, synthesiser, temporary[0], temporary[1], facts, stored)
        elif form == "sherpa":
            _write_sherpa(spoken, synthesiser, temporary, facts, stored)
        else:
            length = torch.export.Dim("tokens", min=1, max=_MOST)
            inputs = {
                "input": (torch.ones(1, _EXAMPLE, dtype=torch.long), {1: length}),
                "scales": (torch.ones(3), None),
            }
            _write(spoken, inputs, temporary[0], synthesiser, facts, stored)
        title = model.stem if model == target else target.resolve().name
        card = model_card(title, rows | {"weights": stored}, figures_beside(source))
        temporary[-1].write_text(card, encoding="utf-8")
        for path, final in zip(temporary, written, strict=True):
            path.replace(final)
    return written


@contextlib.contextmanager
def _folder_beside(file: Path) -> Iterator[Path]:
    """A temporary folder on the disk of `file`, whose own folder and those above are made, and are not left empty where
    the export fails. Those that killed exports of it left behind are removed."""
    new = [above for above in file.parents if not above.exists()]
    file.parent.mkdir(parents=True, exist_ok=True)
    for former in file.parent.glob(f".{glob.escape(file.name)}.*.unfinished"):
        pid = former.name.rsplit(".", 3)[-3]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(former, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(
            dir=file.parent, prefix=f".{file.name}.{os.getpid()}.", suffix=".unfinished"
        ) as folder:
            yield Path(folder)
    finally:
        for own in new:
            if not any(own.iterdir()):
                own.rmdir()


def _paths(target: Path, form: str) -> list[Path]:
    """What is written: the file itself first, the model card last. Raises InputError for what is there already."""
    name = {"piper": "voice.onnx", "browser": "voice.html"}.get(form, "model.onnx")
    model = target if target.suffix == Path(name).suffix else target / name
    beside = {"piper": (f"{model.name}.json",), "sherpa": ("tokens.txt", "lexicon.txt")}.get(form, ())
    written = [model, *map(model.with_name, beside), model.with_name(CARD)]
    for path in written:
        if path.exists():
            raise InputError(f"{path}: exists already; choose another {option('target')}, or remove it")
    return written


def _vocoder(synthesiser: Synthesiser, source: Path) -> Vocoder:
    if not isinstance(synthesiser.render, TrainedVocoder) or not isinstance(synthesiser.render.network, Vocoder):
        raise InputError(
            f"{source}: has no vocoder, and {synthesiser.render.name} can't be exported; give a run of the task "
            f"vocoder with {option('vocoder')}"
        )
    return synthesiser.render.network


def _write_voice(
    spoken: SpokenText, synthesiser: Synthesiser, target: Path, config: Path, facts: Mapping[str, str], dtype: Dtype
) -> None:
    inventory, audio = synthesiser.inventory, synthesiser.data.audio
    numbers = piper_numbers(inventory)
    length = torch.export.Dim("phonemes", min=1, max=_MOST)
    inputs: Inputs = {
        "input": (torch.tensor([numbers.of_phonemes["a"] * _EXAMPLE]), {1: length}),
        "input_lengths": (torch.tensor([_EXAMPLE]), None),
        "scales": (torch.ones(3), None),
    }
    _write(
        AlignedPiper(spoken, numbers.tokens, numbers.weights, rules=numbers.rules).eval(),
        inputs,
        target,
        synthesiser,
        facts,
        dtype,
        ("output", "hops"),
    )
    document = piper_config(
        numbers, target.stem, inventory.language, synthesiser.speakers, audio.sample_rate, audio.hop_length
    )
    config.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_sherpa(
    spoken: SpokenText, synthesiser: Synthesiser, files: Sequence[Path], facts: Mapping[str, str], dtype: Dtype
) -> None:
    inventory = synthesiser.inventory
    numbers = range(len(inventory))
    length = torch.export.Dim("phonemes", min=1, max=_MOST)
    inputs: Inputs = {
        "input": (torch.full((1, _EXAMPLE), len(inventory) - 1), {1: length}),
        "input_lengths": (torch.tensor([_EXAMPLE]), None),
        "scales": (torch.ones(3), None),
    }
    graph = SpokenPiper(spoken, numbers, sherpa_weights(inventory), inventory.symbols.index(START)).eval()
    read = {
        "model_type": "vits",
        "comment": "piper",  # for its inputs
        "language": _SHERPA_LANGUAGE,
        "voice": inventory.language,
        "has_espeak": "0",
        "add_blank": "0",
        "n_speakers": str(len(synthesiser.speakers)),
        "punctuation": " ".join(MARKS),
    }
    _write(graph, inputs, files[0], synthesiser, {**facts, **read}, dtype)
    files[1].write_text(sherpa_tokens(inventory), encoding="utf-8")
    files[2].write_text(sherpa_lexicon(), encoding="utf-8")
    logger.info("sherpa-onnx skips what is not in lexicon.txt: write numbers and abbreviations out, add names to it")


def _write_page(
    spoken: SpokenText,
    synthesiser: Synthesiser,
    target: Path,
    facts: Mapping[str, str],
    dtype: Dtype,
    runtime: Runtime,
) -> None:
    length = torch.export.Dim("tokens", min=1, max=_MOST)
    inputs: Inputs = {
        "input": (torch.ones(1, _EXAMPLE, dtype=torch.long), {1: length}),
        "scales": (torch.ones(3), None),
        "semitones": (torch.zeros(1, _EXAMPLE, 2), {1: length}),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        _write(SpokenPage(spoken), inputs, model, synthesiser, facts, dtype, ("output", "frames", "mel"))
        text = page(target.stem, synthesiser, model.read_bytes(), facts, runtime)
    target.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _silent(names: Sequence[str]) -> Iterator[None]:
    """Within, these loggers tell of nothing but errors."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _write(
    graph: nn.Module,
    inputs: Inputs,
    target: Path,
    synthesiser: Synthesiser,
    facts: Mapping[str, str],
    dtype: Dtype,
    outputs: Sequence[str] = ("output",),
) -> None:
    """Write `graph` as `target`. It has the input `sid`, too, where there are several speakers."""
    import onnx

    from phonate.tasks.speech.graph import store

    if len(synthesiser.speakers) > 1:
        inputs = {**inputs, "sid": (torch.zeros(1, dtype=torch.long), None)}
    metadata = {
        **{key.replace(" ", "_"): value for key, value in facts.items()},
        "sample_rate": str(synthesiser.sample_rate),
        "speaker_names": json.dumps(synthesiser.speakers, ensure_ascii=False),
        "inventory": json.dumps(synthesiser.inventory.document(), ensure_ascii=False),
        "notice": "makes AI-generated speech",
    }
    model = _converted(graph, inputs, outputs)
    onnx.helper.set_model_props(model, metadata)
    store(model, dtype)
    onnx.save(model, target)


def _converted(graph: nn.Module, inputs: Inputs, outputs: Sequence[str]) -> onnx.ModelProto:
    """`graph` in ONNX."""
    example, shapes = zip(*inputs.values(), strict=True)
    # what it prints is the whole graph, at that first way; it raises when the next ones fail too
    printed = contextlib.redirect_stderr(io.StringIO())
    with _silent(_CHATTER), printed, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the exporter's own use of what torch is about to drop
        program = torch.onnx.export(
            graph,
            example,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=shapes,
            opset_version=_OPSET,
            dynamo=True,
            verbose=False,
            optimize=False,
        )
        assert program is not None
        _fold(program.model)
    model: onnx.ModelProto = program.model_proto
    model.ir_version = _IR_VERSION
    # later than that version, and of no use: lines of our sources, with the paths of this machine
    for node in model.graph.node:
        del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    del model.graph.metadata_props[:]
    return model


def _fold(model: onnx_ir.Model) -> None:
    """Compute what is constant, and drop what is not used. `optimize` also tries each rule of rewriting at each node,
    which takes a quarter of an export's time, and gives nothing that runtimes do not find themselves."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.NameFixPass()(model)
