"""Profiling of training steps."""
