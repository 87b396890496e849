"""Two processes on gloo: the same samples, the same gradients, the same checkpoints."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from processes import HERE, final, finish, last_step, prepared, rows, start, wait_for

from phonate.compute import distributed
from phonate.config.errors import InputError
from phonate_process import run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same recipe on one and on two processes, without dropout's rank-dependent draws in the comparison."""
    folder = tmp_path_factory.mktemp("ranks")
    quiet = ("training.max_steps=14", "training.random_seed=3")
    finish(folder / "one/run", *quiet)
    finish(folder / "two/run", *quiet, ranks=2)
    return folder / "one/run", folder / "two/run"


def test_both_train_to_the_same_place(runs):
    one, two = runs
    first, second = rows(one), rows(two)
    assert [row["step"] for row in first] == [row["step"] for row in second]
    for a, b in zip(first, second, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.15)  # dropout draws differ by rank


def test_ranks_share_an_evaluation_and_wait_for_a_long_one(tmp_path):
    """Evaluation and previews of the first rank take longer than ranks wait for each other elsewhere."""
    slow = {"SLOW_VALIDATION": "9", "SLOW_PREVIEWS": "9", "VALIDATING": str(tmp_path / "validating")}
    quiet = ("training.max_steps=7", "training.distributed.timeout_minutes=0.1", "training.validation={interval: 7}")
    finish(tmp_path / "two/run", *quiet, ranks=2, env=slow)
    finish(tmp_path / "one/run", *quiet)
    one, two = (next(row for row in rows(tmp_path / name / "run") if "weight" in row) for name in ("one", "two"))
    assert two["length"] == one["length"] / 2  # each rank counted its own once
    assert two["weight"] == pytest.approx(one["weight"], rel=0.05)


def test_ranks_share_micro_batches_of_one_item_and_one_process_goes_on(tmp_path):
    """With an item a micro-batch, ranks would otherwise wait for the one that has it."""
    small = ("training.batch_size=1", "training.gradient_accumulation_steps=4", "training.random_seed=3")
    finish(tmp_path / "two/run", *small, "training.max_steps=5", ranks=2)
    finish(tmp_path / "two/run", *small, "training.max_steps=9")
    finish(tmp_path / "one/run", *small, "training.max_steps=9")
    two, one = ([row for row in rows(tmp_path / name / "run") if row["split"] == "train"] for name in ("two", "one"))
    assert [(row["step"], row["epoch"]) for row in two] == [(row["step"], row["epoch"]) for row in one]
    for a, b in zip(two, one, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=0.15)  # dropout draws differ by rank
    assert "ranks have nothing to do" not in (tmp_path / "two/output.txt").read_text()
    finish(tmp_path / "three/run", *small, "training.gradient_accumulation_steps=1", "training.max_steps=1", ranks=2)
    warned = (tmp_path / "three/output.txt").read_text()
    assert warned.count("1 of 2 ranks have nothing to do (batches of 1, accumulated 1 times)") == 1


def test_three_that_were_stopped_go_on_exactly(tmp_path):
    """Of three gradients the sum depends on the order of the summands."""
    reference, run = tmp_path / "whole/run", tmp_path / "run"
    quiet = ("training.max_steps=14", "training.random_seed=3")
    finish(reference, *quiet, ranks=3)
    process = start(run, *quiet, ranks=3, env={"SLOW_DATA": "0.05"})
    assert wait_for(lambda: last_step(run) >= 4, process)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert 4 <= last_step(run) < 14
    finish(run, *quiet, ranks=3)
    assert rows(run) == rows(reference)
    ours, theirs = final(run), final(reference)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("random"))


