//! Moving elements: permuting axes, splitting and joining columns.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `permute`: `x → y`: `y`'s axis `i` is `x`'s axis `order[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permute {
    /// The shape of `x`.
    pub shape: [usize; 4],
    /// Which axis of `x` comes where.
    pub order: [usize; 4],
}

/// `split`: `x: [rows, Σ cols] → [rows, cols]` for each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Rows of `x` and of each part.
    pub rows: usize,
    /// Number of parts.
    pub parts: usize,
    /// Columns of each part; zero beyond the last.
    pub cols: [usize; Split::MAX_PARTS],
}

/// `concat`: `[rows, cols]` for each part `→ y: [rows, Σ cols]`, the inverse of [`Split`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concat(pub Split);

impl Split {
    /// The most parts; a kernel holds a slice of each.
    pub const MAX_PARTS: usize = 16;
}

impl Builder {
    /// `x` with its axes in another order: axis `i` of the result is axis `order[i]` of `x`. Axes
    /// that stay neighbours move as one; where more than four are left, they move one by one.
    ///
    /// # Errors
    /// If `order` does not name each axis once.
    pub fn transpose(&mut self, name: &str, x: &Var, order: &[usize]) -> Result<Var, ProgramError> {
        let rank = x.shape().len();
        if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
            return Err(ProgramError::Argument {
                node: self.scoped(name),
                what: "order",
                expected: format!("each axis below {rank} once"),
                found: format!("{order:?}"),
            });
        }
        let to: Vec<usize> = order.iter().map(|&axis| x.shape()[axis]).collect();
        let (mut shape, mut order) = joined(x.shape(), order);
        let mut x = x.clone();
        for step in 0.. {
            let done = order.iter().enumerate().take_while(|(to, from)| to == *from).count();
            if done == order.len() {
                break;
            }
            let moved = match order.len() <= 4 {
                true => order.clone(),
                false => {
                    // The axis that belongs here moves to the front of those behind.
                    let from = order[done];
                    let others = (0..order.len()).filter(|&axis| axis != from);
                    let mut moved: Vec<usize> = others.collect();
                    moved.insert(done, from);
                    moved
                }
            };
            let name = if step == 0 { name.to_owned() } else { format!("{name}.{step}") };
            let (small, small_order) = joined(&shape, &moved);
            let mut four = ([1; 4], [0, 1, 2, 3]);
            let first = 4 - small.len();
            four.0[first..].copy_from_slice(&small);
            for (at, &from) in (first..).zip(&small_order) {
                four.1[at] = from + first;
            }
            let flat = self.reshape(&x, &four.0)?;
            x = self.permute(&name, &flat, four.1)?;
            let place = |axis: usize| moved.iter().position(|&from| from == axis).unwrap_or(0);
            order = order.iter().map(|&axis| place(axis)).collect();
            shape = moved.iter().map(|&axis| shape[axis]).collect();
        }
        self.reshape(&x, &to)
    }

    /// `x` with its four axes in another order.
    ///
    /// # Errors
    /// If `x` has not four axes, or `order` does not name each once.
    pub fn permute(&mut self, name: &str, x: &Var, order: [usize; 4]) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let shape = self.expect_axes(&name, "x", x, ["a", "b", "c", "d"])?;
        if (0..4).any(|axis| !order.contains(&axis)) {
            return Err(ProgramError::Argument {
                node: name,
                what: "order",
                expected: "each of 0, 1, 2, 3 once".into(),
                found: format!("{order:?}"),
            });
        }
        let op = Permute { shape, order };
        let to = order.map(|axis| shape[axis]).to_vec();
        self.forward_one(name, op, &[x], to)
    }

    /// The columns of `x` in `parts` equal pieces, side by side.
    ///
    /// # Errors
    /// If the last axis is not a multiple of `parts`.
    pub fn split(&mut self, name: &str, x: &Var, parts: usize) -> Result<Vec<Var>, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        if parts == 0 || parts > Split::MAX_PARTS || !x.cols().is_multiple_of(parts) {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of parts",
                expected: format!(
                    "a divisor of the {} columns, at most {}",
                    x.cols(),
                    Split::MAX_PARTS
                ),
                found: parts.to_string(),
            });
        }
        let cols = x.cols() / parts;
        let op = Split::even(x.rows(), parts, cols);
        let part = (x.with_cols(cols), DType::F32);
        self.forward(name, op, &[x], vec![part; parts])
    }

    /// `x` cut along `axis` into pieces of these extents.
    ///
    /// # Errors
    /// If there is no such axis, or the extents are not its own in all.
    pub fn split_at(
        &mut self,
        name: &str,
        x: &Var,
        axis: usize,
        extents: &[usize],
    ) -> Result<Vec<Var>, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        let whole = x.shape().get(axis).copied().unwrap_or(0);
        if extents.is_empty()
            || extents.len() > Split::MAX_PARTS
            || extents.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)) != Some(whole)
        {
            return Err(ProgramError::Argument {
                node: name,
                what: "extents of the parts",
                expected: format!("at most {}, {whole} in all", Split::MAX_PARTS),
                found: format!("{extents:?}"),
            });
        }
        let (outer, inner) = (&x.shape()[..axis], &x.shape()[axis + 1..]);
        let inner: usize = inner.iter().product();
        let mut op = Split::even(outer.iter().product(), extents.len(), 0);
        let mut parts = Vec::with_capacity(extents.len());
        for (cols, &extent) in op.cols.iter_mut().zip(extents) {
            *cols = extent * inner;
            let mut shape = x.shape().to_vec();
            shape[axis] = extent;
            parts.push((shape, DType::F32));
        }
        self.forward(name, op, &[x], parts)
    }

    /// Tensors joined along `axis`, whose extents may differ there.
    ///
    /// # Errors
    /// If there is none or there are too many, or their other extents differ.
    pub fn join(&mut self, name: &str, xs: &[&Var], axis: usize) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let Some(first) = xs.first().filter(|_| xs.len() <= Split::MAX_PARTS) else {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of parts",
                expected: format!("1 to {}", Split::MAX_PARTS),
                found: xs.len().to_string(),
            });
        };
        let mut shape = first.shape().to_vec();
        if axis >= shape.len() {
            return Err(ProgramError::Argument {
                node: name,
                what: "axis",
                expected: format!("below {}", shape.len()),
                found: axis.to_string(),
            });
        }
        let rows = shape[..axis].iter().product();
        let inner: usize = shape[axis + 1..].iter().product();
        let mut op = Split::even(rows, xs.len(), 0);
        shape[axis] = 0;
        for (cols, x) in op.cols.iter_mut().zip(xs) {
            let extent = x.shape().get(axis).copied().unwrap_or(0);
            let mut expected = shape.clone();
            expected[axis] = extent;
            self.expect_shape(&name, "x", x, &expected)?;
            *cols = extent * inner;
        }
        shape[axis] = xs.iter().map(|x| x.shape()[axis]).sum();
        self.forward_one(name, Concat(op), xs, shape)
    }

    /// The columns of tensors of one shape, side by side.
    ///
    /// # Errors
    /// If there is none, or their shapes differ.
    pub fn concat(&mut self, name: &str, xs: &[&Var]) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let Some(first) = xs.first().filter(|_| xs.len() <= Split::MAX_PARTS) else {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of parts",
                expected: format!("1 to {}", Split::MAX_PARTS),
                found: xs.len().to_string(),
            });
        };
        for x in xs {
            self.expect_shape(&name, "x", x, first.shape())?;
        }
        let (rows, parts, cols) = (first.rows(), xs.len(), first.cols());
        let op = Concat(Split::even(rows, parts, cols));
        self.forward_one(name, op, xs, first.with_cols(parts * cols))
    }
}

