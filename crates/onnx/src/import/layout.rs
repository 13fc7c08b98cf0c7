//! Operators that move elements or name them anew.

use rekindle_models::InputKind;
use rekindle_program::Var;
use rekindle_program::op::{Axis, Pair, Split, Transpose};

use super::{Handler, Import};
use crate::OnnxError;
use crate::fold::{self, Call, Constant, Kind};
use crate::proto::{Attribute, NodeProto};
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("Constant", constant),
    ("ConstantOfShape", filled),
    ("Shape", shape),
    ("Size", |i, n| {
        let len: usize = i.value(n, 0)?.shape().iter().product();
        Ok(vec![Constant::scalar(Kind::Int, len as f64).into()])
    }),
    ("Reshape", reshape),
    ("Flatten", flatten),
    ("Squeeze", squeeze),
    ("Unsqueeze", unsqueeze),
    ("Transpose", transpose),
    ("Expand", expand),
    ("Concat", concat),
    ("Split", split),
    ("SplitToSequence", |i, n| Ok(vec![Value::List(split(i, n)?)])),
    ("SequenceAt", sequence_at),
    ("Slice", slice),
    ("Gather", gather),
    ("GatherElements", gather_elements),
];

type Results = Result<Vec<Value>, OnnxError>;

fn constant(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let found = node.attributes.iter().find_map(|(name, value)| match (name.as_str(), value) {
        ("value", Attribute::Tensor(tensor)) => Some(import.onnx.constant(tensor)),
        ("value_float", Attribute::Float(value)) => {
            Some(Ok(Constant::scalar(Kind::Float, (*value).into())))
        }
        ("value_int", Attribute::Int(value)) => {
            Some(Ok(Constant::scalar(Kind::Int, *value as f64)))
        }
        ("value_ints", Attribute::Ints(values)) => Some(Ok(Constant::ints(values.iter().copied()))),
        ("value_floats", Attribute::Floats(values)) => Some(Ok(Constant {
            shape: vec![values.len()],
            kind: Kind::Float,
            values: values.iter().map(|&value| value.into()).collect(),
        })),
        _ => None,
    });
    let found = found.ok_or_else(|| node.wrong("a constant of no known kind"))??;
    Ok(vec![found.into()])
}

/// One number everywhere.
fn filled(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let Some(shape) = import.constant(node, 0)? else {
        return Err(node.wrong("it lacks a shape"));
    };
    let value = match node.attributes.get("value") {
        Some(Attribute::Tensor(tensor)) => import.onnx.constant(tensor)?,
        _ => Constant::scalar(Kind::Float, 0.0),
    };
    let Some(single) = value.single() else {
        return Err(node.wrong(format!("a value of shape {:?}", value.shape)));
    };
    let shape = with_call(import, node, |call| fold::shapes::extents(call, &shape.to_ints()))?;
    let values = vec![single; shape.iter().product()];
    Ok(vec![Constant { shape, kind: value.kind, values }.into()])
}

fn shape(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let shape = import.value(node, 0)?.shape();
    let rank = shape.len() as i64;
    let place = |at: i64| if at < 0 { at + rank } else { at }.clamp(0, rank) as usize;
    let (start, end) = (place(node.int("start", 0)), place(node.int("end", rank)));
    let extents = shape.get(start..end).unwrap_or(&[]);
    Ok(vec![Constant::ints(extents.iter().map(|&extent| extent as i64)).into()])
}

