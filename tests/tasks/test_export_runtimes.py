"""What is exported as ONNX runs in every onnxruntime from the oldest supported one on, and sounds the same in each."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from installed import missing
from phonate.cli import main
from phonate.models import VoiceTransformer
from phonate.tasks.speech.inference import Synthesiser

if missing("onnx", "onnxscript"):
    pytest.skip("needs onnx, onnxscript: pip install 'phonate[onnx]'", allow_module_level=True)

OLDEST = "1.17.0"
OLDEST_IR, OLDEST_OPSET = 9, 20
ANY = {"float", "float16", "double", "int64", "int8", "bool"}
NUMBERS = {"float", "double", "int64"}
OPERATORS = {
    name: types
    for types, names in (
        (ANY | {"int32"}, "Cast"),
        (ANY, "Concat Constant ConstantOfShape Expand Gather GatherElements GatherND Identity If Reshape"),
        (ANY, "ScatterElements Shape Slice Split Squeeze Transpose Unsqueeze"),
        (NUMBERS | {"int8", "bool"}, "Pad Tile"),
        (NUMBERS, "Abs Add Clip CumSum Div Equal Greater GreaterOrEqual Less LessOrEqual MatMul Max Min Mod Mul"),
        (NUMBERS, "Neg Pow Range ReduceMax ReduceSum Sub Where"),
        ({"float", "double"}, "Exp Floor Gemm LayerNormalization Log Reciprocal ReduceMean Relu Round Sigmoid Sin"),
        ({"float", "double"}, "Softmax Sqrt Tanh"),
        ({"float"}, "Conv ConvTranspose Cos DynamicQuantizeLinear Erf"),
        ({"uint8"}, "MatMulInteger"),
        ({"float", "int64", "bool"}, "NonZero"),
        ({"bool"}, "And Not Or"),
    )
    for name in names.split()
}
"""Of the oldest runtime on a CPU: the element types of each operator's input, of those that matter here."""

Export = Callable[[str], Path]


def problems(path: Path) -> list[str]:
    """What the oldest runtime can't do with a file, and whether the file tells where it was made. Asked of the voices
    that test_speech_export.py and test_speech_browser.py export, too, for torch takes half a minute to export one."""
    import onnx

    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    told = [f"IR version {model.ir_version}"] if model.ir_version > OLDEST_IR else []
    told += [
        f"opset {one.domain or 'ai.onnx'} {one.version}" for one in model.opset_import if one.version > OLDEST_OPSET
    ]
    told += [f"function {function.name}" for function in model.functions]
    graph = onnx.shape_inference.infer_shapes(model).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        operand = node.input[node.op_type == "Where"] if node.input else node.output[0]
        kind = onnx.TensorProto.DataType.Name(types[operand]).lower()
        if node.domain or kind not in OPERATORS.get(node.op_type, ()):
            told.append(f"{node.domain}{node.op_type} of {kind}")
    if str(Path(__file__).parents[2]).encode() in path.read_bytes():
        told.append("a path of this machine")
    return told


@pytest.mark.parametrize(
    "options",
    [{}, {"positions": "rotary", "norm": "pre", "activation": "gelu", "stride": 2, "post_net_layers": 2}],
    ids=["default", "recipe"],
)
def test_a_converter_has_what_the_oldest_runtime_has(options: dict[str, Any], tmp_path: Path) -> None:
    model = VoiceTransformer(20, 16, 2, 1, n_speakers=3, **options)
    assert problems(model.export_to_onnx(tmp_path / "model.onnx")) == []


@pytest.fixture
def voice() -> Synthesiser:
    """The voice that comes with phonate, its networks exchanged for tiny ones."""
    import torch

    from phonate.nn.vocoder import Vocoder
    from phonate.tasks.speech.model import ParallelModel
    from phonate.tasks.speech.settings import SpeechModel

    voice = Synthesiser.load_torch("base/voice")
    torch.manual_seed(0)
    tokens, voices = len(voice.inventory), len(voice.speakers)
    settings = SpeechModel(width=16, encoder_layers=1, decoder_layers=1, predictor_layers=1)
    voice.model = ParallelModel(settings, tokens, voices, voice.data.audio.n_mels).eval()
    voice.render.network = Vocoder.of(voice.processor, 16, 1, postfilter=0.1).eval()
    return voice


