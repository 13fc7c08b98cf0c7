"""Steps for a device that is not here: captured on the host, carried over, predicted, planned.

The files in the order of the data: `devices` (data sheets), `attention`, `autocast` and
`carry_over` (what the device runs in place of the host's operations), `scratch`, `costs` and
`margins` (what it takes), `trace` (the step that a user holds), `saved` (its plan on the way to the
device), `record` (what was measured there), `snapshot` (histories of the device's allocator).
"""
