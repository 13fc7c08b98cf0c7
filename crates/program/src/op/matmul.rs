//! Products of two matrices, and linear layers.

use rekindle_graph::{Role, StorageId};

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Shapes, SumRows};
use crate::autodiff::Rule;
use crate::builder::wrong_shape;
use crate::{Adapter, Builder, DType, Init, ProgramError, Var};

/// `matmul`: `a, b [, bias] → c`: `c[m, n] = op(a) · op(b) (+ bias[n])`, row major, where `op`
/// transposes: `a` is stored `[k, m]` if `transpose_a`, `b` is stored `[n, k]` if `transpose_b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// Rows of `c`.
    pub m: usize,
    /// Columns of `c`.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// `a` is stored transposed.
    pub transpose_a: bool,
    /// `b` is stored transposed.
    pub transpose_b: bool,
    /// Whether a bias is read.
    pub bias: bool,
}

/// Which factors of a product are stored transposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transpose {
    /// The left one: `[k, m]`.
    pub a: bool,
    /// The right one: `[n, k]`.
    pub b: bool,
}

impl Builder {
    /// A linear layer: the last axis of `x` times `weight: [out, in]`, plus `bias: [out]`.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn linear(
        &mut self,
        name: &str,
        x: &Var,
        weight: &Var,
        bias: Option<&Var>,
    ) -> Result<Var, ProgramError> {
        let full = self.scoped(name);
        let [out, features] = self.expect_axes(&full, "weight", weight, ["out", "in"])?;
        if x.cols() != features {
            let expected = format!("[…, {features}], as its weight says");
            return Err(wrong_shape(&full, "x", expected, x));
        }
        let rows = self.reshape(x, &[x.rows(), x.cols()])?;
        let transpose = Transpose { a: false, b: true };
        let y = self.matmul(name, &rows, weight, bias, transpose)?;
        self.reshape(&y, &x.with_cols(out))
    }

    /// The product of two matrices, plus `bias` on each row; with an adapter beside `b` if it is a
    /// parameter and the settings want one.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn matmul(
        &mut self,
        name: &str,
        a: &Var,
        b: &Var,
        bias: Option<&Var>,
        transpose: Transpose,
    ) -> Result<Var, ProgramError> {
        let (called, name) = (name, self.scoped(name));
        let stored = |[p, q]: [usize; 2], transposed| if transposed { [q, p] } else { [p, q] };
        let a_axes = self.expect_axes(&name, "a", a, ["m", "k"])?;
        let b_axes = self.expect_axes(&name, "b", b, ["k", "n"])?;
        let [m, k] = stored(a_axes, transpose.a);
        let [_, n] = stored(b_axes, transpose.b);
        self.expect_shape(&name, "b", b, &stored([k, n], transpose.b))?;
        let mut reads = vec![a, b];
        if let Some(bias) = bias {
            self.expect_shape(&name, "bias", bias, &[n])?;
            reads.push(bias);
        }
        let op = Matmul {
            m,
            n,
            k,
            transpose_a: transpose.a,
            transpose_b: transpose.b,
            bias: bias.is_some(),
        };
        let product = self.forward_one(name, op, &reads, vec![m, n])?;
        match self.adapter_scale(b) {
            Some(scale) if !transpose.a => self.adapt(called, a, b, transpose.b, scale, &product),
            _ => Ok(product),
        }
    }

    /// What the adapter of a parameter is multiplied with, if it gets one.
    fn adapter_scale(&self, weight: &Var) -> Option<f32> {
        let lora = self.settings.lora.as_ref()?;
        let tensor = &self.tensors[weight.tensor().index()];
        let wanted = tensor.role == Role::Parameter && lora.weights.matches(&tensor.name);
        // A matrix that is used twice has one adapter, at its first use, and an adapter none.
        let id = weight.tensor();
        let first = self.adapters.iter().all(|it| ![it.weight, it.a, it.b].contains(&id));
        (wanted && first).then(|| lora.scale())
    }

    /// `product + scale · (x · Aᵀ) · Bᵀ`: the adapter of `weight`, named as PEFT names it.
    fn adapt(
        &mut self,
        name: &str,
        x: &Var,
        weight: &Var,
        is_out_by_in: bool,
        scale: f32,
        product: &Var,
    ) -> Result<Var, ProgramError> {
        let rank = self.settings.lora.as_ref().map_or(1, |lora| lora.rank);
        let [inputs, outputs] = [x.cols(), product.cols()];
        let full = self.tensors[weight.tensor().index()].name.clone();
        let module = full.strip_suffix(".weight").unwrap_or(&full);
        // As `nn.Linear` draws its weight, which is how PEFT draws `A`.
        let bound = 1.0 / (inputs as f32).sqrt();
        let mut part = |letter: &str, shape: [usize; 2], init: Init| {
            let name = format!("{module}.lora_{letter}.weight");
            let var = self.source(name, &shape, DType::F32, Role::Parameter, init)?;
            self.trainable[var.tensor().index()] = !self.settings.inference;
            Ok(var)
        };
        let a = part("A", [rank, inputs], Init::Uniform { bound })?;
        let b = part("B", [outputs, rank], Init::Zeros)?;
        self.adapters.push(Adapter {
            weight: weight.tensor(),
            a: a.tensor(),
            b: b.tensor(),
            scale,
            transposed: !is_out_by_in,
        });
        let down = self.linear(&format!("{name}.lora_A"), x, &a, None)?;
        let scaled = self.scale(&format!("{name}.lora_scale"), &down, scale)?;
        let up = self.linear(&format!("{name}.lora_B"), &scaled, &b, None)?;
        self.add(&format!("{name}.lora"), product, &up)
    }
}

