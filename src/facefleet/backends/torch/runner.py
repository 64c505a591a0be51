"""A network through PyTorch: one compiled module a batch bucket, replayed as a CUDA graph where there is a device.

Owns the module on its device, one slot of buffers an instance and bucket, and the compile cache. Batches are padded
up to the next bucket and split above the largest, so that a run never meets a shape it has not been warmed for.
Face embedders in fp16 run as chains of fused convolutions (`fused`); every other network, or size of picture, is
compiled by Inductor. On the CPU the module runs uncompiled: right, and slow.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import queue
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from facefleet.backends.base import InputContract, Runner, RunnerOptions
from facefleet.backends.buckets import BUCKETS, cut
from facefleet.backends.faults import device_error
from facefleet.backends.timing import COMPUTE, HOST, TRANSFER_IN, TRANSFER_OUT, WAIT, active, note, note_rows, part
from facefleet.backends.torch.bound import BoundNetwork
from facefleet.backends.torch.importer import module_from_onnx
from facefleet.backends.torch.widen import widen
from facefleet.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from facefleet.types import F32Array, U8Array

if TYPE_CHECKING:
    from facefleet.backends.torch.fused.network import FusedNetwork

__all__ = ["BUCKETS", "PictureNetwork", "TorchRunner"]
_log = logging.getLogger(__name__)
_CACHE, _NETWORK, _KERNELS = "compile-cache.bin", "network.onnx", "narrow-kernels.zip"
_ANY_SIZE = (640, 640)


class PictureNetwork(torch.nn.Module):
    """Channel order, normalization and the network, which casts for itself where its graph says so.

    Args:
        network: Imported.
        contract: How pictures become its input.
        raw: Whether it does so itself, and reads the pictures.
    """

    def __init__(self, network: torch.nn.Module, contract: InputContract, *, raw: bool = False) -> None:
        super().__init__()
        self.network, self._raw = network, raw
        order = [0, 1, 2] if contract.color == "rgb" else [2, 1, 0]
        self.reverse = order != [0, 1, 2]
        scale = 1 / torch.tensor(contract.std, dtype=torch.float32)
        self.register_buffer("scale", scale.view(1, 3, 1, 1))
        self.register_buffer("shift", (-torch.tensor(contract.mean) * scale).view(1, 3, 1, 1))

    def normalized(self, pictures: Tensor) -> Tensor:
        """(n, h, w, 3) uint8 in; what the network reads."""
        if self._raw:
            return pictures
        images = pictures.permute(0, 3, 1, 2).float()
        if self.reverse:
            images = images.flip(1)
        return images * self.scale + self.shift

    def forward(self, pictures: Tensor) -> tuple[Tensor, ...]:
        """(n, h, w, 3) uint8 in; outputs in the order of the graph."""
        return tuple(self.network(self.normalized(pictures)))


class TorchRunner(Runner):
    """A network on the CPU or a CUDA device through PyTorch; see `Runner`."""

    _names: tuple[str, ...] = ()
    _module: torch.nn.Module | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in the order of the model."""
        return self._names

    def _open_impl(self) -> None:
        import onnx

        self._device = _device(self.options)
        if self._device.type == "cuda" and self.options.precision == "fp32":  # as it says, not TF32's ten bits
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        try:
            proto = onnx.load(self._graph_file())
        except Exception as error:  # protobuf's exceptions share no base class
            raise BackendError(f"torch refuses {self.model.name}: not an ONNX file ({type(error).__name__})") from error
        self._names = tuple(value.name for value in proto.graph.output)
        network = module_from_onnx(proto)
        self._graphs: dict[tuple[int, int, int], queue.SimpleQueue[_Slot]] = {}
        self._compiled: Any = None
        self._fused = self._recognized(network)
        raw = False
        if self._fused is None and self._device.type == "cuda" and self.options.precision != "fp32":
            if widen(proto):
                network = module_from_onnx(proto)
            raw = self._narrowed(network)
        self._module = PictureNetwork(network, self.contract, raw=raw).eval()
        self._depthwise = any(_groups(node) > 1 for node in proto.graph.node)
        if self._fused is None:
            self._module = self._on_device()
        if self._device.type == "cuda" and not self.options.eager:
            for height, width in self.options.warm:
                for bucket in reversed(self._buckets()):  # the largest first: what follows fits into its memory
                    self._slots(bucket, height, width)
        else:
            torch.set_num_threads(max(1, self.options.threads))

    def _graph_file(self) -> Path:
        """The graph of the engine, which may have been lowered layer by layer; else the one that was given."""
        saved = self.model if self.options.engine is None else self.options.engine / _NETWORK
        return saved if saved.is_file() else self.model

    def _recognized(self, network: torch.fx.GraphModule) -> FusedNetwork | None:
        """The network as fused convolutions, if it is of that kind and asked for in fp16 on a CUDA device."""
        if (
            self._device.type != "cuda"
            or self.options.precision != "fp16"
            or not self.options.warm
            or self.options.eager
        ):
            return None
        if importlib.util.find_spec("triton") is None:
            _log.warning("triton is not installed: %s runs through the general path", self.model.name)
            return None
        from facefleet.backends.torch.fused.match import Unmatched, plan_of
        from facefleet.backends.torch.fused.network import FusedNetwork

        plan = plan_of(network, self.contract, self.options.warm[0], low=torch.float16)
        if isinstance(plan, Unmatched):
            _log.info("%s runs through the general path: %s", self.model.name, plan.reason)
            return None
        return FusedNetwork(plan, self._device, self.options.engine)

    def _narrowed(self, network: torch.fx.GraphModule) -> bool:
        """Let kernels of ours run what cuDNN is slow at; whether the network reads pictures as they are after that."""
        if self.options.eager or importlib.util.find_spec("triton") is None:
            return False
        from facefleet.backends.torch.narrow import narrow_convolutions

        size = self.options.warm[0] if self.options.warm else _ANY_SIZE
        saved = None if self.options.engine is None else self.options.engine / _KERNELS
        if saved is not None and saved.is_file():
            from facefleet.backends.torch.fused.kernel_files import restore

            restore(saved.read_bytes())
        return narrow_convolutions(network, self.contract, size)

    def _on_device(self) -> torch.nn.Module:
        assert self._module is not None
        return self._module.to(self._device).to(memory_format=torch.channels_last)

    def _general(self) -> Any:  # noqa: ANN401  # a callable module
        """The module, compiled at its first run of each bucket.

        Networks of plain convolutions are tuned kernel by kernel. Depthwise ones are not: tuning takes seconds for
        each of their many small layers, and a replayed graph leaves little to gain.
        """
        if self._compiled is None:
            from torch._inductor import select_algorithm

            self._module = self._on_device()
            if self.options.compiling == "none":
                self._compiled = self._module
                return self._compiled
            self._load_cache()
            select_algorithm.PRINT_AUTOTUNE = False
            torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, 64)
            tuned = self.options.compiling == "tune" and not self._depthwise
            mode = "max-autotune-no-cudagraphs" if tuned else "default"
            self._compiled = torch.compile(self._module, dynamic=False, mode=mode)
        return self._compiled

    def _close_impl(self) -> None:
        self._module = self._compiled = self._fused = None
        self._graphs.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _buckets(self) -> list[int]:
        """Those inside a profile, where there are any."""
        spans = [(least[0], most[0]) for least, _, most in self.options.profiles]
        inside = [bucket for bucket in BUCKETS if any(low <= bucket <= high for low, high in spans)]
        return inside or [bucket for bucket in BUCKETS if bucket <= self.options.max_batch]

    def _run_impl(self, pictures: U8Array) -> tuple[F32Array, ...]:
        parts, start = [], 0
        for count, bucket in cut(len(pictures), self._buckets()):
            parts.append(self._run_part(pictures[start : start + count], bucket))
            start += count
        return parts[0] if len(parts) == 1 else tuple(np.concatenate(outputs) for outputs in zip(*parts, strict=True))

    def _run_part(self, pictures: U8Array, bucket: int) -> tuple[F32Array, ...]:
        height, width = pictures.shape[1:3]
        with torch_errors(self.model.name):
            if self._device.type != "cuda" or self.options.eager:
                assert self._module is not None
                with part(COMPUTE), torch.inference_mode():
                    outputs = self._module(torch.from_numpy(pictures).to(self._device))
                return tuple(output.cpu().numpy() for output in outputs)
            slots = self._slots(bucket, height, width)
            with part(WAIT):
                slot = slots.get()
            try:
                return slot.run(pictures)
            finally:
                slots.put(slot)

    def _slots(self, bucket: int, height: int, width: int) -> queue.SimpleQueue[_Slot]:
        key = (bucket, height, width)
        if key not in self._graphs:
            slots: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
            fused = self._fused if self._fused is not None and (height, width) == self._fused.size else None
            for lane in range(self.options.instances):
                module = fused.bucket(bucket) if fused is not None else self._general()
                slots.put(_Slot(module, key, self._device, self.options, lane))
            self._graphs[key] = slots
        return self._graphs[key]

    @property
    def device(self) -> torch.device:
        """Where the network is; known once opened."""
        return self._device

    def bind(self, batch: int, height: int, width: int) -> BoundNetwork:
        """The network for `batch` pictures on buffers of its own, besides those of `run`; made now.

        Raises:
            OutOfMemoryError: They do not fit.
            InferenceError: The runtime failed.
        """
        with torch_errors(self.model.name):
            if self._device.type != "cuda":
                assert self._module is not None
                module: Any = self._module
            else:
                fused = self._fused if self._fused is not None and (height, width) == self._fused.size else None
                module = fused.bucket(batch) if fused is not None else self._general()
            return BoundNetwork(module, (batch, height, width, 3), self._device, capture=self.options.cuda_graphs)

    def layer_milliseconds(self, picture: U8Array) -> dict[str, float]:
        """See `Runner`; of the network as imported, without what compiling fuses."""
        import copy

        from facefleet.backends.torch.layers import layer_times

        assert isinstance(self._module, PictureNetwork)
        with torch_errors(self.model.name):  # a copy: wherever this runner keeps its own, and in whatever form
            module = copy.deepcopy(self._module).to(self._device).to(memory_format=torch.channels_last)
            return layer_times(module.network, module.normalized, torch.from_numpy(picture), self._device)

    def _load_cache(self) -> None:
        saved = None if self.options.engine is None else self.options.engine / _CACHE
        if saved is not None and saved.is_file():
            torch.compiler.load_cache_artifacts(saved.read_bytes())

    def _save_impl(self, folder: Path) -> None:
        import shutil

        shutil.copyfile(self._graph_file(), folder / _NETWORK)
        if self._fused is not None:
            self._fused.save(folder)
        if self._compiled is not None and self._device.type == "cuda":
            from facefleet.backends.torch.fused.kernel_files import archive
            from facefleet.backends.torch.narrow_ops import compiled

            if hashes := compiled():
                (folder / _KERNELS).write_bytes(archive(hashes))
        if self._compiled is not None and self.options.compiling != "none":
            artifacts = torch.compiler.save_cache_artifacts()
            if artifacts is not None:
                (folder / _CACHE).write_bytes(artifacts[0])


