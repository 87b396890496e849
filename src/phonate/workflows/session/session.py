"""A training session: find the device and the data, train, save, and leave a log to read.

    TrainingSession(mode="mixed", voice_mode="auto").run()

trains a voice model on the recordings in `recordings`, or a language model on texts where there are none.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Literal

from phonate.compute import device as devices
from phonate.compute.resources import MIN_GPU_MEMORY_GB, MODES, Mode
from phonate.config.errors import InputError, Interrupted, PhonateError
from phonate.data.progress import Progress, progress_listener
from phonate.data.voices.files import VoiceDataDetector
from phonate.training.checkpoints.resolve import has_checkpoint
from phonate.training.signals import STOPPING, is_ignored
from phonate.workflows.session.config import CONFIG, TEXT_TASK, VOICE_TASKS, SessionConfig, read_config
from phonate.workflows.session.log import Say, SessionLog, to_console
from phonate.workflows.session.notices import Outcome, check, send
from phonate.workflows.session.recordings import RECORDINGS, train_voice
from phonate.workflows.session.texts import train_text
from phonate.workflows.session.work import VOCODER, Work

VoiceMode = Literal["voice", "text", "auto"]
VOICE_MODES: tuple[VoiceMode, ...] = ("voice", "text", "auto")
OUTPUT = Path("training/output")
NOTICES = "session.notices"


class TrainingSession:
    """One session. What it makes lies in `output_dir`: the model, the session's folder with its runs, and the log.

    Args:
        mode: gpu, only with a GPU; cpu, never with one; mixed, with a GPU where one has enough free memory.
        voice_mode: voice, from recordings; text, from texts; auto, from recordings where there are any.
        device: cpu, cuda:0, mps; comes before `mode`.
        config_path: a recipe, or options over the session's own recipes, and its part `session`
            (`phonate.workflows.session.config`). The default one need not be there.
        voice_data_dir: where recordings are looked for, or else texts.
        output_dir: what it writes to.
        min_gpu_memory: free GB that a GPU needs to be chosen.
        say: gets each entry of the log as a line; prints it by default.
        bar: shows progress, called with (what, done, total).
    """

    def __init__(
        self,
        mode: Mode = "mixed",
        voice_mode: VoiceMode = "auto",
        device: str | None = None,
        config_path: str | Path = CONFIG,
        voice_data_dir: str | Path = RECORDINGS,
        output_dir: str | Path = OUTPUT,
        *,
        min_gpu_memory: float = MIN_GPU_MEMORY_GB,
        say: Say = to_console,
        bar: Progress | None = None,
    ) -> None:
        if mode not in MODES:
            raise InputError(f"mode {mode!r} is not known; say gpu, cpu or mixed")
        if voice_mode not in VOICE_MODES:
            raise InputError(f"voice mode {voice_mode!r} is not known; say voice, text or auto")
        if not min_gpu_memory >= 0.0:
            raise InputError(f"GPU memory of {min_gpu_memory} GB can't be asked for; give 0 or more")
        self.mode: Mode = mode
        self.voice_mode = voice_mode
        self.device = device
        self.config_path = Path(config_path)
        self.voice_data_dir = Path(voice_data_dir)
        self.output_dir = Path(output_dir)
        self.min_gpu_memory = min_gpu_memory
        self.model: Path | None = None
        """Where the model is, once it is saved."""
        self.log_path: Path | None = None
        """The session's log, once it runs."""
        self._work: Work | None = None
        self._say = say
        self._bar = bar

    def run(self) -> bool:
        """Train; returns whether it was done. The log says what went wrong, its last ERROR what ended it.

        Raises:
            InputError: nothing can be written to `output_dir`.
            Interrupted: SIGTERM, SIGHUP or Ctrl-C ended it; what was trained is saved.
        """
        facts = {"mode": self.mode, "voice_mode": self.voice_mode, "device": self.device}
        log = SessionLog(self.output_dir, facts, self._say)
        self.log_path = log.path
        started = time.monotonic()
        try:
            with _stoppable(), log.listening():
                self._work = self._initialise(log)
                with progress_listener(self._work.progress):
                    self.model = self._train(self._work)
        except Interrupted as error:
            message = _interrupted(error, self._work)
            self._end(log, "interrupted", message, time.monotonic() - started)
            raise Interrupted(message, error.signal_number) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a session is told in its log
            self._end(log, "failed", _told(error, log), time.monotonic() - started)
            return False
        finally:
            with contextlib.suppress(OSError):  # something is in it, as it should be
                log.folder.rmdir()
        seconds = time.monotonic() - started
        self._end(log, "done", f"Session {log.session_id} done in {seconds / 60:.1f} minutes; log: {log.path}", seconds)
        return True

    def _end(
        self, log: SessionLog, outcome: Literal["done", "failed", "interrupted"], message: str, seconds: float
    ) -> None:
        """The last word in the log, and the notices; one that can't be sent is of the level of how the session ended,
        so that the last entry of a session that failed is an error."""
        log.add("SUCCESS" if outcome == "done" else "ERROR", [message])
        if self._work is None:  # it failed before it knew whom to tell
            return
        told = Outcome(
            session_id=log.session_id,
            outcome=outcome,
            message=message,
            mode=self.mode,
            voice_mode=self.voice_mode,
            device=self._work.device,
            seconds=seconds,
            output=str(self.output_dir),
            log=str(log.path),
        )
        log.add("WARNING" if outcome == "done" else "ERROR", send(self._work.config.settings.notices, told, NOTICES))

    def _initialise(self, log: SessionLog) -> Work:
        """Configuration and device."""
        log.info(f"Session {log.session_id}: mode {self.mode}, voice mode {self.voice_mode}")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "a session is one process; for several GPUs give a recipe to torchrun -m phonate train, such as "
                f"{self.output_dir}/session_.../model.yaml of one that has ended"
            )
        config = read_config(self.config_path)
        check(config.settings.notices, NOTICES)
        device = str(devices.choose(self.mode, self.device, self.min_gpu_memory))
        log.set("device", device)
        log.success(f"Device: {device}")
        return Work(config, log, device, self.voice_data_dir, self.output_dir, self._bar)

    def _train(self, work: Work) -> Path:
        voice = self.voice_mode == "voice"
        if self.voice_mode == "auto":
            voice = VoiceDataDetector(self.voice_data_dir).has_voice_data()
            work.log.info(f"{'Voice files' if voice else 'No voice files'} in {self.voice_data_dir}")
        work.config = _meant_for(VOICE_TASKS if voice else (TEXT_TASK,), work.config, work.log)
        return train_voice(work) if voice else train_text(work)


