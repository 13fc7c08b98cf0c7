//! Attention and rotary embeddings as single operators, and products by indices.

use rekindle_program::Var;
use rekindle_program::op::{HeadOperand, Heads, Map, Mask, Pair};

use super::product::head_operand;
use super::{Handler, Import};
use crate::OnnxError;
use crate::fold::{Constant, Kind};
use crate::proto::{Elements, NodeProto};
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] =
    &[("Attention", attention), ("RotaryEmbedding", rotary), ("Einsum", einsum)];

type Results = Result<Vec<Value>, OnnxError>;

impl Import<'_> {
    /// Operand `index` as `[batch, heads, rows, columns]`, and whether it came with the heads side
    /// by side, as `[batch, rows, heads · columns]`.
    fn heads(
        &mut self,
        node: &NodeProto,
        index: usize,
        count: &str,
    ) -> Result<(Seen, bool), OnnxError> {
        let x = self.tensor(node, index)?;
        let &[batch, rows, cols] = &x.shape()[..] else {
            return match x.order.len() {
                4 => Ok((x, false)),
                _ => Err(node.wrong(format!("operand {index} has neither three nor four axes"))),
            };
        };
        let heads = usize::try_from(node.int(count, 0)).unwrap_or(0);
        if heads == 0 || !cols.is_multiple_of(heads) {
            return Err(node.wrong(format!("`{count}` is {heads} for {cols} columns")));
        }
        let var = self.plain(&x)?;
        let var = self.builder.reshape(&var, &[batch, rows, heads, cols / heads])?;
        Ok((Seen { var, order: vec![0, 2, 1, 3], causal: false }, true))
    }

    /// Heads repeated so that each of `count` has its own; neighbours share one.
    fn repeated_heads(
        &mut self,
        node: &NodeProto,
        x: Seen,
        count: usize,
    ) -> Result<Seen, OnnxError> {
        let &[batch, heads, rows, cols] = &x.shape()[..] else {
            return Err(node.wrong("it has no heads"));
        };
        if heads == count {
            return Ok(x);
        }
        if heads == 0 || !count.is_multiple_of(heads) {
            return Err(node.wrong(format!("{count} heads cannot share {heads}")));
        }
        let var = self.plain(&x)?;
        let split = Seen::plain(self.builder.reshape(&var, &[batch, heads, 1, rows, cols])?);
        let whole = self.expanded(node, &split, &[batch, heads, count / heads, rows, cols])?;
        let var = self.builder.reshape(&whole.var, &[batch, count, rows, cols])?;
        Ok(Seen::plain(var))
    }

    /// Whether the value of this name is of truth values, as far as the nodes before tell.
    fn is_truth(&self, name: &str) -> bool {
        let made_by = |name: &str| {
            let mut nodes = self.onnx.graph.nodes.iter();
            nodes.find(|node| node.outputs.iter().any(|output| output == name))
        };
        let mut name = name;
        // Nodes are in a valid order, so that this ends; the bound is for files where they are not.
        for _ in 0..self.onnx.graph.nodes.len() {
            if let Some(Value::Constant(constant)) = self.values.get(name) {
                return constant.kind == Kind::Bool;
            }
            let Some(node) = made_by(name) else {
                let inputs = &self.onnx.graph.inputs;
                let input = inputs.iter().find(|input| input.name == name);
                return input.is_some_and(|input| input.elements == Elements::Bool);
            };
            let at = match node.op.as_str() {
                "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or"
                | "Xor" | "Not" | "IsNaN" => return true,
                "Cast" => return Elements::new(node.int("to", 1)) == Elements::Bool,
                "Where" => 1,
                "Reshape" | "Expand" | "Unsqueeze" | "Squeeze" | "Slice" | "Transpose"
                | "Identity" | "Concat" | "Gather" | "Flatten" | "Split" | "Tile" => 0,
                _ => return false,
            };
            match node.inputs.get(at) {
                Some(input) => name = input,
                None => return false,
            }
        }
        false
    }
}

