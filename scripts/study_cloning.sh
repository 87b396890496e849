#!/usr/bin/env bash
# What terms about the likeness of the voice cost: docs/laboratory/cloning.md. Everything is written to study/.
set -euo pipefail

python scripts/prepare_cloning_study.py $RECORDINGS study
python scripts/train_small_codec.py study/codec study/codec-model
OPTIONS="model.codec=study/codec-model data.validation=0 data.max_length=1024 data.min_characters=1 training.epochs=1000 \
    training.batch_size=2 training.gradient_accumulation_steps=1 training.optimizer.weight_decay=0 \
    training.mixed_precision=fp32 training.performance.num_workers=0 training.performance.threads=1"
phonate train voice-cloning $OPTIONS data.path=study/base.json model.name=study/model model.strategy=full \
    training.optimizer.lr=3e-3 training.scheduler.warmup_steps=30 training.max_steps=250 --output study/base-run
phonate checkpoints export study/base-run study/base --format transformers
for seed in 1 2 3; do for term in contrastive=0 contrastive=0.1 similarity=0.5; do
    phonate train voice-cloning $OPTIONS data.path=study/arabic.json model.name=study/base model.lora.rank=16 \
        training.optimizer.lr=2e-3 training.scheduler.warmup_steps=10 training.max_steps=120 \
        training.random_seed=$seed training.loss.weights.$term training.loss.curriculum_steps=null \
        --output study/arabic-$term-$seed
done; done
for pairs in held_out swapped; do
    python scripts/score_cloning_pairs.py study/$pairs.json study/base-run study/arabic-*
done
