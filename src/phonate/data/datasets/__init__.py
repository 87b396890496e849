"""Data sets of a recipe: corpora on disk in any format, and those that recipes of Lhotse prepare."""
