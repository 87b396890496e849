"""The vocoder network and its discriminators."""
