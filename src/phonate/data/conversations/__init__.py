"""Conversations of several speakers, put together from clips of single speakers while training runs."""
