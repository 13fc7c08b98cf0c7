//! Operators that put elements elsewhere by a pattern: blocks, borders, repetitions, triangles.

use rekindle_program::op::{Axis, Pair};

use super::{Handler, Import};
use crate::OnnxError;
use crate::proto::NodeProto;
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("DepthToSpace", depth_to_space),
    ("SpaceToDepth", space_to_depth),
    ("Pad", pad),
    ("Tile", tile),
    ("Trilu", triangle),
];

type Results = Result<Vec<Value>, OnnxError>;

/// An image `[n, c, h, w]` and the size of its blocks, which must be at least one.
fn blocks(import: &mut Import<'_>, node: &NodeProto) -> Result<([usize; 5], Seen), OnnxError> {
    let x = import.tensor(node, 0)?;
    let block = usize::try_from(node.int("blocksize", 0)).unwrap_or(0);
    match (&x.shape()[..], block) {
        (&[n, c, h, w], 1..) => Ok(([n, c, h, w, block], x)),
        _ => Err(node.wrong("it is no image, or has no size of its blocks")),
    }
}

/// A value reshaped to `from`, with its axes in `order`, reshaped to `to`.
fn through(
    import: &mut Import<'_>,
    x: &Seen,
    from: [usize; 6],
    order: [usize; 6],
    to: [usize; 4],
) -> Results {
    let var = import.plain(x)?;
    let seen = Seen::plain(import.builder.reshape(&var, &from)?).transposed(&order);
    let var = import.plain(&seen)?;
    Ok(vec![Value::Tensor(Seen::plain(import.builder.reshape(&var, &to)?))])
}

fn depth_to_space(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let ([n, c, h, w, b], x) = blocks(import, node)?;
    let area = b.checked_mul(b).filter(|&area| c.is_multiple_of(area));
    let Some(inner) = area.map(|area| c / area) else {
        return Err(node.wrong(format!("{c} channels are no blocks of {b} by {b}")));
    };
    let to = [n, inner, h * b, w * b];
    match node.text("mode", "DCR") {
        "DCR" => through(import, &x, [n, b, b, inner, h, w], [0, 3, 4, 1, 5, 2], to),
        "CRD" => through(import, &x, [n, inner, b, b, h, w], [0, 1, 4, 2, 5, 3], to),
        other => Err(node.wrong(format!("the mode `{other}`"))),
    }
}

fn space_to_depth(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let ([n, c, h, w, b], x) = blocks(import, node)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(node.wrong(format!("an image of {h} by {w} is no blocks of {b} by {b}")));
    }
    let from = [n, c, h / b, b, w / b, b];
    through(import, &x, from, [0, 3, 5, 1, 2, 4], [n, c * b * b, h / b, w / b])
}

/// What is put around an image, or around any tensor.
fn pad(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let shape = x.shape();
    let pads = import.constant(node, 1)?.map(|pads| pads.to_ints()).unwrap_or_default();
    let named = import.constant(node, 3)?.map(|axes| axes.to_ints());
    let named = named.unwrap_or_else(|| (0..shape.len() as i64).collect());
    if pads.len() != 2 * named.len() {
        return Err(node.wrong(format!("`pads` are {pads:?}")));
    }
    let mut around = vec![[0; 2]; shape.len()];
    for (k, &axis) in named.iter().enumerate() {
        let axis = node.axis(axis, shape.len())?;
        around[axis] = [pads[k], pads[k + named.len()]];
    }
    let mode = node.text("mode", "constant");
    if mode == "constant" {
        let fill = import.constant(node, 2)?.and_then(|fill| fill.single()).unwrap_or(0.0);
        return filled(import, node, &x, &around, fill as f32);
    }
    let mut seen = x;
    for (axis, &[front, behind]) in around.iter().enumerate() {
        seen = bordered(import, node, seen, axis, [front, behind], mode)?;
    }
    Ok(vec![Value::Tensor(seen)])
}

fn filled(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: &Seen,
    around: &[[i64; 2]],
    fill: f32,
) -> Results {
    let mut axes = Vec::with_capacity(around.len());
    for (&size, &[front, behind]) in x.shape().iter().zip(around) {
        let extent = (size as i64).saturating_add(front).saturating_add(behind);
        let extent = usize::try_from(extent).ok().filter(|&extent| extent < 1 << 40);
        let extent = extent.ok_or_else(|| node.wrong(format!("`pads` are {around:?}")))?;
        axes.push(Axis::window(size, -(front as isize), extent));
    }
    super::layout::window(import, node, x, &axes, fill)
}

