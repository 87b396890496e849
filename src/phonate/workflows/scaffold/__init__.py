"""First versions of new losses, callbacks and tasks."""
