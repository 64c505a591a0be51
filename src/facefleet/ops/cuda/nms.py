"""Non-maximum suppression of many pictures at once, with the result of the greedy one.

Source: Zheng et al., "Enhancing geometric factors in model learning and inference for object detection and instance
segmentation", IEEE Transactions on Cybernetics 52(8), 2022, section IV ("Cluster-NMS"): a box is kept unless a kept,
stronger box overlaps it; starting with all of them kept, this is repeated until nothing changes, which gives greedy
suppression after at most as many rounds as the longest chain of boxes that overlap one after the other.
"""

from __future__ import annotations

import torch

from facefleet.ops.cuda.launch import has_kernels

_ROUNDS = 24


def nms(boxes: torch.Tensor, valid: torch.Tensor, iou: float) -> torch.Tensor:
    """Which boxes stay.

    Args:
        boxes: (n, k, 4) float32 x1 y1 x2 y2, strongest first.
        valid: (n, k) bool; others are left out.
        iou: A box is dropped when its intersection over union with a stronger kept one is above this.

    Returns:
        (n, k) bool. On a CUDA device without Triton, chains of more than 24 boxes, each dropped by the one before, end
        undecided: no such chain has been seen, faces are rarely five deep.
    """
    if has_kernels(boxes):
        return _greedy(boxes, valid, iou)
    x1, y1, x2, y2 = boxes.unbind(-1)
    area = (x2 - x1) * (y2 - y1)
    width = torch.minimum(x2[:, :, None], x2[:, None]) - torch.maximum(x1[:, :, None], x1[:, None])
    height = torch.minimum(y2[:, :, None], y2[:, None]) - torch.maximum(y1[:, :, None], y1[:, None])
    overlap = width.clamp(min=0) * height.clamp(min=0)
    hit = overlap > iou * (area[:, :, None] + area[:, None] - overlap)
    count = boxes.shape[1]
    stronger = torch.ones(count, count, dtype=torch.bool, device=boxes.device).tril(-1)  # row: the weaker
    hit = hit & stronger & valid[:, :, None] & valid[:, None]
    kept = valid
    for _ in range(_ROUNDS if boxes.is_cuda else count):
        before, kept = kept, valid & ~(hit & kept[:, None]).any(dim=2)
        if not boxes.is_cuda and torch.equal(before, kept):
            break
    return kept


def _greedy(boxes: torch.Tensor, valid: torch.Tensor, iou: float) -> torch.Tensor:
    """By a kernel that goes through the boxes of each picture one by one, as far as there are any."""
    from facefleet.ops.cuda import kernels

    pictures, count = valid.shape
    kept = torch.empty((pictures, count), dtype=torch.uint8, device=valid.device)
    taken = valid.contiguous().view(torch.uint8)
    places = 1 << (count - 1).bit_length()
    kernels.nms[(pictures,)](boxes.contiguous(), taken, kept, count, iou, COUNT=places, num_warps=4)
    return kept.view(torch.bool)
