"""Corpora as rows: what a recording is, what is wrong with one, and the manifest made of them."""
