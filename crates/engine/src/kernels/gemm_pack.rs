//! Packing: copies of operands in the order in which the register tile reads them.

use super::gemm_tile::{Simd, TILE_COLS, TILE_ROWS};

/// A matrix of `rows × cols` inside a larger block: element `(r, c)` is `data[r · pitch + c]`.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) data: &'a [f32],
    pub(super) pitch: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// Packs up to [`TILE_COLS`] columns into `panel`, [`TILE_COLS`] floats per row; missing columns
/// are zeros.
pub(super) fn pack_panel(view: View, panel: &mut [f32]) {
    for (r, out) in panel.chunks_exact_mut(TILE_COLS).take(view.rows).enumerate() {
        let row = &view.data[r * view.pitch..][..view.cols];
        if let Ok(row) = <&[f32; TILE_COLS]>::try_from(row) {
            out.copy_from_slice(row);
        } else {
            out[..row.len()].copy_from_slice(row);
            out[row.len()..].fill(0.0);
        }
    }
}

/// Packs up to [`TILE_COLS`] rows of `view` as the columns of `panel`; missing columns are zeros.
pub(super) fn pack_panel_transposed(simd: Simd, view: View, panel: &mut [f32]) {
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if simd == Simd::Avx2 && view.rows == TILE_COLS {
        done = view.cols / 8 * 8;
        assert!(
            15 * view.pitch + view.cols <= view.data.len() && view.cols * TILE_COLS <= panel.len()
        );
        for c in (0..done).step_by(8) {
            for half in 0..2 {
                // SAFETY: eight rows of eight floats from row `8 · half` and column `c` lie within
                // the view, and eight rows of the panel within the panel, by the assertion.
                unsafe {
                    let from = view.data.as_ptr().add(8 * half * view.pitch + c);
                    let to = panel.as_mut_ptr().add(c * TILE_COLS + 8 * half);
                    transpose_8x8(from, view.pitch, to, TILE_COLS);
                }
            }
        }
    }
    let _ = simd;
    for c in done..view.cols {
        let out = &mut panel[c * TILE_COLS..][..TILE_COLS];
        for (r, out) in out.iter_mut().enumerate() {
            *out = if r < view.rows { view.data[r * view.pitch + c] } else { 0.0 };
        }
    }
}

/// Packs the columns of `view` into tiles of [`TILE_ROWS`]: `[tile][row][TILE_ROWS]`. In the last
/// tile only the columns that exist are written.
pub(super) fn pack_columns(view: View, tiles: &mut [f32]) {
    let tile = view.rows * TILE_ROWS;
    for r in 0..view.rows {
        let row = &view.data[r * view.pitch..][..view.cols];
        let mut full = row.chunks_exact(TILE_ROWS);
        let mut at = r * TILE_ROWS;
        for values in &mut full {
            tiles[at..at + TILE_ROWS].copy_from_slice(values);
            at += tile;
        }
        let rest = full.remainder();
        if !rest.is_empty() {
            tiles[at..at + rest.len()].copy_from_slice(rest);
        }
    }
}

/// `to[c][r] = from[r][c]` for eight rows and columns.
///
/// # Safety
/// Eight rows of eight floats are readable at `from` and writable at `to`; the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn transpose_8x8(from: *const f32, from_pitch: usize, to: *mut f32, to_pitch: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    let rows: [__m256; 8] =
        std::array::from_fn(|r| unsafe { _mm256_loadu_ps(from.add(r * from_pitch)) });
    // Interleave rows 0 and 1, 2 and 3, …; then pairs of those; then swap the 128-bit halves.
    let pairs: [__m256; 8] = std::array::from_fn(|i| match i % 2 {
        0 => _mm256_unpacklo_ps(rows[i], rows[i + 1]),
        _ => _mm256_unpackhi_ps(rows[i - 1], rows[i]),
    });
    let quads: [__m256; 8] = std::array::from_fn(|i| {
        let (low, high) = (pairs[i / 4 * 4 + i % 4 / 2], pairs[i / 4 * 4 + i % 4 / 2 + 2]);
        match i % 2 {
            0 => _mm256_shuffle_ps::<0x44>(low, high),
            _ => _mm256_shuffle_ps::<0xee>(low, high),
        }
    });
    for i in 0..4 {
        let low = _mm256_permute2f128_ps::<0x20>(quads[i], quads[i + 4]);
        let high = _mm256_permute2f128_ps::<0x31>(quads[i], quads[i + 4]);
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to.add(i * to_pitch), low);
            _mm256_storeu_ps(to.add((i + 4) * to_pitch), high);
        }
    }
}
