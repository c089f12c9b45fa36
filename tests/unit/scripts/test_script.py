"""Where a step ends, for optimizers of every kind."""

from perfkit.scripts.script import Step, Steps


class Seen:
    """A script's steps, driven by hand."""

    def __init__(self):
        self.steps: list[Step] = []
        self.counter = Steps(self.steps.extend)
        self.counter.begin()

    def step(self, samples: int, *optimizers: object):
        self.counter.now.samples += samples
        for optimizer in optimizers:
            self.counter.optimizer_stepped(optimizer)

    def samples(self) -> list[int]:
        return [step.samples for step in self.steps]


def test_the_last_optimizer_of_a_cycle_ends_a_step_and_the_first_step_is_handed_on_with_the_second():
    for optimizers in ([object()], [object(), object()]):
        seen = Seen()
        for samples in (8, 9, 10):
            seen.step(samples, *optimizers)
        assert seen.samples() == [8, 9, 10]
        assert seen.counter.count == 3 and all(step.seconds > 0 for step in seen.steps)


def test_an_optimizer_that_shows_up_later_ends_a_step_from_then_on():
    seen, critic, generator = Seen(), object(), object()
    for _ in range(2):  # two steps of the critic to one of the generator, but for a longer start
        for _ in range(3):
            seen.step(1, critic)
        seen.step(0, generator)
    seen.step(1, critic, generator)
    assert seen.samples() == [1, 1, 1, 3, 1]
