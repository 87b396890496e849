"""What recipes name: losses, callbacks, optimizers and schedules. No torch in this file, since names are looked up when
a recipe is read.

Other packages add theirs by entry points in the groups named here, plug-in files by `register`.
"""

from __future__ import annotations

from typing import Any

from phonate.config.registry import Registry


def _of(module: str, **names: str) -> dict[str, str]:
    return {name: f"{module}:{target}" for name, target in names.items()}


_LOSSES = _of(
    "phonate.nn.losses",
    bce="BCELoss",
    bce_with_logits="BCEWithLogitsLoss",
    contrastive="ContrastiveLoss",
    cross_entropy="CrossEntropyLoss",
    focal="FocalLoss",
    huber="HuberLoss",
    kl_div="KLDivLoss",
    l1="L1Loss",
    mae="L1Loss",
    label_smoothing="LabelSmoothingLoss",
    mse="MSELoss",
    reconstruction="MSELoss",
    multi_resolution_stft="MultiResolutionSTFTLoss",
    stft="MultiResolutionSTFTLoss",
    nll="NLLLoss",
    norm_reg="NormRegLoss",
    perceptual="PerceptualLoss",
    smooth_l1="SmoothL1Loss",
    spectral="SpectralLoss",
)
LOSSES: Registry[Any] = Registry("loss", _LOSSES, suffix="loss", group="phonate.losses")
"""Name -> a module whose forward(outputs, targets, mask=None) returns (sum, count) or a scalar mean."""

_CALLBACKS = _of(
    "phonate.training.callbacks",
    dynamic_lr="DynamicLRCallback",
    early_stopping="EarlyStoppingCallback",
    feature_redraw="FeatureRedrawCallback",
    freeze_layers="FreezeLayersCallback",
    gradient_clipping="GradientClippingCallback",
    lr_monitor="LRMonitorCallback",
    pruning="PruningCallback",
)
CALLBACKS: Registry[Any] = Registry("callback", _CALLBACKS, suffix="callback", group="phonate.callbacks")
"""Name -> a subclass of `Callback`."""

_OPTIMIZERS = _of(
    "phonate.training.optimizers",
    adadelta="adadelta",
    adagrad="adagrad",
    adam="adam",
    adamax="adamax",
    adamw="adamw",
    rmsprop="rmsprop",
    sgd="sgd",
    lion="Lion",
)
OPTIMIZERS: Registry[Any] = Registry("optimizer", _OPTIMIZERS, group="phonate.optimizers")
"""Name -> a function or class that takes named parameters and the settings it supports as keywords."""

_SCHEDULES = _of(
    "phonate.training.schedules",
    constant="ConstantSchedule",
    cosine="CosineSchedule",
    cosine_restarts="CosineRestartsSchedule",
    exponential="ExponentialSchedule",
    linear="LinearSchedule",
    onecycle="OneCycleSchedule",
    plateau="PlateauSchedule",
    step="StepSchedule",
)
SCHEDULES: Registry[Any] = Registry("schedule", _SCHEDULES, suffix="schedule", group="phonate.schedules")
"""Name -> a subclass of `Schedule`."""
