#!/usr/bin/env bash
# One would guess that resampled silence is silence, that a recording whose rate stays as it is stays as it is, and that
# 16-bit samples come out as those of the same signal in floats, rounded. soxr adds dither to 16-bit output, and has no
# option to leave it out: of silence from 48 kHz to 16 kHz a quarter of the samples is -1 or 1, and a quarter of a recording's
# samples changes where both rates are the same. Floats have none of it.
# A phonate user who resamples a corpus of 16-bit samples meets it: pauses of digital silence are no longer found, and
# recordings that are equal have other checksums. phonate resamples floats.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check soxr==1.1.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import soxr

print("soxr", soxr.__version__, "libsoxr", soxr.__libsoxr_version__)
silence = np.zeros(48_000, np.int16)
noisy = soxr.resample(silence, 48_000, 16_000)
quiet = soxr.resample(silence.astype(np.float32), 48_000, 16_000)
print(f"of {len(noisy)} samples of silence not 0: {np.count_nonzero(noisy)} as int16, {np.count_nonzero(quiet)} as float32")
tone = np.rint(9000 * np.sin(2 * np.pi * 300 * np.arange(16_000) / 16_000)).astype(np.int16)
same = soxr.resample(tone, 16_000, 16_000)
print(f"from 16 kHz to 16 kHz: {np.count_nonzero(same != tone)} of {len(tone)} samples changed")
floats = np.rint(soxr.resample(tone.astype(np.float64), 16_000, 8_000))
halved = soxr.resample(tone, 16_000, 8_000)
print(f"to 8 kHz: {np.count_nonzero(halved != floats)} of {len(halved)} are not those of floats, rounded")
assert not quiet.any()
if not (noisy.any() and (same != tone).any()):
    raise SystemExit("soxr adds no dither now")
PY
