"""Training with a model and data loaders of one's own."""