impl Operation for Matmul {
    const FACTS: Facts<Matmul> = Facts {
        name: "matmul",
        shapes: |&Matmul { m, n, k, bias, .. }| {
            Shapes::f32([m * k, k * n], [m * n]).and_read(bias, n)
        },
        effect: Effects::Pure,
        flops: |op| 2 * op.m as u64 * op.n as u64 * op.k as u64,
        derivative: Derivative::Rule(Matmul::gradient),
    };
}

impl Matmul {
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let transposed = [self.transpose_a, self.transpose_b];
        let [da, db] = gradient_products([self.m, self.n, self.k], transposed);
        if rule.wants(1) {
            rule.emit_for(1, "dw", Matmul::from(db), db.reads(rule))?;
        }
        if self.bias && rule.wants(2) {
            let (rows, cols) = (self.m, self.n);
            rule.emit_for(2, "db", SumRows { rows, cols }, vec![rule.dy()])?;
        }
        if rule.wants(0) {
            rule.emit_for(0, "dx", Matmul::from(da), da.reads(rule))?;
        }
        Ok(())
    }
}

/// A gradient of `c = op(a) · op(b)`, which is itself a product of two of `a`, `b` and `dc`.
#[derive(Clone, Copy)]
pub(super) struct GradientProduct {
    /// Its `m`, `n` and `k`.
    pub(super) sizes: [usize; 3],
    /// Its factors, as positions in `[a, b, dc]`.
    pub(super) factors: [usize; 2],
    /// Which of them it transposes.
    pub(super) transposed: [bool; 2],
}

impl GradientProduct {
    /// Its factors for the product that `rule` differentiates.
    pub(super) fn reads(&self, rule: &Rule<'_>) -> Vec<StorageId> {
        let operands = [rule.read(0), rule.read(1), rule.dy()];
        self.factors.map(|factor| operands[factor]).to_vec()
    }
}

/// The gradients of `a` and `b` as these are stored.
///
/// `da = dc · op(b)ᵀ` and `db = op(a)ᵀ · dc`; where the factor is stored transposed, so is its
/// gradient: `op(b) · dcᵀ` and `dcᵀ · op(a)`.
pub(super) fn gradient_products(
    [m, n, k]: [usize; 3],
    [a_transposed, b_transposed]: [bool; 2],
) -> [GradientProduct; 2] {
    let product = |sizes, factors, transposed| GradientProduct { sizes, factors, transposed };
    const A: usize = 0;
    const B: usize = 1;
    const DC: usize = 2;
    let of_a = match a_transposed {
        false => product([m, k, n], [DC, B], [false, !b_transposed]),
        true => product([k, m, n], [B, DC], [b_transposed, true]),
    };
    let of_b = match b_transposed {
        false => product([k, n, m], [A, DC], [!a_transposed, false]),
        true => product([n, k, m], [DC, A], [true, a_transposed]),
    };
    [of_a, of_b]
}

impl From<GradientProduct> for Matmul {
    fn from(product: GradientProduct) -> Matmul {
        let [m, n, k] = product.sizes;
        let [transpose_a, transpose_b] = product.transposed;
        Matmul { m, n, k, transpose_a, transpose_b, bias: false }
    }
}
