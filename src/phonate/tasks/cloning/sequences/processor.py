"""The files from which transformers' `AutoProcessor` makes the processor of a model: texts and recordings in, the
prompts of `tokens` out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_AUDIO = "<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>"
CHAT_TEMPLATE = (
    "<|begin_of_text|>"
    "{%- for message in messages -%}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>{{ '\\n\\n' }}"
    "{%- if message['content'] is string -%}"
    "{{ message['content'] | trim }}"
    "{%- else -%}"
    "{%- for part in message['content'] -%}"
    f"{{%- if part['type'] == 'audio' -%}}{_AUDIO}{{%- else -%}}{{{{ part['text'] | trim }}}}{{%- endif -%}}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "<|eot_id|>"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "<|start_header_id|>assistant<|end_header_id|>{{ '\\n\\n' }}<|audio_out_bos|>"
    "{%- endif -%}"
)
"""For models whose files have none: each message is a turn, an audio part the audio of it."""


def write_processor(folder: Path, tokenizer: Any, codec: str) -> None:
    """Write `tokenizer` (of transformers) with its chat template, and the configuration of the processor.

    `codec`: a folder, absolute, or a name on the hub.
    """
    tokenizer.chat_template = tokenizer.chat_template or CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    content = {
        "processor_class": "HiggsAudioV2Processor",
        "feature_extractor": {
            "feature_extractor_type": "DacFeatureExtractor",
            "feature_size": 1,
            "sampling_rate": 24000,
            "hop_length": 1,  # the codec pads by itself
        },
        "audio_tokenizer": {
            "audio_tokenizer_class": "HiggsAudioV2TokenizerModel",
            "audio_tokenizer_name_or_path": codec,
        },
    }
    (folder / "processor_config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
