//! Whatever a file says, reading and building it ends with a model or an error.
//!
//! Two kinds of files: a good one with bytes changed, and graphs of every operator with operands
//! and attributes that nobody meant.

use proptest::prelude::*;
use rekindle_models::ModelOptions;
use rekindle_onnx::{Loss, Onnx, OnnxError, operators};

/// A message of protocol buffers, field by field.
#[derive(Clone, Default)]
struct Proto(Vec<u8>);

impl Proto {
    fn varint(mut self, mut value: u64) -> Proto {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn int(self, number: u64, value: i64) -> Proto {
        self.varint(number << 3).varint(value as u64)
    }

    fn bytes(self, number: u64, bytes: &[u8]) -> Proto {
        let mut begun = self.varint(number << 3 | 2).varint(bytes.len() as u64);
        begun.0.extend_from_slice(bytes);
        begun
    }

    fn float(self, number: u64, value: f32) -> Proto {
        let mut begun = self.varint(number << 3 | 5);
        begun.0.extend_from_slice(&value.to_le_bytes());
        begun
    }

    fn inside(self, number: u64, message: Proto) -> Proto {
        self.bytes(number, &message.0)
    }
}

const FLOAT: i64 = 1;
const INT: i64 = 7;

fn tensor(name: &str, kind: i64, shape: &[i64], data: &[u8]) -> Proto {
    let begun = shape.iter().fold(Proto::default(), |proto, &extent| proto.int(1, extent));
    begun.int(2, kind).bytes(8, name.as_bytes()).bytes(9, data)
}

fn floats(name: &str, shape: &[i64]) -> Proto {
    let count = shape.iter().product::<i64>() as usize;
    let data: Vec<u8> = (0..count).flat_map(|i| (i as f32 * 0.1).to_le_bytes()).collect();
    tensor(name, FLOAT, shape, &data)
}

fn ints(name: &str, values: &[i64]) -> Proto {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, INT, &[values.len() as i64], &data)
}

fn value(name: &str, kind: i64, shape: &[i64]) -> Proto {
    let axis = |&extent: &i64| match extent {
        0 => Proto::default().bytes(2, b"n"),
        extent => Proto::default().int(1, extent),
    };
    let shape = shape.iter().fold(Proto::default(), |proto, extent| proto.inside(1, axis(extent)));
    let kind = Proto::default().int(1, kind).inside(2, shape);
    Proto::default().bytes(1, name.as_bytes()).inside(2, Proto::default().inside(1, kind))
}

#[derive(Clone, Debug)]
enum Given {
    Int(i64),
    Float(f32),
    Ints(Vec<i64>),
    Text(&'static str),
}

fn attribute(name: &str, given: &Given) -> Proto {
    let named = Proto::default().bytes(1, name.as_bytes());
    match given {
        Given::Int(value) => named.int(3, *value).int(20, 2),
        Given::Float(value) => named.float(2, *value).int(20, 1),
        Given::Text(text) => named.bytes(4, text.as_bytes()).int(20, 3),
        Given::Ints(all) => all.iter().fold(named, |proto, &value| proto.int(8, value)).int(20, 7),
    }
}

#[derive(Clone, Debug)]
struct Node {
    op: &'static str,
    inputs: Vec<String>,
    attributes: Vec<(&'static str, Given)>,
}

/// A file with these nodes, of which the last gives the output.
fn file(nodes: &[Node]) -> Vec<u8> {
    let mut graph = Proto::default();
    for (number, node) in nodes.iter().enumerate() {
        let mut proto = Proto::default();
        for input in &node.inputs {
            proto = proto.bytes(1, input.as_bytes());
        }
        proto = proto.bytes(2, format!("v{number}").as_bytes());
        proto = proto.bytes(4, node.op.as_bytes());
        for (name, given) in &node.attributes {
            proto = proto.inside(5, attribute(name, given));
        }
        graph = graph.inside(1, proto);
    }
    let weights = [
        floats("a.weight", &[4, 3, 3, 3]),
        floats("a.bias", &[4]),
        floats("b.weight", &[6, 8]),
        floats("c.table", &[5, 3]),
        ints("some", &[2, -1]),
        ints("two", &[1, 2]),
        ints("one", &[1]),
        ints("none", &[]),
    ];
    graph = weights.into_iter().fold(graph, |graph, weight| graph.inside(5, weight));
    graph = graph.inside(11, value("x", FLOAT, &[0, 3, 6, 6]));
    graph = graph.inside(11, value("rows", FLOAT, &[0, 4, 6]));
    graph = graph.inside(11, value("ids", INT, &[0, 4]));
    let last = format!("v{}", nodes.len().saturating_sub(1));
    graph = graph.inside(12, value(&last, FLOAT, &[]));
    let opset = Proto::default().bytes(1, b"").int(2, 18);
    Proto::default().int(1, 9).inside(7, graph).inside(8, opset).0
}

fn node(op: &'static str, inputs: &[&str], attributes: &[(&'static str, Given)]) -> Node {
    let inputs = inputs.iter().map(|input| (*input).to_owned()).collect();
    Node { op, inputs, attributes: attributes.to_vec() }
}

