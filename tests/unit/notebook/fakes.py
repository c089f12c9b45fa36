"""Stand-ins for measuring: what a panel would get from a study, without a process."""

from perfkit.notebook import ladder, stage
from perfkit.results.parity import Check, Parity
from tests.unit.show.fake_runs import session


class FakeStudy:
    """In the place of the study of a ladder: does what it is given, and remembers the plans."""

    def __init__(self, monkeypatch, does=None):
        self.plans = []
        self.does = does or (lambda progress: session()[:2])
        monkeypatch.setattr(ladder, "climb", self)
        same = Parity("AMP", "bitwise", [Check("losses", True, "equal")], False, {})
        monkeypatch.setattr(ladder.PlanPanel, "_steps", lambda panel, progress=None: None)
        for module in (ladder, stage):
            monkeypatch.setattr(module, "proof", lambda *args: same)

    def __call__(self, plan, store, progress, earlier=()):
        self.plans.append(plan)
        self.earlier = earlier
        return self.does(progress)
