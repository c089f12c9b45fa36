"""Who is late, and which line it comes from: from steps and stacks that are made up."""

import msgspec
import pytest

from perfkit.additions.ranks import causes, report
from perfkit.additions.ranks.causes import RankSymptoms
from perfkit.additions.ranks.lateness import Lateness, MeanStep, lateness
from perfkit.additions.ranks.lines import line_of_difference, line_of_share
from perfkit.additions.ranks.messages import BUFFERS, Ddp, Exchange, LoaderOfRank, Stack, State, StepOfRank
from perfkit.additions.scripts.messages import Rows, ZeroRate

DDP = Ddp(where="/me/train.py:9", buckets=[400], bytes=400, needs_no_search=False, buffers={}, backend="gloo")


def step(number, computing, step_s, elements=100, syncs=1, own=0.0, is_read=True, marks=()):
    """A step of which what is not computing is the exchange."""
    parts = [0.0, computing / 3, 2 * computing / 3, 0.0, own, step_s - computing - own]
    return StepOfRank(number, step_s, parts, 0.0, is_read, syncs, 8, elements, list(marks))


def ranks(*computing, steps=20, step_s=1.0, **more):
    """A state of each rank, which computes for so long in each step."""
    return [
        State(
            rank=at,
            count=steps,
            steps=[step(n, each, step_s, **more) for n in range(1, steps + 1)],
            ddps=[DDP],
        )
        for at, each in enumerate(computing)
    ]


def found(states, cores=2, **more):
    seen = RankSymptoms(states, lateness(states), len(states), cores, **more)
    return {finding.cause: finding for finding in causes.findings(seen)}


def test_the_rank_that_waits_least_is_late_and_waiting_is_what_others_exchange_longer():
    late = lateness(ranks(0.2, 0.9, 0.3))
    assert (late.late, late.at_times) == (1, False)
    assert [round(spent.for_others, 6) for spent in late.spent] == [0.7, 0.0, 0.6]
    assert [round(spent.exposed, 6) for spent in late.spent] == [0.1] * 3
    assert late.share == pytest.approx(0.65)


def test_alike_ranks_are_not_late_and_too_few_steps_say_nothing():
    assert lateness(ranks(0.80, 0.82)).late is None
    assert lateness(ranks(0.2, 0.9, steps=6)) is None
    assert lateness(ranks(0.2)).late is None


def test_late_at_times_is_told_from_late_always_with_what_was_in_these_steps():
    early, late = ranks(0.9, 0.9, steps=40)
    for at in (9, 19, 29, 39):
        early.steps[at] = step(at + 1, 0.9, 9.0)
        late.steps[at] = step(at + 1, 0.9, 9.0, own=8.0, marks=["evaluation"])
    result = lateness([early, late])
    assert (result.late, result.at_times, result.few, result.mark) == (1, True, 4, "evaluation")
    assert result.by_s == pytest.approx(8.0)
    early.steps[9], late.steps[9] = step(10, 0.9, 7.0), step(10, 0.9, 7.0, own=6.0, marks=["evaluation"])
    assert lateness([early, late]).few == 4, "all of them, not only those that make up most of the time"
    for at in (9, 19):  # as when garbage is collected, sometimes at the start of an epoch
        late.steps[at] = step(at + 1, 0.9, 9.0, own=8.0)
    assert lateness([early, late]).mark == ""


@pytest.mark.parametrize(("is_disturbed", "is_told"), [(False, True), (True, False)])
def test_a_rank_that_has_less_of_the_cores_is_not_late_by_what_all_do(tmp_path, is_disturbed, is_told):
    """On a busy machine, its optimizer took 215 ms, and 152 ms on the other rank."""
    (tmp_path / "train.py").write_text("optimizer.step()\n")
    stacks = [Stack("optimizer", [f"{tmp_path}/train.py:1"], 10.0)]
    states = []
    for each, optimizer in zip(ranks(0.3, 0.3), (0.4, 0.6), strict=True):
        steps = [
            msgspec.structs.replace(s, parts=[0, 0.1, 0.1, optimizer, 0, 0.8 - optimizer]) for s in each.steps
        ]
        states.append(msgspec.structs.replace(each, steps=steps, stacks=stacks))
    assert ("late_rank" in found(states, is_disturbed=is_disturbed)) == is_told


def test_ranks_that_are_late_in_turn_are_not_one_late_rank():
    a, b = ranks(0.2, 0.2)
    for n in range(20):
        long, short = step(n + 1, 0.9, 1.0, elements=900), step(n + 1, 0.2, 1.0, elements=100)
        a.steps[n], b.steps[n] = (long, short) if n % 2 else (short, long)
    assert lateness([a, b]).late is None
    assert lateness([a, b]).in_turn == pytest.approx(0.35), "70% of each step is waiting, of one of two ranks"
    assert "unlike_lengths" in found([a, b])


def test_the_others_wait_as_long_as_the_late_rank_makes_them_not_for_what_others_do():
    """Of the 17 steps that count, rank 1 is the latest in 14; in the others, rank 0 is, for as long."""
    early, late = ranks(0.2, 0.9)
    for n in range(0, 20, 5):
        early.steps[n], late.steps[n] = late.steps[n], early.steps[n]
    found_late = lateness([early, late])
    assert (found_late.late, found_late.often) == (1, pytest.approx(14 / 17))
    assert found_late.share == pytest.approx(0.7 * 14 / 17)
    assert "rank 1 is late in 82% of the steps" in found([early, late])["late_rank"].evidence
    assert "rank 1 is late in every step" in found(ranks(0.2, 0.9))["late_rank"].evidence


def test_one_early_rank_among_many_is_not_said_to_keep_all_waiting():
    many = lateness(ranks(0.2, *[0.9] * 9))
    assert (many.late, many.in_turn) == (None, 0.0), "one of ten waits: 7% of the time of all"


