"""Folders of recordings for sessions and for loaders of one's own: finding, checking and describing voices."""
