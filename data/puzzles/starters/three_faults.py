def train(model, optimizer, make_loader, epochs):
    history = []
    for epoch in range(epochs):
        total, count = 0.0, 0
        for inputs, targets in make_loader():
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                right = (model(inputs).argmax(1) == targets).float().mean()
            total += loss.item()
            count += 1
        history.append(total / count)
    return history