def test_longer_inputs_explain_a_late_rank_and_noise_is_no_cause():
    early, late = ranks(0.2, 0.9)
    late = msgspec.structs.replace(late, steps=[step(s.number, 0.9, 1.0, 900) for s in late.steps])
    assert "9.00× as large (900 elements, not 100)" in found([early, late])["late_rank"].evidence
    alike = ranks(0.2, 0.9)
    assert "with inputs as large" in found(alike)["late_rank"].evidence
    slow = Stack("backward", ["train.py:6"], 10.0)
    asleep = [alike[0], msgspec.structs.replace(alike[1], stacks=[slow])]
    assert found(asleep, is_disturbed=True)["late_rank"].where == "train.py:6", (
        "noise makes nothing twice as long"
    )
    assert "late_rank" not in found(alike, is_disturbed=True)


def test_gradients_sent_for_each_of_several_batches_are_blamed_by_their_count():
    states = [
        msgspec.structs.replace(state, backward=["/me/train.py:7"]) for state in ranks(0.4, 0.4, syncs=8)
    ]
    sent = found(states)["exchange_in_each_pass"]
    assert sent.where == "train.py:7"
    assert sent.share == pytest.approx(0.6 * 7 / 8)
    assert sent.limit == "at least about", "exchanges that are hidden take cores, too"
    two_lines = [msgspec.structs.replace(state, backward=["a:1", "a:2"]) for state in states]
    assert "exchange_in_each_pass" not in found(two_lines), "a GAN's passes are not accumulated"


def test_a_barrier_in_each_step_is_blamed_for_what_no_late_rank_explains():
    free, costly = (
        [
            msgspec.structs.replace(state, exchanges=[Exchange("barrier", "train.py:8", 17, seconds)])
            for state, seconds in zip(ranks(0.7, 0.7), each, strict=True)
        ]
        for each in ((8.0, 0.1), (8.0, 3.4))
    )
    assert "collective_in_each_step" not in found(free)
    assert found(costly)["collective_in_each_step"].share == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [(6.0, 7.0, 0.6), (1.0, 7.0, 0.2), (2.1, 2.1, 0.21)],
    ids=["both", "one", "less"],
)
def test_what_the_line_of_a_collective_does_besides_goes_with_it(first, second, share):
    """To pickle what is gathered took longer than to send it, and was no part of what removing it gains."""
    states = [
        msgspec.structs.replace(
            state,
            exchanges=[Exchange("all_gather_object", "train.py:8", 17, 3.4)],
            stacks=[
                Stack("own code", ["train.py:50", "train.py:8"], seconds),
                Stack("forward", ["train.py:6"], 10 - seconds),
            ],
        )
        for state, seconds in zip(ranks(0.7, 0.7), (first, second), strict=True)
    ]
    gathered = found(states)["collective_in_each_step"]
    assert gathered.share == pytest.approx(share)
    assert gathered.evidence.startswith("20% of the run is all_gather_object in each step")
    assert ("60% is its line" in gathered.evidence) == (share == 0.6)


def test_a_collective_takes_no_more_than_what_ranks_exchange_beyond_their_waits():
    """Each rank waits in it in turn: the least of the means has waits, too."""
    first = [step(n, 0.8 if n % 2 else 0.3, 1.0) for n in range(1, 21)]
    second = [step(n, 0.3 if n % 2 else 0.8, 1.0) for n in range(1, 21)]
    states = [
        msgspec.structs.replace(state, steps=steps, exchanges=[Exchange("barrier", "train.py:8", 17, 7.6)])
        for state, steps in zip(ranks(0.5, 0.5), (first, second), strict=True)
    ]
    assert found(states)["collective_in_each_step"].share == pytest.approx(0.2)


def test_a_step_takes_what_the_slowest_rank_needs_on_average_as_its_parts_add_up_to_it():
    longer_at_first = [step(n, 0.5, 1.5 if n < 12 else 1.0) for n in range(1, 21)]
    longer_at_last = [step(n, 0.5, 1.0 if n < 12 else 1.5) for n in range(1, 21)]
    states = [
        msgspec.structs.replace(state, steps=steps)
        for state, steps in zip(ranks(0.5, 0.5), (longer_at_first, longer_at_last), strict=True)
    ]
    late = lateness(states)
    sums = [sum(spent.parts) + spent.for_others + spent.exposed for spent in late.spent]
    assert late.step_s == pytest.approx(max(sums))


def test_on_a_busy_machine_what_all_exchange_is_told_though_a_rank_seems_late():
    sparse = Rows(count=1000, touched=10, of_weights=0.9)
    states = [msgspec.structs.replace(state, embeddings=sparse) for state in ranks(0.5, 0.7)]
    assert "exposed_in_embeddings" in found(states, is_disturbed=True)
    assert "exposed_in_embeddings" not in found(states), "the late rank is the cause"


ROWS = {0: [1, 2, 3, 4], 1: [5, 6, 7, 8]}


def test_ranks_with_the_same_rows_and_no_loader_are_to_draw_unlike_ones():
    states = [msgspec.structs.replace(state, rows=ROWS) for state in ranks(0.5, 0.5)]
    assert found(states)["same_rows"].change.endswith("add the rank to each seed")


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),
    [
        (ROWS, ROWS, "same_rows"),
        (ROWS, {0: [8, 7, 6, 5], 1: [4, 3, 2, 1]}, "all_rows_on_each"),
        (ROWS, {0: [11, 12, 13, 14], 1: [15, 16, 17, 18]}, ""),
        ({0: [0, 0, 0, 0], 1: [0, 0, 0, 0]}, {0: [0, 0, 0, 0], 1: [0, 0, 0, 0]}, ""),
    ],
)
def test_rows_of_ranks_are_compared(ours, theirs, cause):
    loader = LoaderOfRank(
        where="train.py:3", workers=0, rows=8, drawn=8, is_divided=False, is_shuffled=True, epochs=[]
    )
    states = [
        msgspec.structs.replace(state, rows=rows, loader=loader)
        for state, rows in zip(ranks(0.9, 0.9), (ours, theirs), strict=True)
    ]
    assert {"same_rows", "all_rows_on_each"} & set(found(states)) == ({cause} if cause else set())