/// The node with its constants, for what is known of shapes.
fn with_call<T>(
    import: &Import<'_>,
    node: &NodeProto,
    work: impl FnOnce(&Call<'_>) -> Result<T, OnnxError>,
) -> Result<T, OnnxError> {
    let mut constants = Vec::new();
    for index in 0..node.inputs.len() {
        constants.push(match import.optional(node, index)? {
            Some(Value::Constant(constant)) => Some(constant),
            _ => None,
        });
    }
    let operands: Vec<Option<&Constant>> = constants.iter().map(|x| x.as_deref()).collect();
    work(&Call { node, operands: &operands })
}

/// A value as a tensor, ids as they are.
fn any(import: &mut Import<'_>, node: &NodeProto, index: usize) -> Result<Seen, OnnxError> {
    match import.value(node, index)? {
        Value::Tensor(seen) if !seen.causal => Ok(seen),
        value => import.floats(node, value),
    }
}

fn reshaped(import: &mut Import<'_>, x: &Seen, shape: &[usize]) -> Results {
    let var = import.plain(x)?;
    let var = import.builder.reshape(&var, shape)?;
    Ok(vec![Value::Tensor(Seen::plain(var))])
}

fn reshape(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let Some(to) = import.constant(node, 1)? else {
        return Err(node.wrong("it lacks a shape"));
    };
    let from = import.value(node, 0)?.shape();
    let shape = with_call(import, node, |call| fold::shapes::reshaped(call, &from, &to.to_ints()))?;
    let x = any(import, node, 0)?;
    if shape == from {
        return Ok(vec![Value::Tensor(x)]);
    }
    reshaped(import, &x, &shape)
}

fn flatten(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = any(import, node, 0)?;
    let shape = x.shape();
    let axis = node.int("axis", 1);
    let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
    let (rows, cols) = shape.split_at(axis.clamp(0, shape.len() as i64) as usize);
    let shape = [rows.iter().product(), cols.iter().product()];
    reshaped(import, &x, &shape)
}

fn squeeze(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = any(import, node, 0)?;
    let shape = x.shape();
    let axes = with_call(import, node, |call| Ok(call.ints(1, "axes")))?;
    with_call(import, node, |call| fold::shapes::squeezed(call, &shape, axes.as_deref()))?;
    let gone: Vec<usize> = match axes {
        Some(axes) => {
            axes.iter().map(|&axis| node.axis(axis, shape.len())).collect::<Result<_, _>>()?
        }
        None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
    };
    Ok(vec![Value::Tensor(import.without_axes(&x, &gone)?)])
}

impl Import<'_> {
    /// A value without these axes, which have extent one.
    pub(super) fn without_axes(&mut self, x: &Seen, axes: &[usize]) -> Result<Seen, OnnxError> {
        let kept = |axis: &usize| !axes.contains(axis);
        let order: Vec<usize> = x.order.iter().copied().filter(kept).collect();
        let shape: Vec<usize> = x
            .order
            .iter()
            .zip(x.var.shape())
            .filter(|(axis, _)| kept(axis))
            .map(|(_, &extent)| extent)
            .collect();
        let lower = |axis: usize| axis - axes.iter().filter(|&&gone| gone < axis).count();
        let order = order.into_iter().map(lower).collect();
        let var = self.builder.reshape(&x.var, &shape)?;
        Ok(Seen { var, order, causal: false })
    }

    /// A value repeated to a shape that it can be repeated to.
    pub(super) fn expanded(
        &mut self,
        node: &NodeProto,
        x: &Seen,
        shape: &[usize],
    ) -> Result<Seen, OnnxError> {
        let own = x.shape();
        if own == shape {
            return Ok(x.clone());
        }
        let Some(more) = shape.len().checked_sub(own.len()) else {
            return Err(node.wrong(format!("{own:?} cannot be repeated to {shape:?}")));
        };
        let mut stored = vec![1; more];
        stored.extend(x.var.shape());
        let order: Vec<usize> = (0..more).chain(x.order.iter().map(|&axis| axis + more)).collect();
        let var = self.builder.reshape(&x.var, &stored)?;
        let mut axes = Vec::with_capacity(order.len());
        for (&axis, &extent) in order.iter().zip(&stored) {
            axes.push(match (extent, shape[axis]) {
                (a, b) if a == b || b == 1 => Axis::whole(a),
                (1, b) => Axis::repeated(b),
                _ => return Err(node.wrong(format!("{own:?} cannot be repeated to {shape:?}"))),
            });
        }
        let name = self.name(node, "repeated");
        let var = self.builder.view(&name, &var, &axes, 0.0)?;
        Ok(Seen { var, order, causal: false })
    }
}

