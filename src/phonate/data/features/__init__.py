"""Features that are cached beside the waveforms, one file each: `mel.py` is `mel`, its class `MelFeatures`.

Other packages add theirs by an entry point of group `phonate.features`, a plug-in file by `FEATURES.register`.
"""

from __future__ import annotations

from phonate.config.registry import Registry
from phonate.data.features._base import Features as Features

FEATURES: Registry[type[Features]] = Registry(
    "feature", "phonate.data.features", suffix="features", group="phonate.features"
)
"""Name -> a class that is called with the settings of the corpus."""
