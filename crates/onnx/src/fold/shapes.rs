//! Operators that make, move or pick elements.

use super::arithmetic::{repeat, shared_shape};
use super::{Call, Constant, Kind, check_len};
use crate::OnnxError;

/// The results of an operator that moves elements, if it is one.
pub(super) fn fold(call: &Call<'_>) -> Result<Option<Vec<Constant>>, OnnxError> {
    let one = match call.node.op.as_str() {
        "Identity" | "Dropout" => call.operand(0)?.clone(),
        "Range" => range(call)?,
        "Reshape" => {
            let x = call.operand(0)?;
            let to = call.operand(1)?.to_ints();
            let shape = reshaped(call, &x.shape, &to)?;
            Constant { shape, ..x.clone() }
        }
        "Flatten" => {
            let x = call.operand(0)?;
            let axis = call.int("axis", 1).clamp(0, x.shape.len() as i64) as usize;
            let (rows, cols) = x.shape.split_at(axis);
            let shape = vec![rows.iter().product(), cols.iter().product()];
            Constant { shape, ..x.clone() }
        }
        "Unsqueeze" => {
            let x = call.operand(0)?;
            let axes = call.ints(1, "axes").unwrap_or_default();
            Constant { shape: unsqueezed(call, &x.shape, &axes)?, ..x.clone() }
        }
        "Squeeze" => {
            let x = call.operand(0)?;
            let axes = call.ints(1, "axes");
            let shape = squeezed(call, &x.shape, axes.as_deref())?;
            Constant { shape, ..x.clone() }
        }
        "Expand" => {
            let x = call.operand(0)?;
            let to = call.operand(1)?.to_ints();
            let to = extents(call, &to)?;
            let like = Constant { shape: to, kind: Kind::Int, values: vec![] };
            let shape = shared_shape(call, &[x, &like])?;
            Constant { values: repeat(x, &shape), shape, kind: x.kind }
        }
        "Transpose" => transposed(call)?,
        "Concat" => joined(call)?,
        "Slice" => sliced(call)?,
        "Gather" => gathered(call)?,
        "GatherElements" => gathered_by_element(call)?,
        "GatherND" => gathered_by_index(call)?,
        "Trilu" => triangle(call)?,
        "Tile" => tiled(call)?,
        "Split" => return split(call).map(Some),
        _ => return Ok(None),
    };
    Ok(Some(vec![one]))
}

/// Extents from numbers, none of them negative.
pub(crate) fn extents(call: &Call<'_>, numbers: &[i64]) -> Result<Vec<usize>, OnnxError> {
    let extents = numbers.iter().map(|&number| usize::try_from(number));
    let extents = extents.collect::<Result<Vec<_>, _>>();
    let extents = extents.map_err(|_| call.wrong(format!("negative extents {numbers:?}")))?;
    check_len(&call.node.label(), &extents)?;
    Ok(extents)
}

/// A shape of as many elements as `from`, where 0 keeps an extent and -1 is what is left.
pub(crate) fn reshaped(
    call: &Call<'_>,
    from: &[usize],
    to: &[i64],
) -> Result<Vec<usize>, OnnxError> {
    let wrong = || call.wrong(format!("a reshape from {from:?} to {to:?}"));
    let keeps_zero = call.int("allowzero", 0) != 0;
    let mut shape = Vec::with_capacity(to.len());
    for (axis, &extent) in to.iter().enumerate() {
        shape.push(match extent {
            0 if !keeps_zero => *from.get(axis).ok_or_else(wrong)?,
            -1 => 0,
            extent => usize::try_from(extent).map_err(|_| wrong())?,
        });
    }
    let len: usize = from.iter().product();
    if let Some(free) = to.iter().position(|&extent| extent == -1) {
        shape[free] = 1;
        let known = shape.iter().try_fold(1usize, |len, &extent| len.checked_mul(extent));
        let known = known.filter(|&known| known > 0 && len.is_multiple_of(known));
        shape[free] = len / known.ok_or_else(wrong)?;
    }
    let found = shape.iter().try_fold(1usize, |len, &extent| len.checked_mul(extent));
    match found == Some(len) {
        true => Ok(shape),
        false => Err(wrong()),
    }
}

