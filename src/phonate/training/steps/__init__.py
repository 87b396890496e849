"""One optimizer step and what takes part in it."""
