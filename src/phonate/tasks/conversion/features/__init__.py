"""What a VoiceTransformer reads of a recording: content and prosody."""
