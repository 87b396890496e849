"""The losses of voice cloning: text and codes, and the likeness of the voice."""