class _Slot:
    """Buffers, a stream and a captured graph for one bucket; used by one run at a time."""

    def __init__(
        self,
        module: Any,  # noqa: ANN401  # a callable module
        key: tuple[int, int, int],
        device: torch.device,
        options: RunnerOptions,
        lane: int,
    ) -> None:
        bucket, height, width = key
        self._bucket, self._options, self._lane = bucket, options, lane
        self._bound = BoundNetwork(module, (bucket, height, width, 3), device, capture=options.cuda_graphs)
        self._stream, self._graph = self._bound.enqueue.stream, self._bound.enqueue.graph
        self._input = self._bound.input
        self._done = torch.cuda.Event(blocking=not options.spin_wait)
        self._pinned = torch.zeros(self._input.shape, dtype=torch.uint8, pin_memory=True)
        self._results = [torch.empty(o.shape, dtype=o.dtype, pin_memory=True) for o in self._bound.outputs]

    def run(self, pictures: U8Array) -> tuple[F32Array, ...]:
        count = len(pictures)
        note_rows(self._bucket)
        marks = _Marks(self._stream, self._lane) if active() is not None else None
        with part(HOST, self._lane):
            self._pinned[:count].copy_(torch.from_numpy(pictures))
        with torch.cuda.stream(self._stream), torch.inference_mode():
            if marks is not None:
                marks.begin()
            if self._options.transfers:
                self._input[:count].copy_(self._pinned[:count], non_blocking=True)
            if marks is not None:
                marks.add(TRANSFER_IN)
            outputs = self._bound.enqueue()
            if marks is not None:
                marks.add(COMPUTE)
            if self._options.transfers:
                for result, output in zip(self._results, outputs, strict=True):
                    result[:count].copy_(output[:count], non_blocking=True)
            if marks is not None:
                marks.add(TRANSFER_OUT)
            self._done.record(self._stream)
            self._done.synchronize()
        if marks is not None:
            marks.tell()
        with part(HOST, self._lane):
            return tuple(result[:count].numpy().copy() for result in self._results)


