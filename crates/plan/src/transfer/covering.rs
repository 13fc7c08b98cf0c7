//! A small linear program of covering: minimise `c·x` where `A x ≥ b` and `x ≥ 0`, with `c ≥ 0`.
//!
//! In: rows, one after another. Out: the least value, or a bound below it.
//!
//! Method: the dual simplex method on a dense tableau. Without a row the least is 0, and the prices
//! that prove it stay valid when a row is added, so each row is added to the solution so far. After
//! every pivot the value is a lower bound of the least, so it may be given up at any time. Ties go
//! to the lower index, which ends every sequence of pivots.

/// Smaller numbers are rounding.
const EPSILON: f64 = 1e-11;
/// Pivots after one row, after which the value so far has to do.
const MOST_PIVOTS: u32 = 400;

/// See the module's documentation.
pub(super) struct Covering {
    /// One column for each variable, then one for each row so far: what is left of the costs.
    left: Vec<f64>,
    /// `- value`.
    negated: f64,
    /// Rows of the tableau, each as wide as `left`, and their right sides.
    rows: Vec<(Vec<f64>, f64)>,
    /// The variable that each row is solved for.
    basis: Vec<usize>,
    variables: usize,
}

impl Covering {
    /// With the cost of each variable and without rows.
    pub(super) fn new(costs: &[f64]) -> Covering {
        Covering {
            left: costs.to_vec(),
            negated: 0.0,
            rows: Vec::new(),
            basis: Vec::new(),
            variables: costs.len(),
        }
    }

    /// Adds the row `Σ entries ≥ right`.
    pub(super) fn add(&mut self, entries: &[(usize, f64)], right: f64) {
        // As `- Σ entries + slack = - right`, less what it says of variables that are solved for.
        self.left.push(0.0);
        for (row, _) in &mut self.rows {
            row.push(0.0);
        }
        let mut row = vec![0.0; self.left.len()];
        for &(j, a) in entries {
            row[j] -= a;
        }
        let slack = row.len() - 1;
        row[slack] = 1.0;
        let mut right = -right;
        for (&j, (other, at)) in self.basis.iter().zip(&self.rows) {
            let times = row[j];
            if times != 0.0 {
                row.iter_mut().zip(other).for_each(|(a, b)| *a -= times * b);
                row[j] = 0.0;
                right -= times * at;
            }
        }
        self.rows.push((row, right));
        self.basis.push(slack);
    }

    /// The least value of all rows so far; lower where it was given up.
    pub(super) fn least(&mut self) -> f64 {
        for _ in 0..MOST_PIVOTS {
            let short = (0..self.rows.len()).filter(|&r| self.rows[r].1 < -EPSILON);
            let Some(r) = short.min_by_key(|&r| self.basis[r]) else {
                break;
            };
            let row = &self.rows[r].0;
            let ratio = |j: &usize| (self.left[*j] / -row[*j]).max(0.0);
            let candidates = (0..row.len()).filter(|&j| row[j] < -EPSILON);
            let Some(j) = candidates.min_by(|a, b| ratio(a).total_cmp(&ratio(b))) else {
                return f64::INFINITY;
            };
            self.pivot(r, j);
        }
        -self.negated
    }

    /// What a variable is in the solution.
    pub(super) fn value_of(&self, variable: usize) -> f64 {
        debug_assert!(variable < self.variables);
        let row = self.basis.iter().position(|&j| j == variable);
        row.map_or(0.0, |r| self.rows[r].1)
    }

    fn pivot(&mut self, r: usize, j: usize) {
        let (mut row, mut right) = std::mem::take(&mut self.rows[r]);
        let by = row[j];
        row.iter_mut().for_each(|a| *a /= by);
        right /= by;
        let clear = |of: &mut Vec<f64>, at: &mut f64| {
            let times = of[j];
            if times != 0.0 {
                of.iter_mut().zip(&row).for_each(|(a, b)| *a -= times * b);
                of[j] = 0.0;
                *at -= times * right;
            }
        };
        for (of, at) in self.rows.iter_mut().filter(|(of, _)| !of.is_empty()) {
            clear(of, at);
        }
        clear(&mut self.left, &mut self.negated);
        self.rows[r] = (row, right);
        self.basis[r] = j;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_added_one_after_another() {
        // 2x + 3y, with x + y ≥ 4: x = 4.
        let mut program = Covering::new(&[2.0, 3.0]);
        program.add(&[(0, 1.0), (1, 1.0)], 4.0);
        assert_eq!(program.least(), 8.0);
        // x ≤ 1: y = 3.
        program.add(&[(0, -1.0)], -1.0);
        assert_eq!(program.least(), 11.0);
        assert_eq!((program.value_of(0), program.value_of(1)), (1.0, 3.0));
        // x + 3y ≥ 20 beside it: x = 0, y = 20/3.
        program.add(&[(0, 1.0), (1, 3.0)], 20.0);
        assert!((program.least() - 20.0).abs() < 1e-12);
        // y ≤ 5 leaves nothing.
        program.add(&[(1, -1.0)], -5.0);
        assert_eq!(program.least(), f64::INFINITY);
    }

    /// Against every corner of random programs in two variables.
    #[test]
    fn the_least_is_at_a_corner() {
        let mut dice = crate::search::random::Random::new(1);
        for _ in 0..300 {
            let mut number = || dice.below(9) as f64 - 2.0;
            let costs = [number().abs(), number().abs()];
            let rows: Vec<([f64; 2], f64)> =
                (0..4).map(|_| ([number(), number()], number())).collect();
            let mut program = Covering::new(&costs);
            for &([a, b], right) in &rows {
                program.add(&[(0, a), (1, b)], right);
            }
            let lines: Vec<([f64; 2], f64)> =
                rows.iter().copied().chain([([1.0, 0.0], 0.0), ([0.0, 1.0], 0.0)]).collect();
            let mut least = f64::INFINITY;
            for (i, ([a, b], e)) in lines.iter().enumerate() {
                for ([c, d], f) in &lines[..i] {
                    let det = a * d - b * c;
                    if det == 0.0 {
                        continue;
                    }
                    let (x, y) = ((e * d - b * f) / det, (a * f - e * c) / det);
                    if lines.iter().all(|([a, b], e)| a * x + b * y >= e - 1e-9) {
                        least = least.min(costs[0] * x + costs[1] * y);
                    }
                }
            }
            let found = program.least();
            assert!(found == least || (found - least).abs() < 1e-9, "{found} {least} {rows:?}");
        }
    }
}
