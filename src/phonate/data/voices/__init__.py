"""Folders of voice recordings: finding, validating and describing them, and data loaders for custom loops."""
