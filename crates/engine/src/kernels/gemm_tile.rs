//! The register tile: the one inner loop of every matrix product and convolution.
//!
//! A tile is up to [`TILE_ROWS`] × [`TILE_COLS`] sums of products. The right operand is a packed
//! panel, [`TILE_COLS`] floats per summed index. The left operand is found through pointers, so
//! that a convolution reads its image in place: the summed axis is cut into segments (the taps of a
//! window, the rows of an image), and each segment says where its rows start.
//!
//! On x86-64 with AVX2 and FMA, 6 × 16 floats fill 12 of the 16 vector registers, which hides the
//! latency of two multiply-adds per cycle. Elsewhere the same sums run as plain loops. Each sum
//! starts at zero and runs in the order of the index, whatever the shape of the tile around it.

/// Rows of a full tile.
pub(super) const TILE_ROWS: usize = 6;
/// Columns of a full tile and of a packed panel.
pub(super) const TILE_COLS: usize = 16;

/// Which instructions the tile may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Simd {
    /// AVX2 and FMA; made only by [`Simd::detect`] on a machine that has them.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the compiler makes of plain loops.
    Portable,
}

impl Simd {
    /// The best that this machine has. (The standard library asks the processor once.)
    pub(super) fn detect() -> Simd {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Simd::Avx2;
        }
        Simd::Portable
    }
}

/// Where a tile finds element `p` of its row `r` in segment `s`.
#[derive(Clone, Copy)]
pub(super) enum Left {
    /// At `starts[s · pitch + r] + p`: the rows lie anywhere, each contiguous.
    Rows { starts: *const *const f32, pitch: usize },
    /// At `base + offsets[s] + p · step + r`: the rows lie side by side.
    Columns { base: *const f32, offsets: *const usize, step: usize },
}

/// One tile of a product: `result[r][c] = alpha · Σ left[r][p] · right[p][c]`, with `bias[c]` added
/// if it is not null, and the former `result` if `add`.
pub(super) struct Tile {
    pub(super) left: Left,
    /// The packed panel: the segments' elements one after the other.
    pub(super) right: *const f32,
    /// Segments of the summed axis.
    pub(super) segments: usize,
    /// Elements of each segment.
    pub(super) depth: usize,
    /// Where the rows of the result start; only the first `rows` are looked at.
    pub(super) result: [*mut f32; TILE_ROWS],
    /// From 1 to [`TILE_ROWS`].
    pub(super) rows: usize,
    /// From 1 to [`TILE_COLS`].
    pub(super) cols: usize,
    pub(super) alpha: f32,
    /// As many floats as columns, or null.
    pub(super) bias: *const f32,
    pub(super) add: bool,
}

impl Tile {
    /// Computes the tile.
    ///
    /// # Safety
    /// All elements that `left`, `right`, `bias` and `result` name are readable, those of `result`
    /// writable by this call alone, and a full panel row is readable even if `cols` is smaller.
    pub(super) unsafe fn run(&self, simd: Simd) {
        // SAFETY: the caller's promise; AVX2 is named only where it was detected.
        unsafe {
            match simd {
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => match self.rows {
                    1 => avx2::run::<1>(self),
                    2 => avx2::run::<2>(self),
                    3 => avx2::run::<3>(self),
                    4 => avx2::run::<4>(self),
                    5 => avx2::run::<5>(self),
                    _ => avx2::run::<TILE_ROWS>(self),
                },
                Simd::Portable => portable(self),
            }
        }
    }
}

