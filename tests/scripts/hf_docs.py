"""As Hugging Face's guide to the Trainer, with a small GPT-2 and made-up tokens."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __init__(self, count):
        self.ids = torch.randint(200, (count, 32), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def main():
    sizes = {"vocab_size": 200, "n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes, **ends, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0))
    training_args = TrainingArguments(
        output_dir="my_awesome_model",
        eval_strategy="epoch",
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        num_train_epochs=1000,
        weight_decay=0.01,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=training_args, train_dataset=Tokens(480), eval_dataset=Tokens(64))
    trainer.train()


if __name__ == "__main__":
    main()
