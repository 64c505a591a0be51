"""Whether a graph runs at the batch sizes it is wanted for, before anything is built of it.

ONNX Runtime on the CPU runs every size; the first node that fails is named, with what to change.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto

from facefleet.errors import GraphError
from facefleet.models.build.dynamic import session
from facefleet.types import F32Array

_FAILED = re.compile(r"running (\w+) node\. Name:'([^']*)'")
_CURES = {
    "Reshape": "write its batch as 0 or -1, e.g. (0, -1, C); `facefleet convert` does it for the forms it knows",
    "Expand": "take the batch of its shape from Shape of the input",
    "Concat": "one of its inputs is a constant with a batch of 1; expand it to the batch of the others",
    "Add": "one side is a constant that holds a whole batch; keep its first row",
    "Mul": "one side is a constant that holds a whole batch; keep its first row",
    "MatMul": "a Reshape before it lost the batch; export with a dynamic batch axis",
    "Gemm": "a Reshape or Flatten before it lost the batch; flatten from axis 1",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """How far the batch of a graph goes.

    Attributes:
        verified: Largest batch size that ran, with as many rows in every output; 0 if none.
        node: The node that failed, e.g. ``Reshape head/reshape``; empty if none did.
        reason: What happened and what to change; empty if nothing did.
    """

    verified: int
    node: str = ""
    reason: str = ""

    def require(self, name: str) -> None:
        """Nothing where every size ran.

        Raises:
            GraphError: A size failed; the node is named.
        """
        if self.reason:
            where = f" in {self.node}" if self.node else ""
            raise GraphError(f"{name}: a batch above {self.verified} fails{where}", hint=self.reason)


def try_batches(model: ModelProto, batches: Sequence[int], pictures: F32Array) -> Trial:
    """Run a graph at growing batch sizes.

    Args:
        model: One float32 NCHW input.
        batches: Sizes to run.
        pictures: (n, 3, h, w) float32 network inputs; repeated for larger batches.
    """
    try:
        runner = session(model)
    except Exception as error:  # the runtime's exceptions share no base class
        return Trial(0, reason=f"onnxruntime does not load it: {error}")
    name = runner.get_inputs()[0].name
    verified = 0
    for batch in sorted(set(batches)):
        inputs = np.ascontiguousarray(pictures[np.arange(batch) % len(pictures)])
        try:
            outputs = runner.run(None, {name: inputs})
        except Exception as error:  # as above
            return _failure(verified, str(error))
        for value, output in zip(runner.get_outputs(), outputs, strict=True):
            if output.ndim < 2 or len(output) != batch:
                text = f"output {value.name} has shape {output.shape} for {batch} pictures"
                return Trial(verified, reason=f"{text}: its first axis is not the batch")
        verified = batch
    return Trial(verified)


def _failure(verified: int, text: str) -> Trial:
    found = _FAILED.search(text)
    if found is None:
        return Trial(verified, reason=text.splitlines()[0][:300])
    operator, node = found.groups()
    detail = text.rpartition("Status Message:")[2].strip().splitlines()[0][:200]
    cure = _CURES.get(operator, "export again with a dynamic batch axis")
    return Trial(verified, f"{operator} {node}", f"{detail}; {cure}")
