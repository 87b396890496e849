"""Find a device and data, train a model on them, and leave a log.

Put recordings into a folder `recordings`, with a .txt beside each for text-to-speech, or texts for a language model,
and run `phonate session`. The model is saved to OUTPUT/voice_model or OUTPUT/text_model, the log to OUTPUT/logs.
An interrupted session continues with `phonate session --resume`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phonate.workflows.session.session import TrainingSession

VOICE_MODES = ("voice", "text", "auto")
_OPTIONS = {
    "mode": "mode",
    "voice_mode": "voice_mode",
    "device": "device",
    "min_gpu_memory": "min_gpu_memory",
    "voice_data_dir": "voice_data_dir",
    "config": "config_path",
    "output_dir": "output_dir",
}
"""Option -> argument of `TrainingSession`. Options that are not given are left to it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate session`."""
    parser.add_argument(
        "--mode",
        choices=("gpu", "cpu", "mixed"),
        help="gpu: only with a GPU; cpu: without; mixed (default): a GPU if one has enough free memory",
    )
    parser.add_argument(
        "--voice-mode",
        choices=VOICE_MODES,
        help="train on recordings, on texts, or (auto, default) on recordings if there are any, else on texts",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0, mps; takes precedence over --mode")
    parser.add_argument("--min-gpu-memory", type=float, metavar="GB", help="free memory a GPU needs (default: 5)")
    parser.add_argument("--voice-data-dir", metavar="D", help="default: recordings")
    parser.add_argument("--config", metavar="C", help="default: training/config.yaml, if it exists")
    parser.add_argument("--output-dir", metavar="O", help="default: training/output")
    parser.add_argument(
        "--resume", action="store_true", help="continue the newest unfinished session in --output-dir to its end"
    )
    parser.add_argument("--show-resources", action="store_true", help="list GPUs, cores and memory, and exit")
    parser.add_argument("--check-voice-data", action="store_true", help="count the recordings, and exit")


def run(args: argparse.Namespace) -> int:
    """Train, or look; returns 1 when the session failed, or when the check found no recordings."""
    code = 0
    if args.show_resources:
        from phonate.compute.resources import ResourceDetector

        print(ResourceDetector().text())
    if args.check_voice_data:
        from phonate.config.errors import InputError
        from phonate.data.voices.files import VoiceDataDetector

        if args.voice_data_dir == "":
            raise InputError("--voice-data-dir: the name is empty; name a folder, or leave the option out")
        detector = VoiceDataDetector(args.voice_data_dir or "recordings")
        print(detector.text())
        code = 0 if detector.has_voice_data() else 1
    if args.show_resources or args.check_voice_data:
        return code
    from phonate.config.errors import Interrupted

    session = _session(args)
    try:
        return 0 if session.run() else 1
    except Interrupted as error:  # the log has shown it
        return error.exit_code


def _session(args: argparse.Namespace) -> TrainingSession:
    from phonate.cli.output import ProgressBar
    from phonate.workflows.session.session import TrainingSession

    given: dict[str, Any] = {
        argument: value for option, argument in _OPTIONS.items() if (value := getattr(args, option)) is not None
    }
    start = TrainingSession.resume if args.resume else TrainingSession
    return start(**given, bar=ProgressBar() if sys.stderr.isatty() else None)
