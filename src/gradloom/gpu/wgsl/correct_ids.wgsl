// correct_ids.wgsl: labels are ids; an ignored one is met by no class. See correct.wgsl.
fn label_of(r: u32) -> u32 { return u32(at_1(r)); }
