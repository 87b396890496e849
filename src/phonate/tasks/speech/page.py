"""One HTML file that speaks: the voice, its phonemizer and onnxruntime-web, compressed, in the page itself.

The JavaScript modules of `phonate.text.browser` and of the folder `browser` are in the page's import map, as
`phonate/NAME`. What is large is gzip in base64, and the browser unpacks it. Nothing is loaded from anywhere, so that
the file can be opened as it is.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from phonate.audio.processor import PEAK
from phonate.config.errors import InputError
from phonate.tasks.speech.inference import FADE_SECONDS, LONGEST, NEAR, PAUSE_SECONDS, SILENT_DB, Synthesiser
from phonate.text.browser import modules, sources
from phonate.text.language import language
from phonate.text.phonemes import learnt_marks

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
            "name the package's folder by --runtime FOLDER"
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
            f"{name}, which runs in no browser; train another, or choose --format onnx"
        )
    code = synthesiser.inventory.language
    if name == "characters" and language(code).readings:
        raise InputError(
            f"{source}: a page does not read numbers and abbreviations of the language {code} as this voice does; "
            "choose --format onnx"
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
        packed |= {name: gzip.decompress((folder / f"{name}.json.gz").read_bytes()) for name in _LANGUAGE_FILES}
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
        "questions": None if data.questions is None else data.questions.model_dump(mode="json"),
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
