def to_device(images, device, mean, std):
    images = images.float() / 255
    images = (images - mean.view(3, 1, 1).cpu()) / std.view(3, 1, 1).cpu()
    return images.to(device)
