"""Training sessions: find a device and data, train, and leave a model and a log."""
