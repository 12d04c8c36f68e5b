"""``speechbrain.nnet.schedulers``: what recipes call most; the others come from an installed speechbrain."""

from brainlib.compat.fallback import installed
from brainlib.update.schedules import NewBob, update_learning_rate

__all__ = ["NewBobScheduler", "update_learning_rate"]


class NewBobScheduler(NewBob):
    """`brainlib.NewBob` with SpeechBrain's word for its patience: the one thing here that is no mere re-export.

    Args:
        initial_value: the first rate.
        annealing_factor: what the rate is multiplied by.
        improvement_threshold: the relative improvement that is enough.
        patient: how many epochs without enough improvement are let pass before each annealing.

    >>> NewBobScheduler(initial_value=1.0, patient=1).patience
    1
    """

    def __init__(
        self,
        initial_value: float,
        annealing_factor: float = 0.5,
        improvement_threshold: float = 0.0025,
        patient: int = 0,
    ) -> None:
        super().__init__(initial_value, annealing_factor, improvement_threshold, patience=patient)


__getattr__ = installed(__name__)
