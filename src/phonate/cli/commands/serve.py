"""Serve a model that speaks over HTTP: OpenAI's protocol, cloning of uploaded voices, a page, and metrics.

RUN is a run's folder, one of its checkpoints, the folder of a merged model, or the name of a model of Higgs Audio v2 on
the hub. The key that clients must bring is read from a file or from the environment variable PHONATE_API_KEY. SIGTERM
and Ctrl-C finish running requests first.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from phonate.cli.parsing import add_model_options, model_options

_KEY_VARIABLE = "PHONATE_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate serve`."""
    parser.add_argument(
        "run", metavar="RUN", help="a run that makes speech, a checkpoint, a merged model, or a name on the hub"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at (default: 8000; 0: any)")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="F", help=f"keys, one per line (default: the variable {_KEY_VARIABLE})"
    )
    add_model_options(parser)
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu (default), cuda:0, mps")
    parser.add_argument("--model-name", metavar="NAME", help="name in /v1/models (default: that of RUN's folder)")
    parser.add_argument("--voices", type=Path, metavar="DIR", help="folder for uploaded voices (default: none stored)")
    parser.add_argument(
        "--cors-origin", action="append", metavar="URL", help="a site whose pages may use the server (repeatable)"
    )
    parser.add_argument(
        "--no-prosody-rules",
        action="store_true",
        help="leave questions and silences as the model says them; don't apply the language's rules",
    )
    for option, kind, what in _LIMITS:
        parser.add_argument(option, type=kind, metavar="N", help=what)


_LIMITS = (
    ("--max-batch", int, "requests that are worked on at once (default: 8)"),
    ("--max-queue", int, "requests that wait; others are refused with 429 (default: 32)"),
    ("--max-text", int, "characters of a text (default: 4096)"),
    ("--max-silence", float, "seconds of silence that SSML may ask for in all (default: 120)"),
    ("--max-body", int, "bytes of a request (default: 26214400)"),
    ("--max-reference-seconds", float, "length of a reference recording (default: 30)"),
    ("--max-voices", int, "voices that are stored (default: 1000)"),
    ("--request-seconds", float, "time for a request (default: 300)"),
    ("--decode-seconds", float, "processor time for decoding an upload (default: 10)"),
    ("--stop-seconds", float, "time for finishing running requests when told to stop (default: 30)"),
)


def run(args: argparse.Namespace) -> int:
    """Load the model and serve it until a signal comes."""
    from phonate.cli.output import log_to_console
    from phonate.config.errors import InputError, optional_package
    from phonate.serving.settings import ServingSettings
    from phonate.workflows.load import load

    names = [option.removeprefix("--").replace("-", "_") for option, _, _ in _LIMITS]
    settings = ServingSettings(
        model_name=args.model_name or Path(args.run).resolve().name,
        voices=args.voices,
        api_keys=_keys(args.api_key_file),
        cors_origins=tuple(args.cors_origin or ()),
        **{name: getattr(args, name) for name in names if getattr(args, name) is not None},
    )
    for package in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        optional_package(package, "phonate serve", "'phonate[serve]'")
    from phonate.serving.server import serve

    log_to_console()
    model = load(args.run, device=args.device, **model_options(args))
    if args.no_prosody_rules:
        if not hasattr(model, "prosody_rules"):
            raise InputError(f"--no-prosody-rules: {args.run} has no such rules; leave it out")
        model.prosody_rules = False
    service = model.speech_service(settings.max_batch)
    if service is None:
        raise InputError(f"{args.run}: this model can't make speech from text, so there is nothing to serve")
    serve(service, settings, args.host, args.port)
    return 0


def _keys(path: Path | None) -> tuple[str, ...]:
    """The keys of the file, or of the environment variable. Raises InputError for a file without any."""
    import os

    from phonate.config.errors import InputError

    if path is None:
        key = os.environ.get(_KEY_VARIABLE, "").strip()
        return (key,) if key else ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--api-key-file {path}: can't be read ({error}); give a text file with one key per line"
        ) from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise InputError(f"--api-key-file {path}: has no key; write one per line")
    return keys
