"""Quality of recordings: measures for every corpus, and the score of recordings of a voice."""
