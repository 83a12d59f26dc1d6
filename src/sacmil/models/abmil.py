"""AB-MIL: Attention-based Deep Multiple Instance Learning (Ilse et al. 2018), plain and gated.

The defaults are the variant that slide papers compare with (as in RRT-MIL); the options give the
authors' own (AMLab: hidden=500, dropout=0, init="torch") and the one of IBMIL (hidden=None).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from torch import Tensor, nn

from sacmil.models._base import MILModel, Output, Reference, classify_mean
from sacmil.models._checks import Fraction, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.nn.layers import ACTIVATIONS as PROJECTIONS
from sacmil.nn.layers import init_linear_, make_projection
from sacmil.nn.pooling import ACTIVATIONS, Attention

INITS = ("xavier", "torch")

_IBMIL_NOTE = (
    "IBMIL trains this model with a sigmoid per class, abmil gives a softmax; load it as ibmil for "
    "the official loss."
)

RRT_RECIPE = Recipe(
    lr=2e-4,
    weight_decay=1e-5,
    schedule="cosine",
    epochs=200,
    patience=30,
    min_epochs=130,
    monitor="val_auc",
)
"""How RRT-MIL trains it on CAMELYON16; on TCGA it waits 20 epochs, from the 70th."""

AMLAB_RECIPE = Recipe(
    lr=5e-4, weight_decay=1e-4, epochs=20, options={"hidden": 500, "dropout": 0.0, "init": "torch"}
)
"""How the authors trained it, on bags of handwritten digits (and with probabilities kept 1e-5 away
from 0 and 1, which a loss of logits does not need)."""

RECIPES: Mapping[str, Recipe] = {"paper": PAPER, "official": RRT_RECIPE, "amlab": AMLAB_RECIPE}


@register_model("abmil")
class ABMIL(MILModel):
    """AB-MIL (Ilse et al. 2018): the bag is a mean of its instances with learned weights.

    Args:
        hidden: width of the projected instance; None leaves features as they are.
        activation: after the projection: relu or gelu.
        attention_dim: width inside the attention; None means as wide as an instance.
        attention_bias: whether the layers of the attention have a bias.
        dropout: share of the projected values dropped in training.
        init: weights xavier normal with zero biases (xavier), or as torch draws them (torch).
    """

    coords_matter = False
    recipes = RECIPES

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        hidden: Size | None = 512,
        activation: Annotated[str, one_of(PROJECTIONS)] = "relu",
        attention_dim: Size | None = 128,
        attention_bias: bool = True,
        dropout: Fraction = 0.25,
        init: Annotated[str, one_of(INITS)] = "xavier",
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.project = make_projection(in_dim, hidden, activation=activation, dropout=dropout)
        dim = hidden or in_dim
        self.attention = Attention(dim, attention_dim or dim, bias=attention_bias)
        self.head = nn.Linear(dim, num_classes)
        if init == "xavier":
            init_linear_(self)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Eq. (7), (8); scores are the weights of the mean."""
        return classify_mean(self.project(features), self.attention, self.head)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of AMLab, of the common slide variant (RRT-MIL) and of IBMIL."""
        attention = {"attention.0": "attention.value", "attention.2": "attention.weight"}
        return _parse_state(state, attention)


@register_model("abmil_gated")
class GatedABMIL(MILModel):
    """Gated AB-MIL (Ilse et al. 2018): AB-MIL whose attention can also close on an instance.

    Args:
        hidden: width of the projected instance; None leaves features as they are.
        activation: of the attention's open branch: tanh, relu (as RRT-MIL) or gelu.
        attention_dim: width inside the attention; None means as wide as an instance.
        attention_bias: whether the layers of the attention have a bias (they do at AMLab).
        dropout: share of the projected values dropped in training.
        init: weights xavier normal with zero biases (xavier), or as torch draws them (torch).
        head_bias: whether the classifier has a bias (it does not in MIL_BASELINE).
    """

    coords_matter = False
    recipes = RECIPES

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        hidden: Size | None = 512,
        activation: Annotated[str, one_of(ACTIVATIONS)] = "tanh",
        attention_dim: Size | None = 128,
        attention_bias: bool = False,
        dropout: Fraction = 0.25,
        init: Annotated[str, one_of(INITS)] = "xavier",
        head_bias: bool = True,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.project = make_projection(in_dim, hidden, dropout=dropout)
        dim = hidden or in_dim
        self.attention = Attention(
            dim, attention_dim or dim, bias=attention_bias, activation=activation, gated=True
        )
        self.head = nn.Linear(dim, num_classes, bias=head_bias)
        if init == "xavier":
            init_linear_(self)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Eq. (7), (9); scores are the weights of the mean."""
        return classify_mean(self.project(features), self.attention, self.head)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of AMLab, and of the common slide variant (RRT-MIL), which has ReLU."""
        amlab = {"attention_V.0": "value", "attention_U.0": "gate", "attention_w": "weight"}
        slides = {"attention_a.0": "value", "attention_b.0": "gate", "attention_c": "weight"}
        names = {official: f"attention.{ours}" for official, ours in (amlab | slides).items()}
        found = _parse_state(state, names)
        options = found.options | {"head_bias": "head.bias" in found.state}
        # RRT-MIL's class takes ReLU unless set otherwise; the file does not show it.
        assumed = {"activation": "relu"} if "attention_a.0.weight" in state else found.assumed
        return found._replace(options=options, assumed=assumed)


def _parse_state(state: Mapping[str, Tensor], attention: Mapping[str, str]) -> Reference:
    project = {"feature_extractor_part2.0": "project.0", "feature.0": "project.0"}
    head = {"classifier.0": "head", "classifier": "head"}
    # AMLab's convolutions, part 1, are what an encoder is here.
    ours = RenamedState(
        state, {**project, **attention, **head}, ignored=["feature_extractor_part1"]
    )
    inner, dim = get_shape(ours, "attention.value.weight")
    projected = "project.0.weight" in ours
    options: dict[str, Any] = {
        "in_dim": get_shape(ours, "project.0.weight")[1] if projected else dim,
        "num_classes": get_shape(ours, "head.weight")[0],
        "hidden": dim if projected else None,
        "attention_dim": inner,
        "attention_bias": "attention.value.bias" in ours,
    }
    if "feature.0.weight" in state:
        return Reference(options, ours)
    # only the common slide variant drops anything
    assumed = {"dropout": 0.0, "init": "torch"}
    notes = () if projected or options["num_classes"] == 1 else (_IBMIL_NOTE,)
    return Reference(options, ours, assumed, notes)
