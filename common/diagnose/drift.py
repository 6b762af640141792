"""What rounding alone does to the weights in a few steps."""

from collections.abc import Iterable, Mapping

import numpy as np

from common.diagnose.side_run import Run
from common.training.schedule import compute_learning_rate


class Drift:
    """By how much a run's weights may be off after each step, if its gradients are off by rounding.

    gradients: of the first step, by parameter. rounding: the norm of what rounding makes each differ by. Adam divides
    an element by its own size: elements that are nothing but rounding move at random, by the learning rate at most.
    """

    def __init__(self, run: Run, gradients: Mapping[str, np.ndarray], rounding: Mapping[str, float]) -> None:
        self._slopes = {name: float(np.linalg.norm(each)) for name, each in gradients.items()}
        self._sizes = [{name: float(np.linalg.norm(each)) for name, each in s.weights.items()} for s in run.states]
        self._moved = [dict.fromkeys(rounding, 0.0)]
        settings, moved = run.config.optimizer, dict[str, np.ndarray | float]()
        for batch, state in zip(run.batches, run.states[1:], strict=False):
            rate = compute_learning_rate(run.config, batch.step)
            for name, norm in rounding.items():
                weight = state.weights[name]
                each = norm / weight.size**0.5  # of an element
                second = state.slots.get(f"exp_avg_sq.{name}")
                if second is None:
                    change = np.full(weight.shape, each / (1 - (settings.momentum or 0.0)))
                else:
                    root = np.sqrt(second / (1 - (settings.beta2 or 0.0) ** batch.step)) + (settings.epsilon or 0.0)
                    change = np.where(second > 0, np.minimum(1.0, each / np.where(second > 0, root, 1.0)), 0.0)
                moved[name] = moved.get(name, 0.0) + rate * change
            self._moved.append({name: float(np.linalg.norm(each)) for name, each in moved.items()})

    def of(self, steps: int, name: str) -> float:
        """Of a parameter after some steps, relative to its norm; of a moving statistic that of all parameters."""
        moved, sizes = self._moved[steps], self._sizes[steps]
        if name in moved:
            return moved[name] / sizes[name] if sizes[name] else 0.0
        return self._total(moved.values()) / (self._total(sizes[each] for each in moved) or 1.0)

    def of_loss(self, steps: int, loss: float) -> float:
        """Of a loss after some steps, relative to it."""
        change = sum(self._slopes[name] * each for name, each in self._moved[steps].items())
        return change / abs(loss) if loss else 0.0

    @staticmethod
    def _total(norms: Iterable[float]) -> float:
        return float(np.linalg.norm([*norms]))
