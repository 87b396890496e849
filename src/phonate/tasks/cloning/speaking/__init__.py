"""Texts, references and models for cloning, and the service that speaks for several callers."""
