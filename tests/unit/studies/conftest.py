import pytest

from perfkit.studies.planning import plan
from tests.support.plans import on
from tests.unit.studies.fakes import FakeMachine, install

RATES = {8: 100.0, 16: 150.0, 32: 120.0, 64: 200.0}


@pytest.fixture
def machine(monkeypatch, data_dir):
    return install(monkeypatch, FakeMachine(lambda recipe: RATES[recipe.batch_size]))


@pytest.fixture
def where(data_dir):
    return on(plan("cifar_resnet18", "smoke", ["baseline"], device="cpu"), seed=7)