fn unsqueeze(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = any(import, node, 0)?;
    let axes = with_call(import, node, |call| Ok(call.ints(1, "axes")))?.unwrap_or_default();
    let rank = x.order.len() + axes.len();
    let mut axes = axes.iter().map(|&axis| node.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    axes.dedup();
    let mut seen = x;
    for axis in axes {
        // The new axis goes where the one is that now has its number.
        let place = seen.order.iter().position(|&own| own == axis).unwrap_or(seen.order.len());
        let mut order: Vec<usize> =
            seen.order.iter().map(|&own| if own >= axis { own + 1 } else { own }).collect();
        order.insert(place, axis);
        let mut shape = seen.var.shape().to_vec();
        shape.insert(place, 1);
        let var = import.builder.reshape(&seen.var, &shape)?;
        seen = Seen { var, order, causal: false };
    }
    Ok(vec![Value::Tensor(seen)])
}

fn transpose(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = any(import, node, 0)?;
    let rank = x.order.len();
    let order = with_call(import, node, |call| fold::shapes::order(call, rank))?;
    Ok(vec![Value::Tensor(x.transposed(&order))])
}

fn expand(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let Some(to) = import.constant(node, 1)? else {
        return Err(node.wrong("it lacks a shape"));
    };
    let x = any(import, node, 0)?;
    let own = x.shape();
    let rank = own.len().max(to.values.len());
    let mut shape = vec![1; rank];
    for (extent, &given) in shape[rank - to.values.len()..].iter_mut().zip(&to.values) {
        *extent = given.max(1.0) as usize;
    }
    for (extent, &own) in shape[rank - own.len()..].iter_mut().zip(&own) {
        if *extent == 1 {
            *extent = own;
        }
    }
    if import.is_ids(&x.var) && own != shape {
        return Err(node.wrong("ids that are repeated"));
    }
    Ok(vec![Value::Tensor(import.expanded(node, &x, &shape)?)])
}

/// As many at a time as an op takes.
fn concat(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let mut parts = Vec::new();
    for index in 0..node.inputs.len() {
        if import.value(node, index)?.shape().iter().product::<usize>() > 0 {
            parts.push(import.tensor(node, index)?);
        }
    }
    let Some(largest) = parts.iter().max_by_key(|part| part.var.len()) else {
        return Err(node.wrong("it joins nothing"));
    };
    let order = largest.order.clone();
    let axis = node.axis(node.int("axis", 0), order.len())?;
    if parts.iter().any(|part| part.order.len() != order.len()) {
        return Err(node.wrong("parts of different numbers of axes"));
    }
    let place = largest.place(axis);
    let mut vars = Vec::new();
    for part in &parts {
        vars.push(import.in_order(part, &order)?);
    }
    while vars.len() > 1 {
        let mut joined = Vec::new();
        for group in vars.chunks(Split::MAX_PARTS) {
            let group: Vec<_> = group.iter().collect();
            let name = import.name(node, "");
            joined.push(match group[..] {
                [only] => only.clone(),
                _ => import.builder.join(&name, &group, place)?,
            });
        }
        vars = joined;
    }
    let var = vars.remove(0);
    Ok(vec![Value::Tensor(Seen { var, order, causal: false })])
}

fn split(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let axis = node.axis(node.int("axis", 0), x.order.len())?;
    let whole = x.shape()[axis];
    let single = with_call(import, node, |call| Ok(call.ints(1, "split")))?;
    // A sequence may be given the extent of each part.
    let extents = match (node.op.as_str(), single.as_deref()) {
        ("SplitToSequence", Some(&[each])) if each > 0 && import.is_scalar(node, 1)? => {
            let each = each as usize;
            (0..whole.div_ceil(each)).map(|k| each.min(whole - k * each)).collect()
        }
        _ => with_call(import, node, |call| fold::shapes::split_extents(call, whole))?,
    };
    let name = import.name(node, "");
    let parts = import.builder.split_at(&name, &x.var, x.place(axis), &extents)?;
    Ok(parts.into_iter().map(|part| Value::Tensor(x.with(part))).collect())
}

impl Import<'_> {
    /// Whether operand `index` has no axes.
    fn is_scalar(&self, node: &NodeProto, index: usize) -> Result<bool, OnnxError> {
        Ok(self.value(node, index)?.shape().is_empty())
    }
}

fn sequence_at(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let at = import.constant(node, 1)?.and_then(|at| at.single()).unwrap_or(0.0);
    match import.value(node, 0)? {
        Value::List(parts) => {
            let at = node.axis(at as i64, parts.len())?;
            Ok(vec![parts[at].clone()])
        }
        _ => Err(node.wrong("it picks from what is no sequence")),
    }
}

/// The window that `axes` are, by axis of the value.
pub(super) fn window(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: &Seen,
    axes: &[Axis],
    fill: f32,
) -> Results {
    let stored: Vec<Axis> = x.order.iter().map(|&axis| axes[axis]).collect();
    if axes.iter().any(|axis| axis.extent == 0) {
        return Err(node.wrong("nothing is left"));
    }
    let name = import.name(node, "");
    let var = import.builder.view(&name, &x.var, &stored, fill)?;
    Ok(vec![Value::Tensor(x.with(var))])
}

fn slice(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let shape = import.value(node, 0)?.shape();
    let slices = with_call(import, node, |call| fold::shapes::slices(call, &shape))?;
    let whole = slices.iter().zip(&shape).all(|(slice, &extent)| *slice == (0, 1, extent));
    let x = any(import, node, 0)?;
    if whole {
        return Ok(vec![Value::Tensor(x)]);
    }
    let axes = slices.iter().zip(&shape).map(|(&(start, step, extent), &size)| Axis {
        step: step as isize,
        ..Axis::window(size, start as isize, extent)
    });
    let axes: Vec<Axis> = axes.collect();
    window(import, node, &x, &axes, 0.0)
}

