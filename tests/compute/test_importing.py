from __future__ import annotations

import inspect
import sys

import pytest

from phonate.compute.importing import faster_import

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="libraries are bound otherwise there")


def _fail() -> None:
    with faster_import():
        assert inspect.getmodule(sys._getframe()) is sys.modules[__name__]
        assert inspect.getmodule(inspect.getmodule) is sys.modules["phonate.compute.importing"]
        assert sys.getdlopenflags() != _FLAGS
        raise ImportError("no torch here")


_FLAGS, _LOOK_UP = sys.getdlopenflags(), inspect.getmodule


def test_what_changes_while_torch_is_imported_is_put_back() -> None:
    with pytest.raises(ImportError):
        _fail()
    assert (sys.getdlopenflags(), inspect.getmodule) == (_FLAGS, _LOOK_UP)