fn good() -> Vec<u8> {
    file(&[
        node("Conv", &["x", "a.weight", "a.bias"], &[("pads", Given::Ints(vec![1, 1, 1, 1]))]),
        node("Relu", &["v0"], &[]),
        node("GlobalAveragePool", &["v1"], &[]),
        node("Flatten", &["v2"], &[("axis", Given::Int(1))]),
    ])
}

fn build(bytes: Vec<u8>) -> Result<(), OnnxError> {
    let options = ModelOptions { batch: 2, sequence: 4, image_size: 6, ..ModelOptions::default() };
    let onnx = Onnx::from_bytes(bytes)?;
    for loss in Loss::ALL {
        let trained = onnx.train(loss, &options).map(|model| model.parameter_count());
        let _ = (trained, onnx.evaluate(loss, &options).is_ok());
    }
    onnx.train(Loss::CrossEntropy, &options).map(|_| ())
}

fn some_given() -> impl Strategy<Value = Given> {
    let number = prop_oneof![4 => -3i64..5, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    let text = prop::sample::select(vec![
        "reflect",
        "edge",
        "wrap",
        "linear",
        "nearest",
        "floor",
        "SAME_UPPER",
        "CRD",
        "ab,bc->ac",
        "->",
        "tanh",
        "mean",
    ]);
    prop_oneof![
        number.clone().prop_map(Given::Int),
        (-2.0f32..2.0).prop_map(Given::Float),
        prop::collection::vec(number, 0..5).prop_map(Given::Ints),
        text.prop_map(Given::Text),
    ]
}

const NAMES: [&str; 29] = [
    "axis",
    "axes",
    "pads",
    "strides",
    "dilations",
    "kernel_shape",
    "group",
    "perm",
    "keepdims",
    "mode",
    "auto_pad",
    "blocksize",
    "num_groups",
    "epsilon",
    "alpha",
    "beta",
    "to",
    "equation",
    "split",
    "num_outputs",
    "ceil_mode",
    "is_causal",
    "q_num_heads",
    "kv_num_heads",
    "num_heads",
    "transA",
    "transB",
    "output_padding",
    "value_ints",
];

fn some_node(before: usize) -> impl Strategy<Value = Node> {
    let mut values: Vec<String> =
        ["x", "rows", "ids", "a.weight", "a.bias", "b.weight", "c.table", "some", "two", "one"]
            .map(String::from)
            .to_vec();
    values.extend(["none".to_owned(), String::new()]);
    values.extend((0..before).flat_map(|number| [format!("v{number}"), format!("v{number}")]));
    let inputs = prop::collection::vec(prop::sample::select(values), 1..5);
    let attributes =
        prop::collection::vec((prop::sample::select(NAMES.to_vec()), some_given()), 0..4);
    (prop::sample::select(operators()), inputs, attributes)
        .prop_map(|(op, inputs, attributes)| Node { op, inputs, attributes })
}

fn some_graph() -> impl Strategy<Value = Vec<Node>> {
    (some_node(0), some_node(1), some_node(2), some_node(3))
        .prop_map(|(a, b, c, d)| vec![a, b, c, d])
}

#[test]
fn the_good_file_is_good() {
    build(good()).expect("it trains");
}

#[test]
fn every_operator_is_listed_with_its_nodes() {
    let nodes = [node("Lstm", &["x"], &[]), node("Relu", &["x"], &[]), node("Foo", &["v0"], &[])];
    let error = build(file(&nodes)).expect_err("two of them are unknown").to_string();
    assert!(error.starts_with("2 nodes"), "{error}");
    assert!(error.contains("Lstm (`v0`)") && error.contains("Foo (`v2`)"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = good();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(end.index(bytes.len()));
        }
        let _ = build(bytes);
    }

    #[test]
    fn strange_graphs_do_not_panic(nodes in some_graph()) {
        let _ = build(file(&nodes));
    }

    #[test]
    fn single_nodes_do_not_panic(node in some_node(0)) {
        let _ = build(file(&[node]));
    }
}
