"""Recordings as codes of a neural codec: measured, encoded once, and kept on disk."""