/// `softmax(scale · q · kᵀ + mask) · v`.
fn attention(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if node.inputs.iter().skip(4).any(|input| !input.is_empty()) || node.outputs.len() > 1 {
        return Err(node.wrong("keys and values of earlier calls; export without a cache"));
    }
    let (q, flat) = import.heads(node, 0, "q_num_heads")?;
    let (k, _) = import.heads(node, 1, "kv_num_heads")?;
    let (v, _) = import.heads(node, 2, "kv_num_heads")?;
    let &[batch, heads, rows, width] = &q.shape()[..] else {
        return Err(node.wrong("it has no heads"));
    };
    let (k, v) = (import.repeated_heads(node, k, heads)?, import.repeated_heads(node, v, heads)?);
    let outer = [batch, heads];
    let cols = k.shape()[2];
    let scale = node.float("scale", 1.0 / (width.max(1) as f32).sqrt());
    let turned = k.transposed(&[0, 1, 3, 2]);
    let scores = product(import, node, "scores", [&q, &turned], &outer, Heads::Outer, scale)?;
    let mut scores = Seen::plain(scores);
    let cap = node.float("softcap", 0.0);
    if cap != 0.0 {
        let inner = import.times(node, "capped", &scores, 1.0 / cap)?;
        let tanh = import.mapped(node, "tanh", &inner, Map::Tanh)?;
        scores = import.times(node, "cap", &tanh, cap)?;
    }
    let mut mask = Mask::Full;
    if node.int("is_causal", 0) != 0 {
        if rows != cols {
            return Err(node.wrong("a causal mask of scores that are not square"));
        }
        mask = Mask::Causal;
    }
    if import.optional(node, 3)?.is_some() {
        let added = mask_to_add(import, node)?;
        if let Value::Constant(constant) = &added
            && let Some(masked) = super::elementwise::masked_scores(constant, &scores)
        {
            mask = if masked.causal { Mask::Causal } else { mask };
        } else {
            let added = import.floats(node, added)?;
            scores = import.paired(node, "masked", Pair::Add, [&scores, &added])?;
        }
    }
    let name = import.name(node, "weights");
    let var = import.plain(&scores)?;
    let weights = Seen::plain(import.builder.softmax(&name, &var, mask)?);
    let y = product(import, node, "", [&weights, &v], &outer, Heads::Interleaved, 1.0)?;
    let seen = match flat {
        true => {
            let cols = y.len() / (batch * rows).max(1);
            Seen::plain(import.builder.reshape(&y, &[batch, rows, cols])?)
        }
        false => Seen { var: y, order: vec![0, 2, 1, 3], causal: false },
    };
    Ok(vec![Value::Tensor(seen)])
}

/// The mask as numbers to add: where truth values say no, the score is hidden.
fn mask_to_add(import: &mut Import<'_>, node: &NodeProto) -> Result<Value, OnnxError> {
    match import.value(node, 3)? {
        Value::Constant(constant) if constant.kind == Kind::Bool => {
            let hidden = |&seen: &f64| if seen != 0.0 { 0.0 } else { f64::NEG_INFINITY };
            let values = constant.values.iter().map(hidden).collect();
            Ok(Constant { shape: constant.shape.clone(), kind: Kind::Float, values }.into())
        }
        value if import.is_truth(&node.inputs[3]) => {
            let seen = import.floats(node, value)?;
            let below = import.mapped(node, "hidden", &seen, Map::Shift { by: -1.0 })?;
            // Large enough that nothing is left of it after a softmax, and no infinity times zero.
            Ok(Value::Tensor(import.times(node, "mask", &below, 1e30)?))
        }
        value => Ok(value),
    }
}

/// `alpha · a · b` for each batch and head, laid out as `heads` says.
fn product(
    import: &mut Import<'_>,
    node: &NodeProto,
    part: &str,
    [a, b]: [&Seen; 2],
    outer: &[usize],
    heads: Heads,
    alpha: f32,
) -> Result<Var, OnnxError> {
    let (a, b) = (head_operand(import, a, outer)?, head_operand(import, b, outer)?);
    let name = import.name(node, part);
    let [a, b] = [&a, &b].map(|(var, heads, transposed)| HeadOperand {
        var,
        heads: *heads,
        transposed: *transposed,
    });
    Ok(import.builder.head_matmul(&name, a, b, heads, alpha)?)
}

