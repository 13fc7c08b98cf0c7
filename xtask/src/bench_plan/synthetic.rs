//! A training step of any size, to see how planning grows: a residual network of convolution,
//! normalisation and activation, and its backward pass.

use std::fmt::Write as _;

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

    fn node(&mut self, name: &str, phase: &str, time: usize, reads: &[usize], writes: &[usize]) {
        self.nodes.push(format!(
            r#"{{"name":"{name}{}","op":"{name}","phase":"{phase}","time_us":{time},{}}}"#,
            self.nodes.len(),
            format_args!(r#""reads":{reads:?},"writes":{writes:?}"#)
        ));
    }
}

/// `remat.graph/1` text of about `nodes` nodes.
pub(crate) fn training_step(nodes: usize) -> String {
    // Each layer has a parameter, three forward and four or five backward nodes.
    let layers = nodes * 3 / 25;
    let mut w = Writer {
        storages: Vec::new(),
        nodes: Vec::new(),
    };
    let mut x = w.storage(20_000, "input");
    w.node("x", "input", 0, &[], &[x]);
    let mut saved = Vec::new();
    for layer in 0..layers {
        // Sizes and times differ from layer to layer, without any pattern that a planner could use.
        let bytes = 20_000 + layer * 7_919 % 20_000;
        let weight = w.storage(1_000, "parameter");
        w.node("weight", "input", 0, &[], &[weight]);
        let conv = w.storage(bytes, "activation");
        w.node(
            "conv",
            "forward",
            100 + layer * 31 % 97,
            &[weight, x],
            &[conv],
        );
        let norm = w.storage(bytes, "activation");
        let mean = w.storage(64, "activation");
        w.node(
            "norm",
            "forward",
            10 + layer * 17 % 5,
            &[conv],
            &[norm, mean],
        );
        let relu = w.storage(bytes, "activation");
        let residual = layer % 3 == 2;
        let reads: &[usize] = if residual { &[norm, x] } else { &[norm] };
        w.node("relu", "forward", 10, reads, &[relu]);
        saved.push((x, weight, conv, mean, relu, bytes, residual));
        x = relu;
    }
    let mut gradient = w.storage(20_000, "gradient");
    w.node("loss", "forward", 5, &[x], &[gradient]);
    let mut outputs = Vec::new();
    for &(x, weight, conv, mean, relu, bytes, residual) in saved.iter().rev() {
        let of_relu = w.storage(bytes, "gradient");
        w.node(
            "relu_backward",
            "backward",
            12,
            &[relu, gradient],
            &[of_relu],
        );
        let of_norm = w.storage(bytes, "gradient");
        w.node(
            "norm_backward",
            "backward",
            15,
            &[conv, mean, of_relu],
            &[of_norm],
        );
        let of_weight = w.storage(1_000, "gradient");
        w.node(
            "weight_gradient",
            "backward",
            120,
            &[x, of_norm],
            &[of_weight],
        );
        outputs.push(of_weight);
        gradient = w.storage(bytes, "gradient");
        w.node(
            "conv_backward",
            "backward",
            120,
            &[weight, of_norm],
            &[gradient],
        );
        if residual {
            let sum = w.storage(bytes, "gradient");
            w.node("add", "backward", 10, &[gradient, of_relu], &[sum]);
            gradient = sum;
        }
    }
    let mut text = format!(r#"{{"format":"remat.graph/1","name":"synthetic-{nodes}","#);
    let _ = write!(
        text,
        r#""storages":[{}],"nodes":[{}],"outputs":{outputs:?}}}"#,
        w.storages.join(","),
        w.nodes.join(",")
    );
    text
}
