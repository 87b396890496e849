"""What recipes name: losses, callbacks, optimizers and schedules. No torch in this file, since names are looked up when
a recipe is read.

Other packages add theirs by entry points in the groups named here, plug-in files by `register`.
"""

from __future__ import annotations

from typing import Any

from phonate.config.registry import Registry


def _of(module: str, **names: str) -> dict[str, str]:
    return {name: f"{module}:{target}" for name, target in names.items()}


_LOSSES = {
    **_of("phonate.nn.losses.bce", bce="BCELoss"),
    **_of("phonate.nn.losses.bce_with_logits", bce_with_logits="BCEWithLogitsLoss"),
    **_of("phonate.nn.losses.contrastive", contrastive="ContrastiveLoss"),
    **_of("phonate.nn.losses.cross_entropy", cross_entropy="CrossEntropyLoss"),
    **_of("phonate.nn.losses.focal", focal="FocalLoss"),
    **_of("phonate.nn.losses.huber", huber="HuberLoss"),
    **_of("phonate.nn.losses.kl_div", kl_div="KLDivLoss"),
    **_of("phonate.nn.losses.l1", l1="L1Loss", mae="L1Loss"),
    **_of("phonate.nn.losses.label_smoothing", label_smoothing="LabelSmoothingLoss"),
    **_of("phonate.nn.losses.mse", mse="MSELoss", reconstruction="MSELoss"),
    **_of(
        "phonate.nn.losses.multi_resolution_stft",
        multi_resolution_stft="MultiResolutionSTFTLoss",
        stft="MultiResolutionSTFTLoss",
    ),
    **_of("phonate.nn.losses.nll", nll="NLLLoss"),
    **_of("phonate.nn.losses.norm_reg", norm_reg="NormRegLoss"),
    **_of("phonate.nn.losses.perceptual", perceptual="PerceptualLoss"),
    **_of("phonate.nn.losses.smooth_l1", smooth_l1="SmoothL1Loss"),
    **_of("phonate.nn.losses.spectral", spectral="SpectralLoss"),
}
LOSSES: Registry[Any] = Registry("loss", _LOSSES, suffix="loss", group="phonate.losses")
"""Name -> a module whose forward(outputs, targets, mask=None) returns (sum, count) or a scalar mean."""

_CALLBACKS = {
    **_of("phonate.training.callbacks.dynamic_lr", dynamic_lr="DynamicLRCallback"),
    **_of("phonate.training.callbacks.early_stopping", early_stopping="EarlyStoppingCallback"),
    **_of("phonate.training.callbacks.feature_redraw", feature_redraw="FeatureRedrawCallback"),
    **_of("phonate.training.callbacks.freeze_layers", freeze_layers="FreezeLayersCallback"),
    **_of("phonate.training.callbacks.gradient_clipping", gradient_clipping="GradientClippingCallback"),
    **_of("phonate.training.callbacks.lr_monitor", lr_monitor="LRMonitorCallback"),
    **_of("phonate.training.callbacks.pruning", pruning="PruningCallback"),
}
CALLBACKS: Registry[Any] = Registry("callback", _CALLBACKS, suffix="callback", group="phonate.callbacks")
"""Name -> a subclass of `Callback`."""

_OPTIMIZERS = {
    **_of("phonate.training.optimizers.adadelta", adadelta="adadelta"),
    **_of("phonate.training.optimizers.adagrad", adagrad="adagrad"),
    **_of("phonate.training.optimizers.adam", adam="adam"),
    **_of("phonate.training.optimizers.adamax", adamax="adamax"),
    **_of("phonate.training.optimizers.adamw", adamw="adamw"),
    **_of("phonate.training.optimizers.rmsprop", rmsprop="rmsprop"),
    **_of("phonate.training.optimizers.sgd", sgd="sgd"),
    **_of("phonate.training.optimizers.lion", lion="Lion"),
}
OPTIMIZERS: Registry[Any] = Registry("optimizer", _OPTIMIZERS, group="phonate.optimizers")
"""Name -> a function or class that takes named parameters and the settings it supports as keywords."""

_SCHEDULES = {
    **_of("phonate.training.schedules.constant", constant="ConstantSchedule"),
    **_of("phonate.training.schedules.cosine", cosine="CosineSchedule"),
    **_of("phonate.training.schedules.cosine_restarts", cosine_restarts="CosineRestartsSchedule"),
    **_of("phonate.training.schedules.exponential", exponential="ExponentialSchedule"),
    **_of("phonate.training.schedules.linear", linear="LinearSchedule"),
    **_of("phonate.training.schedules.onecycle", onecycle="OneCycleSchedule"),
    **_of("phonate.training.schedules.plateau", plateau="PlateauSchedule"),
    **_of("phonate.training.schedules.step", step="StepSchedule"),
}
SCHEDULES: Registry[Any] = Registry("schedule", _SCHEDULES, suffix="schedule", group="phonate.schedules")
"""Name -> a subclass of `Schedule`."""
