#!/usr/bin/env bash
# A voice from two to fifty minutes: docs/laboratory/speech.md. Everything is written to study/.
set -euo pipefail

python scripts/prepare_minutes_study.py $PHONATE_TEST_DATA study
python scripts/shift_voices.py study/others.csv lj study
export OMP_NUM_THREADS=2
options="training.mixed_precision=bf16"
phonate train speech data.path=study/shifted.csv training.init_from=null training.batch_size=4 training.max_steps=2000 \
    training.ema=null data.judged=0 $options --output study/base
all="training.init_from=study/base training.adversarial_start=1 training.optimizer.lr=5e-4 $options"
for minutes in 2 5; do
    phonate train speech data.path=study/kathleen-$minutes.csv $all training.max_steps=150 training.scheduler.warmup_steps=7 \
        training.validation.interval=30 training.checkpoint.interval=30 data.judged=0 \
        training.validation.metric_for_best_model=val_loss \
        'training.ema={decay: 0.99, warmup: false, validate_with: ema}' \
        'training.callbacks=[{type: freeze_layers, options: {patterns: [acoustic.embedding, acoustic.encoder, acoustic.predictor, acoustic.melody]}}]' \
        --output study/base-$minutes
done
phonate train speech data.path=study/kathleen-15.csv $all training.max_steps=800 training.scheduler.warmup_steps=40 \
    training.validation.interval=160 training.checkpoint.interval=160 --output study/base-15
phonate train speech data.path=study/kathleen-50.csv $all training.max_steps=1200 training.scheduler.warmup_steps=60 \
    training.validation.interval=240 training.checkpoint.interval=240 --output study/base-50
for minutes in 2 5 15; do
    phonate train speech data.path=study/kathleen-$minutes.csv training.init_from=null training.max_steps=2000 $options \
        --output study/scratch-$minutes
done
for run in base-2 base-5 base-15 base-50 scratch-2 scratch-5 scratch-15; do
    phonate evaluate study/$run --data study/held_out.csv --output study/evaluated-$run
done

# The voice of 2026-11-29: the recordings that the packaged voice begins with, on one core.
python scripts/prepare_base.py $PHONATE_TEST_DATA/tts_en_kathleen $PHONATE_TEST_DATA/tts_de_kerstin \
    $PHONATE_TEST_DATA/spk_en_librispeech study/base-tables
phonate train speech data.path=study/base-tables/voice.csv training.init_from=null data.judged=0 $options \
    training.validation.metric_for_best_model=step training.validation.greater_is_better=true \
    training.performance.threads=1 --output study/scratch-50
phonate evaluate study/scratch-50 --data study/base-tables/held_out.csv --output study/evaluated-scratch-50