/// The tile in plain loops.
///
/// # Safety
/// As for [`Tile::run`].
unsafe fn portable(tile: &Tile) {
    let mut sums = [[0.0f32; TILE_COLS]; TILE_ROWS];
    let mut right = tile.right;
    // SAFETY: each address is one that the caller has promised to be readable or writable.
    unsafe {
        for segment in 0..tile.segments {
            for p in 0..tile.depth {
                for (r, sums) in sums[..tile.rows].iter_mut().enumerate() {
                    let left = match tile.left {
                        Left::Rows { starts, pitch } => *(*starts.add(segment * pitch + r)).add(p),
                        Left::Columns { base, offsets, step } => {
                            *base.add(*offsets.add(segment) + p * step + r)
                        }
                    };
                    for (c, sum) in sums.iter_mut().enumerate() {
                        *sum += left * *right.add(c);
                    }
                }
                right = right.add(TILE_COLS);
            }
        }
        for (sums, &result) in sums[..tile.rows].iter().zip(&tile.result) {
            for (c, sum) in sums[..tile.cols].iter().enumerate() {
                let mut value = tile.alpha * sum;
                if !tile.bias.is_null() {
                    value += *tile.bias.add(c);
                }
                if tile.add {
                    value += *result.add(c);
                }
                *result.add(c) = value;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Left, TILE_COLS, Tile};

    /// The sums of `R` rows: two vectors of eight columns each.
    type Sums<const R: usize> = [[__m256; 2]; R];

    /// Computes a tile of `R` rows.
    ///
    /// # Safety
    /// As for [`Tile::run`], and `tile.rows == R`.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn run<const R: usize>(tile: &Tile) {
        // SAFETY: the caller's promise.
        unsafe {
            // The result's cache lines are wanted at the end; ask for them now.
            for &row in &tile.result[..R] {
                _mm_prefetch::<_MM_HINT_T0>(row.cast());
            }
            match tile.left {
                Left::Rows { starts, pitch } => store(tile, sum_rows::<R>(tile, starts, pitch)),
                Left::Columns { base, offsets, step } => {
                    store(tile, sum_columns::<R>(tile, base, offsets, step))
                }
            }
        }
    }

    /// The sums of [`Left::Rows`].
    ///
    /// # Safety
    /// As for [`run`].
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn sum_rows<const R: usize>(
        tile: &Tile,
        starts: *const *const f32,
        pitch: usize,
    ) -> Sums<R> {
        let mut sums: Sums<R> = [[_mm256_setzero_ps(); 2]; R];
        let mut right = tile.right;
        for segment in 0..tile.segments {
            // SAFETY: the caller's promise.
            unsafe {
                let rows: [*const f32; R] =
                    std::array::from_fn(|r| *starts.add(segment * pitch + r));
                for p in 0..tile.depth {
                    sums = add_products(sums, right, |r| *rows[r].add(p));
                    right = right.add(TILE_COLS);
                }
            }
        }
        sums
    }

    /// The sums of [`Left::Columns`].
    ///
    /// # Safety
    /// As for [`run`].
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn sum_columns<const R: usize>(
        tile: &Tile,
        base: *const f32,
        offsets: *const usize,
        step: usize,
    ) -> Sums<R> {
        let mut sums: Sums<R> = [[_mm256_setzero_ps(); 2]; R];
        let mut right = tile.right;
        for segment in 0..tile.segments {
            // SAFETY: the caller's promise.
            unsafe {
                let mut left = base.add(*offsets.add(segment));
                for _ in 0..tile.depth {
                    sums = add_products(sums, right, |r| *left.add(r));
                    left = left.wrapping_add(step);
                    right = right.add(TILE_COLS);
                }
            }
        }
        sums
    }

    /// Adds the products of `left(r)` and the panel row at `right`.
    ///
    /// # Safety
    /// A panel row is readable at `right`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn add_products<const R: usize>(
        mut sums: Sums<R>,
        right: *const f32,
        left: impl Fn(usize) -> f32,
    ) -> Sums<R> {
        // SAFETY: the caller's promise.
        let columns = unsafe { [_mm256_loadu_ps(right), _mm256_loadu_ps(right.add(8))] };
        for (r, sums) in sums.iter_mut().enumerate() {
            let value = _mm256_set1_ps(left(r));
            for (sum, column) in sums.iter_mut().zip(columns) {
                *sum = _mm256_fmadd_ps(value, column, *sum);
            }
        }
        sums
    }

    /// Writes the sums to the result.
    ///
    /// # Safety
    /// As for [`run`].
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn store<const R: usize>(tile: &Tile, sums: Sums<R>) {
        let alpha = _mm256_set1_ps(tile.alpha);
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        for offset in [0, 8] {
            if offset >= tile.cols {
                continue;
            }
            let count = (tile.cols - offset).min(8);
            let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes);
            // SAFETY: the mask keeps all access within the first `cols` columns.
            unsafe {
                let bias = match tile.bias.is_null() {
                    true => _mm256_setzero_ps(),
                    false => _mm256_maskload_ps(tile.bias.add(offset), mask),
                };
                for (sums, row) in sums.iter().zip(tile.result) {
                    let row = row.add(offset);
                    let mut value = _mm256_fmadd_ps(alpha, sums[offset / 8], bias);
                    if tile.add {
                        value = _mm256_add_ps(value, _mm256_maskload_ps(row, mask));
                    }
                    match count {
                        8 => _mm256_storeu_ps(row, value),
                        _ => _mm256_maskstore_ps(row, mask, value),
                    }
                }
            }
        }
    }
}