/// A value with a border along one axis that repeats what is inside.
fn bordered(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: Seen,
    axis: usize,
    around: [i64; 2],
    mode: &str,
) -> Result<Seen, OnnxError> {
    if around == [0, 0] {
        return Ok(x);
    }
    let size = x.shape()[axis];
    let most = match mode {
        "reflect" => size.saturating_sub(1),
        "wrap" => size,
        "edge" => 1 << 20,
        other => return Err(node.wrong(format!("the mode `{other}`"))),
    };
    let counts = around.map(usize::try_from);
    let [Ok(front), Ok(behind)] = counts else {
        return Err(node.wrong(format!("a border of {around:?}")));
    };
    if size == 0 || front.max(behind) > most {
        return Err(node.wrong(format!("a border of {around:?} by {mode} on an axis of {size}")));
    }
    let last = size as isize - 1;
    let place = x.place(axis);
    let mut parts = Vec::new();
    for (count, first) in [(front, true), (behind, false)] {
        if !first {
            parts.push(x.var.clone());
        }
        if count == 0 {
            continue;
        }
        let (start, step) = match (mode, first) {
            ("reflect", true) => (count as isize, -1),
            ("reflect", false) => (last - 1, -1),
            ("wrap", true) => (size as isize - count as isize, 1),
            ("wrap", false) => (0, 1),
            (_, true) => (0, 1),
            (_, false) => (last, 1),
        };
        let extent = if mode == "edge" { 1 } else { count };
        let mut axes: Vec<Axis> = x.var.shape().iter().map(|&size| Axis::whole(size)).collect();
        axes[place] = Axis { step, ..Axis::window(size, start, extent) };
        let name = import.name(node, "border");
        let mut part = import.builder.view(&name, &x.var, &axes, 0.0)?;
        if extent < count {
            let mut axes: Vec<Axis> = part.shape().iter().map(|&size| Axis::whole(size)).collect();
            axes[place] = Axis::repeated(count);
            let name = import.name(node, "repeated");
            part = import.builder.view(&name, &part, &axes, 0.0)?;
        }
        parts.push(part);
    }
    let name = import.name(node, "");
    let joined = import.builder.join(&name, &parts.iter().collect::<Vec<_>>(), place)?;
    Ok(x.with(joined))
}

/// Each axis repeated as a whole so many times.
fn tile(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let repeats = import.constant(node, 1)?.map(|repeats| repeats.to_ints()).unwrap_or_default();
    if repeats.len() != x.order.len() || repeats.iter().any(|r| !(1..1 << 20).contains(r)) {
        return Err(node.wrong(format!("repetitions {repeats:?}")));
    }
    let mut seen = x;
    for (axis, &count) in repeats.iter().enumerate().filter(|(_, count)| **count > 1) {
        let place = seen.place(axis);
        let shape = seen.var.shape().to_vec();
        let (mut split, mut joined) = (shape.clone(), shape.clone());
        split.insert(place, 1);
        joined[place] = shape[place].saturating_mul(count as usize);
        let mut axes: Vec<Axis> = split.iter().map(|&size| Axis::whole(size)).collect();
        axes[place] = Axis::repeated(count as usize);
        let var = import.builder.reshape(&seen.var, &split)?;
        let name = import.name(node, "");
        let var = import.builder.view(&name, &var, &axes, 0.0)?;
        let var = import.builder.reshape(&var, &joined)?;
        seen = seen.with(var);
    }
    Ok(vec![Value::Tensor(seen)])
}

/// What is above or below a diagonal, and zeros elsewhere.
fn triangle(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let shape = x.shape();
    let &[.., rows, cols] = &shape[..] else {
        return Err(node.wrong("it is no matrix"));
    };
    let shift = import.constant(node, 1)?.and_then(|shift| shift.single()).unwrap_or(0.0) as i64;
    let upper = node.int("upper", 1) != 0;
    let kept = |at: usize| {
        let distance = (at % cols) as i64 - (at / cols) as i64;
        f32::from(if upper { distance >= shift } else { distance <= shift })
    };
    let name = import.name(node, "triangle");
    let mask =
        import.builder.constant(&name, &[rows, cols], (0..rows * cols).map(kept).collect())?;
    let mask = Seen::plain(mask);
    Ok(vec![Value::Tensor(import.paired(node, "", Pair::Keep, [&x, &mask])?)])
}
