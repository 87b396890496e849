"""A training session: find the device and the data, train, save, and leave a log.

    TrainingSession(mode="mixed", voice_mode="auto").run()

trains a voice model on the recordings in `recordings`, or a language model on texts where there are none.

What needs torch is imported when the session runs, after its configuration was read, so that a mistake is reported
at once.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phonate.compute.resources import MIN_GPU_MEMORY_GB, Mode, forget_fallbacks, require_mode
from phonate.config.errors import InputError, Interrupted, PhonateError, option
from phonate.config.words import duration
from phonate.data.parallel import Progress, progress_listener
from phonate.data.voices import VoiceDataDetector
from phonate.training.signals import interruptible, on_quit
from phonate.workflows.session.config import CONFIG, SessionConfig, default_recipe, read_config, tasks_for
from phonate.workflows.session.log import (
    STATE,
    Say,
    SessionLog,
    SessionState,
    newest_unfinished,
    read_state,
    session_lock,
    to_console,
)
from phonate.workflows.session.notices import Outcome, check, send

if TYPE_CHECKING:
    from phonate.workflows.session.flows import Work


VoiceMode = Literal["voice", "text", "auto"]
VOICE_MODES: tuple[VoiceMode, ...] = ("voice", "text", "auto")
RECORDINGS = Path("recordings")
OUTPUT = Path("training/output")
NOTICES = "session.notices"

_FIXED = {"voice_mode": "--voice-mode", "config_path": "--config", "voice_data_dir": "--voice-data-dir"}
"""Options that a resumed session keeps."""


class TrainingSession:
    """One session. What it makes is in `output_dir`: the model, the session's folder with its runs, and the log.

    Args:
        mode: gpu, only with a GPU; cpu, never with one; mixed, with a GPU if one has enough free memory.
        voice_mode: voice, from recordings; text, from texts; auto, from recordings if there are any.
        device: cpu, cuda:0, mps; takes precedence over `mode`. None: the configuration's `training.device`.
        config_path: a recipe, or options that override the session's own recipes, and a section `session`
            (`phonate.workflows.session.config`). The default one need not exist.
        voice_data_dir: where recordings are looked for, or else texts. The default one need not exist.
        output_dir: where everything is written.
        min_gpu_memory: free memory in GB that a GPU needs to be chosen.
        say: gets each entry of the log as a line; prints it by default.
        bar: shows progress, called with (what, done, total).

    Raises:
        InputError: an argument is not valid, or `voice_data_dir` does not exist.
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
        require_mode(mode, min_gpu_memory)
        if voice_mode not in VOICE_MODES:
            raise InputError(f"unknown voice mode {voice_mode!r}; choose voice, text or auto")
        # a folder that was named and does not exist is a typing mistake most likely
        if str(voice_data_dir) == "":
            raise InputError(f"{option('voice_data_dir')}: the name is empty; name a folder, or leave it out")
        if Path(voice_data_dir) != RECORDINGS and not Path(voice_data_dir).exists():
            raise InputError(
                f"{option('voice_data_dir', str(voice_data_dir))}: no such folder; name another, or leave it out"
            )
        self.mode: Mode = mode
        self.voice_mode = voice_mode
        self.device = device
        self.config_path = Path(config_path)
        self.voice_data_dir = Path(voice_data_dir)
        self.output_dir = Path(output_dir)
        self.min_gpu_memory = min_gpu_memory
        self.model: Path | None = None
        """The folder of the model, once it is saved."""
        self.log_path: Path | None = None
        """The session's log, once it runs."""
        self._resumed: Path | None = None
        self._work: Work | None = None
        self._device = ""
        self._config: SessionConfig | None = None
        self._say = say
        self._bar = bar

    @classmethod
    def resume(cls, output_dir: str | Path = OUTPUT, **options: Any) -> TrainingSession:
        """The newest unfinished session in `output_dir`, ready to run on from where it was stopped.

        `options` are arguments of `TrainingSession`; those that are not given are as the session was started with.
        Finished stages are not repeated, and training continues from the last checkpoint.

        Raises:
            InputError: there is no unfinished session, or `options` would change the data that it trains on.
        """
        folder = newest_unfinished(Path(output_dir))
        started = read_state(folder).options
        for name, flag in _FIXED.items():
            if name in options and str(options[name]) != started[name]:
                raise InputError(
                    f"{flag} {options[name]}: session {folder.name.removeprefix('session_')} was started with "
                    f"{started[name]}, and is resumed with it; leave {flag} out"
                )
        session = cls(output_dir=output_dir, **{**started, **options})
        session._resumed = folder
        return session

    def run(self) -> bool:
        """Train; returns whether it succeeded. The log says what went wrong, its last ERROR what ended the session.

        Raises:
            InputError: nothing can be written to `output_dir`, or the session to resume is still running.
            Interrupted: SIGTERM, SIGHUP or Ctrl-C ended it; what was trained is saved.
        """
        facts = {"mode": self.mode, "voice_mode": self.voice_mode, "device": self.device}
        forget_fallbacks()
        log = SessionLog(self.output_dir, facts, self._say, self._resumed)
        self.log_path = log.path
        lock = session_lock(log.folder)
        started, failed = time.monotonic(), False
        try:
            with interruptible(), log.listening(), on_quit(lambda message: self._quit(log, message)):
                self.model = self._train(log)
        except Interrupted as error:
            message = self._interrupted(error)
            self._end(log, "interrupted", message, time.monotonic() - started)
            raise Interrupted(message, error.signal_number, step=error.step, checkpoint=error.checkpoint) from None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a session is logged
            self._end(log, "failed", _described(error, log), time.monotonic() - started)
            failed = True
            return False
        finally:
            lock.release(remove=True)
            if failed:
                # the session failed before it made anything
                with contextlib.suppress(OSError):
                    if [entry.name for entry in log.folder.iterdir()] in ([STATE], []):
                        (log.folder / STATE).unlink(missing_ok=True)
                        log.folder.rmdir()
        seconds = time.monotonic() - started
        self._end(log, "done", f"Session {log.session_id} done in {duration(seconds)}; log: {log.path}", seconds)
        return True

    def _end(
        self, log: SessionLog, outcome: Literal["done", "failed", "interrupted"], message: str, seconds: float
    ) -> None:
        """Log how the session ended, and send the notices."""
        log.add("SUCCESS" if outcome == "done" else "ERROR", [message])
        if self._config is None:  # it failed before it knew whom to notify
            return
        ended = Outcome(
            session_id=log.session_id,
            outcome=outcome,
            message=message,
            mode=self.mode,
            voice_mode=self.voice_mode,
            device=self._device,
            seconds=seconds,
            output=str(self.output_dir),
            log=str(log.path),
        )
        log.warning(*send(self._config.settings.notices, ended, NOTICES))

    def _train(self, log: SessionLog) -> Path:
        """Read the configuration, choose the device and the flow, and run it."""
        resumed = " resumed" if self._resumed else ""
        log.info(f"Session {log.session_id}{resumed}: mode {self.mode}, voice mode {self.voice_mode}")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                "a session is one process; for several GPUs use torchrun -m phonate train with a recipe, such as "
                f"{self.output_dir}/session_.../model.yaml of an earlier session"
            )
        config = read_config(self.config_path)
        check(config.settings.notices, NOTICES)
        config.check_recipes(self._candidates(config))
        if self.voice_mode != "text":
            config.check_vocoder()
        self._config = config
        state = SessionState(self._options()) if self._resumed is None else read_state(self._resumed)
        state.write(log.folder)
        from phonate.compute import device as devices

        configured = config.value("training", "device")
        self._device = str(devices.choose(self.mode, self.device or configured, self.min_gpu_memory))
        log.set("device", self._device)
        log.success(f"Device: {self._device}")

        from phonate.workflows.session.flows import Work, train_text, train_voice

        if state.voice is None:
            state.voice = self._has_recordings(log)
            state.write(log.folder)
        tasks = tuple(tasks_for("recordings" if state.voice else "texts"))
        self._work = Work(
            _meant_for(tasks, config, log), log, state, self._device, self.voice_data_dir, self.output_dir, self._bar
        )
        with progress_listener(self._work.progress):
            return train_voice(self._work) if state.voice else train_text(self._work)

    def _candidates(self, config: SessionConfig) -> list[str]:
        """Recipes that may be trained, as far as is known before the data are looked at."""
        voice = config.settings.voice
        recordings = [voice]
        if voice == "auto":
            recordings = [default_recipe("transcribed recordings"), default_recipe("recordings")]
        texts = [default_recipe("texts", pretrained=config.value("model", "name") is not None)]
        return {"voice": recordings, "text": texts, "auto": [*recordings, *texts]}[self.voice_mode]

    def _has_recordings(self, log: SessionLog) -> bool:
        if self.voice_mode != "auto":
            return self.voice_mode == "voice"
        has_recordings = VoiceDataDetector(self.voice_data_dir).has_voice_data()
        log.info(f"{'Voice files' if has_recordings else 'No voice files'} in {self.voice_data_dir}")
        return has_recordings

    def _options(self) -> dict[str, Any]:
        """What the session was started with, for `resume`."""
        return {
            "mode": self.mode,
            "voice_mode": self.voice_mode,
            "device": self.device,
            "config_path": str(self.config_path),
            "voice_data_dir": str(self.voice_data_dir),
            "min_gpu_memory": self.min_gpu_memory,
        }

    def _command(self) -> str:
        output = "" if self.output_dir == OUTPUT else f" --output-dir {shlex.quote(str(self.output_dir))}"
        return f"phonate session --resume{output}"

    def _interrupted(self, error: Interrupted) -> str:
        """What happened, and how to continue."""
        if error.step is None:
            return f"Interrupted; finished stages are kept; continue with: {self._command()}"
        return (
            f"Interrupted: stopped at step {error.step}; saved to {error.checkpoint}; continue with: {self._command()}"
        )

    def _quit(self, log: SessionLog, message: str) -> None:
        """The last entry of a session that is told to quit at once. Runs in a signal handler: it prints nothing."""
        log.add("ERROR", [f"Interrupted: {message}; continue with: {self._command()}"], mirrored=False)


def _meant_for(tasks: tuple[str, ...], config: SessionConfig, log: SessionLog) -> SessionConfig:
    """The configuration, without its recipe where that belongs to the other flow."""
    if config.task is None or config.task in tasks:
        return config
    log.warning(f"{config.document.name} is of the task {config.task}; only its section session is used")
    return config.without_recipe()


def _described(error: BaseException, log: SessionLog) -> str:
    """An error in one line; the traceback of an unexpected one is written beside the log."""
    if isinstance(error, PhonateError):
        return f"Training failed: {error}"
    summary = f"Training failed: {type(error).__name__}: {' '.join(str(error).split())}"
    file = log.path.with_suffix(".traceback.txt")
    try:
        file.write_text("".join(traceback.format_exception(error)), "utf-8", "backslashreplace")
    except OSError as unwritable:
        return f"{summary}; its traceback could not be written ({unwritable.strerror})"
    return f"{summary}; the traceback is in {file}"
