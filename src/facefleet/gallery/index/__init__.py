"""Nearest neighbors of embeddings: one interface, several kinds."""
