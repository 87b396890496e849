"""Refuses an older Python. By itself pip 23.0 and before first downloads all that an extra requires."""

import sys

from setuptools import setup

if sys.version_info < (3, 11):  # noqa: UP036, which takes it for granted
    sys.exit(f"phonate needs Python 3.11 or newer; this is {sys.version.split()[0]}")
setup()