@pytest.mark.parametrize(("rows", "change"), [(8, "DistributedSampler(data)"), (None, "rows[rank::world]")])
def test_rows_that_all_ranks_have_are_divided_where_their_data_set_can_be(rows, change):
    """A loader takes no sampler for an `IterableDataset`, which has no length."""
    about = {"is_divided": False, "is_shuffled": False, "epochs": []}
    loader = LoaderOfRank(where="train.py:3", workers=2, rows=rows, drawn=rows, **about)
    states = [msgspec.structs.replace(state, rows=ROWS, loader=loader) for state in ranks(0.9, 0.9)]
    told = found(states)["same_rows"].change
    assert change in told
    assert ("DistributedSampler" in told, "workers as well" in told) == (rows == 8, rows is None)


def test_a_sampler_whose_epoch_is_not_set_begins_each_with_the_same_rows():
    first = [4, 2, 7, 1, 5]
    loader = LoaderOfRank(
        where="train.py:3", workers=4, rows=9, drawn=5, is_divided=True, is_shuffled=True, epochs=[first] * 3
    )
    states = [msgspec.structs.replace(state, loader=loader) for state in ranks(0.9, 0.9)]
    assert {"same_order", "workers_of_ranks"} <= set(found(states))
    shuffled = msgspec.structs.replace(loader, epochs=[first, first[::-1], first[1:]], workers=1)
    states = [msgspec.structs.replace(state, loader=shuffled) for state in states]
    assert not {"same_order", "workers_of_ranks"} & set(found(states))


def test_weights_that_drift_apart_are_wrong_not_slow():
    weights = ({3: 5, 20: 6}, {3: 5, 20: 7})
    states = [
        msgspec.structs.replace(state, weights=each)
        for state, each in zip(ranks(0.9, 0.9), weights, strict=True)
    ]
    drifts = found(states)["weights_drift"]
    assert (drifts.kind, "equal after step 3, and differ after step 20" in drifts.evidence) == ("data", True)
    early = [
        msgspec.structs.replace(state, weights=each)
        for state, each in zip(states, ({0: 5, 3: 6}, {0: 5, 3: 7}), strict=True)
    ]
    assert "equal before the first step, and differ after step 3" in found(early)["weights_drift"].evidence
    alone = [msgspec.structs.replace(state, ddps=[]) for state in states]
    assert "nothing_exchanged" in found(alone)


def test_weights_that_are_equal_again_later_do_not_drift():
    """As in local SGD, which averages them every few steps."""
    weights = ({0: 5, 3: 6, 20: 7, 80: 8, 97: 9}, {0: 5, 3: 1, 20: 2, 80: 8, 97: 1})
    states = [
        msgspec.structs.replace(state, weights=each)
        for state, each in zip(ranks(0.9, 0.9), weights, strict=True)
    ]
    assert "weights_drift" not in found(states)


@pytest.mark.parametrize(
    ("sent", "forward", "where"),
    [
        (0, ["/me/vae.py:29", "/me/train.py:38"], "vae.py:29, called in train.py:38"),
        (0, ["/me/train.py:38"], "train.py:38"),
        (0, [], "train.py:9"),
        (1, ["/me/train.py:38"], "train.py:9"),
    ],
)
def test_weights_drift_at_the_call_of_the_model_if_its_wrapper_has_sent_nothing(sent, forward, where):
    """As `model.module.loss(x)` goes past it."""
    ddps = [msgspec.structs.replace(DDP, sent=sent)]
    states = [
        msgspec.structs.replace(
            state, ddps=ddps, weights={0: 5, 3: state.rank}, forward=forward, backward=["/me/train.py:40"]
        )
        for state in ranks(0.9, 0.9)
    ]
    assert found(states)["weights_drift"].where == where


@pytest.mark.parametrize(
    ("threads", "device", "set_threads", "where"),
    [
        pytest.param(
            8, "cpu", ["/me/a.py:4", "/me/train.py:50"], "train.py:50", id="the last line that sets"
        ),
        pytest.param(2, "cpu", [], "", id="torch's default in ranks that torchrun has not started"),
        pytest.param(1, "cpu", ["/me/train.py:50"], None, id="as many as cores"),
        pytest.param(8, "cuda", ["/me/train.py:50"], None, id="the GPU computes"),
    ],
)
def test_threads_of_ranks_that_are_more_than_the_cores_they_share(threads, device, set_threads, where):
    states = [
        msgspec.structs.replace(state, threads=threads, device=device, set_threads=set_threads)
        for state in ranks(0.9, 0.9)
    ]
    finding = found(states).get("more_threads_than_cores")
    assert (finding and finding.where) == where
    assert finding is None or ("script sets" in finding.evidence) == bool(set_threads)
    assert finding is None or finding.change == "torch.set_num_threads(1) in each rank"


@pytest.mark.parametrize(
    ("within", "part", "where"),
    [
        pytest.param(0.95, "own code", "shards.py:17, called in shards.py:25", id="nearly all"),
        pytest.param(0.8, "own code", "shards.py:25", id="one of several"),
        pytest.param(0.95, "evaluation", "shards.py:25", id="lines of a model that evaluates"),
    ],
)
def test_the_line_within_is_named_that_takes_nearly_all_of_what_one_rank_alone_does(within, part, where):
    early, late = ranks(0.2, 0.2)
    late.steps = [step(each.number, 0.2, 1.0, own=0.7) for each in late.steps]
    lines = ["/me/train.py:44", "/me/shards.py:25"]
    inner = Stack(part, [*lines, "/me/shards.py:17"], 14.0 * within, "NpzFile.__getitem__")
    late.stacks = [inner, Stack("own code", lines, 14.0 * (1 - within))]
    early.stacks = [Stack("own code", ["/me/train.py:44"], 0.1)]
    finding = found([early, late])["late_rank"]
    assert finding.where == where
    assert ("read the array once" in finding.change) == (part == "own code")


