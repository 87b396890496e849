"""Where samples come from: pieces of recordings, simulated conversations, and cuts of Lhotse."""

from phonate.tasks.diarization.samples.item import Item

__all__ = ["Item"]
