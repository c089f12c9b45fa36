"""Which batches were for training, judging by their order between evaluations and backward passes."""

from typing import Any, NamedTuple

KIND = "_perfkit_kind"  # an attribute of a loader, if known: `id` is slow where audit hooks are set
TRAINING, EVALUATION = "training", "evaluation"


class Fetched(NamedTuple):
    """A batch of a loader; `is_first`: of an epoch."""

    loader: Any
    samples: int
    is_first: bool


class BatchLedger:
    """Records batches, calls that evaluate, and backward passes, in their order."""

    def __init__(self) -> None:
        self._batches: list[Fetched] = []  # since the last backward pass
        self._before_evaluation = 0  # how many of them came before the last call of an evaluation

    def is_evaluating(self, loader: Any) -> bool:
        """Whether its next batch is probably for an evaluation."""
        kind = loader.__dict__.get(KIND)
        return bool(kind == EVALUATION or (kind is None and self._before_evaluation > 0))

    def fetch(self, loader: Any, samples: int, is_first: bool) -> None:
        self._batches.append(Fetched(loader, samples, is_first))

    def evaluate(self) -> None:
        self._before_evaluation = len(self._batches)

    def backward(self) -> tuple[list[Fetched], list[Fetched]]:
        """The batches of the training and those of evaluations, since the last backward pass.

        A step takes one batch of a loader. So if the last loader gave several, all before the last call of an
        evaluation, these are the evaluation's. A single one may be trained on, with those of other loaders.
        """
        batches = self._batches
        before = self._before_evaluation
        self._batches = []
        self._before_evaluation = 0
        if len(batches) == 1:  # as in most steps
            batches[0].loader.__dict__[KIND] = TRAINING
            return batches, []
        of_last = [batch for batch in batches if batch.loader is batches[-1].loader]
        if len(batches) == len({id(batch.loader) for batch in batches}) == before:
            before = 0  # one batch of each loader, as where a teacher gets them first
        is_last_trained_on = len(of_last) == 1 or before < len(batches)
        training = list[Fetched]()
        evaluation = list[Fetched]()
        for number, batch in enumerate(batches):
            is_of_last = is_last_trained_on and batch.loader is batches[-1].loader
            is_known = batch.loader.__dict__.get(KIND) == TRAINING
            if number >= before or is_of_last or is_known:
                batch.loader.__dict__[KIND] = TRAINING
                training.append(batch)
            else:
                batch.loader.__dict__[KIND] = EVALUATION
                evaluation.append(batch)
        return training, evaluation
