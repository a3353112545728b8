"""What the load audit names after a model's first load, and what it lets pass."""

import concurrent.futures
import os
import sys
import unittest

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from audited_models import (  # noqa: E402
    WIDTH,
    Model,
    layer,
    load,
    parameter,
    plan,
    tensors,
)

register_cpu_ci(est_time=20, suite="base-a-test-cpu")


class TestUnfilled(CustomTestCase):
    def assert_named(self, words, messages):
        self.assertEqual(len(messages), 1, messages)
        self.assertIn(words, messages[0])

    def test_a_parameter_that_nothing_wrote(self):
        """Red when a matrix stays as memory or a random start had it."""
        for left in (parameter(WIDTH, WIDTH), torch.nn.Parameter(torch.rand(WIDTH))):
            model = plan(
                Model(a=layer(weight=parameter(WIDTH, WIDTH)), b=layer(p=left))
            )
            messages = load(model, tensors("a.weight"))
            self.assert_named("unfilled parameters: b.p.", messages)

    def test_all_are_in_one_block(self):
        model = plan(Model(**{n: layer(weight=parameter(4, 4)) for n in "abc"}))
        self.assert_named("a.weight; c.weight.", load(model, tensors("b.weight")))

    def test_a_constructors_value_may_stay(self):
        """Red when norms, biases and caches' scales are asked of every checkpoint."""
        ones = torch.nn.Parameter(torch.ones(WIDTH))
        scale = torch.nn.Parameter(torch.tensor(-1.0))
        model = Model(a=layer(ones=ones, bias=parameter(WIDTH), k_scale=scale))
        self.assertEqual(load(plan(model), []), [])

    def test_a_scale_has_no_initial_value_but_an_activations_one(self):
        """Red when a weight's scale of one, or a sentinel, passes as filled."""
        for name, start, is_named in (
            ("weight_scale", 1.0, True),
            ("input_scale", torch.finfo(torch.float32).min, True),
            ("w13_input_scale", 1.0, False),
        ):
            model = plan(
                Model(a=layer(**{name: torch.nn.Parameter(torch.tensor(start))}))
            )
            with self.subTest(name):
                self.assertEqual(len(load(model, [])), int(is_named))

    def test_a_norm_must_be_filled_where_its_like_is(self):
        """Red when one of the norms of a checkpoint may be missing."""
        model = plan(Model(a=RMSNorm(WIDTH), b=RMSNorm(WIDTH)))
        messages = load(model, tensors("a.weight", shape=(WIDTH,)))
        self.assert_named("unfilled parameters: b.weight.", messages)
        self.assertEqual(load(plan(Model(a=RMSNorm(WIDTH))), []), [])

    def test_a_shard_of_a_fused_matrix(self):
        """Red when rows, or columns, that a shard should fill are not missed."""
        for rows, shown in ((True, "(rows 2..3 of 6)"), (False, "(rows 0..3 of 4)")):
            shape = (6, WIDTH) if rows else (WIDTH, 6)

            def shard(at):
                def write(model, tensor):
                    model.a.weight.data.narrow(0 if rows else 1, at, 2).copy_(tensor)

                return write

            loads = {"q": shard(0), "v": shard(4)}
            model = plan(Model(loads, a=layer(weight=parameter(*shape))))
            part = (2, WIDTH) if rows else (WIDTH, 2)
            messages = load(model, tensors("q", "v", shape=part))
            self.assert_named(f"a.weight {shown}", messages)

    def test_a_missing_expert_is_named_and_padding_is_not(self):
        """Red when experts that are padded alike are blamed, or a lost one is not."""

        def expert(at):
            return lambda model, x: model.a.weight.data[at, :2].copy_(x)

        loads = {str(at): expert(at) for at in range(3)}
        for given, messages in (("012", 0), ("02", 1)):
            model = plan(Model(loads, a=layer(weight=parameter(3, 3, WIDTH))))
            found = load(model, tensors(*given, shape=(2, WIDTH)))
            self.assertEqual(len(found), messages, found)
        self.assert_named("a.weight (rows 1..1 of 3)", found)

    def test_every_way_to_fill_counts(self):
        """Red when a parameter that was replaced, or filled by a number, is blamed."""

        def fill(model, tensor):
            model.a.scale.data.fill_(tensor.item())

        def swap(model, tensor):
            model.b.weight.data = tensor

        def replace(model, tensor):
            model.c.weight = torch.nn.Parameter(tensor.clone())

        def convert(model, tensor):
            model.d.weight.data[:] = tensor.float().t().contiguous().t() * 2

        loads = {"a": fill, "b": swap, "c": replace, "d": convert}
        modules = {name: layer(weight=parameter(WIDTH, WIDTH)) for name in "bcd"}
        model = plan(Model(loads, a=layer(scale=parameter(1)), **modules))
        given = tensors("a", shape=(1,)) + tensors("b", "c", "d")
        self.assertEqual(load(model, given), [])

    def test_threads_are_watched(self):
        """Red when what a model's loader hands to a pool counts as never written."""

        def submit(model, tensor):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                pool.submit(torch.Tensor.copy_, model.a.weight, tensor).result()

        usual = concurrent.futures.ThreadPoolExecutor.submit
        model = plan(Model({"a": submit}, a=layer(weight=parameter(WIDTH, WIDTH))))
        self.assertEqual(load(model, tensors("a")), [])
        self.assertIs(concurrent.futures.ThreadPoolExecutor.submit, usual)

    def test_tensors_without_memory_do_no_harm(self):
        """Red when a loader that touches one ends the load."""

        def touch(model, tensor):
            torch.ones(2, device="meta").fill_(1)
            tensor.to_sparse().to_dense()
            torch.nested.nested_tensor([tensor[0], tensor[1, :2]]).clone()
            torch.compile(torch.neg, backend="eager")(tensor)
            with torch.inference_mode():
                model.a.weight.data.copy_(tensor)

        model = plan(Model({"a": touch}, a=layer(weight=parameter(WIDTH, WIDTH))))
        self.assertEqual(load(model, tensors("a")), [])

    def test_the_stream_is_taken_one_tensor_at_a_time(self):
        model = plan(Model(a=layer(weight=parameter(WIDTH, WIDTH))))

        def stream():
            yield from tensors("a.weight", value=3.0)
            self.assertEqual(model.a.weight.sum(), 3 * WIDTH * WIDTH)

        self.assertEqual(load(model, stream()), [])


