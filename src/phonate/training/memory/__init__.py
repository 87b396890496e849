"""Watching memory, and recovering from running out of it."""
