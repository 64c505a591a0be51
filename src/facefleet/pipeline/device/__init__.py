"""From bytes to embeddings on one device: pictures, candidates and chips never leave it. Imports PyTorch."""
