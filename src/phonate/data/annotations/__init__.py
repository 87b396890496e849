"""Speaker annotations: RTTM (speaker turns) and UEM (regions to score)."""

from phonate.data.annotations.frames import activity_from_turns, turns_from_activity
from phonate.data.annotations.rttm import SpeakerTurn, read_rttm, rttm_lines, write_rttm
from phonate.data.annotations.uem import Region, read_uem, write_uem

__all__ = [
    "Region",
    "SpeakerTurn",
    "activity_from_turns",
    "read_rttm",
    "read_uem",
    "rttm_lines",
    "turns_from_activity",
    "write_rttm",
    "write_uem",
]
