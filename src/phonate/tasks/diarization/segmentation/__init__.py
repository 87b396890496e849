"""From window-level probabilities to the speaker turns of a recording."""