/// Slices of a tensor by ids, or one of them.
fn gather(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let shape = import.value(node, 0)?.shape();
    let axis = node.axis(node.int("axis", 0), shape.len())?;
    let ids = import.value(node, 1)?;
    if let Value::Constant(ids) = &ids
        && let Some(at) = ids.single()
    {
        let at = node.axis(at as i64, shape[axis])?;
        let mut axes: Vec<Axis> = shape.iter().map(|&extent| Axis::whole(extent)).collect();
        axes[axis] = Axis::window(shape[axis], at as isize, 1);
        let x = import.tensor(node, 0)?;
        let results = window(import, node, &x, &axes, 0.0)?;
        let Some(Value::Tensor(row)) = results.into_iter().next() else {
            return Err(node.wrong("it gathers nothing"));
        };
        return Ok(vec![Value::Tensor(match ids.shape.is_empty() {
            true => import.without_axes(&row, &[axis])?,
            false => row,
        })]);
    }
    // The axis comes first, so that the rest of each is a row.
    let others: Vec<usize> = (0..shape.len()).filter(|&own| own != axis).collect();
    let first: Vec<usize> = [axis].into_iter().chain(others.iter().copied()).collect();
    let table = import.tensor(node, 0)?;
    let table = import.in_order(&table, &first)?;
    let (rows, cols) = (shape[axis], others.iter().map(|&own| shape[own]).product());
    let table = import.builder.reshape(&table, &[rows, cols])?;
    let ids = match ids {
        Value::Constant(ids) => {
            let name = import.name(node, "ids");
            let numbers = ids.to_ints().into_iter();
            let numbers = numbers.map(|id| node.axis(id, rows).map(|id| id as i64));
            let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
            import.builder.constant_ids(&name, &ids.shape, numbers)?
        }
        Value::Tensor(seen) if import.is_ids(&seen.var) => {
            for (input, kind) in &mut import.inputs {
                if input.tensor() == seen.var.tensor() {
                    *kind = InputKind::Tokens { vocab: rows };
                }
            }
            import.plain(&seen)?
        }
        computed => return picked_rows(import, node, computed, &table, &shape, axis),
    };
    let name = import.name(node, "");
    let y = import.builder.embedding(&name, &ids, &table)?;
    in_place_of(import, &y, ids.shape(), &shape, axis)
}

/// With indices that are computed, only from a tensor that is the same number everywhere.
fn gather_elements(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let single = match import.value(node, 0)? {
        Value::Constant(constant) => constant.shrunk().single().map(|single| (constant, single)),
        _ => None,
    };
    let Some((constant, single)) = single else {
        return Err(node.wrong("an index of its own for each element, which is computed"));
    };
    let shape = import.value(node, 1)?.shape();
    let len = fold::check_len(&node.label(), &shape)?;
    Ok(vec![Constant { shape, kind: constant.kind, values: vec![single; len] }.into()])
}

/// Rows by ids that the program computes as floats, such as positions counted without padding: a
/// one in the column of each id, times the table.
fn picked_rows(
    import: &mut Import<'_>,
    node: &NodeProto,
    ids: Value,
    table: &Var,
    shape: &[usize],
    axis: usize,
) -> Results {
    let ids = import.floats(node, ids)?;
    let ids_shape = ids.shape();
    let ids = import.plain(&ids)?;
    let rows = shape[axis];
    let column = import.builder.reshape(&ids, &[ids.len(), 1])?;
    let name = import.name(node, "all");
    let all = (0..rows).map(|row| row as f32).collect();
    let all = import.builder.constant(&name, &[1, rows], all)?;
    let name = import.name(node, "one");
    let ones = import.builder.binary(&name, Pair::Equal, &column, &all)?;
    let name = import.name(node, "");
    let transpose = Transpose { a: false, b: false };
    let y = import.builder.matmul(&name, &ones, table, None, transpose)?;
    in_place_of(import, &y, &ids_shape, shape, axis)
}

/// Rows that were gathered along `axis` of a tensor of this shape: the axes of the ids take its
/// place.
fn in_place_of(
    import: &mut Import<'_>,
    rows: &Var,
    ids: &[usize],
    shape: &[usize],
    axis: usize,
) -> Results {
    let others: Vec<usize> = (0..shape.len()).filter(|&own| own != axis).collect();
    let mut to = ids.to_vec();
    to.extend(others.iter().map(|&own| shape[own]));
    let var = import.builder.reshape(rows, &to)?;
    let moved = others.iter().map(|&own| if own < axis { own } else { own - 1 + ids.len() });
    let order = (axis..axis + ids.len()).chain(moved).collect();
    Ok(vec![Value::Tensor(Seen { var, order, causal: false })])
}
