def masked_loss(logits, targets, mask):
    return F.cross_entropy(logits[mask], targets[mask])
