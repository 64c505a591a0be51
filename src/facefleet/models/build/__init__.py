"""Published ONNX graphs made batchable: rewrites, and the check that every rewrite still answers as before."""

from facefleet.models.build.dynamic import DynamicReport, dynamic_onnx
from facefleet.models.build.inspect import ModelReport, inspect_model

__all__ = ["DynamicReport", "ModelReport", "dynamic_onnx", "inspect_model"]