def test_what_is_not_finite_on_one_rank_is_left_out_by_all(tmp_path):
    """Both ways leave the same weights: those of a run that never used the batch. Samples that one rank can't load are
    left out by both."""
    same_seed = ("training.max_steps=8", "training.random_seed=3", "training.ema=null", "training.quarantine=3")
    events = []
    for policy in ("skip", "rollback"):
        run = tmp_path / policy / "run"
        told = {"BAD": "4 1", "BROKEN": "item-1-003 item-1-012 item-1-020"}
        finish(run, *same_seed, f"training.not_finite={policy}", ranks=2, env=told)
        listed = [json.loads(line)["id"] for line in (run / "quarantine.jsonl").read_text().splitlines()]
        assert sorted(listed) == told["BROKEN"].split()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        events.append(next(line for line in lines if line.get("event") in ("skipped", "rolled back")))
    skipped, back = events
    assert (skipped["step"], back["after"], back["step"]) == (5, 5, 4)
    assert skipped["ids"] == back["ids"], "of rank 1, as the first one tells them"
    ours, theirs = final(tmp_path / "skip/run"), final(tmp_path / "rollback/run")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if name.endswith(("weight", "bias")))


def test_ranks_begin_a_batch_anew_together_where_one_runs_out_of_memory(tmp_path):
    """It has room for less than half of the frames of most batches; with the same gradient it learns the same."""
    options = ("training.max_steps=6", "training.random_seed=3", "training.batch_size=12")
    finish(tmp_path / "whole/run", *options, ranks=2, env={"DROPOUT": "0"})
    finish(tmp_path / "parts/run", *options, ranks=2, env={"DROPOUT": "0", "ROOM": "1 24"})
    ours, theirs = final(tmp_path / "parts/run"), final(tmp_path / "whole/run")
    for name in (name for name in theirs if name.endswith(("weight", "bias"))):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)
    command, streams = prepared(tmp_path / "none/run", *options, env={"ROOM": "1 2"})
    assert run_ranks(2, *command, **streams).returncode == 1
    (line,) = [one for one in (tmp_path / "none/output.txt").read_text().splitlines() if "error" in one]
    assert line.startswith("error: out of memory at step 1 (batch: item-1-")
    assert "the batch is a single item" in line


def test_ranks_that_computed_one_phase_apart_go_on_together_in_the_next(tmp_path):
    """As they do for batches larger than any before: what one phase's gradients used then is not asked of another's."""
    options = ("training.max_steps=12", "training.gradient_accumulation_steps=1", "training.early_stopping=null")
    finish(tmp_path / "run", *options, ranks=2, plugin=HERE / "two_phases_plugin.py")
    assert {"discriminator", "generator"} <= {name for row in rows(tmp_path / "run") for name in row}


def test_a_rank_that_hangs_is_found_and_all_tell_their_stacks(tmp_path):
    run = tmp_path / "run"
    options = ("training.max_steps=8", "training.performance.stuck_minutes=0.1")
    process = start(run, *options, ranks=2, env={"STUCK": "5 1"})
    assert process.wait(120) != 0
    said = (tmp_path / "output.txt").read_text()
    assert "rank 1: stuck for 6 s in step 6 (batch: item-1-" in said
    stacks = [(run / "logs" / f"stuck-rank{rank}.txt").read_text() for rank in (0, 1)]
    assert "plugin_task.py" in stacks[1]
    assert "plugin_task.py" not in stacks[0].partition("Thread")[0]
    assert last_step(run) == 4
    finish(run, "training.max_steps=8", ranks=2)
    assert last_step(run) == 8


def test_what_the_first_rank_can_not_write_ends_all_with_one_line(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "quarantine.jsonl").symlink_to("/dev/full")
    options = ("training.quarantine=3", "training.distributed.timeout_minutes=5")
    process = start(run, *options, ranks=2, env={"BROKEN": "item-1-003"})
    assert process.wait(60) == 1
    lines = [one for one in (tmp_path / "output.txt").read_text().splitlines() if one.startswith("error: ")]
    said = f"{run}/quarantine.jsonl: can't write: No space left on device; fix this, then resume; "
    said += "there is no checkpoint yet"
    assert sorted(lines) == [f"error: {said}", f"error: rank 0: {said}"]


