"""Memory monitoring, and recovery from out-of-memory errors."""
