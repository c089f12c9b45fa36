"""What a step asks of a device, against counts and bytes made out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from perfkit.simulate import costs, memory
from perfkit.simulate.gpus import gpu
from perfkit.simulate.step import Allocate, Copy, Fetch, Operator, Step, Wait
from tests.support import plans

PHOTO = 3 * 48 * 48 * 4  # bytes of one float32 image
TARGET = 8


def resnet(**recipe: Any) -> dict[str, Any]:
    return {
        "workload": "cifar_resnet18", "options": {"image_size": 48, "samples": 64, "weights": "random"},
        "recipe": {"batch_size": 8} | recipe,
    }  # fmt: skip


CASES = {
    "baseline": resnet(),
    "pinned": resnet(pin_memory=True, non_blocking=True),
    "prefetch": resnet(device_prefetch=True),
    "uint8": resnet(uint8_copy=True),
    "resize": resnet(uint8_copy=True, device_resize=True, batched_fetch=True),
    "zeros": resnet(zero_grad_set_to_none=False),
    "loop": resnet(optimizer_impl="loop"),
    "fused": resnet(optimizer_impl="fused"),
    "fp16": resnet(amp="fp16"),
    "channels_last": resnet(amp="bf16", channels_last=True),
    "accumulation": resnet(accumulation=2),
    "checkpointing": resnet(activation_checkpointing=True),
    "logged": resnet(fp32_precision="ieee", cudnn_benchmark=True),
    "mlp": {"module": ["mlp", [[8, 100], "float32"]]},
    "inference": {"module": ["mlp", [[8, 100], "float32"]], "options": {"train": False}},
    "sequence": {"module": ["mlp", [[2, 4, 100], "float32"]], "options": {"train": False}},
    "activations": {"module": ["activations", [[8, 100], "float32"]]},
    "attention": {"module": ["attention", [[2, 16, 64], "float32"]], "options": {"amp": "fp16"}},
    "recurrent": {"module": ["recurrent", [[4, 2, 8], "float32"]]},
    "chatty": {"workload": "perfkit.workloads.bottlenecks:Chatty", "recipe": {}},
    "paper": {"workload": "cifar_resnet18", "options": {"samples": 64}, "recipe": {"batch_size": 512}},
}


@pytest.fixture(scope="module")
def planned() -> dict[str, Step | str]:
    return plans.run(CASES)


@pytest.fixture
def step(planned: dict[str, Step | str], request: pytest.FixtureRequest) -> Step:
    found = planned[request.param]
    assert isinstance(found, Step), found
    return found


def case(*names: str) -> Any:
    return pytest.mark.parametrize("step", names, indirect=True)


def names(step: Step, phase: str = "") -> Counter[str]:
    return Counter(operator.name for operator in step.operators if phase in ("", operator.phase))


def of(step: Step, kind: type) -> list[Any]:
    return [event for event in step.events if isinstance(event, kind)]


@case("baseline")
def test_a_resnet18_step_has_the_operators_that_its_layers_have(step: Step) -> None:
    count = names(step)
    assert (count["aten.convolution"], count["aten.native_batch_norm"], count["aten.relu_"]) == (20, 20, 17)
    assert (count["aten.convolution_backward"], count["aten.threshold_backward"]) == (20, 17)
    assert count["aten.add_"] == 20 + 8, "a counter in every batch norm, a sum in every block"
    # The backward of a convolution is two kernels, except that the images need no gradient.
    masks = [op.attributes["output_mask"] for op in step.operators if op.name == "aten.convolution_backward"]
    assert sum(sum(mask[:2]) for mask in masks) == 39
    assert len(step.operators) - 20 + 39 == 185


@case("baseline")
def test_an_operator_knows_its_tensors_its_module_and_its_line(step: Step) -> None:
    first = next(op for op in step.operators if op.name == "aten.convolution")
    images, weights = first.inputs
    assert (images.shape, images.nbytes, weights.shape) == ((8, 3, 48, 48), 8 * PHOTO, (64, 3, 7, 7))
    assert first.outputs[0].shape == (8, 64, 24, 24)
    assert (first.attributes["stride"], first.attributes["padding"]) == ([2, 2], [3, 3])
    assert (first.module, first.phase) == ("conv1", "forward")
    assert "resnet.py:" in first.site
    last = [op for op in step.operators if op.name == "aten.convolution_backward"][-1]
    assert (last.module, last.phase, last.site) == ("conv1", "backward", first.site)


@case("baseline", "pinned", "prefetch", "fused", "loop", "accumulation", "checkpointing")
def test_a_steady_step_gives_back_all_the_memory_that_it_takes(step: Step) -> None:
    moments = memory.timeline(step)
    assert moments[0].allocated == moments[-1].allocated
    assert all(size >= 0 for moment in moments for size in moment.by_kind.values())


@case("baseline")
def test_the_loop_fetches_then_copies(step: Step) -> None:
    assert [type(event) for event in step.events if not isinstance(event, Operator)][:1] == [Fetch]
    assert [copy.nbytes for copy in of(step, Copy)] == [8 * PHOTO, 8 * TARGET]
    assert not any(copy.pinned or copy.non_blocking or copy.stream for copy in of(step, Copy))
    assert not of(step, Wait)


@case("pinned")
def test_copies_are_pinned_and_do_not_block(step: Step) -> None:
    assert all(copy.pinned and copy.non_blocking for copy in of(step, Copy))


@case("prefetch")
def test_the_next_batch_is_copied_on_a_second_stream(step: Step) -> None:
    assert {copy.stream for copy in of(step, Copy)} == {1}
    assert [wait.streams for wait in of(step, Wait)] == [(0, 1)]
    assert {op.stream for op in step.operators if op.phase == "forward"} == {0}
    assert sum(block.nbytes for block in step.resident if block.kind == "inputs") == 8 * (PHOTO + TARGET)


@case("uint8")
def test_uint8_is_copied_and_converted_on_the_device(step: Step) -> None:
    assert of(step, Copy)[0].nbytes == 8 * PHOTO // 4
    assert names(step, "prepare") == {"aten._to_copy": 1, "aten.div": 2, "aten.sub": 1}


@case("resize")
def test_small_images_are_copied_and_enlarged_on_the_device(step: Step) -> None:
    assert of(step, Copy)[0].nbytes == 8 * 3 * 32 * 32
    assert names(step, "prepare")["aten.upsample_bilinear2d"] == 1


@case("zeros")
def test_gradients_that_are_filled_with_zeros_stay(step: Step) -> None:
    assert names(step)["aten.zero_"] == 62
    assert sum(block.nbytes for block in step.resident if block.kind == "gradients") == 11_689_512 * 4


@case("loop")
def test_a_loop_updates_parameters_one_by_one(step: Step) -> None:
    assert names(step, "optimizer") == {"aten.mul_": 62, "aten.add_": 2 * 62}


@case("baseline")
def test_torch_updates_parameters_together_by_default(step: Step) -> None:
    assert names(step, "optimizer") == {"aten._foreach_mul_": 1, "aten._foreach_add_": 2}


@case("fused")
def test_a_fused_optimizer_is_one_operator(step: Step) -> None:
    assert names(step, "optimizer") == {"aten._fused_sgd_": 1}


@case("fp16")
def test_gradient_scaling_waits_once_and_the_optimizer_steps(step: Step) -> None:
    assert [wait.what for wait in of(step, Wait)] == [".item()"]
    assert names(step)["aten._amp_foreach_non_finite_check_and_unscale_"] == 1
    assert names(step)["aten._foreach_add_"] == 2
    halves = [op for op in step.operators if op.name == "aten.convolution"]
    assert {op.outputs[0].dtype for op in halves} == {"float16"}
    assert next(op for op in step.operators if op.name == "aten._log_softmax").outputs[0].dtype == "float32"


@case("channels_last")
def test_convolutions_stay_in_channels_last(step: Step) -> None:
    convolutions = [op for op in step.operators if op.name == "aten.convolution"]
    assert {op.outputs[0].layout for op in convolutions} == {"channels_last"}
    assert names(step, "prepare") == {"aten._to_copy": 1}, "only the images change their layout"


@case("accumulation")
def test_two_batches_make_a_step(step: Step) -> None:
    assert (len(of(step, Fetch)), len(of(step, Copy)), step.samples) == (2, 4, 16)
    assert names(step)["aten.convolution"] == 40
    assert sum(names(step, "optimizer").values()) == 3


@case("checkpointing")
def test_blocks_are_computed_again_in_backward(step: Step) -> None:
    # The first convolution and the last layers are outside of the four blocks.
    assert names(step, "forward")["aten.convolution"] == 20
    assert names(step, "backward")["aten.convolution"] == 19


@case("mlp")
def test_the_memory_of_a_small_net_by_hand(step: Step) -> None:
    # Blocks of 512 bytes: weights 100 × 200 and 200 × 10, biases 200 and 10, all float32.
    weights = 80_384 + 1_024 + 8_192 + 512
    before = memory.timeline(step)[0].by_kind
    assert (before["parameters"], before["optimizer"]) == (weights, weights)
    assert before["inputs"] == 3_584
    most = max(memory.timeline(step), key=lambda moment: moment.by_kind.get("gradients", 0))
    assert most.by_kind["gradients"] == weights
    # What ReLU gave (8 × 200), the logits, their log-softmax (8 × 10), targets, the loss, its weight.
    end = max(n for n, event in enumerate(step.events) if getattr(event, "phase", "") == "forward")
    kept = [moment for moment in memory.timeline(step) if moment.event <= end + 2][-1].by_kind["activations"]
    assert kept == 6_656 + 5 * 512


@case("inference")
def test_inference_has_neither_backward_nor_optimizer(step: Step) -> None:
    assert names(step) == {"aten.addmm": 2, "aten.relu": 1}


@case("activations")
def test_what_cuda_does_in_one_kernel_is_not_taken_apart(step: Step) -> None:
    backward = Counter(one.name for one in step.operators if one.phase == "backward")
    assert backward["aten.silu_backward"] == backward["aten.mish_backward"] == 1
    assert not {"aten.sigmoid", "aten.tanh", "aten.sub_", "aten.fill_"} & {*backward}


@pytest.mark.skipif(
    not torch.backends.cuda.is_built(), reason="this torch has no CUDA kernels to compare with"
)
def test_torch_takes_nothing_else_apart() -> None:
    """Where another torch does, the simulated step has kernels that no GPU runs."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    apart = {
        name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and has(name, "CompositeImplicitAutograd") and has(name, "CUDA")
    }  # fmt: skip
    assert apart == {"silu_backward", "mish_backward", "_fused_rms_norm"}  # the last is chosen by device


@case("attention")
def test_attention_is_one_operator(step: Step) -> None:
    assert names(step)["aten._scaled_dot_product_flash_attention"] == 1
    assert names(step)["aten._scaled_dot_product_flash_attention_backward"] == 1
    assert names(step)["aten.bmm"] == 0
    assert all(kernel.seconds > 0 for kernel in costs.kernels(step, gpu("a100")))


@case("sequence")
def test_a_view_of_a_product_holds_no_memory_of_its_own(step: Step) -> None:
    taken = [event.nbytes for event in of(step, Allocate) if event.nbytes > 0]
    assert taken == [4 * 8 * 200, 4 * 8 * 200, 4 * 8 * 10]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("recurrent", "LSTM layers run in kernels of cuDNN"),
        ("chatty", "reads"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(
    planned: dict[str, Step | str], name: str, words: str
) -> None:
    assert words in str(planned[name])


@case("paper")
def test_memory_of_the_article(step: Step) -> None:
    most = memory.peak(step)
    assert most.allocated / 11.3e9 == pytest.approx(1.0, abs=0.05)
    assert most.by_kind["activations"] > 0.9 * most.allocated
    assert memory.reserved(step, 16 << 30) is not None
