"""Pairs of a reference and a target: what a row must hold, and the checks of every row."""