/// Pairs of columns turned by the angles whose cosines and sines are given for each row.
fn rotary(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let (x, flat) = import.heads(node, 0, "num_heads")?;
    let &[batch, heads, rows, width] = &x.shape()[..] else {
        return Err(node.wrong("it has no heads"));
    };
    let given = usize::try_from(node.int("rotary_embedding_dim", 0)).unwrap_or(0);
    let turned = if given == 0 { width } else { given };
    if turned > width || !turned.is_multiple_of(2) || turned == 0 {
        return Err(node.wrong(format!("{turned} of {width} columns to be turned in pairs")));
    }
    let half = turned / 2;
    let [cos, sin] = [angles(import, node, 1)?, angles(import, node, 2)?];
    let x = Seen::plain(import.plain(&x)?);
    let between = node.int("interleaved", 0) != 0;
    let part = |import: &mut Import<'_>, start: usize, step: isize, extent: usize| {
        let whole = x.var.shape()[..3].iter().map(|&size| rekindle_program::op::Axis::whole(size));
        let mut axes: Vec<_> = whole.collect();
        let window = rekindle_program::op::Axis::window(width, start as isize, extent);
        axes.push(rekindle_program::op::Axis { step, ..window });
        let name = import.name(node, "half");
        Ok::<Seen, OnnxError>(x.with(import.builder.view(&name, &x.var, &axes, 0.0)?))
    };
    let [a, b] = match between {
        true => [part(import, 0, 2, half)?, part(import, 1, 2, half)?],
        false => [part(import, 0, 1, half)?, part(import, half, 1, half)?],
    };
    let product = |import: &mut Import<'_>, x: &Seen, angle: &Seen| {
        import.paired(node, "product", Pair::Mul, [x, angle])
    };
    let (ac, bs) = (product(import, &a, &cos)?, product(import, &b, &sin)?);
    let (as_, bc) = (product(import, &a, &sin)?, product(import, &b, &cos)?);
    let first = import.paired(node, "first", Pair::Sub, [&ac, &bs])?;
    let second = import.paired(node, "second", Pair::Add, [&as_, &bc])?;
    let (mut vars, axis) = match between {
        true => {
            let one = [batch, heads, rows, half, 1];
            let first = import.builder.reshape(&first.var, &one)?;
            (vec![first, import.builder.reshape(&second.var, &one)?], 4)
        }
        false => (vec![first.var, second.var], 3),
    };
    let name = import.name(node, "turned");
    let joined = import.builder.join(&name, &vars.iter().collect::<Vec<_>>(), axis)?;
    vars = vec![import.builder.reshape(&joined, &[batch, heads, rows, turned])?];
    if turned < width {
        vars.push(part(import, turned, 1, width - turned)?.var);
    }
    let name = import.name(node, "");
    let y = match &vars[..] {
        [only] => only.clone(),
        _ => import.builder.join(&name, &vars.iter().collect::<Vec<_>>(), 3)?,
    };
    let seen = match flat {
        true => {
            let var = import.plain(&Seen::plain(y).transposed(&[0, 2, 1, 3]))?;
            Seen::plain(import.builder.reshape(&var, &[batch, rows, heads * width])?)
        }
        false => Seen::plain(y),
    };
    Ok(vec![Value::Tensor(seen)])
}

/// Cosines or sines as `[batch, 1, rows, columns]`; those of a table, by the position of each row.
fn angles(import: &mut Import<'_>, node: &NodeProto, index: usize) -> Result<Seen, OnnxError> {
    let known = "cosines, sines and positions that are not known before it runs";
    let Some(table) = import.constant(node, index)? else {
        return Err(node.wrong(known));
    };
    let positions = import.constant(node, 3)?;
    let (shape, values) = match (&table.shape[..], positions) {
        (&[rows, cols], Some(positions)) if positions.shape.len() == 2 => {
            let mut values = Vec::new();
            for &position in &positions.values {
                let at = position as usize;
                if !(0.0..rows as f64).contains(&position) {
                    return Err(node.wrong(format!("position {position} of {rows}")));
                }
                values.extend(&table.values[at * cols..(at + 1) * cols]);
            }
            (vec![positions.shape[0], 1, positions.shape[1], cols], values)
        }
        (&[batch, rows, cols], None) => (vec![batch, 1, rows, cols], table.values.clone()),
        _ => return Err(node.wrong(format!("a table of shape {:?}", table.shape))),
    };
    let name = import.name(node, "angles");
    let values = values.into_iter().map(|value| value as f32).collect();
    Ok(Seen::plain(import.builder.constant(&name, &shape, values)?))
}

