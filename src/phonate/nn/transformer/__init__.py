"""Transformers: encoders and decoders with softmax or linear attention."""
