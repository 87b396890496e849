"""From a prompt to codes: sampling, the decoding loop, and the engine that serves several requests at once."""
