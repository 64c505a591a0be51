"""Networks through PyTorch: an ONNX graph imported into a torch.fx module, on the CPU or on a CUDA device."""
