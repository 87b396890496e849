"""A task with linear attention."""

from __future__ import annotations

from small_tasks import RegressionTask

from phonate.nn.settings import TransformerSettings
from phonate.nn.transformer import build_transformer

SMALL = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 2, "nb_features": 6}


class LinearTask(RegressionTask):
    """The regression by an encoder with linear attention and a decoder with causal linear attention."""

    def __init__(self, recipe=None) -> None:
        super().__init__(recipe)
        self.encoder: dict[str, object] = {}
        self.decoder: dict[str, object] = {}

    def model(self, device):
        settings = TransformerSettings(
            model_type="encoder_decoder",
            global_config=SMALL,
            encoder={"attention_type": "linear", **self.encoder},
            decoder={"attention_type": "causal_linear", **self.decoder},
        )
        return build_transformer(settings, input_dim=4).to(device)

    def loss(self, model, batch, phase):
        error = (model(batch["x"], batch["mask"])[..., :4] - batch["y"]) ** 2
        return {"mse": ((error * batch["mask"][..., None]).sum(), float(batch["frames"] * 4))}

    def loss_weights(self, step):
        return {}


def features_of(model):
    """The random features by name."""
    return {name: tensor for name, tensor in model.state_dict().items() if name.endswith("projection_ME")}
