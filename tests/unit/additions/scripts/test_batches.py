"""Which batches were for training: what scripts fetch, evaluate and train on, in their order."""

from types import SimpleNamespace

import pytest

from perfkit.additions.scripts.batches import EVALUATION, KIND, BatchLedger


@pytest.fixture
def ledger():
    return BatchLedger()


@pytest.fixture
def loaders():
    """By their letters: training, held-out data, a second training loader."""
    return {name: SimpleNamespace(name=name) for name in "THU"}


def told(ledger, loaders, happened):
    """The batches of each step: `TH/U` are three fetches, the first two before a call that evaluates; `!` a backward pass."""
    steps = []
    for one in happened:
        if one == "/":
            ledger.evaluate()
        elif one == "!":
            steps.append(tuple("".join(batch.loader.name for batch in part) for part in ledger.backward()))
        else:
            ledger.fetch(loaders[one], 8, False)
    return steps


@pytest.mark.parametrize(
    ("happened", "steps"),
    [
        ("T!T!", [("T", ""), ("T", "")]),
        ("TU!TU!", [("TU", ""), ("TU", "")]),  # labelled data and others
        ("T!!T!", [("T", ""), ("", ""), ("T", "")]),  # a batch for two losses
        ("H/H/H/T!", [("T", "HHH")]),  # an evaluation before the first step
        ("H/H/T!", [("T", "HH")]),
        ("T!H/H/T!", [("T", ""), ("T", "HH")]),
        ("T/!", [("T", "")]),  # a discriminator sees it first, without gradients
        ("TU/!TU/!", [("TU", ""), ("TU", "")]),  # a teacher labels one of them
        ("T!TH/H/!", [("T", ""), ("T", "HH")]),  # the next batch was fetched before the evaluation
        ("T!H/!", [("T", ""), ("H", "")]),  # one batch of another loader, as for meta-learning
        ("H/H/T!H/H/!", [("T", "HH"), ("", "HH")]),
        ("!", [("", "")]),  # no loader at all
    ],
)
def test_batches_are_told_by_what_comes_after_them(ledger, loaders, happened, steps):
    assert told(ledger, loaders, happened) == steps


def test_a_loader_of_which_nothing_is_known_evaluates_as_the_one_before_it(ledger, loaders):
    assert not ledger.is_evaluating(loaders["T"])
    told(ledger, loaders, "T!H/")
    assert ledger.is_evaluating(loaders["U"]) and not ledger.is_evaluating(loaders["T"])
    told(ledger, loaders, "H/T!")
    assert not ledger.is_evaluating(loaders["U"]), "a step has begun"
    assert loaders["H"].__dict__.get(KIND) == EVALUATION and ledger.is_evaluating(loaders["H"])
    assert KIND not in loaders["U"].__dict__


def test_a_batch_keeps_its_samples_and_whether_an_epoch_began_with_it(ledger, loaders):
    ledger.fetch(loaders["T"], 16, True)
    ((batch,), _) = ledger.backward()
    assert (batch.samples, batch.is_first) == (16, True)