class _Marks:
    """Events of the device between the parts of one run; only while somebody measures."""

    def __init__(self, stream: Any, lane: int) -> None:  # noqa: ANN401  # a torch.cuda.Stream
        self._stream, self._lane = stream, lane
        self._events: list[Any] = []
        self._names: list[str] = []
        self._began_s = 0.0

    def begin(self) -> None:
        """The first part begins."""
        self._began_s = time.perf_counter()
        self.add("")

    def add(self, name: str) -> None:
        """A part of this name ends here."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._events.append(event)
        self._names.append(name)

    def tell(self) -> None:
        """Note the parts; the stream has been waited for. They are laid so that the last one ends now."""
        spans = [first.elapsed_time(second) / 1000 for first, second in pairwise(self._events)]
        start_s = max(self._began_s, time.perf_counter() - sum(spans))
        for name, seconds in zip(self._names[1:], spans, strict=True):
            note(name, start_s, seconds, self._lane)
            start_s += seconds


def _groups(node: Any) -> int:  # noqa: ANN401  # a NodeProto
    return next((int(each.i) for each in node.attribute if each.name == "group"), 1) if node.op_type == "Conv" else 1


def _device(options: RunnerOptions) -> torch.device:
    if options.device == "cpu":
        if options.precision == "fp16":
            raise BackendUnavailableError("fp16 needs a CUDA device", hint="use precision=fp32 or bf16 on the CPU")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"device {options.device!r}: PyTorch sees no CUDA device",
            hint="install a CUDA build of torch, or device=cpu",
        )
    return torch.device(options.device)


@contextlib.contextmanager
def torch_errors(name: str) -> Iterator[None]:
    """PyTorch's exceptions as ours."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(f"{name}: the device has no memory left ({error})") from error
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, BackendError):
            raise
        # torch.AcceleratorError has CUDA's number; older versions say it in words only.
        code = getattr(error, "error_code", None)
        raise device_error(f"torch failed on {name}", code=code, message=str(error)) from error
