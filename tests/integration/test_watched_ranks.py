"""Several ranks, launched as people do, are watched: the first sentence names the right thing, and nothing is left."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial

import psutil
import pytest

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks import rank
from perfkit.additions.ranks.launch import launch_of
from perfkit.additions.ranks.messages import LIMIT
from perfkit.additions.ranks.watching import watch_launch
from perfkit.errors import InvalidValue, RunFailed
from perfkit.studies.sources import Progress
from tests.support import scripts
from tests.support.cli import ROOT
from tests.support.ranks import FORKED
from tests.support.settings import settings

pytestmark = [pytest.mark.usefixtures("no_orphans"), pytest.mark.timeout(240)]
IMPORTS = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""
LAUNCHED = (
    IMPORTS
    + """
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = torch.Generator().manual_seed(rank)
"""
)
LONG_ROWS = """
def main():
    model = DistributedDataParallel(nn.GRU(16, 16, batch_first=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    lengths = [5] * 32 + [200] * 32
    share = 32
    mine = lengths[rank * share:(rank + 1) * share]
    for step in range(40):
        inputs = torch.randn(8, mine[step % share], 16, generator=rows)
        loss = model(inputs)[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        WRONG
    dist.destroy_process_group()

main()
"""
EVALUATES = """
def evaluate(model):
    for _ in range(5):
        time.sleep(0.1)

model = DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(40):
    optimizer.zero_grad()
    for micro in range(4):
        loss = model(torch.randn(8, 64, generator=rows)).square().mean() / 4
        loss.backward()
    optimizer.step()
    if step % 10 == 9:
        if rank == 0:
            evaluate(model)
        dist.barrier()
dist.destroy_process_group()
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
START_PROCESSES = """from torch.multiprocessing import start_processes
    start_processes(main, (port,), nprocs=2, start_method="fork")"""
LOOP = """
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
        time.sleep(5)
        model.train()
"""
ONE_PROCESS = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
while True:
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
"""
OWN_MEETING = LAUNCHED.replace(
    '"gloo")',
    """"gloo", init_method="file://" + os.environ["TMPDIR"] + "/life" + os.environ["TORCHELASTIC_RESTART_COUNT"],
    rank=int(os.environ["RANK"]), world_size=2)""",
)
"""Where ranks meet is new after a restart: in the store of the agent, gloo may find the ports of the first."""
SESSIONS = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()  # as an agent does for each of its ranks
        break
time.sleep(1000)
"""
COUNTED = """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(8, 8) for _ in range(LAYERS)]))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
calls = []

def count(frame, event, _):
    if event == "call" and "/perfkit/additions/" in frame.f_code.co_filename:
        calls[-1] += 1

for step, (rows,) in enumerate(DataLoader(TensorDataset(torch.randn(4800, 8)), 8)):
    calls.append(0)
    sys.setprofile(count if step > 100 else None)
    model(rows).sum().backward()
    optimizer.step()
    if step == 140:
        break
sys.setprofile(None)
print(min(calls[101:-1]))
"""
KILLED = """
import json, os, signal, time
from perfkit.additions.ranks.launch import launch_of
from perfkit.additions.ranks.started import ComparedRanks, WatchedRanks

launches = [kind(launch_of(["python", "train.py"])).start() for kind in (WatchedRanks, ComparedRanks)]
while any(len(launch.pids()) < 3 for launch in launches):
    time.sleep(0.05)
launches[1].suspend()
print(json.dumps([pid for launch in launches for pid in launch.pids()]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """The empty folder in which scripts are started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.fixture
def folder(alone, monkeypatch):
    """The same, for scripts that need no interpreter and no launcher of their own."""
    scripts.fork(monkeypatch)
    return alone


def written(folder, text):
    """Writes a script; its lines by what is in them."""
    (folder / "train.py").write_text(text)
    return lambda part: f"train.py:{next(n for n, line in enumerate(text.splitlines(), 1) if part in line)}"


def forked(progress=None, **settings):
    return watch_launch(launch_of(["python", "train.py"], settings), progress)


# ---------------------------------------------------------------- who is late


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """A launch that the agent starts again once, then one rank has longer rows; and the lines of its script."""
    folder = tmp_path_factory.mktemp("restarted")
    is_first = 'os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"'
    wrong = f'if step == 5 and rank == 1 and {is_first}: raise KeyError("lost")'
    line = written(folder, OWN_MEETING + LONG_ROWS.replace("WRONG", wrong))
    how = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        return watch_launch(launch_of(["torchrun", *how, "train.py"])), line


def test_a_rank_with_longer_rows_is_late_and_the_other_s_backward_is_not_blamed(restarted):
    seen, line = restarted
    said = seen.first_sentence
    assert said.startswith(f"{line('mine =')}: rank 1 is late in every step"), said
    assert "its inputs are 40.00× as large" in said
    assert f"in backward ({line('loss.backward')})" in said
    early, late = seen.lateness.spent
    assert (seen.lateness.late, seen.ended) == (1, True)
    assert early.for_others > 5 * late.for_others
    assert early.parts[2] < late.parts[2], "the early rank's backward pass is not what it waits in it"


def test_ranks_that_the_agent_starts_again_are_told_and_not_mixed_with_those_before(restarted):
    seen, _ = restarted
    assert seen.ended
    assert seen.steps in (39, 40), "without the five steps of the first start"
    assert any("restart 1): only what came after is told" in warning for warning in seen.warnings)


@pytest.fixture(scope="module")
def evaluating(tmp_path_factory):
    """Ranks that accumulate, of which one evaluates alone; gradients are sent as 16 bits, in small buckets."""
    folder = tmp_path_factory.mktemp("evaluating")
    line = written(folder, FORKED + EVALUATES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        scripts.fork(patch)
        return forked(gradients="fp16", bucket_mb=1), line


def test_a_rank_that_evaluates_alone_is_late_at_times(evaluating):
    seen, line = evaluating
    said = seen.first_sentence
    assert said.startswith(line("        evaluate(model)")), said
    assert "rank 0 is late in 3 of" in said or "rank 0 is late in 4 of" in said
    assert f"in barrier ({line('dist.barrier')})" in said


def test_switches_that_are_set_are_proved_on_every_rank(evaluating):
    seen, _ = evaluating
    proofs = {proof.name: proof.evidence for proof in seen.mechanisms if proof.ok}
    assert proofs["gradients"] == "on all 2 ranks: the model's hook for its gradients is fp16_compress_hook"
    assert proofs["bucket_mb"].startswith("on all 2 ranks: buckets of at most 1 MB")


def test_gradients_that_are_sent_for_each_of_several_batches_are_counted(evaluating):
    seen, line = evaluating
    found = {finding.cause: finding for finding in seen.findings}
    sent = found["exchange_in_each_pass"]
    assert sent.where == line("loss.backward")
    assert "sent 4 times for each step" in sent.evidence
    assert "no_sync" in sent.change


BECOMES_LATE = """
class Slow(nn.Linear):
    def forward(self, inputs):
        if step >= 200 and rank == 1 and not EVALUATES:
            time.sleep(0.02)
        return super().forward(inputs)

model = DistributedDataParallel(nn.Sequential(Slow(64, 64), nn.BatchNorm1d(64)))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(400):
    optimizer.zero_grad()
    model(torch.randn(8, 64, generator=rows)).square().mean().backward()
    optimizer.step()
    if step % 60 == 59 and rank == 0 and EVALUATES:
        model.eval()
        time.sleep(2)
        model.train()
dist.destroy_process_group()
"""


def test_a_rank_that_becomes_late_in_steps_that_are_only_timed_is_named(folder):
    """The others wait within their forward passes, where buffers are sent, and in their backward passes."""
    line = written(folder, FORKED + BECOMES_LATE.replace("EVALUATES", "False"))
    seen = forked()
    assert seen.first_sentence.startswith(f"{line('time.sleep(0.02)')}: rank 1 is late"), seen.first_sentence


def test_an_evaluation_in_steps_that_are_only_timed_is_named(folder):
    line = written(folder, FORKED + BECOMES_LATE.replace("EVALUATES", "True"))
    said = forked().first_sentence
    assert said.startswith(f"{line('time.sleep(2)')}: rank 0 is late in 6 of 397 steps, by 2"), said


FROZEN_BY_ITS_RATE = """
body, head = nn.Linear(512, 512), nn.Linear(512, 2)
model = DistributedDataParallel(nn.Sequential(body, nn.ReLU(), head))
groups = [{"params": body.parameters(), "lr": 0.0}, {"params": head.parameters()}]
optimizer = torch.optim.SGD(groups, 0.01)
for step in range(120):
    optimizer.zero_grad()
    model(torch.randn(256, 512, generator=rows)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_weights_that_only_their_learning_rate_freezes_are_named_with_the_line_of_the_wrapper(folder):
    line = written(folder, FORKED + FROZEN_BY_ITS_RATE)
    found = {finding.cause: finding for finding in forked().findings}
    told = found["zero_learning_rate"]
    assert told.where.startswith(line("optimizer = ")) and f"({line('model = ')})" in told.change
    assert "262,656 weights (>99% of those that have gradients)" in told.evidence
    assert "exposed_exchange" not in found, "there would be hardly anything to send"


# ---------------------------------------------------------------- other ways to start ranks


def test_ranks_that_a_script_starts_itself_train_on_the_same_rows(alone):
    line = written(alone, IMPORTS + ALL_ROWS)
    seen = forked()
    assert seen.ranks == 2
    assert seen.first_sentence.startswith(f"{line('DataLoader(data')}: all 2 ranks train on the same rows")
    assert "sampler.set_epoch" in seen.first_sentence


def test_ranks_that_are_forked_are_seen_and_tell_what_they_have_seen_at_their_end(folder):
    spawned = "torch.multiprocessing.spawn(main, (port,), nprocs=2)"
    written(folder, IMPORTS + ALL_ROWS.replace(spawned, START_PROCESSES))
    seen = forked()
    assert (seen.ranks, seen.ended) == (2, True)
    assert "train on the same rows" in seen.first_sentence


# ---------------------------------------------------------------- what watching costs


def watch_here(folder):
    """Has this process watched as a rank, by somebody who only listens."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{folder}/ranks")
    listening.listen()
    atexit.register(listening.close)
    rank.listen(settings(scratch=f"{folder}/files", address=f"{folder}/ranks"), Outputs(folder))


def test_a_plain_step_makes_few_calls_whatever_is_in_the_model(tmp_path):
    """Each takes microseconds after what torch computes, and steps may be short."""
    found = []
    for layers in (6, 60):
        file = tmp_path / f"train{layers}.py"
        file.write_text(IMPORTS + COUNTED.replace("LAYERS", str(layers)))
        folder = tmp_path / str(layers)
        folder.mkdir()
        found.append(int(scripts.run(file, partial(watch_here, str(folder)))))
    assert found[0] == found[1]
    assert max(found) <= 27, "most steps are only timed, and their inputs counted"


# ---------------------------------------------------------------- ranks that fail


def test_a_rank_that_raises_is_named_with_its_last_words(folder):
    line = written(folder, FORKED + LOOP.replace("WRONG", "raise KeyError('lost')"))
    with pytest.raises(RunFailed, match="rank 1 of 2 failed after 5 steps") as raised:
        forked()
    assert f"({line('KeyError')})" in str(raised.value)
    assert "Traceback" in raised.value.output


def test_a_rank_that_is_killed_is_named_not_the_one_that_loses_it(alone):
    written(alone, LAUNCHED + LOOP.replace("WRONG", "time.sleep(2); os.kill(os.getpid(), 9)"))
    with pytest.raises(RunFailed, match="rank 1 of 2 ended without a word after 5 steps or more"):
        # The agent looks seldom enough that the other rank can say what it lost.
        patient = ["torchrun", "--monitor-interval", "4", "--nproc-per-node", "2", "train.py"]
        watch_launch(launch_of(patient))


def test_a_rank_that_hangs_is_named_with_its_line_and_where_the_others_wait(folder, monkeypatch):
    line = written(folder, FORKED + LOOP.replace("WRONG", "time.sleep(1000)"))
    monkeypatch.setattr(LIMIT, "quiet_s", 3.0)
    with pytest.raises(RunFailed) as raised:
        forked()
    assert f"rank 1 (at {line('time.sleep(1000)')}, after 5 steps) has not come to" in raised.value.what
    assert f"({line('.backward()')}), where rank 0 waits" in raised.value.what


def test_no_rank_survives_a_watcher_that_is_killed(alone):
    """Nor one that has not come yet, nor one that is suspended; and nothing of theirs is left on the disk."""
    written(alone, SESSIONS)
    temporary = alone / "t"  # the path of a socket is short
    temporary.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=alone, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) == 6
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=60)[1]
    until = time.monotonic() + 60
    while list(temporary.iterdir()) and time.monotonic() < until:  # it goes once all of them have gone
        time.sleep(0.1)
    assert not list(temporary.iterdir())


