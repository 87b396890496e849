"""Corpora made from long recordings or from text files."""
