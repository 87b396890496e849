#!/usr/bin/env bash
# One would guess that a module is executed once, also where a finder on sys.meta_path imports it while it is asked for
# it: sys.modules has it then. Python only looks there to take its specification, by which it executes the module again,
# a second object. So what is to run before an import of phonate's lazily executed modules of torch runs in a loader's
# `create_module` (`phonate/compute/importing.py`).
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
echo "print('executed')" > "$folder/wanted.py"

cat > "$folder/imports.py" <<'CODE'
import contextlib
import importlib.abc
import io
import platform
import sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "wanted" and self in sys.meta_path:
            sys.meta_path.remove(self)
            self.module = __import__(name)
        return None


finder = Finder()
sys.meta_path.insert(0, finder)
with contextlib.redirect_stdout(io.StringIO()) as printed:
    import wanted

times = printed.getvalue().count("executed")
print(f"Python {platform.python_version()}: executed {times} times; one object: {finder.module is wanted}")
sys.exit(times != 2 or finder.module is wanted)
CODE
python3 "$folder/imports.py"
