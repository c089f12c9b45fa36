def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=1)


def to_device(images, labels, device):
    return images.to(device), labels.to(device)
