"""``speechbrain.utils.metric_stats``: metrics, as brainlib has it."""

from brainlib.compat.fallback import installed
from brainlib.metrics import EER, BinaryMetricStats, ClassificationStats, ErrorRateStats, MetricStats, minDCF

__all__ = ["EER", "BinaryMetricStats", "ClassificationStats", "ErrorRateStats", "MetricStats", "minDCF"]

__getattr__ = installed(__name__)