def test_a_long_evaluation_is_waited_for_and_said(folder, monkeypatch):
    written(folder, FORKED + LOOP.replace("100_000", "40").replace("WRONG", LONG_EVALUATION))
    monkeypatch.setattr(LIMIT, "quiet_s", 2.0)
    phases = []
    seen = forked(Progress(lambda update: phases.append(update.phase)))
    assert seen.ended
    assert any("rank 1 is in its evaluation" in phase for phase in phases)


def test_a_script_that_trains_in_one_process_is_sent_to_the_command_for_it(folder):
    written(folder, IMPORTS + ONE_PROCESS)
    with pytest.raises(RunFailed, match="trains in one process.* perfkit watch train.py"):
        forked()


# ---------------------------------------------------------------- several nodes


def test_of_two_nodes_that_of_rank_0_has_the_report_of_all(folder):
    """Two launches on this machine stand for two nodes."""
    written(folder, LAUNCHED + LONG_ROWS.replace("range(40)", "range(100_000)").replace("WRONG", ""))
    problems = []

    def launch(node):
        how = f"--nnodes 2 --nproc-per-node 1 --node-rank {node} --master-addr 127.0.0.1 --master-port {port}"
        return launch_of(["torchrun", *how.split(), "train.py"])

    def other_node():
        try:
            watch_launch(launch(1), budget_s=1.0)
        except RunFailed as problem:
            problems.append(problem)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    other = threading.Thread(target=other_node)
    other.start()
    seen = watch_launch(launch(0), budget_s=3.0)
    other.join(60)
    assert (seen.ranks, seen.nodes, [state.rank for state in seen.states]) == (2, 2, [0, 1])
    assert seen.lateness.late == 1
    assert "The report of all ranks is on the node of rank 0" in str(problems[0])


def test_a_command_that_is_not_there_is_refused():
    with pytest.raises(InvalidValue, match="no program torchrum"):
        launch_of(["torchrum", "train.py"])
