"""`examples/clusters/slurm.sbatch` with stand-ins for Slurm's commands, as Slurm 22.05 was seen to behave."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples/clusters/slurm.sbatch"
SCONTROL = """#!/bin/sh
case "$1 $2" in
"show hostnames") echo node0 ;;
"show job") echo "JobId=7 JobState=RUNNING PreemptTime=$PREEMPTED" ;;
*) echo "$@" >> calls ;;
esac
"""
SRUN = """#!/bin/sh
trap 'echo saved >> calls; exit 143' TERM
echo $$ > srun.pid
[ -n "$ENDS" ] && exit "$ENDS"
while :; do sleep 0.05; done
"""
SCANCEL = """#!/bin/sh
kill -TERM "$(cat srun.pid)"
"""


@pytest.fixture
def start(tmp_path: Path):
    for name, code in (("scontrol", SCONTROL), ("srun", SRUN), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(code)
        (tmp_path / name).chmod(0o755)

    def run(ends: str, preempted: str) -> subprocess.Popen[bytes]:
        told = {"ENDS": ends, "PREEMPTED": preempted, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[0-1]"}
        told |= {"SLURM_JOB_NAME": "phonate", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.Popen(["bash", str(SCRIPT), "vocoder"], cwd=tmp_path, env={**os.environ, **told})

    return run


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


def test_a_job_that_is_told_to_end_saves_and_is_queued_again(start, tmp_path: Path) -> None:
    process = start(ends="", preempted="None")
    while not (tmp_path / "srun.pid").exists():
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert calls(tmp_path) == ["saved", "requeue 7"]


def test_a_job_whose_steps_alone_were_told_of_a_preemption_is_queued_again(start, tmp_path: Path) -> None:
    assert start(ends="1", preempted="2026-11-29T07:36:31").wait(20) == 0
    assert calls(tmp_path)[-1] == "requeue 7"


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_that_ends_by_itself_is_not(start, tmp_path: Path, code: int) -> None:
    assert start(ends=str(code), preempted="None").wait(20) == code
    assert calls(tmp_path) == []
