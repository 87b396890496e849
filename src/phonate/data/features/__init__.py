"""Features that are cached next to the waveforms, by name.

Other packages add theirs with an entry point in the group `phonate.features`, plug-in files with `FEATURES.register`.
"""

from __future__ import annotations

from phonate.config.registry import Registry
from phonate.data.features._base import Features as Features

FEATURES: Registry[type[Features]] = Registry(
    "feature",
    {
        "fbank": "phonate.data.features.fbank:FbankFeatures",
        "mel": "phonate.data.features.mel:MelFeatures",
        "mfcc": "phonate.data.features.mfcc:MfccFeatures",
        "none": "phonate.data.features.none:NoneFeatures",
        "spectrogram": "phonate.data.features.spectrogram:SpectrogramFeatures",
        "whisper": "phonate.data.features.whisper:WhisperFeatures",
    },
    suffix="features",
    group="phonate.features",
)
"""Name -> a class that is called with the settings of the corpus."""
