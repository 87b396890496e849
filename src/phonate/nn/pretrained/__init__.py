"""Pretrained models of Hugging Face: loading, adapters, and the weights a checkpoint holds."""
