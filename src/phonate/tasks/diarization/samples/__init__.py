"""Sources of samples: chunks of recordings, simulated conversations, and Lhotse cuts."""

from phonate.tasks.diarization.samples.item import Item

__all__ = ["Item"]
