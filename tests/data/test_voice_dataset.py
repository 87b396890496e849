"""VoiceDataset, its collator and loaders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phonate.audio.augmentation import DataAugmentation
from phonate.audio.settings import AudioConfig, AugmentationSettings
from phonate.config.errors import InputError
from phonate.data.voice_dataset import VoiceCollator, VoiceDataset, create_train_val_datasets, create_voice_dataloader


@pytest.fixture
def dataset(tone_corpus, tmp_path):
    return VoiceDataset(tone_corpus, cache_dir=str(tmp_path))


def test_items_hold_audio_features_and_speaker(dataset):
    item = dataset[0]
    assert item["audio"].ndim == 1
    assert item["mel_spec"].shape == (1 + len(item["audio"]) // 256, 80)
    assert dataset.speakers[item["speaker_id"]] == item["speaker"]
    assert item["id"].startswith(item["speaker"])


def test_collator_pads_and_says_where(dataset):
    batch = VoiceCollator()([dataset[i] for i in range(4)])
    assert batch.keys() >= {"audio", "mel_spec", "speaker_id", "lengths", "features", "target_features", "waveform"}
    for i in range(4):
        length = int(batch["lengths"][i])
        assert torch.equal(batch["features"][i, :length], torch.from_numpy(dataset[i]["mel_spec"]))
        assert not batch["features"][i, length:].any()
        assert batch["mask"][i].sum() == length
        assert not batch["waveform"][i, int(batch["waveform_lengths"][i]) :].any()


def test_augmentation_changes_audio_and_features_together_and_is_never_frozen(tone_corpus, tmp_path):
    augmentation = DataAugmentation(AugmentationSettings(), AudioConfig().sample_rate)
    clean = VoiceDataset(tone_corpus, cache_dir=str(tmp_path))
    augmented = VoiceDataset(tone_corpus, cache_dir=str(tmp_path), transforms=augmentation, cache_size=100)
    first = augmented[0]
    again = augmented[0]
    assert np.array_equal(first["audio"], again["audio"])
    augmented.set_epoch(1)
    second = augmented[0]
    for key in ("audio", "mel_spec"):
        assert first[key].shape != second[key].shape or not np.array_equal(first[key], second[key])
        assert first[key].shape != clean[0][key].shape or not np.array_equal(first[key], clean[0][key])
    assert len(first["mel_spec"]) == 1 + len(first["audio"]) // 256
    assert np.array_equal(clean[0]["audio"], VoiceDataset(tone_corpus, cache_dir=str(tmp_path))[0]["audio"])


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}])
def test_every_pass_of_a_loader_draws_other_augmentation(tone_corpus, tmp_path, options):
    augmentation = DataAugmentation(AugmentationSettings(noise_probability=1.0), AudioConfig().sample_rate)
    dataset = VoiceDataset(tone_corpus, cache_dir=str(tmp_path), transforms=augmentation)
    loader = create_voice_dataloader(dataset, batch_size=30, shuffle=False, **options)

    def sums() -> dict[str, float]:
        pairs = (pair for batch in loader for pair in zip(batch["ids"], batch["audio"], strict=True))
        return {name: float(waveform.abs().sum()) for name, waveform in pairs}

    first, second = sums(), sums()
    assert all(first[name] != second[name] for name in first)
    loader.set_epoch(0)
    assert sums() == first


def test_a_transform_that_works_in_place_leaves_what_is_kept_alone(tone_corpus, tmp_path):
    def halved(item):
        item["audio"] *= 0.5
        item["mel_spec"] *= 0.5
        return item

    dataset = VoiceDataset(tone_corpus, cache_dir=str(tmp_path), transforms=halved)
    assert np.array_equal(dataset[0]["audio"], dataset[0]["audio"])
    assert np.array_equal(dataset[0]["mel_spec"], dataset[0]["mel_spec"])


def test_a_cache_of_transformed_items_is_what_freezes_augmentation(tone_corpus, tmp_path):
    """The usual fault, kept here so that the test above is known to see it."""

    class Frozen(VoiceDataset):
        def __getitem__(self, number):
            self.kept = getattr(self, "kept", {})
            if number not in self.kept:
                self.kept[number] = super().__getitem__(number)
            return self.kept[number]

    augmentation = DataAugmentation(AugmentationSettings(), AudioConfig().sample_rate)
    frozen = Frozen(tone_corpus, cache_dir=str(tmp_path), transforms=augmentation)
    first = frozen[0]["audio"]
    frozen.set_epoch(1)
    assert np.array_equal(first, frozen[0]["audio"])


def test_in_memory_or_not_gives_the_same(tone_corpus, tmp_path):
    kinds = [{"load_in_memory": True}, {"cache_size": 0}, {"cache_size": 1}]
    sets = [VoiceDataset(tone_corpus, cache_dir=str(tmp_path), **kind) for kind in kinds]
    for number in (0, 3, 0):
        items = [one[number] for one in sets]
        assert all(np.array_equal(items[0]["mel_spec"], item["mel_spec"]) for item in items)
    assert len(sets[2]._kept) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_and_split(tone_corpus, tmp_path, workers):
    train, validation = create_train_val_datasets(tone_corpus, val_split=0.25, cache_dir=str(tmp_path))
    loader = create_voice_dataloader(train, batch_size=3, shuffle=False, num_workers=workers)
    ids = [name for batch in loader for name in batch["ids"]]
    others = [validation[i]["id"] for i in range(len(validation))]
    assert len(ids) == len(train)
    assert others
    assert not set(ids) & set(others)


def test_distributed_shares_among_ranks_and_without_a_launcher_warns(tone_corpus, tmp_path, monkeypatch, caplog):
    dataset = VoiceDataset(tone_corpus, cache_dir=str(tmp_path))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    alone = create_voice_dataloader(dataset, 4, num_workers=0, distributed=True)
    assert "torchrun" in caplog.text
    assert sum(len(batch["ids"]) for batch in alone) == len(dataset)
    seen = []
    for rank in "01":
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", rank)
        loader = create_voice_dataloader(dataset, 2, num_workers=0, distributed=True)
        seen.append({name for batch in loader for name in batch["ids"]})
    assert seen[0] | seen[1] == {dataset[i]["id"] for i in range(len(dataset))}


def test_a_clean_target_is_the_recording_that_was_augmented(tone_corpus, tmp_path):
    augmentation = DataAugmentation(AugmentationSettings(time_stretch=None, pitch_shift_probability=1.0))
    train, validation = create_train_val_datasets(
        tone_corpus, 0.25, transforms=augmentation, clean_target=True, cache_dir=str(tmp_path)
    )
    clean = VoiceDataset(tone_corpus, cache_dir=str(tmp_path))
    mels = {clean[i]["id"]: clean[i]["mel_spec"] for i in range(len(clean))}
    for part in (train, validation):
        batch = VoiceCollator()([part[i] for i in range(len(part))])
        assert batch["features"].shape == batch["target_features"].shape
        for number, name in enumerate(batch["ids"]):
            length = int(batch["lengths"][number])
            assert torch.equal(batch["target_features"][number, :length], torch.from_numpy(mels[name]))
            assert not torch.equal(batch["features"][number, :length], batch["target_features"][number, :length])


def test_a_clean_target_needs_an_augmentation_that_keeps_the_length(tone_corpus, tmp_path):
    with pytest.raises(InputError, match="DataAugmentation"):
        VoiceDataset(tone_corpus, cache_dir=str(tmp_path), clean_target=True)
    with pytest.raises(InputError, match="time_stretch"):
        VoiceDataset(tone_corpus, cache_dir=str(tmp_path), clean_target=True, transforms=DataAugmentation())


@pytest.mark.parametrize("share", [-1.0, -0.1, 1.0, 2.0, float("nan")])
def test_a_share_for_validation_is_less_than_all(tone_corpus, tmp_path, share):
    with pytest.raises(InputError, match="val_split"):
        create_train_val_datasets(tone_corpus, val_split=share, cache_dir=str(tmp_path))