@pytest.fixture
def export(voice: Synthesiser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    """Exports `voice` in a form; returns the ONNX file."""
    monkeypatch.setattr(Synthesiser, "load_torch", lambda *_: voice)

    def exported(form: str) -> Path:
        target = tmp_path / "model.onnx"
        assert main(["checkpoints", "export", "base/voice", "--format", form, "-o", str(target)]) == 0
        return target

    return exported


def test_nothing_that_runtimes_lack_is_computed_in_float64(voice: Synthesiser) -> None:
    """As `problems`, without the half minute that torch takes to export a voice."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from phonate.tasks.speech.graph import SpokenText

    doubles: set[str] = set()

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(isinstance(given, torch.Tensor) and given.dtype == torch.float64 for given in args):
                doubles.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    graph = SpokenText(voice.model, voice.render.network)
    with torch.no_grad(), Operators():
        graph(torch.ones(1, 9, dtype=torch.long), torch.ones(3), torch.zeros(1, dtype=torch.long))
    assert "cumsum" in doubles  # of the phase
    assert not doubles & {"cos", "convolution", "erf"}


def installed(folder: Path, *packages: str) -> Path:
    """`folder`, with packages in it, without what they require. Skips where no index of packages is reached."""
    words = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile", "--no-deps"]
    words += ["--target", str(folder), "--only-binary", ":all:", *packages]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    if ran.returncode:
        pytest.skip(f"needs {' '.join(packages)} from PyPI: {ran.stderr.strip().splitlines()[-1]}")
    return folder


_SPEAK = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, onnxruntime
assert onnxruntime.__file__.startswith(sys.argv[1])
session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
known = dict(np.load(sys.argv[3]))
given = {one.name: known[one.name] for one in session.get_inputs()}
np.save(sys.argv[4], session.run(None, given)[0].ravel())
print(onnxruntime.__version__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_voice_sounds_the_same_in_the_oldest_and_the_newest_runtime(dtype: str, tmp_path: Path) -> None:
    if sys.version_info >= (3, 13):
        pytest.skip(f"onnxruntime {OLDEST} has no build for this Python")
    model = tmp_path / "model.onnx"
    words = ["checkpoints", "export", "base/voice", "--format", "onnx", "--dtype", dtype, "-o", str(model)]
    assert main(words) == 0
    assert problems(model) == []
    voice = Synthesiser.load_torch("base/voice")
    tokens = voice.inventory.ids(next(voice.sentences("The kettle began to whistle.")))
    np.savez(tmp_path / "given.npz", input=[tokens], scales=np.ones(3, np.float32), sid=[0])
    sounds, versions = [], []
    for name, packages in {"oldest": [f"onnxruntime=={OLDEST}", "numpy<2"], "newest": ["onnxruntime", "numpy"]}.items():
        folder, sound = installed(tmp_path / name, *packages), tmp_path / f"{name}.npy"
        words = [
            sys.executable,
            "-S",
            "-c",
            _SPEAK,
            *map(str, (folder, model, tmp_path / "given.npz", sound)),
        ]
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        sounds.append(np.load(sound))
        versions.append(ran.stdout.strip())
    assert versions[0] == OLDEST
    assert re.match(r"1\.\d\d|[2-9]", versions[1])
    if dtype == "int8":  # a sum that is rounded elsewise changes the pitch a little, and so every pulse after it
        from phonate.pretrained import Transcriber  # which needs an extra

        whisper = Transcriber("tiny.en")
        heard = {whisper.transcribe(one, voice.sample_rate).lower() for one in sounds}
        assert heard == {"the kettle began to whistle."}
        return
    assert np.abs(sounds[0] - sounds[1]).max() <= 1e-4
    voice.prosody_rules = False
    assert np.abs(sounds[0] - voice.speak("The kettle began to whistle.")).max() <= 1e-3


def sent_by_sherpa(voice: Synthesiser, text: str) -> list[int]:
    """The numbers that the front end of sherpa-onnx makes of a sentence: each word's, a space, and its mark's."""
    from phonate.tasks.speech.export import sherpa_lexicon, sherpa_tokens

    lines = sherpa_tokens(voice.inventory).splitlines()
    numbers = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    lexicon = {word: phones for word, *phones in map(str.split, sherpa_lexicon().splitlines())}
    sent = []
    for word, mark in re.findall(r"([a-z']+)([,.!?]?)", text.lower()):
        sent += [*(numbers[phone] for phone in lexicon[word]), numbers[" "], *([numbers[mark]] if mark else [])]
    return sent


def test_what_sherpa_sends_becomes_the_tokens_of_training(voice: Synthesiser) -> None:
    import torch

    from phonate.tasks.speech.export import sherpa_weights
    from phonate.tasks.speech.graph import SpokenPiper, SpokenText

    inventory = voice.inventory
    spoken = SpokenText(voice.model, voice.render.network)
    start = inventory.symbols.index("<start>")
    graph = SpokenPiper(spoken, range(len(inventory)), sherpa_weights(inventory), start)
    for text in ("Good morning, dear farmers!", "She can't sell yellow boats."):
        sent = torch.tensor([sent_by_sherpa(voice, text)])
        tokens = graph.tokens(sent, torch.tensor([sent.shape[1]]))[0].tolist()
        (words,) = voice.sentences(text)
        assert tokens == inventory.ids(words)


@pytest.mark.slow
def test_sherpa_speaks(export: Export, voice: Synthesiser, tmp_path: Path) -> None:
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    model = export("sherpa")
    assert problems(model) == []
    files = sherpa_onnx.OfflineTtsVitsModelConfig(
        model=str(model),
        lexicon=str(tmp_path / "lexicon.txt"),
        tokens=str(tmp_path / "tokens.txt"),
        noise_scale=1.0,  # its own is 0.667
    )
    speaker = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(model=sherpa_onnx.OfflineTtsModelConfig(vits=files)))
    audio = speaker.generate("Good morning!", sid=0, speed=1.0)
    voice.prosody_rules = False
    ours = voice.speak("Good morning!")
    assert (audio.sample_rate, len(audio.samples)) == (voice.sample_rate, len(ours))
    assert np.abs(np.array(audio.samples) - ours).max() < 1e-3
