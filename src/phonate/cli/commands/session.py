"""Find a device and data, train a model on them, and leave a log to read.

Put recordings into a folder `recordings`, with a .txt beside each for a voice that reads out, or texts for a language
model, and say `phonate session`. The model comes to OUTPUT/voice_model or OUTPUT/text_model, the log to OUTPUT/logs.
"""

from __future__ import annotations

import argparse
import sys

VOICE_MODES = ("voice", "text", "auto")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `phonate session`."""
    parser.add_argument(
        "--mode",
        choices=("gpu", "cpu", "mixed"),
        default="mixed",
        help="gpu: only with a GPU; cpu: without; mixed (default): a GPU if one has the memory",
    )
    parser.add_argument(
        "--voice-mode",
        choices=VOICE_MODES,
        default="auto",
        help="train on recordings, on texts, or (auto, default) on recordings if there are any, else on texts",
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda:0, mps; comes before --mode")
    parser.add_argument(
        "--min-gpu-memory", type=float, default=5.0, metavar="GB", help="free memory a GPU needs (default: 5)"
    )
    parser.add_argument("--voice-data-dir", default="recordings", metavar="D", help="default: recordings")
    parser.add_argument(
        "--config", default="training/config.yaml", metavar="C", help="default: training/config.yaml, if it is there"
    )
    parser.add_argument("--output-dir", default="training/output", metavar="O", help="default: training/output")
    parser.add_argument("--show-resources", action="store_true", help="only say what there is to train on")
    parser.add_argument("--check-voice-data", action="store_true", help="only say what recordings there are")


def run(args: argparse.Namespace) -> int:
    """Train, or look; returns 1 when the session failed."""
    if args.show_resources:
        from phonate.compute.resources import ResourceDetector

        print(ResourceDetector().text())
    if args.check_voice_data:
        from phonate.data.voices.files import VoiceDataDetector

        print(VoiceDataDetector(args.voice_data_dir).text())
    if args.show_resources or args.check_voice_data:
        return 0

    from phonate.cli.output import ProgressBar
    from phonate.workflows.session.session import TrainingSession

    session = TrainingSession(
        args.mode,
        args.voice_mode,
        args.device,
        args.config,
        args.voice_data_dir,
        args.output_dir,
        min_gpu_memory=args.min_gpu_memory,
        bar=ProgressBar() if sys.stderr.isatty() else None,
    )
    return 0 if session.run() else 1
