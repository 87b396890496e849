"""Features that are cached next to the waveforms, by name.

Other packages add theirs with an entry point in the group `phonate.features`, plug-in files with `FEATURES.register`.
"""

from __future__ import annotations

from phonate.config.registry import Registry
from phonate.data.features.kinds import Features as Features

FEATURES: Registry[type[Features]] = Registry(
    "feature",
    {
        "fbank": "phonate.data.features.kinds:FbankFeatures",
        "mel": "phonate.data.features.kinds:MelFeatures",
        "mfcc": "phonate.data.features.kinds:MfccFeatures",
        "none": "phonate.data.features.kinds:NoneFeatures",
        "spectrogram": "phonate.data.features.kinds:SpectrogramFeatures",
        "whisper": "phonate.data.features.kinds:WhisperFeatures",
    },
    suffix="features",
    group="phonate.features",
)
"""Name -> a class that is called with the settings of the corpus."""