def test_what_one_rank_does_at_times_is_named_by_its_call():
    """As `if rank == 0: evaluate(model)`: the call says what it is for."""
    early, late = ranks(0.9, 0.9, steps=40)
    for at in (9, 19, 29, 39):
        early.steps[at] = step(at + 1, 0.9, 9.0)
        late.steps[at] = step(at + 1, 0.9, 9.0, own=8.0)
    late.stacks = [Stack("own code", ["/me/train.py:41", "/me/train.py:29"], 32.0)]
    assert found([early, late])["late_at_times"].where == "train.py:41"


def test_parameters_that_are_not_exchanged_are_named_unless_the_weights_are_equal_all_the_same():
    """A new head differs from the first look on, where each rank has its own seed."""
    ddp = msgspec.structs.replace(DDP, unknown=["head.weight", "head.bias"])
    weights = ({0: 5, 20: 6}, {0: 4, 20: 7})
    states = [
        msgspec.structs.replace(state, ddps=[ddp], weights=each)
        for state, each in zip(ranks(0.9, 0.9), weights, strict=True)
    ]
    told = found(states)["unknown_parameters"]
    assert (told.kind, told.where) == ("data", "train.py:9")
    assert "2 parameters (head.weight, head.bias)" in told.evidence and "after step 20" in told.evidence
    equal = [msgspec.structs.replace(state, weights={0: 5, 20: 6}) for state in states]
    assert "unknown_parameters" not in found(equal), "the script exchanges them itself"


def test_a_process_that_takes_more_cpu_time_than_those_of_other_ranks_is_told():
    """A thread of its own that never rests, while all ranks wait in turn."""
    spent = zip(ranks(0.9, 0.9), (0.9, 1.8), strict=True)
    taking = [msgspec.structs.replace(state, cpu_s=cpu_s * state.covered_steps) for state, cpu_s in spent]
    told = found(taking)["busy_process"]
    assert "the process of rank 1 takes 1.80 s of CPU time in a step" in told.evidence
    assert told.weight >= 0.1, "it is said first where nothing else is"
    assert "busy_process" not in found(ranks(0.9, 0.9))
    late = [msgspec.structs.replace(state, cpu_s=9.0 * state.rank) for state in ranks(0.2, 0.9)]
    assert "busy_process" not in found(late), "with what it computes in its steps"


def test_one_thread_is_blamed_only_where_torchrun_set_it_and_cores_are_free():
    states = [msgspec.structs.replace(state, threads=1, is_of_agent=True) for state in ranks(0.9, 0.9)]
    assert "OMP_NUM_THREADS=4" in found(states, cores=8, chose_threads=False)["threads_of_ranks"].change
    assert "threads_of_ranks" not in found(states, cores=8, chose_threads=True)
    assert "threads_of_ranks" not in found(states, cores=2, chose_threads=False)
    spawned = [msgspec.structs.replace(state, is_of_agent=False) for state in states]
    assert "threads_of_ranks" not in found(spawned, cores=8, chose_threads=False), "the script has set it"


def test_the_line_of_a_difference_is_the_outermost_that_only_the_late_rank_passes():
    late = State(
        rank=0,
        count=10,
        stacks=[
            Stack("own code", ["t:9", "t:5", "t:2"], 8.0),
            Stack("forward", ["t:9", "t:3", "t:2"], 1.0),
        ],
    )
    other = State(rank=1, count=10, stacks=[Stack("exchange", ["t:9", "t:4"], 8.0)])
    assert line_of_difference(late, [other], ["own code"]) == "t:5"
    alike = State(rank=1, count=10, stacks=[Stack("own code", ["t:9", "t:5", "t:2"], 2.0)])
    assert line_of_difference(late, [alike], ["own code"]) == "t:2"


def test_lines_of_a_loop_that_explain_a_difference_together_are_named_by_the_largest():
    """As in a hook that only one rank has, and that no line of the script calls."""
    model = Stack("forward", ["t:9", "t:5"], 3.0)
    loop = [Stack("forward", ["t:9", "t:5", line], seconds) for line, seconds in (("t:2", 5.0), ("t:3", 4.0))]
    late = State(rank=0, count=10, stacks=[model, *loop])
    other = State(rank=1, count=10, stacks=[model])
    assert line_of_difference(late, [other], ["forward"]) == "t:2"
    rare = State(rank=0, count=10, stacks=[msgspec.structs.replace(model, seconds=30.0), *loop])
    assert line_of_difference(rare, [other], ["forward"]) == "t:5"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("rank = get_rank()\nmine = rows[rank::2]\nfor x in mine:\n    model(x)\n", 2),
        ("rank, n = get_rank(), get_world_size()\nshare = 8 // n\nx = rows[rank * share :]\nmodel(x)\n", 3),
        ("mine = rows[int(os.environ['RANK']) :: 2]\nx = mine[0]\nmodel(x)\n", 1),
        ("rank = get_rank()\ntorch.manual_seed(rank)\nx = randn(3)\nmodel(x)\n", 0),
        ("rank = get_rank()\ndice = seeded(seed=rank)\nx = dice.draw()\nmodel(x)\n", 0),
        ("me = get_rank()\nmine = rows[me::2]\nfor x in mine:\n    model(x)\n", 2),
    ],
)
def test_the_line_that_gives_each_rank_its_rows_is_found_through_assignments(tmp_path, code, line):
    path = tmp_path / "train.py"
    path.write_text(code)
    number = next(n for n, text in enumerate(code.splitlines(), 1) if "model(" in text)
    assert line_of_share(f"{path}:{number}") == (f"{path}:{line}" if line else "")


def causes_of(states, **more):
    return set(found(states, **more))


