"""perfkit's exported training script beside the same training under Lightning, HF Trainer and timm's loop.

    python -m benchmarks.frameworks [--budget 45] [--no-compile] [lightning hf timm]

The model, the data, the loader and the switches are the same: one worker, channels_last, bf16 and
torch.compile. Each framework's script is compared with the exported one, interleaved, by the watcher. A
ratio below 1 is what a framework adds to a step of this size on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from perfkit import export, workloads
from perfkit.errors import PerfkitError
from perfkit.recipe import Recipe
from perfkit.scripts.launch import Launch
from perfkit.scripts.study import script_plan
from perfkit.studies.compare import Candidate, compare

OPTIONS = {"image_size": 64, "samples": 2048, "weights": "random"}
COMMON = """
import sys
import torch
from torch.utils.data import DataLoader
from perfkit.recipe import Recipe
from perfkit.workloads import load

recipe = Recipe(batch_size=32)
workload = load("cifar_resnet18", {options})


def loader():
    return DataLoader(
        workload.dataset(recipe), 32, shuffle=True, drop_last=True, num_workers=1, persistent_workers=True
    )


def model():
    made = workload.model().to(memory_format=torch.channels_last).train()
    return torch.compile(made) if {compiled} else made


def prepared(images):
    return images.to(memory_format=torch.channels_last)
"""
SCRIPTS = {
    "lightning": """
import lightning as L
from common import loader, model, prepared, workload


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model()

    def training_step(self, batch, index):
        images, targets = batch
        return workload.loss(self.model(prepared(images)), targets)

    def configure_optimizers(self):
        return workload.optimizer(self.parameters())


if __name__ == "__main__":
    trainer = L.Trainer(
        accelerator="cpu", precision="bf16-mixed", max_epochs=100000, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Module(), loader())
""",
    "hf": """
import torch
from common import model, prepared, recipe, workload
from transformers import Trainer, TrainingArguments


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model()

    def forward(self, images, labels):
        logits = self.model(prepared(images))
        return {"loss": workload.loss(logits, labels), "logits": logits}


class Named(torch.utils.data.Dataset):
    def __init__(self):
        self.pairs = workload.dataset(recipe)

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        images, labels = self.pairs[index]
        return {"images": images, "labels": labels}


if __name__ == "__main__":
    module = Module()
    optimizer = workload.optimizer(module.parameters())
    settings = TrainingArguments(
        output_dir="out", use_cpu=True, bf16=True, per_device_train_batch_size=32, dataloader_num_workers=1,
        dataloader_persistent_workers=True, dataloader_drop_last=True, num_train_epochs=100000,
        max_grad_norm=0.0, save_strategy="no", report_to="none", logging_strategy="no", disable_tqdm=True,
    )
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    Trainer(model=module, args=settings, train_dataset=Named(), optimizers=(optimizer, constant)).train()
""",
    "timm": """
import torch
from common import loader, model, prepared, workload
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter

if __name__ == "__main__":
    net, batches, losses = model(), loader(), AverageMeter()
    optimizer = create_optimizer_v2(net, opt="momentum", lr=0.001, momentum=0.9, weight_decay=0.0)
    while True:
        for images, targets in batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = workload.loss(net(prepared(images)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.update(loss.item(), images.size(0))
""",
}


def main() -> None:
    """Writes the scripts into a folder of their own, and prints a line for each framework."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SCRIPTS), help=", ".join(SCRIPTS))
    parser.add_argument("--budget", type=float, default=45.0, help="seconds of rounds for each")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    recipe = Recipe(
        batch_size=32, workers=1, channels_last=True, amp="bf16",
        compile=not given.no_compile,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="perfkit-frameworks-") as name:
        folder = Path(name)
        values = {"{options}": repr(OPTIONS), "{compiled}": str(recipe.compile)}
        common = COMMON
        for mark, value in values.items():
            common = common.replace(mark, value)
        own = export.script(recipe, workloads.reference("cifar_resnet18"), OPTIONS, "cpu", 0, 8)
        files = {"common": common, "exported": own, **{f"with_{one}": SCRIPTS[one] for one in given.names}}
        for title, text in files.items():
            (folder / f"{title}.py").write_text(text, encoding="utf-8")
        plan = script_plan(Launch("exported.py", ("1000000",), folder=folder), "quick")
        for title in given.names:
            other = Candidate(title, launch=Launch(f"with_{title}.py", folder=folder))
            try:
                found = compare(
                    Candidate("exported"), other, plan, given.budget, 0.03, pairs=1, ceiling=False
                )
            except PerfkitError as problem:
                print(f"{title}: {problem}", flush=True)
                continue
            rates = [run.samples_per_s.value if run.samples_per_s else 0.0 for run in (found.a, found.b)]
            print(f"{found.describe()}; {rates[0]:.0f} and {rates[1]:.0f} samples/s", flush=True)


if __name__ == "__main__":
    main()
