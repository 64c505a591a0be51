"""Settings of an engine that are fastest within a latency target on this machine, found with few measurements."""
