def forward(blocks, x):
    for block in blocks:
        x = block(x)
    return x
