"""Models that come trained: a transcriber, a speaker encoder, a judge of naturalness."""
