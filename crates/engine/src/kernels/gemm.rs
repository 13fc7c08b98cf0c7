//! Blocked matrix products over the register tile.
//!
//! A [`Product`] is `c[row] = alpha · Σ_s left(s, row) · right_s (+ bias)`, where the summed axis
//! consists of segments `s` of equal depth. A plain product has one segment; a convolution has one
//! per tap of its window, and its [`OperandLayout`] finds the image row under that tap. The right
//! operand is packed into panels, a bounded part at a time; then tasks of a few rows and columns
//! run over the packed part.
//!
//! The summed axis is cut into blocks by shape alone and each block's sum is added to the result in
//! order. How rows and columns are shared out has no influence on any sum.

use std::ops::Range;

use super::gemm_pack::{View, pack_columns, pack_panel, pack_panel_transposed};
use super::gemm_tile::{Left, Simd, TILE_COLS, TILE_ROWS, Tile};
use crate::{SharedMut, Threads};

/// Summed indices of a block, at most: a packed panel of this depth (24 KiB) stays in the
/// first-level cache while the rows of a task pass by. 384 was up to 5 % faster than 256.
const BLOCK_DEPTH: usize = 384;
/// Segments of a block, at most; bounds the pointer table.
const BLOCK_SEGMENTS: usize = 9;
/// Rows of a task, at most: with a block's depth, 144 KiB of the left operand, a fraction of the
/// second-level cache.
const TASK_ROWS: usize = 16 * TILE_ROWS;
/// Floats of packed panels up to which they stay in the second-level cache (400 KiB of 512), so
/// that a task may go along its rows, which writes the result in order; that was up to 10 % faster.
const RESIDENT: usize = 100 << 10;
/// Tasks below which columns are shared out as well as rows: enough that two threads end within a
/// few percent of each other.
const TASKS: usize = 32;
/// The same for a transposed left operand, whose rows every task packs for itself.
const PACKING_TASKS: usize = 8;
/// Floats of the right operand that are packed at a time (4 MiB) when all threads share them.
pub(super) const SHARED_PACK: usize = 1 << 20;
/// The same for a product that one thread computes on its own (256 KiB, half a second-level cache).
pub(super) const PRIVATE_PACK: usize = 1 << 16;
/// Columns that are packed at a time, at least.
const PACK_COLS: usize = 256;

/// A row of zeros, for taps that fall outside the image.
pub(super) static ZEROS: [f32; BLOCK_DEPTH] = [0.0; BLOCK_DEPTH];

/// Where the operands of a product lie.
///
/// # Safety
/// What `left` finds is readable as long as the layout is borrowed, and no two rows that `result`
/// finds overlap.
pub(super) unsafe trait OperandLayout: Sync {
    /// Sets `starts[i]` to the elements `depth` of row `rows.start + i` in `segment`. At most
    /// [`ZEROS`]' length is asked for at once.
    fn left(
        &self,
        segment: usize,
        depth: Range<usize>,
        rows: Range<usize>,
        starts: &mut [*const f32],
    );
    /// Where the matrix of `segment` starts in the right operand.
    fn right(&self, segment: usize) -> usize;
    /// Sets `starts[i]` to the index in the result at which row `rows.start + i` starts.
    fn result(&self, rows: Range<usize>, starts: &mut [usize]);
}

/// The left operand.
pub(super) enum LeftOperand<'a> {
    /// Rows, as the layout finds them.
    Rows,
    /// Stored transposed: element `p` of row `r` is `data[p · pitch + r]`. One segment only.
    Columns { data: &'a [f32], pitch: usize },
}

impl LeftOperand<'_> {
    /// How many tasks a product should have, at least.
    fn tasks(&self) -> usize {
        match self {
            LeftOperand::Rows => TASKS,
            LeftOperand::Columns { .. } => PACKING_TASKS,
        }
    }
}

/// A product to compute.
pub(super) struct Product<'a> {
    pub(super) simd: Simd,
    pub(super) shape: Shape,
    pub(super) layout: &'a dyn OperandLayout,
    pub(super) left: LeftOperand<'a>,
    /// The right operand, and the distance of its rows.
    pub(super) right: &'a [f32],
    pub(super) right_pitch: usize,
    /// Each segment's matrix is stored `[cols, depth]`.
    pub(super) right_transposed: bool,
    pub(super) alpha: f32,
    pub(super) bias: Option<&'a [f32]>,
}