class TestUnread(CustomTestCase):
    def test_what_is_left_of_a_module_is_named(self):
        """Red when a zero point is dropped beside a weight that was taken."""
        model = plan(Model(a=layer(weight=parameter(WIDTH, WIDTH))))
        messages = load(model, tensors("a.weight", "a.weight_zero_point"))
        self.assertIn("unread tensors: a.weight_zero_point.", messages[0])

    def test_what_need_not_be_read_is_not(self):
        """Red when another module's tensors, a zero bias or a cache are asked for."""
        model = plan(Model(a=layer(weight=parameter(WIDTH, WIDTH))))
        others = ("mtp.fc.weight", "visual.weight", "a.bias", "a.inv_freq", "a.k_scale")
        self.assertEqual(load(model, tensors("a.weight", *others)), [])


class TestMisread(CustomTestCase):
    def load_into(self, dtype, tensor, name="a.weight", loads=None):
        leaf = name.rpartition(".")[2]
        module = layer(**{leaf: parameter(*tensor.shape, dtype=dtype)})
        return load(plan(Model(loads, a=module)), [(name, tensor)])

    def test_codes_for_values_and_values_for_codes(self):
        """Red when codes are copied as numbers, or a dense matrix into packed words."""
        codes = torch.full((WIDTH, WIDTH), 7)
        for taken, given in (
            (torch.bfloat16, torch.int8),
            (torch.bfloat16, torch.float8_e4m3fn),
            (torch.int32, torch.bfloat16),
            (torch.float8_e4m3fn, torch.bfloat16),
        ):
            with self.subTest(taken=taken, given=given):
                messages = self.load_into(taken, codes.to(given))
                words = f"a.weight ({given}) into a.weight ({taken})"
                self.assertIn(words, messages[0])

    def test_a_cast_on_the_way_hides_nothing(self):
        def cast(model, tensor):
            model.a.weight.data.copy_(tensor.t().to(torch.bfloat16))

        codes = torch.ones(WIDTH, WIDTH, dtype=torch.int8)
        messages = self.load_into(torch.bfloat16, codes, loads={"a.weight": cast})
        self.assertIn("a.weight (torch.int8)", messages[0])

    def test_values_computed_from_codes_are_values(self):
        """Red when a loader that multiplies codes by their scale is blamed."""

        def compute(model, tensor):
            model.a.weight.data.copy_(tensor.float() * 0.5)

        codes = torch.ones(WIDTH, WIDTH, dtype=torch.int8)
        found = self.load_into(torch.bfloat16, codes, loads={"a.weight": compute})
        self.assertEqual(found, [])

    def test_shapes_of_packed_weights_are_read_by_nobody(self):
        """Red when experts that keep them in another dtype are blamed."""
        shape = torch.tensor([WIDTH, WIDTH])
        name = "a.w13_weight_shape"
        self.assertEqual(self.load_into(torch.bfloat16, shape, name), [])

    def test_scales_are_values_in_any_float(self):
        """Red when an FP8 scale is taken for codes; an integer is none."""
        scale = torch.ones(WIDTH, 1)
        fp8 = scale.to(torch.float8_e4m3fn)
        name = "a.weight_scale"
        self.assertEqual(self.load_into(torch.float32, fp8, name), [])
        self.assertEqual(self.load_into(torch.float8_e4m3fn, scale, name), [])
        self.assertIn(name, self.load_into(torch.float32, scale.int(), name)[0])


if __name__ == "__main__":
    unittest.main()
