// attention_token.wgsl: attention of one token per row of at most 256 dimensions, as generation has it: a workgroup per head, a thread
// per key, 256 keys at a time. $WIDE: threads side by side over the dimensions of y, a power of 2; the others share the keys.
//
// Arguments and words as in attention.wgsl.
var<workgroup> shares: array<f32, 256>;
var<workgroup> keys: vec2<u32>;  // that the query sees: begin, end

@compute @workgroup_size(256)
fn attention_token(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
                   @builtin(local_invocation_index) lane: u32) {
  let group = group_of(wid, nwg);
  if (group >= call.groups) { return; }
  let b = group / word(1u);
  let h = group % word(1u);
  let dims = word(2u);
  let row = (b * word(3u) * word(4u) + h / (word(1u) / word(4u))) * dims;  // of the first key of this head
  let next = word(4u) * dims;
  if (lane == 0u) {
    let s = seen(b, 0u);
    keys = vec2<u32>(u32(s.first), u32(s.last + 1));
  }
  let span_of = workgroupUniformLoad(&keys);
  let d = lane % $WIDEu;
  var most = NOTHING;
  var total = 0.0;
  var out = 0.0;
  for (var s0 = span_of.x; s0 < span_of.y; s0 += 256u) {
    var z = NOTHING;
    if (s0 + lane < span_of.y) {
      z = 0.0;
      for (var i = 0u; i < dims; i++) { z = fma(at_0(group * dims + i), key_of(row + (s0 + lane) * next + i), z); }
      z *= param(7u);
      if (param(8u) != 0.0) { z = param(8u) * tanh_(z / param(8u)); }
    }
    let high = reference(larger(most, max_256(lane, z)));
    let fade = exp_(most - high);
    var p = 0.0;
    if (s0 + lane < span_of.y) { p = exp_(z - high); }
    most = high;
    total = fma(total, fade, sum_256(lane, p));
    shares[lane] = select(p, as_operand(p), ROUNDED);
    workgroupBarrier();
    var sum = 0.0;
    if (d < dims) {
      for (var i = lane / $WIDEu; i < min(256u, span_of.y - s0); i += 256u / $WIDEu) {
        sum = fma(shares[i], value_of(row + (s0 + i) * next + d), sum);
      }
    }
    out = fma(out, fade, sum);
    workgroupBarrier();
  }
  shares[lane] = out;
  workgroupBarrier();
  if (lane < dims) {
    var y = 0.0;
    for (var i = lane; i < 256u; i += $WIDEu) { y += shares[i]; }
    set_4(group * dims + lane, y / total);
  }
  if (lane == 0u) { set_5(group, log_(total) + most); }
}
