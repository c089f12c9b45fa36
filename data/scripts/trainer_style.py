"""Trains a small language model with a `Trainer` and its `TrainingArguments`, both in this file.

    python trainer_style.py --max-steps 500

It is built as scripts for Hugging Face's Trainer are, without that package. The text is made up when it starts.
"""

import argparse
import math
import random
import re
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

WORDS = ["the", "a", "one", "some", "old", "young", "red", "blue", "small", "large", "cat", "dog", "bird", "fish", "house", "river", "sees", "likes", "finds", "hears"]
PAD = 0


class Sentences(Dataset):
    """Sentences of various lengths, split into tokens whenever one is needed."""

    def __init__(self, count, words, seed):
        chosen = random.Random(seed)
        self.texts = [" ".join(chosen.choices(WORDS, k=chosen.randint(words // 2, words))) for _ in range(count)]
        self.ids = {word: number for number, word in enumerate(WORDS, 1)}
        self.words = words

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        tokens = [self.ids[word] for word in re.findall(r"\w+", self.texts[index].lower())]
        padded = torch.full((self.words,), PAD)
        padded[: len(tokens)] = torch.tensor(tokens)
        return {"input_ids": padded, "labels": padded.clone()}


class LanguageModel(nn.Module):
    def __init__(self, words, width=128, heads=4, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(WORDS) + 1, width), nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, len(WORDS) + 1)

    def forward(self, input_ids, labels):
        length = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=input_ids.device)
        hidden = self.tokens(input_ids) + self.places(torch.arange(length, device=input_ids.device))
        logits = self.head(self.layers(hidden, mask=mask, is_causal=True))
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=PAD)
        return {"loss": loss, "logits": logits}


@dataclass
class TrainingArguments:
    output_dir: str = "out"
    max_steps: int = 500
    per_device_train_batch_size: int = 16
    gradient_accumulation_steps: int = 2
    learning_rate: float = 1e-3
    warmup_steps: int = 20
    max_grad_norm: float = 1.0
    eval_steps: int = 50
    logging_steps: int = 10
    dataloader_num_workers: int = 0


class Trainer:
    """Batches to the device, gradients accumulated and clipped, a schedule, evaluation every so often."""

    def __init__(self, model, args, train_dataset, eval_dataset):
        self.args = args
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        size, workers = args.per_device_train_batch_size, args.dataloader_num_workers
        self.train_loader = DataLoader(train_dataset, size, shuffle=True, num_workers=workers, drop_last=True)
        self.eval_loader = DataLoader(eval_dataset, size)
        self.optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate, foreach=False)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.scale)

    def scale(self, step):
        if step < self.args.warmup_steps:
            return (step + 1) / self.args.warmup_steps
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.args.max_steps)))

    def to_device(self, batch):
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def training_step(self, batch):
        self.model.train()
        loss = self.model(**self.to_device(batch))["loss"] / self.args.gradient_accumulation_steps
        loss.backward()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        losses = [self.model(**self.to_device(batch))["loss"].item() for batch in self.eval_loader]
        return sum(losses) / len(losses)

    def train(self):
        args, step, batches, logged = self.args, 0, 0, 0.0
        while step < args.max_steps:
            for batch in self.train_loader:
                logged += self.training_step(batch)
                batches += 1
                if batches % args.gradient_accumulation_steps:
                    continue
                nn.utils.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                step += 1
                if step % args.logging_steps == 0:
                    print({"step": step, "loss": round(logged / args.logging_steps, 4)}, flush=True)
                    logged = 0.0
                if step % args.eval_steps == 0:
                    print({"step": step, "eval_loss": round(self.evaluate(), 4)}, flush=True)
                if step == args.max_steps:
                    break


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=500)
    parser.add_argument("--words", type=int, default=48)
    given = parser.parse_args()
    torch.manual_seed(0)
    train, test = Sentences(2000, given.words, seed=1), Sentences(64, given.words, seed=2)
    Trainer(LanguageModel(given.words), TrainingArguments(max_steps=given.max_steps), train, test).train()


if __name__ == "__main__":
    main()
