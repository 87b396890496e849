"""The prepared corpus on disk: its index, the feature cache, and what is derived from recordings."""
