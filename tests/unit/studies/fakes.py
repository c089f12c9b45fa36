"""A measuring machine without processes: children that answer at once, from a table of rates."""

import inspect
from functools import partial
from types import SimpleNamespace

from msgspec.structs import replace

from perfkit import export
from perfkit.errors import Cancelled, OutOfMemory
from perfkit.recipe import Recipe
from perfkit.studies import here, record, sides, slices
from perfkit.studies.conversation import TrainingConversation
from perfkit.worker import messages

WARMUP = messages.TimedSteps(24, 3.0, [2.0, 0.5, 0.5], [0.5, 0.1, 0.1])


class FakeMachine:
    """Starts `FakeChild`ren and remembers what they were asked: (number of the child, question)."""

    gpu = None
    """The UUID of the one that trains."""

    def __init__(self, rate=lambda recipe: 100.0):
        self.rate = rate
        self.asked = []
        self.described = []
        self.trainings = []
        self.children = []
        self.prepared = []
        """The environments of the zygotes that were started ahead."""
        self.generations = []
        """That of the zygote of each child."""
        self.history = []
        """Who was alive, each time that a process started."""
        self.fails = lambda child, question: None
        self.mechanisms = []
        self.answers = {}
        """What it answers to questions of additions."""
        self.now = 0.0
        """Its clock: starting a process takes `start_s`, a slice what its rate says."""
        self.start_s = 1.0
        self.startup_s = 1.5
        """What a training reports of its start."""
        self.compile_s = 0.0
        """What a first step takes that compiles; the later ones find what it has compiled."""
        self.has_compiled = False
        self.rate_of = lambda child: 1.0
        """A factor for each process: equal ones differ."""
        self.taken = lambda: 0.0
        """The share of the cores that others take during the next block."""

    def fail(self, question, problem, when=lambda child: True):
        """Every answer to this question is a problem, where it applies to the child."""
        self.fails = lambda child, asked: problem if asked == question and when(child) else None

    def start(self, on_progress=None, cancelled=None, timeout_s=None, environment=None, generation=0):
        self.now += self.start_s
        self.children.append(FakeChild(self, len(self.children), on_progress, cancelled))
        self.generations.append(generation)
        self.history.append(self.alive())
        return self.children[-1]

    def slices(self):
        """The children that took a slice, in the order of time."""
        return [number for number, question in self.asked if question == "slice"]

    def batch_of(self, child):
        """The batch size of what a child trains, or is about to train: its number in the order of trainings."""
        return child.recipe.batch_size

    def alive(self):
        return [child.number for child in self.children if not child.stopped]


class FakeChild(TrainingConversation):
    def __init__(self, machine, number, on_progress, cancelled):
        self.machine, self.number = machine, number
        self.stopped, self.suspended = False, False
        self.recipe = Recipe()
        self.on_progress, self.cancelled = on_progress, cancelled
        self.timeout_s = None
        self.tree = SimpleNamespace(cpu_s=lambda: 0.0, resident_bytes=lambda: 1 << 20)

    def ask(self, question, **arguments):
        assert not self.stopped, f"{question} was asked of a child that has ended"
        running = [child.number for child in self.machine.children if not (child.stopped or child.suspended)]
        if question in ("slice", "cached_batch"):
            assert running in ([], [self.number]), f"{running} run in the turn of {self.number}"
        self.suspended = False
        self.machine.asked.append((self.number, question))
        self.on_progress(question)
        if self.cancelled.is_set():
            raise Cancelled("stopped on request")
        self.recipe = arguments.get("recipe", self.recipe)
        if failure := self.machine.fails(self, question):
            raise failure
        return self.answer(question, arguments)

    def answer(self, question, arguments):
        match question:
            case "describe":
                self.machine.described.append(arguments)
                facts = messages.DeviceFacts(uuid=self.machine.gpu)
                return messages.Description(dict(arguments["options"]), ["uint8_copy"], facts)
            case "train":
                self.machine.trainings.append(arguments)
                self.recipe = arguments["recipe"]
                warmup = WARMUP
                hits = int(self.recipe.compile and self.machine.has_compiled)
                if self.recipe.compile and not hits:
                    self.machine.now += self.machine.compile_s
                    self.machine.has_compiled = True
                    warmup = replace(WARMUP, step_s=[2.0 + self.machine.compile_s, 0.5, 0.5])
                return messages.TrainingReport(
                    recipe=self.recipe.to_dict(),
                    startup_s=self.machine.startup_s,
                    warmup=warmup,
                    losses=[2.3, 2.2][: arguments["loss_steps"]],
                    mechanisms=self.machine.mechanisms,
                    batch_bytes_per_sample=48,
                    samples_per_step=self.recipe.batch_size,
                    compile_counters=messages.CompileCounters(
                        graphs=int(self.recipe.compile), cache_hits=hits
                    ),
                )
            case "slice" | "cached_batch":
                rate = self.machine.rate(self.recipe) * self.machine.rate_of(self)
                samples = 2 * self.recipe.batch_size
                seconds = samples / rate / (2 if question == "cached_batch" else 1)
                self.machine.now += seconds
                return messages.TimedSteps(samples, seconds, [seconds / 2] * 2, [seconds / 8] * 2)
            case "peak":
                return messages.Peak(1000 * self.recipe.batch_size, None, 0)
        return self.machine.answers[question]

    def suspend(self):
        self.suspended = True

    def pids(self):
        return {1000 + self.number}

    def stop(self):
        self.stopped = True


def out_of_memory():
    return OutOfMemory("no memory", "lower batch_size")


SCRIPT, SCRIPTS = export.script, {}


def scripted(*arguments, **more):
    """What `export.script` gives: a script to look at once for equal arguments, as writing one takes 0.1 s."""
    given = inspect.signature(SCRIPT).bind(*arguments, **more)
    given.apply_defaults()
    if given.arguments["set_up"]:
        return SCRIPT(*arguments, **more)
    key = repr(given.arguments)  # an argument may come by place or by name
    if key not in SCRIPTS:
        SCRIPTS[key] = SCRIPT(*arguments, **more)
    return SCRIPTS[key]


def install(monkeypatch, machine):
    """Every child of this machine is the fake machine's."""
    monkeypatch.setattr(here, "TrainingChild", machine.start)
    monkeypatch.setattr(
        here.zygote, "prepare", lambda variables, generation: machine.prepared.append(variables)
    )
    monkeypatch.setattr(here, "Bench", partial(sides.Bench, clock=lambda: machine.now))
    monkeypatch.setattr(record.machine, "facts", lambda: {"id": "m1", "gpus": [], "cpu": {"cores_usable": 2}})
    monkeypatch.setattr(record.cores, "read_conditions", lambda: {})
    monkeypatch.setattr(slices.cores, "taken_share", lambda before, after: machine.taken())
    chrome = "chrome (process 7)", 0.38
    monkeypatch.setattr(slices.cores.OtherPrograms, "busiest", lambda self, pids: chrome)
    return machine
