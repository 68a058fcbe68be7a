// gather.wgsl: elements by id along an axis, and sums back to where they came from. word 0: extent that ids point into;
// word 1: extent of ids along the axis; word 2: elements of the axes behind it. All arguments dense.

fn place(r: u32, c: u32, id: i32) -> u32 { return (r / word(1u) * word(0u) + u32(id)) * word(2u) + c; }

@compute @workgroup_size(256)
fn gather(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {  // y, x, ids: a thread per element
  let i = group_of(wid, nwg) * 256u + lane;
  if (i >= size_0()) { return; }
  let r = i / word(2u);
  let id = at_2(i);
  if (id >= 0 && u32(id) < word(0u)) { set_0(i, at_1(place(r, i - r * word(2u), id))); }
}
