"""The kinds of acoustic models."""
