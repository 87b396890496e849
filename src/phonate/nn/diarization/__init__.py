"""Front ends, label encodings and heads of speaker diarization."""
