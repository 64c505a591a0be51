"""The gRPC front: KServe v2, with the stubs of the `tritonclient` package. Decodes no picture."""
