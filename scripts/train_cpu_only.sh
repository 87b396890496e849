#!/usr/bin/env bash
# Train without a GPU.
#
#   scripts/train_cpu_only.sh [voice|text] [options of `phonate session`]
#
# voice: on the recordings in recordings/; text: on texts; left out: on recordings if there are any, else on texts.
set -euo pipefail

what=auto
case "${1:-}" in
  voice | text | auto) what=$1; shift ;;
esac
phonate=phonate
command -v "$phonate" > /dev/null || phonate=$(dirname "$0")/../.venv/bin/phonate
exec "$phonate" session --mode cpu --voice-mode "$what" "$@"
