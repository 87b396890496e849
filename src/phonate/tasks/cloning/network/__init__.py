"""The Higgs Audio v2 model: loading, adapters, and the forward pass of training."""
