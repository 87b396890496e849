#!/usr/bin/env bash
# One would guess that `pip install lhotse` brings all that `import lhotse` needs. It does not: lhotse imports urllib3 and
# does not declare it, nor does anything that it requires. It goes unnoticed, because most environments have urllib3 from
# requests. A phonate user meets it in a fresh environment with corpora that Lhotse prepares; phonate's extra `lhotse`
# therefore requires urllib3 by itself.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check lhotse==1.33.0 torch==2.13.0
python="$folder/venv/bin/python"

"$python" -c 'from importlib.metadata import version, requires; print("lhotse", version("lhotse"), "requires", [one for one in requires("lhotse") if "extra" not in one])'
"$python" - <<'CODE'
try:
    import lhotse
except ModuleNotFoundError as error:
    print("import lhotse:", error)
    assert error.name == "urllib3", error.name
else:
    raise SystemExit("import lhotse works without urllib3 now")
CODE
"$python" -m pip install --quiet --disable-pip-version-check urllib3==2.8.0
"$python" -c 'import lhotse; print("with urllib3: import lhotse works, version", lhotse.__version__)'
