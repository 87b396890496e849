"""What a user's type checker sees of the public names: real types, under mypy --strict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from installed import missing

if missing("mypy"):
    pytest.skip("needs mypy: pip install 'phonate[dev]'", allow_module_level=True)

USER = """
import numpy as np
import phonate
from phonate import Converter, Synthesiser
from phonate.models import VoiceTransformer
from phonate.training import (
    AudioConfig, Callback, CheckpointManager, LossManager, TrainingConfig, VoiceCollator, VoiceTrainer,
)

sound = np.zeros(22050, dtype=np.float32)
voice = phonate.load("runs/voice", "speech", device="cuda:0", vocoder="runs/vocoder")
reveal_type(voice)
reveal_type(voice.speak("Hello."))
reveal_type(voice.speak(["Hello.", "Bye."]))
reveal_type(phonate.load("runs/anna", "conversion").convert(sound, sample_rate=16000))
reveal_type(phonate.load("runs/anna", "conversion").convert(["a.wav", "b.wav"]))
reveal_type(phonate.load("runs/asr", "recognition").transcribe("a.wav"))
reveal_type(phonate.load("runs/asr", "recognition").transcribe([sound, sound]))
reveal_type(phonate.load("runs/meetings", "diarization").diarize("a.wav", speakers=3))
reveal_type(phonate.load("runs/meetings", "diarization").diarize([sound, sound]))
reveal_type(phonate.load("runs/lm", "language").generate("The"))
reveal_type(phonate.load("runs/hifi", "vocoder").render(np.zeros((10, 80), dtype=np.float32)))
reveal_type(phonate.load("runs/any"))
reveal_type(phonate.load("runs/any").to("cpu"))
reveal_type(Synthesiser.load("runs/voice", device="cpu"))
reveal_type(Converter.load("runs/anna").sample_rate)
reveal_type(VoiceTransformer())
reveal_type(VoiceTrainer)
reveal_type(TrainingConfig())
reveal_type(CheckpointManager)
reveal_type([AudioConfig, Callback, LossManager, VoiceCollator])
"""
ARRAY = r"numpy\.ndarray\[.*(?:float32|_32Bit).*\]"
SEEN = [
    r"phonate\.tasks\.speech\.inference\.Synthesiser",
    ARRAY,
    rf"list\[{ARRAY}\]",
    ARRAY,
    rf"list\[{ARRAY}\]",
    r"str",
    r"list\[str\]",
    r"phonate\.tasks\.diarization\.inference\.Diarization",
    r"list\[phonate\.tasks\.diarization\.inference\.Diarization\]",
    r"str",
    ARRAY,
    r"phonate\.training\.inference\.Inference",
    r"phonate\.training\.inference\.Inference",
    r"phonate\.tasks\.speech\.inference\.Synthesiser",
    r"int",
    r"phonate\.tasks\.conversion\.model\.VoiceTransformer",
    r"def .*VoiceTrainer",
    r"phonate\.training\.settings\.TrainingConfig",
    r"def .*CheckpointManager",
    r"list\[.*",
]
"""What mypy reveals, line by line."""
WRONG = """
import phonate
from phonate.training import NoSuchTrainer
phonate.load("runs/voice", "speech").convert("a.wav")
phonate.load("runs/voice", "speech").speak(3)
phonate.nosuch
"""


CONFIGURATION = """
[mypy-torch.*,transformers.*,accelerate.*,peft.*,lhotse.*,matplotlib.*,fastapi.*,starlette.*,onnx.*,onnxruntime.*]
follow_imports = skip
"""
"""Their types take minutes to read, and are not what is asked about."""


def check(folder: Path, text: str) -> list[str]:
    """The lines that mypy --strict prints for a user's file."""
    (folder / "user.py").write_text(text)
    (folder / "mypy.ini").write_text("[mypy]\n" + CONFIGURATION)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(folder / "cache")]
    command += ["--follow-imports", "silent", "--disable-error-code", "import-untyped", "user.py"]
    found = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    return found.stdout.splitlines()


@pytest.mark.slow
def test_a_users_type_checker_sees_real_types(tmp_path: Path) -> None:
    lines = check(tmp_path, USER)
    assert not [line for line in lines if " error: " in line]
    revealed = [line.split("Revealed type is ")[1].strip('"').replace("builtins.", "") for line in lines]
    assert len(revealed) == len(SEEN)
    for seen, wanted in zip(revealed, SEEN, strict=True):
        assert re.fullmatch(wanted, seen), (seen, wanted)
    wrong = check(tmp_path, WRONG)
    assert len([line for line in wrong if " error: " in line]) == 4, wrong
