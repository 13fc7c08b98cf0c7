//! Winograd's F(2 × 2, 3 × 3): windows of 3 × 3 pixels and stride 1 with 16 multiplications per 2 ×
//! 2 pixels of the result and pair of channels, where the plain sum takes 36.
//!
//! With `d` a patch of 4 × 4 pixels of the image and `g` the 3 × 3 weights, the 2 × 2 pixels are
//! `Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A` (Lavin and Gray, 2016), where
//!
//! ```text
//! Bᵀ = 1  0 -1  0    G = 1    0    0      Aᵀ = 1  1  1  0
//!      0  1  1  0        1/2  1/2  1/2         0  1 -1 -1
//!      0 -1  1  0        1/2 -1/2  1/2
//!      0  1  0 -1        0    0    1
//! ```
//!
//! Over channels, each of the 16 points of `⊙` is a matrix product: `[patches, ci] · [ci, co]`. The
//! weights are transformed into packed panels first, as many columns as fit; then each task
//! transforms a few patches, multiplies, and transforms back. The gradient of the image is the
//! same, with the weights turned around.
//!
//! The factors of `G` are exact and the sums short, so rounding errors are of the size of the plain
//! sum's (larger tiles would save more and round worse). Channels must come in full vectors.

use rekindle_program::op::Conv;

use super::gemm_pack::{View, pack_panel, pack_panel_transposed};
use super::gemm_tile::{Left, Simd, TILE_COLS, TILE_ROWS, Tile};
use crate::{SharedMut, Threads};

/// Points of a transformed patch.
const POINTS: usize = 16;
/// Patches of a task: four register tiles share each packed panel.
const PATCHES: usize = 4 * TILE_ROWS;
/// Floats of transformed weights at a time (4 MiB), unless a single panel has more.
const PACK: usize = 1 << 20;
/// Summed channels of a block, so that a panel (16 KiB) stays in the first-level cache.
const BLOCK_DEPTH: usize = 256;
/// Patches below which transforming the weights is reckoned to cost what is saved: each weight is
/// read and 16/9 floats written for it, against that many patches times 20 multiplications saved
/// per 4 pixels.
const FEWEST_PATCHES: usize = 128;
/// Channels below which the products are reckoned too thin to win: a register tile's sums would be
/// shorter than what it costs to store them.
const FEWEST_CHANNELS: usize = 32;
/// Channels, at most; the length of a pixel of zeros.
const MOST_CHANNELS: usize = 2048;
/// Input channels whose weights are transformed at a time.
const WEIGHT_ROWS: usize = 16;

/// A pixel outside the image.
static ZERO_PIXEL: [f32; MOST_CHANNELS] = [0.0; MOST_CHANNELS];

/// A few rows of a panel of weights.
type WeightRows = [f32; WEIGHT_ROWS * TILE_COLS];

/// Eight channels.
type Lanes = [f32; 8];

/// A convolution, or the gradient of its image, that can be computed this way.
pub(super) struct Winograd {
    batch: usize,
    /// Height and width of what is read and of what is written.
    input: [usize; 2],
    output: [usize; 2],
    padding: [usize; 2],
    /// Channels of what is read and of what is written.
    ci: usize,
    co: usize,
    /// Whether the weights are turned around.
    gradient: bool,
}

impl Winograd {
    /// The forward convolution, if it qualifies.
    pub(super) fn forward(dims: &Conv) -> Option<Winograd> {
        let window = &dims.window;
        Winograd {
            batch: window.batch,
            input: [window.height, window.width],
            output: [window.out_height(), window.out_width()],
            padding: window.padding,
            ci: dims.in_channels,
            co: dims.out_channels,
            gradient: false,
        }
        .qualify(dims)
    }

    /// The gradient of the image, if it qualifies.
    pub(super) fn gradient(dims: &Conv) -> Option<Winograd> {
        let window = &dims.window;
        Winograd {
            batch: window.batch,
            input: [window.out_height(), window.out_width()],
            output: [window.height, window.width],
            padding: window.padding.map(|padding| 2usize.saturating_sub(padding)),
            ci: dims.out_channels,
            co: dims.in_channels,
            gradient: true,
        }
        .qualify(dims)
    }

