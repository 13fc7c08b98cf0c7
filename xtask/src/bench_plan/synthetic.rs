//! A training step of any size, to see how planning grows: a residual network of convolution,
//! normalisation and activation, and its backward pass.

#[derive(Default)]
struct Writer {
    storages: Vec<String>,
    nodes: Vec<String>,
}

impl Writer {
    fn storage(&mut self, bytes: usize, role: &str) -> usize {
        let storage = format!(r#"{{"bytes":{bytes},"role":"{role}"}}"#);
        self.storages.push(storage);
        self.storages.len() - 1
    }

    /// `op` is the phase and the operation: `forward conv`.
    fn node(&mut self, op: &str, time: usize, reads: &[usize], writes: &[usize]) {
        let (phase, op) = op.split_once(' ').expect("a phase and an operation");
        let number = self.nodes.len();
        let edges = format!(r#""reads":{reads:?},"writes":{writes:?}"#);
        self.nodes.push(format!(
            r#"{{"name":"{op}{number}","op":"{op}","phase":"{phase}","time_us":{time},{edges}}}"#
        ));
    }
}

/// `remat.graph/1` text of about `nodes` nodes.
pub(crate) fn training_step(nodes: usize) -> String {
    // Each layer has a parameter, three forward and four or five backward nodes.
    let layers = nodes * 3 / 25;
    let mut w = Writer::default();
    let mut x = w.storage(20_000, "input");
    w.node("input x", 0, &[], &[x]);
    let mut saved = Vec::new();
    for layer in 0..layers {
        // Sizes and times differ from layer to layer, without any pattern that a planner could use.
        let bytes = 20_000 + layer * 7_919 % 20_000;
        let time = 100 + layer * 31 % 97;
        let weight = w.storage(1_000, "parameter");
        w.node("input weight", 0, &[], &[weight]);
        let conv = w.storage(bytes, "activation");
        w.node("forward conv", time, &[weight, x], &[conv]);
        let norm = w.storage(bytes, "activation");
        let mean = w.storage(64, "activation");
        w.node("forward norm", 10 + layer * 17 % 5, &[conv], &[norm, mean]);
        let relu = w.storage(bytes, "activation");
        let residual = layer % 3 == 2;
        let reads: &[usize] = if residual { &[norm, x] } else { &[norm] };
        w.node("forward relu", 10, reads, &[relu]);
        saved.push((x, weight, conv, mean, relu, bytes, residual));
        x = relu;
    }
    let mut dy = w.storage(20_000, "gradient");
    w.node("forward loss", 5, &[x], &[dy]);
    let mut outputs = Vec::new();
    for &(x, weight, conv, mean, relu, bytes, residual) in saved.iter().rev() {
        let d_relu = w.storage(bytes, "gradient");
        w.node("backward relu_backward", 12, &[relu, dy], &[d_relu]);
        let d_norm = w.storage(bytes, "gradient");
        let reads = [conv, mean, d_relu];
        w.node("backward norm_backward", 15, &reads, &[d_norm]);
        let d_weight = w.storage(1_000, "gradient");
        w.node("backward weight_gradient", 120, &[x, d_norm], &[d_weight]);
        outputs.push(d_weight);
        dy = w.storage(bytes, "gradient");
        w.node("backward conv_backward", 120, &[weight, d_norm], &[dy]);
        if residual {
            let sum = w.storage(bytes, "gradient");
            w.node("backward add", 10, &[dy, d_relu], &[sum]);
            dy = sum;
        }
    }
    let head = format!(r#""format":"remat.graph/1","name":"synthetic-{nodes}""#);
    let (storages, nodes) = (w.storages.join(","), w.nodes.join(","));
    format!(r#"{{{head},"storages":[{storages}],"nodes":[{nodes}],"outputs":{outputs:?}}}"#)
}