/// A sum of products whose axes letters name: of two operands, none of which has a letter twice.
fn einsum(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let equation: String = node.text("equation", "").split_whitespace().collect();
    let wrong = || node.wrong(format!("the equation `{equation}`; write it as products"));
    let (inputs, output) = equation.split_once("->").ok_or_else(wrong)?;
    let letters = |text: &str| -> Option<Vec<char>> {
        let all: Vec<char> = text.chars().collect();
        let once = (0..all.len()).all(|at| !all[..at].contains(&all[at]));
        (once && all.iter().all(char::is_ascii_alphabetic)).then_some(all)
    };
    let output = letters(output).ok_or_else(wrong)?;
    let (a_text, b_text) = inputs.split_once(',').ok_or_else(wrong)?;
    let (a_axes, b_axes) = (letters(a_text).ok_or_else(wrong)?, letters(b_text).ok_or_else(wrong)?);
    let (a, b) = (import.tensor(node, 0)?, import.tensor(node, 1)?);
    let (a_shape, b_shape) = (a.shape(), b.shape());
    if a_axes.len() != a_shape.len() || b_axes.len() != b_shape.len() || node.inputs.len() != 2 {
        return Err(wrong());
    }
    let extent = |letter: &char| {
        let of = |axes: &[char], shape: &[usize]| {
            axes.iter().position(|own| own == letter).map(|at| shape[at])
        };
        of(&a_axes, &a_shape).or(of(&b_axes, &b_shape)).unwrap_or(1)
    };
    let agree = a_axes.iter().enumerate().all(|(at, letter)| a_shape[at] == extent(letter))
        && b_axes.iter().enumerate().all(|(at, letter)| b_shape[at] == extent(letter));
    let in_b = |letter: &char| b_axes.contains(letter);
    let kept = |letter: &char| output.contains(letter);
    let pick = |axes: &[char], test: &dyn Fn(&char) -> bool| -> Vec<char> {
        axes.iter().copied().filter(test).collect()
    };
    let batch = pick(&a_axes, &|l| in_b(l) && kept(l));
    let summed = pick(&a_axes, &|l| in_b(l) && !kept(l));
    let rows = pick(&a_axes, &|l| !in_b(l) && kept(l));
    let cols = pick(&b_axes, &|l| !a_axes.contains(l) && kept(l));
    let counts = [batch.len() + summed.len() + rows.len(), batch.len() + summed.len() + cols.len()];
    let made = [&batch[..], &rows, &cols].concat();
    if !agree || counts != [a_axes.len(), b_axes.len()] || made.len() != output.len() {
        return Err(wrong());
    }
    let size = |letters: &[char]| letters.iter().map(extent).product::<usize>();
    let mut operand = |x: &Seen, axes: &[char], order: [&[char]; 3]| -> Result<Var, OnnxError> {
        let wanted = order.concat();
        let places = wanted.iter().map(|l| axes.iter().position(|own| own == l).unwrap_or(0));
        let places: Vec<usize> = places.collect();
        let var = import.plain(&x.transposed(&places))?;
        Ok(import.builder.reshape(&var, &[size(order[0]), 1, size(order[1]), size(order[2])])?)
    };
    let a = operand(&a, &a_axes, [&batch, &rows, &summed])?;
    let b = operand(&b, &b_axes, [&batch, &summed, &cols])?;
    let [a, b] = [&a, &b].map(|var| HeadOperand { var, heads: Heads::Outer, transposed: false });
    let name = import.name(node, "");
    let y = import.builder.head_matmul(&name, a, b, Heads::Outer, 1.0)?;
    let shape: Vec<usize> = made.iter().map(extent).collect();
    let y = Seen::plain(import.builder.reshape(&y, &shape)?);
    let places = output.iter().map(|l| made.iter().position(|own| own == l).unwrap_or(0));
    Ok(vec![Value::Tensor(y.transposed(&places.collect::<Vec<_>>()))])
}
