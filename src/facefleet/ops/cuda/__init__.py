"""The functions of `facefleet.ops` for many pictures at a time, on a CUDA device: PyTorch tensors in and out.

The same names, arguments and results as the numpy ones, with a leading dimension for pictures or faces; every function
runs on any device that its tensors are on, so that they are tested against each other without a GPU. Nothing here waits
for the device. Imports PyTorch: needs the extra ``[torch]``.
"""

from facefleet.ops.cuda.align import alignment_matrices, box_matrices, warp_chips, warp_chips_into
from facefleet.ops.cuda.letterbox import letterbox, letterbox_into
from facefleet.ops.cuda.nms import nms
from facefleet.ops.cuda.pictures import Pictures, pack
from facefleet.ops.cuda.quality import blur_scores
from facefleet.ops.cuda.vector import l2_normalize

__all__ = [
    "Pictures",
    "alignment_matrices",
    "blur_scores",
    "box_matrices",
    "l2_normalize",
    "letterbox",
    "letterbox_into",
    "nms",
    "pack",
    "warp_chips",
    "warp_chips_into",
]
