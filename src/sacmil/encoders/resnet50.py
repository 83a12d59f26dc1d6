"""resnet50: ResNet-50 on ImageNet up to its third stage, as in the paper and in CLAM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import NetworkSource
from sacmil.encoders._weights import WeightsOrigin

if TYPE_CHECKING:
    from torch import nn

_HUB = "timm/resnet50.tv_in1k"


def _build_network() -> nn.Module:
    from sacmil.encoders._resnet import ResNet50Stage3

    return ResNet50Stage3()


ENCODERS = (
    NetworkSource(
        card=EncoderCard(
            name="resnet50",
            width=1024,
            input_px=224,
            resample="bilinear",
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            pooling="mean of the third stage's map",
            mpp=0.5,
            license="BSD-3-Clause",
            weights=f"hub {_HUB}, or torchvision's resnet50 state dict (ImageNet)",
        ),
        origin=WeightsOrigin(hub=(_HUB,)),
        build=_build_network,
        unused_prefixes=("layer4.", "fc."),
        preferred_engine="onnxruntime",
    ),
)
