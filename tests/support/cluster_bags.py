"""Small synthetic bags for tests."""

from __future__ import annotations

from sacmil.synthetic.bags import Cluster, LabeledBag, make_synthetic_cohort


def make_cluster_bags(
    slides: int,
    *,
    seed: int,
    instances: tuple[int, int] = (400, 800),
    dim: int = 32,
    tumour_share: float = 0.1,
    clusters: int = 3,
    contrast: float = 2.0,
) -> list[LabeledBag]:
    """Return small bags whose label is the arrangement of tumour cells, not their number.

    Args:
        slides: number of slides; labels alternate.
        seed: the same seed gives the same cohort.
        instances: fewest and most per slide.
        dim: width of a feature vector.
        tumour_share: tumour instances among all.
        clusters: number of clusters on a slide of label 1.
        contrast: distance between tumour and other instances in standard deviations.
    """
    task = Cluster(
        contrast=contrast,
        zones=1,
        tumour_share=(tumour_share, tumour_share),
        clusters=clusters,
        density=1.0,
    )
    return list(make_synthetic_cohort(task, slides, seed, instances=instances, dim=dim).bags)
