//! The knee of a frontier: the peak below which less memory begins to cost much time.
//!
//! In: peaks and times of a frontier. Out: which of its points is the knee. Both axes are scaled so
//! that the frontier goes from corner to corner; the knee is the point farthest below the straight
//! line between its two ends. To the right of it more memory saves little time, to the left of it
//! less memory costs more and more.

use rekindle_graph::{Bytes, Micros};

/// Rounding puts points of a straight line off it by less than this share of the range.
const ROUNDING: f64 = 1e-9;

/// The index of the knee; of points that are as far the first. `None` where no point lies below the
/// line between the points with the smallest and the largest peak, as where there are two.
pub fn knee(points: &[(Bytes, Micros)]) -> Option<usize> {
    let low = points.iter().min_by(|a, b| order(a, b))?;
    let high = points.iter().max_by(|a, b| order(a, b))?;
    let width = high.0.saturating_sub(low.0).get() as f64;
    let height = (low.1 - high.1).get();
    if width <= 0.0 || height <= 0.0 {
        return None;
    }
    // How far each lies below the line from (0, 1) to (1, 0), up to a factor that all have.
    let depth = |(peak, time): &(Bytes, Micros)| {
        let along = peak.saturating_sub(low.0).get() as f64 / width;
        let up = (*time - high.1).get() / height;
        1.0 - along - up
    };
    let depths = points.iter().map(depth).enumerate();
    let deepest =
        depths.fold((None, ROUNDING), |(best, most), (index, depth)| match depth > most {
            true => (Some(index), depth),
            false => (best, most),
        });
    deepest.0
}

/// By peak, and among equal peaks the slower first, so that the ends are corners.
fn order(a: &(Bytes, Micros), b: &(Bytes, Micros)) -> std::cmp::Ordering {
    a.0.cmp(&b.0).then(b.1.get().total_cmp(&a.1.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(points: &[(u64, f64)], expected: Option<usize>) {
        let points: Vec<_> = points.iter().map(|&(p, t)| (Bytes(p), Micros(t))).collect();
        assert_eq!(knee(&points), expected);
    }

    #[test]
    fn the_knee_is_farthest_below_the_line_between_the_ends() {
        // In any order; 40 bytes take hardly more time than 100, and 20 much more.
        check(&[(100, 10.0), (70, 10.5), (40, 11.0), (20, 30.0)], Some(2));
        check(&[(20, 30.0), (40, 11.0), (70, 10.5), (100, 10.0)], Some(1));
        // Every byte costs the same.
        check(&[(100, 10.0), (60, 14.0), (20, 18.0)], None);
        // The last bytes are the cheap ones.
        check(&[(100, 10.0), (60, 17.0), (20, 18.0)], None);
        check(&[(100, 10.0), (20, 18.0)], None);
        check(&[(100, 10.0), (20, 10.0), (50, 10.0)], None);
        check(&[(100, 10.0)], None);
        check(&[], None);
    }
}
