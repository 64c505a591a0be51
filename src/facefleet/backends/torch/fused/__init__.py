"""Face embedders as a chain of fused convolutions: recognized, folded, tuned kernel by kernel, run from CUDA graphs."""
