#!/usr/bin/env bash
# One would guess that pip says at once that a folder needs a newer Python, as it does for `pip install .`. With an extra,
# `pip install '.[more]'`, pip 23.0.1 says so at the end: it first downloads version after version of all that the folder
# requires. pip 24.0 says it at once in both cases. Ubuntu 22.04 has Python 3.10 and pip 22.0.2: who installs a package
# with extras that needs Python 3.11, such as phonate, sees pip download one torch after another.
set -euo pipefail

folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/package"
cat > "$folder/package/pyproject.toml" <<'TOML'
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "needs-a-later-python"
version = "1.0"
requires-python = ">=3.99"
dependencies = ["six>=1.10,<=1.17.0"]

[project.optional-dependencies]
more = ["colorama>=0.4,<=0.4.6"]
TOML
touch "$folder/package/needs_a_later_python.py"

downloads() {  # of pip $1, asked for the folder with $2
  "$folder/$1/bin/python" -m pip install --no-cache-dir "$folder/package$2" >"$folder/said" 2>&1 && return 1
  grep -q "requires a different Python" "$folder/said" || return 1
  grep -c "Downloading" "$folder/said" || true
}

for version in 23.0.1 24.0; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/python" -m pip install --quiet "pip==$version" 2>"$folder/said"
  for extra in "" "[more]"; do
    count="$(downloads "$version" "$extra")"
    echo "pip $version, .$extra: refused after $count downloads"
    if [ "$version$extra" = "23.0.1[more]" ]; then [ "$count" -gt 2 ]; else [ "$count" = 0 ]; fi
  done
done