/// Who computes a product.
#[derive(Clone, Copy)]
pub(super) enum Crew<'a> {
    /// All threads together.
    All(&'a Threads),
    /// The calling thread, within a task of its own.
    One,
}

impl Crew<'_> {
    fn run(self, tasks: usize, work: &(dyn Fn(usize, usize) + Sync)) {
        match self {
            Crew::All(threads) => threads.run(tasks, work),
            Crew::One => (0..tasks).for_each(|task| work(0, task)),
        }
    }
}

/// The sizes of a product.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) segments: usize,
    /// How many products each segment sums.
    pub(super) depth: usize,
}

/// A part of the summed axis: a few whole segments, or a part of one.
struct Block {
    segments: Range<usize>,
    depth: Range<usize>,
    /// Summed indices before it.
    before: usize,
}

impl Block {
    fn len(&self) -> usize {
        self.segments.len() * self.depth.len()
    }
}

impl Shape {
    /// Segments per block, and blocks per segment; one of the two is 1.
    fn blocking(&self) -> (usize, usize) {
        if self.depth > BLOCK_DEPTH {
            return (1, self.depth.div_ceil(BLOCK_DEPTH));
        }
        let most = (BLOCK_DEPTH / self.depth).min(BLOCK_SEGMENTS);
        let blocks = self.segments.div_ceil(most);
        (self.segments.div_ceil(blocks), 1)
    }

    fn blocks(&self) -> usize {
        let (segments, pieces) = self.blocking();
        self.segments.div_ceil(segments) * pieces
    }

    fn block(&self, index: usize) -> Block {
        let (segments, pieces) = self.blocking();
        let first = index / pieces * segments;
        let piece = self.depth.div_ceil(pieces);
        let start = (index % pieces * piece).min(self.depth);
        let depth = start..(start + piece).min(self.depth);
        Block {
            segments: first..(first + segments).min(self.segments),
            before: first * self.depth + depth.start,
            depth,
        }
    }

    /// The depth of the deepest block.
    fn block_len(&self) -> usize {
        self.block(0).len()
    }

    /// Columns packed at a time, a multiple of a panel; and blocks packed at a time.
    fn packing(&self, limit: usize) -> (usize, usize) {
        let fit = limit / (self.segments * self.depth) / TILE_COLS * TILE_COLS;
        let all = self.cols.next_multiple_of(TILE_COLS);
        let cols = fit.max(PACK_COLS).min(all);
        let blocks = (limit / cols / self.block_len()).clamp(1, self.blocks());
        (cols, blocks)
    }

    /// Floats of the packed right operand.
    fn right_len(&self, limit: usize) -> usize {
        let (cols, blocks) = self.packing(limit);
        cols * blocks * self.block_len()
    }

    /// Floats of one thread's packed rows of a transposed left operand.
    fn left_len(&self) -> usize {
        TASK_ROWS * self.block_len()
    }

    /// Rows and columns of a task, out of `cols` columns, if there should be `tasks`.
    fn task(&self, cols: usize, tasks: usize) -> (usize, usize) {
        let chunks = self.rows.div_ceil(TASK_ROWS);
        let rows = self.rows.div_ceil(chunks).next_multiple_of(TILE_ROWS);
        let panels = cols.div_ceil(TILE_COLS);
        let groups = tasks.div_ceil(chunks).min(panels);
        (rows, panels.div_ceil(groups) * TILE_COLS)
    }
}

/// Floats of scratch that [`multiply`] needs for a product of this shape. No threads are one
/// thread, as in [`Threads::new`].
pub(super) fn multiply_scratch(
    shape: &Shape,
    transposed_left: bool,
    limit: usize,
    threads: usize,
) -> usize {
    if shape.rows * shape.cols * shape.segments * shape.depth == 0 {
        return 0;
    }
    let left = if transposed_left { threads.max(1) * shape.left_len() } else { 0 };
    shape.right_len(limit) + left
}