/// A shape and an order of its axes, with axes of extent one left out and neighbours that stay
/// neighbours joined.
fn joined(shape: &[usize], order: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let order: Vec<usize> = order.iter().copied().filter(|&axis| shape[axis] > 1).collect();
    // Runs of axes that follow each other in `x` and in the result, by their place in the result.
    let next = |axis: usize| (axis + 1..shape.len()).find(|&axis| shape[axis] > 1);
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for &axis in &order {
        match runs.last_mut() {
            Some(run) if next(run[run.len() - 1]) == Some(axis) => run.push(axis),
            _ => runs.push(vec![axis]),
        }
    }
    let mut sorted: Vec<&Vec<usize>> = runs.iter().collect();
    sorted.sort();
    let extent = |run: &Vec<usize>| run.iter().map(|&axis| shape[axis]).product();
    let place = |run: &Vec<usize>| sorted.iter().position(|other| *other == run).unwrap_or(0);
    (sorted.iter().map(|run| extent(run)).collect(), runs.iter().map(place).collect())
}

impl Operation for Permute {
    const FACTS: Facts<Permute> = Facts {
        name: "permute",
        shapes: |op| {
            let len = op.shape.iter().product();
            Shapes::f32([len], [len])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", op.inverse(), vec![rule.dy()])
        }),
    };
}

impl Operation for Split {
    const FACTS: Facts<Split> = Facts {
        name: "split",
        shapes: |op| Shapes { reads: vec![op.whole()], writes: op.each() },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Split::gradient),
    };
}

impl Operation for Concat {
    const FACTS: Facts<Concat> = Facts {
        name: "concat",
        shapes: |Concat(op)| Shapes { reads: op.each(), writes: vec![op.whole()] },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Concat::gradient),
    };
}

impl Permute {
    /// The permutation that undoes this one.
    fn inverse(&self) -> Permute {
        let mut order = [0; 4];
        for (to, &from) in self.order.iter().enumerate() {
            order[from] = to;
        }
        let shape = self.order.map(|axis| self.shape[axis]);
        Permute { shape, order }
    }
}

impl Split {
    /// Parts of equal width.
    pub fn even(rows: usize, parts: usize, cols: usize) -> Split {
        let mut all = [0; Split::MAX_PARTS];
        all[..parts].fill(cols);
        Split { rows, parts, cols: all }
    }

    /// Columns of the whole.
    pub fn width(&self) -> usize {
        self.cols.iter().sum()
    }

    fn whole(&self) -> Operand {
        Operand::F32(self.rows * self.width())
    }

    fn each(&self) -> Vec<Operand> {
        self.cols[..self.parts].iter().map(|cols| Operand::F32(self.rows * cols)).collect()
    }

    /// A part that nothing reads has a gradient of zeros.
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let mut reads = Vec::with_capacity(self.parts);
        for part in 0..self.parts {
            reads.push(match rule.gradients(part).first() {
                Some(&gradient) => gradient,
                None => rule.zeros(rule.write(part))?,
            });
        }
        rule.emit_for(0, "dx", Concat(*self), reads)
    }
}

impl Concat {
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let like: Vec<_> = (0..self.0.parts).map(|k| rule.read(k)).collect();
        let written = rule.emit("dx", self.0, vec![rule.dy()], &like)?;
        for (part, gradient) in written.into_iter().enumerate() {
            rule.give(part, gradient)?;
        }
        Ok(())
    }
}