def test_a_rank_whose_data_others_are_handed_reads_for_all():
    line = Stack("own code", ["train.py:4", "train.py:9"], 14.0)
    early, late = ranks(0.2, 0.9)
    late = msgspec.structs.replace(
        late, steps=[step(s.number, 0.2, 1.0, own=0.7) for s in late.steps], stacks=[line]
    )
    hands_out = Exchange("broadcast", "train.py:10", 20, 14.0)
    waits = msgspec.structs.replace(early, exchanges=[hands_out])
    told = found([waits, late])["reads_for_all"]
    assert "in broadcast (train.py:10)" in told.evidence
    assert told.where == "train.py:9, called in train.py:4"
    assert "late_rank" not in found([waits, late])
    flag = msgspec.structs.replace(hands_out, bytes=17 * 8)  # as a library sends, to end all ranks together
    told = found([msgspec.structs.replace(waits, exchanges=[flag]), late])
    assert "in broadcast (train.py:10)" in told["late_rank"].evidence
    assert "reads_for_all" not in told
    rows = msgspec.structs.replace(hands_out, bytes=17 * 400)
    assert "reads_for_all" in found([msgspec.structs.replace(waits, exchanges=[rows]), late])


def test_a_rank_that_computes_longer_before_it_sends_is_not_said_to_read_for_all():
    early, late = ranks(0.2, 0.9)
    waits = msgspec.structs.replace(early, exchanges=[Exchange("broadcast", "train.py:10", 20, 14.0)])
    assert {"late_rank"} == {cause for cause in causes_of([waits, late]) if cause != "exposed_exchange"}


def test_waiting_is_in_backward_only_where_gradients_are_exchanged_there():
    states = [msgspec.structs.replace(state, backward=["/me/train.py:7"]) for state in ranks(0.2, 0.9)]
    assert "in backward (train.py:7)" in found(states)["late_rank"].evidence
    alone = [msgspec.structs.replace(state, ddps=[]) for state in states]
    assert "backward (train" not in found(alone)["late_rank"].evidence


def test_steps_that_are_told_are_a_part_of_all_in_which_a_collective_was_called():
    """A long run: 20 of 203 steps are told, and the time in a collective is that of all but the first three."""
    states = [
        msgspec.structs.replace(state, count=203, exchanges=[Exchange("barrier", "train.py:8", 200, 20.0)])
        for state in ranks(0.8, 0.8)
    ]
    assert found(states)["collective_in_each_step"].share == pytest.approx(0.1)


def test_equal_findings_stand_in_the_order_of_the_first_rank():
    """They had that of a set, which changed from run to run."""
    called = [Exchange("barrier", f"train.py:{line}", 20, 4.0) for line in range(9, 0, -1)]
    states = [msgspec.structs.replace(state, exchanges=called) for state in ranks(0.8, 0.8)]
    seen = RankSymptoms(states, lateness(states), 2, 2)
    lines = [each.where for each in causes.findings(seen) if each.cause == "collective_in_each_step"]
    assert lines == [f"train.py:{line}" for line in range(9, 0, -1)]


def test_what_one_rank_sends_another_is_no_collective_to_leave_out():
    states = [
        msgspec.structs.replace(state, ddps=[], exchanges=[Exchange("recv", "train.py:8", 20, 8.0)])
        for state in ranks(0.5, 0.5)
    ]
    assert "collective_in_each_step" not in found(states)
    apart = [msgspec.structs.replace(state, weights={0: 1, 3: state.rank}) for state in states]
    assert "nothing_exchanged" not in found(apart), "the stages of a pipeline have their own weights"


def test_workers_that_cost_nothing_are_not_blamed():
    loader = LoaderOfRank(
        where="train.py:3", workers=4, rows=9, drawn=5, is_divided=True, is_shuffled=True, epochs=[]
    )
    states = [msgspec.structs.replace(state, loader=loader) for state in ranks(0.9, 0.9)]
    assert found(states)["workers_of_ranks"].weight == 0.0
    starving = [
        msgspec.structs.replace(
            state, steps=[msgspec.structs.replace(s, parts=[0.3, *s.parts[1:]]) for s in state.steps]
        )
        for state in states
    ]
    assert found(starving)["workers_of_ranks"].weight == 0.3


def test_rows_that_are_often_equal_do_not_show_that_each_rank_has_all():
    """Ten numbers, divided between the ranks: both parts have each of them."""
    loader = LoaderOfRank(
        where="train.py:3", workers=0, rows=400, drawn=400, is_divided=False, is_shuffled=True, epochs=[]
    )
    parts = (
        {0: [*range(10)], 1: [*range(10)], 2: [*range(10)]},
        {0: [*range(9, -1, -1)], 1: [5, 4, 3, 2, 1, 0, 9]},
    )
    states = [
        msgspec.structs.replace(state, rows=rows, loader=loader)
        for state, rows in zip(ranks(0.9, 0.9), parts, strict=True)
    ]
    assert "all_rows_on_each" not in found(states)


def test_batches_of_unequal_size_are_told_as_what_they_do_to_the_gradients():
    few, many = ranks(0.9, 0.9)
    many = msgspec.structs.replace(many, steps=[msgspec.structs.replace(s, samples=32) for s in many.steps])
    told = found([few, many])["unequal_batches"]
    assert "rank 0 trains on 8 rows in a step and rank 1 on 32" in told.evidence
    assert "unequal_batches" not in causes_of(ranks(0.9, 0.9))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"buckets": [4 << 20], "bytes": 4 << 20, "cap": 100 << 20}, "exposed_in_one_bucket"),
        ({"buckets": [1 << 20], "bytes": 1 << 20, "cap": 25 << 20}, "exposed_exchange"),
        ({"buckets": [1 << 20] * 40, "bytes": 40 << 20, "cap": 1 << 20}, "exposed_in_many_buckets"),
        ({"buckets": [1 << 20, 3 << 20], "bytes": 4 << 20, "is_compiled": True}, "exposed_around_compiled"),
        ({"buckets": [1 << 20, 3 << 20], "bytes": 4 << 20}, "exposed_exchange"),
    ],
)
def test_what_keeps_an_exchange_from_being_hidden_is_named_once(changes, cause):
    ddp = msgspec.structs.replace(DDP, **changes)
    exposed = {
        name
        for name in causes_of([msgspec.structs.replace(s, ddps=[ddp]) for s in ranks(0.5, 0.5)])
        if name.startswith("exposed")
    }
    assert exposed == {cause}
    hidden = [msgspec.structs.replace(s, ddps=[ddp]) for s in ranks(0.98, 0.98)]
    assert not {name for name in causes_of(hidden) if name.startswith("exposed")}


