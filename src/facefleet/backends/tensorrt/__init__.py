"""TensorRT 10, TensorRT 11 and TensorRT-RTX through one code: engines are built anywhere, and run on a GPU."""

from facefleet.backends.tensorrt.binding import Binding, load_binding
from facefleet.backends.tensorrt.build import TensorRtOptions, build_plan
from facefleet.backends.tensorrt.engine import Engine, Tensor, load_engine

__all__ = ["Binding", "Engine", "Tensor", "TensorRtOptions", "build_plan", "load_binding", "load_engine"]
