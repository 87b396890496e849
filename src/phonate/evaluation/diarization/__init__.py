"""Scoring of diarization: DER with its components, and JER."""

from phonate.evaluation.diarization.errors import DiarizationErrors
from phonate.evaluation.diarization.recordings import Scores, score_recordings
from phonate.evaluation.diarization.scoring import score, score_activity

__all__ = ["DiarizationErrors", "Scores", "score", "score_activity", "score_recordings"]