/// A shape with axes of extent one put in.
pub(crate) fn unsqueezed(
    call: &Call<'_>,
    shape: &[usize],
    axes: &[i64],
) -> Result<Vec<usize>, OnnxError> {
    let rank = shape.len() + axes.len();
    let axes = axes.iter().map(|&axis| call.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    let mut own = shape.iter();
    let mut all = Vec::with_capacity(rank);
    for axis in 0..rank {
        match axes.contains(&axis) {
            true => all.push(1),
            false => all.push(*own.next().ok_or_else(|| call.wrong("an axis twice".into()))?),
        }
    }
    Ok(all)
}

/// A shape without these axes, or without any of extent one.
pub(crate) fn squeezed(
    call: &Call<'_>,
    shape: &[usize],
    axes: Option<&[i64]>,
) -> Result<Vec<usize>, OnnxError> {
    let gone = match axes {
        Some(axes) => {
            axes.iter().map(|&axis| call.axis(axis, shape.len())).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..shape.len()).filter(|&axis| shape[axis] == 1).collect(),
    };
    if gone.iter().any(|&axis| shape[axis] != 1) {
        return Err(call.wrong(format!("axes {gone:?} of {shape:?} are not of extent one")));
    }
    let kept = shape.iter().enumerate().filter(|(axis, _)| !gone.contains(axis));
    Ok(kept.map(|(_, &extent)| extent).collect())
}

fn range(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let number = |index| call.operand(index).map(|x| x.single().unwrap_or(0.0));
    let (start, limit, step) = (number(0)?, number(1)?, number(2)?);
    let count = ((limit - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > super::MOST as f64 {
        return Err(call.wrong(format!("a range from {start} to {limit} by {step}")));
    }
    let values: Vec<f64> = (0..count as usize).map(|i| start + i as f64 * step).collect();
    Ok(Constant { shape: vec![values.len()], kind: call.operand(0)?.kind, values })
}

/// The elements of `x` at `place(index)` for each index of a result of this shape.
fn picked(
    call: &Call<'_>,
    x: &Constant,
    shape: Vec<usize>,
    place: impl Fn(&[usize]) -> Option<usize>,
) -> Result<Constant, OnnxError> {
    let len = check_len(&call.node.label(), &shape)?;
    let mut index = vec![0; shape.len()];
    let mut values = Vec::with_capacity(len);
    for _ in 0..len {
        let value = place(&index).and_then(|at| x.values.get(at));
        values.push(*value.ok_or_else(|| call.wrong("an index out of range".into()))?);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(Constant { shape, kind: x.kind, values })
}

/// The position of an index in a tensor of this shape.
fn flat(shape: &[usize], index: impl IntoIterator<Item = usize>) -> usize {
    shape.iter().zip(index).fold(0, |at, (&extent, index)| at * extent + index)
}

fn transposed(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let x = call.operand(0)?;
    let rank = x.shape.len();
    let order = order(call, rank)?;
    let shape = order.iter().map(|&axis| x.shape[axis]).collect();
    picked(call, x, shape, |index| {
        let mut from = vec![0; rank];
        for (&axis, &at) in order.iter().zip(index) {
            from[axis] = at;
        }
        Some(flat(&x.shape, from))
    })
}

/// The order of a transposition: each axis once.
pub(crate) fn order(call: &Call<'_>, rank: usize) -> Result<Vec<usize>, OnnxError> {
    let order = match call.node.ints("perm") {
        Some(order) => {
            order.iter().map(|&axis| call.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..rank).rev().collect(),
    };
    match order.len() == rank && (0..rank).all(|axis| order.contains(&axis)) {
        true => Ok(order),
        false => Err(call.wrong(format!("the order {order:?} of {rank} axes"))),
    }
}

fn joined(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let first = call.operand(0)?;
    let axis = call.axis(call.int("axis", 0), first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = 0;
    let outer: usize = shape[..axis].iter().product();
    for index in 0..call.operands.len() {
        let part = call.operand(index)?;
        let alike = part.shape.len() == shape.len()
            && (0..shape.len()).all(|k| k == axis || part.shape[k] == shape[k]);
        if !alike {
            return Err(call.wrong(format!("parts of {:?} and {:?}", first.shape, part.shape)));
        }
        shape[axis] = shape[axis].saturating_add(part.shape[axis]);
    }
    let len = check_len(&call.node.label(), &shape)?;
    let mut values = Vec::with_capacity(len);
    for row in 0..outer {
        for part in call.operands.iter().flatten() {
            let width = part.values.len() / outer;
            values.extend(&part.values[row * width..(row + 1) * width]);
        }
    }
    let kind = call.operands.iter().flatten().map(|part| part.kind).max().unwrap_or(first.kind);
    Ok(Constant { shape, kind, values })
}

/// Along each axis: the first element, the step, and how many.
pub(crate) fn slices(
    call: &Call<'_>,
    shape: &[usize],
) -> Result<Vec<(usize, i64, usize)>, OnnxError> {
    let (starts, ends) = (call.operand(1)?.to_ints(), call.operand(2)?.to_ints());
    let given = |index: usize| call.operands.get(index).copied().flatten().map(Constant::to_ints);
    let axes = given(3).unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = given(4).unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(call.wrong("starts, ends, axes and steps of different counts".into()));
    }
    let mut all: Vec<_> = shape.iter().map(|&extent| (0, 1, extent)).collect();
    for (((start, end), axis), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let axis = call.axis(axis, shape.len())?;
        let size = shape[axis] as i64;
        let from_start = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let start = from_start(start).clamp(low.max(0), high.max(0));
        // The smallest number stands for "to the very front".
        let end = if end < -size && step < 0 { -1 } else { from_start(end).clamp(low, high) };
        let count = match step {
            0 => return Err(call.wrong("a step of zero".into())),
            step if step > 0 => {
                (end - start).max(0).div_euclid(step)
                    + i64::from((end - start).max(0).rem_euclid(step) > 0)
            }
            step => {
                let (way, step) = ((start - end).max(0), step.saturating_neg());
                way / step + i64::from(way % step > 0)
            }
        };
        all[axis] = (start as usize, step, count as usize);
    }
    Ok(all)
}

fn sliced(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let x = call.operand(0)?;
    let slices = slices(call, &x.shape)?;
    let shape = slices.iter().map(|&(_, _, count)| count).collect();
    picked(call, x, shape, |index| {
        let from = slices
            .iter()
            .zip(index)
            .map(|(&(start, step, _), &at)| (start as i64 + at as i64 * step) as usize);
        Some(flat(&x.shape, from))
    })
}

/// An index that may count from the end.
fn wrapped(index: f64, extent: usize) -> Option<usize> {
    let index = if index < 0.0 { index + extent as f64 } else { index };
    (index >= 0.0 && index < extent as f64).then_some(index as usize)
}

fn gathered(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let (x, ids) = (call.operand(0)?, call.operand(1)?);
    let axis = call.axis(call.int("axis", 0), x.shape.len())?;
    let mut shape = x.shape[..axis].to_vec();
    shape.extend(&ids.shape);
    shape.extend(&x.shape[axis + 1..]);
    let rank = ids.shape.len();
    picked(call, x, shape, |index| {
        let id = ids.values.get(flat(&ids.shape, index[axis..axis + rank].iter().copied()))?;
        let at = wrapped(*id, x.shape[axis])?;
        let outer = index[..axis].iter().copied();
        let inner = index[axis + rank..].iter().copied();
        Some(flat(&x.shape, outer.chain([at]).chain(inner)))
    })
}

/// Along one axis each element has an index of its own.
fn gathered_by_element(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let (x, ids) = (call.operand(0)?, call.operand(1)?);
    let axis = call.axis(call.int("axis", 0), x.shape.len())?;
    let inside = |(k, &extent): (usize, &usize)| k == axis || extent <= x.shape[k];
    if ids.shape.len() != x.shape.len() || !ids.shape.iter().enumerate().all(inside) {
        return Err(call.wrong(format!("indices of {:?} into {:?}", ids.shape, x.shape)));
    }
    picked(call, x, ids.shape.clone(), |index| {
        let id = ids.values.get(flat(&ids.shape, index.iter().copied()))?;
        let at = wrapped(*id, x.shape[axis])?;
        let from = index.iter().enumerate();
        Some(flat(&x.shape, from.map(|(k, &own)| if k == axis { at } else { own })))
    })
}

fn gathered_by_index(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let (x, ids) = (call.operand(0)?, call.operand(1)?);
    let Some((&depth, outer)) = ids.shape.split_last() else {
        return Err(call.wrong("indices without an axis".into()));
    };
    if depth > x.shape.len() || call.int("batch_dims", 0) != 0 {
        return Err(call.wrong("indices of more axes than there are, or by batch".into()));
    }
    let mut shape = outer.to_vec();
    shape.extend(&x.shape[depth..]);
    picked(call, x, shape, |index| {
        let (outer_index, inner) = index.split_at(outer.len());
        let row = flat(outer, outer_index.iter().copied()) * depth;
        let mut from = Vec::with_capacity(x.shape.len());
        for axis in 0..depth {
            from.push(wrapped(*ids.values.get(row + axis)?, x.shape[axis])?);
        }
        from.extend(inner);
        Some(flat(&x.shape, from))
    })
}

fn triangle(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let x = call.operand(0)?;
    let [.., rows, cols] = x.shape[..] else {
        return Err(call.wrong("it is no matrix".into()));
    };
    let shift = call.operands.get(1).copied().flatten().and_then(Constant::single);
    let shift = shift.unwrap_or(0.0) as i64;
    let upper = call.int("upper", 1) != 0;
    let mut result = x.clone();
    for (flat, value) in result.values.iter_mut().enumerate() {
        let (row, col) = ((flat / cols % rows) as i64, (flat % cols) as i64);
        let kept = if upper { col - row >= shift } else { col - row <= shift };
        if !kept {
            *value = 0.0;
        }
    }
    Ok(result)
}

fn tiled(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let x = call.operand(0)?;
    let repeats = extents(call, &call.operand(1)?.to_ints())?;
    if repeats.len() != x.shape.len() {
        return Err(call.wrong("not one repetition for each axis".into()));
    }
    let shape = x.shape.iter().zip(&repeats).map(|(a, &b)| a.saturating_mul(b)).collect();
    picked(call, x, shape, |index| {
        Some(flat(&x.shape, index.iter().zip(&x.shape).map(|(&at, &extent)| at % extent)))
    })
}

fn split(call: &Call<'_>) -> Result<Vec<Constant>, OnnxError> {
    let x = call.operand(0)?;
    let axis = call.axis(call.int("axis", 0), x.shape.len())?;
    let parts = split_extents(call, x.shape[axis])?;
    let mut first = 0;
    let mut all = Vec::new();
    for extent in parts {
        let mut shape = x.shape.clone();
        shape[axis] = extent;
        all.push(picked(call, x, shape, |index| {
            let from = index.iter().enumerate();
            let from = from.map(|(k, &at)| if k == axis { at + first } else { at });
            Some(flat(&x.shape, from))
        })?);
        first += extent;
    }
    Ok(all)
}

/// The extents of the parts of an axis, in all as long as it is.
pub(crate) fn split_extents(call: &Call<'_>, whole: usize) -> Result<Vec<usize>, OnnxError> {
    let parts = match call.ints(1, "split") {
        Some(parts) => extents(call, &parts)?,
        None => {
            let count = call.int("num_outputs", call.node.outputs.len() as i64).max(1) as usize;
            let share = whole.div_ceil(count);
            (0..count).map(|k| share.min(whole.saturating_sub(k * share))).collect()
        }
    };
    let sum = parts.iter().try_fold(0usize, |sum, &extent| sum.checked_add(extent));
    match sum == Some(whole) {
        true => Ok(parts),
        false => Err(call.wrong(format!("parts of {parts:?} of an axis of {whole}"))),
    }
}
