"""Metrics: what is counted over batches and ranks, saved with the run, and asked at the end."""

from brainlib.metrics.alignment import Edit, align
from brainlib.metrics.classification import AccuracyStats, ClassificationStats
from brainlib.metrics.detection import EER, BinaryMetricStats, minDCF
from brainlib.metrics.error_rate import ErrorRateStats
from brainlib.metrics.metric import Metric
from brainlib.metrics.scores import MetricStats

__all__ = [
    "EER",
    "AccuracyStats",
    "BinaryMetricStats",
    "ClassificationStats",
    "Edit",
    "ErrorRateStats",
    "Metric",
    "MetricStats",
    "align",
    "minDCF",
]