    fn qualify(self, dims: &Conv) -> Option<Winograd> {
        let window = &dims.window;
        let fits = |channels: usize| {
            channels.is_multiple_of(TILE_COLS)
                && (FEWEST_CHANNELS..=MOST_CHANNELS).contains(&channels)
        };
        (window.kernel == [3, 3]
            && window.stride == [1, 1]
            && window.dilation == [1, 1]
            && window.extra == [0, 0]
            && window.padding.iter().all(|&padding| padding <= 2)
            && dims.groups == 1
            && fits(self.ci)
            && fits(self.co)
            && self.patches() >= FEWEST_PATCHES)
            .then_some(self)
    }

    /// Rows and columns of patches of one image.
    fn grid(&self) -> [usize; 2] {
        self.output.map(|size| size.div_ceil(2))
    }

    fn patches(&self) -> usize {
        self.batch * self.grid()[0] * self.grid()[1]
    }

    /// Columns of weights transformed at a time.
    fn pass_cols(&self) -> usize {
        (PACK / POINTS / self.ci / TILE_COLS * TILE_COLS).clamp(TILE_COLS, self.co)
    }

    fn weights_len(&self) -> usize {
        POINTS * self.ci * self.pass_cols()
    }

    /// Floats of a task's transformed patches and products.
    fn task_len(&self) -> usize {
        POINTS * PATCHES * (self.ci + self.pass_cols())
    }

    /// Floats of scratch. No threads are one thread, as in [`Threads::new`].
    pub(super) fn scratch(&self, threads: usize) -> usize {
        self.weights_len() + threads.max(1) * self.task_len()
    }

    /// Computes `y` from `x` and the convolution's weights.
    #[allow(clippy::too_many_arguments)] // The operands, and how to compute.
    pub(super) fn run(
        &self,
        simd: Simd,
        x: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
        scratch: &mut [f32],
        threads: &Threads,
    ) {
        let (weights, tasks) = scratch.split_at_mut(self.weights_len());
        let tasks = SharedMut::new(tasks);
        let y = SharedMut::new(y);
        for first in (0..self.co).step_by(self.pass_cols()) {
            let cols = self.pass_cols().min(self.co - first);
            self.transform_weights(simd, w, first, cols, weights, threads);
            let pass = Pass { shape: self, simd, x, weights, bias, y: &y, first, cols };
            threads.run(self.patches().div_ceil(PATCHES), &|thread, task| {
                let len = self.task_len();
                // SAFETY: no two tasks run on the same thread at once.
                let scratch = unsafe { tasks.slice(thread * len..(thread + 1) * len) };
                pass.compute(task * PATCHES, scratch);
            });
        }
    }

    /// Transforms `cols` columns of the weights from `first` into `[point][panel][ci][TILE_COLS]`.
    fn transform_weights(
        &self,
        simd: Simd,
        w: &[f32],
        first: usize,
        cols: usize,
        out: &mut [f32],
        threads: &Threads,
    ) {
        let panels = cols / TILE_COLS;
        let pitch = if self.gradient { self.ci } else { self.co };
        let blocks = self.ci.div_ceil(WEIGHT_ROWS);
        let out = SharedMut::new(out);
        threads.run(panels * blocks, &|_, task| {
            let col = first + task / blocks * TILE_COLS;
            let row = task % blocks * WEIGHT_ROWS;
            let mut taps: [WeightRows; 9] = [[0.0; WEIGHT_ROWS * TILE_COLS]; 9];
            for (tap, taps) in taps.iter_mut().enumerate() {
                if self.gradient {
                    let data = &w[((8 - tap) * self.co + col) * pitch + row..];
                    let view = View { data, pitch, rows: TILE_COLS, cols: WEIGHT_ROWS };
                    pack_panel_transposed(simd, view, taps);
                } else {
                    let data = &w[(tap * self.ci + row) * pitch + col..];
                    pack_panel(View { data, pitch, rows: WEIGHT_ROWS, cols: TILE_COLS }, taps);
                }
            }
            let mut points = [[0.0; WEIGHT_ROWS * TILE_COLS]; POINTS];
            match simd {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: AVX2 is named only where it was detected.
                Simd::Avx2 => unsafe { transform_taps_avx2(&taps, &mut points) },
                Simd::Portable => transform_taps(&taps, &mut points),
            }
            for (point, values) in points.iter().enumerate() {
                let start = ((point * panels + task / blocks) * self.ci + row) * TILE_COLS;
                // SAFETY: each task writes rows of its own.
                unsafe { out.slice(start..start + values.len()) }.copy_from_slice(values);
            }
        });
    }
}

/// Some columns of a product whose weights are transformed.
struct Pass<'a> {
    shape: &'a Winograd,
    simd: Simd,
    x: &'a [f32],
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    y: &'a SharedMut<'a, f32>,
    first: usize,
    cols: usize,
}