def _meant_for(tasks: tuple[str, ...], config: SessionConfig, log: SessionLog) -> SessionConfig:
    """The configuration, without its recipe where that is of the other flow."""
    if config.task is None or config.task in tasks:
        return config
    log.warning(f"{config.document.name} is of the task {config.task}, and not used here but for its part session")
    return config.without_recipe()


def _interrupted(error: Interrupted, work: Work | None) -> str:
    """What happened, and how to go on with what was trained."""
    for run in reversed(work.runs if work is not None else []):
        if has_checkpoint(run):
            # The trainer's own words end with how it is resumed; here the run's name belongs to that.
            said = str(error).partition(". Go on")[0]
            quoted = shlex.quote(str(run))
            named = ", then name it as session.vocoder" if run.name == VOCODER else ""
            return f"Interrupted: {said}; go on{named} with: phonate train {quoted} --resume {quoted}"
    return f"Interrupted: {error} before training began"


def _told(error: BaseException, log: SessionLog) -> str:
    """An error in a line; of one that nobody foresaw the traceback is kept beside the log."""
    if isinstance(error, PhonateError):
        return f"Training failed: {error}"
    said = f"Training failed: {type(error).__name__}: {' '.join(str(error).split())}"
    kept = log.path.with_suffix(".traceback.txt")
    try:
        kept.write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
    except OSError as unwritable:
        return f"{said}; its traceback could not be kept ({unwritable.strerror})"
    return f"{said}; the traceback is in {kept}"


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Turn signals, and Ctrl-C, into `Interrupted`. (While training, the trainer does it, after saving.)"""
    raised = _Stop()
    earlier = {}
    try:
        with contextlib.suppress(ValueError):  # not in the main thread, which alone gets signals
            for number in STOPPING:
                if not is_ignored(number):
                    earlier[number] = signal.signal(number, raised)
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped", raised.number) from None
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class _Stop:
    """A handler that remembers which signal came."""

    number: int = signal.SIGINT

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt
