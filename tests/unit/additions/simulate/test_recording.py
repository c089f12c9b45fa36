"""The kernels, waits and memory of a step, recorded on tensors without numbers."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.data import TensorDataset

from perfkit.additions.simulate import fake, recording
from perfkit.additions.simulate.step import Allocate, Copy, Fetch, Wait
from perfkit.recipe import Recipe
from tests.unit.additions.simulate.plans import Block, Images, Of, of, operators, planned, prediction

EAGER = """add_ convolution convolution native_batch_norm relu_ mean addmm _log_softmax nll_loss_forward
ones_like nll_loss_backward _log_softmax_backward_data mm mm sum div convolution_backward convolution_backward
threshold_backward native_batch_norm_backward _foreach_mul_ _foreach_add_ _foreach_add_"""


def names(step):
    return Counter(operator.name.removeprefix("aten.") for operator in operators(step))


def recorded(workload, **switches):
    return recording.record(workload, Recipe(batch_size=4).replace(**switches))


def test_the_kernels_of_a_step_are_those_of_cuda():
    """An optimizer that falls back to loops, or a layer taken apart, would change predictions silently."""
    assert names(planned()) == Counter(EAGER.split())


def test_autocast_casts_as_cuda_does_and_takes_the_widest_type_where_that_does():
    step = planned(amp="fp16")
    products = [op for op in operators(step) if op.name in ("aten.convolution", "aten.addmm")]
    assert {op.inputs[0].dtype for op in products} == {"float16"}
    [softmax] = [op for op in operators(step) if op.name == "aten._log_softmax"]
    assert (softmax.inputs[0].dtype, softmax.outputs[0].dtype) == ("float16", "float32"), "no cast"
    with torch.autocast("cpu", torch.bfloat16):
        after = torch.zeros(4, requires_grad=True).softmax(0)
    assert after.dtype == torch.float32, "and only while it listens"
    model = Block(lambda x, one: x[:, 0, 0, :4].addcmul(y := one(x.flatten(1)), y), nn.Linear(192, 4))
    [added] = [op for op in operators(recorded(Of(lambda: model), amp="fp16")) if "addcmul" in op.name]
    assert {tensor.dtype for tensor in added.inputs + added.outputs} == {"float32"}


def test_channels_last_reaches_every_convolution():
    convolutions = [op for op in operators(planned(channels_last=True)) if "convolution" in op.name]
    assert {op.outputs[0].layout for op in convolutions} == {"channels_last"}


def test_a_product_of_three_dimensions_hands_on_its_own_memory():
    """matmul gives its result another shape: were that other memory, nothing could be fused with it."""
    first, last = nn.Linear(64, 4, bias=False), nn.Linear(12, 4)
    model = nn.Sequential(nn.Flatten(2), first, nn.Softplus(), nn.Flatten(), last)
    product, softplus = operators(recorded(Of(lambda: model)))[:2]
    assert (product.name, softplus.name) == ("aten.mm", "aten.softplus")
    assert product.outputs[0].block == softplus.inputs[0].block


def test_the_copies_and_the_fetch_stand_before_the_forward_pass():
    step = planned(pin_memory=True, non_blocking=True, accumulation=2)
    assert [type(event) for event in of(step, Fetch | Copy)] == 2 * [Fetch, Copy, Copy]
    copies = {(copy.nbytes, copy.pinned, copy.non_blocking) for copy in of(step, Copy)}
    assert copies == {(4 * 3 * 8 * 8 * 4, True, True), (4 * 8, True, True)}


def test_prefetching_moves_the_copies_to_a_second_stream_ahead_of_the_kernels():
    step = planned(device_prefetch=True, pin_memory=True)
    assert {copy.stream for copy in of(step, Copy)} == {1}
    assert [type(event) for event in step.events[:4]] == [Wait, Fetch, Copy, Copy]
    assert step.events[0] == Wait((0, 1))


def test_prefetching_holds_one_batch_more_at_the_peak():
    batch = 4 * 3 * 8 * 8 * 4 + 4 * 8
    plain, ahead = (planned(device_prefetch=on, pin_memory=True).resident for on in (False, True))
    assert [(block.nbytes, block.kind) for block in ahead[len(plain) :]] == [
        (batch - 32, "batch"),
        (32, "batch"),
    ]
    assert len({block.block for block in ahead}) == len(ahead)
    both = planned(device_prefetch=True, pin_memory=True, accumulation=2).resident
    assert sum(block.nbytes for block in both[-2:]) == batch and both[-3].kind != "batch", "only the next one"
    peaks = [prediction(device_prefetch=on, pin_memory=True).peak[0] for on in (False, True)]
    assert peaks[1] - peaks[0] == batch - 32 + 512, "as the allocator rounds them"


def test_gradient_scaling_waits_once_and_adams_step_count_never():
    adam = Of(Images().model, optimizer=torch.optim.Adam)
    for amp, waits in (("fp16", [Wait()]), ("off", [])):
        assert of(recorded(adam, amp=amp), Wait) == waits


def test_a_value_that_is_read_is_a_wait_and_a_tensor_a_copy():
    def reads(x, layer):
        y = layer(x.flatten(1))
        y.sum().item()
        return y.cpu()

    step = recorded(Of(lambda: Block(reads, nn.Linear(192, 4))))
    assert of(step, Wait) == [Wait()]
    assert [copy.to for copy in of(step, Copy)] == ["device", "device", "host"]


@pytest.mark.parametrize("switches", [{}, {"amp": "fp16"}, {"zero_grad_set_to_none": False}])
def test_a_step_gives_back_what_it_takes(switches):
    balance = sum(block.nbytes for block in of(planned(**switches), Allocate))
    assert abs(balance) < 100


def test_memory_has_weights_momentum_and_activations_and_adds_up():
    model, memory = Images().model(), prediction(batch_size=64).memory()
    assert memory.parts["weights"] == sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    assert memory.parts["optimizer"] == sum(weight.nbytes for weight in model.parameters())
    kinds = {block.kind for block in of(planned(batch_size=64), Allocate)}
    assert kinds == {"batch", "activations", "workspace", "gradients"}
    assert memory.peak == sum(memory.parts.values()) == pytest.approx(memory.allocated, rel=0.05)
    assert memory.allocated > 2 * 64 * 8 * 8 * 8 * 4, "both convolutions' outputs"
    assert "Predicted" in memory.simulated


@pytest.mark.parametrize(("amp", "kernel"), [("off", "efficient"), ("fp16", "flash")])
def test_attention_is_the_kernel_that_cuda_chooses(amp, kernel):
    def attends(x, layer):
        y = layer(x).reshape(4, 3, 8, 8)
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=0.1).mean((1, 2))

    step = recorded(Of(lambda: Block(attends, nn.Linear(8, 8))), amp=amp)
    assert names(step)[f"_scaled_dot_product_{kernel}_attention"] == 1


def attends(x, layer, head):
    return head(layer(x.flatten(2), src_key_padding_mask=x[:, :, 0, 0] == 0)[:, 0])


def normed():
    conv, linear = nn.Conv2d(3, 8, 3), nn.Linear(288, 4)
    return nn.Sequential(weight_norm(conv), nn.Flatten(), spectral_norm(linear))


MODELS = {
    "U-Net": (
        lambda: Block(
            lambda x, down, up, out: out(torch.cat([x, up(down(x))], 1)).mean((2, 3)),
            nn.Conv2d(3, 8, 2, 2), nn.ConvTranspose2d(8, 3, 2, 2), nn.Conv2d(6, 4, 1),
        ),
        {"convolution": 3, "convolution_backward": 3, "cat": 1},
    ),
    "transformer": (
        lambda: Block(attends, nn.TransformerEncoderLayer(64, 4, 64, batch_first=True), nn.Linear(64, 4)),
        {"_scaled_dot_product_efficient_attention": 1, "native_layer_norm": 2},
    ),
    "parametrized weights": (normed, {"convolution": 1, "mv": 3}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_other_architectures_are_planned_with_the_kernels_they_call(name):
    model, kernels = MODELS[name]
    counted = names(recorded(Of(model)))
    assert {kernel: counted[kernel] for kernel in kernels} == kernels


def test_models_are_built_without_drawing_numbers():
    """Nor by drawing again until they are within bounds, which would never end."""
    with fake.uninitialised():
        weight = nn.init.trunc_normal_(torch.full((4,), 5.0))
    assert weight.tolist() == 4 * [5.0]


SPARSE = torch.eye(192).to_sparse()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.LSTM(8, 8), "its LSTM layers run in kernels of cuDNN that are not modelled"),
        (lambda: nn.Embedding(8, 8, sparse=True), "its Embedding layers have sparse gradients"),
        (lambda: Block(lambda x, one: one(x.flatten(1) if (x > 0).any() else -x), nn.Linear(192, 4)),
         "it reads a whole number or a truth value"),
        (lambda: Block(lambda x, one: one(x[x > 0]), nn.Linear(192, 4)),
         "the result of aten.index.Tensor depends on the values of tensors"),
        (lambda: Block(lambda x, one: one((SPARSE @ x.flatten(1).T).T), nn.Linear(192, 4)),
         "it computes with sparse or nested tensors"),
        (lambda: nn.Linear(7, 4), "its own code fails"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_in_words(model, words):
    with pytest.raises((recording.Unpredictable, RuntimeError)) as caught:
        recorded(Of(model))
    assert recording.reason(caught.value).startswith(words)


def test_code_that_names_cuda_is_told_so():
    assert "asks for a CUDA device" in recording.reason(RuntimeError("Found no NVIDIA driver on this system"))


def test_batches_that_the_program_does_not_take_are_refused_in_words():
    triples = Of(Images().model, dataset=lambda recipe: TensorDataset(*3 * [torch.zeros(64, 3)]))
    with pytest.raises(recording.Unpredictable, match="its data set does not give pairs"):
        recorded(triples)


def test_lists_of_tensors_are_counted_where_all_layers_have_one_shape():
    layers = [nn.Linear(8, 8, bias=False) for _ in range(4)]
    step = recorded(
        Of(lambda: nn.Sequential(nn.AdaptiveAvgPool2d((1, 8)), nn.Flatten(), nn.Linear(24, 8), *layers))
    )
    lists = {
        op.name.removeprefix("aten."): op.attributes["lists"]
        for op in operators(step)
        if "_foreach" in op.name
    }
    assert lists == {"_foreach_mul_": 1, "_foreach_add_": 2}
