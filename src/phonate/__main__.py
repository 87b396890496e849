"""`python -m phonate`, and so `torchrun -m phonate` and `accelerate launch -m phonate`."""

from __future__ import annotations

from phonate.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
