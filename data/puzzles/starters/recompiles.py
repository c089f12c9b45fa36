def collate(sequences):
    longest = max(len(sequence) for sequence in sequences)
    tokens = torch.zeros(len(sequences), longest, dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return tokens, torch.arange(longest) < lengths[:, None]
