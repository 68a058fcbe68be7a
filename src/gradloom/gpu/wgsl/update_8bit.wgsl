// update_8bit.wgsl: optimisers whose moments are kept in 8 bits, as csrc/kernels/update_8bit.h has them: a workgroup takes a
// block of 256 elements, a thread one element. word(0): blocks of an array, word(1): its elements, word(2): all blocks,
// word(3): distance of the blocks of this dispatch, word(4): the first of them. kernels/update_8bit.py has the rules.

const SIGNED = 1u;  // numbers in the lowest decade: half of the codes have a sign, or none
const POSITIVE = 2u;
var<workgroup> numbers: array<f32, 256>;  // those of the moment at work
var<workgroup> codes: array<u32, 256>;

// The number at a position, counted from 0: decades from 1e-6 to 1, each with twice as many as the one below.
fn number(at: u32, lowest: u32) -> f32 {
  if (at == 0u) { return 0.0; }
  let i = firstLeadingBit((at - 1u) / lowest + 1u);
  if (i >= 7u) { return 1.0; }
  let n = lowest << i;
  let j = at - 1u - lowest * ((1u << i) - 1u);
  var below = 20.0 * f32(n);
  for (var k = i; k < 6u; k++) { below *= 10.0; }
  return divided(f32(2u * n + 9u * (2u * j + 1u)), below);  // whole numbers that f32 holds
}
fn begin_with(lowest: u32, lane: u32) {
  workgroupBarrier();
  numbers[lane] = number(lane, lowest);
  workgroupBarrier();
}

// The value of a code; with a sign 129.. are those of 1.., negative.
fn value_of(code: u32, lowest: u32) -> f32 {
  if (lowest == SIGNED && code > 128u) { return -numbers[code - 128u]; }
  return numbers[code];
}

// The code of the number nearest to x, which is at most 1 in absolute value. Without a sign none above 0 becomes 0.
fn code_of(x: f32, lowest: u32) -> u32 {
  var at = 0u;
  var last = select(128u, 255u, lowest == POSITIVE);
  while (at < last) {
    let middle = (at + last) / 2u;
    if (abs(x) >= 0.5 * (numbers[middle] + numbers[middle + 1u])) { at = middle + 1u; } else { last = middle; }
  }
  if (lowest == POSITIVE) { return select(at, 1u, at == 0u && x > 0.0); }
  if (x >= 0.0 || at == 0u) { return at; }
  return 128u + min(at, 127u);
}

@compute @workgroup_size(256)
fn update(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
  let block = group_of(wid, nwg) * word(3u) + word(4u);
  if (block >= word(2u)) { return; }
  let each = word(1u);
  let begin = block / word(0u) * each + block % word(0u) * 256u;  // of the block, in elements
  let n = min(256u, each - block % word(0u) * 256u);
  let i = begin + lane;
  let here = lane < n;
  let runs = !stopped();
  $BODY
}
