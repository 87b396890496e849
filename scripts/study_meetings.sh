#!/usr/bin/env bash
# Diarization of meetings: docs/laboratory/diarization.md. Everything is written to study/.
#
#   scripts/study_meetings.sh [segmentation|pretrained|further]
#
# AMI: a folder with the extracts and ref.rttm; SPEECH: folders with recordings of single speakers, between commas.
# segmentation: diarization-pretrained, from build/base/segmentation (scripts/convert_segmentation.py).
# pretrained: begin with simulated conversations of the latter. further: then train as the README does, on the extracts
# alone; SEED: training.random_seed of that.
set -euo pipefail

python scripts/prepare_diarization_study.py $AMI study
OPTIONS="model.decoding.smoothing=null model.decoding.reassignment_margin=null"
if [ "${1:-}" = pretrained ] || [ "${1:-}" = further ]; then
    SIMULATION="path: [$SPEECH], speakers: [1, 4], overlap: 0.25, turn_seconds: 2.0, pause_seconds: 0.8, \
        label_pauses_from: 0.5, gain_db: 6.0, acoustics: {reverberation: 0.6, direct_to_reverberant_db: [0, 14], \
        noise: 0.9, snr_db: [15, 45], level_db: [-46, -24]}"
    OPTIONS="model.global_config.attention_dropout=0 model.global_config.dropout=0.2 training.performance.num_workers=0"
    phonate train diarization-whisper "data.simulation={$SIMULATION}" data.pool=2400 data.samples=2400 \
        data.validation=0 training.max_steps=2500 training.performance.threads=1 $OPTIONS --output study/simulated
fi
for fold in study/[0-9]; do
    if [ "${1:-}" = segmentation ]; then
        phonate train diarization-pretrained data.path=$fold/train training.init_from=build/base/segmentation \
            data.validation=0 training.performance.threads=1 --output $fold/run
    elif [ "${1:-}" = pretrained ]; then
        phonate train diarization-whisper data.path=$fold/train "data.simulation={share: 0.3, $SIMULATION}" \
            'data.mixing={}' data.pool=200 data.samples=600 training.init_from=study/simulated training.max_steps=150 \
            data.validation=0 training.optimizer.lr=5e-4 training.random_seed=0 training.performance.threads=1 $OPTIONS \
            --output $fold/run
    elif [ "${1:-}" = further ]; then
        phonate train diarization-whisper data.path=$fold/train training.init_from=study/simulated \
            training.random_seed=${SEED:-0} training.performance.threads=1 --output $fold/run
    else
        phonate train diarization-whisper data.path=$fold/train data.validation=0 training.performance.threads=1 \
            $OPTIONS --output $fold/run
    fi
    for file in $fold/test/*.flac; do
        phonate diarize $fold/run $file -o $fold/$(basename $file .flac).rttm
    done
done
cat study/*/trn*.rttm > study/diarized.rttm
phonate score $AMI/ref.rttm study/diarized.rttm
