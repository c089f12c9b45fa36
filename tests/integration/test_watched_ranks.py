"""Several ranks, launched as people do, are watched: the first sentence names the right thing, and nothing is left."""

import socket
import threading

import pytest

from perfkit.additions.ranks import launched
from perfkit.additions.ranks.asked import launch_of
from perfkit.additions.ranks.watching import watch
from perfkit.errors import InvalidValue, RunFailed
from perfkit.studies.sources import Progress

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(240)]
START = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def joined():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size()
"""
LONG_ROWS = """
def main():
    rank, world = joined()
    model = DistributedDataParallel(nn.GRU(16, 16, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    lengths = [10] * 32 + [400] * 32
    share = 32
    mine = lengths[rank * share:(rank + 1) * share]
    rows = torch.Generator().manual_seed(rank)
    for step in range(40):
        inputs = torch.randn(8, mine[step % share], 16, generator=rows)
        loss = model(inputs)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()

main()
"""
EVALUATES = """
def evaluate(model):
    for _ in range(5):
        time.sleep(0.1)

def main():
    rank, world = joined()
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows = torch.Generator().manual_seed(rank)
    for step in range(40):
        loss = model(torch.randn(8, 64, generator=rows)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            if rank == 0:
                evaluate(model)
            dist.barrier()
    dist.destroy_process_group()

main()
"""
ACCUMULATES = """
def main():
    rank, world = joined()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1500, 1500), nn.Linear(1500, 1500)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    rows = torch.Generator().manual_seed(rank)
    for step in range(12):
        optimizer.zero_grad()
        for micro in range(4):
            loss = model(torch.randn(4, 1500, generator=rows)).square().mean() / 4
            loss.backward()
        optimizer.step()
    dist.destroy_process_group()

main()
"""
ALL_ROWS = """
def main(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 32))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = DistributedDataParallel(nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(4):
        for (inputs,) in loader:
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    torch.multiprocessing.spawn(main, (port,), nprocs=2)
"""
FORKED = """from torch.multiprocessing import start_processes
    start_processes(main, (port,), nprocs=2, start_method="fork")"""
LOOP = """
rank, world = joined()
model = DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(100_000):
    if step == 5 and rank == 1:
        WRONG
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""

LONG_EVALUATION = """
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(16, 8))
        time.sleep(8)
        model.train()
"""
ONE_PROCESS = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""
OWN_MEETING = """
def joined():
    life = os.environ["TMPDIR"] + "/life" + os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist.init_process_group("gloo", init_method="file://" + life, rank=int(os.environ["RANK"]), world_size=2)
    return dist.get_rank(), dist.get_world_size()
"""
"""Where ranks meet is new after a restart: in the store of the agent, gloo may find the ports of the first."""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a script into the folder in which it is started; its lines by what is in them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def write(code):
        text = START + code
        (tmp_path / "train.py").write_text(text)
        return lambda part: (
            f"train.py:{next(n for n, line in enumerate(text.splitlines(), 1) if part in line)}"
        )

    return write


def torchrun(budget_s=60.0):
    return watch(launch_of(["torchrun", "--nproc-per-node", "2", "train.py"]), budget_s=budget_s)


def test_a_rank_with_longer_rows_is_late_and_the_other_s_backward_is_not_blamed(write):
    line = write(LONG_ROWS)
    seen = torchrun()
    said = seen.first_sentence
    assert said.startswith(f"{line('mine =')}: rank 1 is late in every step"), said
    assert "its inputs are 40.00× as large" in said
    assert f"in backward ({line('loss.backward')})" in said
    early, late = seen.lateness.spent
    assert (seen.lateness.late, seen.ended) == (1, True)
    assert early.for_others > 5 * late.for_others
    assert early.parts[2] < late.parts[2], "the early rank's backward pass is not what it waits in it"


def test_a_rank_that_evaluates_alone_is_late_at_times(write):
    line = write(EVALUATES)
    seen = torchrun()
    said = seen.first_sentence
    assert said.startswith(line("                evaluate(model)"))
    assert "rank 0 is late in 3 of" in said or "rank 0 is late in 4 of" in said
    assert f"in barrier ({line('dist.barrier')})" in said


def test_gradients_that_are_sent_for_each_of_several_batches_are_counted(write):
    line = write(ACCUMULATES)
    seen = torchrun()
    found = {finding.cause: finding for finding in seen.findings}
    sent = found["exchange_in_each_pass"]
    assert sent.where == line("loss.backward")
    assert "sent 4 times for each step" in sent.evidence
    assert "no_sync" in sent.change


def test_ranks_that_a_script_starts_itself_train_on_the_same_rows(write):
    line = write(ALL_ROWS)
    seen = watch(launch_of(["python", "train.py"]))
    assert seen.ranks == 2
    assert seen.first_sentence.startswith(f"{line('DataLoader(data')}: all 2 ranks train on the same rows")
    assert "sampler.set_epoch" in seen.first_sentence


def test_ranks_that_are_forked_are_seen_and_tell_what_they_have_seen_at_their_end(write):
    write(ALL_ROWS.replace("torch.multiprocessing.spawn(main, (port,), nprocs=2)", FORKED))
    seen = watch(launch_of(["python", "train.py"]))
    assert (seen.ranks, seen.ended) == (2, True)
    assert "train on the same rows" in seen.first_sentence


def test_a_rank_that_raises_is_named_with_its_last_words(write):
    line = write(LOOP.replace("WRONG", "raise KeyError('lost')"))
    with pytest.raises(RunFailed, match="rank 1 of 2 failed after 5 steps") as raised:
        torchrun()
    assert f"({line('KeyError')})" in str(raised.value)
    assert "Traceback" in raised.value.output


def test_ranks_that_the_agent_starts_again_are_told_and_not_mixed_with_those_before(write):
    first = 'if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0": raise KeyError("lost")'
    write(OWN_MEETING + LOOP.replace("100_000", "40").replace("WRONG", first))
    how = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    seen = watch(launch_of(["torchrun", *how, "train.py"]))
    assert seen.ended
    assert seen.steps in (39, 40), "without the five steps of the first start"
    assert any("restart 1): only what came after is told" in warning for warning in seen.warnings)


def test_a_rank_that_is_killed_is_named_not_the_one_that_loses_it(write):
    write(LOOP.replace("WRONG", "time.sleep(2); os.kill(os.getpid(), 9)"))
    with pytest.raises(RunFailed, match="rank 1 of 2 ended without a word after 5 steps or more"):
        torchrun()


def test_a_rank_that_hangs_is_named_with_its_line_and_where_the_others_wait(write, monkeypatch):
    line = write(LOOP.replace("WRONG", "time.sleep(1000)"))
    monkeypatch.setattr(launched, "QUIET_S", 4.0)
    with pytest.raises(RunFailed) as raised:
        torchrun()
    assert f"rank 1 (at {line('time.sleep(1000)')}, after 5 steps) has not come to" in raised.value.what
    assert f"({line('.backward()')}), where rank 0 waits" in raised.value.what


def test_a_long_evaluation_is_waited_for_and_said(write, monkeypatch):
    write(LOOP.replace("100_000", "40").replace("WRONG", LONG_EVALUATION))
    monkeypatch.setattr(launched, "QUIET_S", 3.0)
    phases = []
    follow = Progress(lambda update: phases.append(update.phase))
    seen = watch(launch_of(["torchrun", "--nproc-per-node", "2", "train.py"]), follow)
    assert seen.ended
    assert any("rank 1 is in its evaluation" in phase for phase in phases)


def test_a_script_that_trains_in_one_process_is_sent_to_the_command_for_it(write):
    write(ONE_PROCESS)
    with pytest.raises(RunFailed, match="trains in one process.* perfkit watch train.py"):
        watch(launch_of(["python", "train.py"]))


def test_of_two_nodes_that_of_rank_0_has_the_report_of_all(write):
    """Two agents on this machine stand for two nodes."""
    write(LONG_ROWS.replace("range(40)", "range(100_000)"))
    problems = []

    def launch(node):
        how = [
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--node-rank",
            str(node),
            "--master-addr",
            "127.0.0.1",
        ]
        return launch_of(["torchrun", *how, "--master-port", port, "train.py"])

    def other_node():
        try:
            watch(launch(1), budget_s=1.0)
        except RunFailed as problem:
            problems.append(problem)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    other = threading.Thread(target=other_node)
    other.start()
    seen = watch(launch(0), budget_s=10.0)
    other.join(60)
    assert (seen.ranks, seen.nodes, [state.rank for state in seen.states]) == (2, 2, [0, 1])
    assert seen.lateness.late == 1
    assert "The report of all ranks is on the node of rank 0" in str(problems[0])


def test_a_command_that_is_not_there_is_refused():
    with pytest.raises(InvalidValue, match="no program torchrum"):
        launch_of(["torchrum", "train.py"])
