"""Features that are cached next to the waveforms, one file per kind: `mel.py` defines `mel`, the class `MelFeatures`.

Other packages add theirs with an entry point in the group `phonate.features`, plug-in files with `FEATURES.register`.
"""

from __future__ import annotations

from phonate.config.registry import Registry
from phonate.data.features._base import Features as Features

FEATURES: Registry[type[Features]] = Registry(
    "feature", "phonate.data.features", suffix="features", group="phonate.features"
)
"""Name -> a class that is called with the settings of the corpus."""
