"""The faults of bench/faults.py: mistakes of one place, chosen by reading the code and without looking at the tests."""

from __future__ import annotations

from typing import NamedTuple

# The packages of tests that are nearest to a folder of the package, or of the core; the longest prefix counts.
NEAREST = {
    "base": "base cli", "cli": "cli", "data": "data tables", "eager": "eager", "files": "files faults runs",
    "graph": "graph ops optim", "interchange": "interchange", "llm": "llm", "losses": "losses train",
    "metrics": "metrics train", "nn": "nn", "ops": "ops core graph", "optim": "optim eager train",
    "plan": "plan run graph", "reports": "reports cli", "run": "run", "runs": "runs train",
    "step": "step train optim parallel", "tables": "tables", "train": "train runs",
    "transform": "transform plan run graph",
    "csrc": "core ops run", "csrc/cells": "data tables",
}  # fmt: skip

# Files of tests that come before these packages, which saves time.
FIRST = {
    "ops": "ops/test_gradients.py graph/test_grad.py", "ops/conv": "ops/test_gradients.py core/test_conv.py",
    "ops/rope": "ops/test_functions.py graph/test_numbers.py", "graph/grad": "graph/test_grad.py",
    "graph/stored": "graph/test_graph.py run/test_aliasing.py",
    "plan": "plan/test_order.py plan/test_properties.py plan/test_check.py", "plan/check": "plan/test_check.py",
    "plan/recomputed": "plan/test_recomputed.py", "transform/recompute": "plan/test_recomputed.py",
    "run/scheduled": "plan/test_recomputed.py run/test_scheduled.py",
    "plan/split": "plan/test_check_schedule.py plan/test_placements.py", "transform": "transform/test_passes.py",
    "optim": "optim/test_schedules.py optim/test_groups.py optim/test_step_counts.py optim/test_weight_decay.py",
    "optim/average": "train/test_average.py train/test_averaged_weights.py",
    "step": "step/test_step.py step/test_exchange.py", "train/stopping": "train/test_stopping.py",
    "train/loop": "train/test_loop.py train/test_resume.py train/test_steered_resume.py",
    "train/metrics": "train/test_metrics.py", "train/losses": "nn/test_ensemble.py",
    "train/batches": "train/test_split.py", "train/evaluation": "train/test_evaluation.py",
    "files/atomic": "files/test_outputs.py files/test_files.py",
    "files/commit": "files/test_outputs.py files/test_places.py", "files/gguf": "files/test_gguf.py",
    "files/checkpoint": "runs/test_checkpoint.py fuzz/test_checkpoints.py",
    "runs/checkpoint": "runs/test_checkpoint.py",
    "runs/saver": "train/test_resume.py", "runs/folder": "runs/test_run_folder.py",
    "base/exit_codes": "cli/test_exit_codes.py cli/test_cli.py", "base/interval": "base/test_interval.py",
    "base/memory": "base/test_memory.py", "base/interrupts": "run/test_interrupt.py runs/test_own_loop.py",
    "cli/evaluate": "cli/test_json.py cli/test_language.py", "cli/fit": "cli/test_columns.py cli/test_fit.py",
    "cli/predict": "cli/test_predict.py", "cli/runs": "cli/test_runs.py", "cli/config": "cli/test_config.py",
    "data/table_split": "data/test_roles.py", "data/dataset": "data/test_dataset.py",
    "data/encoding": "data/test_encoding.py data/test_dates.py data/test_side_by_side.py",
    "data/reading": "data/test_cells.py data/test_readers.py",
    "tables/scores": "tables/test_score.py tables/test_scores.py",
    "llm/packing": "llm/test_data.py", "llm/sampling": "llm/test_sampling.py", "llm/lora": "llm/test_lora.py",
    "llm/rows": "llm/test_finetune_split.py", "llm/evaluate": "llm/test_evaluate.py",
    "llm/conversation": "llm/test_conversation.py", "csrc/threads": "core/test_threads.py run/test_threads.py",
    "csrc/vm": "core/test_vm.py", "csrc/cells": "data/test_readers.py data/test_cells.py",
    "csrc/kernels/index": "core/test_index.py", "csrc/kernels/reduce": "core/test_reduce.py",
    "csrc/kernels/softmax": "core/test_norm.py", "csrc/kernels/gemm": "core/test_matmul.py core/test_quant.py",
}  # fmt: skip