impl Pass<'_> {
    /// Computes up to [`PATCHES`] patches from `first` on.
    fn compute(&self, first: usize, scratch: &mut [f32]) {
        let shape = self.shape;
        let count = PATCHES.min(shape.patches() - first);
        let (patches, products) = scratch.split_at_mut(POINTS * PATCHES * shape.ci);
        for i in 0..count {
            let pixels = self.pixels(first + i);
            let out = &mut patches[i * shape.ci..];
            match self.simd {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: AVX2 is named only where it was detected.
                Simd::Avx2 => unsafe { transform_patch_avx2(&pixels, out, PATCHES * shape.ci) },
                Simd::Portable => transform_patch(&pixels, out, PATCHES * shape.ci),
            }
        }
        self.multiply(count, patches, products);
        for i in 0..count {
            let points: [&[f32]; POINTS] = std::array::from_fn(|point| {
                &products[(point * PATCHES + i) * self.cols..][..self.cols]
            });
            // SAFETY: the patch is this task's.
            let mut results = unsafe { self.results(first + i) };
            let bias = self.bias.map(|bias| &bias[self.first..]);
            match self.simd {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: AVX2 is named only where it was detected.
                Simd::Avx2 => unsafe { transform_back_avx2(&points, bias, &mut results) },
                Simd::Portable => transform_back(&points, bias, &mut results),
            }
        }
    }

    /// The image and the position in the grid of a patch.
    fn position(&self, patch: usize) -> (usize, [usize; 2]) {
        let [rows, columns] = self.shape.grid();
        (patch / columns / rows, [patch / columns % rows, patch % columns])
    }

    /// The 4 × 4 pixels of a patch.
    fn pixels(&self, patch: usize) -> [&[f32]; POINTS] {
        let Winograd { input, padding, ci, .. } = *self.shape;
        let (image, position) = self.position(patch);
        std::array::from_fn(|point| {
            // A pixel of the padding above or to the left wraps around and is outside, too.
            let y = (2 * position[0] + point / 4).wrapping_sub(padding[0]);
            let x = (2 * position[1] + point % 4).wrapping_sub(padding[1]);
            match y < input[0] && x < input[1] {
                true => &self.x[((image * input[0] + y) * input[1] + x) * ci..][..ci],
                false => &ZERO_PIXEL[..ci],
            }
        })
    }

    /// The 2 × 2 pixels of the result of a patch, as far as they exist.
    ///
    /// # Safety
    /// Only the task that computes the patch may call this, and not while it holds them already.
    #[allow(clippy::mut_from_ref)] // They come from the shared result; see above.
    unsafe fn results(&self, patch: usize) -> [Option<&mut [f32]>; 4] {
        let Winograd { output, co, .. } = *self.shape;
        let (image, position) = self.position(patch);
        std::array::from_fn(|i| {
            let (y, x) = (2 * position[0] + i / 2, 2 * position[1] + i % 2);
            (y < output[0] && x < output[1]).then(|| {
                let start = ((image * output[0] + y) * output[1] + x) * co + self.first;
                // SAFETY: each pixel of the result belongs to one patch, and that to the caller.
                unsafe { self.y.slice(start..start + self.cols) }
            })
        })
    }

    /// The products of all points: `[point][patch][cols]`.
    fn multiply(&self, count: usize, patches: &[f32], products: &mut [f32]) {
        let ci = self.shape.ci;
        let products = products[..POINTS * PATCHES * self.cols].as_mut_ptr();
        for point in 0..POINTS {
            let rows: [*const f32; PATCHES] =
                std::array::from_fn(|i| patches[(point * PATCHES + i) * ci..][..ci].as_ptr());
            for start in (0..ci).step_by(BLOCK_DEPTH) {
                let depth = BLOCK_DEPTH.min(ci - start);
                let rows = rows.map(|row| row.wrapping_add(start));
                for panel in 0..self.cols / TILE_COLS {
                    let right = (point * self.cols / TILE_COLS + panel) * ci + start;
                    let right = &self.weights[right * TILE_COLS..][..depth * TILE_COLS];
                    for first in (0..count).step_by(TILE_ROWS) {
                        let result = std::array::from_fn(|r| {
                            let row = point * PATCHES + first + r;
                            products.wrapping_add(row * self.cols + panel * TILE_COLS)
                        });
                        let tile = Tile {
                            left: Left::Rows { starts: rows[first..].as_ptr(), pitch: 0 },
                            right: right.as_ptr(),
                            segments: 1,
                            depth,
                            result,
                            rows: TILE_ROWS.min(count - first),
                            cols: TILE_COLS,
                            alpha: 1.0,
                            bias: std::ptr::null(),
                            add: start > 0,
                        };
                        // SAFETY: rows and panel have `depth` elements from `start` on, and the
                        // products are this task's own.
                        unsafe { tile.run(self.simd) };
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn add(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|i| a[i] + b[i])
}

#[inline(always)]
fn sub(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|i| a[i] - b[i])
}

/// `G` times a column.
#[inline(always)]
fn widen(g: [Lanes; 3]) -> [Lanes; 4] {
    let half = |lanes: Lanes| lanes.map(|lane| 0.5 * lane);
    let outer = add(g[0], g[2]);
    [g[0], half(add(outer, g[1])), half(sub(outer, g[1])), g[2]]
}

/// `Bᵀ` times a column.
#[inline(always)]
fn spread(d: [Lanes; 4]) -> [Lanes; 4] {
    [sub(d[0], d[2]), add(d[1], d[2]), sub(d[2], d[1]), sub(d[1], d[3])]
}

/// `Aᵀ` times a column.
#[inline(always)]
fn gather(m: [Lanes; 4]) -> [Lanes; 2] {
    [add(add(m[0], m[1]), m[2]), sub(sub(m[1], m[2]), m[3])]
}

/// `G g Gᵀ` for a few rows of a panel.
#[inline(always)]
fn transform_taps(taps: &[WeightRows; 9], points: &mut [WeightRows; POINTS]) {
    let taps = taps.each_ref().map(|tap| tap.as_chunks::<8>().0);
    for c in 0..taps[0].len() {
        let columns: [[Lanes; 4]; 3] =
            std::array::from_fn(|x| widen(std::array::from_fn(|y| taps[3 * y + x][c])));
        for y in 0..4 {
            let row = widen(std::array::from_fn(|x| columns[x][y]));
            for (x, lanes) in row.iter().enumerate() {
                points[4 * y + x][8 * c..][..8].copy_from_slice(lanes);
            }
        }
    }
}

/// `Bᵀ d B` for all channels of a patch; point `i` is written at `i · pitch`.
#[inline(always)]
fn transform_patch(pixels: &[&[f32]; POINTS], out: &mut [f32], pitch: usize) {
    let pixels = pixels.map(|pixel| pixel.as_chunks::<8>().0);
    for c in 0..pixels[0].len() {
        let columns: [[Lanes; 4]; 4] =
            std::array::from_fn(|x| spread(std::array::from_fn(|y| pixels[4 * y + x][c])));
        for y in 0..4 {
            let row = spread(std::array::from_fn(|x| columns[x][y]));
            for (x, lanes) in row.iter().enumerate() {
                out[(4 * y + x) * pitch + 8 * c..][..8].copy_from_slice(lanes);
            }
        }
    }
}

/// `Aᵀ m A` for all channels of a patch, plus the bias.
#[inline(always)]
fn transform_back(
    points: &[&[f32]; POINTS],
    bias: Option<&[f32]>,
    results: &mut [Option<&mut [f32]>; 4],
) {
    let points = points.map(|point| point.as_chunks::<8>().0);
    for c in 0..points[0].len() {
        let columns: [[Lanes; 2]; 4] =
            std::array::from_fn(|x| gather(std::array::from_fn(|y| points[4 * y + x][c])));
        let bias = bias.map_or([0.0; 8], |bias| bias.as_chunks::<8>().0[c]);
        for y in 0..2 {
            let row = gather(std::array::from_fn(|x| columns[x][y]));
            for (x, lanes) in row.into_iter().enumerate() {
                if let Some(result) = &mut results[2 * y + x] {
                    result[8 * c..][..8].copy_from_slice(&add(lanes, bias));
                }
            }
        }
    }
}

/// [`transform_taps`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn transform_taps_avx2(taps: &[WeightRows; 9], points: &mut [WeightRows; POINTS]) {
    transform_taps(taps, points);
}

/// [`transform_patch`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn transform_patch_avx2(pixels: &[&[f32]; POINTS], out: &mut [f32], pitch: usize) {
    transform_patch(pixels, out, pitch);
}

/// [`transform_back`], compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn transform_back_avx2(
    points: &[&[f32]; POINTS],
    bias: Option<&[f32]>,
    results: &mut [Option<&mut [f32]>; 4],
) {
    transform_back(points, bias, results);
}
