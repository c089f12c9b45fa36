def train(model, optimizer, batches):
    total, count = 0.0, 0
    for inputs, targets in batches:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        count += 1
        print(f"step {count}: {loss}")
    return total / count