/// Computes `product` into `result`, packing up to `limit` floats of the right operand at a time.
/// The rows of the result must not be in use elsewhere.
pub(super) fn multiply(
    product: &Product,
    result: &SharedMut<f32>,
    limit: usize,
    scratch: &mut [f32],
    crew: Crew,
) {
    let shape = &product.shape;
    if shape.rows * shape.cols == 0 {
        return;
    }
    if shape.segments * shape.depth == 0 {
        return fill_with_bias(product, result, crew);
    }
    let (pack_cols, pack_blocks) = shape.packing(limit);
    let (packed, left) = scratch.split_at_mut(shape.right_len(limit));
    let left = SharedMut::new(left);
    for first_col in (0..shape.cols).step_by(pack_cols) {
        let cols = first_col..(first_col + pack_cols).min(shape.cols);
        for first in (0..shape.blocks()).step_by(pack_blocks) {
            let blocks = first..(first + pack_blocks).min(shape.blocks());
            pack_right(product, &cols, &blocks, packed, crew);
            let part = Part { product, packed, left: &left, result, cols: cols.clone(), blocks };
            let (task_rows, task_cols) = match crew {
                Crew::All(_) => shape.task(cols.len(), product.left.tasks()),
                Crew::One => (TASK_ROWS, pack_cols),
            };
            let groups = cols.len().div_ceil(task_cols);
            let tasks = shape.rows.div_ceil(task_rows) * groups;
            crew.run(tasks, &|thread, task| {
                let row = task / groups * task_rows;
                let col = cols.start + task % groups * task_cols;
                part.compute(
                    thread,
                    row..(row + task_rows).min(shape.rows),
                    col..(col + task_cols).min(cols.end),
                );
            });
        }
    }
}

/// The result of an empty sum.
fn fill_with_bias(product: &Product, result: &SharedMut<f32>, crew: Crew) {
    let Shape { rows, cols, .. } = product.shape;
    crew.run(rows.div_ceil(TASK_ROWS), &|_, task| {
        let rows = task * TASK_ROWS..((task + 1) * TASK_ROWS).min(rows);
        let mut starts = [0; TASK_ROWS];
        product.layout.result(rows.clone(), &mut starts);
        for &start in &starts[..rows.len()] {
            // SAFETY: the layout's rows do not overlap.
            let row = unsafe { result.slice(start..start + cols) };
            match product.bias {
                Some(bias) => row.copy_from_slice(bias),
                None => row.fill(0.0),
            }
        }
    });
}

/// Packs the columns `cols` of `blocks`: block after block, panel after panel.
fn pack_right(
    product: &Product,
    cols: &Range<usize>,
    blocks: &Range<usize>,
    packed: &mut [f32],
    crew: Crew,
) {
    let panels = cols.len().div_ceil(TILE_COLS);
    let before = product.shape.block(blocks.start).before;
    let packed = SharedMut::new(packed);
    crew.run(blocks.len() * panels, &|_, task| {
        let block = product.shape.block(blocks.start + task / panels);
        let panel = task % panels;
        let col = cols.start + panel * TILE_COLS;
        let count = TILE_COLS.min(cols.end - col);
        let start = ((block.before - before) * panels + panel * block.len()) * TILE_COLS;
        // SAFETY: each task packs a panel of its own.
        let out = unsafe { packed.slice(start..start + block.len() * TILE_COLS) };
        let depth = block.depth.len();
        for (segment, out) in block.segments.zip(out.chunks_exact_mut(depth * TILE_COLS)) {
            let data = &product.right[product.layout.right(segment)..];
            let pitch = product.right_pitch;
            if product.right_transposed {
                let data = &data[col * pitch + block.depth.start..];
                let view = View { data, pitch, rows: count, cols: depth };
                pack_panel_transposed(product.simd, view, out);
            } else {
                let data = &data[block.depth.start * pitch + col..];
                let view = View { data, pitch, rows: depth, cols: count };
                pack_panel(view, out);
            }
        }
    });
}

/// The packed part of a product.
struct Part<'a> {
    product: &'a Product<'a>,
    packed: &'a [f32],
    /// A piece per thread, for a transposed left operand.
    left: &'a SharedMut<'a, f32>,
    result: &'a SharedMut<'a, f32>,
    /// What is packed.
    cols: Range<usize>,
    blocks: Range<usize>,
}

