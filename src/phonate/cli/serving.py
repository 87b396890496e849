"""The command serve."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from phonate.cli.inputs import without_blas_threads
from phonate.cli.parsing import add_device, add_model_options, local_path, model_options
from phonate.training.checkpoints.files import BASE_DIARIZER

_KEY_VARIABLE = "PHONATE_API_KEY"


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate serve`."""
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="RUN or NAME=RUN: a run, a checkpoint, a merged model, a name on the hub, whisper or whisper/NAME",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at (default: 8000; 0: any)")
    parser.add_argument(
        "--wyoming", type=int, metavar="PORT", help="also speak Home Assistant's protocol, usually at 10200 (0: any)"
    )
    parser.add_argument(
        "--api-key-file",
        type=local_path,
        metavar="F",
        help=f"keys, one per line (default: the variable {_KEY_VARIABLE})",
    )
    add_model_options(parser)
    add_device(parser)
    parser.add_argument("--model-name", metavar="NAME", help="the first model's name (default: that of its folder)")
    parser.add_argument("--recogniser", metavar="MODEL", help="another model, which transcribes, such as whisper")
    parser.add_argument(
        "--diarizer", metavar="RUN", help=f"another, which tells speakers apart, such as {BASE_DIARIZER}"
    )
    parser.add_argument(
        "--idle-minutes", type=float, metavar="N", help="unload models that nobody used for so long (default: never)"
    )
    parser.add_argument(
        "--alias",
        metavar="NAME=OWN",
        action="append",
        help="another name for the model or for a voice, such as alloy=anna (repeatable; OpenAI's names are known)",
    )
    parser.add_argument("--strict", action="store_true", help="refuse requests with unknown fields; don't ignore them")
    parser.add_argument(
        "--voices", type=local_path, metavar="DIR", help="folder for uploaded voices (default: none stored)"
    )
    parser.add_argument(
        "--cors-origin", action="append", metavar="URL", help="a site whose pages may use the server (repeatable)"
    )
    parser.add_argument(
        "--no-prosody-rules",
        action="store_true",
        help="leave questions and silences as the model says them; don't apply the language's rules",
    )
    parser.add_argument(
        "--compile-model",
        nargs="?",
        const=True,
        choices=("cuda_graphs",),
        help="cloning, on GPUs (not measured yet): compile the step of a frame; cuda_graphs: and replay its kernels",
    )
    for option, kind, what in _SERVING_LIMITS:
        parser.add_argument(option, type=kind, metavar="N", help=what)


_SERVING_LIMITS = (
    ("--max-batch", int, "requests that are worked on at once (default: 8)"),
    ("--max-queue", int, "requests that wait; others are refused with 429 (default: 32)"),
    ("--max-text", int, "characters of a text (default: 4096)"),
    ("--max-silence", float, "seconds of silence that SSML may ask for in all (default: 120)"),
    ("--max-speech-seconds", float, "length of the speech of a request, also where a model clones (default: 900)"),
    ("--max-body", int, "bytes of a request (default: 26214400)"),
    ("--max-reference-seconds", float, "length of a reference recording (default: 30)"),
    ("--max-transcription-seconds", float, "length of a recording that is transcribed (default: 3600)"),
    ("--max-conversion-seconds", float, "length of a recording that is converted (default: 600)"),
    ("--max-voices", int, "voices that are stored (default: 1000)"),
    ("--request-seconds", float, "time for a request (default: 300)"),
    ("--decode-seconds", float, "processor time for decoding an upload (default: 10)"),
    ("--stop-seconds", float, "time for finishing running requests when told to stop (default: 30)"),
)


def _require_packages(args: argparse.Namespace) -> None:
    """Raise MissingPackageError, naming all that is missing of what the options need."""
    from phonate.cli.recordings import WHISPER
    from phonate.pretrained import TRANSCRIPTION, Extra, require

    extras = [Extra(("fastapi", "uvicorn", "prometheus_client", "python_multipart"), "'phonate[serve]'")]
    if args.wyoming is not None:
        extras.append(Extra(("wyoming",), "'phonate[wyoming]'"))
    models = (one.rpartition("=")[2] for one in (*args.models, args.recogniser) if one is not None)
    if any(one.partition("/")[0] == WHISPER for one in models):
        extras.append(TRANSCRIPTION)
    require("phonate serve", *extras)


def serve(args: argparse.Namespace) -> int:
    """Serve models over HTTP: OpenAI's protocol for speech and transcripts, cloning of uploaded voices, a page, and
    metrics.

    The first model is loaded now, others when they are asked for. OpenAI's names of models stand for the first that
    does what is asked. The key that clients must bring is read from a file or from the environment variable
    PHONATE_API_KEY. SIGTERM and Ctrl-C finish running requests first.
    """
    without_blas_threads()
    from phonate.cli.output import log_to_console
    from phonate.config.errors import InputError
    from phonate.serving.settings import ServingSettings

    for option, port in (("--port", args.port), ("--wyoming", args.wyoming)):  # before a model is loaded
        if port is not None and not 0 <= port <= 65535:
            raise InputError(f"{option} {port}: a port is a number from 0 to 65535")

    names = [option.removeprefix("--").replace("-", "_") for option, _, _ in _SERVING_LIMITS]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    aliases, api_keys = _aliases(args.alias), _api_keys(args.api_key_file)
    try:
        settings = ServingSettings(
            aliases=aliases,
            strict=args.strict,
            voices=args.voices,
            api_keys=api_keys,
            cors_origins=tuple(args.cors_origin or ()),
            idle_minutes=args.idle_minutes,
            **given,
        )
    except InputError as error:  # which names fields
        fields = re.compile(rf"^{ServingSettings.__name__}\.(\w+)", re.MULTILINE)
        raise InputError(fields.sub(lambda one: "--" + one[1].replace("_", "-"), str(error))) from None
    _require_packages(args)
    from phonate.serving.server import hosted, serve

    log_to_console()
    first, *others = args.models
    if args.model_name:
        first = f"{args.model_name}={first if Path(first).exists() else first.rpartition('=')[2]}"
    models = hosted(
        [first, *others, *(one for one in (args.recogniser, args.diarizer) if one is not None)],
        device=args.device,
        options={**model_options(args), "compile_model": args.compile_model},
        prosody_rules=not args.no_prosody_rules,
        max_batch=settings.max_batch,
    )
    if args.no_prosody_rules and not models.services:
        raise InputError("--no-prosody-rules: no model that is served has such rules; leave it out")
    serve(models, settings, args.host, args.port, args.wyoming)
    return 0


def _aliases(pairs: Sequence[str] | None) -> dict[str, str]:
    """The names of --alias. Raises InputError for what is no NAME=OWN."""
    from phonate.config.errors import InputError

    aliases = dict(pair.split("=", 1) for pair in pairs or () if "=" in pair)
    if wrong := [pair for pair in pairs or () if "=" not in pair or pair.startswith("=") or pair.endswith("=")]:
        raise InputError(f"--alias {wrong[0]}: write NAME=OWN, such as alloy=anna")
    return aliases


def _api_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of the file, or of the environment variable. Raises InputError for a file without any."""
    from phonate.config.errors import InputError, unreadable

    if path is None:
        key = os.environ.get(_KEY_VARIABLE, "").strip()
        return (key,) if key else ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--api-key-file {path}: can't be read ({unreadable(error)}); give a text file with one key per line"
        ) from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise InputError(f"--api-key-file {path}: has no key; write one per line")
    return keys
