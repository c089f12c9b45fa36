import torch

from bench import SimulatedGpu, require, same
from judged import proof, to_device

images = torch.randint(256, (4, 3, 6, 5), dtype=torch.uint8)
mean, std = torch.rand(3), torch.rand(3) + 0.5
expected = (images.float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
with SimulatedGpu() as gpu:
    there = to_device(images, gpu.device, mean.to(gpu.device), std.to(gpu.device))
    require(there.device.type == "meta", "Return the images on the device")
copied = [tensor for tensor, *_ in gpu.copies if tensor.dim() == 4]
require(gpu.to_host == 0, "Something is copied back to the host, which waits for it")
require(len(copied) == 1, "Copy the images to the device once")
require(
    copied[0].dtype == torch.uint8,
    f"The images are copied as {str(copied[0].dtype).removeprefix('torch.')}: {copied[0].nbytes // copied[0].numel()} bytes for each value instead of 1",
)
result = to_device(images, torch.device("cpu"), mean, std)
require(result.dtype == torch.float32 and result.shape == expected.shape, "Return float32[N, 3, H, W]")
same(
    result,
    expected,
    "The numbers are not (images / 255 - mean) / std, channel by channel",
    rtol=1e-4,
    atol=1e-5,
)
proof(f"{copied[0].nbytes:,} bytes are copied for {len(images)} images, a quarter of float32")
