"""Dialogues: texts and conversations, in files and as tokens."""
