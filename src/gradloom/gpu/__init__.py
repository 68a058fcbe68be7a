"""The GPU: programs on any vendor's adapter, by WebGPU (the package wgpu; `pip install 'gradloom[gpu]'`).

    device.py      adapters, devices with their limits, pipelines
    calls.py       an instruction as a kernel's rule sees it (Call), and the dispatches that it becomes (Dispatch)
    kernels/       a rule per kernel, one file per family: the table (kernels/table.py)
    wgsl/          the kernels' sources, one file per family, named as csrc/kernels/*.h
    source.py      puts a kernel's module together: bindings, accessors of its arguments, prelude, family
    memory.py      memory in pieces: buffers of at most one binding
    stored.py      stored arrays on a device: uploaded when the host has written, downloaded when the host reads
    kept.py        outputs that stay on a device, to be inputs of other programs
    tape.py        records of arguments and calls as words
    program.py     a proved plan as dispatches: buffers, tape
    records.py     layout of the downloaded outputs of a step
    held.py        the bytes of all buffers that programs hold, before any is made
    encoder.py     the loop over the dispatches of a step
    timing.py      the time of each instruction
    backend.py     the backend "gpu"
    walk.py        a program run one instruction at a time
    measure.py     measured rates of an adapter

How to write a kernel
---------------------
A rule stands in kernels/<family>.py and is registered by `kernel(op, signatures, rule, workspace=...)`. It takes a Call
(node, attributes, arguments with shape, strides and dtype, the workspace the last of them; the device's limits of a
workgroup, which change no bit and no bytes of the plan) and returns the
dispatches of the instruction, in order; each ends before the next begins:

    Dispatch(source, entry, args, groups, words=(), defines={})
      source    names of files of wgsl/ without the ending; "prelude" comes by itself ("math" where functions are used)
      entry     the function of the module that runs
      args      the arguments that it touches, at most 16: Arg objects of the call or made of these by `.seen_as(...)`
      groups    how many workgroups; more than 65535 become two axes
      words     up to 48 numbers for the kernel: `word(i)` gives a u32, `param(i)` an f32 (Python floats become f32)
      defines   NAME -> text that replaces $NAME in the source (a formula, a constant)
      rounds    how many rounds the loops of a thread make at most, all together, where these may be tens of thousands:
                an adapter that ends them early refuses the program

For argument k of the dispatch (from 0) the module defines those of these names that the source uses; element offsets
count from the argument's first one, whatever its dtype:

    HAS_k                   const bool: whether the argument is there (an optional one may be absent)
    size_k()                elements of its shape
    dim(k, axis), stride(k, axis), rank(k)          u32; strides in elements, 0 where it broadcasts
    offset(k, i)            element offset of the i-th element of its shape (row-major), through its strides
    at_k(e)                 the element at offset e: f32 for f32 f16 bf16 (f64: rounded to f32); i32 for i32 u8 i8;
                            vec2<u32> (low, high) for i64
    set_k(e, v)             writes f32, i32, i64 (vec2<u32>), one element
    base_k()                the 32-bit word at which it begins, counted from the first piece that it spans
    get_k(w), put_k(w, v)   word base_k() + w, as u32, in any piece
    byte_k()                how many bytes behind the start of its first word it begins (0 but for dtypes of less than
                            4 bytes and quantised ones)
    put_part_k(w, v, mask)  writes the bits of mask of a word: what 16-bit and 8-bit results need at their ends
    u8_k(b)                 byte b, counted from the argument's first byte

An f16, bf16 or u8 output is written by whole words: one thread makes the elements of one word. Arguments may share
bytes where the op's `may_overwrite` allows it: read before you write, at the same place.

Entries are `@compute @workgroup_size(N) fn name(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups)
nwg: vec3<u32>, @builtin(local_invocation_index) lane: u32)`; `group_of(wid, nwg)` is the index of the workgroup, and
`group_of(..) >= call.groups` has nothing to do.

    stopped()               whether the run has stopped: who writes outside of the arena (updates) does nothing then.
                            `set_k` of a stored array is refused by the encoder where the source does not ask it
    fail(code, index, low, high)    stops the run (STOP_GUARD, STOP_INDEX, STOP_NONFINITE); one thread calls
                            it; low, high: the words of the value
    keep(x)                 x, where the order of sums and products matters (sums in two parts, remainders):
                            compilers reassociate, Mesa's too
    finite(x), is_nan(x), infinity(), nan()      by exponent bits
    larger(a, b), smaller(a, b), relu(x)     NaN where one is NaN;  divided(a, b): the quotient, rounded once;
    mul_high(a, b)
    f16_bits(x), bf16_bits(x), from_f16(h), from_bf16(h)     by integer operations; rounded to nearest even
    tree: sum_256(lane, x)  a fixed tree over the workgroup of 256; all threads call it and all get the result; its last
                            rounds go by subgroups where the adapter has them, with the same bits
    max_256(lane, x)        the same; NaN where any is NaN
    first_256(lane, x: u32) the smallest u32
    math: exp_, exp2_, expm1_, log_, log1p_, sin_, cos_, tanh_, sigmoid_, softplus_, erf_, normal_cdf_, normal_density_,
          pow_
"""