@pytest.mark.parametrize(
    "switch",
    ["static_graph=true", "gradient_as_bucket_view=false", "find_unused_parameters=true", "sync_gradient_barrier=true"],
)
def test_the_switches_of_ddp_change_how_and_not_what_is_learnt(switch, tmp_path, runs):
    """Two micro-batches a step: in a static graph each of them is averaged, elsewhere only the last."""
    _, reference = runs
    finish(
        tmp_path / "run", "training.max_steps=14", "training.random_seed=3", f"training.distributed.{switch}", ranks=2
    )
    ours, theirs = final(tmp_path / "run"), final(reference)
    for name in (name for name in theirs if not name.startswith("random")):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_the_recipes_precision_comes_before_the_launchers(tmp_path, runs):
    _, reference = runs
    launcher = {"ACCELERATE_MIXED_PRECISION": "bf16"}
    quiet = ("training.max_steps=14", "training.random_seed=3", "training.mixed_precision=fp32")
    finish(tmp_path / "run", *quiet, ranks=2, env=launcher)
    ours, theirs = final(tmp_path / "run"), final(reference)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("random"))


def test_accelerate_launch_starts_the_ranks_too(tmp_path, runs):
    """(--multi_gpu is what starts several processes, with GPUs or without; --cpu starts one.)"""
    _, reference = runs
    launcher = ["accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
    launcher += ["--main_process_port=0", "--mixed_precision=bf16", "--dynamo_backend=no"]
    quiet = ("training.max_steps=14", "training.random_seed=3", "training.mixed_precision=fp32")
    finish(tmp_path / "run", *quiet, launcher=launcher)
    assert rows(tmp_path / "run") == rows(reference)
    ours, theirs = final(tmp_path / "run"), final(reference)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs if not name.startswith("random"))


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"USE_DEEPSPEED": "true"}, "leave --use_deepspeed out"),
        ({"USE_MEGATRON_LM": "true"}, "leave --use_megatron_lm out"),
        ({"USE_PARALLELISM_CONFIG": "true"}, "leave --use_parallelism_config out"),
        ({"MIXED_PRECISION": "fp8"}, "--mixed_precision fp8"),
        ({"DYNAMO_BACKEND": "EAGER"}, "--dynamo_backend eager"),
    ],
)
def test_what_the_launcher_asks_for_and_phonate_can_not_do_is_refused(told, error, monkeypatch):
    for name, value in {"MIXED_PRECISION": "no", **told}.items():
        monkeypatch.setenv(f"ACCELERATE_{name}", value)
    with pytest.raises(InputError, match=error):
        distributed.launcher_options("auto")


def test_what_the_launcher_asks_for_is_done_where_the_recipe_leaves_it_open(monkeypatch, caplog):
    assert distributed.launcher_options("auto") == {}
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    compiled = {"training.performance.compile_model": True}
    assert distributed.launcher_options("auto") == {"training.mixed_precision": "bf16", **compiled}
    assert not caplog.records
    assert distributed.launcher_options("fp32") == compiled
    assert "the recipe's fp32 comes before accelerate launch --mixed_precision bf16" in caplog.text


def test_options_that_accelerate_launch_keeps_to_itself_are_refused(tmp_path):
    """It takes them for every program and gives them to those of DeepSpeed."""
    launcher = ["accelerate.commands.accelerate_cli", "launch", "--gradient_accumulation_steps", "4"]
    process = start(tmp_path / "run", launcher=[*launcher, "--num_processes=1", "--cpu"])
    assert process.wait(60) == 1  # accelerate's own
    assert (
        "it passes this on to DeepSpeed alone; set training.gradient_accumulation_steps=4"
        in (tmp_path / "output.txt").read_text()
    )


def test_another_number_of_processes_than_the_recipe_wants(tmp_path):
    process = start(tmp_path / "run", "training.distributed.world_size=4")
    assert process.wait(60) == 2
    assert "torchrun --nproc_per_node=4" in (tmp_path / "output.txt").read_text()