@pytest.mark.parametrize(
    ("rows", "is_named"),
    [
        (Rows(200_000, 700, 0.99, ["module.user.weight"]), True),
        (Rows(200_000, 150_000, 0.99, ["module.user.weight"]), False),
        (Rows(200_000, 700, 0.3, ["module.user.weight"]), False),
    ],
)
def test_gradients_of_embeddings_that_are_mostly_noughts_are_named(rows, is_named):
    ddp = msgspec.structs.replace(DDP, buckets=[1 << 20, 38 << 20], bytes=39 << 20)
    known = found([msgspec.structs.replace(s, ddps=[ddp], embeddings=rows) for s in ranks(0.5, 0.5)])
    assert ("exposed_in_embeddings" in known, "exposed_exchange" in known) == (is_named, not is_named)
    if is_named:
        told = known["exposed_in_embeddings"]
        assert (
            "(user.weight), of whose 200,000 rows a step touches 700" in told.evidence and told.gain is None
        )


@pytest.mark.parametrize(
    ("of_weights", "named"),
    [
        (None, {"exposed_exchange"}),
        (0.95, {"zero_learning_rate"}),  # hardly any gradient is left to be sent
        (0.5, {"zero_learning_rate", "exposed_exchange"}),
        (0.05, {"exposed_exchange"}),
    ],
)
def test_gradients_of_weights_with_a_learning_rate_of_0_are_named_in_place_of_their_exchange(
    of_weights, named
):
    rate = None if of_weights is None else ZeroRate(1000, of_weights)
    ddp = msgspec.structs.replace(DDP, bytes=40_000_000)
    changed = {"zero_rate": rate, "ddps": [ddp], "optimizer": ["/me/groups.py:8", "/me/train.py:30"]}
    told = found([msgspec.structs.replace(state, **changed) for state in ranks(0.6, 0.6)])
    assert {*told} == named
    if of_weights == 0.95:
        each = told["zero_learning_rate"]
        assert each.where == "groups.py:8, called in train.py:30"
        assert "sent (38.0 MB)" in each.evidence and "optimizer take 80% of a step" in each.evidence
        assert "before DistributedDataParallel is made (train.py:9)" in each.change
        assert each.expected() == "measure to find out" and each.weight == pytest.approx(0.95 * 0.8)


@pytest.mark.parametrize("sent", [0, 3])
def test_gradients_that_were_not_seen_to_be_sent_are_not_listed(sent):
    """As where the forward pass goes past DistributedDataParallel, to its `.module`."""
    told = msgspec.structs.replace(DDP, sent=sent)
    kept = [msgspec.structs.replace(each, ddps=[told], steps=[]) for each in ranks(0.9, 0.9)]  # by a report
    assert bool(report.exchanges_table(kept).rows) == bool(sent)


def test_what_only_gpus_have_is_read_from_their_ranks():
    ddp = msgspec.structs.replace(DDP, sync_norms=3)
    here = [
        msgspec.structs.replace(state, device="cuda", gpu=gpu, ddps=[ddp])
        for state, gpu in zip(ranks(0.9, 0.9), ("a GPU-1", "a GPU-1"), strict=True)
    ]
    assert {"ranks_share_a_gpu", "gloo_on_gpus", "sync_batch_norm"} <= causes_of(here)
    apart = [msgspec.structs.replace(here[0], gpu="a GPU-2"), here[1]]
    assert "ranks_share_a_gpu" not in causes_of(apart)


def test_gradients_that_are_averaged_by_hand_are_no_metric_to_leave_out():
    states = [
        msgspec.structs.replace(
            state, ddps=[], exchanges=[Exchange("all_reduce", "train.py:8", 1700, 8.0, 17_000_000)]
        )
        for state in ranks(0.5, 0.5)
    ]
    told = found(states)["averaged_by_hand"]
    assert "called 100 times in each step (1.00 MB in all)" in told.evidence
    assert "collective_in_each_step" not in found(states)


@pytest.mark.parametrize(
    ("calls", "size", "syncs", "cause"),
    [
        (100, 400, 1, "averaged_twice"),
        (100, 400, 0, "collective_in_each_step"),
        (100, 40_000, 1, "collective_in_each_step"),
        (1, 4, 1, "collective_in_each_step"),
        (100, 4, 1, "sent_one_by_one"),
    ],
)
def test_an_all_reduce_is_told_by_what_it_sends(calls, size, syncs, cause):
    """As many bytes as the gradients, which were sent before; numbers one by one; or a single number."""
    ddp = msgspec.structs.replace(DDP, buckets=[calls * 400], bytes=calls * 400)
    exchange = Exchange("all_reduce", "train.py:8", 17 * calls, 8.0, 17 * calls * size)
    states = [
        msgspec.structs.replace(state, ddps=[ddp], exchanges=[exchange])
        for state in ranks(0.5, 0.5, syncs=syncs)
    ]
    about = {"averaged_twice", "averaged_by_hand", "sent_one_by_one", "collective_in_each_step"}
    assert causes_of(states) & about == {cause}


SCRIPT = """for epoch in range(9):
    rows = load("rows.jsonl")
    for inputs in rows:
        loss = criterion(model(inputs))
        loss.backward()
        correct = count(model)
"""


