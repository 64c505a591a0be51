"""Pure array functions on pictures, boxes and vectors; numpy and OpenCV, no state, safe in any thread."""

from facefleet.ops.align import TEMPLATE_112, alignment_matrices, box_matrices, warp_chips
from facefleet.ops.letterbox import Letterbox, letterbox, plan_letterbox
from facefleet.ops.nms import nms
from facefleet.ops.quality import blur_scores, pose_degrees
from facefleet.ops.vector import l2_normalize

__all__ = [
    "TEMPLATE_112",
    "Letterbox",
    "alignment_matrices",
    "blur_scores",
    "box_matrices",
    "l2_normalize",
    "letterbox",
    "nms",
    "plan_letterbox",
    "pose_degrees",
    "warp_chips",
]
