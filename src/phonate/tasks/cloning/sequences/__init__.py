"""Pairs as the model reads them: tokens, frames under the delay pattern, and labels."""
