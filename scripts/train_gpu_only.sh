#!/usr/bin/env bash
# Train on a GPU, and only there.
#
#   scripts/train_gpu_only.sh [voice|text] [options of `phonate session`]
#
# voice: on the recordings in recordings/; text: on texts; left out: on recordings if there are any, else on texts.
set -euo pipefail

what=auto
case "${1:-}" in
  voice | text | auto) what=$1; shift ;;
esac
phonate=phonate
command -v "$phonate" > /dev/null || phonate=$(dirname "$0")/../.venv/bin/phonate
exec "$phonate" session --mode gpu --voice-mode "$what" "$@"
