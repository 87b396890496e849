"""Conversion of sound while it arrives."""
