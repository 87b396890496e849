#!/usr/bin/env bash
# TensorBoard hides the orphaned events of an interrupted run only from the SECOND session start on.
#
# One would guess: an event file of a resumed run that begins with SessionLog(START) at step 9 makes TensorBoard hide what
# earlier files of that folder have from step 9 on, as the documentation of purge_step in torch's SummaryWriter says.
# What happens: the Python loader (used where there is no tensorboard-data-server, as on Windows and 64-bit Arm, or with
# --load_fast=false) takes the first START that it sees for the beginning of the run and hides nothing: the steps before
# the interruption are shown twice. A second START, or one in the first file, mends it.
# Why a phonate user meets it: checkpoints are rarer than log lines, so that every run that was killed and resumed has
# steps in two event files, and its curves double back.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorboard==2.21.0 setuptools==80.9.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import tensorboard
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


def write(path, steps, starts, at):
    with path.open("wb") as file:
        records = RecordWriter(file)
        records.write(Event(file_version="brain.Event:2", wall_time=at).SerializeToString())
        for _ in range(starts):
            start = SessionLog(status=SessionLog.START)
            records.write(Event(step=steps[0], session_log=start, wall_time=at).SerializeToString())
        for step in steps:
            value = Summary.Value(tag="loss", simple_value=1.0 / step)
            records.write(Event(step=step, summary=Summary(value=[value]), wall_time=at + step).SerializeToString())


def shown(folder, starts):
    folder.mkdir()
    write(folder / "events.out.tfevents.1", range(1, 13), 0, 1000.0)  # 12 steps; the last checkpoint was at step 8
    write(folder / "events.out.tfevents.2", range(9, 13), starts, 2000.0)  # resumed there
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [event.step for event in accumulator.Tensors("loss")]


print("tensorboard", tensorboard.__version__)
one, two = (shown(Path(sys.argv[1]) / str(starts), starts) for starts in (1, 2))
print("one START:", len(one), "points for 12 steps:", one)
print("two STARTs:", len(two), "points:", two)
assert one == [*range(1, 13), *range(9, 13)], "the first START hides something now"
assert two == [*range(1, 13)], "the second START hides nothing any more"
PYTHON
