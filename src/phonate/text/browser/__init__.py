"""The phonemizers `english` and `characters` in JavaScript, for a page that speaks without a server.

Each JavaScript file is a port of the Python file of its name in `phonate.text` or `phonate.text.english`; the tables
and patterns are those of Python (`rules`).
"""