impl Part<'_> {
    /// Adds the packed blocks to a task's rows and columns of the result.
    fn compute(&self, thread: usize, rows: Range<usize>, cols: Range<usize>) {
        let product = self.product;
        let shape = &product.shape;
        let mut results = [0usize; TASK_ROWS];
        let results = &mut results[..rows.len()];
        product.layout.result(rows.clone(), results);
        let results: [*mut f32; TASK_ROWS] = std::array::from_fn(|row| match results.get(row) {
            // SAFETY: the layout's rows do not overlap, nor do the columns of two tasks.
            Some(&start) => unsafe {
                self.result.slice(start + cols.start..start + cols.end).as_mut_ptr()
            },
            None => std::ptr::null_mut(),
        });
        let mut starts = [std::ptr::null(); TASK_ROWS * BLOCK_SEGMENTS];
        let panels = self.cols.len().div_ceil(TILE_COLS);
        let before = shape.block(self.blocks.start).before;
        for index in self.blocks.clone() {
            let block = shape.block(index);
            let left = self.left_block(thread, &block, &rows, &mut starts);
            let packed = &self.packed[(block.before - before) * panels * TILE_COLS..];
            let tile = |row: usize, col: usize| {
                let panel = (col - self.cols.start) * block.len();
                let count = TILE_ROWS.min(rows.len() - row);
                let mut result = [std::ptr::null_mut(); TILE_ROWS];
                for (to, from) in result.iter_mut().zip(&results[row..row + count]) {
                    *to = from.wrapping_add(col - cols.start);
                }
                let (segments, depth) = match left.packed {
                    true => (1, block.len()),
                    false => (block.segments.len(), block.depth.len()),
                };
                let tile = Tile {
                    left: left.tile(row, block.len()),
                    right: packed[panel..panel + block.len() * TILE_COLS].as_ptr(),
                    segments,
                    depth,
                    result,
                    rows: count,
                    cols: TILE_COLS.min(cols.end - col),
                    alpha: product.alpha,
                    bias: match product.bias {
                        Some(bias) if index == 0 => bias[col..].as_ptr(),
                        _ => std::ptr::null(),
                    },
                    add: index > 0,
                };
                // SAFETY: the left rows are readable by the layout's promise or were packed just
                // now; the panel has the block's length; the result's rows are this task's own.
                unsafe { tile.run(product.simd) };
            };
            if block.len() * cols.len() <= RESIDENT {
                for row in (0..rows.len()).step_by(TILE_ROWS) {
                    cols.clone().step_by(TILE_COLS).for_each(|col| tile(row, col));
                }
            } else {
                for col in cols.clone().step_by(TILE_COLS) {
                    (0..rows.len()).step_by(TILE_ROWS).for_each(|row| tile(row, col));
                }
            }
        }
    }

    /// Finds or packs a block of the left operand.
    fn left_block(
        &self,
        thread: usize,
        block: &Block,
        rows: &Range<usize>,
        starts: &mut [*const f32; TASK_ROWS * BLOCK_SEGMENTS],
    ) -> LeftBlock {
        match self.product.left {
            LeftOperand::Rows => {
                for (segment, starts) in block.segments.clone().zip(starts.chunks_mut(TASK_ROWS)) {
                    let depth = block.depth.clone();
                    let starts = &mut starts[..rows.len()];
                    self.product.layout.left(segment, depth, rows.clone(), starts);
                }
                LeftBlock { starts: starts.as_ptr(), tiles: std::ptr::null(), packed: false }
            }
            LeftOperand::Columns { data, pitch } => {
                let len = self.product.shape.left_len();
                // SAFETY: no two tasks run on the same thread at once.
                let tiles = unsafe { self.left.slice(thread * len..(thread + 1) * len) };
                let data = &data[block.depth.start * pitch + rows.start..];
                let view = View { data, pitch, rows: block.depth.len(), cols: rows.len() };
                pack_columns(view, tiles);
                LeftBlock { starts: starts.as_ptr(), tiles: tiles.as_ptr(), packed: true }
            }
        }
    }
}

/// A task's rows of the left operand in one block.
struct LeftBlock {
    /// `[BLOCK_SEGMENTS][TASK_ROWS]`, if not packed.
    starts: *const *const f32,
    /// Tiles of [`TILE_ROWS`], if packed.
    tiles: *const f32,
    packed: bool,
}

impl LeftBlock {
    /// The tile that starts at `row` of the task, in a block of `len` summed indices.
    fn tile(&self, row: usize, len: usize) -> Left {
        match self.packed {
            false => Left::Rows { starts: self.starts.wrapping_add(row), pitch: TASK_ROWS },
            true => Left::Columns {
                base: self.tiles.wrapping_add(row * len),
                offsets: &0,
                step: TILE_ROWS,
            },
        }
    }
}
