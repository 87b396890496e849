"""Corpora as rows: formats are detected, rows validated and turned into a manifest."""
