"""Front ends, label arithmetic and heads of speaker diarization."""
