"""Mixed precision and loss scaling."""
