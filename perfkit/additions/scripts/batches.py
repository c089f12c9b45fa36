"""Which batches were for training: told by their order between evaluations and backward passes."""

from typing import Any, NamedTuple

_KIND = "_perfkit_kind"  # kept in the loader: `id` is slow where audit hooks are set
TRAINING, EVALUATION = "training", "evaluation"


class Fetched(NamedTuple):
    """A batch of a loader; `is_first`: of an epoch."""

    loader: Any
    samples: int
    is_first: bool


class BatchLedger:
    """Notes batches, calls that evaluate, and backward passes, in their order."""

    def __init__(self) -> None:
        self._fetched: list[Fetched] = []  # since the last backward pass
        self._before_evaluation = 0  # how many of them came before an evaluation's last call

    def kind(self, loader: Any) -> str | None:
        """Whether its batches are for `TRAINING` or for `EVALUATION`, if that is known."""
        kind: str | None = loader.__dict__.get(_KIND)
        return kind

    def is_evaluating(self, loader: Any) -> bool:
        """Whether its next batch is for an evaluation, as far as can be told before it is used."""
        kind = self.kind(loader)
        return bool(kind == EVALUATION or (kind is None and self._before_evaluation > 0))

    def fetch(self, loader: Any, samples: int, is_first: bool) -> None:
        self._fetched.append(Fetched(loader, samples, is_first))

    def evaluate(self) -> None:
        self._before_evaluation = len(self._fetched)

    def backward(self) -> tuple[list[Fetched], list[Fetched]]:
        """Batches of the training and of evaluations, since the last backward pass.

        A step takes one batch of a loader. So several of the last one, all of them before an evaluation's
        last call, are the evaluation's; one alone may be trained on, too, with those that came with it.
        """
        fetched = self._fetched
        before = self._before_evaluation
        self._fetched = []
        self._before_evaluation = 0
        if len(fetched) == 1:  # as in most steps
            fetched[0].loader.__dict__[_KIND] = TRAINING
            return fetched, []
        last = [batch for batch in fetched if batch.loader is fetched[-1].loader]
        if len(fetched) == len({id(batch.loader) for batch in fetched}) == before:
            before = 0  # one batch of each, as where a teacher sees them first
        is_last_trained_on = len(last) == 1 or before < len(fetched)
        training = list[Fetched]()
        evaluation = list[Fetched]()
        for number, batch in enumerate(fetched):
            is_of_last = is_last_trained_on and batch.loader is fetched[-1].loader
            is_known = batch.loader.__dict__.get(_KIND) == TRAINING
            if number >= before or is_of_last or is_known:
                batch.loader.__dict__[_KIND] = TRAINING
                training.append(batch)
            else:
                batch.loader.__dict__[_KIND] = EVALUATION
                evaluation.append(batch)
        return training, evaluation
