"""`data.executor: ray`: a Ray cluster gives what one machine gives, whatever dies meanwhile."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from pool_work import die_at, linger, raise_at, say
from s3_server import s3_server

from phonate.audio.decoding import write_audio
from phonate.compute.remote import open_at
from phonate.config.errors import DataError, InputError, MissingPackageError
from phonate.data.cluster import executor_of
from phonate.data.derived import open_pitch
from phonate.data.parallel import Here, progress_listener
from phonate.data.prepared import prepare
from phonate.data.settings import VoiceData
from phonate.evaluation.held_out import clips_of
from phonate.tasks.conversion.data import ConversionCorpus
from phonate.tasks.conversion.features import FeatureExtractor
from phonate.tasks.conversion.settings import ConversionData
from phonate.tasks.speech.data import SpeechCorpus
from phonate.tasks.speech.settings import SpeechData
from phonate.workflows.datasets.shards import write_shards
from phonate.workflows.datasets.transcripts import transcribe
from phonate.workflows.demo.demo import RECORDINGS
from phonate.workflows.prepare import check

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs phonate[ray]")
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """Two workers on this machine, and S3 on loopback, to which they and this process have keys."""
    import ray

    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with pytest.MonkeyPatch.context() as patch, s3_server() as (address, _, _):
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}.items():
            patch.setenv(name, value)
        patch.setenv("PYTHONPATH", path)  # of pool_work
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Forty clips, one of them silent, one no recording, one missing."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    rows = []
    for number in range(40):
        name = f"{number:02d}.wav"
        tone = np.sin(2 * np.pi * (100 + number) * np.arange(16_000) / 16_000) + 0.01 * rng.standard_normal(16_000)
        write_audio(folder / name, (0.4 * tone * (number != 7)).astype(np.float32), 16_000)
        rows.append({"audio_filepath": name, "speaker_id": f"s{number % 3}", "text": f"text {number}"})
    (folder / "11.wav").write_bytes(b"RIFF, and nothing of use")
    (folder / "13.wav").unlink()
    (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def settings(corpus, cache, executor="local"):
    return VoiceData(path=str(corpus / "list.jsonl"), cache_dir=str(cache), executor=executor)


def files_of(folder):
    """A digest of each file below; of what a compressed one holds, since its header has a time.
    Without records of times."""
    contents = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name not in {"digests.json", "verified.json"}:
            data = file.read_bytes()
            data = gzip.decompress(data) if file.suffix == ".gz" else data
            contents[str(file.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return contents


@pytest.fixture
def without_ray(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else found(name, *rest))


@pytest.mark.usefixtures("without_ray")
def test_a_run_is_evaluated_where_there_is_no_cluster(corpus, tmp_path):
    assert len(list(clips_of(settings(corpus, tmp_path, "ray"), str(corpus / "list.jsonl")))) == 37


@pytest.mark.usefixtures("without_ray")
def test_without_the_package_the_extra_is_named_before_anything_is_read(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("phonate.data.corpora.manifest._listed", None)
    with pytest.raises(MissingPackageError, match=r"data\.executor ray.*phonate\[ray\]"):
        prepare(settings(corpus, tmp_path, "ray"))


@needs_ray
def test_a_cluster_that_does_not_answer_is_one_line_at_once(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=f"{address}.*refused.*RAY_ADDRESS"):
            list(executor_of("ray", Here()).map(abs, [1]))


@needs_ray
@slow
def test_cache_report_pitch_progress_and_messages_are_those_of_one_machine(corpus, tmp_path, cluster, caplog):
    outcomes = {}
    for executor in ("local", "ray"):
        told, cache = [], tmp_path / executor
        caplog.clear()
        with progress_listener(lambda *said, told=told: told.append(said)):
            one = settings(corpus, cache, executor)
            report = check(one)
            prepared = prepare(one)
            open_pitch(prepared, one.audio, "swift")
        lines = [record.getMessage() for record in caplog.records if not record.getMessage().startswith("Ray")]
        outcomes[executor] = files_of(cache), report, told, lines
        assert len(prepared.index) == 37
    assert outcomes["ray"] == outcomes["local"]


@needs_ray
@slow
def test_shards_at_an_address_are_written_and_read_as_on_one_machine(corpus, tmp_path, cluster):
    pytest.importorskip("obstore")
    outcomes = {}
    for executor in ("local", "ray"):
        one = settings(corpus, tmp_path / executor, executor)
        made = write_shards(one, f"s3://bucket/{executor}", "3", lambda *_: None)
        shards = one.model_copy(update={"path": f"s3://bucket/{executor}"})
        prepared = prepare(shards)
        sounds = [prepared.cache.waveform(position).tobytes() for position in range(len(prepared.index))]
        data = [open_at(f"s3://bucket/{executor}/00000{number}.tar").read() for number in range(3)]
        outcomes[executor] = {**made, "folder": ""}, list(prepared.index.id), sounds, data
    assert outcomes["ray"] == outcomes["local"]


@needs_ray
@slow
def test_a_killed_worker_loses_nothing(tmp_path, cluster):
    done = threading.Event()

    def kill_one():
        while len(files := list(tmp_path.iterdir())) < 2:
            if done.wait(0.05):
                return
        os.kill(int(files[0].name), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        results = list(executor_of("ray", Here()).map(partial(linger, folder=tmp_path), range(200)))
    finally:
        done.set()
        killer.join()
    assert results == list(range(200))
    assert len(list(tmp_path.iterdir())) > 2  # another one took its place


@needs_ray
@slow
def test_an_item_that_kills_its_workers_is_reported_and_the_others_are_done(cluster):
    work = partial(die_at, deadly=(5,))
    results = list(executor_of("ray", Here()).map(work, range(60), lambda number: -number))
    assert results == [-number if number == 5 else number * number for number in range(60)]


@needs_ray
@slow
def test_what_work_logs_and_raises_is_as_on_one_machine(cluster, caplog):
    assert list(executor_of("ray", Here()).map(say, range(5))) == list(range(5))
    assert [record.getMessage() for record in caplog.records if record.name == "phonate"][-5:] == [
        f"at {number}" for number in range(5)
    ]
    with pytest.raises(DataError) as raised:
        list(executor_of("ray", Here()).map(partial(raise_at, wrong=3), range(5)))
    assert str(raised.value) == "3 is wrong"


@needs_ray
@slow
def test_a_file_that_a_node_does_not_see_is_named(tmp_path, cluster):
    """A path through /proc/self is another one in each process."""
    seen = Path("/proc/self/fd/777/here")
    (tmp_path / "here").touch()
    os.dup2(os.open(tmp_path, os.O_RDONLY), 777)
    try:
        with pytest.raises(DataError, match=r"/proc/self/fd/777/here.*can't see it; put it.*storage"):
            list(executor_of("ray", Here()).map(linger, range(3), file=lambda _: seen))
    finally:
        os.close(777)


@pytest.mark.usefixtures("whisper")
@needs_ray
@slow
def test_texts_alignments_and_whisper_features_are_those_of_one_machine(tmp_path, cluster, caplog):
    caplog.set_level("INFO")
    (tmp_path / "voice").mkdir()
    for clip in ("LJ001-0002", "LJ001-0004", "LJ001-0012"):
        shutil.copy(RECORDINGS / f"{clip}.ogg", tmp_path / "voice")
    outcomes = {}
    for executor in ("local", "ray"):
        common = {"path": str(tmp_path / "voice"), "cache_dir": str(tmp_path / executor), "executor": executor}
        speech = SpeechData(**common, transcribe=True, aligner_steps=2)
        transcribe(speech)
        aligned = [
            SpeechCorpus(speech.model_copy(update={"durations": durations})).durations
            for durations in ("pocketsphinx", "learnt")
        ]
        conversion = ConversionData(**common, content="whisper")
        whisper = ConversionCorpus(conversion, FeatureExtractor(conversion))._whisper
        arrays = [np.concatenate([one[position] for position in range(3)]) for one in (*aligned, whisper)]
        texts = [json.loads(line) for line in (speech.transcripts / "transcripts.jsonl").read_text().splitlines()]
        outcomes[executor] = texts, [array.tolist() for array in arrays]
        assert [len(array) > 50 for array in arrays] == [True] * 3
        calls = sum(line.startswith("Ray: ") for line in caplog.messages)
        assert calls == (
            0 if executor == "local" else 6
        )  # texts, recordings, two alignments, recordings without texts, Whisper
    assert outcomes["ray"] == outcomes["local"]
