"""Where a step ends, for optimizers of every kind."""

from perfkit.scripts.steps import Step, Steps


class Seen:
    """A script's steps, driven by hand."""

    def __init__(self):
        self.steps: list[Step] = []
        self.counter = Steps(self.steps.extend)
        self.counter.begin()

    def fetched(self, samples: int):
        self.counter.now.samples += samples

    def samples(self) -> list[int]:
        return [step.samples for step in self.steps]


def test_the_first_step_is_handed_on_with_the_second():
    seen, optimizer = Seen(), object()
    for samples in (8, 9, 10):
        seen.fetched(samples)
        seen.counter.optimizer_stepped(optimizer)
    assert seen.samples() == [8, 9, 10]
    assert seen.counter.count == 3
    assert all(step.seconds > 0 for step in seen.steps)


def test_the_last_optimizer_of_a_cycle_ends_a_step():
    seen, one, other = Seen(), object(), object()
    for samples in (8, 9, 10):
        seen.fetched(samples)
        seen.counter.optimizer_stepped(one)
        seen.counter.optimizer_stepped(other)
    assert seen.samples() == [8, 9, 10]


def test_an_optimizer_that_shows_up_later_ends_a_step_from_then_on():
    seen, critic, generator = Seen(), object(), object()
    for _ in range(2):  # two steps of the critic to one of the generator, but for a longer start
        for _ in range(3):
            seen.fetched(1)
            seen.counter.optimizer_stepped(critic)
        seen.counter.optimizer_stepped(generator)
    seen.fetched(1)
    seen.counter.optimizer_stepped(critic)
    seen.counter.optimizer_stepped(generator)
    assert seen.samples() == [1, 1, 1, 3, 1]


def test_without_a_loader_the_model_s_input_counts():
    seen, optimizer = Seen(), object()
    for _ in range(2):
        seen.counter.now.forward_samples += 4
        seen.counter.now.forward_tokens += 256
        seen.counter.optimizer_stepped(optimizer)
    assert [(step.samples, step.tokens) for step in seen.steps] == [(4, 256), (4, 256)]


def test_what_happens_beside_is_marked_in_its_step_only():
    seen, optimizer = Seen(), object()
    for step in range(4):
        if step == 2:
            seen.counter.now.marks.add("evaluation")
        seen.counter.optimizer_stepped(optimizer)
    assert [set(step.marks) for step in seen.steps] == [set(), set(), {"evaluation"}, set()]


def test_a_backward_pass_that_is_a_step_ends_when_something_else_begins():
    seen = Seen()
    for samples in (8, 9):
        seen.fetched(samples)
        seen.counter.backward_is_step()
        assert len(seen.steps) == seen.counter.count
        seen.counter.begin()
    assert seen.samples() == [8, 9]
