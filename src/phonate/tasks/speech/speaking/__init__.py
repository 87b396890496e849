"""What a synthesiser does beside speaking a text: a service for a server, SSML, the mels of a corpus."""
