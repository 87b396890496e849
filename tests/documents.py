"""The YAML of the document "Universal Training Pipeline", letter by letter."""

MODEL = """
model:
  model_type: encoder_decoder
  name: performer_translator

  global_config:
    dropout: 0.1
    batch_size: 32
    d_ff: 4

  encoder:
    d_model: 512
    num_layers: 6
    num_heads: 8
    attention_type: linear

  decoder:
    d_model: 512
    num_layers: 6
    num_heads: 8
    attention_type: causal_linear
"""
DATA = """
global_config:
  corpus_dir: ./data
  output_dir: ./manifests

  # Feature extraction configuration (unified for all datasets)
  feature_type: fbank  # Options: fbank, mfcc, spectrogram

  # Basic parameters
  num_mel_bins: 80
  frame_length: 0.025  # 25ms
  frame_shift: 0.01  # 10ms
  sampling_rate: 16000

  # Window and preprocessing (optional)
  preemph_coeff: 0.97  # Pre-emphasis
  window_type: povey  # povey, hanning, hamming
  dither: 0.0
  snip_edges: false
  remove_dc_offset: true

  # Mel filterbank (optional)
  low_freq: 20.0
  high_freq: -400.0  # -400 = nyquist - 400

  # MFCC-specific (when feature_type: mfcc)
  num_ceps: 13
  cepstral_lifter: 22
  use_energy: false

  # Feature computation
  storage_path: null  # null = in-memory
  num_jobs: 1  # Parallel jobs
  progress_bar: true

datasets:
  - name: ami
"""
TRAINING = """
training:
  # Basic settings
  epochs: 50
  batch_size: 32
  random_seed: 42

  # Optimizer
  optimizer:
    type: adamw
    lr: 2e-4
    weight_decay: 0.01
    betas: [0.9, 0.999]

  # Scheduler
  scheduler:
    type: cosine
    min_lr: 1e-6
    warmup_steps: 1000

  # Training behavior
  gradient_clipping: 1.0
  gradient_accumulation_steps: 4
  mixed_precision: true

  # Performer-specific
  feature_redraw_interval: 100
  fixed_projection: false

  # Loss configuration
  loss:
    main: cross_entropy
    label_smoothing: 0.1
    auxiliary:
      norm_reg: 0.1

  # Validation
  validation:
    interval: 500
    batch_size: 64

  # Early stopping
  early_stopping:
    patience: 5
    metric: val_loss
    min_delta: 0.001
    mode: min

  # Checkpointing
  checkpoint:
    save_dir: ./checkpoints
    interval: 1000
    save_total_limit: 5
    resume: null

  # Logging (via Accelerate)
  logging:
    interval: 50
    tensorboard: true
    wandb: true
    wandb_project: my-project
    log_metrics: [loss, accuracy]

  # Performance
  performance:
    num_workers: 4
    pin_memory: true

  # Diarization settings
  eval_knobs:
    label_type: binary  # binary, speaker_id, or custom
    max_duration: null  # for dynamic bucketing
"""
MINIMAL = """
training:
  epochs: 10
  batch_size: 32

  optimizer:
    type: adamw
    lr: 1e-4

  scheduler:
    type: cosine
    min_lr: 1e-6

  checkpoint:
    save_dir: ./checkpoints
    interval: 1000
"""
