"""Corpora in shards and at addresses: what training reads, in which order, and how shards are written."""

from __future__ import annotations

import io
import json
import shutil
import tarfile

import fsspec
import numpy as np
import pytest
import soundfile
from s3_server import s3_server
from small_corpora import corpus, wav

from phonate.audio.settings import AudioConfig
from phonate.cli import main
from phonate.compute import remote, system
from phonate.config.errors import DataError, InputError, MissingPackageError
from phonate.data import streaming
from phonate.data.batches import Streams, epoch_plan, lanes, streamed_order
from phonate.data.corpora.manifest import detect_format, list_corpus, read_corpus
from phonate.data.loading import BatchSource, PlannedBatches
from phonate.data.prepared import WholeRecordings, prepare
from phonate.data.settings import VoiceData
from phonate.tasks.speech.settings import SpeechData
from phonate.tasks.speech.start import _minutes
from phonate.workflows.datasets import shards as writing


def ignore(*_):
    pass


@pytest.fixture
def memory():
    """A file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


@pytest.fixture
def tones(tmp_path):
    """Forty recordings of two speakers, with texts."""
    folder = tmp_path / "tones"
    lines = []
    for number in range(40):
        speaker = "ann" if number % 2 else "bob"
        wav(folder / f"{number:02d}.wav", seconds=0.3 + 0.01 * number, hertz=150 + 7 * number)
        lines.append({"audio_path": f"{number:02d}.wav", "speaker_id": speaker, "text": f"number {number}"})
    (folder / "metadata.json").write_text(json.dumps(lines))
    return folder


def uploaded(folder, address):
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            remote.upload(file, f"{address}/{file.relative_to(folder).as_posix()}")


def contents(prepared):
    """Everything that training reads, by id."""
    index = prepared.index
    return {
        index.id[i]: (
            prepared.cache.waveform(i).tobytes(),
            np.asarray(prepared.cache.features(i)).tobytes(),
            prepared.cache.waveform(i, 100, 900).tobytes(),
            [(one.start, one.end, index.speakers[one.speaker], one.text) for one in index.segments(i)],
        )
        for i in range(len(index))
    }


# ---------------------------------------------------------------------------------------- Addresses


def test_a_corpus_at_an_address_is_that_of_the_folder(tones, memory, tmp_path):
    uploaded(tones, "memory://bucket/tones")
    local = prepare(corpus(tones))
    for address in ("memory://bucket/tones", "memory://bucket/tones/metadata.json"):
        assert contents(prepare(corpus(tones).model_copy(update={"path": address}))) == contents(local)


def test_only_what_changed_is_fetched_again(tones, memory, tmp_path, monkeypatch):
    uploaded(tones, "memory://bucket/tones")
    assert len(list(remote.mirrored("memory://bucket/tones", tmp_path).rglob("*.wav"))) == 40
    fetched = []
    real = remote.fetched
    monkeypatch.setattr(remote, "fetched", lambda address, file: (fetched.append(file.name), real(address, file)))
    remote.upload(wav(tmp_path / "x.wav", 0.7), "memory://bucket/tones/03.wav")
    memory.rm("/bucket/tones/04.wav")
    mirror = remote.mirrored("memory://bucket/tones", tmp_path)
    assert fetched == ["03.wav"]
    assert not (mirror / "04.wav").exists()


def test_a_missing_address_and_a_missing_package_are_one_line(tmp_path, memory, monkeypatch):
    data = corpus(tmp_path / "none")
    with pytest.raises(DataError, match="memory://bucket/none: no such"):
        list_corpus(data.model_copy(update={"path": "memory://bucket/none"}))
    with pytest.raises(InputError, match="nonsense://a"):
        list_corpus(data.model_copy(update={"path": "nonsense://a"}))
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(MissingPackageError, match=r"s3://a.*pip install 'phonate\[remote\]'"):
        list_corpus(data.model_copy(update={"path": "s3://a"}))
    with pytest.raises(MissingPackageError, match=r"gs://a.*pip install 'phonate\[remote\]'"):  # before it reads a list
        writing.write_shards(data, "gs://a", "5", ignore)


def test_a_server_that_is_not_reached_is_told_from_a_file_that_is_not_there():
    with pytest.raises(DataError, match=r"list.csv: can't be read \(Cannot connect to host 127.0.0.1:9 .*the network"):
        remote.files_below("http://127.0.0.1:9/list.csv")


def test_what_a_file_system_says_is_one_line(monkeypatch):
    class Store:
        def isfile(self, path):
            return False

        def find(self, path, detail):
            raise OSError(
                "Server returned 503: <?xml version='1.0'?>\n<Error><Code>SlowDown</Code>" + 500 * "x" + "</Error>\n\n"
                "Debug source:\nGeneric {\n}"
            )

    monkeypatch.setattr(remote, "filesystem", lambda address: (Store(), "bucket"))
    with pytest.raises(DataError) as error:
        remote.files_below("az://bucket")
    assert str(error.value).startswith("az://bucket: can't be read (Server returned 503: SlowDown")
    assert "Debug" not in str(error.value)
    assert len(str(error.value)) < 450


# --------------------------------------------------------------------------------- Reading shards


@pytest.fixture
def sharded(tones, tmp_path):
    """The recordings in five shards."""
    writing.write_shards(corpus(tones), str(tmp_path / "shards"), "5", ignore)
    return tmp_path / "shards"


def test_shards_give_training_what_the_recordings_give(tones, sharded, memory):
    local = contents(prepare(corpus(tones)))
    assert detect_format(sharded) == "webdataset"
    prepared = prepare(corpus(sharded))
    assert contents(prepared) == local
    assert sum(file.stat().st_size for file in prepared.folder.iterdir()) < 100_000  # no sound in it
    assert prepared.digests(range(40)) == prepare(corpus(tones)).digests(range(40))
    uploaded(sharded, "memory://bucket/shards")
    there = prepare(corpus(sharded).model_copy(update={"path": "memory://bucket/shards"}))
    assert contents(there) == local
    assert not list((sharded.parent / "cache").rglob("*.tar"))


def test_a_shard_is_read_once_an_epoch_by_one_rank(sharded, memory, monkeypatch, tmp_path):
    monkeypatch.setattr("phonate.data.cache.RUN_BYTES", 1 << 14)
    uploaded(sharded, "memory://bucket/shards")
    prepared = prepare(corpus(sharded).model_copy(update={"path": "memory://bucket/shards"}))
    samples = Samples(prepared)
    read = []
    real = streaming.read_range
    monkeypatch.setattr(streaming, "read_range", lambda *place: (read.append(place), real(*place))[1])
    of_rank = []
    for rank in range(2):
        read.clear()
        prepared.cache._runs._folder = tmp_path / f"rank{rank}"
        source = BatchSource(samples, seed=1, batch_size=6, rank=rank, world_size=2)
        ids = [name for batch in source.epoch(0) for name in batch.ids if batch.weight]
        assert len(set(ids)) == len(ids)
        wait_for(prepared.cache)
        assert len(set(read)) == len(read) > 3
        of_rank.append(({place[0] for place in read}, set(ids)))
    (first, one), (second, two) = of_rank
    assert not first & second
    assert len(first | second) == 5
    assert one | two == set(samples.ids)
    assert not one & two


def wait_for(cache):
    readers = cache._runs._readers
    if readers is not None:
        readers[1].shutdown(wait=True)
        cache._runs._readers = None


class Samples(WholeRecordings):
    def __init__(self, prepared):
        super().__init__(prepared, range(len(prepared.index)), AudioConfig())

    def get(self, index, rng):
        return self.prepared.cache.waveform(index), rng.random()

    def collate(self, items):
        return {"sums": [(float(np.abs(wave).sum()), drawn) for wave, drawn in items]}


@pytest.mark.parametrize("size", [{"batch_size": 6}, {"batch_size": 6, "max_frames": 300}])
def test_an_epoch_is_the_same_whatever_ranks_workers_and_interruptions(sharded, size):
    samples = Samples(prepare(corpus(sharded)))

    def read(world, workers=0, consumed=()):
        found = {}
        batches = []
        for rank in range(world):
            source = BatchSource(samples, seed=3, rank=rank, world_size=world, num_workers=workers, **size)
            for position, batch in enumerate(source.epoch(2, consumed)):
                if batch.weight:
                    found.update(zip(batch.ids, batch.batch["sums"], strict=True))
                    batches.append((position, set(batch.ids)))
            source.close()
        steps = [set().union(*(ids for at, ids in batches if at == i)) for i in range(len({at for at, _ in batches}))]
        return found, steps

    whole, steps = read(1)
    assert set(whole) == set(samples.ids)
    assert read(2) == read(3) == read(1, workers=2) == (whole, steps)
    source = BatchSource(samples, seed=3, **size)
    consumed = source.consumed_by(2, 3, None)
    rest, later = read(2, consumed=consumed)
    assert later == steps[3:]
    assert rest == {name: whole[name] for name in set().union(*steps[3:])}


def test_more_processes_than_shards_are_one_clear_error(sharded):
    samples = Samples(prepare(corpus(sharded)))
    with pytest.raises(DataError, match="divided among 8 processes"):
        PlannedBatches(samples, 1, 6, None, 7, 8)[0, 0]


def test_the_order_follows_the_seed_reads_in_runs_and_mixes_shards():
    shard = np.repeat(np.arange(50), 200)
    run = np.arange(10_000) // 20
    streams = Streams(shard, run)
    order = streamed_order(1, 0, streams)
    assert sorted(order) == list(range(10_000))
    assert (order == streamed_order(1, 0, streams)).all()
    assert (order != streamed_order(1, 1, streams)).mean() > 0.9
    assert (order != streamed_order(2, 0, streams)).mean() > 0.9
    lane, _ = lanes(1, 0, shard)
    for one in range(32):  # the second shard of a lane begins when at most a window of the first is left
        turns = shard[order[lane[shard[order]] == one]]
        assert (turns != turns[0])[: 200 - 4 * 20].sum() == 0
    assert len(np.unique(shard[order[:64]])) > 25
    places = np.empty(10_000, dtype=int)
    places[order] = np.arange(10_000)
    spans = [np.ptp(places[run == one]) for one in range(500)]
    assert max(spans) < 4 * 20 * 50  # what is held of a lane is bounded by its window
    lengths = np.full(10_000, 10)
    batches = epoch_plan(1, 0, lengths, batch_size=16, max_frames=160, streams=streams)
    assert sorted(np.concatenate(batches)) == list(range(10_000))


def test_a_damaged_shard_names_itself(sharded):
    shard = sorted(sharded.glob("*.tar"))[1]
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    rows, _ = list_corpus(corpus(sharded))
    assert any(getattr(row, "reason", None) == "damaged file" and shard.name in row.place for row in rows)
    prepared = prepare(corpus(sharded))
    gone = sorted(sharded.glob("*.tar"))[0]
    gone.unlink()
    there = next(i for i in range(len(prepared.index)) if gone.name in prepared.index.path[i])
    with pytest.raises(DataError, match=gone.name):
        prepared.cache.waveform(there)


def test_a_recording_stored_without_its_zeros_is_refused(tmp_path):
    """`tar --sparse` leaves out what the file system stores as holes: the bytes from its place in the shard on, as many
    as the recording has, are others."""
    sound = np.concatenate([np.full(1000, 0.5), np.zeros(16_000), np.full(978, 0.5)])
    soundfile.write(tmp_path / "a.wav", sound, 16_000)
    content = (tmp_path / "a.wav").read_bytes()
    first, last = content[:2044], content[-1956:]
    info = tarfile.TarInfo("a.wav")
    info.size = len(first + last)
    runs = f"0,{len(first)},{len(content) - len(last)},{len(last)}"
    info.pax_headers = {"GNU.sparse.map": runs, "GNU.sparse.size": str(len(content)), "GNU.sparse.numblocks": "2"}
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards/x-000000.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(first + last))
    with tarfile.open(tmp_path / "shards/x-000000.tar") as tar:
        assert tar.extractfile("a.wav").read() == content
    with pytest.raises(DataError, match=r"x-000000.tar: a.wav is stored sparsely; write the shard again without"):
        read_corpus(VoiceData(path=str(tmp_path / "shards"), speaker="ann"))


def test_labels_of_a_sample_may_be_in_files_of_their_own(tmp_path, tones):
    audio = (tones / "00.wav").read_bytes()
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in (
            ("a/1.wav", audio), ("a/1.txt", b"hello"), ("a/1.spk", b"ann"),
            ("a/2.txt", b"no sound"),
            ("a/3.wav", audio), ("a/3.json", b"{broken"),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    first, second, third = list_corpus(corpus(tmp_path / "x.tar"))[0]
    assert (first.id, first.speaker, first.text) == ("a/1", "ann", "hello")
    assert "one recording" in second.detail
    assert "JSON" in third.detail


def test_labels_of_a_sample_by_the_names_that_lists_have_for_them(tmp_path, tones):
    audio = (tones / "00.wav").read_bytes()
    said = [{"sentence": "hello", "client_id": "ann"}, {"transcription": "good day", "speaker_name": "bob"}]
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number, one in enumerate(said):
            for name, data in ((f"{number}.wav", audio), (f"{number}.json", json.dumps(one).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    rows, _ = list_corpus(corpus(tmp_path / "x.tar"))
    assert [(row.speaker, row.text) for row in rows] == [("ann", "hello"), ("bob", "good day")]


def test_texts_of_shards_in_a_list_beside_them(tmp_path, tones):
    """As NeMo writes tarred recordings."""
    (tmp_path / "tarred").mkdir()
    with tarfile.open(tmp_path / "tarred/audio_0.tar", "w") as tar:
        for number in range(3):
            tar.add(tones / f"0{number}.wav", arcname=f"x_{number}.wav")
    lines = [{"audio_filepath": f"x_{number}.wav", "text": f"number {number}", "shard_id": 0} for number in range(3)]
    (tmp_path / "tarred/tarred_audio_manifest.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows, report = list_corpus(corpus(tmp_path / "tarred"))
    assert report.format == "webdataset"
    assert [row.text for row in rows] == [f"number {number}" for number in range(3)]


def test_an_archive_is_to_be_unpacked(tmp_path, tones):
    (tmp_path / "packed").mkdir()
    with tarfile.open(tmp_path / "packed/train.tar.gz", "w:gz") as tar:
        tar.add(tones / "00.wav", arcname="00.wav")
    with pytest.raises(DataError, match=r"unpack train\.tar\.gz"):
        list_corpus(corpus(tmp_path / "packed"))


# --------------------------------------------------------------------------------- Writing shards


def test_a_disk_without_room_is_told_after_a_few_shards(tones, tmp_path, monkeypatch):
    monkeypatch.setattr(system, "free_bytes", lambda path: 1000)
    monkeypatch.setattr(system, "_FEW_ITEMS", 2)
    with pytest.raises(InputError, match=r"shards: can't be written \(the disk is too full: by the first \d+ of"):
        writing.write_shards(corpus(tones), str(tmp_path / "shards"), "5", ignore)
    assert len(list((tmp_path / "shards").glob("*.tar"))) < 5


def test_an_interrupted_call_goes_on_and_gives_the_same_files(tones, tmp_path, monkeypatch):
    writing.write_shards(corpus(tones), str(tmp_path / "whole"), "60KB", ignore)
    real, calls = writing._store, []

    def killed(file, goal):
        calls.append(goal)
        if len(calls) == 5:
            raise KeyboardInterrupt
        real(file, goal)

    monkeypatch.setattr(writing, "_store", killed)
    with pytest.raises(KeyboardInterrupt):
        writing.write_shards(corpus(tones), str(tmp_path / "again"), "60KB", ignore)
    assert len(list((tmp_path / "again").glob("*.tar"))) == 2
    monkeypatch.setattr(writing, "_store", real)
    outcome = writing.write_shards(corpus(tones), str(tmp_path / "again"), "60KB", ignore)
    assert outcome["recordings"] == 40
    files = {one.name: one.read_bytes() for one in (tmp_path / "whole").iterdir()}
    assert {one.name: one.read_bytes() for one in (tmp_path / "again").iterdir()} == files
    assert len(files) > 3


def test_shards_of_other_requirements_are_not_gone_on_with(tones, tmp_path):
    data, output = corpus(tones), str(tmp_path / "out")
    writing.write_shards(data, output, "3", ignore)
    shorter = data.audio.model_copy(update={"max_seconds": 0.9 * data.audio.max_seconds})
    with pytest.raises(DataError, match="other options"):
        writing.write_shards(data.model_copy(update={"audio": shorter}), output, "3", ignore)


def test_shards_of_a_recording_that_was_corrected_since_are_not_gone_on_with(tones, tmp_path):
    folder, output = tmp_path / "corrected", str(tmp_path / "out")
    shutil.copytree(tones, folder)
    writing.write_shards(corpus(folder), output, "3", ignore)
    assert writing.write_shards(corpus(folder), output, "3", ignore)["recordings"] == 40
    one = sorted(folder.rglob("*.wav"))[7]
    samples, rate = soundfile.read(one)
    soundfile.write(one, 0.5 * samples, rate)
    with pytest.raises(DataError, match="changed since"):
        writing.write_shards(corpus(folder), output, "3", ignore)


def test_the_command_writes_shards_and_refuses_what_it_would_destroy(tones, tmp_path, memory, capsys):
    assert main(["data", "prepare", str(tones), "--shards", "3", "-o", str(tmp_path / "out")]) == 0
    assert sorted(one.name for one in (tmp_path / "out").glob("*.tar")) == [f"{i:06d}.tar" for i in range(3)]
    assert main(["data", "prepare", str(tones), "--shards", "3", "-o", "memory://b/out"]) == 0
    assert memory.cat_file("/b/out/000001.tar") == (tmp_path / "out" / "000001.tar").read_bytes()
    capsys.readouterr()
    for arguments in (
        ["--shards", "4", "-o", str(tmp_path / "out")],
        ["--shards", "3", "-o", str(tones)],
        ["--shards", "many", "-o", str(tmp_path / "new")],
        ["--shards", "3"],
    ):
        assert main(["data", "prepare", str(tones), *arguments]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_webdataset_reads_what_is_written(sharded):
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    files = sorted(map(str, sharded.glob("*.tar")))
    samples = list(webdataset.WebDataset(files, shardshuffle=False))
    assert len(samples) == 40
    assert {json.loads(one["json"])["text"] for one in samples} == {f"number {number}" for number in range(40)}
    assert all(one["flac"].startswith(b"fLaC") for one in samples)


def test_lhotse_shar_gives_training_what_the_recordings_give(tones, tmp_path):
    lhotse = pytest.importorskip("lhotse", reason="lhotse is not installed")
    cuts, _ = read_corpus(corpus(tones))
    assert isinstance(cuts, lhotse.CutSet)
    (tmp_path / "shar").mkdir()
    cuts.to_shar(tmp_path / "shar", fields={"recording": "flac"}, shard_size=7)
    assert contents(prepare(corpus(tmp_path / "shar"))) == contents(prepare(corpus(tones)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_object_stores_list_recordings_and_shards(kind, tones, sharded, monkeypatch):
    pytest.importorskip("obstore", reason="obstore is not installed")
    local = contents(prepare(corpus(tones)))
    with s3_server() as (address, objects, reads):
        account = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": ""}
        for name, value in {
            "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account | {"private_key_id": ""}),
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        uploaded(tones, f"{kind}://voices/tones")
        assert "voices/tones/07.wav" in objects
        assert contents(prepare(corpus(tones).model_copy(update={"path": f"{kind}://voices/tones"}))) == local
        writing.write_shards(corpus(tones), f"{kind}://voices/shards", "5", ignore)
        assert objects["voices/shards/000003.tar"] == (sharded / "000003.tar").read_bytes()
        prepared = prepare(corpus(tones).model_copy(update={"path": f"{kind}://voices/shards"}))
        reads.clear()
        assert contents(prepared) == local
        runs = [place for key, place in reads if key.endswith(".tar")]
        assert len(runs) == 5
        with pytest.raises(DataError, match=f"{kind}://voices/none: no such"):
            list_corpus(corpus(tones).model_copy(update={"path": f"{kind}://voices/none"}))


@pytest.mark.slow
def test_lists_and_shards_at_web_servers_with_and_without_ranges(tones, tmp_path):
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    local = contents(prepare(corpus(tones)))
    writing.write_shards(corpus(tones), str(tmp_path / "one"), "1", ignore)
    for ranges in (True, False):
        with s3_server(ranges) as (address, objects, _):
            objects |= {f"web/{file.name}": file.read_bytes() for file in tones.iterdir()}
            objects |= {"web/000000.tar": (tmp_path / "one/000000.tar").read_bytes(), "web/index.html": b"<html>"}

            def at(name, address=address):
                return corpus(tones).model_copy(update={"path": f"{address}/web/{name}"})

            assert contents(prepare(at("metadata.json"))) == local
            with pytest.raises(InputError, match=r"index\.html: is a page.*list of recordings"):
                prepare(at("index.html"))
            if ranges:
                assert contents(prepare(at("000000.tar"))) == local
            else:
                with pytest.raises(DataError, match=r"000000.tar: its server sends no parts of files.*copy it"):
                    prepare(at("000000.tar"))


def test_minutes_of_shards_are_those_of_the_recordings(tones, sharded):
    minutes = [_minutes(SpeechData(path=str(path)))[0] for path in (tones, sharded)]
    assert minutes[0] == pytest.approx(minutes[1])
    assert minutes[1] > 0.3


def test_shards_are_not_denoised_anew_in_each_epoch(sharded, monkeypatch):
    monkeypatch.setattr("phonate.data.prepared.require_denoiser", lambda: None)
    with pytest.raises(DataError, match=r"^data\.denoise: recordings in shards .*unpack them into files"):
        prepare(VoiceData(path=str(sharded), denoise="deepfilternet"))