class Fault(NamedTuple):
    """place: a file below src/gradloom or csrc/. old: text that is there once."""

    place: str
    old: str
    new: str

    @property
    def path(self) -> str:
        return self.place if self.place.startswith("csrc/") else f"src/gradloom/{self.place}"

    @property
    def packages(self) -> list[str]:
        return self._nearest(NEAREST)

    @property
    def first(self) -> list[str]:
        return self._nearest(FIRST)

    def _nearest(self, table: dict[str, str]) -> list[str]:
        known = [prefix for prefix in table if self.place.startswith(prefix)]
        return [f"tests/{name}" for name in table[max(known, key=len)].split()] if known else []

    @property
    def name(self) -> str:
        return f"{self.place}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"


FAULTS = (
    # ---- gradients and graphs ----
    Fault("ops/reduce.py", "factor=1 / product([x.shape[a] for a in axes])", "factor=1 / x.size"),
    Fault(
        "ops/reduce.py",
        "mul(hit, div(_keep(g, x, axes), _sum(hit, axes=axes, keepdims=True)))",
        "mul(hit, _keep(g, x, axes))",
    ),
    Fault("ops/norm.py", "factor=2 * share), sub(x", "factor=share), sub(x"),
    Fault("ops/norm.py", "centred = sub(g, mean_over(g, -1, keepdims=True))", "centred = g"),
    Fault("ops/elementwise.py", "unbroadcast(neg(div(mul(g, z), y)), y)", "unbroadcast(div(mul(g, z), y), y)"),
    Fault(
        "ops/conv.py",
        "dx = conv2d_back_input(inner, w, height=x.shape[2], width=x.shape[3]",
        "dx = conv2d_back_input(inner, w, height=x.shape[3], width=x.shape[2]",
    ),
    Fault("ops/conv.py", 'inner = relu_back(g, y) if act == "relu" else g', "inner = g"),
    Fault(
        "ops/softmax.py",
        "unbroadcast(softmax_back(g, y, scale=1.0), mask)",
        "unbroadcast(softmax_back(g, y, scale=scale), mask)",
    ),
    Fault("ops/loss.py", "sub(mul(totals, exp(log_p)), rows))", "sub(exp(log_p), rows))"),
    Fault("ops/loss.py", "terms = [mul(fused[name], g_loss)]", "terms = [fused[name]]"),
    Fault("ops/rope.py", "(revolutions - least) / (most - least)", "(revolutions - least) / most"),
    Fault("ops/layout.py", "[permute(g, [axes.index(i) for i in range(len(axes))])]", "[permute(g, axes)]"),
    Fault("graph/grad.py", "incoming.setdefault(read, []).append(g)", "incoming[read] = [g]"),
    Fault("graph/stored.py", "        self.version += 1\n", ""),
    # ---- plans and their proof ----
    Fault("plan/order.py", "death[base] = i", "death[base] = max(birth[base], i - 1)"),
    Fault("plan/order.py", "(r for r in readers.get(target, ()) if r is not update)", "()"),
    Fault("plan/memory.py", "if not _allowed(node, out, i) or not exact", "if not exact"),
    Fault("plan/memory.py", "buffer.death == i and base not in used", "buffer.death == i"),
    Fault("plan/memory.py", "max(known.death, buffer.death)", "known.death"),
    Fault(
        "plan/memory.py", "                    start = _in_piece(start, bytes_, piece)\n", "                    pass\n"
    ),
    Fault(
        "plan/check.py",
        "not in allowed or not exact or read.value.dtype.bytes",
        "not in allowed or read.value.dtype.bytes",
    ),
    Fault(
        "plan/check.py", "            if self.guards_left:\n", "            if self.guards_left and not self.done:\n"
    ),
    Fault("plan/check.py", "if read.start < end and start < read.end:", "if read.start < start and start < read.end:"),
    Fault("plan/layout.py", "value if dense and view_base(old) not in self.overwritten else", "value if dense else"),
    Fault("plan/split.py", "made.append((at[base.node] + 1, 0, Send(k)))", "made.append((at[base.node], 0, Send(k)))"),
    Fault("transform/simplify.py", 'if name == "mul" and _is_one(x) and', "if _is_one(x) and"),
    Fault(
        "transform/fuse.py",
        "dict.fromkeys((*program.outputs, *program.effects), 2)",
        "dict.fromkeys(program.effects, 2)",
    ),
    # ---- values that are computed again ----
    Fault(
        "transform/recompute.py", "node.op.leaf or node.op.updates or node.op.guard", "node.op.leaf or node.op.guard"
    ),
    Fault("transform/recompute.py", "or node.op.guard or node.op.python", "or node.op.python"),
    Fault("transform/recompute.py", "node.op.python or node.after)", "node.op.python)"),
    Fault("transform/recompute.py", "if v is not None and v not in clones]", "if v is not None]"),
    Fault(
        "transform/recompute.py",
        "until.get(view_base(v).node, position) < position",
        "until.get(v.node, position) < position",
    ),
    Fault("transform/recompute.py", "node, position) < position", "node, position) + 1 < position"),
    Fault("transform/recompute.py", "clones.get(v, new.get(v, v))", "new.get(v, v)"),
    Fault("transform/recompute.py", "todo += missing(one, position)", "pass"),
    Fault(
        "transform/recompute.py",
        "sorted(found, key=place.__getitem__)",
        "sorted(found, key=place.__getitem__, reverse=True)",
    ),
    Fault(
        "transform/recompute.py", "clone = one.with_inputs(read(one), ())", "clone = one.with_inputs(one.inputs, ())"
    ),
    Fault(
        "transform/recompute.py",
        "clone = one.with_inputs(read(one), ())",
        "clone = one.op.node(read(one), dict(one.attrs) | ({one.op.stream: 77} if one.op.stream else {}), one.name)",
    ),
    Fault("transform/recompute.py", "placed[clone] = None", "pass"),
    Fault(
        "transform/recompute.py", "zip(one.outputs, clone.outputs, strict=True)", "zip(one.outputs[:1], clone.outputs)"
    ),
    Fault(
        "transform/recompute.py",
        "        placed[copy] = None\n",
        "        placed[copy] = None\n"
        "        for one in sorted(found, key=place.__getitem__):\n"
        "            placed[clones[one.outputs[0]].node] = placed.pop(clones[one.outputs[0]].node)\n",
    ),
    Fault(
        "transform/recompute.py",
        "if node.op.view is not None and node.inputs[0] in clones:",
        "if node.inputs and node.inputs[0] in clones:",
    ),
    Fault("transform/recompute.py", "    check_recomputed(program, made)\n", ""),
    Fault("transform/recompute.py", "return node.op.name, id(node.attrs), leaf,", "return node.op.name, leaf,"),
    Fault("transform/recompute.py", "leaf, tuple(map(id, inputs)), tuple", "leaf, tuple"),
    Fault("transform/recompute.py", "tuple(map(id, after)), len(node.outputs)", "len(node.outputs)"),
    Fault("transform/recompute.py", "if count[old] > 1 and", "if count[old] > 2 and"),
    Fault(
        "transform/recompute.py",
        "((program.outputs, made.outputs), (program.effects, made.effects))",
        "((program.outputs, made.outputs),)",
    ),
    Fault(
        "plan/recomputed.py",
        "kept = {view_base(v).node for v in program.outputs}",
        "kept = {v.node for v in program.outputs}",
    ),
    Fault(
        "plan/recomputed.py",
        "may_recompute(node) and node not in late and node not in kept",
        "may_recompute(node) and node not in late",
    ),
    Fault(
        "plan/recomputed.py",
        "self.alive[one.step + 1 : one.last + 1] += one.bytes",
        "self.alive[one.step + 1 : one.last] += one.bytes",
    ),
    Fault("plan/recomputed.py", "sum(aligned(v.bytes) for", "sum(v.bytes for"),
    Fault("plan/recomputed.py", "if v in read or not slot.optional)", ")"),
    Fault("plan/recomputed.py", "return max(pairs, key=lambda", "return min(pairs, key=lambda"),
    Fault(
        "plan/recomputed.py",
        "late = [u for u in uses if u > one.split]",
        "late = [u for u in uses if u > one.split + 1]",
    ),
    Fault(
        "plan/recomputed.py",
        "max(u for u in uses if u <= one.split), min(late), max(late)",
        "max(u for u in uses if u <= one.split), max(late), max(late)",
    ),
    Fault("plan/recomputed.py", "if begin == end and begin not in one.uses:", "if begin == end:"),
    Fault("plan/recomputed.py", "one.split = one.uses[-1]  # a clone", "one.split = one.step  # a clone"),
    Fault("plan/recomputed.py", "((begin >= 0) - (before >= 0))", "(begin >= 0)"),
    Fault("plan/recomputed.py", "source.demands[one] = begin", "source.demands[one] = one.split"),
    Fault("plan/recomputed.py", "self.alive[begin : end + 1] += one.bytes", "self.alive[begin:end] += one.bytes"),
    Fault("plan/recomputed.py", "most - lasting - int(self.own[step])", "most - 2 * lasting - int(self.own[step])"),
    Fault("plan/recomputed.py", "self.positions[steps[one.split]] for one", "one.split for one"),
    Fault(
        "plan/recomputed.py", "self.positions[steps[one.split]] for one", "self.positions[steps[one.uses[-1]]] for one"
    ),
    Fault("plan/recomputed.py", "in reversed(self.journal):", "in self.journal:"),
    Fault(
        "plan/recomputed.py",
        "            self._regroup(one, begin)\n            one.split, one.last",
        "            one.split, one.last",
    ),
    Fault("plan/recomputed.py", "best = min(found, key", "best = max(found, key"),
    Fault("plan/recomputed.py", "if not dear and then[then > now].max(initial=0) <= target:", "if not dear:"),
    Fault("plan/recomputed.py", "extra = {origins[node]: one.workspace_bytes for", "extra = {origins[node]: 0 for"),
    Fault("plan/recomputed.py", "            if room < 0:\n", "            if room < -budget:\n"),
    Fault(
        "plan/recomputed.py",
        "made[1].recomputed.overhead < best[1].recomputed.overhead",
        "made[1].recomputed.overhead > best[1].recomputed.overhead",
    ),
    Fault("plan/recomputed.py", "if best is None and self.smallest[1].peak_bytes <= budget:", "if best is None:"),
    Fault(
        "plan/recomputed.py",
        "if self.whole.peak_bytes <= budget:\n            return self.program, ",
        "if self.whole.lower_bound_bytes <= budget:\n            return self.program, ",
    ),
    Fault(
        "plan/recomputed.py",
        "sum(one.bytes for one in cloned), self.lives.cost",
        "sum(one.bytes for one in cloned), 0 * self.lives.cost",
    ),
    Fault(
        "run/scheduled.py",
        "lambda made: plan_for(chosen, made, switches), lambda",
        "lambda made: plan_for(chosen, program, switches), lambda",
    ),
    Fault("run/scheduled.py", "least = plans.smallest[1].peak_bytes", "least = plans.whole.peak_bytes"),
    Fault("run/scheduled.py", "        error.least = least\n", "        error.least = budget\n"),
    # ---- optimisers, steps, trainings ----
    Fault(
        "optim/groups.py",
        '"norms_and_biases": lambda shape: len(shape) <= 1',
        '"norms_and_biases": lambda shape: len(shape) < 1',
    ),
    Fault(
        "optim/schedules.py", "math.cos(math.pi * min(at / self._length, 1.0))", "math.cos(math.pi * at / self._length)"
    ),
    Fault("optim/schedules.py", 'if memory["bad"] > self.patience:', 'if memory["bad"] >= self.patience:'),
    Fault("optim/step_counts.py", "steps + 1 - missed", "steps - missed"),
    Fault("optim/average.py", "self.is_shown = is_shown", "self.is_shown = False"),
    Fault("step/step.py", "max_norm, norms[-1], max_value", "max_norm, norms[0], max_value"),
    Fault("step/exchange.py", "(p, piece if reached is None else ops.scale(piece, factor=1 / n))", "(p, piece)"),
    Fault("train/stopping.py", "if gained > self.min_delta:", "if gained >= self.min_delta:"),
    Fault(
        "train/loop_state.py",
        'self._first_pass = values["steps"], values["passes"], values["first_pass"]',
        'self._first_pass = values["steps"], values["passes"], 0',
    ),
    Fault(
        "train/loop_state.py",
        'self.rows, self.stopped = values["rows"], values["stopped"]',
        'self.stopped = values["stopped"]',
    ),
    Fault(
        "train/loop.py",
        "self.evaluator.due(self.steps) and all(one.step != self.steps for one in now.evaluations)",
        "self.evaluator.due(self.steps)",
    ),
    Fault("train/metrics.py", "mean = float((weights * values).sum()) / total", "mean = float(values.sum()) / n"),
    Fault(
        "train/losses.py",
        "return total * (1 / members), weight * (1 / members)",
        "return total * (1 / members), weight",
    ),
    Fault(
        "train/batches.py",
        "first = at == batch.start and (not is_open if at == rows.start else updates)",
        "first = at == batch.start",
    ),
    Fault("train/evaluation.py", "(is_last or epoch % self._epochs == 0)", "epoch % self._epochs == 0"),
    # ---- files and runs ----
    Fault("files/atomic.py", "        os.fsync(part[0])\n", ""),
    Fault("files/atomic.py", "            sync(target.parent)\n", ""),
    Fault("files/commit.py", "if now not in (move.old, move.new):", "if now != move.old:"),
    Fault("files/commit.py", "isinstance(one, str) and one == os.path.basename(one) and", "isinstance(one, str) and"),
    Fault("files/checkpoint_files.py", "    if sha256 != manifest.sha256:", "    if not sha256:"),
    Fault(
        "files/checkpoint_arrays.py",
        "if begin != file.tell() - 8 - length or end > size - 8 - length:",
        "if begin != file.tell() - 8 - length:",
    ),
    Fault("files/gguf_writer.py", "offset = _padded(offset + size, alignment)", "offset = offset + size"),
    Fault(
        "runs/checkpoint.py",
        "self._number = max((one.number for one in manifests(folder)[0]), default=0)",
        "self._number = 0",
    ),
    Fault("runs/saver.py", "elif not loop.trainer.driver.in_window:", "else:"),
    Fault(
        "runs/folder.py",
        'kept = ("begun", "epoch", "latest", "best", "went_on")',
        'kept = ("begun", "epoch", "latest", "went_on")',
    ),
    # ---- commands ----
    Fault("base/exit_codes.py", "REFUSED = 2", "REFUSED = 1"),
    Fault("base/interval.py", '"d": 86400.0', '"d": 8640.0'),
    Fault("base/interrupts.py", "elif time.monotonic() - self._at >= SAME_SECONDS:", "else:"),
    Fault("base/memory.py", 'unit = 1000 if (found[4] or "").upper() == "B" else 1024', "unit = 1024"),
    Fault("cli/evaluate.py", '        "interrupted": interrupted,\n', ""),
    Fault("cli/fit.py", "seed=use.seed, drop=use.drop or (),", "seed=use.seed,"),
    Fault("cli/predict.py", "        cell = not_a_formula if escape_formulas else str\n", "        cell = str\n"),
    Fault("cli/predict_scores.py", "accuracy * (1 - accuracy) / (n - 1)", "accuracy * (1 - accuracy) / n"),
    Fault("cli/runs.py", '"epochs": about["epoch"],', '"epochs": about["step"],'),
    Fault("cli/config.py", "dict.fromkeys(values.keys() - given.keys(), file)", "dict.fromkeys(values.keys(), file)"),
    # ---- tables ----
    Fault(
        "data/table_split.py", "np.flatnonzero(np.diff(seconds[order])) + 1", "np.flatnonzero(np.diff(seconds[order]))"
    ),
    Fault("data/dataset.py", "last = min(max(last, 1), shards - 1)", "last = min(last, shards - 1)"),
    Fault("data/encoding/features.py", "            part[-1] = empty\n", "            part[1] = empty\n"),
    Fault(
        "data/encoding/fitting.py", "return _number_column(name, values[train])", "return _number_column(name, values)"
    ),
    Fault(
        "data/encoding/target_encoding.py",
        "len(column.categories), others))",
        "len(column.categories), others | True))",
    ),
    Fault("data/encoding/targets.py", "np.argsort(take - want, kind=", "np.argsort(want - take, kind="),
    Fault("data/reading/cells.py", "        self.in_brackets += one.in_brackets\n", ""),
    Fault(
        "tables/scores.py",
        "(2 * hits[seen] / (true[seen] + guessed[seen]))",
        "(2 * hits[present] / (true[present] + guessed[present]))",
    ),
    # ---- language models ----
    Fault("llm/packing.py", "positions[r, place] = ramp[:size]", "positions[r, place] = ramp[place]"),
    Fault("llm/sampling.py", "before = np.cumsum(share) - share", "before = np.cumsum(share)"),
    Fault(
        "llm/lora.py", "return self.alpha * math.sqrt(self.rank) if self.rslora else self.alpha", "return self.alpha"
    ),
    Fault("llm/rows.py", "min(VAL_SHARE, VAL_ROWS / count)", "max(VAL_SHARE, VAL_ROWS / count)"),
    Fault("llm/evaluate.py", "_padded(data_rows.labels[part], size, -100)", "_padded(data_rows.labels[part], size)"),
    Fault("llm/conversation.py", "if versions != self._versions:", "if len(versions) != len(self._versions):"),
    # ---- the core ----
    Fault("csrc/threads.cpp", "return {front ? begin : end - 1, count};", "return {front ? begin : end - 2, count};"),
    Fault("csrc/vm.cpp", "t.dtype == DType::f16 ? 0x7c00 : 0x7f80", "t.dtype == DType::f16 ? 0x7f80 : 0x7c00"),
    Fault("csrc/cells/csv.cpp", "p + 1 < buffer_.size() && buffer_[p + 1] == '\\n' ? 2 : 1;", "1;"),
    Fault(
        "csrc/kernels/index.h", "if (id < mine.begin || id >= mine.end) {", "if (id < mine.begin || id > mine.end) {"
    ),
    Fault("csrc/kernels/reduce.h", "    if (rest) fold_columns", "    if (rest > 1) fold_columns"),
    Fault("csrc/kernels/softmax.h", "    walk.seek(part_range(rows.count, part, parts).begin);\n", ""),
    Fault("csrc/kernels/rope.h", "      if (from != to && rest) std::memcpy(to + 2 * n, from + 2 * n, rest);\n", ""),
    Fault("csrc/kernels/gemm_rows.h", "? done : columns - R;", "? done : columns - R - 1;"),
    # ---- layers, losses and optimisers: of one who had not seen the tests ----
    Fault("nn/recurrent.py", "return n + z * (before - n)", "return before + z * (n - before)"),
    Fault(
        "ops/norm.py",
        "offset = mul(mean, factor) if bias is None else sub(mul(mean, factor), bias)",
        "offset = mul(mean, factor) if bias is None else add(mul(mean, factor), bias)",
    ),
    Fault(
        "optim/clip.py",
        "return ops.maximum(ops.div(norm, max_norm), 1.0)",
        "return ops.maximum(ops.div(max_norm, norm), 1.0)",
    ),
    Fault(
        "nn/layers.py", "keep, take = 1 - self.momentum, self.momentum", "take, keep = 1 - self.momentum, self.momentum"
    ),
    Fault("losses/classes.py", "bias=self.label_smoothing / classes)", "bias=self.label_smoothing / (classes - 1))"),
    Fault(
        "nn/attention.py",
        "unseen |= np.tri(tokens, k=-window, dtype=bool)",
        "unseen |= np.tri(tokens, k=-window - 1, dtype=bool)",
    ),
    Fault(
        "ops/scans.py",
        "u = recurrence(_shifted(a, axis, -by), g, axis=axis, reverse=not reverse)",
        "u = recurrence(_shifted(a, axis, by), g, axis=axis, reverse=not reverse)",
    ),
    Fault("optim/average.py", "other = w.read().copy()", "other = w.read()"),
    Fault(
        "ops/resize.py",
        "scales = [1 / factor for factor in factors]",
        "scales = [extent / out if out else 0.0 for extent, out in zip(extents, sizes, strict=True)]",
    ),
    Fault(
        "ops/statistics.py",
        "top = where(less(abs(top), math.inf), top, 0.0)",
        "top = where(less(top, math.inf), top, 0.0)",
    ),
    Fault("graph/grad.py", "incoming.setdefault(loss, []).append(seed)", "incoming[loss] = [seed]"),
    # ---- plans: of one who had not seen the tests ----
    Fault("plan/memory.py", "if born <= last and dies >= first:", "if born < last and dies > first:"),
    Fault("plan/memory.py", "change[death + 1] -= size", "change[death] -= size"),
    Fault("plan/order.py", "            death[base] = end\n", "            death[base] = end - 1\n"),
    Fault(
        "plan/plan.py",
        "return self.placement.arena_bytes + self.bytecode.scratch_bytes * self.threads",
        "return self.placement.arena_bytes + self.bytecode.scratch_bytes",
    ),
    Fault(
        "plan/layout.py",
        "outputs.append(value if dense and view_base(old) not in self.overwritten else self.copied(value))",
        "outputs.append(value if dense else self.copied(value))",
    ),
    Fault("plan/memory_map.py", "taken = set(placed.inplace.values())", "taken = set(placed.inplace)"),
    Fault(
        "transform/fuse.py",
        'if any(outer.attrs[k] != v for k, v in {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}.items()):',
        'if any(outer.attrs[k] != v for k, v in {"kernel": (2, 2), "stride": (2, 2)}.items()):',
    ),
    Fault("plan/phases.py", "loss, gradients = read[:2], read[2:]", "loss, gradients = read[:1], read[1:]"),
    Fault(
        "plan/recomputed.py",
        "        if self.whole.peak_bytes <= budget:\n            return self.program, self.whole",
        "        if self.whole.peak_bytes < budget:\n            return self.program, self.whole",
    ),
    Fault("transform/recompute.py", "node.op.guard or node.op.python or node.after)", "node.op.guard or node.after)"),
    Fault(
        "plan/bytecode.py",
        "[(offset - self.guard, offset + aligned(size) + self.guard)",
        "[(offset, offset + aligned(size) + self.guard)",
    ),
    # ---- training and runs: of one who had not seen the tests ----
    Fault("train/stopping.py", "if self._waited >= max(1, self.patience):", "if self._waited > max(1, self.patience):"),
    Fault(
        "train/stopping.py",
        'self._waited, self.stopped = int(values["waited"]), bool(values["stopped"])',
        'self._waited, self.stopped = 0, bool(values["stopped"])',
    ),
    Fault("runs/checkpoint.py", "return self._newest(best=False)", "return self._newest(best=True)"),
    Fault("metrics/numbers.py", "(each * np.square(y - mean)).sum(axis=0)", "(each * np.square(x - mean)).sum(axis=0)"),
    Fault(
        "metrics/counts.py",
        "return ratio(counts.hits, counts.true + counts.predicted - counts.hits, self.zero_division)",
        "return ratio(counts.hits, counts.true + counts.predicted, self.zero_division)",
    ),
    Fault(
        "train/evaluation.py",
        "return bool(self._sets) and (is_last or epoch % self._epochs == 0)",
        "return bool(self._sets) and epoch % self._epochs == 0",
    ),
    Fault(
        "runs/saver.py",
        "can_resume = isinstance(error, (TimeIsUp, NonFiniteError, KeyboardInterrupt))",
        "can_resume = isinstance(error, (TimeIsUp, NonFiniteError))",
    ),
    Fault(
        "runs/log_files.py",
        "            self._file.cut(0)\n            self._written = 0\n",
        "            self._file.cut(0)\n",
    ),
    Fault(
        "train/callbacks.py",
        "self._rows, self._batches, self._skipped = rows, result.batches, result.skipped",
        "self._rows, self._batches = rows, result.batches",
    ),
    Fault("train/history.py", "if step is not None and one.step <= step)", "if step is not None and one.step < step)"),
    # ---- files and data: of one who had not seen the tests ----
    Fault(
        "data/encoding/preprocess.py",
        "np.array(self.target_std) + np.array(\n            self.target_mean\n        )",
        "np.array(self.target_std) + np.array(\n            self.target_std\n        )",
    ),
    Fault(
        "tables/scores.py",
        "float((2 * hits[seen] / (true[seen] + guessed[seen])).mean())",
        "float((hits[seen] / (true[seen] + guessed[seen])).mean())",
    ),
    Fault("llm/chat.py", "if tokenizer.add_bos and not tokenizer.begins_with_bos(first):", "if tokenizer.add_bos:"),
    Fault(
        "files/gguf_head.py",
        "start = -(-self.at // self.alignment) * self.alignment",
        "start = -(-self.at // ALIGNMENT) * ALIGNMENT",
    ),
    Fault("files/arrays.py", "file.seek(8 + size + begin)", "file.seek(size + begin)"),
    Fault("data/reading/npz.py", 'order="F" if fortran else "C")', 'order="C")'),
    Fault(
        "interchange/onnx_ops.py",
        'kernel_shape=list(c.attrs["kernel"]), count_include_pad=1, **_window(c))',
        'kernel_shape=list(c.attrs["kernel"]), **_window(c))',
    ),
    Fault(
        "files/safetensors_file.py",
        "key=lambda item: (item[1].offset, item[1].bytes))",
        "key=lambda item: item[1].offset)",
    ),
    Fault("llm/bpe.py", "if len(text) > 2 * BLOCK or size + len(text) > GROUP:", "if size + len(text) > GROUP:"),
    Fault("data/encoding/times.py", "(3600 * hours + 60 * minutes)", "(3600 * hours)"),
    Fault("files/atomic.py", "        sync(part)\n        os.chmod(part, mode_for(target))\n", "        sync(part)\n"),
    # ---- commands and reports: of one who had not seen the tests ----
    Fault("base/exit_codes.py", "REFUSED = 2  # bad input", "REFUSED = 1  # bad input"),
    Fault(
        "reports/quality.py",
        "return np.bincount(labels * classes + predicted, minlength=classes**2)",
        "return np.bincount(predicted * classes + labels, minlength=classes**2)",
    ),
    Fault("reports/importance.py", "found.append(base - gains)", "found.append(gains - base)"),
    Fault("cli/quantize.py", '"type_before": t.old, "type": t.new,', '"type_before": t.new, "type": t.old,'),
    Fault(
        "base/options.py",
        "is_right = isinstance(value, Integral if plain is int else Real) and not isinstance(value, bool)",
        "is_right = isinstance(value, Integral if plain is int else Real)",
    ),
    Fault("base/interval.py", 'and number > 0 and (unit == "seconds" or number.is_integer()):', "and number > 0:"),
    Fault("base/html.py", "{html.escape(str(cell))}", "{cell}"),
    Fault("cli/verify.py", "return Exit.DONE if result.agrees else Exit.FAILED", "return Exit.DONE"),
    Fault(
        "cli/predict.py",
        "in_front = zip(*(cells[start : start + _ROWS] for cells in kept.values()), strict=True)",
        "in_front = zip(*(cells[: len(part)] for cells in kept.values()), strict=True)",
    ),
    Fault("base/terminal.py", "\\x0b-\\x1f", "\\x0e-\\x1f"),
    Fault("cli/evaluate.py", "measured, code = shown.so_far, exit_code(stopped)", "measured = shown.so_far"),
    Fault("reports/curves.py", "kept = {0, len(values) - 1}", "kept = {0}"),
    # ---- kernels: of one who had not seen the tests ----
    Fault("csrc/kernels/update.h", "rate * m / (sqrt(v * unbias) + eps); }", "rate * m / sqrt(v * unbias + eps); }"),
    Fault(
        "csrc/kernels/norm.h",
        "pull[k] = static_cast<float>(sums.b * share * inverse * inverse);",
        "pull[k] = static_cast<float>(sums.b * share * inverse);",
    ),
    Fault("csrc/kernels/batch_norm.h", "- h * k[3]) * k[4], t);", "- h * k[3]) * k[1], t);"),
    Fault("csrc/kernels/rope.h", "back = F::set1(inverse ? -scale : scale);", "back = F::set1(scale);"),
    Fault("csrc/kernels/loss.h", "static_cast<double>(w) * row.b / sum[j]", "static_cast<double>(w) / sum[j]"),
    Fault("csrc/quantise.cpp", "(Half + 0.5f)), 0, 2 * Half - 1));", "(Half + 0.5f)), 0, 2 * Half));"),
    Fault("csrc/cells/cells.cpp", "if (cell.size() > 7) return false;", "if (cell.size() >= 7) return false;"),
    Fault(
        "csrc/kernels/reduce.h",
        "    if (rest) fold_columns<Op, Unit>(q + whole * columns, 1, columns, rest * width, s, hi, lo);\n",
        "",
    ),
    Fault("csrc/kernels/softmax.h", "walk.seek(part_range(rows.count, part, parts).begin);", "walk.seek(0);"),
    Fault("csrc/threads.cpp", "void after_fork_child() {\n  pools = nullptr;\n", "void after_fork_child() {\n"),
    Fault("csrc/kernels/sort.h", "  if ((bits & 0x7fffffffu) == 0) bits = 0;\n", ""),
    Fault(
        "csrc/kernels/attention_token.h",
        "total = total * factor[0] + reduce_add(sum);",
        "total = total + reduce_add(sum);",
    ),
)
