"""From probabilities in windows of a recording to the turns of its speakers."""