def of_script(tmp_path, states, line, part="own code", share=0.5):
    """The same ranks, which were seen at this line of a script, in this part, for so much of the time."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    here = Stack(part, [f"{path}:1", f"{path}:{line}"], 10.0 * share)
    elsewhere = Stack("backward", [f"{path}:1", f"{path}:5"], 10.0 - here.seconds)
    more = {"stacks": [here, elsewhere], "backward": [f"{path}:5"]}
    return [msgspec.structs.replace(state, **more) for state in states]


def test_what_every_rank_does_at_the_start_of_each_epoch_is_named_though_none_is_late(tmp_path):
    states = ranks(0.9, 0.9, steps=40)
    for state in states:
        for at in (9, 19, 29, 39):
            state.steps[at] = step(at + 1, 0.9, 9.0, own=8.0, marks=["new epoch"])
    told = found(of_script(tmp_path, states, 2, share=0.4))["all_do_the_same"]
    assert (told.where, told.share) == ("train.py:2", pytest.approx(0.4))
    assert '`rows = load("rows.jsonl")`, at the start of each epoch' in told.evidence
    assert "longest" not in told.evidence
    elsewhere = [
        msgspec.structs.replace(state, stacks=[Stack("own code", [f"train.py:{state.rank}"], 8.0)])
        for state in states
    ]
    assert "all_do_the_same" not in found(elsewhere), "the ranks differ"


@pytest.mark.parametrize(
    ("line", "part", "share", "is_told"),
    [
        (6, "own code", 0.4, True),
        (6, "own code", 0.2, False),
        (4, "own code", 0.4, False),
        (6, "evaluation", 0.4, False),
    ],
)
def test_code_of_all_ranks_is_told_if_it_takes_much(tmp_path, line, part, share, is_told):
    """The loss and evaluations are what the training consists of."""
    states = of_script(tmp_path, ranks(0.5, 0.5, own=0.4), line, part, share)
    told = found(states)
    assert ("all_do_the_same" in told) == is_told
    on_gpus = [msgspec.structs.replace(state, device="cuda") for state in states]
    assert "all_do_the_same" not in found(on_gpus), "the host may wait for its GPU there"
    if is_told:
        assert "`correct = count(model)`, in each step" in told["all_do_the_same"].evidence


def test_of_code_that_every_rank_runs_the_rank_is_named_that_takes_longest(tmp_path):
    """As garbage is collected on all of them, and only one has a large heap; looks alone say half of the time."""
    first, last = ranks(0.1, 0.1, own=0.3), ranks(0.1, 0.1, own=0.6)
    told = found(of_script(tmp_path, [first[0], last[1]], 6))
    assert "every rank does it for itself, rank 1 longest, outside" in told["all_do_the_same"].evidence
    assert told["all_do_the_same"].share == pytest.approx(0.3), "as the table of the ranks says"
    assert told["late_rank"].change.startswith("do it less often"), "it may be the only one that does this"


def test_a_line_in_which_ranks_exchange_something_is_not_done_by_each_for_itself_and_told_once(tmp_path):
    """As a metric that gathers what all ranks have predicted."""
    states = of_script(tmp_path, ranks(0.5, 0.5, own=0.4), 6, share=0.4)
    gathers = [Exchange("all_gather", f"{tmp_path}/train.py:6", 17, 3.4)]
    told = found([msgspec.structs.replace(state, exchanges=gathers) for state in states])
    assert "for itself" not in told["all_do_the_same"].evidence
    assert (
        "in each step, with all_gather between the ranks in it, outside" in told["all_do_the_same"].evidence
    )
    assert "collective_in_each_step" not in told
    elsewhere = [Exchange("all_gather", "train.py:9", 17, 3.4)]
    assert "collective_in_each_step" in causes_of(
        [msgspec.structs.replace(state, exchanges=elsewhere) for state in states]
    )


def test_a_rank_that_computes_longer_with_inputs_as_large_has_something_else_on():
    told = found(ranks(0.2, 0.9))["late_rank"].change
    assert "anomaly detection" in told and "same amount" not in told
    first, last = ranks(0.2, 0.9)
    told = found([first, msgspec.structs.replace(last, modes=["anomaly detection"])])["late_rank"]
    assert told.change == "switch off what is on in this rank: anomaly detection"
    on_all = [msgspec.structs.replace(state, modes=["deterministic algorithms"]) for state in ranks(0.2, 0.9)]
    assert "what else this rank does" in found(on_all)["late_rank"].change, "it is no difference between them"
    longer = [ranks(0.2, 0.9)[0], ranks(0.2, 0.9, elements=400)[1]]
    assert found(longer)["late_rank"].change == "give each rank the same amount of work"


def test_the_expected_gain_of_a_late_rank_is_of_its_work_left_out_or_of_equal_ranks_if_it_must_be_done():
    assert found(ranks(0.2, 0.9))["late_rank"].expected("about") == "at most 3.33×"
    longer = [ranks(0.2, 0.9)[0], ranks(0.2, 0.9, elements=400)[1]]
    assert found(longer)["late_rank"].expected("about") == "at most 1.54×"


def test_what_one_rank_alone_does_in_loading_is_not_to_be_shared_but_found():
    loads = [0.7, 0.1, 0.1, 0.0, 0.0, 0.1]  # seconds of `PARTS`
    early, late = ranks(0.2, 0.9)
    steps = [msgspec.structs.replace(each, parts=loads) for each in late.steps]
    told = found([early, msgspec.structs.replace(late, steps=steps)])["late_rank"]
    assert told.change.startswith("find what this rank alone does there, and do it once before the training")


@pytest.mark.parametrize(
    ("line", "change"),
    [(1, "or remove the hook that does it in the backward pass"), (2, "find what else this rank does there")],
)
def test_what_a_rank_does_in_its_backward_pass_alone_is_told_from_the_pass_itself(tmp_path, line, change):
    (tmp_path / "train.py").write_text("counts = numpy.histogram(gradient)\ntrainer.train()\n")
    early, late = ranks(0.2, 0.9)
    stacks = [Stack("backward", [f"{tmp_path}/train.py:{line}"], 10.0)]
    late = msgspec.structs.replace(late, stacks=stacks, backward=[f"{tmp_path}/train.py:2"])
    told = found([early, late])["late_rank"]
    assert told.where == f"train.py:{line}"
    assert change in told.change


def test_what_is_gathered_in_each_step_is_kept_if_the_training_needs_it():
    """As negatives of all ranks; a number or a barrier is no part of the training."""
    gathers = [
        Exchange("all_gather", "train.py:9", 17, 3.4, 17_000_000),
        Exchange("barrier", "train.py:8", 17, 3.4),
    ]
    states = [msgspec.structs.replace(state, exchanges=gathers) for state in ranks(0.5, 0.5)]
    told = {each.where: each for each in causes.findings(RankSymptoms(states, lateness(states), 2, 2))}
    assert told["train.py:9"].evidence.startswith("20% of the run is all_gather in each step (1.00 MB)")
    assert told["train.py:9"].change.startswith("if the training needs it in each step, keep it")
    assert told["train.py:8"].change == "do it every 100 steps, or once an epoch"


@pytest.mark.parametrize(
    ("buffers", "said"),
    [
        (
            {"queue": 33_500_000, "at": 8},
            "the broadcast of 2 buffers before each forward pass: most of it is queue, of 33.5 MB",
        ),
        ({"mean": 8, "var": 8}, "the broadcast of 2 buffers before each forward pass"),
    ],
)
def test_of_buffers_that_are_sent_the_one_is_named_that_makes_up_most(buffers, said):
    about = {
        "ddps": [msgspec.structs.replace(DDP, buffers=buffers)],
        "exchanges": [Exchange(BUFFERS, "train.py:9", 17, 3.4)],
    }
    states = [msgspec.structs.replace(state, **about) for state in ranks(0.5, 0.5)]
    assert found(states)["buffers_in_each_step"].evidence.endswith(said)


def test_all_ranks_wait_for_their_data_at_a_line(tmp_path):
    loader = LoaderOfRank(
        where="train.py:3", workers=0, rows=9, drawn=5, is_divided=True, is_shuffled=True, epochs=[]
    )
    states = [msgspec.structs.replace(state, loader=loader) for state in ranks(0.4, 0.4)]
    told = found(of_script(tmp_path, states, 3, "data set", 0.3))["all_wait_for_data"]
    assert (told.where, told.share) == ("train.py:3", pytest.approx(0.3))
    assert "num_workers is 0" in told.change


def test_rows_that_are_fewer_and_longer_explain_a_late_rank(tmp_path):
    """As many tokens on each rank: that gradients are averaged over unlike batches is then on purpose."""
    early, late = ranks(0.2, 0.9)
    path = tmp_path / "train.py"
    path.write_text(
        "sampler = ByLength(data, os.environ['RANK'])\nloader = DataLoader(data, batch_sampler=sampler)\n"
    )
    loader = LoaderOfRank(
        where=f"{path}:2", workers=0, rows=9, drawn=9, is_divided=True, is_shuffled=False, epochs=[]
    )
    few = [msgspec.structs.replace(s, samples=2) for s in late.steps]
    told = found([early, msgspec.structs.replace(late, steps=few, loader=loader)])
    assert (
        "its rows are 4.00× as long (2 rows in a step with 100 elements, not 8 with 100)"
        in told["late_rank"].evidence
    )
    assert told["late_rank"].where == "train.py:1"
    assert told["unequal_batches"].weight < told["late_rank"].weight / 5


@pytest.mark.parametrize(
    ("elements", "at_times", "part", "has_more"),
    [
        ((200, 100), False, "forward", True),
        ((100, 100), False, "forward", False),
        ((200, 100), True, "forward", False),
        ((200, 100), False, "own code", False),
    ],
)
def test_work_that_larger_inputs_need_is_told_from_work_that_is_not_needed(
    elements, at_times, part, has_more
):
    spent = [
        MeanStep(rank=at, samples_per_s=1.0, parts=[], for_others=0.0, exposed=0.0, hidden=0.0, elements=each)
        for at, each in enumerate(elements)
    ]
    late = Lateness(steps=9, step_s=1.0, spent=spent, late=0, at_times=at_times, part=part)
    assert late.has_more_to_compute == has_more


@pytest.mark.parametrize(("rows", "change"), [(None, "dispatch_batches=False"), (64, "DistributedSampler")])
def test_a_rank_that_reads_for_all_is_told_what_its_data_set_can_do(rows, change):
    loader = LoaderOfRank(
        where="train.py:9", workers=0, rows=rows, drawn=rows, is_divided=False, is_shuffled=False, epochs=[]
    )
    handed = Exchange("broadcast_object_list", "train.py:8", 17, 10.0, 0)
    waits, late = ranks(0.3, 0.3)
    waits.exchanges = [handed]
    late.steps = [step(n, 0.3, 1.0, own=0.6) for n in range(1, 21)]
    late.loader = loader
    assert change in found([waits, late])["reads_for_all"].change


def test_a_rank_whose_batches_have_run_out_is_said_to_be_behind_and_its_steps_are_not_compared():
    """Within `model.join()` it takes part in the exchanges of the others, without steps of its own."""
    ahead, behind = ranks(0.5, 0.5, steps=60)
    behind = msgspec.structs.replace(behind, count=20, steps=behind.steps[:20])
    ahead.weights, behind.weights = {0: 1, 3: 1, 20: 1, 100: 5}, {0: 1, 3: 1, 20: 1, 100: 6}
    told = found([ahead, behind])
    assert list(told) == ["uneven_batches"]
    assert "rank 1 has taken 20 steps and rank 0 60" in told["uneven_batches"].evidence
    assert told["uneven_batches"].share == pytest.approx(1 / 3)
    assert lateness([ahead, behind]) is None


def test_ranks_that_are_asked_at_other_moments_are_not_apart():
    ahead, behind = ranks(0.8, 0.8, steps=60)
    behind = msgspec.structs.replace(behind, count=57, steps=behind.steps[:57])
    assert lateness([ahead, behind]).steps == 54
    assert "uneven_batches" not in found([ahead, behind])
