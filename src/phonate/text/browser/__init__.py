"""The phonemizers `english` and `characters` in JavaScript, for a page that speaks without a server.

Each module is a port of the Python module of its name; the tables and patterns are those of Python (`rules`).
"""
