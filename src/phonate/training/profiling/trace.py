"""`training.profiling`: a torch profiler trace of a few steps."""

from __future__ import annotations

from pathlib import Path

import torch

from phonate.training.callbacks import Callback, TrainerView


class ProfilingCallback(Callback):
    """Records steps 3 to 5 of the run to `folder` as a Chrome trace (open it in Perfetto or TensorBoard)."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder = folder
        self.rank = rank
        self._profiler: torch.profiler.profile | None = None

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Start recording."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if trainer.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._profiler = torch.profiler.profile(
            activities=activities,
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(str(self.folder / f"trace-rank{self.rank}.json")),
            record_shapes=True,
        )
        self._profiler.start()

    def on_optimizer_step(self, trainer: TrainerView) -> None:
        """Advance the profiler by one step."""
        assert self._profiler is not None
        self._profiler.step()

    def on_train_end(self, trainer: TrainerView) -> None:
        """Write the trace."""
        assert self._profiler is not None
        self._profiler.stop()
